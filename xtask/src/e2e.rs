//! `cargo xtask e2e`: the agent with a real kube-apiserver and etcd, on this machine and in the VM. It is not part of CI.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kernlink_kernel_tests::programs::{PROGRAMS, Program};

use crate::{
    host,
    kubernetes::{self, Module, VERSION},
    programs,
    provision::{self, inherited},
    step::{self, Records, Step, pass_through},
    vm::{self, Vm},
    workspace::{Executable, KERNEL_TESTS, Workspace},
};

/// The API server, which the guest of the VM runs too.
const API_SERVER: kubernetes::Program = kubernetes::Program {
    name: "kube-apiserver",
    package: "cmd/kube-apiserver",
    kind: kubernetes::Kind::Static,
};
/// Programs in addition to those of all kernel tests, each with the variable from which the tests read its path.
const E2E_PROGRAMS: [(Program, &str); 3] = [
    (Program::new("curl", "curl"), "KERNLINK_CURL"),
    (Program::new("etcd", "etcd-server"), ETCD_VARIABLE),
    (Program::new("openssl", "openssl"), "KERNLINK_OPENSSL"),
];
const MODE_VARIABLE: &str = "KERNLINK_E2E_MODE";
pub(crate) const SERVICES_VARIABLE: &str = "KERNLINK_E2E_SERVICES";
const AGENT_VARIABLE: &str = "KERNLINK_E2E_AGENT";
/// The path of kube-proxy, for the tests and benchmarks that start it.
pub(crate) const KUBE_PROXY_VARIABLE: &str = "KERNLINK_KUBE_PROXY";
pub(crate) const ETCD_VARIABLE: &str = "KERNLINK_ETCD";
const API_SERVER_VARIABLE: &str = "KERNLINK_KUBE_APISERVER";
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);

/// A mode of the agent that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// On this machine.
    Nftables,
    /// On this machine.
    Iptables,
    /// In the VM, whose kernel has IPVS.
    Ipvs,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Nftables, Self::Iptables, Self::Ipvs];
    /// Those that run on this machine.
    const HERE: [Self; 2] = [Self::Nftables, Self::Iptables];

    /// Its name in kube-proxy.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.with_context(|| format!("--mode: unknown mode `{name}`; known: nftables, iptables, ipvs"))
    }
}

/// What is given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// kube-apiserver; it is built otherwise.
    pub(crate) api_server: Option<PathBuf>,
    /// kube-proxy: the node passes from the agent to it and back, and the figures of both are measured, instead of the other tests.
    pub(crate) kube_proxy: Option<PathBuf>,
    /// The mode of the agent, and of kube-proxy. `None`: one after the other.
    pub(crate) mode: Option<Mode>,
    /// The number of Services.
    pub(crate) services: Option<NonZeroU32>,
}

/// The test binary, with what it needs.
struct Prepared {
    test: Executable,
    environment: BTreeMap<String, String>,
}

impl Prepared {
    fn step(&self, name: &str, arguments: &[&str]) -> Step {
        Step {
            name: name.to_owned(),
            program: self.test.path.clone(),
            arguments: [&["--nocapture"], arguments]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect(),
            folder: self.test.folder.clone(),
            environment: self.environment.clone(),
            time_limit: TIME_LIMIT,
            show: true,
        }
    }
}

/// Builds the programs and the tests, with these variables in addition.
fn prepare(workspace: &Workspace, options: &Options, variables: &[(&str, &Path)]) -> Result<Prepared> {
    ensure!(
        provision::is_root(),
        "e2e needs root, because it creates and configures network namespaces"
    );
    let mut environment = environment(workspace, options.api_server.as_deref())?;
    let mut add = |variable: &str, value: &Path| {
        environment.insert(variable.to_owned(), value.to_string_lossy().into_owned());
    };
    if let Some(services) = options.services {
        add(SERVICES_VARIABLE, Path::new(&services.to_string()));
    }
    for (variable, value) in variables {
        add(variable, value);
    }
    let mut build = vec!["build", "--package", "kernlink-agent", "--bins"];
    if let Some(path) = &options.kube_proxy {
        add(KUBE_PROXY_VARIABLE, &given("--kube-proxy", path)?);
        build.push("--release");
    }
    let agent = built(workspace, &build, "kernlink-agent")?;
    add(AGENT_VARIABLE, &agent.path);
    Ok(Prepared {
        test: build_tests(workspace)?,
        environment,
    })
}

/// Runs the tests of one module, which no other command runs, with these variables in addition. False if one failed.
pub(crate) fn run_module(
    workspace: &Workspace,
    options: &Options,
    module: &str,
    variables: &[(&str, &Path)],
) -> Result<bool> {
    let prepared = prepare(workspace, options, variables)?;
    run_here(workspace, &[prepared.step(module, &["--ignored", module])])
}

/// Runs the tests in `kernel-tests/e2e`, or those with kube-proxy there. False if one failed.
pub(crate) fn run(workspace: &Workspace, options: &Options, vm_options: &vm::Options) -> Result<bool> {
    let prepared = prepare(workspace, options, &[])?;
    let example = "desired_state";
    workspace.build(&["build", "--package", "kernlink-examples", "--example", example])?;
    let step = |name: &str, arguments: &[&str]| prepared.step(name, arguments);
    let of_mode = |step: Step, mode: Mode| {
        let mut step = step;
        let name = mode.name().to_owned();
        step.environment.insert(MODE_VARIABLE.to_owned(), name);
        step
    };
    if options.kube_proxy.is_some() {
        let modes = options.mode.map_or(Mode::HERE.to_vec(), |mode| vec![mode]);
        // One after the other: the first must not disturb what the second measures.
        let steps: Vec<Step> = ["handover::", "figures::"]
            .into_iter()
            .flat_map(|module| {
                let of_mode = &of_mode;
                let step = step(module, &["--ignored", module]);
                modes.iter().map(move |mode| of_mode(step.clone(), *mode))
            })
            .collect();
        return run_here(workspace, &steps);
    }
    let modes = options.mode.map_or(Mode::ALL.to_vec(), |mode| vec![mode]);
    let encodings = "encodings::";
    let mut is_good = run_here(workspace, &[step(encodings, &["--ignored", encodings])])?;
    for mode in modes {
        let step = of_mode(step(mode.name(), &[]), mode);
        is_good &= match mode {
            Mode::Nftables | Mode::Iptables => run_here(workspace, &[step])?,
            Mode::Ipvs => run_in_vm(workspace, step, vm_options)?,
        };
    }
    Ok(is_good)
}

/// The environment of the tests. Installs their programs, and builds kube-apiserver if none is given.
pub(crate) fn environment(
    workspace: &Workspace,
    api_server: Option<&Path>,
) -> Result<BTreeMap<String, String>> {
    let mut needed = PROGRAMS.to_vec();
    needed.extend(E2E_PROGRAMS.map(|(program, _)| program));
    provision::install(&[&needed])?;
    let api_server = match api_server {
        Some(path) => given("--kube-apiserver", path)?,
        None => build_api_server(workspace)?,
    };
    let mut environment = inherited();
    let mut add = |variable: &str, value: &Path| {
        environment.insert(variable.to_owned(), value.to_string_lossy().into_owned());
    };
    add("PATH", &programs::folder(workspace.target())?);
    add(API_SERVER_VARIABLE, &api_server);
    for (program, variable) in E2E_PROGRAMS {
        let path = provision::find(program.name);
        add(
            variable,
            &path.with_context(|| format!("{} is missing", program.name))?,
        );
    }
    Ok(environment)
}

/// Builds the tests in `kernel-tests/e2e`.
pub(crate) fn build_tests(workspace: &Workspace) -> Result<Executable> {
    let arguments = [
        "test",
        "--package",
        KERNEL_TESTS,
        "--all-features",
        "--test",
        "e2e",
        "--no-run",
    ];
    built(workspace, &arguments, "e2e")
}

/// A path on the command line, which may be relative to the current folder.
pub(crate) fn given(option: &str, path: &Path) -> Result<PathBuf> {
    fs::canonicalize(path).with_context(|| format!("{option} {}", path.display()))
}

/// Builds a program with cargo.
pub(crate) fn built(workspace: &Workspace, arguments: &[&str], target: &str) -> Result<Executable> {
    let executables = workspace.build(arguments)?;
    let found = executables
        .into_iter()
        .find(|executable| executable.target == target);
    found.with_context(|| format!("cargo did not build {target}"))
}

fn run_here(workspace: &Workspace, steps: &[Step]) -> Result<bool> {
    let folder = workspace.target().join("xtask/e2e");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut is_good = true;
    for (position, step) in steps.iter().enumerate() {
        let step = host::in_private_namespace(step);
        is_good &= step::run(&step, &Records::new(&folder, position), pass_through)?.is_success();
    }
    Ok(is_good)
}

fn run_in_vm(workspace: &Workspace, step: Step, options: &vm::Options) -> Result<bool> {
    let run = Vm::prepare(workspace, options)?.run(workspace, vec![step])?;
    if let Some(problem) = &run.problem {
        eprintln!("xtask: {problem}");
        return Ok(false);
    }
    let end = run.records(0).read_end()?;
    Ok(end.is_some_and(|end| end.is_success()))
}

/// Builds kube-apiserver from its Go module, once for each target folder.
fn build_api_server(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join(format!("e2e/kube-apiserver-{VERSION}"));
    let file = folder.join(API_SERVER.name);
    if file.is_file() {
        return Ok(file);
    }
    eprintln!("xtask: building kube-apiserver {VERSION}, which takes several minutes");
    let module =
        Module::new(&folder, &[API_SERVER]).context("--kube-apiserver FILE names a program instead")?;
    module.build(API_SERVER, &file)?;
    Ok(file)
}
