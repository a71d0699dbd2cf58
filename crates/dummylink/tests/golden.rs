//! Messages that `ip` of iproute2 6.1.0 sent and Linux 6.1.192 answered, captured with
//! `strace -e write=all -e read=all`. A script takes the place of the kernel and accepts only those requests.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::net::Ipv4Addr;

use kernlink_dummylink::{
    AddressFlags, Client, DummyLink, DummyLinks, HostAddress, Label, Lifetime, LinkAddress, LinkFlags,
    LinkName, LocalRoute, Operation, Scope, Selection, uapi,
};
use kernlink_netlink::{Errno, Script};

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text: String = fs::read_to_string(&path).unwrap().split_whitespace().collect();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn link() -> LinkName {
    "golden0".parse().unwrap()
}

/// A script that begins with the lookup of the link, which precedes every operation on its addresses.
fn resolved() -> Script {
    Script::new()
        .expect_anything()
        .answer(&golden("link.reply"))
        .acknowledge(0, Ok(()))
}

fn assert_sends(operation: Operation, name: &str) {
    let script = resolved().expect(&golden(name)).acknowledge(0, Ok(()));
    let mut client = Client::from(script.connect().unwrap());
    assert_eq!(client.execute_one(operation), Ok(()), "{name}");
}

fn ipv4() -> LinkAddress {
    LinkAddress::new("10.1.2.3/24".parse().unwrap())
        .with_broadcast(Ipv4Addr::new(10, 1, 2, 255))
        .with_scope(Scope::Link)
        .with_label(Label::new("golden0:x").unwrap())
        .with_metric(7)
        .with_flags(AddressFlags::NO_PREFIX_ROUTE)
        .with_lifetime(Lifetime {
            valid: 0x1234,
            preferred: 0x456,
        })
}

fn ipv6() -> LinkAddress {
    LinkAddress::new("fd00:1234::5/112".parse().unwrap())
}

/// `ip link add name golden0 mtu 1400 type dummy`
#[test]
fn a_dummy_link_is_added_as_ip_adds_it() {
    let script = Script::new()
        .expect(&golden("add-link.request"))
        .acknowledge(0, Ok(()));
    let mut client = Client::from(script.connect().unwrap());
    client.add_link(&DummyLink::new(link()).with_mtu(1400)).unwrap();
}

/// `ip link set golden0 alias abc`
#[test]
fn an_alias_is_set_as_ip_sets_it() {
    // The reply was captured with this alias; it gets another one.
    let mut plain = golden("link.reply");
    let at = plain.windows(4).position(|bytes| bytes == b"abc\0").unwrap();
    plain[at..at + 3].copy_from_slice(b"old");
    let script = Script::new()
        .expect_anything()
        .answer(&plain)
        .acknowledge(0, Ok(()))
        .expect(&golden("alias.request"))
        .acknowledge(0, Ok(()));
    let mut client = Client::from(script.connect().unwrap());
    client
        .ensure_link(&DummyLink::new(link()).with_alias("abc"))
        .unwrap();
}

/// `ip address add 10.1.2.3/24 broadcast 10.1.2.255 scope link label golden0:x metric 7 noprefixroute
/// valid_lft 4660 preferred_lft 1110 dev golden0`
#[test]
fn an_ipv4_address_with_all_attributes_is_added_as_ip_adds_it() {
    assert_sends(Operation::AddAddress(link(), ipv4()), "add-ipv4.request");
}

/// `ip address add 10.1.2.4/32 dev golden0`
#[test]
fn a_plain_ipv4_address_is_added_as_ip_adds_it() {
    let address = LinkAddress::host([10, 1, 2, 4].into()).unwrap();
    assert_sends(Operation::AddAddress(link(), address), "add-ipv4-plain.request");
}

/// `ip address add fd00:1234::5/112 nodad dev golden0`
#[test]
fn an_ipv6_address_is_added_as_ip_adds_it() {
    assert_sends(Operation::AddAddress(link(), ipv6()), "add-ipv6.request");
}

/// `ip address delete fd00:1234::5/112 nodad dev golden0`
#[test]
fn an_ipv6_address_is_deleted_as_ip_deletes_it() {
    assert_sends(
        Operation::DeleteAddress(link(), ipv6().key),
        "delete-ipv6.request",
    );
}

/// `ip route add local 10.96.0.0/12 dev golden0 table local proto static`, and `delete`
#[test]
fn a_local_route_is_added_and_deleted_as_ip_does_it() {
    let route = LocalRoute::new("10.96.0.0/12".parse().unwrap());
    assert_sends(Operation::AddRoute(link(), route), "add-route.request");
    assert_sends(Operation::DeleteRoute(link(), route), "delete-route.request");
}

/// `ip -d link show dev golden0`
#[test]
fn a_link_is_decoded() {
    let mut client = Client::from(resolved().connect().unwrap());
    let read = client.link(&link()).unwrap().unwrap();
    assert_eq!(
        (read.index, read.name, read.kind.as_deref()),
        (2, link(), Some("dummy"))
    );
    assert_eq!((read.mtu, read.alias.as_deref()), (1400, Some("abc")));
    assert_eq!(read.flags, LinkFlags::BROADCAST | LinkFlags::NO_ARP);
    assert_eq!(read.to_string(), "2: golden0 mtu 1400 down dummy alias \"abc\"");
}

/// `ip -d address show`: links, then the addresses of both families
#[test]
fn all_addresses_are_decoded_with_their_links() {
    let script = Script::new()
        .expect_anything()
        .answer(&golden("links-first.reply"))
        .answer(&golden("links-second.reply"))
        .done()
        .expect_anything()
        .answer(&golden("addresses-ipv4.reply"))
        .answer(&golden("addresses-ipv6.reply"))
        .done();
    let mut client = Client::from(script.connect().unwrap());
    let listed = client.list(Selection::All).unwrap();
    let texts: Vec<_> = listed.iter().map(HostAddress::to_string).collect();
    assert_eq!(
        texts,
        [
            "10.1.2.3/24 broadcast 10.1.2.255 scope link label golden0:x metric 7 noprefixroute \
             valid_lft 4657 preferred_lft 1107 dev golden0",
            "10.1.2.4/32 dev golden0",
            "10.5.0.1 peer 10.5.6.0/24 dev v0",
            "fd00:1234::5/112 nodad dev golden0",
        ]
    );
    let first = &listed[0].address;
    let lifetime = first.lifetime;
    assert_eq!(*first, ipv4().with_lifetime(lifetime));
    assert_eq!(
        listed[3].address,
        ipv6().with_flags(AddressFlags::NO_DAD | AddressFlags::PERMANENT)
    );
    assert_eq!(listed[2].address.key.peer(), Some([10, 5, 6, 0].into()));
}

/// `ip route show table local`
#[test]
fn local_routes_that_the_kernel_added_are_ignored() {
    let script = resolved()
        .expect_anything()
        .answer(&golden("routes.reply"))
        .done()
        .expect_anything()
        .done();
    let mut client = Client::from(script.connect().unwrap());
    let routes = client.routes(&link()).unwrap();
    assert_eq!(routes, [LocalRoute::new("10.96.0.0/12".parse().unwrap())]);
}

#[test]
fn an_interrupted_listing_is_repeated() {
    let mut interrupted = golden("addresses-ipv4.reply");
    // NLM_F_DUMP_INTR in the flags of the first message.
    interrupted[6] |= 0x10;
    // The request is for all links, also to list one: otherwise the kernel does not set this flag.
    let request = Script::message(uapi::RTM_GETADDR, 0x301, &[0; 8]);
    let script = resolved()
        .expect(&request)
        .answer(&interrupted)
        .done()
        .expect(&request)
        .answer(&golden("addresses-ipv4.reply"))
        .done();
    let mut client = Client::from(script.connect().unwrap());
    assert_eq!(client.list(Selection::On(link())).unwrap().len(), 2);
}

#[test]
fn a_listing_that_fails_at_its_end_is_an_error() {
    // A kernel with strict checking reports a missing link in NLMSG_DONE.
    let end = Script::message(3, 2, &(-19i32).to_ne_bytes());
    let mut client = Client::from(resolved().expect_anything().answer(&end).connect().unwrap());
    let error = client.list(Selection::On(link())).unwrap_err();
    assert!(error.is_link_missing(), "{error:?}");
}

#[test]
fn each_operation_of_a_batch_on_a_missing_link_has_its_own_text() {
    // The link is looked up once.
    let script = Script::new()
        .expect_anything()
        .acknowledge(0, Err(Errno::ENODEV))
        .expect(&[]);
    let mut client = Client::from(script.connect().unwrap());
    let operations = [
        Operation::AddAddress(link(), ipv4()),
        Operation::DeleteAddress(link(), ipv6().key),
    ];
    for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
        let error = outcome.unwrap_err();
        assert!(error.is_link_missing(), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!("{operation} failed: link golden0 does not exist")
        );
    }
}

#[test]
fn a_missing_module_is_distinguished_from_other_errors() {
    let script = Script::new()
        .expect_anything()
        .acknowledge(0, Err(Errno::ENODEV))
        .expect_anything()
        .acknowledge(0, Err(Errno::EOPNOTSUPP));
    let mut client = Client::from(script.connect().unwrap());
    let error = client.ensure_link(&DummyLink::new(link())).unwrap_err();
    assert!(error.is_module_missing() && error.is_unsupported(), "{error:?}");
    assert_eq!(
        error.to_string(),
        "link replace golden0 type dummy failed: the kernel module dummy is missing; load it with `modprobe dummy` as root on the host"
    );
}
