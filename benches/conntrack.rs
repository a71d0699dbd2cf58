//! A table of 200 000 flows: the time to list it, compared with reading the same bytes without decoding, and with `conntrack -L`;
//! the time to delete a tenth of the flows by a filter, in the kernel and one by one, compared with `conntrack -D`; and the memory
//! of a listing. Runs in its own network namespace, and requires root.
//!
//! Times are processor time of this process and of the tools that it starts. The benchmark waits for the kernel only, so other
//! load on the machine affects the times little.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Stdio;
use std::time::Duration;

use kernlink_benches::figure;
use kernlink_benches::runs::{middle, ratio};
use kernlink_conntrack::{
    Client, Conntrack, Filter, Flow, FlowKey, FlushScope, KernelFiltering, NewFlow, Operation, Protocol,
    StaleFilter, Tuple,
};
use kernlink_kernel_tests::programs;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

type Outcome<T> = Result<T, Box<dyn Error>>;

const FLOWS: u32 = 200_000;
/// One flow of this many belongs to the service whose flows are deleted.
const ONE_IN: u32 = 10;
const RUNS: usize = 7;
/// The argument with which this program starts itself to measure the memory of a listing.
const LIST_ONLY: &str = "list-only";

const CHOSEN: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 2);

fn main() -> Outcome<()> {
    if std::env::args().any(|argument| argument == LIST_ONLY) {
        return list_only();
    }
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("creating a network namespace, which requires root: {error}"))?;
    let mut client = Client::open()?;
    fill(&mut client)?;
    listing(&mut client)?;
    memory()?;
    deleting(&mut client)?;
    stale(&mut client)?;
    client.flush(FlushScope::All)?;
    Ok(())
}

fn chosen() -> Filter {
    Filter::new()
        .with_protocol(Protocol::UDP)
        .with_destination(ipnet::IpNet::from(IpAddr::from(CHOSEN)))
}

fn new_flow(number: u32) -> NewFlow {
    let [_, a, b, c] = number.to_be_bytes();
    let service = if number.is_multiple_of(ONE_IN) {
        CHOSEN
    } else {
        OTHER
    };
    let tuple = Tuple::udp((Ipv4Addr::new(172, a, b, c), 4660).into(), (service, 53).into());
    NewFlow::new(tuple, Duration::from_secs(86_400))
}

fn execute(client: &mut Client, operations: &[Operation]) -> Outcome<()> {
    for outcome in client.execute(operations) {
        outcome?;
    }
    Ok(())
}

fn fill(client: &mut Client) -> Outcome<()> {
    let time = timed(|| {
        for first in (0..FLOWS).step_by(10_000) {
            let operations: Vec<_> = (first..first + 10_000)
                .map(|number| Operation::Add(new_flow(number)))
                .collect();
            execute(client, &operations)?;
        }
        Ok(())
    })?;
    expect(client, FLOWS)?;
    println!("{FLOWS} flows added in {time:?}");
    figure(
        "conntrack.added_per_second",
        f64::from(FLOWS) / time.as_secs_f64(),
        "flows/s",
    )?;
    Ok(())
}

/// Adds the deleted flows again.
fn refill(client: &mut Client) -> Outcome<()> {
    let operations: Vec<_> = (0..FLOWS)
        .step_by(ONE_IN as usize)
        .map(|number| Operation::Add(new_flow(number)))
        .collect();
    execute(client, &operations)?;
    expect(client, FLOWS)
}

fn expect(client: &mut Client, flows: u32) -> Outcome<()> {
    let there = client.totals()?.entries;
    if there != flows {
        return Err(format!("{there} flows in the table, expected {flows}").into());
    }
    Ok(())
}

fn listing(client: &mut Client) -> Outcome<()> {
    let mut floor = RawListing::new()?;
    let mut rounds = Rounds::default();
    for _ in 0..=RUNS {
        rounds.add([
            timed(|| floor.run())?,
            timed(|| {
                let mut flows = 0;
                for flow in client.flows(&Filter::new())? {
                    std::hint::black_box(flow?);
                    flows += 1;
                }
                if flows != FLOWS {
                    return Err(format!("{flows} flows listed").into());
                }
                Ok(())
            })?,
            timed(|| conntrack(&["-L"]))?,
            timed(|| match client.list(&chosen())?.len() as u32 {
                found if found == FLOWS / ONE_IN => Ok(()),
                found => Err(format!("{found} flows found").into()),
            })?,
        ]);
    }
    rounds.print([
        "the same bytes undecoded",
        "listing",
        "conntrack -L",
        "listing a tenth by filter",
    ]);
    figure(
        &format!("conntrack.dump_over_floor.{FLOWS}"),
        rounds.ratio(1, 0),
        "ratio",
    )?;
    figure(
        &format!("conntrack.tool_over_dump.{FLOWS}"),
        rounds.ratio(2, 1),
        "ratio",
    )?;
    figure(
        &format!("conntrack.dump_over_filtered_dump.{FLOWS}"),
        rounds.ratio(1, 3),
        "ratio",
    )?;
    Ok(())
}

fn deleting(client: &mut Client) -> Outcome<()> {
    let left = FLOWS - FLOWS / ONE_IN;
    let mut rounds = Rounds::default();
    for _ in 0..=RUNS {
        let mut times = [Duration::ZERO; 3];
        for (time, filtering) in times
            .iter_mut()
            .zip([KernelFiltering::Full, KernelFiltering::Listing])
        {
            client.set_kernel_filtering(filtering);
            *time = timed(|| Ok(client.delete_matching(&chosen())?.into_result()?))?;
            expect(client, left)?;
            refill(client)?;
        }
        let address = CHOSEN.to_string();
        times[2] = timed(|| conntrack(&["-D", "-p", "udp", "-d", &address]))?;
        expect(client, left)?;
        refill(client)?;
        rounds.add(times);
    }
    client.set_kernel_filtering(KernelFiltering::Full);
    rounds.print([
        "deleting a tenth in the kernel",
        "listing and deleting one by one",
        "conntrack -D",
    ]);
    figure(
        &format!("conntrack.tool_over_delete.{FLOWS}"),
        rounds.ratio(2, 0),
        "ratio",
    )?;
    figure(
        &format!("conntrack.tool_over_fallback_delete.{FLOWS}"),
        rounds.ratio(2, 1),
        "ratio",
    )?;
    Ok(())
}

/// Many destinations in one pass, compared with one destination.
fn stale(client: &mut Client) -> Outcome<()> {
    let question = |destinations: u16| {
        (0..destinations).fold(StaleFilter::new(), |question, number| {
            let destination = (Ipv4Addr::from(0x0a60_8000 + u32::from(number)), 53).into();
            question.with_destination(Protocol::UDP, destination, [destination])
        })
    };
    let [one, many] = [question(1), question(10_000)];
    let mut rounds = Rounds::default();
    for _ in 0..=RUNS {
        rounds.add(
            [&one, &many]
                .map(|question| -> Outcome<Duration> {
                    timed(|| {
                        let keys: Vec<FlowKey> = client.list_stale(question)?.iter().map(Flow::key).collect();
                        if keys.is_empty() {
                            Ok(())
                        } else {
                            Err("stale flows".into())
                        }
                    })
                })
                .into_iter()
                .collect::<Outcome<Vec<_>>>()?
                .try_into()
                .map_err(|_| "two times")?,
        );
    }
    rounds.print([
        "stale flows of 1 destination",
        "stale flows of 10 000 destinations",
    ]);
    figure(
        &format!("conntrack.stale_10000_over_1.{FLOWS}"),
        rounds.ratio(1, 0),
        "ratio",
    )?;
    Ok(())
}

fn memory() -> Outcome<()> {
    let output = programs::this_program()
        .arg(LIST_ONLY)
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let kibibytes: f64 = text
        .trim()
        .parse()
        .map_err(|_| format!("invalid number of KiB: {text:?}"))?;
    println!("peak memory of a process that lists all flows: {kibibytes} KiB");
    figure("conntrack.dump_peak_mib", kibibytes / 1024.0, "mib")?;
    Ok(())
}

/// Lists all flows and prints the peak memory of this process in KiB.
fn list_only() -> Outcome<()> {
    let mut client = Client::open()?;
    let mut flows = 0;
    for flow in client.flows(&Filter::new())? {
        std::hint::black_box(flow?);
        flows += 1;
    }
    if flows != FLOWS {
        return Err(format!("{flows} flows listed").into());
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or("no VmHWM in /proc/self/status")?;
    println!("{peak}");
    Ok(())
}

fn conntrack(arguments: &[&str]) -> Outcome<()> {
    let status = programs::command("conntrack")
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("conntrack {}: {status}", arguments.join(" ")).into())
    }
}

/// Reads a listing without decoding it, into a buffer of the same size as that of the client.
struct RawListing {
    socket: Socket,
    buffer: Vec<u8>,
}

impl RawListing {
    fn new() -> Outcome<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(RawListing {
            socket,
            buffer: vec![0; 128 << 10],
        })
    }

    fn run(&mut self) -> Outcome<()> {
        // A netlink header with IPCTNL_MSG_CT_GET and NLM_F_REQUEST | NLM_F_DUMP, and an empty netfilter header.
        let mut request = 20_u32.to_ne_bytes().to_vec();
        request.extend(0x0101_u16.to_ne_bytes());
        request.extend(0x301_u16.to_ne_bytes());
        request.extend([1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        self.socket.send(&request, 0)?;
        loop {
            let mut target = &mut self.buffer[..];
            let length = self.socket.recv(&mut target, 0)?;
            // NLMSG_DONE is the last message, of 20 bytes.
            let end = self.buffer.get(length.saturating_sub(20)..length).unwrap_or(&[]);
            if end.starts_with(&20_u32.to_ne_bytes()) && end.get(4..6) == Some(&3_u16.to_ne_bytes()) {
                return Ok(());
            }
        }
    }
}

fn timed(work: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let start = processor_time()?;
    work()?;
    Ok(processor_time()?.saturating_sub(start))
}

/// The processor time of this process and of the programs that it has waited for.
fn processor_time() -> Outcome<Duration> {
    let mut sum = Duration::ZERO;
    for who in [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN] {
        let usage = getrusage(who)?;
        for part in [usage.user_time(), usage.system_time()] {
            sum += Duration::from_micros(u64::try_from(part.num_microseconds())?);
        }
    }
    Ok(sum)
}

/// Times of several programs, measured alternately, so that other load affects all of them.
struct Rounds<const N: usize>(Vec<[Duration; N]>);

impl<const N: usize> Default for Rounds<N> {
    fn default() -> Self {
        Rounds(Vec::new())
    }
}

impl<const N: usize> Rounds<N> {
    fn add(&mut self, times: [Duration; N]) {
        self.0.push(times);
    }

    /// All rounds except the first one, which has cold caches.
    fn counted(&self) -> &[[Duration; N]] {
        self.0.get(1..).unwrap_or(&[])
    }

    fn print(&self, names: [&str; N]) {
        for (index, name) in names.into_iter().enumerate() {
            let times = self.counted().iter().map(|round| round[index].as_secs_f64());
            println!("{name}: {:.1} ms", middle(times.collect()) * 1e3);
        }
    }

    /// The median of the ratios of all rounds.
    fn ratio(&self, dividend: usize, divisor: usize) -> f64 {
        let ratios = self
            .counted()
            .iter()
            .map(|round| ratio(round[dividend], round[divisor]));
        middle(ratios.collect())
    }
}
