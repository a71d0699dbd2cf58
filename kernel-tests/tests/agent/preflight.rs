//! `kernlink-agent preflight`: what it finds on nodes in each state, and that it changes nothing.

use std::os::unix::process::CommandExt;
use std::process::{Child, Output};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{programs, requires, tools, wait};
use serde_json::Value;

use crate::iptables_mode::choose;
use crate::privileges::limited_command;
use crate::support::{Agent, Manifests, command, run, service, text};

/// A sysctl of the network namespace.
const TIMEOUT: &str = "net.netfilter.nf_conntrack_tcp_timeout_established";

/// Everything of a namespace that a mode on rules writes, without counters: the kernel sends packets by itself.
fn state() -> String {
    let rules = ["iptables-save", "ip6tables-save"].map(|tool| tools::run(tool, &[]).unwrap());
    let rules = rules.concat();
    let rules = rules.lines().filter(|line| !line.starts_with('#'));
    let rules: Vec<&str> = rules
        .map(|line| line.split(" [").next().unwrap_or(line))
        .collect();
    let tables = tools::run("nft", &["--stateless", "list", "ruleset"]).unwrap();
    // IPv6 addresses change by themselves, until they are no longer tentative.
    let links = tools::run("ip", &["-o", "-4", "address"]).unwrap();
    let timeout = tools::sysctl(TIMEOUT);
    format!("{}\n{tables}\n{links}\n{timeout}\n", rules.join("\n"))
}

/// Runs a preflight, which must change nothing.
#[track_caller]
fn examine(manifests: &Manifests, arguments: &[&str]) -> Output {
    let before = state();
    let arguments: Vec<&str> = [&["preflight"], arguments].concat();
    let output = run(&manifests.0, &arguments);
    assert_eq!(state(), before, "{}", text(&output));
    output
}

#[track_caller]
fn json(manifests: &Manifests, status: i32, arguments: &[&str]) -> Value {
    let output = examine(manifests, &[arguments, &["--output", "json"]].concat());
    assert_eq!(output.status.code(), Some(status), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
}

/// The result of a check, and its text.
#[track_caller]
fn check<'a>(document: &'a Value, name: &str) -> (&'a str, &'a str) {
    let checks = document["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == name);
    let check = check.unwrap_or_else(|| panic!("no check {name} in {document:#}"));
    (check["result"].as_str().unwrap(), check["text"].as_str().unwrap())
}

/// What was found of a mode.
#[track_caller]
fn found<'a>(document: &'a Value, mode: &str) -> &'a Value {
    let found = document["found"].as_array().unwrap();
    let found = found.iter().find(|found| found["mode"] == mode);
    found.unwrap_or_else(|| panic!("no mode {mode} in {document:#}"))
}

const NFTABLES: &[&str] = &["--proxy-mode", "nftables"];
const IPTABLES: &[&str] = &["--proxy-mode", "iptables"];

/// A process, killed at the end.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process with the name of kube-proxy, in the namespace of the calling thread.
fn kube_proxy() -> Process {
    let mut sleep = programs::command("sleep");
    sleep.arg0("/usr/local/bin/kube-proxy").arg("3600");
    Process(sleep.spawn().unwrap())
}

#[test]
fn a_node_that_another_mode_serves_is_ready_and_its_removal_is_named() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        choose("iptables-nft");
        // Nothing serves the node yet.
        let empty = json(&manifests, 0, NFTABLES);
        assert_eq!(empty["readiness"], "ready", "{empty:#}");
        assert_eq!(found(&empty, "iptables")["serves"], false);
        assert_eq!(empty["plan"]["services"], 1);
        assert!(empty["plan"]["steps"].as_u64().unwrap() > 0);

        let once = run(&manifests.0, &[IPTABLES, &["--once"]].concat());
        assert!(once.status.success(), "{}", text(&once));
        let other = json(&manifests, 0, NFTABLES);
        let of_iptables = found(&other, "iptables");
        assert_eq!(of_iptables["serves"], true, "{other:#}");
        assert!(of_iptables["removal"].as_u64().unwrap() > 0, "{other:#}");
        assert!(!of_iptables["firstCommands"].as_array().unwrap().is_empty());
        assert_eq!(other["interrupted"].as_array().unwrap().len(), 0);

        // The mode that serves the node has nothing to do, and nothing is removed.
        let same = json(&manifests, 0, IPTABLES);
        assert_eq!(found(&same, "iptables")["removal"], Value::Null);
        assert_eq!(same["plan"]["steps"], 0, "{same:#}");
        assert!(check(&same, "iptables").1.contains("(nf_tables)"), "{same:#}");

        let page = examine(&manifests, NFTABLES);
        let page = text(&page);
        assert!(page.starts_with("preflight: ready\n"), "{page}");
        assert!(
            page.contains("iptables mode: Services are served; removed"),
            "{page}"
        );
    });
}

#[test]
fn what_a_sync_would_write_to_sysctls_is_named_with_the_present_value() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        choose("iptables-nft");
        // The connection table has its sysctls as soon as the namespace has rules that need it.
        let now = tools::sysctl(TIMEOUT);
        let arguments = ["--output", "json", "--conntrack-tcp-timeout-established", "1h"];
        let arguments = [&["preflight"][..], NFTABLES, &arguments].concat();
        let output = run(&manifests.0, &arguments);
        assert!(output.status.success(), "{}", text(&output));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let expected = serde_json::json!({"name": TIMEOUT, "now": now, "then": "3600"});
        let sysctls = document["sysctls"].as_array().unwrap();
        assert!(sysctls.contains(&expected), "{sysctls:?}");
        assert_eq!(tools::sysctl(TIMEOUT), now);
    });
}

#[test]
fn rules_of_the_other_variant_of_iptables_make_a_node_not_ready() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        choose("iptables-nft");
        assert_eq!(json(&manifests, 0, IPTABLES)["readiness"], "ready");
        tools::run("iptables-legacy", &["-w", "-t", "nat", "-N", "KUBE-SERVICES"]).unwrap();
        let document = json(&manifests, 20, IPTABLES);
        assert_eq!(document["readiness"], "not ready");
        let (result, text) = check(&document, "iptables");
        assert_eq!(result, "failure");
        assert!(text.contains("make legacy the variant of the tools"), "{text}");
        // nftables mode starts no tool.
        assert_eq!(json(&manifests, 0, NFTABLES)["readiness"], "ready");
    });
}

#[test]
fn the_capability_for_low_ports_is_needed_where_one_is_used() {
    requires!(Feature::Iptables);
    const NODE_PORT: &str = "\
apiVersion: v1
kind: Service
metadata: {name: low}
spec: {type: NodePort, clusterIP: 10.96.0.2, ports: [{port: 80, nodePort: 82}]}
---
";
    const HEALTH_CHECK: &str = "\
apiVersion: v1
kind: Service
metadata: {name: low}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 83, clusterIP: 10.96.0.2, ports: [{port: 80, nodePort: 30082}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.2}]}}
---
";
    const NAME: &str = "CAP_NET_BIND_SERVICE";
    let userspace = &["--proxy-mode", "userspace"][..];
    let server = &["--healthz-bind-address", "127.0.0.1:81"][..];
    let manifests = Manifests::new();
    // Its node has an address, which accepts node ports.
    let network = Network::new(1);
    network.node.run(|| {
        choose("iptables-nft");
        for (mode, services, arguments, port) in [
            (NFTABLES, "", &[][..], None),
            (NFTABLES, "", server, Some(81)),
            // Rules lead to it.
            (NFTABLES, NODE_PORT, &[], None),
            (NFTABLES, HEALTH_CHECK, &[], Some(83)),
            (IPTABLES, HEALTH_CHECK, &[], Some(83)),
            (userspace, "", &[], None),
            (userspace, NODE_PORT, &[], Some(82)),
        ] {
            let all = service("a", "10.96.0.1", &[0]) + services;
            manifests.replace("a.yaml", &all);
            let arguments = [&["preflight"], mode, arguments, &["--output", "json"]].concat();
            let examine = |capabilities: &[&str]| -> (Option<i32>, Value) {
                let output = limited_command(&command(&manifests.0, &arguments), capabilities).output();
                let output = output.unwrap();
                let document = serde_json::from_slice(&output.stdout);
                let document = document.unwrap_or_else(|error| panic!("{error}: {}", text(&output)));
                (output.status.code(), document)
            };
            let (status, without) = examine(&["net_admin", "net_raw"]);
            let (result, text) = check(&without, "privileges");
            if let Some(port) = port {
                let lacking = format!("lacks {NAME}, which port {port} needs;");
                assert!(text.contains(&lacking), "{arguments:?}: {text}");
                assert_eq!((status, result), (Some(20), "failure"), "{without:#}");
                let (status, with) = examine(&["net_admin", "net_raw", "net_bind_service"]);
                let (result, text) = check(&with, "privileges");
                assert!(text.contains(NAME), "{text}");
                assert_eq!((status, result), (Some(0), "ok"), "{with:#}");
            } else {
                assert_eq!((status, result), (Some(0), "ok"), "{without:#}");
                assert!(!text.contains(NAME), "{text}");
            }
        }
    });
}

#[test]
fn a_kube_proxy_and_an_agent_of_this_namespace_are_named_and_no_other() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    let other = NetNs::new();
    let _elsewhere = other.run(kube_proxy);
    NetNs::new().run(|| {
        let alone = json(&manifests, 0, NFTABLES);
        let (_, text) = check(&alone, "kube-proxy");
        assert!(text.starts_with("no process of it"), "{text}");
        assert_eq!(check(&alone, "other agent").0, "ok");

        let process = kube_proxy();
        let pid = process.0.id();
        let text = wait::until(|| {
            let document = json(&manifests, 0, NFTABLES);
            let (result, text) = check(&document, "kube-proxy");
            let text = text.to_owned();
            // Until it executes the program it is a copy of this one.
            if result == "note" && text.starts_with("process ") {
                Ok(text)
            } else {
                Err(text)
            }
        });
        assert!(
            text.starts_with(&format!("process {pid} (kube-proxy) runs")),
            "{text}"
        );

        let agent = Agent::start(&manifests.0, NFTABLES);
        agent.wait_for(" synced done=", 1);
        let document = json(&manifests, 0, NFTABLES);
        let (result, text) = check(&document, "other agent");
        assert_eq!(result, "note");
        assert!(text.contains(&format!("process {}", agent.child.id())), "{text}");
        assert_eq!(document["plan"]["steps"], 0, "{document:#}");
    });
}

#[test]
fn without_the_services_a_node_is_not_ready_and_there_is_no_plan() {
    requires!(Feature::Iptables);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", "kind: [");
    NetNs::new().run(|| {
        let document = json(&manifests, 20, NFTABLES);
        assert_eq!(check(&document, "sources").0, "failure");
        assert_eq!(document["plan"], Value::Null);
        // What does not depend on Services is examined all the same.
        assert_eq!(check(&document, "kernel").0, "ok", "{document:#}");
        let invalid = run(&manifests.0, &["preflight", "--proxy-mode", "none"]);
        assert_eq!(invalid.status.code(), Some(2), "{}", text(&invalid));
    });
}

#[test]
fn a_node_of_ipvs_mode_is_ready_for_another_mode() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        choose("iptables-nft");
        let once = run(&manifests.0, &["--once"]);
        assert!(once.status.success(), "{}", text(&once));
        let servers = tools::ipvsadm_save();
        let document = json(&manifests, 0, NFTABLES);
        assert_eq!(found(&document, "ipvs")["serves"], true, "{document:#}");
        assert!(found(&document, "ipvs")["removal"].as_u64().unwrap() > 0);
        assert_eq!(document["interrupted"].as_array().unwrap().len(), 1);
        assert_eq!(tools::ipvsadm_save(), servers);
        let same = json(&manifests, 0, &["--proxy-mode", "ipvs"]);
        assert_eq!(same["plan"]["steps"], 0, "{same:#}");
        assert_eq!(same["interrupted"].as_array().unwrap().len(), 0);
    });
}
