//! `cargo xtask e2e`: the agent with a real kube-apiserver and etcd, on this machine. It is not part of CI.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use kernlink_kernel_tests::programs::{PROGRAMS, Program};
use serde::Deserialize;

use crate::{
    host, programs, provision,
    step::{self, Records, Step, pass_through},
    test::inherited,
    workspace::{KERNEL_TESTS, Workspace, output, succeed},
};

/// The version of kube-apiserver that is built.
const VERSION: &str = "1.36.3";
/// Programs in addition to those of all kernel tests, each with the variable from which the tests read its path.
const E2E_PROGRAMS: [(Program, &str); 3] = [
    (Program::new("curl", "curl"), "KERNLINK_CURL"),
    (Program::new("etcd", "etcd-server"), "KERNLINK_ETCD"),
    (Program::new("openssl", "openssl"), "KERNLINK_OPENSSL"),
];
const SERVICES_VARIABLE: &str = "KERNLINK_E2E_SERVICES";
const AGENT_VARIABLE: &str = "KERNLINK_E2E_AGENT";
const KUBE_PROXY_VARIABLE: &str = "KERNLINK_KUBE_PROXY";
const API_SERVER_VARIABLE: &str = "KERNLINK_KUBE_APISERVER";
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// What is given on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// kube-apiserver; it is built otherwise.
    pub(crate) api_server: Option<PathBuf>,
    /// kube-proxy: its figures and those of the agent are measured instead of the tests.
    pub(crate) kube_proxy: Option<PathBuf>,
    /// The number of Services.
    pub(crate) services: Option<NonZeroU32>,
}

/// Runs the tests in `kernel-tests/e2e`, or the measurement there. False if one failed.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    ensure!(
        provision::is_root(),
        "e2e needs root, because it creates and configures network namespaces"
    );
    let mut needed = PROGRAMS.to_vec();
    needed.extend(E2E_PROGRAMS.map(|(program, _)| program));
    provision::install(&[&needed])?;
    let given = |option: &str, path: &Path| {
        fs::canonicalize(path).with_context(|| format!("{option} {}", path.display()))
    };
    let api_server = match &options.api_server {
        Some(path) => given("--kube-apiserver", path)?,
        None => build_api_server(workspace)?,
    };
    let mut environment = inherited();
    let path = programs::folder(workspace.target())?;
    environment.insert("PATH".to_owned(), path.to_string_lossy().into_owned());
    let mut add = |variable: &str, path: PathBuf| {
        environment.insert(variable.to_owned(), path.to_string_lossy().into_owned());
    };
    add(API_SERVER_VARIABLE, api_server);
    for (program, variable) in E2E_PROGRAMS {
        let path = provision::find(program.name);
        add(
            variable,
            path.with_context(|| format!("{} is missing", program.name))?,
        );
    }
    let mut test = vec!["--nocapture".to_owned()];
    let mut build = vec!["build", "--package", "kernlink-agent", "--bins"];
    if let Some(path) = &options.kube_proxy {
        add(KUBE_PROXY_VARIABLE, given("--kube-proxy", path)?);
        build.push("--release");
        test.extend(["--ignored".to_owned(), "figures".to_owned()]);
    }
    let programs = workspace.build(&build)?;
    if options.kube_proxy.is_some() {
        let agent = programs.iter().find(|program| program.target == "kernlink-agent");
        add(
            AGENT_VARIABLE,
            agent.context("cargo did not build kernlink-agent")?.path.clone(),
        );
    }
    if let Some(services) = options.services {
        environment.insert(SERVICES_VARIABLE.to_owned(), services.to_string());
    }
    let arguments = [
        "test",
        "--package",
        KERNEL_TESTS,
        "--all-features",
        "--test",
        "e2e",
        "--no-run",
    ];
    let executables = workspace.build(&arguments)?;
    let executable = executables.iter().find(|executable| executable.target == "e2e");
    let executable = executable.context("cargo did not build the test e2e")?;
    let step = Step {
        name: executable.target.clone(),
        program: executable.path.clone(),
        arguments: test,
        folder: executable.folder.clone(),
        environment,
        time_limit: TIME_LIMIT,
        show: true,
    };
    let folder = workspace.target().join("xtask/e2e");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let end = step::run(
        &host::in_private_namespace(&step),
        &Records::new(&folder, 0),
        pass_through,
    )?;
    Ok(end.is_success())
}

/// Builds kube-apiserver from its Go module, once for each target folder.
fn build_api_server(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join(format!("e2e/kube-apiserver-{VERSION}"));
    let program = folder.join("kube-apiserver");
    if program.is_file() {
        return Ok(program);
    }
    let Some(go) = provision::find("go").or_else(installed_go) else {
        bail!(
            "kube-apiserver {VERSION} is built with Go 1.26 or later, which is missing: install it, or name a program with \
             --kube-apiserver FILE"
        );
    };
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    eprintln!("xtask: building kube-apiserver {VERSION}, which takes several minutes");
    let module = download(&go, &folder)?;
    fs::write(folder.join("go.mod"), go_mod(&module)).context("writing go.mod")?;
    // Go records in go.mod only what a file of the module imports.
    let import = "//go:build tools\n\npackage build\n\nimport _ \"k8s.io/kubernetes/cmd/kube-apiserver\"\n";
    fs::write(folder.join("tools.go"), import).context("writing tools.go")?;
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion=v{VERSION}");
    let temporary = folder.join("kube-apiserver.new");
    succeed(
        Command::new(&go)
            .current_dir(&folder)
            .env("GOFLAGS", "-mod=mod")
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-ldflags", &flags, "-o"])
            .arg(&temporary)
            .arg("k8s.io/kubernetes/cmd/kube-apiserver"),
    )?;
    fs::rename(&temporary, &program).context("renaming kube-apiserver")?;
    Ok(program)
}

/// Where Go's own archive is installed.
fn installed_go() -> Option<PathBuf> {
    let path = Path::new("/usr/local/go/bin/go");
    path.is_file().then(|| path.to_owned())
}

/// Downloads the module, and returns its `go.mod`.
fn download(go: &Path, folder: &Path) -> Result<String> {
    #[derive(Deserialize)]
    struct Module {
        #[serde(rename = "GoMod")]
        go_mod: PathBuf,
    }

    let module = format!("k8s.io/kubernetes@v{VERSION}");
    let json = output(
        Command::new(go)
            .current_dir(folder)
            .env("GO111MODULE", "on")
            .args(["mod", "download", "-json", &module]),
    )?;
    let module: Module = serde_json::from_str(&json).with_context(|| format!("reading {json:?}"))?;
    fs::read_to_string(&module.go_mod).with_context(|| format!("reading {}", module.go_mod.display()))
}

/// A module that depends on Kubernetes. Its parts in `staging/`, which are modules too, have the same version with another first number.
fn go_mod(module: &str) -> String {
    let staging: BTreeMap<&str, ()> = module
        .lines()
        .filter_map(|line| line.trim().split_once(" => ./staging/"))
        .map(|(name, _)| (name.trim_start_matches("replace "), ()))
        .collect();
    let go = module
        .lines()
        .find(|line| line.starts_with("go "))
        .unwrap_or("go 1.26.0");
    let part = VERSION.replacen('1', "0", 1);
    let replaced: String = staging
        .keys()
        .map(|name| format!("\t{name} => {name} v{part}\n"))
        .collect();
    format!("module build\n\n{go}\n\nrequire k8s.io/kubernetes v{VERSION}\n\nreplace (\n{replaced})\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_kubernetes_have_the_same_version() {
        let module = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => ./staging/src/k8s.io/kms\n)\n";
        assert_eq!(
            go_mod(module),
            "module build\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes v1.36.3\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n\tk8s.io/kms => k8s.io/kms v0.36.3\n)\n"
        );
    }
}
