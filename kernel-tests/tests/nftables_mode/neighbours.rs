//! Other programs on the node: what they observe, and what they may do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kernlink_kernel_tests::expectations::{NO_PORTS, targets};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::load::Load;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_kernel_tests::{programs, requires, tools, wait};
use kernlink_nftables::{Client, Nftables, Operation, Table, TableFamily, TableFlags, TableKey};

use crate::support::{
    await_end_of_owner, change, foreign_ruleset, on_network, proxier, replace_objects, sync, sync_once,
};

fn web(pods: &[(u8, &str)]) -> String {
    service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", pods)
}

/// Services that need every set, map and rule.
fn everything() -> String {
    let ranges =
        "type: LoadBalancer, loadBalancerSourceRanges: ['198.51.100.0/24', '10.0.0.0/8', '2001:db8:5::/48']";
    let near = "type: NodePort, externalTrafficPolicy: Local, internalTrafficPolicy: Local";
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    let pods = [(0, "node-a"), (1, "node-b")];
    [
        web(&pods),
        service("outer", 2, ranges, NO_PORTS, &["203.0.113.10", "2001:db8:ff::10"]),
        slices("outer", &pods),
        service("near", 3, near, ports, &[]),
        slices("near", &pods),
        service(
            "sticky",
            4,
            "type: ClusterIP, sessionAffinity: ClientIP",
            NO_PORTS,
            &[],
        ),
        slices("sticky", &pods),
        service("empty", 5, "type: ClusterIP", NO_PORTS, &[]),
        service(
            "elsewhere",
            6,
            "type: ClusterIP, internalTrafficPolicy: Local",
            NO_PORTS,
            &[],
        ),
        slices("elsewhere", &[(1, "node-b")]),
    ]
    .concat()
}

const FOREIGN: &str = "table inet firewall {
    set blocked { type ipv4_addr; flags interval; elements = { 198.51.100.0/24, 203.0.113.128-203.0.113.191 } }
    set ports { type inet_service; elements = { 9, 10 } }
    chain input { type filter hook input priority 10; policy accept; ip saddr @blocked drop; tcp dport @ports drop; }
    chain prerouting { type nat hook prerouting priority -90; tcp dport 9999 redirect to :9998; }
}
table ip6 other {
    chain a {
        counter
    }
}
table arp third {
    chain b {
        type filter hook input priority 0; policy accept;
        arp operation request accept
    }
}
";

#[test]
fn other_tables_are_listed_as_before_after_changes_a_restart_and_the_end() {
    requires!(Feature::Conntrack);
    on_network(2, |_| {
        tools::run_with_input("nft", &["-f", "-"], FOREIGN).unwrap();
        let before = foreign_ruleset();
        assert!(before.contains("table inet firewall"), "{before}");
        let mut first = proxier(&everything());
        sync(&mut first);
        assert_eq!(foreign_ruleset(), before);
        for manifests in [web(&[]), everything(), String::new()] {
            change(&mut first, &manifests);
            assert_eq!(foreign_ruleset(), before);
        }
        drop(first);
        sync(&mut proxier(&everything()));
        assert_eq!(foreign_ruleset(), before);
    });
}

/// The administrator's tools must work, with Services of every kind.
#[test]
fn nft_lists_the_whole_ruleset_and_reports_no_error() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        tools::run_with_input("nft", &["-f", "-"], FOREIGN).unwrap();
        let mut proxier = proxier(&everything());
        sync(&mut proxier);
        // Clients with affinity are elements too.
        for (_, protocol, target) in targets(cluster_ips(4)) {
            assert_eq!(ask_many(&network.client, protocol, target, 2).failures, [""; 0]);
        }
        for arguments in [
            &["list", "ruleset"][..],
            &["-a", "list", "ruleset"],
            &["-t", "list", "ruleset"],
            &["-j", "list", "ruleset"],
            &["list", "table", "ip", "kernlink"],
            &["list", "table", "ip6", "kernlink"],
            &["list", "tables"],
        ] {
            let output = programs::command("nft").args(arguments).output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {errors}");
            // `nft` up to 1.0.6 cannot print as JSON that a rule adds an element to a map.
            let errors = errors.replace("warning: stmt ops map have no json callback\n", "");
            assert_eq!(errors, "", "{arguments:?}");
            assert!(!output.stdout.is_empty(), "{arguments:?}");
        }
    });
}

/// Ends the work of another thread, also if this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_program_that_writes_its_own_table_all_the_time_and_changes_of_services_do_not_fail() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        let mut proxier = proxier(&web(&[(0, "node-a")]));
        sync_once(&mut proxier);
        let is_done = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let stop = Stop(&is_done);
            let writer = scope.spawn(|| {
                network.node.run(|| {
                    let mut written = 0;
                    while !is_done.load(Ordering::Relaxed) {
                        let chains: String = (0..20)
                            .map(|n| format!("add chain ip busy c{n}\nadd rule ip busy c{n} counter\n"))
                            .collect();
                        let text =
                            format!("add table ip busy\ndelete table ip busy\nadd table ip busy\n{chains}");
                        tools::run_with_input("nft", &["-f", "-"], &text).unwrap();
                        written += 1;
                    }
                    written
                })
            });
            for number in 0..100 {
                let pods: &[(u8, &str)] = match number % 3 {
                    0 => &[(0, "node-a"), (1, "node-a")],
                    1 => &[(1, "node-a")],
                    _ => &[(2, "node-a"), (0, "node-a")],
                };
                change(&mut proxier, &web(pods));
            }
            drop(stop);
            writer.join().unwrap()
        });
        assert!(written > 0);
        change(&mut proxier, &web(&[(0, "node-a")]));
        for (_, protocol, target) in targets(cluster_ips(1)) {
            ask_many(&network.client, protocol, target, 10).assert_balanced(&["pod0"], 0);
        }
    });
}

fn load(network: &Network) -> Load {
    let [v4, v6] = cluster_ips(1).map(|address| std::net::SocketAddr::new(address, 80));
    Load::start(&[
        (&network.client, Protocol::Tcp, v4),
        (&network.client, Protocol::Tcp, v6),
    ])
}

#[test]
fn an_administrator_who_flushes_the_ruleset_ends_no_service() {
    requires!(Feature::Conntrack);
    // Tables that have an owner and persist.
    kernlink_kernel_tests::since!(6, 9);
    on_network(2, |network| {
        tools::run_with_input("nft", &["-f", "-"], FOREIGN).unwrap();
        let mut proxier = proxier(&web(&[(0, "node-a")]));
        sync(&mut proxier);
        let load = load(network);
        for _ in 0..3 {
            tools::must("nft", &["flush", "ruleset"]);
            assert_eq!(foreign_ruleset(), "");
            load.wait_for(20);
        }
        let error = tools::run("nft", &["delete", "table", "ip", "kernlink"]).unwrap_err();
        assert!(error.contains("Operation not permitted"), "{error}");
        change(&mut proxier, &web(&[(1, "node-a")]));
        load.wait_for(20);
        load.assert_all_served();
        for (_, protocol, target) in targets(cluster_ips(1)) {
            ask_many(&network.client, protocol, target, 10).assert_balanced(&["pod1"], 0);
        }
    });
}

/// Without an owner, or after the process ended, another program can delete the tables.
#[test]
fn tables_that_were_deleted_while_no_process_ran_are_written_again() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        let mut first = proxier(&everything());
        sync(&mut first);
        drop(first);
        for delete in [
            &["flush", "ruleset"][..],
            &["delete", "table", "ip", "kernlink"],
            &["flush", "chain", "ip6", "kernlink", "services"],
            &["flush", "map", "ip", "kernlink", "endpoints"],
        ] {
            await_end_of_owner();
            tools::must("nft", delete);
            let mut next = proxier(&web(&[(0, "node-a")]));
            sync(&mut next);
            for (_, protocol, target) in targets(cluster_ips(1)) {
                ask_many(&network.client, protocol, target, 10).assert_balanced(&["pod0"], 0);
            }
        }
    });
}

/// A table of another process, which no other one may change.
struct Owned {
    _client: Client,
}

impl Owned {
    fn add(family: TableFamily) -> Self {
        let mut client = Client::open().unwrap();
        let table = Table::new(TableKey::new(family, "kernlink")).with_flags(TableFlags::OWNER);
        client.apply(&[Operation::add(table)]).unwrap();
        Self { _client: client }
    }
}

#[test]
fn a_failure_in_one_family_does_not_stop_the_other() {
    requires!(Feature::Conntrack);
    // Tables that have an owner.
    kernlink_kernel_tests::since!(5, 12);
    for (owned, served) in [(TableFamily::Ip6, 0), (TableFamily::Ip, 1)] {
        on_network(2, |network| {
            let owner = Owned::add(owned);
            let mut proxier = proxier(&web(&[(0, "node-a")]));
            let synced = proxier.sync(Instant::now()).unwrap();
            assert!(!synced.is_success(), "{synced}");
            for pods in [&[(0, "node-a")][..], &[(1, "node-a")]] {
                replace_objects(&mut proxier, &web(pods));
                let _ = proxier.sync(Instant::now()).unwrap();
                let name = format!("pod{}", pods[0].0);
                for (family, protocol, target) in targets(cluster_ips(1)) {
                    if family == served {
                        ask_many(&network.client, protocol, target, 3).assert_balanced(&[&name], 0);
                    }
                }
            }
            // The table ends with its owner.
            drop(owner);
            wait::until(|| {
                proxier.resync();
                let synced = proxier.sync(Instant::now()).unwrap();
                let is_done = synced.is_success() && proxier.plan(Instant::now()).unwrap().is_empty();
                is_done.then_some(()).ok_or_else(|| synced.to_string())
            });
            for (_, protocol, target) in targets(cluster_ips(1)) {
                ask_many(&network.client, protocol, target, 3).assert_balanced(&["pod1"], 0);
            }
        });
    }
}

/// What `nft` lists of other tables next to those of Services is complete.
#[test]
fn the_tables_of_other_programs_are_restored_from_what_nft_lists() {
    requires!(Feature::Conntrack);
    on_network(1, |_| {
        tools::run_with_input("nft", &["-f", "-"], FOREIGN).unwrap();
        sync(&mut proxier(&everything()));
        let foreign = foreign_ruleset();
        NetNs::new().run(|| {
            tools::run_with_input("nft", &["-f", "-"], &foreign).unwrap();
            assert_eq!(foreign_ruleset(), foreign);
        });
    });
}
