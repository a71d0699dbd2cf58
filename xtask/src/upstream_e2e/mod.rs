//! `cargo xtask upstream-e2e`: the end-to-end tests of Kubernetes on a cluster of several nodes on this machine, with the agent or kube-proxy as
//! its service proxy. It is not part of CI.

mod build;
mod cgroups;
mod cluster;
mod images;
mod junit;
mod layout;
mod needs;
mod options;
mod record;
mod results;
mod rules;
#[cfg(test)]
mod scratch;
mod selection;
mod table;

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::{
    cluster::{CLUSTER, NODE, init, init_node},
    options::{Options, USAGE},
    record::{BEGIN, END},
};
use self::{
    cluster::{Job, Test},
    layout::Layout,
    options::{Action, KUBE_PROXY, Proxy},
    results::Results,
    rules::Setup,
    selection::{Expectations, Selection},
    table::Table,
};
use crate::{
    e2e::given,
    workspace::{Workspace, output},
};

/// For tests without a result, to share them among processes.
const SECONDS: u64 = 30;
/// Locked as long as a cluster exists: another one, also of another folder, has the same control group and addresses.
const MACHINE_LOCK: &str = "/run/lock/kernlink-upstream-e2e";

/// Does what the command line requests. False if a test has another result than expected.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let folder = options.folder(workspace.target());
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let folder = fs::canonicalize(&folder).with_context(|| format!("finding {}", folder.display()))?;
    let layout = Layout::new(&folder);
    if options.action == Action::Record {
        return record::write(workspace.root(), &layout.results()).map(|()| true);
    }
    needs::provide()?;
    fs::create_dir_all(layout.programs())
        .with_context(|| format!("creating {}", layout.programs().display()))?;
    let _lock = lock(&layout.lock())?;
    build::programs(&layout)?;
    images::make(&layout)?;
    if options.action == Action::Build {
        return Ok(true);
    }
    let setup = Setup {
        proxy: options.proxy.name(),
        mode: options.mode.name(),
        nodes: options.nodes,
    };
    let known = selection::names(&output(
        Command::new(layout.program("e2e.test")).arg("--list-tests"),
    )?)?;
    let selection = Selection::new(&known, setup, options.focus.as_ref())?;
    let expectations = Expectations::new(&known)?;
    println!("{selection}");
    if options.action == Action::List {
        for test in &selection.tests {
            println!("{test}");
        }
        return Ok(true);
    }
    ensure!(!selection.tests.is_empty(), "no test is selected");
    let results = layout
        .results()
        .join(record::name(options.proxy.name(), options.mode));
    let other = Results::read(
        &layout
            .results()
            .join(record::name(KUBE_PROXY, options.mode.of_kube_proxy())),
    )?;
    let runs = options.runs.get();
    let present = Results::read(&results)?;
    let missing = present.missing(&selection.tests, runs, options.is_again);
    let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
    for test in &missing {
        *wanted.entry(test.clone()).or_insert_with(|| present.count(test)) += 1;
    }
    if missing.is_empty() {
        println!("all have results in {}", results.display());
    } else {
        let job = Job {
            proxy: proxy(workspace, &options.proxy)?,
            proxy_name: options.proxy.name().to_owned(),
            mode: options.mode.name().to_owned(),
            nodes: options.nodes,
            processes: options.processes,
            tests: missing
                .into_iter()
                .map(|name| Test {
                    seconds: seconds(&name, &[&present, &other]),
                    name,
                })
                .collect(),
            folder,
            xtask: workspace.xtask.clone(),
            results: results.clone(),
        };
        let _lock = lock(Path::new(MACHINE_LOCK))?;
        cluster::run(&job)?;
    }
    let found = Results::read(&results)?;
    // An earlier result does not stand for a run that ended without one.
    wanted.retain(|test, count| found.count(test) < *count);
    let is_compared = !other.is_empty() && options.proxy.name() != KUBE_PROXY;
    let table = Table::new(
        &selection.tests,
        &found,
        is_compared.then_some(&other),
        &expectations,
        setup,
        runs,
    );
    println!("{table}");
    for regex in &expectations.unused {
        println!("failures.rules: no test matches {regex}");
    }
    for test in wanted.keys() {
        println!("a run ended without a result: {test}");
    }
    Ok(wanted.is_empty() && table.is_good() && selection.unused.is_empty() && expectations.unused.is_empty())
}

/// Only one command at a time uses a folder, or has a cluster.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("another upstream-e2e uses {}", path.display()),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("locking {}", path.display())),
    }
}

/// About how long a test takes, by its last result.
fn seconds(test: &str, results: &[&Results]) -> u64 {
    let mut last = results.iter().filter_map(|results| results.last(test, 1));
    last.next().map_or(SECONDS, |summary| summary.time.as_secs())
}

/// The program that is tested.
fn proxy(workspace: &Workspace, proxy: &Proxy) -> Result<PathBuf> {
    match proxy {
        Proxy::KubeProxy(path) => given("--kube-proxy", path),
        Proxy::Kernlink(Some(path)) => given("--agent", path),
        Proxy::Kernlink(None) => {
            let arguments = [
                "build",
                "--locked",
                "--release",
                "--package",
                "kernlink-agent",
                "--bins",
            ];
            let executables = workspace.build(&arguments)?;
            let agent = executables
                .into_iter()
                .find(|executable| executable.target == "kernlink-agent");
            Ok(agent.context("cargo did not build kernlink-agent")?.path)
        }
    }
}
