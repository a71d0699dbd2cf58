use std::net::IpAddr;
use std::time::Duration;

use super::{Packet, PacketFate};
use crate::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn tcp(source: &str, destination: &str, port: u16) -> Packet {
    Packet::new(ip(source), ip(destination), 6, port)
}

fn table() -> TableKey {
    TableKey::new(TableFamily::Ip, "services")
}

/// Loads destination address, protocol and port to the first three registers.
fn load_frontend() -> Vec<Expression> {
    vec![
        Payload::new(Register::data(0), PayloadBase::Network, 16_u32, 4_u32).into(),
        Meta::new(MetaKey::TransportProtocol, Register::data(1)).into(),
        Payload::new(Register::data(2), PayloadBase::Transport, 2_u32, 2_u32).into(),
    ]
}

const FRONTEND: [DataType; 3] = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];

fn frontend(address: &str, port: u16) -> Value {
    Value::concat([ip(address).into(), Value::protocol(6), Value::port(port)])
}

/// A service proxy of one Service with two endpoints.
fn services() -> Fake {
    let mut fake = Fake::new();
    let nat = BaseChain::new(ChainType::Nat, Hook::Prerouting, BaseChain::DSTNAT);
    let postrouting = BaseChain::new(ChainType::Nat, Hook::Postrouting, BaseChain::SRCNAT);
    let mut dispatch = load_frontend();
    dispatch.push(
        Lookup::new("frontends", Register::data(0))
            .with_destination(Register::VERDICT)
            .into(),
    );
    let mut balance = load_frontend();
    balance.extend([
        NumberGenerator::new(Register::data(3), 2_u32, NumberGeneratorKind::Random).into(),
        Lookup::new("endpoints", Register::data(0))
            .with_destination(Register::data(8))
            .into(),
        Nat::new(NatKind::Destination, u32::from(uapi::NFPROTO_IPV4))
            .with_address(Register::data(8))
            .with_port(Register::data(9))
            .into(),
    ]);
    let masquerade = vec![
        Meta::new(MetaKey::Mark, Register::data(0)).into(),
        Bitwise::mask_xor(Register::data(0), Value::host_u32(0x4000), Value::host_u32(0)).into(),
        Compare::new(Register::data(0), CompareOperator::NotEqual, Value::host_u32(0)).into(),
        Masquerade::new().with_flags(NatFlags::FULLY_RANDOM).into(),
    ];
    let endpoint = |index: u32, address: &str| {
        let key = Value::concat([frontend("10.96.0.1", 80), Value::host_u32(index)]);
        Element::new(key).with_value(Value::concat([ip(address).into(), Value::port(8080)]))
    };
    let mut keyed = FRONTEND.to_vec();
    keyed.push(DataType::Mark);
    fake.apply(&[
        Operation::add(Table::new(table())),
        Operation::add(Chain::new(table().chain("nat-prerouting")).with_base(nat)),
        Operation::add(Chain::new(table().chain("nat-postrouting")).with_base(postrouting)),
        Operation::add(Chain::new(table().chain("balance"))),
        Operation::add(Chain::new(table().chain("mark"))),
        Operation::add(Set::verdict_map(table().set("frontends"), &FRONTEND)),
        Operation::add(Set::map(
            table().set("endpoints"),
            &keyed,
            &[DataType::Ipv4Address, DataType::Service],
        )),
        Operation::add(Rule::new(table().chain("nat-prerouting"), dispatch)),
        Operation::add(Rule::new(table().chain("balance"), balance)),
        Operation::add(Rule::new(table().chain("nat-postrouting"), masquerade)),
        Operation::add(Elements::new(
            table().set("endpoints"),
            [endpoint(0, "10.244.0.1"), endpoint(1, "10.244.0.2")],
        )),
        Operation::add(Elements::new(
            table().set("frontends"),
            [Element::new(frontend("10.96.0.1", 80)).with_verdict(Verdict::goto("balance"))],
        )),
    ])
    .unwrap();
    fake
}

#[test]
fn packets_to_a_service_reach_all_its_endpoints_and_no_others_are_translated() {
    let mut fake = services();
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..64 {
        let outcome = fake.evaluate(Hook::Prerouting, tcp("10.0.0.9", "10.96.0.1", 80));
        assert_eq!(outcome.fate, PacketFate::Accepted);
        assert_eq!(outcome.packet.destination_port, 8080);
        assert_eq!(outcome.packet.status, 0x20);
        reached.insert(outcome.packet.destination.to_string());
    }
    assert_eq!(
        reached.into_iter().collect::<Vec<_>>(),
        ["10.244.0.1", "10.244.0.2"]
    );
    for packet in [tcp("10.0.0.9", "10.96.0.1", 81), tcp("10.0.0.9", "10.96.0.2", 80)] {
        assert_eq!(fake.evaluate(Hook::Prerouting, packet.clone()).packet, packet);
    }
    let mut later = tcp("10.0.0.9", "10.96.0.1", 80);
    later.state = 2;
    assert_eq!(fake.evaluate(Hook::Prerouting, later.clone()).packet, later);
}

#[test]
fn marked_packets_are_masqueraded() {
    let mut fake = services();
    let mut packet = tcp("10.0.0.9", "10.244.0.1", 8080);
    assert!(!fake.evaluate(Hook::Postrouting, packet.clone()).is_masqueraded);
    packet.mark = 0x4001;
    assert!(fake.evaluate(Hook::Postrouting, packet).is_masqueraded);
}

#[test]
fn a_dynamic_set_remembers_clients_until_their_timeout() {
    let mut fake = services();
    let clients = Set::new(table().set("clients"), &[DataType::Ipv4Address])
        .with_flags(SetFlags::EVAL)
        .with_size(1)
        .with_timeout(Duration::from_secs(10));
    let filter = BaseChain::new(ChainType::Filter, Hook::Input, BaseChain::FILTER);
    let load = || Payload::new(Register::data(0), PayloadBase::Network, 12_u32, 4_u32).into();
    let known = vec![
        load(),
        Lookup::new("clients", Register::data(0)).into(),
        Reject::new(RejectKind::TcpReset).into(),
    ];
    let remember = vec![
        load(),
        Dynset::new("clients", DynsetOperation::Add, Register::data(0)).into(),
        Immediate::verdict(Verdict::Accept).into(),
    ];
    let chain = table().chain("filter-input");
    let mut policy = filter;
    policy.policy = Some(Policy::Drop);
    fake.apply(&[
        Operation::add(clients),
        Operation::add(Chain::new(chain.clone()).with_base(policy)),
        Operation::add(Rule::new(chain.clone(), known)),
        Operation::add(Rule::new(chain, remember)),
    ])
    .unwrap();
    let fate = |fake: &mut Fake, source| fake.evaluate(Hook::Input, tcp(source, "10.0.0.1", 22)).fate;
    assert_eq!(fate(&mut fake, "10.0.0.9"), PacketFate::Accepted);
    assert_eq!(fate(&mut fake, "10.0.0.9"), PacketFate::Rejected);
    // The set is full: the rule ends, and the policy decides.
    assert_eq!(fate(&mut fake, "10.0.0.8"), PacketFate::Dropped);
    fake.advance(Duration::from_secs(11));
    assert_eq!(fate(&mut fake, "10.0.0.8"), PacketFate::Accepted);
}

#[test]
fn a_reject_with_icmpx_answers_in_a_table_of_both_families_only() {
    let families = [
        (TableFamily::Ip, PacketFate::Dropped),
        (TableFamily::Inet, PacketFate::Rejected),
    ];
    for (family, fate) in families {
        let mut fake = Fake::new();
        let table = TableKey::new(family, "t");
        let chain = table.chain("input");
        let filter = BaseChain::new(ChainType::Filter, Hook::Input, BaseChain::FILTER);
        let reject = Reject::new(RejectKind::Icmpx).with_code(Some(1)).into();
        fake.apply(&[
            Operation::add(Table::new(table)),
            Operation::add(Chain::new(chain.clone()).with_base(filter)),
            Operation::add(Rule::new(chain, vec![reject])),
        ])
        .unwrap();
        assert_eq!(
            fake.evaluate(Hook::Input, tcp("10.0.0.9", "10.0.0.1", 22)).fate,
            fate
        );
    }
}
