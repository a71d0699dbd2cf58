//! Adds many entries to a set at once, compared with a replay of the same bytes and with `ipset restore`; lists a set, compared with
//! `ipset save`. Runs in its own network namespace, and requires root.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kernlink_benches::{figure, median};
use kernlink_ipset::{
    Client, Entry, IpSets, Network, Operation, ProtocolPort, Set, SetFamily, SetName, SetType, notation, uapi,
};
use kernlink_kernel_tests::programs;
use kernlink_netlink::{Script, flags, netfilter};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sched::{CloneFlags, unshare};

type Outcome<T> = Result<T, Box<dyn Error>>;

const RUNS: usize = 7;

fn main() -> Outcome<()> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("creating a network namespace, which requires root: {error}"))?;
    for set_type in [SetType::HashIpPort, SetType::HashIpPortNet] {
        for count in [10_000, 60_000] {
            Bench::new(set_type, count)?.run()?;
        }
    }
    Ok(())
}

struct Bench {
    set: Set,
    operations: Vec<Operation>,
    count: u32,
    /// The end of the names of the figures. Empty for `hash:ip,port`.
    suffix: &'static str,
    client: Client,
}

impl Bench {
    fn new(set_type: SetType, count: u32) -> Outcome<Self> {
        let name = SetName::new("bench")?;
        let set = Set::new(name, set_type).with_maxelem(1 << 20);
        let operations = (0..count)
            .map(|n| Operation::add(name, entry(set_type, n)))
            .collect();
        let suffix = if set_type == SetType::HashIpPort {
            ""
        } else {
            ".ip_port_net"
        };
        Ok(Bench {
            set,
            operations,
            count,
            suffix,
            client: Client::open()?,
        })
    }

    fn run(mut self) -> Outcome<()> {
        println!("\n{} entries of {}", self.count, self.set.set_type);
        let fitting = self.set.clone().with_hashsize(self.count);
        let (batch, floor, over_floor) = self.batch_and_floor(&fitting)?;
        let single = self.one_at_a_time(&fitting)?;
        let restore = self.restore(&fitting)?;
        self.report("batch", batch);
        self.report("the same bytes", floor);
        self.report("one at a time", single);
        self.report("ipset restore", restore);
        self.figure("batch_over_floor", over_floor, "ratio")?;
        self.figure("restore_over_batch", ratio(restore, batch), "ratio")?;
        self.figure("one_at_a_time_over_batch", ratio(single, batch), "ratio")?;
        self.figure(
            "entries_per_second",
            f64::from(self.count) / batch.as_secs_f64(),
            "entries/s",
        )?;

        println!("the same, at the default hashsize of 1024:");
        let set = self.set.clone();
        let (batch, floor, over_floor) = self.batch_and_floor(&set)?;
        let restore = self.restore(&set)?;
        self.report("batch", batch);
        self.report("the same bytes", floor);
        self.report("ipset restore", restore);
        self.figure("default_hashsize_batch_over_floor", over_floor, "ratio")?;
        self.figure(
            "default_hashsize_restore_over_batch",
            ratio(restore, batch),
            "ratio",
        )?;

        self.list(&fitting)
    }

    /// The median time of one call with all entries, the median time of a replay of the same messages over a bare socket, and the
    /// ratio of the fastest runs. Both alternate, so that other load affects both.
    fn batch_and_floor(&mut self, set: &Set) -> Outcome<(Duration, Duration, f64)> {
        let messages = self.messages()?;
        let operations = self.operations.clone();
        let mut client = Client::open()?;
        let (mut batches, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            batches.push(median(
                1,
                || self.fresh(set),
                |()| succeed(client.execute(&operations)),
            )?);
            self.check()?;
            let socket = || {
                self.fresh(set)?;
                let socket = Socket::new(NETLINK_NETFILTER)?;
                socket.connect(&SocketAddr::new(0, 0))?;
                Ok(socket)
            };
            floors.push(median(1, socket, |socket| replay(&socket, &messages))?);
            self.check()?;
        }
        batches.sort();
        floors.sort();
        let of = |times: &[Duration], index: usize| times.get(index).copied().ok_or("no runs");
        // The work is the same in all runs, so the fastest run is the one that other load affected least.
        let fastest = ratio(of(&batches, 0)?, of(&floors, 0)?);
        Ok((of(&batches, RUNS / 2)?, of(&floors, RUNS / 2)?, fastest))
    }

    fn one_at_a_time(&mut self, set: &Set) -> Outcome<Duration> {
        let mut client = Client::open()?;
        let operations = self.operations.clone();
        let mut one = |operation| succeed(client.execute(std::slice::from_ref(operation)));
        let time = median(
            2,
            || self.fresh(set),
            |()| operations.iter().try_for_each(&mut one),
        )?;
        self.check()?;
        Ok(time)
    }

    /// The standard tool, with its input on a tmpfs.
    fn restore(&mut self, set: &Set) -> Outcome<Duration> {
        let file = Path::new("/dev/shm").join(format!("kernlink-bench-ipset-{}", std::process::id()));
        std::fs::write(&file, notation::render(&self.operations)?)?;
        let time = median(
            RUNS,
            || self.fresh(set),
            |()| run(programs::command("ipset").arg("restore").arg("-file").arg(&file)),
        );
        std::fs::remove_file(&file)?;
        self.check()?;
        time
    }

    fn list(&mut self, set: &Set) -> Outcome<()> {
        self.fresh(set)?;
        succeed(self.client.execute(&self.operations))?;
        let mut client = Client::open()?;
        let verified = median(RUNS, || Ok(()), |()| client.list_set(&set.name))?;
        let once = median(RUNS, || Ok(()), |()| client.list_set_once(&set.name))?;
        let save = median(
            RUNS,
            || Ok(()),
            |()| run(programs::command("ipset").arg("save").arg("bench")),
        )?;
        println!("listed:");
        self.report("twice and compared", verified);
        self.report("once", once);
        self.report("ipset save", save);
        self.figure("save_over_list", ratio(save, verified), "ratio")?;
        self.figure("save_over_list_once", ratio(save, once), "ratio")
    }

    /// An empty set.
    fn fresh(&mut self, set: &Set) -> Outcome<()> {
        self.client.destroy_all()?;
        Ok(self.client.create(set)?)
    }

    /// Fails if the set does not have all entries.
    fn check(&mut self) -> Outcome<()> {
        let elements = self.client.header(&self.set.name)?.stats.elements;
        if elements == self.count {
            Ok(())
        } else {
            Err(format!("{elements} entries; expected {}", self.count).into())
        }
    }

    /// The messages of the batch, without the encoder of the client. A script verifies that the client sends the same ones.
    fn messages(&self) -> Outcome<Vec<Vec<u8>>> {
        let mut messages = Vec::new();
        let mut first = 0;
        while let Some(rest) = self.operations.get(first..).filter(|rest| !rest.is_empty()) {
            let (message, count) = message(rest, first, &self.set)?;
            messages.push(message);
            first += count;
        }
        let add = netfilter::message_type(uapi::NFNL_SUBSYS_IPSET, uapi::IPSET_CMD_HEADER);
        let header = Script::message(add, 0, &header(&self.set)?);
        let mut script = Script::new()
            .expect_anything()
            .answer(&header)
            .acknowledge(0, Ok(()));
        for message in &messages {
            script = script.expect(message).acknowledge(0, Ok(()));
        }
        succeed(Client::from_connection(script.connect()?).execute(&self.operations))?;
        Ok(messages)
    }

    fn report(&self, what: &str, time: Duration) {
        let rate = f64::from(self.count) / time.as_secs_f64();
        println!(
            "  {what:<20} {:>9.2} ms {rate:>12.0} entries/s",
            time.as_secs_f64() * 1e3
        );
    }

    fn figure(&self, name: &str, value: f64, unit: &str) -> Outcome<()> {
        Ok(figure(
            &format!("ipset.{name}.{}{}", self.count, self.suffix),
            value,
            unit,
        )?)
    }
}

fn succeed(outcomes: Vec<Result<(), kernlink_ipset::Error>>) -> Outcome<()> {
    outcomes.into_iter().try_for_each(|outcome| Ok(outcome?))
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

fn run(command: &mut Command) -> Outcome<()> {
    let status = command.stdout(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {status}").into())
    }
}

fn entry(set_type: SetType, n: u32) -> Entry {
    let ip = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n / 4));
    let port = ProtocolPort::tcp(8000 + (n % 4) as u16);
    match set_type {
        SetType::HashIpPort => Entry::ip_port(ip, port),
        _ => Entry::ip_port_net(
            ip,
            port,
            Network::from(IpAddr::V4(Ipv4Addr::from_bits(0xc0a8_0000 + n))),
        ),
    }
}

/// Sends three messages at a time, the capacity of the buffer of the socket, and reads their acknowledgements.
fn replay(socket: &Socket, messages: &[Vec<u8>]) -> Outcome<()> {
    let mut answer = vec![0; 1 << 17];
    for chunk in messages.chunks(3) {
        let sent: Vec<u8> = chunk.concat();
        socket.send(&sent, 0)?;
        for _ in chunk {
            let length = socket.recv(&mut &mut answer[..], 0)?;
            let code = answer
                .get(16..20)
                .filter(|_| length >= 20)
                .ok_or("a short answer")?;
            if code != [0; 4] {
                return Err(format!("refused: {code:?}").into());
            }
        }
    }
    Ok(())
}

/// One message with as many entries as the client puts into one, and their number.
fn message(operations: &[Operation], first: usize, set: &Set) -> Outcome<(Vec<u8>, usize)> {
    use uapi::*;
    // The space that the client reserves for an entry, so that both end messages after the same entry.
    const ROOM: usize = 200;
    let mut payload = Vec::new();
    let mut count = 0;
    let mut w = kernlink_netlink::AttributeWriter::new(&mut payload);
    w.header(&netfilter::Header::new(0).to_bytes());
    w.u8(IPSET_ATTR_PROTOCOL, IPSET_PROTOCOL_MIN);
    w.string(IPSET_ATTR_SETNAME, &set.name.to_string());
    w.net().be_u32(IPSET_ATTR_LINENO, 0);
    w.nested(IPSET_ATTR_ADT, |w| {
        let start = w.position();
        for operation in operations {
            if count > 0 && w.position() - start + ROOM > usize::from(u16::MAX) - 4 {
                break;
            }
            let Operation::Add { entry, .. } = operation else {
                continue;
            };
            w.nested(IPSET_ATTR_DATA, |w| {
                use kernlink_ipset::Element;
                let address = |w: &mut kernlink_netlink::AttributeWriter<'_>, kind, ip: IpAddr| {
                    w.nested(kind, |w| {
                        w.net().address(IPSET_ATTR_IPADDR_IPV4, ip);
                    });
                };
                if let Element::IpPort { ip, port } | Element::IpPortNet { ip, port, .. } = entry.element() {
                    address(w, IPSET_ATTR_IP, *ip);
                    w.net().be_u16(IPSET_ATTR_PORT, port.port);
                    w.u8(IPSET_ATTR_PROTO, port.protocol.0);
                }
                if let Element::IpPortNet { net, .. } = entry.element() {
                    address(w, IPSET_ATTR_IP2, net.address());
                }
                w.net().be_u32(IPSET_ATTR_LINENO, (first + count + 1) as u32);
            });
            count += 1;
        }
    });
    let add = netfilter::message_type(NFNL_SUBSYS_IPSET, IPSET_CMD_ADD);
    // NLM_F_REQUEST, NLM_F_ACK, and failure if the entry exists.
    Ok((Script::message(add, 1 | 4 | flags::NLM_F_EXCL, &payload), count))
}

/// The reply of the kernel to a request for the header of a set.
fn header(set: &Set) -> Outcome<Vec<u8>> {
    use uapi::*;
    let mut payload = Vec::new();
    let mut w = kernlink_netlink::AttributeWriter::new(&mut payload);
    w.header(&netfilter::Header::new(0).to_bytes());
    w.string(IPSET_ATTR_TYPENAME, &set.set_type.to_string());
    w.u8(IPSET_ATTR_FAMILY, SetFamily::Inet.number());
    Ok(payload)
}
