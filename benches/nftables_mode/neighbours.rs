//! Other programs on the node: how long their commands take while Services change all the time, how long the changes wait, and what the chains
//! of other programs cost a change.

use std::fmt::Write as _;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{Cluster, ENDPOINTS, SOURCE, change, endpoint_slice, service_of};
use kernlink_benches::runs::{in_new_namespace, median};
use kernlink_benches::{Result, figure};
use kernlink_kernel_tests::{programs, tools};
use kernlink_proxier::Runner;
use kernlink_proxier::nftables_mode::NftablesMode;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::schedule::{Intervals, Schedule};
use kernlink_proxier::services::ObjectName;

use super::syncs::transaction;
use super::{proxier, sync};

const SIZE: u32 = 10_000;
/// The numbers of chains of another table.
const CHAINS: [usize; 3] = [0, 1_000, 20_000];
/// The time between two changes: 100 a second.
const BETWEEN: Duration = Duration::from_millis(10);
/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The time of one change next to chains of another program: the kernel visits every chain of the namespace in each transaction.
pub(crate) fn chains() -> Result<()> {
    let cluster = Cluster::new(SIZE);
    for chains in CHAINS {
        let time = in_new_namespace(|_| {
            let mut text = String::from("table ip other {\n");
            (0..chains).try_for_each(|number| writeln!(text, "chain c{number} {{ }}"))?;
            text.push_str("}\n");
            tools::run_with_input("nft", &["-f", "-"], &text)?;
            let mut proxier = proxier(&cluster)?;
            sync(&mut proxier)?;
            let mut times = Vec::new();
            for slice in cluster.replacements().into_iter().flatten().take(300) {
                change(&mut proxier, slice);
                times.push(transaction(&mut proxier)?);
            }
            Ok(median(times))
        })?;
        println!("{chains} chains of another table: one endpoint changed in {time:.2?}");
        figure(
            &format!("nftables_mode.kernel_us_beside_chains.{chains}"),
            time.as_secs_f64() * 1e6,
            "us",
        )?;
    }
    Ok(())
}

/// A command of another program: its name in figures, and what it runs.
struct Command {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
    input: String,
}

fn commands() -> Vec<Command> {
    let table: String = (0..1_000)
        .map(|number| format!("add chain ip other c{number}\nadd rule ip other c{number} counter\n"))
        .collect();
    let table = format!("add table ip other\ndelete table ip other\nadd table ip other\n{table}");
    let chains: String = (0..3_000)
        .map(|number| format!(":OTHER-{number} - [0:0]\n"))
        .collect();
    let rules: String = (0..3_000)
        .map(|number| format!("-A OTHER-{number} -s 192.0.2.0/24 -j RETURN\n"))
        .collect();
    let command = |name, program, arguments, input: &str| Command {
        name,
        program,
        arguments,
        input: input.to_owned(),
    };
    vec![
        command("nft_load", "nft", &["-f", "-"], &table),
        command(
            "iptables_restore",
            "iptables-nft-restore",
            &["-n"],
            &format!("*filter\n{chains}{rules}COMMIT\n"),
        ),
        command("nft_list_table", "nft", &["list", "table", "ip", "other"], ""),
        command("iptables_save", "iptables-nft-save", &["-t", "filter"], ""),
        command("nft_list_terse", "nft", &["-t", "list", "ruleset"], ""),
        command("nft_list_all", "nft", &["list", "ruleset"], ""),
    ]
}

impl Command {
    /// Runs it. `None` if it did not end in time.
    fn run(&self) -> Result<Option<Duration>> {
        use std::io::Write as _;
        let start = Instant::now();
        let mut child = programs::command(self.program)
            .args(self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(self.input.as_bytes())?;
        }
        loop {
            if let Some(status) = child.try_wait()? {
                let time = start.elapsed();
                return if status.success() {
                    Ok(Some(time))
                } else {
                    Err(format!("{}: {status}: {}", self.name, errors(&mut child)).into())
                };
            }
            if start.elapsed() > LIMIT {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn errors(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = std::io::Read::read_to_string(stderr, &mut text);
    }
    text
}

/// What a change is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An endpoint is removed.
    Removal,
    /// Another one.
    Other,
}

/// When each change was made, by the name of its Service, until it is in the kernel; and how long those that are waited.
#[derive(Default)]
pub(crate) struct Delays {
    waiting: Vec<(ObjectName, Kind, Instant)>,
    done: Vec<(Kind, Duration)>,
}

/// Counts how long changes of Services wait until a sync of a runner wrote them.
#[derive(Clone, Default)]
pub(crate) struct Clock(Arc<Mutex<Delays>>);

impl Clock {
    fn lock(&self) -> std::sync::MutexGuard<'_, Delays> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change of this Service is made now.
    pub(crate) fn begin(&self, service: &ObjectName, kind: Kind) {
        self.lock().waiting.push((service.clone(), kind, Instant::now()));
    }

    /// The function for the notices of a runner.
    pub(crate) fn notify(&self) -> impl FnMut(Notice<NftablesMode>) + Send + use<> {
        let clock = self.clone();
        move |notice| match notice {
            Notice::Synced(synced) => {
                let now = Instant::now();
                if !synced.is_success() {
                    eprintln!("{synced}");
                }
                let written: std::collections::BTreeSet<&ObjectName> = synced
                    .plan
                    .steps()
                    .filter_map(|(_, step)| step.subject.service())
                    .collect();
                let mut delays = clock.lock();
                let waiting = std::mem::take(&mut delays.waiting);
                for (service, kind, start) in waiting {
                    if written.contains(&service) {
                        delays.done.push((kind, now - start));
                    } else {
                        delays.waiting.push((service, kind, start));
                    }
                }
            }
            Notice::Failed(error) => eprintln!("{error}"),
            _ => {}
        }
    }

    /// Forgets the changes that were written.
    fn reset(&self) {
        self.lock().done.clear();
    }

    /// Waits until all changes were written.
    pub(crate) fn wait(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let waiting = self.lock().waiting.len();
            if waiting == 0 {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                return Err(format!("{waiting} changes were not written within {LIMIT:?}").into());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The times of those of a kind that were written, sorted.
    pub(crate) fn written(&self, kind: Kind) -> Vec<Duration> {
        let delays = self.lock();
        let of_kind = delays.done.iter().filter(|(of, _)| *of == kind);
        let mut times: Vec<Duration> = of_kind.map(|(_, time)| *time).collect();
        times.sort();
        times
    }
}

/// The value below which a part of the sorted times is.
pub(crate) fn percentile(times: &[Duration], part: f64) -> Duration {
    let index = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
    times.get(index).copied().unwrap_or_default()
}

/// The intervals of the agent in nftables mode.
pub(crate) fn intervals() -> Result<Intervals> {
    Ok(kernlink_benches::cluster::nftables_config()?.intervals())
}

/// The commands of other programs, without changes and with 100 changes a second, as the schedule of the agent combines them.
pub(crate) fn run() -> Result<()> {
    let cluster = Cluster::new(SIZE);
    let commands = commands();
    in_new_namespace(|_| {
        let clock = Clock::default();
        let runner = Runner::start(proxier(&cluster)?, Schedule::new(intervals()?), clock.notify())?;
        runner.wait_for_first_sync()?;
        // In turn, an endpoint of each Service is added and removed.
        let slices: Vec<_> = cluster
            .replacements()
            .into_iter()
            .take(2_000)
            .map(|[replacement, original]| {
                let mut more = original.clone();
                more.endpoints.extend(replacement.endpoints.last().cloned());
                [(Kind::Other, more), (Kind::Removal, original)]
            })
            .collect();
        // Every other Service is one step ahead, so that both kinds are always made. A removal of what is not there would wait for the
        // next addition.
        for [(kind, more), _] in slices.iter().skip(1).step_by(2) {
            clock.begin(&service_of(more), *kind);
            runner.change(SOURCE, endpoint_slice(more.clone()));
        }
        clock.wait()?;
        clock.reset();
        let mut quiet = Vec::new();
        for command in &commands {
            quiet.push(
                command
                    .run()?
                    .ok_or_else(|| format!("{}: it did not end", command.name))?,
            );
        }
        let is_done = AtomicBool::new(false);
        let (busy, changes) = thread::scope(|scope| -> Result<_> {
            let changing = scope.spawn(|| {
                let start = Instant::now();
                let mut number = 0_u32;
                while !is_done.load(Ordering::Relaxed) || start.elapsed() < Duration::from_secs(60) {
                    let index = number as usize;
                    let round = index / slices.len() % 2;
                    let step = (round + index) % 2;
                    let pair = slices.get(index % slices.len());
                    if let Some((kind, slice)) = pair.and_then(|pair| pair.get(step)) {
                        let name = service_of(slice);
                        clock.begin(&name, *kind);
                        runner.change(SOURCE, endpoint_slice(slice.clone()));
                    }
                    number += 1;
                    let next = start + BETWEEN * number;
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                }
                number
            });
            // The burst that is written at once has passed.
            thread::sleep(Duration::from_secs(2));
            let busy: Result<Vec<_>> = commands.iter().map(Command::run).collect();
            is_done.store(true, Ordering::Relaxed);
            let changes = changing
                .join()
                .map_err(|_| "the thread of the changes panicked")?;
            Ok((busy?, changes))
        })?;
        for ((command, quiet), busy) in commands.iter().zip(&quiet).zip(&busy) {
            println!(
                "{}: {quiet:.2?} without changes, {busy:.2?} with them",
                command.name
            );
            let name = |what: &str| format!("nftables_mode.neighbour_{what}_s.{}", command.name);
            figure(&name("quiet"), quiet.as_secs_f64(), "s")?;
            if let Some(busy) = busy {
                figure(&name("busy"), busy.as_secs_f64(), "s")?;
            }
        }
        let ended = busy.iter().flatten().count();
        figure("nftables_mode.neighbours_ended", ended as f64, "commands")?;
        println!("{SIZE}x{ENDPOINTS}: {changes} changes");
        for (what, kind) in [("removals", Kind::Removal), ("other changes", Kind::Other)] {
            let delays = clock.written(kind);
            let (half, most) = (percentile(&delays, 0.5), percentile(&delays, 0.99));
            println!(
                "{} {what} written, delay {half:.2?}, p99 {most:.2?}",
                delays.len()
            );
            let prefix = if kind == Kind::Removal {
                "busy_removal"
            } else {
                "busy"
            };
            for (part, time) in [("median", half), ("p99", most)] {
                let name = format!("nftables_mode.{prefix}_delay_{part}_ms");
                figure(&name, time.as_secs_f64() * 1e3, "ms")?;
            }
        }
        Ok(())
    })
}

/// Waits until the first sync of a runner ended.
pub(crate) trait FirstSync {
    fn wait_for_first_sync(&self) -> Result<()>;
}

impl FirstSync for Runner<NftablesMode> {
    fn wait_for_first_sync(&self) -> Result<()> {
        let start = Instant::now();
        while self.status().syncs == 0 {
            if start.elapsed() > LIMIT {
                return Err("no sync".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
