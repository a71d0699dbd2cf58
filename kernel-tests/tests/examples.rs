//! The programs of `examples/`, as `cargo build --examples` made them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "../e2e/nftables_tables.rs"]
mod nftables_tables;

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::listings::{State, difference};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{mounts, programs, requires, tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Runs an example in the network namespace of the calling thread. Panics if it fails.
fn run(example: &str, arguments: &[&str]) -> String {
    let output = programs::example(example).args(arguments).output();
    text(example, output)
}

fn text(example: &str, output: io::Result<Output>) -> String {
    let started = output.map_err(|error| format!("start {example}: {error}"));
    let text = started.and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            Ok(text)
        } else {
            Err(format!("{example}: {}\n{text}{errors}", output.status))
        }
    });
    assert_eq!(text.as_ref().err(), None);
    text.unwrap_or_default()
}

fn manifests() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/manifests/cluster.yaml").to_owned()
}

#[test]
fn list_virtual_servers_prints_what_ipvsadm_prints() {
    requires!(Feature::Ipvs);
    NetNs::new().run(|| {
        let commands = "-A -t 10.96.0.1:443 -s rr\n-a -t 10.96.0.1:443 -r 10.244.0.2:6443 -m -w 1\n";
        tools::run_with_input("ipvsadm", &["-R"], commands).unwrap();
        let listed = run("list_virtual_servers", &[]);
        let without_counters: String = listed
            .lines()
            .map(|line| format!("{}\n", line.split(" #").next().unwrap()))
            .collect();
        assert_eq!(without_counters, commands);
        assert!(listed.ends_with(" # 0 active, 0 inactive\n"), "{listed}");
    });
}

#[test]
fn one_service_programs_the_kernel() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let printed = run("one_service", &[]);
        assert!(printed.contains(" 0 failed, 0 skipped"), "{printed}");
        let rules = tools::iptables_save("nat");
        let frontend =
            "-A KUBE-SERVICES -d 10.96.12.80/32 -p tcp -m comment --comment \"shop/web:http cluster IP\"";
        assert!(rules.contains(frontend), "{rules}");
        for endpoint in ["10.244.1.20:8080", "10.244.2.20:8080"] {
            assert!(rules.contains(&format!("--to-destination {endpoint}")), "{rules}");
        }
        // Everything is there: a second process changes nothing.
        let printed = run("one_service", &[]);
        assert!(
            printed.lines().any(|line| line == "0 done, 0 failed, 0 skipped"),
            "{printed}"
        );
    });
}

#[test]
fn userspace_serves_and_serves_again_at_the_same_ports() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let rules = || -> Vec<String> {
            let saved = tools::iptables_save("nat");
            let portals = saved.lines().filter(|line| line.starts_with("-A KUBE-PORTALS"));
            portals.map(str::to_owned).collect()
        };
        // Its standard input is empty, so it ends after the sync.
        let printed = run("userspace", &[&manifests()]);
        assert!(printed.contains(" 0 failed, 0 skipped"), "{printed}");
        let first = rules();
        assert!(!first.is_empty());
        run("userspace", &[&manifests()]);
        assert_eq!(rules(), first);
    });
}

/// The blocks of output in the document are all that the program prints, in order.
#[test]
fn the_tour_has_the_output_of_its_program() {
    let printed = run("tour", &[]);
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tour.md");
    let document = std::fs::read_to_string(document).unwrap();
    let blocks = document.split("```text\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|text| text.split("```").next()).collect();
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    assert_eq!(lines(&blocks.concat()), lines(&printed), "{printed}");
}

#[test]
fn plan_only_prints_commands_and_changes_nothing() {
    NetNs::new().run(|| {
        let plan = run("plan_only", &[&manifests()]);
        let folder = std::path::Path::new(&manifests()).parent().unwrap().to_owned();
        assert_eq!(run("plan_only", &[folder.to_str().unwrap()]), plan);
        for command in [
            "ip link replace kube-ipvs0 type dummy",
            "ipvsadm -A -t 10.96.0.1:443 -s rr",
            "ipset create KUBE-CLUSTER-IP hash:ip,port",
        ] {
            assert!(plan.contains(command), "{command} is missing:\n{plan}");
        }
        assert!(!tools::ip_addresses().contains("kube-ipvs0"));
    });
}

#[test]
fn examples_fail_and_name_the_file_if_a_manifest_cannot_be_read() {
    let folder = std::env::temp_dir().join(format!("kernlink-examples-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let broken = folder.join("broken.yaml");
    std::fs::write(&broken, "kind: [").unwrap();
    let missing = folder.join("missing.yaml");
    let node = ["--node-name", "node-a", "--node-ip", "192.0.2.1"];
    for (example, arguments) in [
        ("plan_only", &[][..]),
        ("desired_state", &node),
        ("demo", &[]),
        ("userspace", &[]),
    ] {
        for file in [&broken, &missing] {
            let mut command = programs::example(example);
            let output = NetNs::new().run(|| command.args(arguments).arg(file).output().unwrap());
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{example}: {text}");
            assert!(text.contains(file.to_str().unwrap()), "{example}: {text}");
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn swap_set_replaces_the_entries() {
    requires!(Feature::IpSet);
    NetNs::new().run(|| {
        run("swap_set", &["blocked", "192.0.2.1", "192.0.2.2"]);
        run("swap_set", &["blocked", "192.0.2.2", "192.0.2.3"]);
        let saved = tools::ipset_save();
        let mut entries: Vec<_> = saved.lines().filter(|line| line.starts_with("add")).collect();
        entries.sort_unstable();
        assert_eq!(entries, ["add blocked 192.0.2.2", "add blocked 192.0.2.3"]);
        assert_eq!(saved.matches("create").count(), 1, "{saved}");
    });
}

#[test]
fn apply_rules_changes_its_own_chains_only() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        tools::must(
            "iptables",
            &["-w", "-A", "INPUT", "-s", "203.0.113.7", "-j", "ACCEPT"],
        );
        run("apply_rules", &["192.0.2.0/24", "198.51.100.0/24"]);
        run("apply_rules", &["198.51.100.0/24"]);
        let rules = tools::must("iptables", &["-S"]);
        let rules: Vec<_> = rules.lines().filter(|line| line.starts_with("-A")).collect();
        let expected = [
            "-A INPUT -j EXAMPLE-IN",
            "-A INPUT -s 203.0.113.7/32 -j ACCEPT",
            "-A EXAMPLE-IN -s 198.51.100.0/24 -j DROP",
        ];
        assert_eq!(rules, expected);
    });
}

#[test]
fn watch_conntrack_prints_events() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut child = programs::example("watch_conntrack")
            .arg("1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start watch_conntrack: {error}"));
        // The program may not have subscribed yet, so new flows are added until it ends.
        let mut port = 1_000;
        wait::until(|| {
            port += 1;
            let port = port.to_string();
            let flow = [
                "-p",
                "udp",
                "-s",
                "192.0.2.1",
                "-d",
                "192.0.2.2",
                "--sport",
                &port,
                "--dport",
                "53",
                "-t",
                "60",
            ];
            tools::run("conntrack", &[&["-I"], &flow[..]].concat())?;
            match child.try_wait() {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err("no event was printed".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        });
        let printed = text("watch_conntrack", child.wait_with_output());
        assert!(
            printed.starts_with("[NEW] ") && printed.contains("dport=53"),
            "{printed}"
        );
    });
}

#[test]
fn ban_list_bans_by_command_and_by_a_trap() {
    NetNs::new().run(|| {
        tools::must("ip", &["address", "add", "192.0.2.7/32", "dev", "lo"]);
        let printed = run("ban_list", &["2323", "192.0.2.1", "192.0.2.2"]);
        let banned: Vec<&str> = printed
            .lines()
            .filter_map(|line| line.split(' ').next())
            .collect();
        assert_eq!(
            BTreeSet::from_iter(banned),
            BTreeSet::from(["192.0.2.1", "192.0.2.2"]),
            "{printed}"
        );
        // A connection to the trap: from then on nothing arrives from this address.
        let trap = "192.0.2.7:2323".parse().unwrap();
        let timeout = Duration::from_millis(200);
        TcpStream::connect_timeout(&trap, timeout).unwrap_err();
        // A second process keeps the bans, and lists that of the trap.
        let printed = run("ban_list", &["2323"]);
        assert!(
            printed.lines().any(|line| line.starts_with("192.0.2.7 for ")),
            "{printed}"
        );
        assert_eq!(printed.lines().count(), 3, "{printed}");
        let listing = tools::must("nft", &["list", "table", "ip", "guard"]);
        assert_eq!(listing.matches("ip saddr @banned").count(), 1, "{listing}");
        assert!(listing.contains("comment \"by command\""), "{listing}");
    });
}

#[test]
fn forward_ports_forwards_to_the_present_targets() {
    NetNs::new().run(|| {
        let server = |port| {
            let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
            std::thread::spawn(move || {
                for mut stream in listener.incoming().flatten() {
                    stream.write_all(port.to_string().as_bytes()).unwrap();
                }
            });
        };
        server(7001);
        server(7002);
        let answer = || {
            let mut answer = String::new();
            let mut stream = TcpStream::connect("127.0.0.1:8080").unwrap();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        for target in ["7001", "7002", "7001"] {
            let printed = run(
                "forward_ports",
                &[&format!("8080=127.0.0.1:{target}"), "8443=192.0.2.1:443"],
            );
            assert!(printed.contains("add rule ip forward-ports output"), "{printed}");
            assert_eq!(answer(), target);
        }
        // What it prints does the same.
        let printed = run("forward_ports", &["8080=127.0.0.1:7002"]);
        let listed = tools::must("nft", &["list", "ruleset"]);
        tools::run_with_input("nft", &["-f", "-"], &printed).unwrap();
        assert_eq!(tools::must("nft", &["list", "ruleset"]), listed);
        assert_eq!(answer(), "7002");
    });
}

#[test]
fn set_counters_prints_the_largest_first() {
    NetNs::new().run(|| {
        let ruleset = "table ip guard { set banned { type ipv4_addr . inet_service; counter;
            elements = { 192.0.2.1 . 80 counter packets 3 bytes 120, 192.0.2.2 . 443 counter packets 9 bytes 4000 }; }\n}";
        tools::run_with_input("nft", &["-f", "-"], ruleset).unwrap();
        let printed = run("set_counters", &["ip", "guard", "banned"]);
        let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
        let expected = [
            vec!["packets", "bytes", "element"],
            vec!["9", "4000", "192.0.2.2", ".", "443"],
            vec!["3", "120", "192.0.2.1", ".", "80"],
        ];
        assert_eq!(rows, expected, "{printed}");
    });
}

#[test]
fn trace_packet_prints_the_rules_that_a_packet_meets() {
    NetNs::new().run(|| {
        let ruleset = "table ip filter {
            chain out { type filter hook output priority 0; udp dport 53 counter jump names; udp dport 54 drop; }
            chain names { ip daddr 127.0.0.1 accept; }\n}";
        tools::run_with_input("nft", &["-f", "-"], ruleset).unwrap();
        let printed = run("trace_packet", &["127.0.0.1:53"]);
        let met = |chain: &str, statements: &str| {
            let mut lines = printed.lines();
            lines.any(|line| line.contains(&format!(" ip filter {chain} rule")) && line.ends_with(statements))
        };
        assert!(met("out", "jump names"), "{printed}");
        assert!(met("names", "ip daddr 127.0.0.1 accept"), "{printed}");
        assert!(!printed.contains("udp dport 54"), "{printed}");
        // Its own table is gone.
        assert!(!tools::must("nft", &["list", "ruleset"]).contains("trace-packet"));
    });
}

#[test]
fn desired_state_prints_listings() {
    let arguments = ["--node-name", "node-a", "--node-ip", "192.0.2.1", &manifests()];
    let printed = run("desired_state", &arguments);
    assert!(printed.contains("-A -t 10.96.0.1:443 -s rr"), "{printed}");
    let printed = run(
        "desired_state",
        &[&["--mode", "iptables"], &arguments[..]].concat(),
    );
    let rule = "-A KUBE-SERVICES -m comment --comment \"default/kubernetes:https cluster IP\" -m tcp -p tcp -d 10.96.0.1 \
                --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y\n";
    assert!(printed.contains(rule), "{printed}");
}

/// A node, and Services with what those of the other manifests lack. There is one with session affinity: the numbers by which several ones keep their
/// clients apart depend on the order of changes.
const FURTHER_OBJECTS: &str = "apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: '2001:db8::1'}]}
---
apiVersion: v1
kind: Service
metadata: {name: far}
spec: {type: LoadBalancer, clusterIP: 10.96.3.1, loadBalancerSourceRanges: [198.51.100.0/24], externalIPs: [203.0.113.1],
  ports: [{port: 80, nodePort: 30080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.2}]}}
---
apiVersion: v1
kind: Service
metadata: {name: near}
spec: {type: NodePort, clusterIP: 10.96.3.2, externalTrafficPolicy: Local, ports: [{port: 80, nodePort: 30081}]}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {clusterIP: 10.96.3.3, ports: [{port: 80}]}
";

/// The slice of one of these Services: an endpoint on the node, and one on another one.
fn slice(service: &str) -> String {
    format!(
        "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-1, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{port: 8080, name: ''}}]
endpoints: [{{addresses: [10.244.1.9], nodeName: node-a}}, {{addresses: [10.244.2.9], nodeName: node-b}}]
"
    )
}

/// The node of these objects.
const NODE_A: [&str; 4] = [
    "--node-name",
    "node-a",
    "--cluster-cidr",
    "10.244.0.0/16,fd00:10:244::/48",
];

/// The tables of nftables mode that `desired_state` prints for these files. It uses the folder.
fn printed_tables(folder: &Path, files: &[PathBuf]) -> State {
    let output = programs::example("desired_state")
        .args(["--mode", "nftables", "--node-addresses"])
        .args(["lo=127.0.0.1,lo=::1,lo=192.0.2.1,lo=2001:db8::1", "--output-dir"])
        .arg(folder)
        .args(NODE_A)
        .args(files)
        .output();
    text("desired_state", output);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    nftables_tables::commands(&(read("nftables-ipv4.txt") + &read("nftables-ipv6.txt")))
}

/// The tables of nftables mode after a sync of the agent for the objects in this folder.
fn written_tables(folder: &Path) -> State {
    NetNs::new().run(|| {
        for address in ["192.0.2.1/32", "2001:db8::1/128"] {
            tools::ip(&["address", "add", address, "dev", "lo"]);
        }
        let output = programs::agent()
            .args(["--proxy-mode", "nftables", "--once", "--watch"])
            .arg(folder)
            .args(NODE_A)
            // All namespaces share the table of connections.
            .args(["--conntrack-max-per-core", "0"])
            .args(["--conntrack-tcp-timeout-established", "0s"])
            .args(["--conntrack-tcp-timeout-close-wait", "0s"])
            .output();
        text("kernlink-agent", output);
        nftables_tables::tables()
    })
}

#[test]
fn desired_state_prints_what_the_agent_writes_in_nftables_mode() {
    requires!(Feature::Conntrack);
    let folder = std::env::temp_dir().join(format!("kernlink-desired-state-{}", std::process::id()));
    let objects = folder.join("objects");
    std::fs::create_dir_all(&objects).unwrap();
    let files = ["cluster.yaml", "further.yaml"].map(|name| objects.join(name));
    std::fs::copy(manifests(), &files[0]).unwrap();
    std::fs::write(
        &files[1],
        FURTHER_OBJECTS.to_owned() + &slice("far") + &slice("near"),
    )
    .unwrap();
    let printed = printed_tables(&folder, &files);
    assert_eq!(difference(&written_tables(&objects), &printed), "");
    // What Services differ in is in it.
    for (set, element) in [
        ("ip kernlink frontends", "192.0.2.1 . tcp . 30080 "),
        ("ip6 kernlink frontends", "fd00:10:96::80 . tcp . 80 "),
        ("ip kernlink affinity-pools", "10.96.12.90 . tcp . 6379 "),
        ("ip kernlink allowed-sources", "203.0.113.2 . tcp . 80 "),
        ("ip kernlink local-frontends", "192.0.2.1 . tcp . 30081"),
        ("ip kernlink no-endpoints", "10.96.3.3 . tcp . 80 "),
    ] {
        let elements = &printed[set];
        assert!(
            elements.iter().any(|line| line.starts_with(element)),
            "{set}: {elements:?}"
        );
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_demo_sends_requests_through_the_kernel() {
    let printed = run("demo", &[]);
    assert!(printed.contains("Sync: 0 done, 0 failed, 0 skipped"), "{printed}");
    if printed.contains("Using an in-memory kernel") {
        kernlink_kernel_tests::requires_ipvs_mode!();
        panic!("the demo does not use this kernel:\n{printed}");
    }
    assert_eq!(printed.matches("  0 requests failed.").count(), 2, "{printed}");
}

/// The endpoints that answered requests to a frontend, in the output of the demo.
fn servers<'a>(printed: &'a str, frontend: &str) -> Vec<&'a str> {
    let lines = printed
        .lines()
        .filter_map(|line| line.trim().strip_prefix(frontend));
    let answers = lines.flat_map(|line| line.trim_start_matches(": ").split(", "));
    answers
        .map(|answer| answer.split(' ').next().unwrap_or_default())
        .collect()
}

/// What the demo prints in every mode that sends packets.
fn assert_balanced_until_an_endpoint_is_removed(printed: &str) {
    assert!(printed.contains("Sync: 0 done, 0 failed, 0 skipped"), "{printed}");
    assert_eq!(printed.matches("  0 requests failed.").count(), 2, "{printed}");
    let halves = printed.split_once(" is removed:");
    assert!(halves.is_some(), "{printed}");
    let (before, after) = halves.unwrap_or_default();
    let frontend = "shop/web:http 10.96.12.80:80/TCP";
    assert_eq!(
        servers(before, frontend),
        ["10.244.1.20:8080", "10.244.2.20:8080", "10.244.2.21:8080"],
        "{printed}"
    );
    let removed = before.rsplit(' ').next().unwrap_or_default();
    assert_eq!(removed, "10.244.1.20", "{printed}");
    assert_eq!(
        servers(after, frontend),
        ["10.244.2.20:8080", "10.244.2.21:8080"],
        "{printed}"
    );
}

#[test]
fn the_demo_balances_requests_in_iptables_mode_and_changes_nothing_outside() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let (links, addresses) = (tools::must("ip", &["link"]), tools::ip_addresses());
        let printed = run("demo", &["--mode", "iptables"]);
        assert_balanced_until_an_endpoint_is_removed(&printed);
        assert_eq!(tools::must("ip", &["link"]), links);
        assert_eq!(tools::ip_addresses(), addresses);
        let rules = tools::must("iptables-save", &[]);
        assert!(!rules.contains("KUBE-"), "{rules}");
    });
}

/// The first command of the README, on a host where nothing was installed.
#[test]
fn the_demo_needs_no_program_in_nftables_mode_and_changes_nothing_outside() {
    requires!(Feature::Conntrack);
    let namespace = NetNs::new();
    let outside = || {
        let (links, addresses) = (tools::must("ip", &["link"]), tools::ip_addresses());
        [links, addresses, tools::must("nft", &["list", "ruleset"])]
    };
    let before = namespace.run(outside);
    let printed = namespace.run(|| {
        let path = "/bin:/sbin:/usr/bin:/usr/sbin:/usr/local/bin:/usr/local/sbin";
        let folders = path.split(':').map(Path::new);
        mounts::empty_folders(&folders.filter(|folder| folder.exists()).collect::<Vec<_>>());
        let output = programs::example("demo")
            .args(["--mode", "nftables"])
            .env("PATH", path)
            .output();
        text("demo", output)
    });
    assert_balanced_until_an_endpoint_is_removed(&printed);
    assert_eq!(namespace.run(outside), before);
}

#[test]
fn the_demo_leaves_nothing_behind_if_a_signal_ends_it() {
    requires!(Feature::Iptables);
    // The endpoint has the address of the client, so no request is answered: the program waits until the signal ends it.
    let manifest = std::env::temp_dir().join(format!("kernlink-demo-{}.yaml", std::process::id()));
    let text = "apiVersion: v1
kind: Service
metadata: {name: a}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{port: 8080, name: \"\"}]
endpoints: [{addresses: [192.0.2.2]}]
";
    std::fs::write(&manifest, text).unwrap();
    NetNs::new().run(|| {
        let mut child = programs::example("demo")
            .args(["--mode", "iptables"])
            .arg(&manifest)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("start demo: {error}"));
        let output = child.stdout.take().map(BufReader::new);
        let mut lines = output.into_iter().flat_map(BufRead::lines).map_while(Result::ok);
        // Its namespaces exist, and its rules are written.
        assert!(
            lines.any(|line| line.starts_with("Sync: ")),
            "the demo ended: {:?}",
            child.wait_with_output()
        );
        let namespaces = namespaces_of(child.id());
        assert!(namespaces.len() >= 2, "{namespaces:?}");
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        // Ctrl-C has the same effect, but a shell may start its background processes with SIGINT ignored.
        kill(pid, Signal::SIGTERM).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(Signal::SIGTERM as i32), "{status}");
        // No process is left in one of its namespaces; without one the kernel removes them.
        let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        wait::until(|| {
            let left = processes().filter(|pid| {
                let of_process = namespaces_of(*pid);
                of_process
                    .iter()
                    .any(|namespace| *namespace != own && namespaces.contains(namespace))
            });
            match left.collect::<Vec<_>>()[..] {
                [] => Ok(()),
                ref left => Err(format!("processes {left:?} are left")),
            }
        });
        let links = tools::must("ip", &["-o", "link"]);
        assert_eq!(links.lines().count(), 1, "{links}");
    });
    std::fs::remove_file(&manifest).unwrap();
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The network namespaces of the threads of a process. Empty if it ended.
fn namespaces_of(pid: u32) -> Vec<PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let mut namespaces: Vec<PathBuf> = threads
        .filter_map(|thread| std::fs::read_link(thread.path().join("ns/net")).ok())
        .collect();
    namespaces.sort();
    namespaces.dedup();
    namespaces
}
