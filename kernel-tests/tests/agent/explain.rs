//! Questions to the running agent: its status, its frontends, and why one is served or not. Each trouble has a healthy counterpart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires, tools, wait};
use serde_json::Value;

use crate::hanging_tool::{release, replace, wait_until_it_hangs};
use crate::iptables_mode::choose;
use crate::privileges::limited_command;
use crate::support::{Agent, Manifests, ask, command, service, text, unless_in_sync, wait_for_socket};

/// Asks the agent of the calling thread's namespace.
fn run(arguments: &[&str]) -> Output {
    programs::agent().args(arguments).output().unwrap()
}

/// As [`run`], again as long as a sync in progress takes longer than an answer may.
fn run_between_syncs(arguments: &[&str]) -> Output {
    wait::until(|| unless_in_sync(run(arguments)))
}

fn json(arguments: &[&str]) -> Value {
    let output = run_between_syncs(&[arguments, &["--output", "json"]].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
}

/// The exit status if it is not known whether a frontend is served.
const UNKNOWN: i32 = 11;

/// Expects an exit status, and these texts in the first five lines.
#[track_caller]
fn expect(question: &str, status: i32, expected: &[&str]) {
    let arguments: Vec<&str> = std::iter::once("explain").chain(question.split(' ')).collect();
    let output = if status == UNKNOWN {
        run(&arguments)
    } else {
        run_between_syncs(&arguments)
    };
    let page = text(&output);
    assert_eq!(output.status.code(), Some(status), "{question}: {page}");
    let first = page.lines().take(5).collect::<Vec<_>>().join("\n");
    for expected in expected {
        assert!(
            first.contains(expected),
            "{question}: {expected:?} is not in the first lines of {page}"
        );
    }
    let has_cause = page.lines().any(|line| line.starts_with("cause: "));
    assert_eq!(has_cause, status != 0, "{question}: {page}");
}

/// A Service with these further fields of its specification, and an EndpointSlice with this port name and these endpoints.
fn object(name: &str, number: u8, spec: &str, port: &str, endpoints: &[&str]) -> String {
    let endpoints = endpoints.join(", ");
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, creationTimestamp: '2026-01-01T00:00:{number:02}Z'}}
spec: {{clusterIP: 10.96.0.{number}, ports: [{{port: 80}}]{spec}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 8080, name: \"{port}\"}}]
endpoints: [{endpoints}]
---
"
    )
}

const LOCAL: &str = "{addresses: [10.244.0.2], nodeName: node-a}";
const REMOTE: &str = "{addresses: [10.244.9.2], nodeName: node-b}";

/// The troubles that objects are the cause of, each with a healthy counterpart.
fn troubles() -> String {
    let endpoint = |conditions: &str| {
        format!("{{addresses: [10.244.0.2], nodeName: node-a, conditions: {{{conditions}}}}}")
    };
    let balanced = |address: &str| {
        format!(", type: LoadBalancer, externalTrafficPolicy: Local, externalIPs: [{address}]")
    };
    let ranges = |text: String| {
        let spec = ", type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24]";
        text.replace(
            spec,
            &format!("{spec}}}\nstatus: {{loadBalancer: {{ingress: [{{ip: 203.0.113.3}}]}}"),
        )
    };
    [
        object("healthy", 1, "", "", &[LOCAL, REMOTE]),
        object("no-endpoints", 2, "", "", &[]),
        object("not-ready", 3, "", "", &[&endpoint("ready: false")]),
        object(
            "ended",
            4,
            "",
            "",
            &[&endpoint("ready: false, serving: false, terminating: true")],
        ),
        object(
            "ending",
            5,
            "",
            "",
            &[&endpoint("ready: false, serving: true, terminating: true")],
        ),
        object("other-port", 6, "", "http", &[LOCAL]),
        object("local", 7, &balanced("203.0.113.1"), "", &[LOCAL]),
        object("remote", 8, &balanced("203.0.113.2"), "", &[REMOTE]),
        ranges(object(
            "ranges",
            9,
            ", type: LoadBalancer, loadBalancerSourceRanges: [198.51.100.0/24]",
            "",
            &[LOCAL],
        )),
        object("thief", 10, ", externalIPs: [10.96.0.1]", "", &[LOCAL]),
        object("node-port", 11, "", "", &[LOCAL]).replace(
            "ports: [{port: 80}]",
            "type: NodePort, ports: [{port: 80, nodePort: 30080}]",
        ),
        object("headless", 12, "", "", &[LOCAL]).replace("10.96.0.12", "None, externalIPs: [203.0.113.4]"),
    ]
    .concat()
}

fn explain_troubles(mode: &str) {
    let network = Network::new(1);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &troubles());
    let arguments = [
        "--proxy-mode",
        mode,
        "--ip-families",
        "ipv4",
        "--iptables-sync-period",
        "10m",
    ];
    network.node.run(|| {
        choose("iptables-nft");
        let node = Network::node_ipv4();
        let mut agent = command(&manifests.0, &arguments);
        agent.args(["--nodeport-addresses", &format!("{node}/32")]);
        let agent = Agent::spawn(agent);
        agent.wait_for(" synced done=", 1);
        wait_for_socket();
        let healthy = "10.96.0.1:80: served".replace(":80", ":80/TCP");
        expect(
            "10.96.0.1:80",
            0,
            &[&healthy, "owner: default/healthy (cluster IP)"],
        );
        for (question, cause) in [
            ("10.96.0.2:80", "cause: the Service has no endpoints"),
            (
                "10.96.0.3:80",
                "cause: none of 1 endpoints accepts traffic: 1 not ready",
            ),
            (
                "10.96.0.4:80/tcp",
                "cause: none of 1 endpoints accepts traffic: 1 terminating, not serving",
            ),
            (
                "10.96.0.6:80",
                "EndpointSlice default/other-port-1 are not used: it has no port with this name",
            ),
            (
                "203.0.113.2:80",
                "cause: externalTrafficPolicy is Local, and no endpoint on this node accepts",
            ),
            (
                "203.0.113.3:80 --from 192.0.2.9",
                "cause: 192.0.2.9 is not in loadBalancerSourceRanges (198.51.100.0/24)",
            ),
            (
                "192.0.2.77:30080",
                "is the node port of default/node-port, but 192.0.2.77 is not an address",
            ),
            ("10.96.0.99:80", "cause: no Service has the address 10.96.0.99"),
            (
                "10.96.0.1:81",
                "10.96.0.1, which is an address of default/healthy with 80/TCP",
            ),
            (
                "10.96.0.1:80/UDP",
                "cause: no Service has port 80/UDP of 10.96.0.1",
            ),
            (
                "203.0.113.4:80",
                "cause: the Service default/headless is headless",
            ),
            ("[fd00::1]:80", "cause: IPv6 is not served"),
        ] {
            expect(question, 10, &[cause]);
        }
        // The healthy counterparts.
        expect("10.96.0.5:80", 0, &["note: no endpoint is ready"]);
        expect(
            "203.0.113.1:80",
            0,
            &["externalTrafficPolicy is Local: endpoints of this node"],
        );
        expect(
            "203.0.113.3:80 --from 198.51.100.7",
            0,
            &["is admitted by loadBalancerSourceRanges"],
        );
        expect(
            "203.0.113.3:80",
            0,
            &["note: only sources in 198.51.100.0/24 are admitted"],
        );
        expect(
            &format!("{node}:30080"),
            0,
            &["owner: default/node-port (node port)"],
        );
        // Who lost, and who won.
        expect(
            "10.96.0.1:80",
            0,
            &["note: lost the conflict: external IP of default/thief"],
        );
        let remote = json(&["explain", "203.0.113.2:80"]);
        assert_eq!(remote["endpoints"][0]["reason"], "OtherNode", "{remote}");
        assert_eq!(remote["version"], 1);

        let objects = json(&["explain", "10.96.0.1:80"])["kernelObjects"].clone();
        let objects = objects.as_array().unwrap();
        assert!(!objects.is_empty());
        assert!(
            objects.iter().all(|object| object["state"] == "same"),
            "{objects:#?}"
        );

        let list = json(&["services"]);
        let rows = list["frontends"].as_array().unwrap();
        let row = |name: &str, frontend: &str| {
            let is = |row: &&Value| row["service"] == name && row["frontend"] == frontend;
            rows.iter()
                .find(is)
                .unwrap_or_else(|| panic!("{name} {frontend}: {list}"))
        };
        let healthy = row("default/healthy", "10.96.0.1:80/TCP");
        assert_eq!(
            (&healthy["endpointsUsed"], &healthy["inKernel"]),
            (&2.into(), &true.into())
        );
        let thief = row("default/thief", "10.96.0.1:80/TCP");
        assert_eq!(
            (&thief["owner"], &thief["inKernel"]),
            (&"default/healthy".into(), &false.into())
        );
        let one = run_between_syncs(&["services", "default/not-ready"]);
        assert_eq!(
            (one.status.code(), text(&one).lines().count()),
            (Some(0), 2),
            "{}",
            text(&one)
        );
        let headless = run_between_syncs(&["services", "default/headless"]);
        assert_eq!(headless.status.code(), Some(1));
        assert_eq!(
            text(&headless),
            "not served: the Service default/headless is headless\n"
        );
        drop(agent);
        let gone = run(&["status"]);
        assert_eq!(gone.status.code(), Some(1));
        assert!(
            text(&gone).contains("no agent listens on /run/kernlink/agent-"),
            "{}",
            text(&gone)
        );
    });
}

#[test]
fn explain_names_the_cause_of_each_trouble_of_objects_in_nftables_mode() {
    requires!(Feature::Iptables);
    explain_troubles("nftables");
}

#[test]
fn explain_names_the_cause_of_each_trouble_of_objects_in_iptables_mode() {
    requires!(Feature::Iptables);
    explain_troubles("iptables");
}

/// Runs a test on a node of which an agent in iptables mode serves one Service. `prepare` is called before the agent starts.
fn with_one_service(prepare: impl FnOnce() + Send, test: impl FnOnce(&Agent, &Manifests) + Send) {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        choose("iptables-nft");
        prepare();
        let agent = Agent::start(
            &manifests.0,
            &["--proxy-mode", "iptables", "--iptables-sync-period", "10m"],
        );
        agent.wait_for(" synced done=", 1);
        wait_for_socket();
        expect("10.96.0.1:80", 0, &["10.96.0.1:80/TCP: served"]);
        test(&agent, &manifests);
    });
}

/// The agent repairs it, until the other program has changed it back three times.
#[test]
fn explain_names_the_rules_that_another_program_flushed() {
    with_one_service(
        || {},
        |_, _| {
            wait::until(|| {
                tools::run("iptables", &["-t", "nat", "-F", "KUBE-SERVICES"]).unwrap();
                match text(&run(&["explain", "10.96.0.1:80"])) {
                    page if page.contains("\ncause: missing in the kernel: -t nat -A KUBE-SERVICES ") => {
                        Ok(())
                    }
                    page => Err(page),
                }
            });
        },
    );
}

#[test]
fn the_status_is_answered_with_the_rights_of_the_daemonset_and_to_root_only() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    network.node.run(|| {
        choose("iptables-nft");
        let agent = command(&manifests.0, &["--proxy-mode", "nftables"]);
        let agent = Agent::spawn(limited_command(&agent, &["net_admin", "net_raw"]));
        agent.wait_for(" synced done=", 1);
        wait_for_socket();
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
        let status = json(&["status"]);
        assert_eq!(
            (&status["version"], &status["mode"]),
            (&1.into(), &"nftables".into()),
            "{status}"
        );
        assert_eq!(
            (&status["state"], &status["services"]),
            (&"ok".into(), &1.into()),
            "{status}"
        );
        assert_eq!(status["node"], "node-a");
        assert_eq!(status["waitingFor"], Value::Null);
        assert!(status["syncs"].as_u64().unwrap() > 0, "{status}");
        assert!(status["lastSync"]["ended"].is_string(), "{status}");
        let page = text(&run(&["status"]));
        let first = page.lines().next().unwrap();
        assert_eq!(
            first.split_whitespace().collect::<Vec<_>>(),
            ["State", "ok"],
            "{page}"
        );
        let inode = status["networkNamespace"].as_u64().unwrap();
        let socket = format!("/run/kernlink/agent-{inode}.sock");
        let mode = fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let nobody = programs::command("setpriv")
            .args(["--reuid", "65534", "--clear-groups"])
            .arg(programs::agent().get_program())
            .args(["status", "--socket", &socket])
            .output();
        let nobody = nobody.unwrap();
        assert_eq!(nobody.status.code(), Some(1));
        assert!(
            text(&nobody).contains("only root and the members of --socket-group may"),
            "{}",
            text(&nobody)
        );
        // An agent of another namespace has another socket.
        NetNs::new().run(|| {
            let other = run(&["status"]);
            assert_eq!(other.status.code(), Some(1), "{}", text(&other));
        });
        let (_, log) = agent.stop();
        assert!(!fs::exists(&socket).unwrap(), "{log}");
    });
}

#[test]
fn a_status_is_answered_while_a_sync_hangs_and_explain_says_so() {
    let hangs = "/run/hangs";
    let hang = |_: &Agent, manifests: &Manifests| {
        fs::write(hangs, "").unwrap();
        manifests.replace("b.yaml", &service("b", "10.96.0.2", &[0]));
        wait_until_it_hangs();
        let status = json(&["status"]);
        assert!(status["pendingSeconds"].as_f64().unwrap() > 0.0, "{status}");
        for _ in 0..3 {
            expect(
                "10.96.0.2:80",
                UNKNOWN,
                &["unknown", "cause: a sync is in progress"],
            );
        }
        fs::remove_file(hangs).unwrap();
        release();
        wait::until(|| match run(&["explain", "10.96.0.2:80"]) {
            served if served.status.code() == Some(0) => Ok(()),
            other => Err(text(&other)),
        });
    };
    with_one_service(|| replace("iptables-restore", hangs), hang);
}

#[test]
fn invalid_questions_are_named() {
    let network = NetNs::new();
    network.run(|| {
        for (arguments, expected) in [
            (&["stat"][..], "unrecognized subcommand 'stat'"),
            (
                &["explain", "10.96.0.1"],
                "valid: ADDRESS:PORT, with [ADDRESS] in IPv6",
            ),
            (&["services", "web"], "valid: NAMESPACE/NAME"),
        ] {
            let output = run(arguments);
            assert_eq!(output.status.code(), Some(2), "{}", text(&output));
            assert!(text(&output).contains(expected), "{}", text(&output));
        }
        let help: &mut Command = &mut programs::agent();
        let help = help.args(["explain", "--help"]).output().unwrap();
        assert!(
            help.status.success() && text(&help).contains("10 not served"),
            "{}",
            text(&help)
        );
    });
}
