//! Writing and reading whole IPVS tables with `kernlink-ipvs`, with a replay of encoded messages, and with `ipvsadm`. Each case
//! runs in its own network namespace, because earlier tables of a namespace make later ones slower.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::time::{Duration, Instant};

use kernlink_benches::figure;
use kernlink_benches::runs::{median, ratio};
use kernlink_ipvs::{
    Client, Consistency, Ipvs, Operation, RealServer, RealServerKey, Scheduler, VirtualServer,
    VirtualServerKey,
};
use kernlink_kernel_tests::{netns::NetNs, programs};
use kernlink_netlink::generic::Family;
use kernlink_netlink::{Batch, Connection, Protocol};
use netlink_sys::{Socket, SocketAddr};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const REAL_SERVERS: u32 = 10;

fn main() -> Result<()> {
    for (name, virtual_servers, runs) in [("2000x10", 2_000, 3), ("10000x10", 10_000, 3)] {
        write(name, virtual_servers, runs)?;
    }
    read("10000x10", 10_000)
}

fn operations(virtual_servers: u32) -> Vec<Operation> {
    let mut operations = Vec::new();
    for n in 0..virtual_servers {
        let key = VirtualServerKey::tcp(Ipv4Addr::from(0x0a60_0001 + n), 80);
        operations.push(Operation::AddVirtualServer(VirtualServer::new(
            key,
            Scheduler::RR,
        )));
        for r in 0..REAL_SERVERS {
            let address = Ipv4Addr::from(0x0a80_0000 + n * REAL_SERVERS + r);
            operations.push(Operation::AddRealServer {
                virtual_server: key,
                real_server: RealServer::new(RealServerKey::new(address, 8080)),
            });
        }
    }
    operations
}

fn write(name: &str, virtual_servers: u32, runs: usize) -> Result<()> {
    let operations = operations(virtual_servers);
    let (mut batches, mut floors) = (Vec::new(), Vec::new());
    // The two cases alternate, so that changes of the machine's load affect both. The first run is a warm-up.
    for run in 0..=runs {
        let batch = in_new_namespace(|| batched(&operations))?;
        let floor = in_new_namespace(|| replayed(&operations))?;
        if run > 0 {
            batches.push(batch);
            floors.push(floor);
        }
    }
    let (batch, floor) = (median(batches), median(floors));
    let single = in_new_namespace(|| one_by_one(&operations))?;
    let tool = in_new_namespace(|| by_ipvsadm(&operations))?;
    println!("{name}, {} operations:", operations.len());
    for (what, time) in [
        ("batch", batch),
        ("replay of the same bytes (floor)", floor),
        ("one acknowledged request at a time", single),
        ("ipvsadm -R", tool),
    ] {
        let rate = operations.len() as f64 / time.as_secs_f64();
        println!(
            "  {what:<36} {:>9.1} ms {rate:>9.0} operations/s",
            time.as_secs_f64() * 1e3
        );
    }
    figure(
        &format!("ipvs.batch_over_floor.{name}"),
        ratio(batch, floor),
        "ratio",
    )?;
    figure(
        &format!("ipvs.single_over_batch.{name}"),
        ratio(single, batch),
        "ratio",
    )?;
    figure(
        &format!("ipvs.ipvsadm_over_batch.{name}"),
        ratio(tool, batch),
        "ratio",
    )?;
    Ok(())
}

fn read(name: &str, virtual_servers: u32) -> Result<()> {
    let (snapshot, tool) = in_new_namespace(|| {
        let mut client = Client::open()?;
        for outcome in client.execute(&operations(virtual_servers)) {
            outcome?;
        }
        let (mut snapshots, mut tools) = (Vec::new(), Vec::new());
        for run in 0..=3 {
            let start = Instant::now();
            let snapshot = client.snapshot()?;
            let time = start.elapsed();
            check(
                snapshot.consistency == Consistency::Verified,
                "the snapshot is not verified",
            )?;
            check(
                snapshot.real_server_count() == (virtual_servers * REAL_SERVERS) as usize,
                "the snapshot is incomplete",
            )?;
            let start = Instant::now();
            let output = programs::command("ipvsadm").arg("-Sn").output()?;
            let tool = start.elapsed();
            let lines = output.stdout.split(|byte| *byte == b'\n').count() - 1;
            check(
                lines == (virtual_servers * (REAL_SERVERS + 1)) as usize,
                "the output of ipvsadm -Sn is incomplete",
            )?;
            if run > 0 {
                snapshots.push(time);
                tools.push(tool);
            }
        }
        Ok((median(snapshots), median(tools)))
    })?;
    println!("{name}: verified snapshot {snapshot:?}, ipvsadm -Sn {tool:?}");
    figure(
        &format!("ipvs.ipvsadm_over_snapshot.{name}"),
        ratio(tool, snapshot),
        "ratio",
    )?;
    Ok(())
}

/// Runs `work` in a new network namespace and drops the namespace.
fn in_new_namespace<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let namespace = NetNs::new();
    let result = namespace.run(work);
    drop(namespace);
    // The kernel deletes the namespace in the background, which would slow down the next case.
    std::thread::sleep(Duration::from_millis(1500));
    result
}

fn batched(operations: &[Operation]) -> Result<Duration> {
    let mut client = Client::open()?;
    let start = Instant::now();
    let outcomes = client.execute(operations);
    let time = start.elapsed();
    for outcome in outcomes {
        outcome?;
    }
    check(
        client.list_virtual_servers()?.len() as u32 == operations.len() as u32 / 11,
        "virtual servers are missing",
    )?;
    Ok(time)
}

/// The lower bound of the time: encoded messages are sent in as few sends as the socket accepts, and only the last request of a
/// send is acknowledged.
fn replayed(operations: &[Operation]) -> Result<Duration> {
    // The capacity of a socket with the default send buffer.
    const BYTES_IN_ONE_SEND: usize = 212_992 - 32;
    let family = Family::resolve(&mut Connection::open(Protocol::Generic)?, "IPVS")?;
    let mut batch = Batch::new();
    for operation in operations {
        operation.encode(family.id, &mut batch)?;
    }
    let mut sends: Vec<Vec<u8>> = vec![Vec::new()];
    let mut last_start = 0;
    for message in batch.messages() {
        let send = sends.last_mut().ok_or("no send")?;
        if send.len() + message.len() > BYTES_IN_ONE_SEND {
            request_acknowledgement(send, last_start);
            last_start = 0;
            sends.push(message.to_vec());
        } else {
            last_start = send.len();
            send.extend_from_slice(message);
        }
    }
    request_acknowledgement(sends.last_mut().ok_or("no send")?, last_start);
    let mut socket = Socket::new(netlink_sys::protocols::NETLINK_GENERIC)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut buffer = Vec::with_capacity(128 << 10);
    let start = Instant::now();
    for send in &sends {
        socket.send(send, 0)?;
        buffer.clear();
        let length = socket.recv(&mut buffer, 0)?;
        let errno = buffer.get(16..20).map(|bytes| bytes == [0; 4]);
        check(
            length == 36 && errno == Some(true),
            "the kernel refused a replayed operation",
        )?;
    }
    Ok(start.elapsed())
}

/// Requests an acknowledgement of the message at `start`: sets its flags (at offset 6) to NLM_F_REQUEST and NLM_F_ACK.
fn request_acknowledgement(send: &mut Vec<u8>, start: usize) {
    send.splice(start + 6..start + 8, 5_u16.to_ne_bytes());
}

fn one_by_one(operations: &[Operation]) -> Result<Duration> {
    let mut client = Client::open()?;
    let start = Instant::now();
    for operation in operations {
        for outcome in client.execute(std::slice::from_ref(operation)) {
            outcome?;
        }
    }
    Ok(start.elapsed())
}

fn by_ipvsadm(operations: &[Operation]) -> Result<Duration> {
    let path = format!("/dev/shm/kernlink-bench-{}", std::process::id());
    let mut file = File::create(&path)?;
    for operation in operations {
        writeln!(file, "{operation}")?;
    }
    file.flush()?;
    let input = File::open(&path)?;
    let start = Instant::now();
    let status = programs::command("ipvsadm")
        .arg("-R")
        .stdin(Stdio::from(input))
        .status()?;
    let time = start.elapsed();
    std::fs::remove_file(&path)?;
    check(status.success(), "ipvsadm -R failed")?;
    Ok(time)
}

fn check(condition: bool, problem: &str) -> Result<()> {
    if condition { Ok(()) } else { Err(problem.into()) }
}
