//! The programs that are built with Go. What is built already is not built again.

use std::{fs, process::Command};

use anyhow::{Context, Result};

use super::layout::Layout;
use crate::{
    kubernetes::{self, Kind, Module, Program, VERSION},
    step,
};

/// Of Kubernetes, in the order in which they are built.
const PROGRAMS: [Program; 9] = [
    dynamic("kube-apiserver", "cmd/kube-apiserver"),
    dynamic("kubelet", "cmd/kubelet"),
    dynamic("kube-controller-manager", "cmd/kube-controller-manager"),
    dynamic("kube-scheduler", "cmd/kube-scheduler"),
    dynamic("kube-proxy", "cmd/kube-proxy"),
    dynamic("kubectl", "cmd/kubectl"),
    Program {
        name: "e2e.test",
        package: "test/e2e",
        kind: Kind::Test,
    },
    Program {
        name: "agnhost",
        package: "test/images/agnhost",
        kind: Kind::Static,
    },
    Program {
        name: "regression-issue-74839",
        package: "test/images/regression-issue-74839",
        kind: Kind::Static,
    },
];

/// The DNS server of the cluster.
const COREDNS: &str = "coredns";
const COREDNS_FILES: [(&str, &str); 2] = [
    ("main.go", include_str!("coredns/main.go")),
    ("go.mod", include_str!("coredns/go.mod")),
];

const fn dynamic(name: &'static str, package: &'static str) -> Program {
    Program {
        name,
        package,
        kind: Kind::Dynamic,
    }
}

/// Builds the programs that are missing.
pub(super) fn programs(layout: &Layout) -> Result<()> {
    fs::create_dir_all(layout.programs())
        .with_context(|| format!("creating {}", layout.programs().display()))?;
    let missing: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|program| !layout.program(program.name).is_file())
        .collect();
    if !missing.is_empty() {
        let module = Module::new(&layout.module("kubernetes"), &PROGRAMS)?;
        for program in missing {
            eprintln!("xtask: building {} {VERSION}", program.name);
            module.build(program, &layout.program(program.name))?;
        }
    }
    if !layout.program(COREDNS).is_file() {
        build_coredns(layout)?;
    }
    Ok(())
}

/// CoreDNS has its plug-ins compiled in.
fn build_coredns(layout: &Layout) -> Result<()> {
    let go =
        kubernetes::go().context("CoreDNS is built with Go 1.26 or later, which is missing: install it")?;
    eprintln!("xtask: building {COREDNS}");
    let folder = layout.module(COREDNS);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    for (name, text) in COREDNS_FILES {
        fs::write(folder.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    let temporary = folder.join(COREDNS);
    step::succeed_in_group(
        Command::new(go)
            .current_dir(&folder)
            .env("GOFLAGS", "-mod=mod")
            .env("CGO_ENABLED", "0")
            .args(["build", "-ldflags", "-s -w", "-o"])
            .arg(&temporary)
            .arg("."),
    )?;
    fs::rename(&temporary, layout.program(COREDNS)).context("renaming coredns")
}
