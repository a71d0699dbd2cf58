//! The running agent, with the capabilities of its DaemonSet, and Services that request schedulers whose modules the kernel must not load for them.
//!
//! The file has only one test, because the test unloads modules of the whole machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[allow(dead_code, reason = "this test uses a part of it")]
#[path = "agent/support.rs"]
mod support;

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{kernel, programs, requires_ipvs_mode, tools, wait};

use crate::support::{Agent, Manifests, ask, command, service};

/// The modules that register operations for network namespaces.
const MODULES: [&str; 2] = ["ip_vs_lblc", "ip_vs_lblcr"];

fn loaded() -> Vec<&'static str> {
    let text = fs::read_to_string("/proc/modules").unwrap();
    let is_loaded = |module: &&str| text.lines().any(|line| line.split(' ').next() == Some(*module));
    MODULES.into_iter().filter(is_loaded).collect()
}

/// Runs a program as root with the capabilities of the DaemonSet.
fn limited(command: &Command) -> Command {
    let mut limited = programs::command("setpriv");
    limited
        .args([
            "--no-new-privs",
            "--inh-caps",
            "-all",
            "--bounding-set",
            "-all,+net_admin,+net_raw",
        ])
        .arg(command.get_program())
        .args(command.get_args());
    limited
}

/// Ends a thread, also after a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_service_cannot_have_the_kernel_load_a_scheduler_while_network_namespaces_are_deleted() {
    if !kernel::may_change_the_machine() {
        return;
    }
    requires_ipvs_mode!();
    wait::until(|| {
        for module in MODULES {
            // Namespaces of earlier tests, which the kernel deletes in the background, may use them.
            let _is_in_use = tools::run("rmmod", &[module]);
        }
        match loaded() {
            modules if modules.is_empty() => Ok(()),
            modules => Err(format!("{modules:?}")),
        }
    });
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // As pods end.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(NetNs::new());
            }
        });
        let _ends = Ends(&is_over);
        network.node.run(|| {
            let agent = Agent::spawn(limited(&command(&manifests.0, &["--ipvs-sync-period", "2s"])));
            agent.wait_for(" synced done=", 1);
            for (number, scheduler) in ["lblc", "lblcr"].into_iter().enumerate() {
                let name = format!("hostile{number}");
                let annotated = format!(
                    "metadata: {{name: {name}, annotations: {{kernlink.io/scheduler: {scheduler}}}}}"
                );
                let address = format!("10.96.0.{}", number + 2);
                let text = service(&name, &address, &[0]);
                let text = text.replace(&format!("metadata: {{name: {name}}}"), &annotated);
                manifests.replace(&format!("{name}.yaml"), &text);
                wait::until(|| ask(&network.client, &address));
                agent.wait_for("load it at the start of the node", number + 1);
                let servers = tools::ipvsadm_save();
                assert!(
                    servers.contains(&format!("-A -t {address}:80 -s rr\n")),
                    "{servers}"
                );
            }
            assert_eq!(loaded(), [""; 0]);
            // Links can be changed, and other Services are served.
            tools::ip(&["link", "add", "probe", "type", "dummy"]);
            assert!(ask(&network.client, "10.96.0.1").is_ok());
            is_over.store(true, Ordering::Relaxed);

            // As an administrator does at the start of the node.
            tools::must("modprobe", &["ip_vs_lblc"]);
            wait::until(|| match tools::ipvsadm_save() {
                servers if servers.contains("-A -t 10.96.0.2:80 -s lblc\n") => Ok(()),
                servers => Err(servers),
            });
            let (status, log) = agent.stop();
            assert!(status.success(), "{log}");
        });
    });
}
