//! Adds many elements to a set at once, compared with a replay of the same bytes and with `nft -f`; lists the set, compared with reading
//! the same dump without decoding it and with `nft -j list`; replaces one element of a small and of a large set. Runs in its own network
//! namespace, and requires root.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kernlink_benches::runs::{fastest, median, median_ratio, ratio};
use kernlink_benches::{Result, figure, memory};
use kernlink_kernel_tests::programs;
use kernlink_netlink::{AttributeWriter, Script, netfilter};
use kernlink_nftables::{
    Client, DataType, Element, Elements, Nftables, Operation, Set, SetKey, Table, TableFamily, TableKey,
    Value, uapi,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{setsockopt, sockopt};

const COUNT: u32 = 100_000;
const RUNS: usize = 7;
/// With this variable the program only adds so many elements, and prints its peak memory.
const CHILD: &str = "KERNLINK_BENCH_NFTABLES_ELEMENTS";

fn main() -> Result<()> {
    if let Some(count) = memory::child(CHILD)? {
        return peak(count);
    }
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("creating a network namespace, which requires root: {error}"))?;
    encode()?;
    batch(None)?;
    batch(Some(COUNT))?;
    list()?;
    let peak = memory::of_child(CHILD, COUNT)?;
    figure(&format!("nftables.batch_peak_mib.{COUNT}"), peak / 1024.0, "MiB")?;
    one_element()
}

fn table() -> TableKey {
    TableKey::new(TableFamily::Ip, "bench")
}

fn key(name: &str) -> SetKey {
    table().set(name)
}

/// The fields of a key: an address, a port of TCP.
fn fields(number: u32) -> (Ipv4Addr, u16) {
    (
        Ipv4Addr::from(0x0a00_0000 + number / 4),
        8000 + (number % 4) as u16,
    )
}

fn element(number: u32) -> Element {
    let (address, port) = fields(number);
    Element::new(Value::concat([
        Value::from(address),
        Value::protocol(6),
        Value::port(port),
    ]))
}

fn elements(name: &str, count: u32) -> Elements {
    Elements::new(key(name), (0..count).map(element))
}

/// Replaces the table by one with an empty set.
fn fresh(client: &mut Client, name: &str, size: Option<u32>) -> Result<()> {
    let types = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];
    let mut set = Set::new(key(name), &types);
    if let Some(size) = size {
        set = set.with_size(size);
    }
    Ok(client.apply(&[
        Operation::add(Table::new(table())),
        Operation::delete(table()),
        Operation::add(Table::new(table())),
        Operation::add(set),
    ])?)
}

/// Fails if the set does not have so many elements.
fn check(client: &mut Client, count: u32) -> Result<()> {
    // While the kernel adapts the size of the hash table, an iteration may return an element twice.
    let elements = client.list_elements(&key("s"))?.len();
    if elements == count as usize {
        Ok(())
    } else {
        Err(format!("{elements} elements; expected {count}").into())
    }
}

fn report(what: &str, times: &[Duration]) -> Result<()> {
    let (best, middle) = (fastest(times)?, median(times.to_vec()));
    println!("  {what:<24} fastest {best:>9.2?}, median {middle:>9.2?}");
    Ok(())
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let result = work()?;
    Ok((start.elapsed(), result))
}

/// The whole `execute`, with an acknowledgement of a script instead of the kernel.
fn encode() -> Result<()> {
    let messages = messages().len();
    let operations = [Operation::add(elements("s", COUNT))];
    let mut times = Vec::new();
    for _ in 0..30 {
        let script = Script::new().expect_anything().acknowledge(messages - 2, Ok(()));
        let mut client = Client::from_connection(script.connect()?);
        times.push(timed(|| Ok(client.apply(&operations)?))?.0);
    }
    report("encoding", &times)?;
    let rate = f64::from(COUNT) / median(times).as_secs_f64();
    Ok(figure("nftables.encode_elements_per_second", rate, "elements/s")?)
}

/// Of a set without a size, which grows, or of one with a size, whose memory is allocated when it is added.
fn batch(size: Option<u32>) -> Result<()> {
    let suffix = if size.is_some() { ".sized" } else { "" };
    println!("{COUNT} elements of ipv4_addr . inet_proto . inet_service are added, size {size:?}:");
    let messages = messages();
    let operations = [Operation::add(elements("s", COUNT))];
    verify(&messages, &operations)?;
    let bytes = messages.concat();
    let file = Path::new("/dev/shm").join(format!("kernlink-bench-nftables-{}", std::process::id()));
    std::fs::write(&file, text())?;

    let mut client = Client::open()?;
    let (mut batches, mut floors, mut tools) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS {
        fresh(&mut client, "s", size)?;
        let batch = timed(|| Ok(client.apply(&operations)?))?.0;
        check(&mut client, COUNT)?;

        fresh(&mut client, "s", size)?;
        let socket = socket()?;
        let floor = timed(|| replay(&socket, &bytes))?.0;
        check(&mut client, COUNT)?;

        fresh(&mut client, "s", size)?;
        let tool = timed(|| succeed(programs::command("nft").arg("-f").arg(&file)))?.0;
        check(&mut client, COUNT)?;
        // Modules are loaded and caches are filled in the first run.
        if run > 0 {
            batches.push(batch);
            floors.push(floor);
            tools.push(tool);
        }
    }
    std::fs::remove_file(&file)?;
    report("batch", &batches)?;
    report("the same bytes", &floors)?;
    report("nft -f", &tools)?;
    let (batch, floor, tool) = (fastest(&batches)?, fastest(&floors)?, fastest(&tools)?);
    figure(
        &format!("nftables.batch_over_floor.{COUNT}{suffix}"),
        ratio(batch, floor),
        "ratio",
    )?;
    figure(
        &format!("nftables.nft_over_batch.{COUNT}{suffix}"),
        ratio(tool, batch),
        "ratio",
    )?;
    // What the kernel takes is a part of both.
    figure(
        &format!("nftables.nft_over_floor.{COUNT}{suffix}"),
        ratio(tool, floor),
        "ratio",
    )?;
    let own = tool.saturating_sub(floor);
    figure(
        &format!("nftables.nft_own_ms.{COUNT}{suffix}"),
        own.as_secs_f64() * 1e3,
        "ms",
    )?;
    Ok(())
}

fn list() -> Result<()> {
    println!("listed:");
    let mut client = Client::open()?;
    fresh(&mut client, "s", None)?;
    client.apply(&[Operation::add(elements("s", COUNT))])?;
    check(&mut client, COUNT)?;
    let (mut streams, mut lists, mut floors, mut tools) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (stream, count) = timed(|| {
            let mut count = 0;
            for element in client.elements(&key("s"))? {
                std::hint::black_box(element?);
                count += 1;
            }
            Ok(count)
        })?;
        let (list, listed) = timed(|| Ok(client.list_elements(&key("s"))?))?;
        let socket = socket()?;
        let floor = timed(|| read_dump(&socket))?.0;
        let mut command = programs::command("nft");
        let tool = timed(|| succeed(command.args(["-j", "list", "set", "ip", "bench", "s"])))?.0;
        if count != COUNT || listed.len() != COUNT as usize {
            return Err(format!("{count} and {} elements; expected {COUNT}", listed.len()).into());
        }
        if run > 0 {
            streams.push(stream);
            lists.push(list);
            floors.push(floor);
            tools.push(tool);
        }
    }
    report("one after the other", &streams)?;
    report("as one list", &lists)?;
    report("the dump, not decoded", &floors)?;
    report("nft -j list set", &tools)?;
    for (name, one, other) in [
        ("stream_over_floor", &streams, &floors),
        ("list_over_floor", &lists, &floors),
        ("nft_list_over_list", &tools, &lists),
        ("nft_list_over_floor", &tools, &floors),
    ] {
        let name = format!("nftables.{name}.{COUNT}");
        figure(&name, median_ratio(one, other), "ratio")?;
    }
    Ok(())
}

/// A transaction that deletes an element and adds another one, in sets of two sizes, alternately.
fn one_element() -> Result<()> {
    const SIZES: [u32; 2] = [1000, 500_000];
    const CHANGES: u32 = 200;
    let mut client = Client::open()?;
    fresh(&mut client, "1000", None)?;
    let types = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];
    client.apply(&[Operation::add(Set::new(key("500000"), &types))])?;
    for size in SIZES {
        client.add_elements(&elements(&size.to_string(), size), 10_000)?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..10 {
        for (size, times) in SIZES.into_iter().zip(&mut times) {
            let name = size.to_string();
            for change in 0..CHANGES {
                let old = size + round * CHANGES + change;
                let deleted = if round == 0 && change == 0 { 0 } else { old - 1 };
                let transaction = [
                    Operation::delete(Elements::new(key(&name), [element(deleted)])),
                    Operation::add(Elements::new(key(&name), [element(old)])),
                ];
                times.push(timed(|| Ok(client.apply(&transaction)?))?.0);
            }
        }
    }
    let [small, large] = times;
    println!("one element is replaced:");
    report("of 1000", &small)?;
    report("of 500000", &large)?;
    figure(
        "nftables.one_element_500000_over_1000",
        ratio(median(large), median(small)),
        "ratio",
    )?;
    Ok(())
}

/// Adds elements and prints the peak memory of the process in KiB.
fn peak(count: u32) -> Result<()> {
    let mut client = Client::open()?;
    fresh(&mut client, "s", None)?;
    client.apply(&[Operation::add(elements("s", count))])?;
    println!("{}", memory::peak_kib()?);
    Ok(())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {status}").into())
    }
}

/// What `nft -f` reads.
fn text() -> String {
    let element = |number| {
        let (address, port) = fields(number);
        format!("{address} . tcp . {port}")
    };
    let elements: Vec<String> = (0..COUNT).map(element).collect();
    format!("add element ip bench s {{ {} }}\n", elements.join(", "))
}

fn socket() -> Result<Socket> {
    let socket = Socket::new(NETLINK_NETFILTER)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    setsockopt(&socket, sockopt::SndBufForce, &(16 << 20))?;
    setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
    Ok(socket)
}

/// Sends the bytes and reads the acknowledgement.
fn replay(socket: &Socket, bytes: &[u8]) -> Result<()> {
    socket.send(bytes, 0)?;
    let mut answer = vec![0; 1 << 16];
    let length = socket.recv(&mut &mut answer[..], 0)?;
    match answer.get(16..20).filter(|_| length >= 20) {
        Some([0, 0, 0, 0]) => Ok(()),
        code => Err(format!("refused: {code:?}").into()),
    }
}

/// Requests the elements, and reads until the end of the dump.
fn read_dump(socket: &Socket) -> Result<()> {
    let mut payload = Vec::new();
    let mut w = AttributeWriter::new(&mut payload);
    w.header(&netfilter::Header::new(TableFamily::Ip.number()).to_bytes());
    w.string(uapi::NFTA_SET_ELEM_LIST_TABLE, "bench");
    w.string(uapi::NFTA_SET_ELEM_LIST_SET, "s");
    // NLM_F_REQUEST and NLM_F_DUMP.
    socket.send(
        &Script::message(message_type(uapi::NFT_MSG_GETSETELEM), 0x301, &payload),
        0,
    )?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = socket.recv(&mut &mut buffer[..], 0)?;
        let mut rest = buffer.get(..length).unwrap_or_default();
        // Length and type; NLMSG_ERROR is 2, NLMSG_DONE 3.
        while let [a, b, c, d, kind, high, ..] = rest {
            // The types of nf_tables are 0x0a00 and more.
            match u16::from_ne_bytes([*kind, *high]) {
                3 => return Ok(()),
                2 => return Err("the dump was refused".into()),
                _ => {}
            }
            let length = u32::from_ne_bytes([*a, *b, *c, *d]) as usize;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn message_type(command: u8) -> u16 {
    netfilter::message_type(netfilter::NFNL_SUBSYS_NFTABLES, command)
}

/// The messages of the transaction, without the encoder of the client.
fn messages() -> Vec<Vec<u8>> {
    // Length at which the client ends a list.
    const LIST_LIMIT: usize = 48 << 10;
    const NLM_F_REQUEST: u16 = 1;
    const NLM_F_ACK: u16 = 4;
    const NLM_F_CREATE: u16 = 0x400;
    let limit = |kind| {
        let mut header = netfilter::Header::new(0);
        header.resource = u16::from(netfilter::NFNL_SUBSYS_NFTABLES);
        Script::message(kind, NLM_F_REQUEST, &header.to_bytes())
    };
    let mut messages = vec![limit(uapi::NFNL_MSG_BATCH_BEGIN)];
    let mut number = 0;
    while number < COUNT {
        let mut payload = Vec::new();
        let mut w = AttributeWriter::new(&mut payload);
        w.header(&netfilter::Header::new(TableFamily::Ip.number()).to_bytes());
        w.string(uapi::NFTA_SET_ELEM_LIST_TABLE, "bench");
        w.string(uapi::NFTA_SET_ELEM_LIST_SET, "s");
        w.nested(uapi::NFTA_SET_ELEM_LIST_ELEMENTS, |w| {
            let start = w.position();
            while number < COUNT && w.position() - start <= LIST_LIMIT {
                let (address, port) = fields(number);
                let mut key = [0; 12];
                key[..4].copy_from_slice(&address.octets());
                key[4] = 6;
                key[8..10].copy_from_slice(&port.to_be_bytes());
                w.nested(uapi::NFTA_LIST_ELEM, |w| {
                    w.nested(uapi::NFTA_SET_ELEM_KEY, |w| {
                        w.bytes(uapi::NFTA_DATA_VALUE, &key);
                    });
                });
                number += 1;
            }
        });
        let acknowledged = if number == COUNT { NLM_F_ACK } else { 0 };
        let flags = NLM_F_REQUEST | NLM_F_CREATE | acknowledged;
        messages.push(Script::message(
            message_type(uapi::NFT_MSG_NEWSETELEM),
            flags,
            &payload,
        ));
    }
    messages.push(limit(uapi::NFNL_MSG_BATCH_END));
    messages
}

/// Fails if the client sends other messages.
fn verify(messages: &[Vec<u8>], operations: &[Operation]) -> Result<()> {
    let script = Script::new()
        .expect(&messages.concat())
        .acknowledge(messages.len() - 2, Ok(()));
    Ok(Client::from_connection(script.connect()?).apply(operations)?)
}
