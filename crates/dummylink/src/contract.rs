//! The behaviour that every implementation of [`DummyLinks`] must show.
//!
//! Each check takes an implementation over an empty host, as a fresh network namespace is one, and
//! panics where it behaves otherwise. They run on [`Fake`](crate::Fake) in this crate's unit tests
//! and on the kernel in the kernel tests.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a check says what is wrong by panicking"
)]

use std::collections::BTreeSet;

use crate::{
    AddressFlags, AddressKey, DummyLink, DummyLinks, HostAddress, Lifetime, LinkAddress, LinkFlags, LinkName,
    LinkState, LocalRoute, Operation, Ours, Owner, Scope, Selection,
};

/// A check with its name.
pub type Check = (&'static str, fn(&mut dyn DummyLinks));

/// All checks.
pub const CHECKS: &[Check] = &[
    (
        "a_link_is_ensured_once_and_deleted_once",
        a_link_is_ensured_once_and_deleted_once,
    ),
    (
        "ensuring_changes_only_what_is_asked",
        ensuring_changes_only_what_is_asked,
    ),
    (
        "a_link_of_another_kind_is_refused_and_left_alone",
        a_link_of_another_kind_is_refused_and_left_alone,
    ),
    (
        "operations_on_a_missing_link_say_so",
        operations_on_a_missing_link_say_so,
    ),
    (
        "addresses_are_added_listed_and_deleted",
        addresses_are_added_listed_and_deleted,
    ),
    (
        "the_key_of_an_address_is_address_prefix_and_link",
        the_key_of_an_address_is_address_prefix_and_link,
    ),
    (
        "an_ipv6_address_has_one_prefix_length_a_link",
        an_ipv6_address_has_one_prefix_length_a_link,
    ),
    (
        "settings_of_an_address_come_back",
        settings_of_an_address_come_back,
    ),
    (
        "what_cannot_be_an_address_here_is_refused",
        what_cannot_be_an_address_here_is_refused,
    ),
    ("listings_select_by_link", listings_select_by_link),
    (
        "each_operation_of_a_batch_has_its_outcome",
        each_operation_of_a_batch_has_its_outcome,
    ),
    (
        "thousands_of_addresses_go_in_one_batch",
        thousands_of_addresses_go_in_one_batch,
    ),
    (
        "deleting_a_link_takes_its_addresses_along",
        deleting_a_link_takes_its_addresses_along,
    ),
    (
        "replacing_makes_the_smallest_change",
        replacing_makes_the_smallest_change,
    ),
    (
        "replacing_changes_a_prefix_length",
        replacing_changes_a_prefix_length,
    ),
    (
        "replacing_leaves_what_is_foreign",
        replacing_leaves_what_is_foreign,
    ),
    (
        "replacing_restores_what_a_primary_took_along",
        replacing_restores_what_a_primary_took_along,
    ),
    (
        "a_local_route_is_added_listed_and_deleted",
        a_local_route_is_added_listed_and_deleted,
    ),
    (
        "an_ipv6_local_route_needs_the_link_up",
        an_ipv6_local_route_needs_the_link_up,
    ),
    (
        "deleting_the_last_ipv4_address_deletes_the_ipv4_routes",
        deleting_the_last_ipv4_address_deletes_the_ipv4_routes,
    ),
    (
        "replacing_keeps_the_local_routes",
        replacing_keeps_the_local_routes,
    ),
    ("a_peer_is_part_of_the_key", a_peer_is_part_of_the_key),
    (
        "replacing_deletes_and_changes_peers",
        replacing_deletes_and_changes_peers,
    ),
    ("a_link_set_down_loses_its_ipv6", a_link_set_down_loses_its_ipv6),
    ("a_small_mtu_takes_the_addresses", a_small_mtu_takes_the_addresses),
    (
        "replacing_deletes_link_local_addresses_that_are_ours",
        replacing_deletes_link_local_addresses_that_are_ours,
    ),
    ("an_address_is_changed_in_place", an_address_is_changed_in_place),
    ("an_empty_batch_has_no_outcomes", an_empty_batch_has_no_outcomes),
];

fn name(text: &str) -> LinkName {
    text.parse().unwrap()
}

fn key(text: &str) -> AddressKey {
    text.parse().unwrap()
}

fn address(text: &str) -> LinkAddress {
    LinkAddress::new(key(text))
}

fn route(text: &str) -> LocalRoute {
    LocalRoute::new(text.parse().unwrap())
}

/// A dummy link for a check.
fn ensured(host: &mut dyn DummyLinks, text: &str) -> LinkName {
    let link = name(text);
    host.ensure_link(&DummyLink::new(link)).unwrap();
    link
}

fn keys(host: &mut dyn DummyLinks, link: LinkName) -> BTreeSet<AddressKey> {
    let listed = host.list(Selection::On(link)).unwrap();
    let keys: BTreeSet<_> = listed.iter().map(|seen| seen.address.key).collect();
    assert_eq!(
        keys.len(),
        listed.len(),
        "an address was listed twice: {listed:?}"
    );
    keys
}

fn set<const N: usize>(texts: [&str; N]) -> BTreeSet<AddressKey> {
    texts.into_iter().map(key).collect()
}

/// Ensuring twice is success, adding twice and deleting twice are not.
pub fn a_link_is_ensured_once_and_deleted_once(host: &mut dyn DummyLinks) {
    let link = name("contract0");
    assert!(!host.exists(&link).unwrap());
    assert!(host.delete_link(&link).unwrap_err().is_not_found());
    host.ensure_link(&DummyLink::new(link)).unwrap();
    assert!(host.exists(&link).unwrap());
    let first = host.link(&link).unwrap().unwrap();
    assert!(first.is_dummy());
    assert_eq!(first.state(), LinkState::Down);
    assert!(first.flags.contains(LinkFlags::NO_ARP), "{first:?}");
    host.ensure_link(&DummyLink::new(link)).unwrap();
    assert_eq!(host.link(&link).unwrap().unwrap(), first);
    assert!(
        host.add_link(&DummyLink::new(link))
            .unwrap_err()
            .is_already_exists()
    );
    host.delete_link(&link).unwrap();
    assert!(!host.exists(&link).unwrap());
    assert_eq!(host.link(&link).unwrap(), None);
    let error = host.delete_link(&link).unwrap_err();
    assert!(error.is_link_missing() && error.is_not_found(), "{error:?}");
    host.add_link(&DummyLink::new(link)).unwrap();
    host.delete_link(&link).unwrap();
}

/// State, MTU and alias are set when asked for and stay otherwise.
pub fn ensuring_changes_only_what_is_asked(host: &mut dyn DummyLinks) {
    let link = name("contract1");
    let wanted = DummyLink::new(link)
        .with_state(LinkState::Up)
        .with_mtu(9000)
        .with_alias("virtual addresses");
    host.ensure_link(&wanted).unwrap();
    let made = host.link(&link).unwrap().unwrap();
    assert!(wanted.is_met_by(&made), "{made:?}");
    host.ensure_link(&DummyLink::new(link)).unwrap();
    assert!(wanted.is_met_by(&host.link(&link).unwrap().unwrap()));
    host.ensure_link(&DummyLink::new(link).with_state(LinkState::Down))
        .unwrap();
    let down = host.link(&link).unwrap().unwrap();
    assert_eq!(
        (down.state(), down.mtu, down.alias.as_deref()),
        (LinkState::Down, 9000, Some("virtual addresses"))
    );
    host.ensure_link(&DummyLink::new(link).with_alias("").with_mtu(1400))
        .unwrap();
    let plain = host.link(&link).unwrap().unwrap();
    assert_eq!(
        (plain.mtu, plain.alias.as_deref(), plain.index),
        (1400, None, made.index)
    );
    let long = "a".repeat(256);
    assert!(host.ensure_link(&DummyLink::new(link).with_alias(&long)).is_err());
    host.ensure_link(&DummyLink::new(link).with_alias(long.get(1..).unwrap()))
        .unwrap();
    host.delete_link(&link).unwrap();
}

/// The loopback link is of no kind: nothing here changes it.
pub fn a_link_of_another_kind_is_refused_and_left_alone(host: &mut dyn DummyLinks) {
    let lo = name("lo");
    let before = (host.link(&lo).unwrap(), host.list(Selection::On(lo)).unwrap());
    let wanted = DummyLink::new(lo)
        .with_mtu(1400)
        .with_alias("mine")
        .with_state(LinkState::Down);
    for operation in [
        Operation::EnsureLink(wanted),
        Operation::DeleteLink(lo),
        Operation::AddAddress(lo, address("10.1.1.1/32")),
        Operation::EnsureAddress(lo, address("10.1.1.1/32")),
        Operation::DeleteAddress(lo, key("127.0.0.1/8")),
        Operation::AddRoute(lo, route("10.1.0.0/16")),
        Operation::EnsureRoute(lo, route("10.1.0.0/16")),
        Operation::DeleteRoute(lo, route("10.1.0.0/16")),
    ] {
        let error = host.execute_one(operation.clone()).unwrap_err();
        assert!(error.is_wrong_kind(), "{operation}: {error:?}");
        assert!(error.to_string().contains("lo"), "{error}");
    }
    assert!(host.exists(&lo).unwrap_err().is_wrong_kind());
    assert!(
        host.add_link(&DummyLink::new(lo))
            .unwrap_err()
            .is_already_exists()
    );
    assert_eq!(
        (host.link(&lo).unwrap(), host.list(Selection::On(lo)).unwrap()),
        before
    );
}

/// All of them, reading too.
pub fn operations_on_a_missing_link_say_so(host: &mut dyn DummyLinks) {
    let link = name("contract-none");
    for operation in [
        Operation::AddAddress(link, address("10.1.1.1/32")),
        Operation::EnsureAddress(link, address("fd00::1/128")),
        Operation::DeleteAddress(link, key("127.0.0.1/8")),
        Operation::AddRoute(link, route("10.1.0.0/16")),
        Operation::DeleteRoute(link, route("10.1.0.0/16")),
        Operation::DeleteLink(link),
    ] {
        let error = host.execute_one(operation.clone()).unwrap_err();
        assert!(
            error.is_link_missing() && error.is_not_found(),
            "{operation}: {error:?}"
        );
    }
    // Each in its own words, also in a batch.
    let batch = [
        Operation::AddAddress(link, address("10.1.1.1/32")),
        Operation::DeleteAddress(link, key("10.1.1.2/32")),
        Operation::UpdateAddress(link, address("10.1.1.3/32")),
    ];
    for (operation, outcome) in batch.iter().zip(host.execute(&batch)) {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(&operation.to_string()), "{operation}: {text}");
    }
    assert!(host.list(Selection::On(link)).unwrap_err().is_link_missing());
    assert!(host.routes(&link).unwrap_err().is_link_missing());
    host.list(Selection::Except(link)).unwrap();
}

/// Both families; adding twice and deleting twice fail, ensuring twice does not.
pub fn addresses_are_added_listed_and_deleted(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract2");
    assert_eq!(keys(host, link), set([]));
    for text in ["10.1.2.3/32", "fd00:1:2::3/128"] {
        host.add(&link, &address(text)).unwrap();
        let error = host.add(&link, &address(text)).unwrap_err();
        assert!(error.is_already_exists(), "{error:?}");
        host.ensure(&link, &address(text)).unwrap();
    }
    host.ensure(&link, &address("10.1.2.4/32")).unwrap();
    assert_eq!(
        keys(host, link),
        set(["10.1.2.3/32", "10.1.2.4/32", "fd00:1:2::3/128"])
    );
    for text in ["10.1.2.3/32", "fd00:1:2::3/128", "10.1.2.4/32"] {
        host.delete(&link, &key(text)).unwrap();
        let error = host.delete(&link, &key(text)).unwrap_err();
        assert!(error.is_not_found() && !error.is_link_missing(), "{error:?}");
    }
    assert_eq!(keys(host, link), set([]));
    host.delete_link(&link).unwrap();
}

/// The same IPv4 address lies on a link twice with two prefix lengths, and on two links.
pub fn the_key_of_an_address_is_address_prefix_and_link(host: &mut dyn DummyLinks) {
    let (one, two) = (ensured(host, "contract3"), ensured(host, "contract4"));
    host.add(&one, &address("10.1.2.3/32")).unwrap();
    host.add(&one, &address("10.1.2.3/24")).unwrap();
    host.add(&two, &address("10.1.2.3/32")).unwrap();
    host.add(&one, &address("fd00::3/128")).unwrap();
    host.add(&two, &address("fd00::3/128")).unwrap();
    assert!(host.delete(&one, &key("10.1.2.3/30")).unwrap_err().is_not_found());
    assert!(host.delete(&one, &key("fd00::3/64")).unwrap_err().is_not_found());
    host.delete(&one, &key("10.1.2.3/32")).unwrap();
    assert_eq!(keys(host, one), set(["10.1.2.3/24", "fd00::3/128"]));
    assert_eq!(keys(host, two), set(["10.1.2.3/32", "fd00::3/128"]));
    host.delete_link(&one).unwrap();
    host.delete_link(&two).unwrap();
}

/// So ensuring it with another one is an error and not a success that is none.
pub fn an_ipv6_address_has_one_prefix_length_a_link(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract5");
    host.add(&link, &address("fd00::5/128")).unwrap();
    assert!(
        host.add(&link, &address("fd00::5/64"))
            .unwrap_err()
            .is_already_exists()
    );
    assert!(
        host.ensure(&link, &address("fd00::5/64"))
            .unwrap_err()
            .is_already_exists()
    );
    assert_eq!(keys(host, link), set(["fd00::5/128"]));
    host.delete_link(&link).unwrap();
}

/// Scope, label, broadcast address, flags and lifetime.
pub fn settings_of_an_address_come_back(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract6");
    let ipv4 = address("10.1.6.1/24")
        .with_scope(Scope::Link)
        .with_label("contract6:x".parse().unwrap())
        .with_broadcast([10, 1, 6, 255].into())
        .with_flags(AddressFlags::NO_PREFIX_ROUTE)
        .with_owner(Owner::KERNLINK);
    let ipv6 = address("fd00::6/64")
        .with_flags(AddressFlags::NO_DAD | AddressFlags::NO_PREFIX_ROUTE)
        .with_lifetime(Lifetime {
            valid: 86_400,
            preferred: 43_200,
        });
    let plain = address("10.1.7.1/32");
    for wanted in [&ipv4, &ipv6, &plain] {
        host.add(&link, wanted).unwrap();
    }
    let listed = host.list(Selection::On(link)).unwrap();
    let find = |wanted: &LinkAddress| -> &LinkAddress {
        &listed
            .iter()
            .find(|seen| seen.address.key == wanted.key)
            .unwrap()
            .address
    };
    let got = find(&ipv4);
    assert_eq!(
        (got.scope, got.label, got.broadcast),
        (ipv4.scope, ipv4.label, ipv4.broadcast)
    );
    assert_eq!(got.flags, AddressFlags::NO_PREFIX_ROUTE | AddressFlags::PERMANENT);
    assert_eq!(got.lifetime, Lifetime::FOREVER);
    let got = find(&ipv6);
    assert_eq!(got.flags, AddressFlags::NO_DAD | AddressFlags::NO_PREFIX_ROUTE);
    // A kernel's seconds may have passed.
    assert!((86_000..=86_400).contains(&got.lifetime.valid), "{got:?}");
    assert!((43_000..=43_200).contains(&got.lifetime.preferred), "{got:?}");
    let got = find(&plain);
    assert_eq!(
        (got.scope, got.label, got.broadcast, got.key.peer()),
        (Scope::Universe, None, None, None)
    );
    host.delete_link(&link).unwrap();
}

/// Multicast, loopback, what only IPv4 has, and two scopes in one IPv4 prefix.
pub fn what_cannot_be_an_address_here_is_refused(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract7");
    for wanted in [
        address("ff02::7/64"),
        address("::1/128"),
        address("fd00::7/128").with_label("x".parse().unwrap()),
        address("fd00::7/128").with_broadcast([10, 0, 0, 1].into()),
        address("10.1.7.7/32").with_lifetime(Lifetime {
            valid: 0,
            preferred: 0,
        }),
        address("10.1.7.7/32").with_lifetime(Lifetime {
            valid: 5,
            preferred: 6,
        }),
    ] {
        let error = host.add(&link, &wanted).unwrap_err();
        assert!(
            !error.is_already_exists() && !error.is_link_missing(),
            "{wanted}: {error:?}"
        );
    }
    assert_eq!(keys(host, link), set([]));
    host.add(&link, &address("10.1.7.1/24")).unwrap();
    host.add(&link, &address("10.1.7.2/24").with_scope(Scope::Host))
        .unwrap_err();
    assert_eq!(keys(host, link), set(["10.1.7.1/24"]));
    host.delete_link(&link).unwrap();
}

/// All links, one, all but one; an address that lies on two links is listed for each.
pub fn listings_select_by_link(host: &mut dyn DummyLinks) {
    let (one, two) = (ensured(host, "contract8"), ensured(host, "contract9"));
    for link in [one, two] {
        host.add(&link, &address("10.1.8.1/32")).unwrap();
        host.add(&link, &address("fd00::8/128")).unwrap();
    }
    let pick = |listed: Vec<HostAddress>| -> BTreeSet<_> {
        listed
            .into_iter()
            .filter(|seen| seen.link != name("lo"))
            .map(|seen| (seen.link, seen.address.key))
            .collect()
    };
    let of = |link: LinkName| {
        set(["10.1.8.1/32", "fd00::8/128"])
            .into_iter()
            .map(move |key| (link, key))
    };
    assert_eq!(
        pick(host.list(Selection::All).unwrap()),
        of(one).chain(of(two)).collect()
    );
    assert_eq!(pick(host.list(Selection::On(two)).unwrap()), of(two).collect());
    assert_eq!(
        pick(host.list(Selection::Except(two)).unwrap()),
        of(one).collect()
    );
    let links = host.links().unwrap();
    for seen in host.list(Selection::All).unwrap() {
        assert!(
            links
                .iter()
                .any(|link| link.name == seen.link && link.index == seen.link_index),
            "{seen}"
        );
    }
    host.delete_link(&one).unwrap();
    host.delete_link(&two).unwrap();
}

/// Same length, same order, whatever fails in between.
pub fn each_operation_of_a_batch_has_its_outcome(host: &mut dyn DummyLinks) {
    let link = name("contract10");
    let missing = name("contract-none");
    let outcomes = host.execute(&[
        Operation::AddAddress(link, address("10.1.10.1/32")),
        Operation::EnsureLink(DummyLink::new(link)),
        Operation::AddAddress(link, address("10.1.10.1/32")),
        Operation::AddAddress(link, address("10.1.10.1/32")),
        Operation::AddAddress(missing, address("10.1.10.2/32")),
        Operation::DeleteAddress(link, key("10.1.10.9/32")),
        Operation::EnsureAddress(link, address("10.1.10.1/32")),
        Operation::AddAddress(link, address("fd00::10/128")),
        Operation::DeleteAddress(link, key("10.1.10.1/32")),
        Operation::DeleteLink(link),
        Operation::AddAddress(link, address("10.1.10.1/32")),
    ]);
    let words: Vec<_> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(()) => "ok",
            Err(error) if error.is_already_exists() => "exists",
            Err(error) if error.is_link_missing() => "no link",
            Err(error) if error.is_not_found() => "not found",
            Err(_) => "other",
        })
        .collect();
    assert_eq!(
        words,
        [
            "no link",
            "ok",
            "ok",
            "exists",
            "no link",
            "not found",
            "ok",
            "ok",
            "ok",
            "ok",
            "no link"
        ],
        "{outcomes:?}"
    );
    assert!(!host.exists(&link).unwrap());
}

/// More than fit unacknowledged into a receive buffer, all succeeding and all failing.
pub fn thousands_of_addresses_go_in_one_batch(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract11");
    let wanted: Vec<_> = (0..3_000_u32)
        .map(|number| LinkAddress::host(std::net::Ipv4Addr::from(0x0a0b_0000 + number).into()).unwrap())
        .collect();
    let add: Vec<_> = wanted
        .iter()
        .map(|one| Operation::AddAddress(link, one.clone()))
        .collect();
    let outcomes = host.execute(&add);
    assert_eq!(outcomes.len(), wanted.len());
    assert!(
        outcomes.iter().all(Result::is_ok),
        "{:?}",
        outcomes.iter().find(|outcome| outcome.is_err())
    );
    assert_eq!(keys(host, link), wanted.iter().map(|one| one.key).collect());
    assert!(
        host.execute(&add)
            .iter()
            .all(|outcome| outcome.as_ref().is_err_and(crate::Error::is_already_exists))
    );
    let delete: Vec<_> = wanted
        .iter()
        .map(|one| Operation::DeleteAddress(link, one.key))
        .collect();
    assert!(host.execute(&delete).iter().all(Result::is_ok));
    assert!(
        host.execute(&delete)
            .iter()
            .all(|outcome| outcome.as_ref().is_err_and(crate::Error::is_not_found))
    );
    host.delete_link(&link).unwrap();
}

/// Without touching those of another link.
pub fn deleting_a_link_takes_its_addresses_along(host: &mut dyn DummyLinks) {
    let (one, two) = (ensured(host, "contract12"), ensured(host, "contract13"));
    host.add(&one, &address("10.1.12.1/32")).unwrap();
    host.add(&two, &address("10.1.12.1/32")).unwrap();
    host.delete_link(&one).unwrap();
    let left: Vec<_> = host.list(Selection::Except(name("lo"))).unwrap();
    assert_eq!(
        left.iter()
            .map(|seen| (seen.link, seen.address.key))
            .collect::<Vec<_>>(),
        [(two, key("10.1.12.1/32"))]
    );
    ensured(host, "contract12");
    assert_eq!(keys(host, one), set([]));
    host.delete_link(&one).unwrap();
    host.delete_link(&two).unwrap();
}

/// What is there stays; doing it again does nothing.
pub fn replacing_makes_the_smallest_change(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract14");
    let wanted = |texts: &[&str]| -> Vec<_> { texts.iter().map(|text| address(text)).collect() };
    let first = host
        .replace(
            &link,
            &wanted(&["10.1.14.1/32", "fd00::14/128", "10.1.14.2/32"]),
            &Ours::Everything,
        )
        .unwrap();
    assert_eq!((first.done, first.failures.len()), (3, 0), "{first:?}");
    let second = host
        .replace(
            &link,
            &wanted(&["10.1.14.3/32", "10.1.14.1/32"]),
            &Ours::Everything,
        )
        .unwrap();
    assert_eq!((second.done, second.failures.len()), (3, 0), "{second:?}");
    assert_eq!(second.difference.missing, [address("10.1.14.3/32")]);
    assert_eq!(keys(host, link), set(["10.1.14.1/32", "10.1.14.3/32"]));
    let third = host
        .replace(
            &link,
            &wanted(&["10.1.14.3/32", "10.1.14.1/32"]),
            &Ours::Everything,
        )
        .unwrap();
    assert_eq!(third.done, 0, "{third:?}");
    let last = host.replace(&link, &[], &Ours::Everything).unwrap();
    assert_eq!(last.done, 2, "{last:?}");
    assert_eq!(keys(host, link), set([]));
    host.delete_link(&link).unwrap();
    assert!(
        host.replace(&link, &[], &Ours::Everything)
            .unwrap_err()
            .is_link_missing()
    );
}

/// Of IPv6 the kernel takes one prefix length, so the old one goes first; of IPv4 both are there.
pub fn replacing_changes_a_prefix_length(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract21");
    host.add(&link, &address("fd00:21::1/64")).unwrap();
    host.add(&link, &address("10.1.21.1/24")).unwrap();
    let wanted = [address("fd00:21::1/128"), address("10.1.21.1/32")];
    let replaced = host.replace(&link, &wanted, &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.failures.len()), (4, 0), "{replaced:?}");
    assert_eq!(keys(host, link), set(["fd00:21::1/128", "10.1.21.1/32"]));
    host.delete_link(&link).unwrap();
}

/// A foreign address on our link and an address of ours on another link: reported, untouched.
pub fn replacing_leaves_what_is_foreign(host: &mut dyn DummyLinks) {
    let (link, other) = (ensured(host, "contract15"), ensured(host, "contract16"));
    host.add(&link, &address("172.16.15.1/24")).unwrap();
    host.add(&link, &address("10.1.15.9/32")).unwrap();
    host.add(&other, &address("10.1.15.1/32")).unwrap();
    let ours = Ours::Within(vec!["10.1.0.0/16".parse().unwrap()]);
    let replaced = host.replace(&link, &[address("10.1.15.1/32")], &ours).unwrap();
    assert_eq!(replaced.failures, []);
    let reported =
        |seen: &[HostAddress]| -> Vec<_> { seen.iter().map(|seen| (seen.link, seen.address.key)).collect() };
    assert_eq!(
        reported(&replaced.difference.foreign),
        [(link, key("172.16.15.1/24"))]
    );
    assert_eq!(
        reported(&replaced.difference.elsewhere),
        [(other, key("10.1.15.1/32"))]
    );
    assert_eq!(keys(host, link), set(["172.16.15.1/24", "10.1.15.1/32"]));
    assert_eq!(keys(host, other), set(["10.1.15.1/32"]));
    host.delete_link(&link).unwrap();
    host.delete_link(&other).unwrap();
}

/// Deleting the first IPv4 address of a prefix deletes the others.
pub fn replacing_restores_what_a_primary_took_along(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract17");
    for text in ["10.1.17.1/24", "10.1.17.2/24", "10.1.17.3/24"] {
        host.add(&link, &address(text)).unwrap();
    }
    let wanted = [address("10.1.17.2/24"), address("10.1.17.3/24")];
    let replaced = host.replace(&link, &wanted, &Ours::Everything).unwrap();
    assert_eq!(replaced.failures, []);
    assert_eq!(keys(host, link), set(["10.1.17.2/24", "10.1.17.3/24"]));
    host.delete_link(&link).unwrap();
}

/// IPv4, over a link that is down.
pub fn a_local_route_is_added_listed_and_deleted(host: &mut dyn DummyLinks) {
    let (link, other) = (ensured(host, "contract18"), ensured(host, "contract19"));
    assert_eq!(host.routes(&link).unwrap(), []);
    // The kernel's own route for an address is not listed.
    host.add(&link, &address("10.1.18.1/32")).unwrap();
    let (range, small) = (route("10.96.0.0/12"), route("10.1.19.0/30"));
    host.add_route(&link, &range).unwrap();
    assert!(host.add_route(&link, &range).unwrap_err().is_already_exists());
    host.ensure_route(&link, &range).unwrap();
    host.ensure_route(&link, &small).unwrap();
    assert!(host.ensure_route(&other, &range).unwrap_err().is_already_exists());
    assert_eq!(host.routes(&link).unwrap(), [small, range]);
    assert_eq!(host.routes(&other).unwrap(), []);
    assert!(host.delete_route(&other, &range).unwrap_err().is_not_found());
    // Nor is there room for another one of its prefix, with IPv4.
    for operation in [Operation::AddRoute, Operation::EnsureRoute] {
        let outcome = host.execute_one(operation(other, route("10.1.18.1/32")));
        assert!(outcome.unwrap_err().is_already_exists());
    }
    let error = host.delete_route(&link, &route("10.1.18.1/32")).unwrap_err();
    assert!(
        error.is_not_found(),
        "the kernel's own route is not ours: {error:?}"
    );
    host.delete_route(&link, &range).unwrap();
    assert!(host.delete_route(&link, &range).unwrap_err().is_not_found());
    assert_eq!(host.routes(&link).unwrap(), [small]);
    assert_eq!(keys(host, link), set(["10.1.18.1/32"]));
    host.delete_link(&link).unwrap();
    host.delete_link(&other).unwrap();
}

/// And goes when the link is set down.
pub fn an_ipv6_local_route_needs_the_link_up(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract20");
    let range = route("fd00:20::/112");
    assert!(host.add_route(&link, &range).is_err());
    host.ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
        .unwrap();
    host.add_route(&link, &range).unwrap();
    assert!(host.add_route(&link, &range).unwrap_err().is_already_exists());
    host.ensure_route(&link, &range).unwrap();
    assert_eq!(host.routes(&link).unwrap(), [range]);
    host.delete_route(&link, &range).unwrap();
    assert!(host.delete_route(&link, &range).unwrap_err().is_not_found());
    host.add_route(&link, &range).unwrap();
    host.ensure_link(&DummyLink::new(link).with_state(LinkState::Down))
        .unwrap();
    assert_eq!(host.routes(&link).unwrap(), []);
    host.delete_link(&link).unwrap();
}

/// The kernel does that. Routes of IPv6 stay.
pub fn deleting_the_last_ipv4_address_deletes_the_ipv4_routes(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract22");
    host.ensure_link(&DummyLink::new(link).with_state(LinkState::Up))
        .unwrap();
    let (range, range6) = (route("10.96.0.0/12"), route("fd00:22::/112"));
    // Without any address they stay.
    for route in [&range, &range6] {
        host.add_route(&link, route).unwrap();
    }
    for text in ["10.1.22.1/32", "10.1.22.2/24", "fd00::22/128"] {
        host.add(&link, &address(text)).unwrap();
    }
    host.delete(&link, &key("10.1.22.1/32")).unwrap();
    host.delete(&link, &key("fd00::22/128")).unwrap();
    assert_eq!(host.routes(&link).unwrap(), [range, range6]);
    host.delete(&link, &key("10.1.22.2/24")).unwrap();
    assert_eq!(host.routes(&link).unwrap(), [range6]);
    // In one batch they are there again.
    host.add(&link, &address("10.1.22.1/32")).unwrap();
    host.add_route(&link, &range).unwrap();
    let outcomes = host.execute(&[
        Operation::DeleteAddress(link, key("10.1.22.1/32")),
        Operation::EnsureRoute(link, range),
    ]);
    assert_eq!(outcomes, [Ok(()), Ok(())]);
    assert_eq!(host.routes(&link).unwrap(), [range, range6]);
    host.delete_link(&link).unwrap();
}

/// Also when the last IPv4 address goes, and when the first of a prefix takes the others along.
pub fn replacing_keeps_the_local_routes(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract23");
    let ranges = [route("10.1.128.0/20"), route("10.96.0.0/12")];
    for range in &ranges {
        host.add_route(&link, range).unwrap();
    }
    let wanted = [address("10.1.23.1/32"), address("10.1.23.2/32")];
    let replaced = host.replace(&link, &wanted, &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.restored.len()), (2, 0), "{replaced:?}");
    // One of two stays: nothing happens to the routes.
    let replaced = host.replace(&link, &wanted[..1], &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.restored.len()), (1, 0), "{replaced:?}");
    let replaced = host.replace(&link, &[], &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.failures.len()), (1, 0), "{replaced:?}");
    assert_eq!(replaced.restored, ranges);
    assert_eq!(host.routes(&link).unwrap(), ranges);
    for text in ["10.1.23.1/24", "10.1.23.2/24"] {
        host.add(&link, &address(text)).unwrap();
    }
    let replaced = host
        .replace(&link, &[address("10.1.23.2/24")], &Ours::Everything)
        .unwrap();
    assert_eq!(replaced.failures, []);
    assert_eq!(keys(host, link), set(["10.1.23.2/24"]));
    assert_eq!(host.routes(&link).unwrap(), ranges);
    host.delete_link(&link).unwrap();
}

/// Of IPv4 by its network, of IPv6 not.
pub fn a_peer_is_part_of_the_key(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract24");
    let several = [
        "10.1.24.1/32",
        "10.1.24.1 peer 10.1.24.2/32",
        "10.1.24.1 peer 10.1.24.3/32",
        "10.1.24.1 peer 10.2.24.4/24",
    ];
    for text in several {
        host.add(&link, &address(text)).unwrap();
        host.ensure(&link, &address(text)).unwrap();
    }
    assert_eq!(keys(host, link), set(several));
    for one in [Operation::AddAddress, Operation::EnsureAddress] {
        let outcome = host.execute_one(one(link, address("10.1.24.1 peer 10.2.24.5/24")));
        assert!(outcome.unwrap_err().is_already_exists());
    }
    let absent = key("10.1.24.1 peer 10.1.24.9/32");
    assert!(host.delete(&link, &absent).unwrap_err().is_not_found());
    for text in several {
        host.delete(&link, &key(text)).unwrap();
    }
    assert_eq!(keys(host, link), set([]));
    host.add(&link, &address("fd00::24 peer fd00::25/128")).unwrap();
    assert_eq!(keys(host, link), set(["fd00::24 peer fd00::25/128"]));
    for one in [Operation::AddAddress, Operation::EnsureAddress] {
        let outcome = host.execute_one(one(link, address("fd00::24/128")));
        assert!(outcome.unwrap_err().is_already_exists());
    }
    host.delete(&link, &key("fd00::24/128")).unwrap();
    assert_eq!(keys(host, link), set([]));
    host.delete_link(&link).unwrap();
}

/// An address with a peer that is not wanted goes, and one that has become wanted without it is exchanged.
pub fn replacing_deletes_and_changes_peers(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract25");
    for text in [
        "10.1.25.1 peer 10.1.25.2/32",
        "10.1.25.3 peer 10.1.25.4/24",
        "fd00::25 peer fd00::26/128",
    ] {
        host.add(&link, &address(text)).unwrap();
    }
    let wanted = ["10.1.25.1/32", "10.1.25.3/24", "fd00::25/128"];
    let replaced = host
        .replace(&link, &wanted.map(address), &Ours::Everything)
        .unwrap();
    assert_eq!(replaced.failures, []);
    assert_eq!(keys(host, link), set(wanted));
    let with_peers = ["10.1.25.1 peer 10.1.25.2/32", "fd00::25 peer fd00::26/128"];
    let replaced = host
        .replace(&link, &with_peers.map(address), &Ours::Everything)
        .unwrap();
    assert_eq!(replaced.failures, []);
    assert_eq!(keys(host, link), set(with_peers));
    let replaced = host.replace(&link, &[], &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.failures.len()), (2, 0), "{replaced:?}");
    assert_eq!(keys(host, link), set([]));
    host.delete_link(&link).unwrap();
}

/// Keys without what a kernel may add by itself to a link that is up.
fn keys_of_ours(host: &mut dyn DummyLinks, link: LinkName) -> BTreeSet<AddressKey> {
    let listed = host.list(Selection::On(link)).unwrap();
    listed
        .into_iter()
        .filter(|seen| Ours::Everything.contains(&seen.address))
        .map(|seen| seen.address.key)
        .collect()
}

/// Addresses and routes; IPv4 stays. What is added while it is down stays when it is set up.
pub fn a_link_set_down_loses_its_ipv6(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract26");
    let state = |state| DummyLink::new(link).with_state(state);
    for text in ["10.1.26.1/32", "fd00::26/128"] {
        host.add(&link, &address(text)).unwrap();
    }
    host.ensure_link(&state(LinkState::Down)).unwrap();
    assert_eq!(keys(host, link), set(["10.1.26.1/32", "fd00::26/128"]));
    host.ensure_link(&state(LinkState::Up)).unwrap();
    let range = route("10.96.0.0/12");
    host.add_route(&link, &range).unwrap();
    host.add_route(&link, &route("fd00:26::/112")).unwrap();
    assert_eq!(keys_of_ours(host, link), set(["10.1.26.1/32", "fd00::26/128"]));
    host.ensure_link(&state(LinkState::Down)).unwrap();
    assert_eq!(keys(host, link), set(["10.1.26.1/32"]));
    assert_eq!(host.routes(&link).unwrap(), [range]);
    host.delete_link(&link).unwrap();
}

/// Below 1280 those of IPv6, below 68 those of IPv4 and its routes.
pub fn a_small_mtu_takes_the_addresses(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract27");
    let mtu = |mtu| DummyLink::new(link).with_mtu(mtu);
    let both = ["10.1.27.1/32", "fd00::27/128"].map(address);
    for address in &both {
        host.add(&link, address).unwrap();
    }
    let range = route("10.96.0.0/12");
    host.add_route(&link, &range).unwrap();
    host.ensure_link(&mtu(1280)).unwrap();
    assert_eq!(keys(host, link), set(["10.1.27.1/32", "fd00::27/128"]));
    host.ensure_link(&mtu(1279)).unwrap();
    assert_eq!(keys(host, link), set(["10.1.27.1/32"]));
    assert!(host.add(&link, &both[1]).is_err());
    assert!(host.add_route(&link, &route("fd00:27::/112")).is_err());
    host.ensure_link(&mtu(68)).unwrap();
    assert_eq!(keys(host, link), set(["10.1.27.1/32"]));
    assert_eq!(host.routes(&link).unwrap(), [range]);
    host.ensure_link(&mtu(67)).unwrap();
    assert_eq!(keys(host, link), set([]));
    assert_eq!(host.routes(&link).unwrap(), []);
    assert!(host.add(&link, &both[0]).is_err());
    host.ensure_link(&mtu(1500)).unwrap();
    assert_eq!(keys(host, link), set([]));
    let replaced = host.replace(&link, &both, &Ours::Everything).unwrap();
    assert_eq!((replaced.done, replaced.failures.len()), (2, 0), "{replaced:?}");
    host.delete_link(&link).unwrap();
}

/// Those that the kernel adds by itself are not; see [`Ours`].
pub fn replacing_deletes_link_local_addresses_that_are_ours(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract28");
    let within = Ours::Within(vec!["fe80::/10".parse().unwrap()]);
    let owned = address("fe80::30/64")
        .with_flags(AddressFlags::empty())
        .with_owner(Owner::KERNLINK);
    for ours in [Ours::Everything, within] {
        for text in ["fe80::28/128", "fe80::29/64"] {
            host.add(&link, &address(text)).unwrap();
        }
        host.add(&link, &owned).unwrap();
        let kept = [address("fe80::29/64"), owned.clone()];
        let replaced = host.replace(&link, &kept, &ours).unwrap();
        assert_eq!(replaced.done, 1, "{replaced:?}");
        // Kernels before 5.18 keep no owner, and the address then looks as one of their own.
        let is_owner_kept = host
            .list(Selection::On(link))
            .unwrap()
            .iter()
            .any(|seen| seen.address.owner == Owner::KERNLINK);
        if !is_owner_kept {
            host.delete(&link, &owned.key).unwrap();
        }
        let replaced = host.replace(&link, &[], &ours).unwrap();
        assert_eq!(replaced.failures, []);
        assert_eq!(keys(host, link), set([]), "{ours:?}");
    }
    host.delete_link(&link).unwrap();
}

/// Lifetime, metric and owner; what is not there is not added.
pub fn an_address_is_changed_in_place(host: &mut dyn DummyLinks) {
    let link = ensured(host, "contract29");
    let short = Lifetime {
        valid: 5_000,
        preferred: 4_000,
    };
    let long = Lifetime {
        valid: 86_400,
        preferred: 0,
    };
    let flags = AddressFlags::NO_DAD | AddressFlags::NO_PREFIX_ROUTE;
    for text in ["10.1.29.1/24", "fd00::29/64"] {
        let first = address(text).with_flags(flags).with_lifetime(short);
        assert!(host.update(&link, &first).unwrap_err().is_not_found());
        assert_eq!(host.list(Selection::On(link)).unwrap(), []);
        host.add(&link, &first).unwrap();
        let other_length = key(&text.replace("/24", "/25").replace("/64", "/65"));
        let other_length = LinkAddress::new(other_length);
        assert!(host.update(&link, &other_length).unwrap_err().is_not_found());
        host.update(&link, &first.clone().with_lifetime(long).with_metric(7))
            .unwrap();
        let listed = host.list(Selection::On(link)).unwrap();
        let [changed] = &listed[..] else {
            panic!("{listed:?}")
        };
        let changed = &changed.address;
        assert_eq!((changed.key, changed.metric), (first.key, 7));
        assert!((86_000..=86_400).contains(&changed.lifetime.valid), "{changed:?}");
        assert!(
            changed
                .flags
                .contains(AddressFlags::DEPRECATED | AddressFlags::NO_PREFIX_ROUTE)
        );
        assert!(!changed.flags.contains(AddressFlags::PERMANENT));
        // In a batch behind what adds it, and for ever.
        host.delete(&link, &first.key).unwrap();
        let for_ever = address(text);
        let outcomes = host.execute(&[
            Operation::UpdateAddress(link, for_ever.clone()),
            Operation::AddAddress(link, first.clone()),
            Operation::UpdateAddress(link, for_ever.clone()),
            Operation::UpdateAddress(
                link,
                for_ever.with_lifetime(Lifetime {
                    valid: 0,
                    preferred: 0,
                }),
            ),
        ]);
        let [Err(absent), Ok(()), Ok(()), Err(invalid)] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert!(absent.is_not_found() && !invalid.is_not_found(), "{outcomes:?}");
        let listed = host.list(Selection::On(link)).unwrap();
        assert!(
            listed
                .iter()
                .all(|seen| seen.address.lifetime == Lifetime::FOREVER)
        );
        let keeps_the_flag = listed
            .iter()
            .all(|seen| seen.address.flags.contains(AddressFlags::NO_PREFIX_ROUTE));
        assert_eq!(keeps_the_flag, first.key.address().is_ipv4(), "{listed:?}");
        host.delete(&link, &first.key).unwrap();
    }
    host.delete_link(&link).unwrap();
}

/// Nothing to do is not an error.
pub fn an_empty_batch_has_no_outcomes(host: &mut dyn DummyLinks) {
    assert_eq!(host.execute(&[]), []);
}
