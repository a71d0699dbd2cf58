//! Rules of the builder, as `nft` lists them.

use std::net::Ipv4Addr;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{
    BaseChain, Chain, ChainType, ConnectionTrackingKey, DataType, DynsetOperation, FibFlags, Hook, MetaKey,
    NatFlags, Nftables, Operation, RejectKind, RuleBuilder, Set, SetFlags, Table, Value, Verdict,
};

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
    let loadable: Vec<&str> = listed.lines().filter(|line| !line.contains("map @endpoints")).collect();
    let loadable = loadable.join("\n");
    let again = NetNs::new().run(|| {
        nft(&loadable);
        listing()
    });
    assert_eq!(again.trim_end(), loadable);
}
