//! Properties: round trips with a scripted kernel, and replacing any addresses by any others.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_dummylink::{
    AddressFlags, AddressKey, AddressProtocol, Client, DummyLinks, Fake, Label, Lifetime, Link, LinkAddress,
    LinkName, LocalRoute, Operation, Ownership, Scope, Selection, uapi,
};
use kernlink_netlink::Script;
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_route::RouteNetlinkMessage;
use proptest::prelude::*;

fn key() -> impl Strategy<Value = AddressKey> {
    let ipv4 = (any::<u32>(), 0..=32u8).prop_map(|(bits, length)| (IpAddr::from(bits.to_be_bytes()), length));
    let ipv6 =
        (any::<u128>(), 0..=128u8).prop_map(|(bits, length)| (IpAddr::from(bits.to_be_bytes()), length));
    let peer = proptest::option::of((any::<u32>(), any::<u128>()));
    (prop_oneof![ipv4, ipv6], peer).prop_filter_map("unspecified", |((address, length), peer)| {
        let key = AddressKey::new(address, length).ok()?;
        match (address, peer) {
            (_, None) => Some(key),
            (IpAddr::V4(_), Some((peer, _))) => key.with_peer(peer.to_be_bytes().into()).ok(),
            (IpAddr::V6(_), Some((_, peer))) => key.with_peer(peer.to_be_bytes().into()).ok(),
        }
    })
}

fn address() -> impl Strategy<Value = LinkAddress> {
    (
        key(),
        any::<u8>(),
        any::<u32>(),
        any::<u32>(),
        any::<u8>(),
        proptest::option::of("[a-z:]{1,15}"),
        proptest::option::of(any::<u32>()),
        proptest::option::of((1..u32::MAX, 0..u32::MAX)),
    )
        .prop_map(|(key, scope, flags, metric, owner, label, broadcast, lifetime)| {
            let mut address = LinkAddress::new(key)
                .with_scope(Scope::from(scope))
                .with_flags(AddressFlags::from_bits_retain(flags))
                .with_metric(metric)
                .with_protocol(AddressProtocol(owner));
            if let Some((valid, preferred)) = lifetime {
                address = address.with_lifetime(Lifetime { valid, preferred });
            }
            if key.address().is_ipv4() {
                address.label = label.map(|label| Label::new(&label).unwrap());
                address.broadcast = broadcast.map(Into::into);
            }
            address
        })
}

fn link() -> LinkName {
    "prop0".parse().unwrap()
}

/// A link as netlink-packet-route encodes it.
fn link_reply() -> Vec<u8> {
    use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
    let mut message = LinkMessage::default();
    message.header.index = 0x1234;
    message.attributes.push(LinkAttribute::IfName("prop0".to_owned()));
    message
        .attributes
        .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Dummy)]));
    let mut payload = vec![0; message.buffer_len()];
    message.emit(&mut payload);
    Script::message(uapi::RTM_NEWLINK, 0, &payload)
}

fn resolved() -> Script {
    Script::new()
        .expect_anything()
        .answer(&link_reply())
        .acknowledge(0, Ok(()))
}

/// The request that the client sends for an operation, taken from the error of a script that expects another one.
fn sent(operation: Operation) -> Vec<u8> {
    let mut client = Client::from(resolved().expect(&[0; 16]).connect().unwrap());
    let error = client.execute_one(operation).unwrap_err();
    let text = format!("{error:?}");
    let hex = text.split("sent: \"").nth(1).unwrap().split('"').next().unwrap();
    let hex: String = hex.split_whitespace().collect();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

proptest! {
    /// An address in a request is decoded as the same address from an answer.
    #[test]
    fn an_address_is_decoded_as_it_was_encoded(address in address()) {
        let message = sent(Operation::AddAddress(link(), address.clone()));
        let reply = Script::message(uapi::RTM_NEWADDR, 2, &message[16..]);
        let mut client = Client::from(resolved().expect_anything().answer(&reply).done().connect().unwrap());
        let listed = client.list(Selection::On(link())).unwrap();
        prop_assert_eq!(listed.len(), 1);
        prop_assert_eq!(&listed[0].address, &address);
        prop_assert_eq!(listed[0].link_index, 0x1234);
        // netlink-packet-route can decode the message too.
        let parsed = RouteNetlinkMessage::parse_with_param(&message[16..], uapi::RTM_NEWADDR);
        prop_assert!(matches!(parsed, Ok(RouteNetlinkMessage::NewAddress(_))), "{parsed:?}");
    }

    /// The same for a route.
    #[test]
    fn a_route_is_decoded_as_it_was_encoded(key in key()) {
        let route = LocalRoute::new(IpNet::new(key.address(), key.prefix_length()).unwrap());
        let message = sent(Operation::AddRoute(link(), route));
        let reply = Script::message(uapi::RTM_NEWROUTE, 2, &message[16..]);
        let script = resolved().expect_anything().answer(&reply).done().expect_anything().done();
        let mut client = Client::from(script.connect().unwrap());
        prop_assert_eq!(client.routes(&link()).unwrap(), [route]);
    }

    /// No answer of a kernel causes a panic.
    #[test]
    fn arbitrary_answers_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 16u16..27) {
        let reply = Script::message(kind, 2, &bytes);
        for _ in 0..2 {
            let mut client = Client::from(resolved().expect_anything().answer(&reply).done().connect().unwrap());
            let _anything = client.list(Selection::On(link()));
            let mut client = Client::from(Script::new().expect_anything().answer(&reply).done().connect().unwrap());
            let _anything: Result<Vec<Link>, _> = client.links();
            let script = resolved().expect_anything().answer(&reply).done().expect_anything().answer(&reply).done();
            let _anything = Client::from(script.connect().unwrap()).routes(&link());
        }
    }

    /// A printed key is parsed as the same key.
    #[test]
    fn a_printed_key_is_parsed_as_the_same_key(key in key()) {
        prop_assert_eq!(key.to_string().parse::<AddressKey>().unwrap(), key);
    }

    /// Replacing changes any set of addresses to any other, keeps foreign ones, and changes nothing the second
    /// time.
    #[test]
    fn replacing_results_in_the_desired_addresses(
        before in proptest::collection::vec((0u8..6, 0u8..4, 0u8..3), 0..12),
        desired in proptest::collection::vec((0u8..6, 0u8..4, 0u8..3), 0..12),
    ) {
        let link = link();
        let make = |(host, net, length): &(u8, u8, u8)| {
            let length = [32, 24, 16][usize::from(*length)];
            LinkAddress::new(AddressKey::new([10, 0, *net, host + 1].into(), length).unwrap())
        };
        // Network 3 is foreign.
        let ownership = Ownership::Within((0..3).map(|net| IpNet::new([10, 0, net, 0].into(), 24).unwrap()).collect());
        let desired: Vec<_> = desired.iter().filter(|(_, net, _)| *net < 3).map(make).collect();
        let mut host = Fake::new().with_link(link, Some("dummy"), &[]);
        for address in before.iter().map(make) {
            let _twice = host.add(&link, &address);
        }
        let route = LocalRoute::new(IpNet::new([10, 96, 0, 0].into(), 12).unwrap());
        host.add_route(&link, &route).unwrap();
        let keys = |host: &mut Fake| -> BTreeSet<AddressKey> {
            host.list(Selection::On(link)).unwrap().iter().map(|seen| seen.address.key).collect()
        };
        // The kernel deletes a foreign secondary address together with an owned primary one. These are not
        // checked; all other foreign addresses remain.
        let independent_foreign: BTreeSet<_> =
            keys(&mut host).into_iter().filter(|key| !ownership.is_owned(&LinkAddress::new(*key)) && key.prefix_length() != 16).collect();
        let report = host.replace(&link, &desired, &ownership).unwrap();
        prop_assert_eq!(&report.failures, &[]);
        let after = keys(&mut host);
        let desired_keys: BTreeSet<_> = desired.iter().map(|address| address.key).collect();
        let owned_after: BTreeSet<_> = after.iter().copied().filter(|key| ownership.is_owned(&LinkAddress::new(*key))).collect();
        prop_assert_eq!(&owned_after, &desired_keys);
        prop_assert!(independent_foreign.is_subset(&after));
        prop_assert_eq!(host.routes(&link).unwrap(), [route]);
        let again = host.replace(&link, &desired, &ownership).unwrap();
        prop_assert_eq!(again.done, 0);
    }
}
