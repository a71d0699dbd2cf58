//! Notices of changes by other programs, on the running kernel: links and addresses by events of route netlink, rules by those of nf_tables.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use kernlink_dummylink::AddressKey;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_proxier::ipvs_mode::watch::{RulesSource, WatchEvent, WatchOptions, Watcher};
use kernlink_proxier::ipvs_mode::{Config, Key};
use kernlink_services::Family;

/// Watches the calling thread's namespace, with rules in nftables.
fn watch() -> (Watcher, Receiver<WatchEvent>) {
    watch_with(&WatchOptions::new(
        Family::ALL.map(|family| (family, RulesSource::Events)),
    ))
}

fn watch_with(options: &WatchOptions) -> (Watcher, Receiver<WatchEvent>) {
    let (sender, events) = mpsc::channel();
    let notify = move |event| _ = sender.send(event);
    let watcher = Watcher::start(&Config::new("node-a"), options, notify).unwrap();
    (watcher, events)
}

fn next(events: &Receiver<WatchEvent>) -> WatchEvent {
    events.recv_timeout(wait::LIMIT).unwrap()
}

/// The keys of an event about single objects.
fn keys(event: WatchEvent) -> Vec<Key> {
    match event {
        WatchEvent::Recheck(keys) => keys,
        event => panic!("{event:?}"),
    }
}

fn address(text: &str) -> Key {
    Key::Address(AddressKey::host(text.parse().unwrap()).unwrap())
}

/// Adds a link with the name of the dummy link, and two addresses to it. Any link does.
fn add_link() {
    tools::ip_batch(
        "link add kube-ipvs0 type veth peer name peer\n\
         address add 10.96.0.1/32 dev kube-ipvs0\n\
         address add fd00:10:96::1/128 dev kube-ipvs0 nodad\n",
    );
}

#[test]
fn flushed_addresses_are_noticed() {
    NetNs::new().run(|| {
        add_link();
        let (_watcher, events) = watch();
        tools::ip(&["address", "flush", "dev", "kube-ipvs0"]);
        let mut noticed = BTreeSet::new();
        while noticed.len() < 2 {
            noticed.extend(keys(next(&events)));
        }
        assert_eq!(
            noticed,
            BTreeSet::from([address("10.96.0.1"), address("fd00:10:96::1")])
        );
    });
}

#[test]
fn ipv6_addresses_that_a_link_loses_when_it_is_set_down_are_noticed() {
    NetNs::new().run(|| {
        add_link();
        tools::ip(&["link", "set", "kube-ipvs0", "up"]);
        let (_watcher, events) = watch();
        tools::ip(&["link", "set", "kube-ipvs0", "down"]);
        assert_eq!(keys(next(&events)), [address("fd00:10:96::1")]);
    });
}

#[test]
fn a_deleted_and_a_renamed_link_are_noticed() {
    for change in [
        &["link", "delete", "kube-ipvs0"][..],
        &["link", "set", "kube-ipvs0", "name", "other"],
    ] {
        NetNs::new().run(|| {
            add_link();
            let (_watcher, events) = watch();
            tools::ip(change);
            // The addresses are removed before the link.
            loop {
                match next(&events) {
                    WatchEvent::Resync => break,
                    event => assert!(keys(event).iter().all(|key| matches!(key, Key::Address(_)))),
                }
            }
        });
    }
}

#[test]
fn a_new_address_of_the_node_is_noticed_and_that_of_another_namespace_is_not() {
    let other = NetNs::new();
    NetNs::new().run(|| {
        let (_watcher, events) = watch();
        other.run(|| {
            add_link();
            tools::ip(&["address", "flush", "dev", "kube-ipvs0"]);
        });
        tools::ip_batch("link add eth1 type veth peer name peer\naddress add 192.0.2.9/24 dev eth1\n");
        assert_eq!(next(&events), WatchEvent::Addresses);
        tools::ip(&["link", "delete", "eth1"]);
        assert_eq!(next(&events), WatchEvent::Addresses);
    });
}

#[test]
fn flushed_chains_are_noticed_and_readings_and_other_chains_are_not() {
    requires!(Feature::Iptables);
    NetNs::new().run(|| {
        let nat = |arguments: &str| {
            let mut all = vec!["-w", "-t", "nat"];
            all.extend(arguments.split(' '));
            tools::must("iptables-nft", &all);
        };
        for arguments in [
            "-N KUBE-SERVICES",
            "-I PREROUTING -j KUBE-SERVICES",
            "-N CNI-HOSTPORT-DNAT",
        ] {
            nat(arguments);
        }
        tools::must("ip6tables-nft", &["-w", "-t", "nat", "-N", "KUBE-SERVICES"]);
        let (_watcher, events) = watch();
        for _ in 0..3 {
            tools::must("iptables-nft-save", &["-t", "nat"]);
            tools::must("iptables-nft-save", &[]);
        }
        nat("-A CNI-HOSTPORT-DNAT -j RETURN");
        nat("-F CNI-HOSTPORT-DNAT");
        tools::must("nft", &["add", "table", "inet", "other"]);
        // The first notice is that of this family.
        tools::must(
            "ip6tables-nft",
            &["-w", "-t", "nat", "-A", "KUBE-SERVICES", "-j", "RETURN"],
        );
        assert_eq!(keys(next(&events)), [Key::Rules(Family::Ipv6)]);
        for arguments in ["-F PREROUTING", "-A KUBE-SERVICES -j RETURN", "-F KUBE-SERVICES"] {
            nat(arguments);
            assert_eq!(keys(next(&events)), [Key::Rules(Family::Ipv4)], "{arguments}");
        }
        tools::must("nft", &["flush", "ruleset"]);
        let mut noticed = BTreeSet::new();
        while noticed.len() < 2 {
            noticed.extend(keys(next(&events)));
        }
        assert_eq!(noticed, BTreeSet::from(Family::ALL.map(Key::Rules)));
    });
}

#[test]
fn legacy_tables_are_checked_at_intervals_until_the_watcher_is_dropped() {
    NetNs::new().run(|| {
        let options = WatchOptions::new([(Family::Ipv4, RulesSource::Checks)]);
        let (watcher, events) = watch_with(&options.with_check_interval(Duration::from_millis(1)));
        for _ in 0..3 {
            assert_eq!(keys(next(&events)), [Key::Rules(Family::Ipv4)]);
        }
        assert!(!watcher.has_ended());
        drop(watcher);
        // The thread has ended, and with it the sender.
        while events.try_recv().is_ok() {}
        assert_eq!(events.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    });
}
