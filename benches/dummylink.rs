//! Adds, lists and removes addresses of a dummy link, compared with `ip -batch` and with a replay of the same messages. Runs in its own
//! network namespace, and requires root and the dummy device.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kernlink_benches::{figure, median};
use kernlink_dummylink::{
    Client, DummyLink, DummyLinks, Error, LinkAddress, LinkName, Operation, Selection, uapi,
};
use kernlink_kernel_tests::programs;
use kernlink_netlink::{Batch, Connection, Protocol, flags};
use nix::sched::{CloneFlags, unshare};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const RUNS: usize = 3;
const COUNTS: [u32; 3] = [100, 1_000, 10_000];

fn main() -> Outcome<()> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("creating a network namespace, which requires root: {error}"))?;
    let mut floors = Vec::new();
    for count in COUNTS {
        floors.push(Bench::new(count)?.run()?);
    }
    // The time of the kernel for each address, with encoded messages. It grows with the number of addresses, because the kernel
    // searches the addresses of the link for each new one.
    let each = |(count, time): (&u32, &Duration)| time.as_secs_f64() * 1e6 / f64::from(*count);
    let costs: Vec<_> = COUNTS.iter().zip(&floors).map(each).collect();
    for (count, cost) in COUNTS.iter().zip(&costs) {
        figure(&format!("dummylink.kernel_add_per_address.{count}"), *cost, "us")?;
    }
    if let (Some(first), Some(last)) = (costs.first(), costs.last()) {
        figure("dummylink.kernel_growth_100_to_10000", last / first, "ratio")?;
    }
    Ok(())
}

struct Bench {
    count: u32,
    link: LinkName,
    add: Vec<Operation>,
    delete: Vec<Operation>,
    client: Client,
    /// A folder on a tmpfs with the files that `ip` reads.
    folder: PathBuf,
}

/// The times of one program.
#[derive(Clone, Copy)]
struct Times {
    add: Duration,
    list: Duration,
    delete: Duration,
}

impl Times {
    fn total(&self) -> Duration {
        self.add + self.list + self.delete
    }
}

impl Bench {
    fn new(count: u32) -> Outcome<Self> {
        let link: LinkName = "bench0".parse()?;
        let addresses: Vec<_> = (0..count)
            .map(|number| LinkAddress::host(Ipv4Addr::from(0x0a40_0000 + number).into()))
            .collect::<Result<_, _>>()?;
        let folder = Path::new("/dev/shm").join(format!("kernlink-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let add: Vec<_> = addresses
            .iter()
            .map(|address| Operation::AddAddress(link, address.clone()))
            .collect();
        let delete: Vec<_> = addresses
            .iter()
            .map(|address| Operation::DeleteAddress(link, address.key))
            .collect();
        for (name, operations) in [("add", &add), ("delete", &delete)] {
            let lines: String = operations
                .iter()
                .map(|operation| format!("{operation}\n"))
                .collect();
            fs::write(folder.join(name), lines)?;
        }
        Ok(Bench {
            count,
            link,
            add,
            delete,
            client: Client::open()?,
            folder,
        })
    }

    fn run(mut self) -> Outcome<Duration> {
        println!("\n{} addresses", self.count);
        let ours = self.ours()?;
        let floor = self.floor()?;
        let ip = self.ip()?;
        fs::remove_dir_all(&self.folder)?;
        for (who, times) in [("batch", ours), ("the same messages", floor), ("ip -batch", ip)] {
            println!(
                "{who:>20}: add {:>10.2?}  list {:>10.2?}  delete {:>10.2?}  {:>7.2} us an address",
                times.add,
                times.list,
                times.delete,
                times.total().as_secs_f64() * 1e6 / f64::from(self.count),
            );
        }
        self.figure("ip_batch_over_batch", ratio(ip.total(), ours.total()), "ratio")?;
        self.figure("ip_batch_over_batch_add", ratio(ip.add, ours.add), "ratio")?;
        self.figure(
            "ip_batch_over_batch_delete",
            ratio(ip.delete, ours.delete),
            "ratio",
        )?;
        self.figure("ip_over_list", ratio(ip.list, ours.list), "ratio")?;
        self.figure("batch_over_floor", ratio(ours.total(), floor.total()), "ratio")?;
        self.figure(
            "batch_per_address",
            ours.total().as_secs_f64() * 1e6 / f64::from(self.count),
            "us",
        )?;
        Ok(floor.add)
    }

    fn figure(&self, name: &str, value: f64, unit: &str) -> Result<(), String> {
        figure(&format!("dummylink.{name}.{}", self.count), value, unit)
    }

    /// A link without addresses.
    fn empty(&mut self) -> Outcome<()> {
        match self.client.delete_link(&self.link) {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        Ok(self.client.ensure_link(&DummyLink::new(self.link))?)
    }

    /// A link with all addresses.
    fn full(&mut self) -> Outcome<()> {
        self.empty()?;
        let outcomes = self.client.execute(&self.add);
        succeed(outcomes)
    }

    fn check(&mut self, count: u32) -> Outcome<()> {
        let found = self.client.list(Selection::On(self.link))?.len();
        if found != count as usize {
            return Err(format!("{found} addresses; expected {count}").into());
        }
        Ok(())
    }

    fn ours(&mut self) -> Outcome<Times> {
        let (add, delete, link) = (self.add.clone(), self.delete.clone(), self.link);
        let mut client = Client::open()?;
        let added = median(RUNS, || self.empty(), |()| succeed(client.execute(&add)))?;
        self.check(self.count)?;
        let list = median(RUNS, || Ok::<_, Error>(()), |()| client.list(Selection::On(link)))?;
        let deleted = median(RUNS, || self.full(), |()| succeed(client.execute(&delete)))?;
        self.check(0)?;
        Ok(Times {
            add: added,
            list,
            delete: deleted,
        })
    }

    /// Sends encoded messages, and reads a listing without decoding it.
    fn floor(&mut self) -> Outcome<Times> {
        self.empty()?;
        // The messages contain the index of the link, so they are encoded again for each link.
        let messages = |bench: &mut Self, kind: u16, new_flags: u16| -> Outcome<Batch> {
            let index = bench.client.link(&bench.link)?.ok_or("the link is gone")?.index;
            let mut batch = Batch::new();
            for number in 0..bench.count {
                let address = Ipv4Addr::from(0x0a40_0000 + number).into();
                let [i0, i1, i2, i3] = index.to_ne_bytes();
                batch.push(kind, new_flags, |w| {
                    w.header(&[uapi::AF_INET, 32, 0, 0, i0, i1, i2, i3])
                        .address(uapi::IFA_LOCAL, address)
                        .address(uapi::IFA_ADDRESS, address);
                })?;
            }
            Ok(batch)
        };
        let mut connection = Connection::open(Protocol::Route)?;
        let exclusive = flags::NLM_F_CREATE | flags::NLM_F_EXCL;
        let add = median(
            RUNS,
            || {
                self.empty()?;
                messages(self, uapi::RTM_NEWADDR, exclusive)
            },
            |mut batch| all_done(connection.execute(&mut batch)),
        )?;
        self.check(self.count)?;
        let list = median(
            RUNS,
            || Ok::<_, Box<dyn std::error::Error>>(()),
            |()| -> Outcome<usize> {
                let header = [0; 8];
                let dump = connection.dump_all(
                    uapi::RTM_GETADDR,
                    0,
                    |w| {
                        w.header(&header);
                    },
                    |message| Ok::<_, kernlink_netlink::Error>(Some(message.payload.len())),
                )?;
                Ok(dump.len())
            },
        )?;
        let delete = median(
            RUNS,
            || {
                self.full()?;
                messages(self, uapi::RTM_DELADDR, 0)
            },
            |mut batch| all_done(connection.execute(&mut batch)),
        )?;
        self.check(0)?;
        Ok(Times { add, list, delete })
    }

    fn ip(&mut self) -> Outcome<Times> {
        let batch = |file: &Path| ip(&["-batch", &file.to_string_lossy()]);
        let (add_file, delete_file) = (self.folder.join("add"), self.folder.join("delete"));
        let add = median(RUNS, || self.empty(), |()| batch(&add_file))?;
        self.check(self.count)?;
        let name = self.link.to_string();
        let list = median(
            RUNS,
            || Ok::<_, Box<dyn std::error::Error>>(()),
            |()| ip(&["-o", "address", "show", "dev", &name]),
        )?;
        let delete = median(RUNS, || self.full(), |()| batch(&delete_file))?;
        self.check(0)?;
        Ok(Times { add, list, delete })
    }
}

fn ip(arguments: &[&str]) -> Outcome<()> {
    let output = programs::command("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("ip {}: {errors}", arguments.join(" ")).into());
    }
    Ok(())
}

fn succeed(outcomes: Vec<Result<(), Error>>) -> Outcome<()> {
    outcomes
        .into_iter()
        .collect::<Result<(), Error>>()
        .map_err(Into::into)
}

fn all_done(outcomes: Vec<Result<(), kernlink_netlink::Error>>) -> Outcome<()> {
    outcomes
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(Into::into)
}

fn ratio(one: Duration, other: Duration) -> f64 {
    one.as_secs_f64() / other.as_secs_f64()
}
