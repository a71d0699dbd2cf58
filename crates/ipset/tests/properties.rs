//! Properties of all values: text parses to the value that was printed, ranges expand to exactly their entries, and no message
//! from a kernel and no text makes the crate panic.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_ipset::{
    Client, Comment, Element, Entry, EntryOptions, EntryRange, IfExists, Interface, InterfaceMatching,
    InterfaceSide, IpSets, MacAddress, Network, Operation, Protocol, ProtocolPort, Set, SetFamily, SetName,
    SetType, SkbMark, SkbPriority, Timeout, notation,
};
use kernlink_netlink::Script;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

#[path = "../src/contract/examples.rs"]
#[allow(dead_code, reason = "this test creates no sets")]
mod examples;

fn address(family: SetFamily) -> BoxedStrategy<IpAddr> {
    match family {
        SetFamily::Inet6 => prop_oneof![
            any::<u128>(),
            any::<u32>().prop_map(u128::from),
            any::<u32>().prop_map(|low| 0xffff_0000_0000 | u128::from(low))
        ]
        .prop_map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits)))
        .boxed(),
        _ => any::<u32>()
            .prop_map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
            .boxed(),
    }
}

fn network(family: SetFamily) -> BoxedStrategy<Network> {
    let bits = if family == SetFamily::Inet6 { 128 } else { 32_u8 };
    (address(family), 1..=bits)
        .prop_map(|(address, prefix_len)| Network::new(address, prefix_len).unwrap())
        .boxed()
}

fn port(family: SetFamily) -> BoxedStrategy<ProtocolPort> {
    let icmp = if family == SetFamily::Inet6 {
        Protocol::ICMPV6
    } else {
        Protocol::ICMP
    };
    prop_oneof![
        (prop::sample::select(vec![6, 17, 132, 136]), any::<u16>())
            .prop_map(|(protocol, port)| ProtocolPort::new(Protocol(protocol), port)),
        any::<u16>().prop_map(move |message| ProtocolPort::new(icmp, message)),
        (1..=255_u8).prop_map(|protocol| ProtocolPort::new(Protocol(protocol), 0)),
    ]
    .boxed()
}

/// Names that do not begin with a dash: `ipset` takes some of those for options, so the notation refuses them.
fn name() -> impl Strategy<Value = SetName> {
    "[a-zA-Z0-9_.:~][a-zA-Z0-9_.:~-]{0,30}".prop_map(|text| SetName::new(&text).unwrap())
}

fn element(set_type: SetType, family: SetFamily) -> BoxedStrategy<Element> {
    let ip = move || address(family);
    let net = move || network(family);
    let port = move || port(family);
    let mac = || any::<[u8; 6]>().prop_map(MacAddress);
    match set_type {
        SetType::BitmapIp | SetType::HashIp => ip().prop_map(Element::Ip).boxed(),
        SetType::BitmapIpMac => (ip(), option::of(mac()))
            .prop_map(|(ip, mac)| Element::IpMac { ip, mac })
            .boxed(),
        SetType::BitmapPort => any::<u16>().prop_map(Element::Port).boxed(),
        SetType::HashMac => mac().prop_map(Element::Mac).boxed(),
        SetType::HashIpMac => (ip(), mac())
            .prop_map(|(ip, mac)| Element::IpMac { ip, mac: Some(mac) })
            .boxed(),
        SetType::HashIpMark => (ip(), any::<u32>())
            .prop_map(|(ip, mark)| Element::IpMark { ip, mark })
            .boxed(),
        SetType::HashIpPort => (ip(), port())
            .prop_map(|(ip, port)| Element::IpPort { ip, port })
            .boxed(),
        SetType::HashIpPortIp => (ip(), port(), ip())
            .prop_map(|(ip, port, second)| Element::IpPortIp { ip, port, second })
            .boxed(),
        SetType::HashIpPortNet => (ip(), port(), net())
            .prop_map(|(ip, port, net)| Element::IpPortNet { ip, port, net })
            .boxed(),
        SetType::HashNet => net().prop_map(Element::Net).boxed(),
        SetType::HashNetNet => (net(), net())
            .prop_map(|(net, second)| Element::NetNet { net, second })
            .boxed(),
        SetType::HashNetPort => (net(), port())
            .prop_map(|(net, port)| Element::NetPort { net, port })
            .boxed(),
        SetType::HashNetPortNet => (net(), port(), net())
            .prop_map(|(net, port, second)| Element::NetPortNet { net, port, second })
            .boxed(),
        SetType::HashNetIface => (net(), "[a-z]{1,10}[0-9.]{0,5}", any::<bool>(), any::<bool>())
            .prop_map(|(net, name, is_port, is_prefix)| {
                let mut interface = Interface::new(name.parse().unwrap());
                if is_port {
                    interface.side = InterfaceSide::BridgePort;
                }
                if is_prefix {
                    interface.matching = InterfaceMatching::Prefix;
                }
                Element::NetIface { net, interface }
            })
            .boxed(),
        _ => name().prop_map(Element::Set).boxed(),
    }
}

fn options(set_type: SetType) -> impl Strategy<Value = EntryOptions> {
    let has_network = set_type.to_string().contains("net");
    (
        option::of(0..=2_147_483_u32),
        option::of(any::<u64>()),
        option::of(any::<u64>()),
        // Comments that begin with a dash are excluded for the same reason as names.
        option::of("([ -!#-,.-~äöü][ -!#-~äöü]{0,99})?"),
        option::of(any::<(u32, u32)>()),
        option::of(any::<(u16, u16)>()),
        option::of(any::<u16>()),
        any::<bool>(),
    )
        .prop_map(
            move |(timeout, packets, bytes, comment, mark, priority, queue, nomatch)| EntryOptions {
                timeout: timeout.map(|seconds| Timeout::from_secs(seconds).unwrap()),
                packets,
                bytes,
                comment: comment.map(|text| Comment::new(&text).unwrap()),
                skb_mark: mark.map(|(mark, mask)| SkbMark { mark, mask }),
                skb_priority: priority.map(|(major, minor)| SkbPriority { major, minor }),
                skb_queue: queue,
                nomatch: nomatch && has_network,
                position: None,
            },
        )
}

fn entry() -> impl Strategy<Value = (SetType, SetFamily, Entry)> {
    let kinds: Vec<_> = SetType::ALL
        .iter()
        .flat_map(|kind| kind.families().iter().map(move |family| (*kind, *family)))
        .collect();
    prop::sample::select(kinds).prop_flat_map(|(set_type, family)| {
        (element(set_type, family), options(set_type))
            .prop_map(move |(element, options)| (set_type, family, Entry::new(element).with_options(options)))
    })
}

proptest! {
    #[test]
    fn the_text_of_an_entry_parses_to_the_entry((set_type, family, entry) in entry()) {
        prop_assert_eq!(entry.element().check(set_type, family), Ok(()));
        prop_assert_eq!(Entry::parse(&entry.to_string(), set_type, family), Ok(entry));
    }

    #[test]
    fn the_text_of_operations_parses_to_the_operations(
        set in name(),
        (set_type, family, entry) in entry(),
        if_exists in prop::sample::select(vec![IfExists::Fail, IfExists::Succeed]),
    ) {
        let operations = [
            Operation::Create { set: Box::new(Set::new(set, set_type).with_family(family)), if_exists },
            Operation::Add { set, entry: entry.clone(), if_exists },
            Operation::Delete { set, entry, if_exists },
            Operation::Destroy { set, if_exists },
        ];
        let text = notation::render(&operations).unwrap();
        prop_assert_eq!(notation::parse(&text).unwrap(), operations, "{}", text);
    }

    #[test]
    fn entries_with_equal_text_are_equal((_, _, a) in entry(), (_, _, b) in entry()) {
        // Only entries of one kind: the same text can be an address in one kind and a network in another.
        if a.element().dimensions() == b.element().dimensions() {
            prop_assert_eq!(a == b, a.to_string() == b.to_string());
        }
    }

    #[test]
    fn a_range_of_addresses_is_covered_exactly(first in any::<u32>(), length in 0..5000_u32, probe in any::<u32>()) {
        let last = first.saturating_add(length);
        let v4 = |bits| IpAddr::V4(Ipv4Addr::from_bits(bits));
        let networks = Network::cover(v4(first), v4(last));
        let total: u64 = networks.iter().map(|network| 1 << (32 - network.prefix_len())).sum();
        prop_assert_eq!(total, u64::from(last - first) + 1);
        for probe in [first, last, probe, first.wrapping_sub(1), last.wrapping_add(1)] {
            let is_inside = (first..=last).contains(&probe);
            prop_assert_eq!(networks.iter().filter(|network| network.contains(v4(probe))).count(), usize::from(is_inside));
        }
    }

    #[test]
    fn a_range_expands_to_as_many_entries_as_it_counts(
        first in any::<u32>(), addresses in 0..20_u32, port in any::<u16>(), ports in 0..20_u16,
    ) {
        let element = Element::IpPort { ip: IpAddr::V4(Ipv4Addr::from_bits(first)), port: ProtocolPort::udp(port) };
        let range = EntryRange::new(Entry::new(element))
            .with_address_to(IpAddr::V4(Ipv4Addr::from_bits(first.saturating_add(addresses))))
            .with_port_to(port.saturating_add(ports));
        let entries: std::collections::BTreeSet<Entry> = range.entries().collect();
        prop_assert_eq!(entries.len() as u128, range.count());
        let text = range.to_string();
        let read = EntryRange::parse(&text, SetType::HashIpPort, SetFamily::Inet).unwrap();
        prop_assert_eq!(read.entries().collect::<std::collections::BTreeSet<_>>(), entries, "{}", text);
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "(create|add|del|-N|-A)? ?[a-z]{0,3} (hash:ip,port|hash:net,iface|bitmap:port)?.{0,60}") {
        if let Ok(operations) = notation::parse_with(&text, |_| Some((SetType::HashIpPort, SetFamily::Inet))) {
            let _ = notation::render(&operations);
        }
        for &set_type in SetType::ALL {
            let _ = EntryRange::parse(&text, set_type, SetFamily::Inet);
        }
    }

    #[test]
    fn any_answer_is_decoded_or_refused(payload in vec(any::<u8>(), 0..300)) {
        answer_to_everything(&payload);
    }

    #[test]
    fn a_changed_answer_is_decoded_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        for line in include_str!("golden/session.txt").lines().filter(|line| line.starts_with("< ")) {
            let hex = &line[2..];
            let mut bytes: Vec<u8> =
                (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            answer_to_everything(bytes.get(16..).unwrap_or_default());
        }
    }
}

/// Sends every kind of request to a scripted kernel that answers with this payload.
fn answer_to_everything(payload: &[u8]) {
    let message = Script::message(0x0607, 2, payload);
    let client = |messages: usize| {
        let script = (0..messages).fold(Script::new(), |script, _| {
            script
                .expect_anything()
                .answer(&message)
                .done()
                .acknowledge(0, Ok(()))
        });
        Client::from_connection(script.connect().unwrap())
    };
    let set = SetName::new("a").unwrap();
    let _ = client(8).list();
    let _ = client(8).list_set(&set);
    let _ = client(8).headers();
    let _ = client(8).names();
    let _ = client(8).index_of(&set);
    let _ = client(8).name_of(1);
    let _ = client(8).revisions(SetType::HashIp, SetFamily::Inet);
    let _ = client(8).execute(&[
        Operation::add(set, Entry::port(1)),
        Operation::add(set, Entry::port(2)),
    ]);
}

#[test]
fn the_text_of_every_example_parses_to_the_entry() {
    for (set, entries) in examples::examples() {
        for entry in entries {
            assert_eq!(
                Entry::parse(&entry.to_string(), set.set_type, set.family),
                Ok(entry)
            );
        }
    }
}
