//! The sources of `kernlink-agent` for many nodes, without a kernel: one of the processes of `cargo xtask bench watchers`.
//!
//! It does what the program with reflectors of client-go does (`xtask/src/watchers/reflectors/main.go`), and is told so in the same way: by
//! environment variables. What it prints is described there.

use std::env;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::SystemTime;

use kernlink_agent::cluster::{Access, Cluster, Options, Traffic, Update};
use kernlink_benches::{Result, exit_code};
use kernlink_services::{Change, Kind, ObjectChange};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// As in the program `kernlink-agent`.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The kinds that each node reads.
const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::Node];

/// The nodes whose first lists were received.
#[derive(Default)]
struct Synced {
    nodes: Mutex<usize>,
    changed: Condvar,
}

impl Synced {
    fn add(&self) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, number: usize) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.changed.wait_while(nodes, |nodes| *nodes < number);
        drop(done);
    }
}

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    // Each node has some files.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let first = number("KERNLINK_WATCH_FIRST")?;
    let together = number("KERNLINK_WATCH_TOGETHER")?;
    let kubeconfig =
        env::var_os("KERNLINK_WATCH_KUBECONFIG").ok_or("KERNLINK_WATCH_KUBECONFIG is not set")?;
    let synced = Arc::new(Synced::default());
    println!("begun {}", now());
    let mut clusters = Vec::new();
    for offset in 0..number("KERNLINK_WATCH_NUMBER")? {
        synced.wait_for((offset + 1).saturating_sub(together));
        clusters.push(start(first + offset, PathBuf::from(&kubeconfig), &synced)?);
    }
    io::copy(&mut io::stdin(), &mut io::sink())?;
    // Their threads would be ended one after the other.
    mem::forget(clusters);
    Ok(())
}

fn start(node: usize, kubeconfig: PathBuf, synced: &Arc<Synced>) -> Result<Cluster> {
    let options = Options {
        access: Access {
            kubeconfig: Some(kubeconfig),
            master: None,
        },
        node_name: format!("node-{node}").into(),
        service_proxy_name: None,
        has_all_nodes: false,
        has_service_cidrs: false,
        needs_address: false,
        needs_pod_cidr: false,
    };
    let (kinds, synced) = (AtomicUsize::new(0), Arc::clone(synced));
    let on_update = move |update| match update {
        Update::Changes(changes) => {
            for change in &changes {
                see(node, change);
                let is_synced = KINDS.iter().any(|kind| *change == Change::synced(*kind));
                if is_synced && kinds.fetch_add(1, Ordering::Relaxed) + 1 == KINDS.len() {
                    println!("synced {node} {}", now());
                    synced.add();
                }
            }
        }
        Update::Failed { problem, .. } => eprintln!("node-{node}: {problem}"),
        Update::Ended => eprintln!("node-{node}: the thread ended"),
        _ => {}
    };
    Ok(Cluster::start(&options, &Traffic::new()?, on_update)?)
}

fn see(node: usize, change: &Change) {
    if let Change::EndpointSlices(ObjectChange::Upsert(slice)) = change
        && let Some(endpoint) = slice.endpoints.first()
    {
        let address = endpoint.address.to_string();
        if address.starts_with("10.200.") {
            println!("seen {node} {address} {}", now());
        }
    }
}

/// Nanoseconds since 1970.
fn now() -> u128 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map(|time| time.as_nanos())
        .unwrap_or_default()
}

fn number(variable: &str) -> Result<usize> {
    let text = env::var(variable).map_err(|error| format!("{variable}: {error}"))?;
    Ok(text.parse().map_err(|error| format!("{variable}: {error}"))?)
}
