//! A ruleset that `nft` wrote is read, and written to another namespace, where `nft` lists the same.

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{requires, tools};
use kernlink_nftables::Nftables;

use crate::{client, listing, nft};

/// Copies the ruleset of a new namespace to another one.
#[track_caller]
fn assert_copied(text: &str) {
    let (expected, ruleset) = NetNs::new().run(|| {
        nft(text);
        (listing(), client().ruleset().unwrap())
    });
    assert!(!expected.is_empty());
    let copied = NetNs::new().run(|| {
        let operations = ruleset.operations();
        let outcomes = client().execute(&operations);
        for (operation, outcome) in operations.iter().zip(outcomes) {
            if let Err(error) = outcome
                && !error.is_not_executed()
            {
                panic!("{error}: {error:?}\n{operation:?}");
            }
        }
        listing()
    });
    assert_eq!(sorted(&copied), sorted(&expected));
}

/// A listing with the elements of each set in alphabetical order: that of the kernel depends on a random number.
pub(crate) fn sorted(listing: &str) -> String {
    let mut lines = Vec::new();
    let mut listed = listing.lines();
    while let Some(line) = listed.next() {
        let mut line = line.to_owned();
        while line.ends_with(',') {
            line.push(' ');
            line.push_str(listed.next().unwrap_or_default().trim());
        }
        if let Some((before, elements)) = line.split_once("elements = { ") {
            let elements = elements.trim_end_matches(" }").split(", ");
            // The time until it expires is not the same in both listings.
            let mut elements: Vec<&str> = elements
                .map(|element| {
                    element
                        .split_once(" expires ")
                        .map_or(element, |(element, _)| element)
                })
                .collect();
            elements.sort_unstable();
            line = format!("{before}elements = {{ {} }}", elements.join(", "));
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[test]
fn tables_and_chains_of_every_family_are_copied() {
    assert_copied(
        "table ip a { comment \"first\"; flags dormant; chain c { comment \"regular\"; }; }
         table ip6 a { chain in { type filter hook input priority -5; policy drop; }; }
         table inet b { chain nat { type nat hook prerouting priority dstnat; }; chain r { type route hook output priority mangle; }; }
         table arp c { chain in { type filter hook input priority 0; }; }
         table bridge d { chain f { type filter hook forward priority 0; }; }
         table netdev e { chain i { type filter hook ingress device lo priority 0; }; }",
    );
}

#[test]
fn sets_and_maps_of_every_kind_are_copied() {
    assert_copied(
        "table inet t {
            chain x { }
            chain y { }
            counter c1 { packets 5 bytes 7 }
            quota q1 { over 25 mbytes }
            limit l1 { rate 400/minute burst 3 packets }
            ct helper h { type \"ftp\" protocol tcp; l3proto ip; }
            ct timeout to { protocol tcp; l3proto ip; policy = { established : 132, close : 13 }; }
            ct expectation e { protocol udp; dport 9876; timeout 2m; size 12; l3proto ip; }
            synproxy s { mss 1460; wscale 7; timestamp; }
            set plain { type ipv4_addr; comment \"addresses\"; elements = { 10.0.0.1 comment \"one\", 10.0.0.2 } }
            set ranges { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/8, 192.168.1.5-192.168.1.9, 255.255.255.255 } }
            set ports { type inet_service; flags interval; elements = { 1-1023, 65000-65535 } }
            set concat { type ipv4_addr . inet_proto . inet_service; flags interval; elements = { 10.0.0.0/8 . tcp . 80-90, 10.9.0.1 . udp . 53 } }
            set timed { type ipv4_addr; flags timeout; timeout 1h; gc-interval 10s; elements = { 10.0.0.1 timeout 2d expires 1d } }
            set dyn { type ipv4_addr; size 128; flags dynamic,timeout; timeout 5m; counter; }
            set marks { type mark; elements = { 0x10, 0x20 } }
            set names { type ifname; elements = { \"lo\", \"eth0\" } }
            set const { type inet_service; flags constant; elements = { 22, 80 } }
            set mem { type ipv6_addr; policy memory; elements = { fe80::1 } }
            map ports2 { type inet_service : ipv4_addr . inet_service; elements = { 80 : 10.0.0.1 . 8080 } }
            map dispatch { type ipv4_addr . inet_service : verdict; elements = { 10.0.0.1 . 80 : goto x, 10.0.0.2 . 53 : jump y, 10.0.0.3 . 1 : drop } }
            map counted { type ipv4_addr : counter; elements = { 10.0.0.1 : \"c1\" } }
            map intervals { type ipv4_addr : mark; flags interval; elements = { 10.0.0.0/24 : 0x1, 10.0.1.0/24 : 0x2 } }
            set everything { type ipv4_addr; flags interval; counter; elements = { 10.1.1.1 counter packets 3 bytes 4, * counter packets 1 bytes 2 } }
        }",
    );
}

#[test]
fn what_is_used_up_is_copied() {
    assert_copied(
        "table ip t {
            quota more { over 500 bytes used 500 bytes }
            quota less { 25 kbytes used 25 kbytes }
            chain c { quota 500 bytes used 500 bytes drop; quota name \"more\"; }
        }",
    );
}

#[test]
fn a_set_that_rules_change_keeps_its_size() {
    assert_copied(
        "table ip t {
            map timed { type ipv4_addr : mark; size 64; timeout 5m; }
            set plain { type ipv4_addr; }
            chain c { update @timed { ip saddr : 2 }; add @plain { ip saddr }; }
        }",
    );
}

/// Sets and chains that the rules of the test below use.
const SKELETON: &str = "table inet t {
    set dyn { type ipv4_addr; size 128; flags dynamic,timeout; timeout 5m; }
    map aff { type ipv4_addr . mark : ipv4_addr; size 100; flags dynamic,timeout; timeout 5m; }
    counter c1 { }
    chain other { accept; }
    chain nat { type nat hook prerouting priority dstnat; }
    chain post { type nat hook postrouting priority srcnat; }
    chain in { type filter hook input priority 0; }
    chain raw { type filter hook prerouting priority raw; }
}
table netdev n { chain i { type filter hook ingress device lo priority 0; }; }";

/// Chain and rule.
const RULES: &[(&str, &str)] = &[
    ("inet t nat", "tcp dport 80 dnat ip to 10.0.0.1:8080"),
    (
        "inet t nat",
        "ip daddr 10.0.0.9 tcp dport 81 dnat ip to numgen random mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }",
    ),
    (
        "inet t nat",
        "meta l4proto tcp dnat ip to ip daddr . tcp dport map { 10.0.0.1 . 80 : 10.1.1.1 . 8080 }",
    ),
    ("inet t nat", "tcp dport 82 redirect to :8082"),
    (
        "inet t post",
        "meta mark & 0x4000 == 0x4000 meta mark set meta mark ^ 0x4000 masquerade fully-random",
    ),
    (
        "inet t post",
        "ip saddr 10.0.0.0/8 snat ip to 192.0.2.1-192.0.2.9 persistent",
    ),
    (
        "inet t in",
        "ct state established,related accept comment \"known\"",
    ),
    ("inet t in", "ct state vmap { invalid : drop, new : jump other }"),
    ("inet t in", "iifname \"lo\" accept"),
    ("inet t in", "ip saddr != { 10.0.0.0/8, 192.168.0.0/16 } drop"),
    (
        "inet t in",
        "ip6 saddr fe80::/10 icmpv6 type { echo-request, nd-neighbor-solicit } accept",
    ),
    (
        "inet t in",
        "tcp flags & (syn | ack) == syn limit rate 5/second burst 10 packets accept",
    ),
    ("inet t in", "tcp dport 22 reject with tcp reset"),
    ("inet t in", "add @dyn { ip saddr timeout 10m }"),
    ("inet t in", "add @dyn { ip saddr limit rate over 3/minute } drop"),
    ("inet t in", "update @aff { ip saddr . meta mark : ip daddr }"),
    ("inet t in", "counter packets 1 bytes 2 drop"),
    ("inet t in", "quota over 10 mbytes drop"),
    ("inet t in", "counter name \"c1\""),
    ("inet t in", "fib daddr type local accept"),
    (
        "inet t in",
        "th dport 1-1024 ip ttl < 5 reject with icmpx type admin-prohibited",
    ),
    ("inet t in", "@th,16,16 0x50 accept"),
    (
        "inet t in",
        "jhash ip saddr . tcp dport mod 8 seed 0xdeadbeef offset 3 == 4 accept",
    ),
    ("inet t in", "symhash mod 4 == 1 accept"),
    ("inet t in", "ct mark set meta mark"),
    ("inet t in", "meta nftrace set 1"),
    ("inet t in", "ct original ip saddr 10.0.0.1 accept"),
    (
        "inet t in",
        "ip saddr . tcp dport { 10.0.0.1 . 80, 10.0.0.0/24 . 90-100 } goto other",
    ),
    ("inet t in", "jump { counter; accept; }"),
];

/// Rules that need modules which a kernel may lack.
const OPTIONAL_RULES: &[(&str, &str)] = &[
    ("inet t in", "log prefix \"syn \" level info flags tcp options"),
    ("inet t in", "queue flags bypass to 3-5"),
    ("inet t in", "fib saddr . iif oif missing drop"),
    ("inet t in", "ip dscp cs1 meta priority set 1:2"),
    ("inet t in", "rt ip nexthop 10.0.0.1 accept"),
    ("inet t in", "socket transparent 1 meta mark set 1 accept"),
    ("inet t in", "tcp option maxseg size set rt mtu"),
    ("inet t in", "ct count over 20 drop"),
    ("inet t in", "exthdr frag exists drop"),
    ("inet t in", "meta hour \"08:00\"-\"17:00\" accept"),
    ("inet t in", "synproxy mss 1460 wscale 7 timestamp"),
    ("inet t raw", "udp dport 53 notrack"),
    ("inet t raw", "tcp dport 8080 tproxy ip to :9000"),
    ("netdev n i", "meta mark 1 dup to \"lo\""),
    ("netdev n i", "meta mark 2 fwd to \"lo\""),
];

#[test]
fn rules_are_copied() {
    let optional: Vec<String> = NetNs::new().run(|| {
        nft(SKELETON);
        let command = |(chain, rule): &(&str, &str)| format!("add rule {chain} {rule}\n");
        let commands = OPTIONAL_RULES.iter().map(command);
        commands
            .filter(|command| tools::run_with_input("nft", &["-f", "-"], command).is_ok())
            .collect()
    });
    let required = RULES
        .iter()
        .map(|(chain, rule)| format!("add rule {chain} {rule}\n"));
    let rules: String = required.chain(optional).collect();
    assert_copied(&format!("{SKELETON}\n{rules}"));
}

#[test]
fn flowtables_are_copied() {
    requires!(Feature::Flowtable);
    assert_copied(
        "table inet t { flowtable f { hook ingress priority 0; devices = { lo }; counter; }
         chain forward { type filter hook forward priority 0; ip protocol tcp flow add @f; }; }",
    );
}
