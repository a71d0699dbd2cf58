//! `cargo xtask bench watchers`: what many nodes cost a real API server, by simulation, with the sources of the agent (`benches/watchers.rs`) and
//! with reflectors of client-go.

use std::{
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{
    e2e::{self, ETCD_VARIABLE, given},
    host,
    kubernetes::{Module, VERSION},
    provision,
    step::{self, End, Records, Step, pass_through},
    workspace::{BENCHES, Workspace},
};

/// The group of its figures. It runs only if it is requested: it takes hours, and needs Go.
pub(crate) const GROUP: &str = "watchers";
const REFLECTORS: &str = "reflectors";
const REFLECTORS_SOURCE: &str = include_str!("watchers/reflectors/main.go");
/// Go's package of etcd. Its version is the one with which Kubernetes is tested.
const ETCD: &str = "go.etcd.io/etcd/server/v3";
const AGENTS_VARIABLE: &str = "KERNLINK_WATCHERS";
const REFLECTORS_VARIABLE: &str = "KERNLINK_REFLECTORS";
const WATCHERS_VARIABLE: &str = "KERNLINK_E2E_WATCHERS";
/// For one part: each watcher reads a large list.
const TIME_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// What is given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// kube-apiserver; it is built otherwise.
    pub(crate) api_server: Option<PathBuf>,
    /// etcd; it is built otherwise, because that of Debian 12 cannot report progress, without which lists are not streamed.
    pub(crate) etcd: Option<PathBuf>,
    /// The program with watchers of client-go; it is built otherwise.
    pub(crate) reflectors: Option<PathBuf>,
    /// The number of watchers.
    pub(crate) watchers: Option<NonZeroU32>,
    /// The number of Services of the part with changes.
    pub(crate) services: Option<NonZeroU32>,
}

/// Runs it. Returns what it printed, or `None` if it failed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<Option<String>> {
    ensure!(
        provision::is_root(),
        "the benchmark of watchers needs root, because it creates and configures network namespaces"
    );
    let mut environment = e2e::environment(workspace, options.api_server.as_deref())?;
    let mut add = |variable: &str, value: &Path| {
        environment.insert(variable.to_owned(), value.to_string_lossy().into_owned());
    };
    let folder = workspace.target().join(format!("e2e/watchers-{VERSION}"));
    let etcd = match &options.etcd {
        Some(path) => given("--etcd", path)?,
        None => build_etcd(&folder).context("--etcd FILE names a program instead")?,
    };
    add(ETCD_VARIABLE, &etcd);
    let reflectors = match &options.reflectors {
        Some(path) => given("--reflectors", path)?,
        None => build_reflectors(&folder).context("--reflectors FILE names a program instead")?,
    };
    add(REFLECTORS_VARIABLE, &reflectors);
    for (variable, number) in [
        (WATCHERS_VARIABLE, options.watchers),
        (e2e::SERVICES_VARIABLE, options.services),
    ] {
        if let Some(number) = number {
            add(variable, Path::new(&number.to_string()));
        }
    }
    let build = ["build", "--release", "--package", BENCHES, "--bin", GROUP];
    add(AGENTS_VARIABLE, &e2e::built(workspace, &build, GROUP)?.path);
    let test = e2e::build_tests(workspace)?;
    let folder = workspace.target().join("xtask/watchers");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut output = String::new();
    for (position, part) in ["fan_out", "restart"].into_iter().enumerate() {
        let step = Step {
            name: part.to_owned(),
            program: test.path.clone(),
            arguments: ["--nocapture", "--ignored", "--exact"]
                .map(str::to_owned)
                .into_iter()
                .chain([format!("watchers::{part}")])
                .collect(),
            folder: test.folder.clone(),
            environment: environment.clone(),
            time_limit: TIME_LIMIT,
            show: true,
        };
        let records = Records::new(&folder, position);
        let end: End = step::run(&host::in_private_namespace(&step), &records, pass_through)?;
        if !end.is_success() {
            eprintln!("xtask: {part}: {end:?}");
            return Ok(None);
        }
        output += &records.read_output();
    }
    Ok(Some(output))
}

/// Builds etcd with the version that Kubernetes requires, once for each target folder.
fn build_etcd(folder: &Path) -> Result<PathBuf> {
    let file = folder.join("etcd");
    if !file.is_file() {
        eprintln!("xtask: building etcd, which takes some minutes");
        Module::new(folder, &[])?.build_package(ETCD, &file)?;
    }
    Ok(file)
}

/// Builds the program with reflectors, unless it is built already from the same file.
fn build_reflectors(folder: &Path) -> Result<PathBuf> {
    let (sources, file) = (folder.join(REFLECTORS), folder.join("reflectors-program"));
    let source = sources.join("main.go");
    let is_same = fs::read_to_string(&source).is_ok_and(|text| text == REFLECTORS_SOURCE);
    if is_same && file.is_file() {
        return Ok(file);
    }
    eprintln!("xtask: building a program with client-go, which takes some minutes");
    if file.exists() {
        fs::remove_file(&file).with_context(|| format!("removing {}", file.display()))?;
    }
    let module = Module::new(folder, &[])?;
    fs::create_dir_all(&sources).with_context(|| format!("creating {}", sources.display()))?;
    fs::write(&source, REFLECTORS_SOURCE).with_context(|| format!("writing {}", source.display()))?;
    module.build_package(&format!("./{REFLECTORS}"), &file)?;
    Ok(file)
}
