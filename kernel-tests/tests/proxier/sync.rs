//! Syncs: the state as the standard tools list it, that the next sync has nothing to do, the effect of failures, and where requests go.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kernlink_iptables_restore::Variant;
use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_kernel_tests::{tools, wait};
use kernlink_proxier::Outcome;
use kernlink_proxier::ipvs_mode::{Kernel, sysctls};

use crate::clusters::{WEB_PORTS, everything, everything_else, node, web};
use crate::support::{
    assert_in_desired_state, cluster_ips, proxier, proxier_on, replace_objects, rules, service, slices, sync,
};

#[test]
fn requests_to_a_virtual_ip_are_balanced_and_follow_the_endpoints() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(3);
    let _tcp = network.serve(Protocol::Tcp, 8080);
    let _udp = network.serve(Protocol::Udp, 5353);
    let all = [(0, "node-a"), (1, "node-b"), (2, "node-b")];
    let _on_node = network.node.enter();
    let mut proxier = proxier(&web(&all));
    sync(&mut proxier);
    let expect = |servers: &[&str], requests: usize| {
        for address in cluster_ips(1) {
            for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Udp, 53)] {
                let tally = ask_many(
                    &network.client,
                    protocol,
                    SocketAddr::new(address, port),
                    requests,
                );
                tally.assert_balanced(servers, 1);
                assert_eq!(tally.answers.values().sum::<usize>(), requests);
            }
        }
    };
    expect(&["pod0", "pod1", "pod2"], 12);

    replace_objects(&mut proxier, &web(&[all[0], all[2]]));
    sync(&mut proxier);
    expect(&["pod0", "pod2"], 8);

    replace_objects(&mut proxier, &web(&all));
    sync(&mut proxier);
    expect(&["pod0", "pod1", "pod2"], 12);
}

#[test]
fn the_standard_tools_list_the_desired_state() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    node().run(|| {
        let mut proxier = proxier(&everything());
        sync(&mut proxier);
        assert_in_desired_state(&proxier);
        for sysctl in sysctls::sysctls(proxier.state().config(), "6.1".parse().unwrap(), 1) {
            assert_eq!(tools::sysctl(&sysctl.name), *sysctl.value, "{}", sysctl.name);
        }
        replace_objects(&mut proxier, &everything_else());
        sync(&mut proxier);
        assert_in_desired_state(&proxier);
    });
}

#[test]
fn a_second_sync_and_one_after_a_restart_have_nothing_to_do() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    for tables in [Variant::Legacy, Variant::Nft] {
        node().run(|| {
            let kernel = || {
                let mut kernel = Kernel::open().unwrap();
                let lock = std::env::temp_dir().join(format!("kernlink-restart-{}", std::process::id()));
                let command = kernlink_iptables_restore::Client::new()
                    .with_variant(tables)
                    .with_wait(Duration::from_secs(30))
                    .with_lock_file(lock);
                kernel.rules = Box::new(command);
                kernel
            };
            let mut first = proxier_on(kernel(), &everything());
            assert!(!sync(&mut first).plan.is_empty());
            let second = sync(&mut first);
            assert!(second.plan.is_empty(), "{tables}: {}", second.plan);
            first.resync();
            let third = sync(&mut first);
            assert!(third.plan.is_empty(), "{tables}: {}", third.plan);
            let restarted = sync(&mut proxier_on(kernel(), &everything()));
            assert!(restarted.plan.is_empty(), "{tables}: {}", restarted.plan);
            let save = match tables {
                Variant::Legacy => ["iptables-legacy-save", "ip6tables-legacy-save"],
                _ => ["iptables-nft-save", "ip6tables-nft-save"],
            };
            let rules = rules(save);
            assert!(
                rules.contains_key("ip6tables nat KUBE-SERVICES"),
                "{tables}: {rules:#?}"
            );
        });
    }
}

#[test]
fn a_set_of_another_type_affects_its_family_only() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let _tcp = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    tools::must(
        "ipset",
        &["create", "KUBE-6-CLUSTER-IP", "hash:net", "family", "inet6"],
    );
    let mut proxier = proxier(&web(&[(0, "node-a")]));
    let synced = proxier.sync(Instant::now()).unwrap();
    wait::for_ipv6_addresses();
    assert!(!synced.is_success());
    let outcomes = || synced.plan.steps().zip(synced.report.outcomes());
    for ((_, step), outcome) in outcomes() {
        let text = step.operation.to_string();
        let is_v6 =
            text.contains("KUBE-6-CLUSTER-IP") || text.contains("fd00:") || text.contains("ip6tables");
        assert!(is_v6 || *outcome == Outcome::Done, "{text}: {outcome:?}");
    }
    assert!(
        outcomes().any(|((_, step), outcome)| matches!(outcome, Outcome::Failed(_))
            && step.operation.to_string().contains("KUBE-6-CLUSTER-IP")),
        "{synced}"
    );
    let [v4, v6] = cluster_ips(1);
    ask_many(&network.client, Protocol::Tcp, SocketAddr::new(v4, 80), 4).assert_balanced(&["pod0"], 0);

    // After the set was destroyed, the retries do the remaining steps.
    tools::must("ipset", &["destroy", "KUBE-6-CLUSTER-IP"]);
    let mut synced = synced;
    for _ in 0..10 {
        let Some(next) = synced.next else {
            break;
        };
        synced = proxier.sync(next).unwrap();
    }
    assert!(synced.is_success() && synced.next.is_none(), "{synced}");
    wait::for_ipv6_addresses();
    assert_in_desired_state(&proxier);
    ask_many(&network.client, Protocol::Tcp, SocketAddr::new(v6, 80), 4).assert_balanced(&["pod0"], 0);
}

#[test]
fn a_service_that_the_kernel_refuses_affects_no_other() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let _tcp = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let ports = "ports: [{name: web, port: 80, protocol: TCP}], type: ClusterIP";
    let with_endpoint = |endpoint: &str| {
        let good = Network::pod_ipv4(0).to_string();
        web(&[(0, "node-a")])
            + &service("other", 2, ports, "")
            + &slices("other", WEB_PORTS, &[(0, "node-a")]).replace(&good, endpoint)
    };
    // The kernel refuses the broadcast address of the pod network as a real server.
    let mut proxier = proxier(&with_endpoint("10.244.0.255"));
    let synced = proxier.sync(Instant::now()).unwrap();
    wait::for_ipv6_addresses();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    for ((_, step), outcome) in synced.plan.steps().zip(synced.report.outcomes()) {
        let text = step.operation.to_string();
        if *outcome != Outcome::Done {
            assert!(text.contains("10.96.0.2"), "{text}");
        }
    }
    for address in cluster_ips(1) {
        ask_many(&network.client, Protocol::Tcp, SocketAddr::new(address, 80), 4)
            .assert_balanced(&["pod0"], 0);
    }
    replace_objects(&mut proxier, &with_endpoint(&Network::pod_ipv4(0).to_string()));
    sync(&mut proxier);
    for address in cluster_ips(2) {
        ask_many(&network.client, Protocol::Tcp, SocketAddr::new(address, 80), 4)
            .assert_balanced(&["pod0"], 0);
    }
    assert_in_desired_state(&proxier);
}
