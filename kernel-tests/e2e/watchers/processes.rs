//! Processes with many watchers each, and what they print.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::SystemTime;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, wait};

/// The processes of a kind of watchers.
const PROCESSES: usize = 4;
/// The watchers of a process that read their first lists at the same time: a cluster does not begin with all its nodes at once.
const TOGETHER: usize = 4;
/// What a process of watchers is told.
const KUBECONFIG: &str = "KERNLINK_WATCH_KUBECONFIG";
const FIRST: &str = "KERNLINK_WATCH_FIRST";
const OWN: &str = "KERNLINK_WATCH_NUMBER";
const AT_ONCE: &str = "KERNLINK_WATCH_TOGETHER";

/// The program whose watchers are measured.
#[derive(Clone, Copy, Debug)]
pub(super) enum Program {
    Kernlink,
    ClientGo,
}

impl Program {
    pub(super) const ALL: [Self; 2] = [Self::Kernlink, Self::ClientGo];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kernlink => "kernlink-agent",
            Self::ClientGo => "client-go",
        }
    }

    /// In names of figures.
    pub(super) fn part(self) -> &'static str {
        match self {
            Self::Kernlink => "kernlink",
            Self::ClientGo => "client_go",
        }
    }
}

/// The time in nanoseconds since 1970, which processes of this machine have in common.
pub(super) fn now() -> u128 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()
}

/// A line of a process of watchers. Times are those of [`now`].
enum Line {
    Begun(u64),
    Synced(usize, u128),
    Seen(usize, String, u128),
}

impl Line {
    /// `None` for another line.
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        Some(match words[..] {
            ["begun", time] => Self::Begun(time.parse().ok()?),
            ["synced", number, time] => Self::Synced(number.parse().ok()?, time.parse().ok()?),
            ["seen", number, address, time] => {
                Self::Seen(number.parse().ok()?, address.to_owned(), time.parse().ok()?)
            }
            _ => return None,
        })
    }
}

/// Watchers that run. They are ended at the end.
pub(super) struct Watchers {
    children: Vec<Child>,
    lines: Receiver<Line>,
    begun: Arc<AtomicU64>,
    number: usize,
}

impl Watchers {
    /// Starts watchers in a namespace.
    pub(super) fn start(program: Program, number: usize, kubeconfig: &Path, namespace: &NetNs) -> Self {
        let _entered = namespace.enter();
        let (sender, lines) = mpsc::channel();
        let begun = Arc::new(AtomicU64::new(0));
        let mut children = Vec::new();
        for process in 0..PROCESSES {
            let first = number * process / PROCESSES;
            let own = number * (process + 1) / PROCESSES - first;
            if own == 0 {
                continue;
            }
            let mut command = match program {
                Program::Kernlink => programs::from_variable("KERNLINK_WATCHERS"),
                Program::ClientGo => programs::from_variable("KERNLINK_REFLECTORS"),
            };
            let log = kubeconfig.with_file_name(format!("{}-{process}.log", program.name()));
            let mut child = command
                .env(KUBECONFIG, kubeconfig)
                .env(FIRST, first.to_string())
                .env(OWN, own.to_string())
                .env(AT_ONCE, TOGETHER.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(fs::File::create(log).unwrap())
                .spawn()
                .unwrap();
            let output = BufReader::new(child.stdout.take().unwrap());
            let (sender, begun) = (sender.clone(), Arc::clone(&begun));
            thread::spawn(move || {
                for line in output.lines().map_while(Result::ok) {
                    match Line::parse(&line) {
                        Some(Line::Begun(time)) => begun.store(time, Ordering::Relaxed),
                        Some(line) => drop(sender.send(line)),
                        None => {}
                    }
                }
            });
            children.push(child);
        }
        Self {
            children,
            lines,
            begun,
            number,
        }
    }

    /// The processes.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    /// When a process has begun to start its watchers.
    pub(super) fn begun(&self) -> u128 {
        self.begun.load(Ordering::Relaxed).into()
    }

    /// Waits until each watcher has printed a line for which `time` is the time in it. Returns the times, sorted.
    fn wait_for(&self, what: &str, time: impl Fn(Line) -> Option<(usize, u128)>) -> Vec<u128> {
        let mut times = BTreeMap::new();
        while times.len() < self.number {
            let line = self.lines.recv_timeout(wait::LIMIT * 2);
            let line = line.unwrap_or_else(|_| panic!("{what}: {} of {} watchers", times.len(), self.number));
            if let Some((number, time)) = time(line) {
                times.entry(number).or_insert(time);
            }
        }
        let mut times: Vec<u128> = times.into_values().collect();
        times.sort_unstable();
        times
    }

    /// When each watcher had its first lists.
    pub(super) fn wait_for_lists(&self) -> Vec<u128> {
        self.wait_for("first lists", |line| match line {
            Line::Synced(number, time) => Some((number, time)),
            _ => None,
        })
    }

    /// When each watcher had an endpoint with this address.
    pub(super) fn wait_for_address(&self, expected: &str) -> Vec<u128> {
        self.wait_for(expected, |line| match line {
            Line::Seen(number, address, time) if address == expected => Some((number, time)),
            _ => None,
        })
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
