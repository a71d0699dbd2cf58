//! Containers of the image, with the security of the DaemonSet: no more capabilities, and a read-only file system.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
};

use anyhow::{Context, Result, ensure};
use kernlink_kernel_tests::programs::Program;
use serde_json::{Value, json};

use super::AGENT;
use crate::{
    provision,
    workspace::{output, succeed},
};

const PROGRAMS: &[Program] = &[
    Program::new("runc", "runc"),
    Program::new("ip", "iproute2"),
    Program::new("nsenter", "util-linux"),
];

/// The security of the containers. `cargo xtask test` runs the agent with the same capabilities.
const DAEMONSET: &str = include_str!("../../../dist/kubernetes/daemonset.yaml");

/// A Service with an endpoint: without one it would have no rule in table nat.
const MANIFEST: &str = r#"
{"kind": "Service", "apiVersion": "v1", "metadata": {"name": "web"},
 "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}
---
{"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
 "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
 "addressType": "IPv4", "ports": [{"port": 8080, "name": ""}], "endpoints": [{"addresses": ["10.244.0.5"]}]}
"#;

/// Programs that would make a container more useful to an attacker.
const SHELLS: &[&str] = &["sh", "ash", "bash", "dash", "busybox", "perl", "python3"];

/// Runs the agent in a network namespace of its own: as the init container, then as the container, which removes everything and writes
/// it again.
pub(super) fn run(root: &Path, is_legacy: bool) -> Result<()> {
    provision::install(&[PROGRAMS])?;
    for shell in SHELLS {
        for folder in ["bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin"] {
            let path = root.join(folder).join(shell);
            ensure!(fs::symlink_metadata(&path).is_err(), "{} exists", path.display());
        }
    }
    let root = fs::canonicalize(root).context("the folder of the image")?;
    let bundle = std::env::temp_dir().join(format!("kernlink-image-{}", process::id()));
    fs::create_dir_all(bundle.join("manifests"))?;
    fs::write(bundle.join("manifests/web.yaml"), MANIFEST)?;
    fs::create_dir_all(bundle.join("run"))?;
    let name = format!("kernlink-image-{}", process::id());
    let result = succeed(Command::new("ip").args(["netns", "add", &name])).and_then(|()| {
        let container = Container {
            root: &root,
            bundle: &bundle,
            namespace: &name,
        };
        container.check(is_legacy)
    });
    succeed(Command::new("ip").args(["netns", "delete", &name]))?;
    fs::remove_dir_all(&bundle)?;
    result
}

struct Container<'a> {
    root: &'a Path,
    bundle: &'a Path,
    namespace: &'a str,
}

impl Container<'_> {
    fn check(&self, is_legacy: bool) -> Result<()> {
        let granted = capabilities(DAEMONSET)?;
        ensure!(
            DAEMONSET.matches("readOnlyRootFilesystem: true").count() == 2,
            "the containers of the DaemonSet have writable file systems"
        );
        let variant = if is_legacy { "legacy" } else { "nft" };
        let expect = |is_served: bool, after: &str| {
            let rules = output(
                Command::new("nsenter")
                    .arg(format!("--net=/run/netns/{}", self.namespace))
                    .arg(format!("iptables-{variant}-save"))
                    .args(["-t", "nat"]),
            )?;
            ensure!(
                rules.contains("-d 10.96.0.1/32") == is_served,
                "after {after} the rules are\n{rules}"
            );
            println!("after {after}: {}", if is_served { "served" } else { "removed" });
            Ok(())
        };
        self.agent("--init-only", None)?;
        expect(true, "--init-only")?;
        self.agent("--cleanup", Some(&granted))?;
        expect(false, "--cleanup")?;
        self.agent("--once", Some(&granted))?;
        expect(true, "--once")
    }

    /// Runs the agent with these capabilities, or privileged.
    fn agent(&self, action: &str, capabilities: Option<&[String]>) -> Result<()> {
        let config = self.config(action, capabilities);
        fs::write(self.bundle.join("config.json"), config.to_string())?;
        succeed(
            Command::new("runc")
                .arg("--root")
                .arg(self.bundle.join("state"))
                .args(["run", "--bundle"])
                .arg(self.bundle)
                .arg(self.namespace),
        )
        .with_context(|| format!("kernlink-agent {action} in a container"))
    }

    /// The configuration of the runtime, as a kubelet would write it.
    fn config(&self, action: &str, capabilities: Option<&[String]>) -> Value {
        let agent = format!("/{AGENT}");
        let is_privileged = capabilities.is_none();
        let all = ALL.iter().map(|name| format!("CAP_{name}")).collect::<Vec<_>>();
        let set = capabilities.map_or(all, <[String]>::to_vec);
        let bind = |source: PathBuf, target: &str, options: &[&str]| json!({"destination": target, "source": source, "type": "bind", "options": options});
        let read_only: &[&str] = if is_privileged {
            &[]
        } else {
            &[
                "/proc/bus",
                "/proc/fs",
                "/proc/irq",
                "/proc/sys",
                "/proc/sysrq-trigger",
            ]
        };
        json!({
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0}, "cwd": "/", "noNewPrivileges": !is_privileged,
                "args": [agent, "--node-name", "node-a", "--watch", "/tmp", "--proxy-mode", "iptables",
                    // The table of connections belongs to the first namespace.
                    "--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0s",
                    "--conntrack-tcp-timeout-close-wait", "0s", action],
                "capabilities": {"bounding": set, "effective": set, "permitted": set},
            },
            "root": {"path": self.root, "readonly": true},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro", "nosuid"]},
                bind(self.bundle.join("manifests"), "/tmp", &["rbind", "ro"]),
                bind(self.bundle.join("run"), "/run", &["rbind"]),
            ],
            "linux": {
                "namespaces": [
                    {"type": "mount"}, {"type": "pid"}, {"type": "ipc"},
                    {"type": "network", "path": format!("/run/netns/{}", self.namespace)},
                ],
                "readonlyPaths": read_only,
            },
        })
    }
}

/// Those of a privileged container that the agent and its tools use.
const ALL: &[&str] = &["DAC_OVERRIDE", "NET_ADMIN", "NET_RAW", "SYS_ADMIN"];

/// The capabilities that the container of a DaemonSet has.
fn capabilities(daemonset: &str) -> Result<Vec<String>> {
    let line = daemonset
        .lines()
        .find_map(|line| line.trim().strip_prefix("capabilities: {drop: [ALL], add: ["))
        .context("the DaemonSet has no line `capabilities: {drop: [ALL], add: [...]}`")?;
    let names = line.split(']').next().unwrap_or_default();
    Ok(names.split(", ").map(|name| format!("CAP_{name}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capabilities_are_those_of_the_daemonset() {
        assert_eq!(capabilities(DAEMONSET).unwrap(), ["CAP_NET_ADMIN", "CAP_NET_RAW"]);
        capabilities("capabilities: {}").unwrap_err();
    }
}
