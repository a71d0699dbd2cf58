//! The capabilities that `dist/` gives the agent are sufficient, and each of them is necessary.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires, tools};
use nix::unistd::Uid;

use crate::support::{Agent, Manifests, ask, command, run, service, text};

/// The capabilities of the container in the DaemonSet, without `CAP_`.
fn of_the_daemonset() -> Vec<String> {
    let words = words_after("kubernetes/daemonset.yaml", "capabilities: {drop: [ALL], add: [");
    words
        .split_once(']')
        .unwrap()
        .0
        .split(", ")
        .map(str::to_lowercase)
        .collect()
}

/// The capabilities of the systemd unit, without `CAP_`.
fn of_the_unit() -> Vec<String> {
    let words = words_after("kernlink-agent.service", "\nCapabilityBoundingSet=");
    let line = words.lines().next().unwrap();
    line.split(' ')
        .map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase())
        .collect()
}

fn words_after(file: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist").join(file);
    let content = fs::read_to_string(path).unwrap();
    content.split_once(text).unwrap().1.to_owned()
}

/// Runs a program as root with these capabilities, and nothing that could give it more.
fn limited(command: &Command, capabilities: &[&str]) -> Output {
    let set: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let mut limited = programs::command("setpriv");
    limited
        .args(["--no-new-privs", "--inh-caps", "-all", "--bounding-set"])
        .arg(format!("-all{set}"))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            limited.env(name, value);
        }
    }
    limited.output().unwrap()
}

fn names(capabilities: &[String]) -> Vec<&str> {
    capabilities.iter().map(String::as_str).collect()
}

/// Serves a Service with these capabilities, and removes everything. The sysctls have their values already, as after the init container.
fn serve_and_remove(mode: &str, capabilities: &[&str]) {
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        let run = |capabilities: &[&str], action| {
            limited(
                &command(&manifests.0, &["--proxy-mode", mode, action]),
                capabilities,
            )
        };
        let succeed = |action| {
            let output = run(capabilities, action);
            assert!(output.status.success(), "{action}: {}", text(&output));
        };
        for _ in 0..2 {
            succeed("--once");
            assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
            succeed("--cleanup");
            ask(&network.client, "10.96.0.1").unwrap_err();
            // `KUBE-FIREWALL` is the kubelet's too.
            let rules = tools::run("iptables-save", &[]).unwrap();
            assert!(!rules.contains("KUBE-SERVICES"), "{rules}");
        }
        // Where nothing is left, a cleanup creates nothing.
        let again = command(&manifests.0, &["--proxy-mode", mode, "--cleanup", "--dry-run"])
            .output()
            .unwrap();
        assert_eq!(text(&again), "# nothing to do\n");
    });
}

#[test]
fn the_capabilities_of_the_manifests_are_sufficient_in_iptables_mode() {
    requires!(Feature::Iptables);
    serve_and_remove("iptables", &names(&of_the_daemonset()));
}

#[test]
fn the_capabilities_of_the_manifests_are_sufficient_in_ipvs_mode() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    serve_and_remove("ipvs", &names(&of_the_daemonset()));
}

/// A plan that is made without reading the kernel must not be taken for a complete one.
#[test]
fn a_plan_without_rights_names_what_could_not_be_read_and_fails() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        for mode in ["iptables", "userspace"] {
            for cleanup in [&["--dry-run"][..], &["--dry-run", "--cleanup"]] {
                let arguments = [&["--proxy-mode", mode][..], cleanup].concat();
                let output = limited(&command(&manifests.0, &arguments), &[]);
                let page = String::from_utf8_lossy(&output.stdout);
                assert_eq!(output.status.code(), Some(1), "{}", text(&output));
                let unknown = page
                    .lines()
                    .filter(|line| line.starts_with("# not known, so the plan may be wrong: "));
                let tables = unknown
                    .filter(|line| line.contains("iptables-save") || line.contains("tables cannot be read"));
                assert!(tables.count() > 0, "{}", text(&output));
                let output = limited(&command(&manifests.0, &arguments), &["net_admin", "net_raw"]);
                assert!(output.status.success(), "{}", text(&output));
            }
        }
    });
}

#[test]
fn each_capability_of_the_manifests_is_necessary() {
    requires!(Feature::Iptables);
    assert_eq!(of_the_daemonset(), ["net_admin", "net_raw"]);
    // Only userspace mode, which claims ports, uses the third.
    assert_eq!(of_the_unit(), ["net_admin", "net_raw", "net_bind_service"]);
    let network = Network::new(1);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        let once = command(&manifests.0, &["--proxy-mode", "iptables", "--once"]);
        let output = limited(&once, &["net_raw"]);
        assert!(!output.status.success(), "{}", text(&output));
        // The iptables tools open a raw socket for legacy tables.
        let mut legacy = programs::command("iptables-legacy-save");
        legacy.args(["-t", "filter"]);
        // They load the module, for which these capabilities are not enough.
        tools::run("iptables-legacy-save", &["-t", "filter"]).unwrap();
        assert!(!limited(&legacy, &["net_admin"]).status.success());
        let output = limited(&legacy, &["net_admin", "net_raw"]);
        assert!(output.status.success(), "{}", text(&output));
    });
}

/// Set in the child process of the next test.
const CHILD: &str = "KERNLINK_TEST_HAS_THE_NAME_OF_THE_LOCK";

#[test]
fn an_agent_starts_while_a_process_without_privileges_has_the_name_of_its_lock() {
    requires!(Feature::Iptables);
    if std::env::var_os(CHILD).is_some() {
        let user = Uid::from_raw(65_534);
        nix::unistd::setresuid(user, user, user).unwrap();
        let address = SocketAddr::from_abstract_name("kernlink-proxier").unwrap();
        let _socket = UnixListener::bind_addr(&address).unwrap();
        println!("bound");
        // Until the test ends it, or ends.
        return std::io::stdin().lines().for_each(drop);
    }
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        let name = "privileges::an_agent_starts_while_a_process_without_privileges_has_the_name_of_its_lock";
        let mut child = programs::this_program()
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.lines().any(|line| line.unwrap().contains("bound")));
        let iptables = ["--proxy-mode", "iptables"];
        let init = run(&manifests.0, &[&iptables[..], &["--init-only"]].concat());
        assert!(init.status.success(), "{}", text(&init));
        let agent = Agent::start(&manifests.0, &iptables);
        agent.wait_for(" synced ", 1);
        // Another agent does not start, with or without its servers.
        for action in ["--init-only", "--once", "--cleanup"] {
            let second = run(&manifests.0, &[&iptables[..], &[action]].concat());
            assert_eq!(second.status.code(), Some(3), "{}", text(&second));
            let holder = format!("programmed by process {}", agent.child.id());
            assert!(text(&second).contains(&holder), "{}", text(&second));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    });
}
