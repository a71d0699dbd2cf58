//! Rules of the builder, as `nft` lists them.

use std::net::Ipv4Addr;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Commands, ConnectionTrackingKey, DataType, DynsetOperation, FibFlags, Hook,
    MetaKey, NatFlags, Nftables, Operation, RejectKind, RuleBuilder, Set, SetFlags, Table, Value, Verdict,
};

use crate::copy::sorted;
use crate::{client, listing, nft, table};

const FRONTEND: [DataType; 3] = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];

fn base(name: &str, chain_type: ChainType, hook: Hook, priority: i32) -> Operation {
    Operation::add(Chain::new(table().chain(name)).with_base(BaseChain::new(chain_type, hook, priority)))
}

fn operations() -> Vec<Operation> {
    let rule = |chain: &str| RuleBuilder::new(table().chain(chain));
    let frontends = Set::verdict_map(table().set("frontends"), &FRONTEND);
    let mut keyed = FRONTEND.to_vec();
    keyed.push(DataType::Mark);
    let endpoints = Set::map(
        table().set("endpoints"),
        &keyed,
        &[DataType::Ipv4Address, DataType::Service],
    );
    let clients = Set::new(table().set("clients"), &[DataType::Ipv4Address])
        .with_flags(SetFlags::EVAL)
        .with_size(1024)
        .with_timeout(Duration::from_secs(60));
    let ports = Set::new(table().set("ports"), &[DataType::Service]).with_intervals();
    let rules = [
        rule("services")
            .destination_address()
            .transport_protocol()
            .destination_port()
            .verdict_of(&frontends),
        rule("balance")
            .destination_address()
            .transport_protocol()
            .destination_port()
            .random(16)
            .value_of(&endpoints)
            .destination_nat()
            .comment("balance"),
        rule("input")
            .connection(ConnectionTrackingKey::State)
            .masked(Value::host_u32(8), Value::host_u32(0))
            .differs_from(Value::host_u32(0))
            .counter()
            .verdict(Verdict::jump("other")),
        rule("input")
            .address_type(FibFlags::DESTINATION)
            .equals(Value::host_u32(2))
            .verdict(Verdict::Accept),
        rule("input")
            .transport_protocol()
            .equals([6])
            .destination_port()
            .is_in(&ports)
            .verdict(Verdict::Accept),
        rule("input")
            .transport_protocol()
            .equals([17])
            .destination_port()
            .is_between(Value::port(1000), Value::port(2000))
            .verdict(Verdict::Drop),
        rule("input")
            .source_address()
            .is_not_in(&clients)
            .log("new ")
            .source_address()
            .change_set(DynsetOperation::Update, &clients, None),
        rule("input")
            .meta(MetaKey::InputName)
            .equals(Value::interface_name("lo"))
            .verdict(Verdict::Accept),
        rule("input")
            .meta(MetaKey::Mark)
            .masked(Value::host_u32(0x4000), Value::host_u32(0))
            .equals(Value::host_u32(0x4000))
            .set_mark(!0x4000, 0),
        rule("input")
            .source_address()
            .masked(Ipv4Addr::new(255, 0, 0, 0).into(), Value::be_u32(0))
            .equals([10, 0, 0, 0])
            .reject(RejectKind::Icmp, Some(3)),
        rule("postrouting").masquerade(NatFlags::FULLY_RANDOM),
        rule("other").destination_nat_to([10, 0, 0, 1].into(), Some(8080)),
    ];
    let mut operations = vec![
        Operation::add(Table::new(table())),
        base("services", ChainType::Nat, Hook::Prerouting, BaseChain::DSTNAT),
        base("input", ChainType::Filter, Hook::Input, BaseChain::FILTER),
        base(
            "postrouting",
            ChainType::Nat,
            Hook::Postrouting,
            BaseChain::SRCNAT,
        ),
        Operation::add(Chain::new(table().chain("balance"))),
        Operation::add(Chain::new(table().chain("other"))),
        Operation::add(frontends),
        Operation::add(endpoints),
        Operation::add(clients),
        Operation::add(ports),
    ];
    operations.extend(
        rules
            .into_iter()
            .map(|rule| Operation::add(rule.build().unwrap())),
    );
    operations
}

#[test]
fn built_rules_are_listed_by_nft_and_its_listing_loads_as_the_same_ruleset() {
    let operations: Vec<Operation> = operations()
        .into_iter()
        // A filter chain cannot jump to a chain with dnat.
        .filter(|operation| !format!("{operation:?}").contains("\"other\" }, expressions: [Immediate"))
        .collect();
    let listed = NetNs::new().run(|| {
        client().apply(&operations).unwrap();
        listing()
    });
    for line in [
        "type ipv4_addr . inet_proto . inet_service : verdict",
        "ip daddr . meta l4proto . th dport vmap @frontends",
        "dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 16 map @endpoints comment \"balance\"",
        "ct state new counter packets 0 bytes 0 jump other",
        "fib daddr type local accept",
        "tcp dport @ports accept",
        "udp dport 1000-2000 drop",
        "ip saddr != @clients log prefix \"new \" update @clients { ip saddr }",
        "iifname \"lo\" accept",
        "meta mark & 0x00004000 == 0x00004000 meta mark set meta mark & 0xffffbfff",
        "ip saddr 10.0.0.0/8 reject",
        "masquerade fully-random",
    ] {
        assert!(
            listed.lines().any(|found| found.trim() == line),
            "{line}\n{listed}"
        );
    }
    // `nft` does not accept a random number for the type of the field, although it lists the rule.
    let loadable: Vec<&str> = listed
        .lines()
        .filter(|line| !line.contains("map @endpoints"))
        .collect();
    let loadable = loadable.join("\n");
    let again = NetNs::new().run(|| {
        nft(&loadable);
        listing()
    });
    assert_eq!(again.trim_end(), loadable);
}

/// A ruleset whose expressions have a notation in the crate.
const LISTED: &str = "table inet filter {
    comment \"of the test\"
    counter web { packets 7 bytes 9; }
    quota most { over 25 mbytes; }
    limit slow { rate 400/minute burst 3 packets; }
    ct timeout short { protocol tcp; l3proto ip; policy = { established : 100, close : 7 }; }
    ct expectation related { protocol tcp; dport 9876; timeout 2m; size 12; l3proto ip; }
    synproxy web { mss 1460; wscale 7; timestamp sack-perm; }
    quota half { over 50 mbytes used 2 kbytes; comment \"so far\"; }
    set ranges { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.168.1.5-192.168.1.9, 255.255.255.255 }; }
    set ports { type inet_service; flags interval; elements = { 1-1023, 65000-65535 }; }
    set pairs { type ipv4_addr . inet_proto . inet_service; flags interval; elements = { 10.0.0.0/8 . tcp . 80-90, 10.9.0.1 . udp . 53 }; }
    set banned { type ipv4_addr; size 128; flags dynamic,timeout; timeout 1h5m; gc-interval 10s; comment \"clients\"; }
    map dispatch { type ipv4_addr . inet_service : verdict; elements = { 10.0.0.1 . 80 : goto other, 10.0.0.3 . 1 : drop }; }
    map marks { type ipv6_addr : mark; elements = { fe80::1 : 0x10, ::1 : 0x20 }; }
    map counted { type mark : counter; elements = { 0x1 : \"web\" }; }
    chain other { counter packets 3 bytes 4; }
    chain in { type filter hook input priority filter + 5; policy drop;
        ct state established,related accept comment \"known\"
        ct state vmap { invalid : drop, new : jump other }
        iifname \"lo\" accept
        meta l4proto tcp ip daddr 10.0.0.0/8 accept
        ip saddr != { 10.0.0.0/8, 192.168.0.0/16 } drop
        tcp dport { 22, 80-90 } accept
        udp sport != 53 drop
        ip saddr 10.1.2.0/23 limit rate over 5/second burst 10 packets log prefix \"x \" level info
        ip6 saddr fe80::/10 accept
        meta mark & 0x0000ff00 == 0x00001200 meta mark set 0x00000007
        meta mark set meta mark | 0x00004000
        ct mark set meta mark
        ct direction original meta l4proto tcp ct original proto-dst 443 counter packets 0 bytes 0
        ct reply ip saddr 192.0.2.1 ct original ip6 daddr fe80::1 accept
        ct original packets > 10 ct bytes 1000-2000 ct zone 5 accept
        ct original protocol tcp ct l3proto ipv4 accept
        fib daddr type local reject
        add @banned { ip saddr timeout 10m }
        ip saddr . meta l4proto . th dport @pairs counter name \"web\"
        ip daddr . tcp dport vmap @dispatch
        meta mark set ip6 saddr map @marks
        quota over 10 mbytes drop
    }
    chain pre { type nat hook prerouting priority dstnat;
        tcp dport 80 dnat ip to 10.0.0.1:8080
        ip daddr 10.0.0.9 dnat ip to numgen random mod 2 map { 0 : 10.0.0.1, 1 : 10.0.0.2 }
        tcp dport 82 redirect to :8082
    }
    chain post { type nat hook postrouting priority srcnat - 1; ip saddr 10.0.0.0/8 masquerade fully-random; }
}";

#[test]
fn a_ruleset_prints_as_nft_lists_it() {
    NetNs::new().run(|| {
        nft(LISTED);
        client().apply(&operations()[..1]).unwrap();
        let printed = client().ruleset().unwrap().to_string();
        let (printed, listed) = (sorted(&printed), sorted(&listing()));
        let different: Vec<_> = printed
            .lines()
            .filter(|line| listed.lines().all(|other| other != *line))
            .collect();
        assert!(different.is_empty(), "{different:#?}\n{listed}");
        assert_eq!(printed, listed);
    });
}

/// In any order: `nft` lists what was added last at the end.
fn lines(listing: &str) -> Vec<String> {
    let mut lines: Vec<String> = sorted(listing).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn operations_print_as_commands_that_make_the_same_ruleset() {
    let (expected, operations) = NetNs::new().run(|| {
        nft(LISTED);
        (listing(), client().ruleset().unwrap().operations())
    });
    let commands = Commands::new(&operations).to_string();
    // One line for each command, and none for anonymous sets.
    assert!(
        commands.lines().all(|line| line.starts_with("add ")),
        "{commands}"
    );
    let listed = NetNs::new().run(|| {
        nft(&commands);
        listing()
    });
    assert_eq!(lines(&listed), lines(&expected), "{commands}");
}
