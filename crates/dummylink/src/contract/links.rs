//! Checks of links.

use std::collections::BTreeSet;

use super::{Links, address, ensured, key, keys, name, route, set};
use crate::{AddressKey, DummyLink, LinkFlags, LinkName, LinkState, Operation, Ownership, Selection};

/// Ensuring a link twice succeeds; adding or deleting it twice fails.
pub(super) fn a_link_is_ensured_once_and_deleted_once(links: &mut Links) {
    let link = name("contract0");
    assert!(!links.exists(&link).unwrap());
    assert!(links.delete_link(&link).unwrap_err().is_not_found());
    links.ensure_link(&DummyLink::new(link)).unwrap();
    assert!(links.exists(&link).unwrap());
    let first = links.link(&link).unwrap().unwrap();
    assert!(first.is_dummy());
    assert_eq!(first.state(), LinkState::Down);
    assert!(first.flags.contains(LinkFlags::NO_ARP), "{first:?}");
    links.ensure_link(&DummyLink::new(link)).unwrap();
    assert_eq!(links.link(&link).unwrap().unwrap(), first);
    assert!(
        links
            .add_link(&DummyLink::new(link))
            .unwrap_err()
            .is_already_exists()
    );
    links.delete_link(&link).unwrap();
    assert!(!links.exists(&link).unwrap());
    assert_eq!(links.link(&link).unwrap(), None);
    let error = links.delete_link(&link).unwrap_err();
    assert!(error.is_link_missing() && error.is_not_found(), "{error:?}");
    links.add_link(&DummyLink::new(link)).unwrap();
    links.delete_link(&link).unwrap();
}

/// State, MTU and alias are set if given, and unchanged otherwise.
pub(super) fn ensuring_a_link_changes_only_the_given_attributes(links: &mut Links) {
    let link = name("contract1");
    let desired = DummyLink::new(link)
        .with_state(LinkState::Up)
        .with_mtu(9000)
        .with_alias("virtual addresses");
    links.ensure_link(&desired).unwrap();
    let made = links.link(&link).unwrap().unwrap();
    assert!(desired.is_satisfied_by(&made), "{made:?}");
    links.ensure_link(&DummyLink::new(link)).unwrap();
    assert!(desired.is_satisfied_by(&links.link(&link).unwrap().unwrap()));
    links
        .ensure_link(&DummyLink::new(link).with_state(LinkState::Down))
        .unwrap();
    let down = links.link(&link).unwrap().unwrap();
    assert_eq!(
        (down.state(), down.mtu, down.alias.as_deref()),
        (LinkState::Down, 9000, Some("virtual addresses"))
    );
    links
        .ensure_link(&DummyLink::new(link).with_alias("").with_mtu(1400))
        .unwrap();
    let plain = links.link(&link).unwrap().unwrap();
    assert_eq!(
        (plain.mtu, plain.alias.as_deref(), plain.index),
        (1400, None, made.index)
    );
    let long = "a".repeat(256);
    assert!(
        links
            .ensure_link(&DummyLink::new(link).with_alias(&long))
            .is_err()
    );
    links
        .ensure_link(&DummyLink::new(link).with_alias(long.get(1..).unwrap()))
        .unwrap();
    links.delete_link(&link).unwrap();
}

/// The loopback link has no kind: no operation changes it.
pub(super) fn a_link_of_another_kind_is_refused_and_not_changed(links: &mut Links) {
    let lo = name("lo");
    let before = (links.link(&lo).unwrap(), links.list(Selection::On(lo)).unwrap());
    let desired = DummyLink::new(lo)
        .with_mtu(1400)
        .with_alias("alias")
        .with_state(LinkState::Down);
    for operation in [
        Operation::EnsureLink(desired),
        Operation::DeleteLink(lo),
        Operation::AddAddress(lo, address("10.1.1.1/32")),
        Operation::EnsureAddress(lo, address("10.1.1.1/32")),
        Operation::DeleteAddress(lo, key("127.0.0.1/8")),
        Operation::AddRoute(lo, route("10.1.0.0/16")),
        Operation::EnsureRoute(lo, route("10.1.0.0/16")),
        Operation::DeleteRoute(lo, route("10.1.0.0/16")),
    ] {
        let error = links.execute_one(operation.clone()).unwrap_err();
        assert!(error.is_wrong_kind(), "{operation}: {error:?}");
        assert!(error.to_string().contains("lo"), "{error}");
    }
    assert!(links.exists(&lo).unwrap_err().is_wrong_kind());
    assert!(
        links
            .add_link(&DummyLink::new(lo))
            .unwrap_err()
            .is_already_exists()
    );
    assert_eq!(
        (links.link(&lo).unwrap(), links.list(Selection::On(lo)).unwrap()),
        before
    );
}

/// All operations and listings.
pub(super) fn operations_on_a_missing_link_fail(links: &mut Links) {
    let link = name("contract-none");
    for operation in [
        Operation::AddAddress(link, address("10.1.1.1/32")),
        Operation::EnsureAddress(link, address("fd00::1/128")),
        Operation::DeleteAddress(link, key("127.0.0.1/8")),
        Operation::AddRoute(link, route("10.1.0.0/16")),
        Operation::DeleteRoute(link, route("10.1.0.0/16")),
        Operation::DeleteLink(link),
    ] {
        let error = links.execute_one(operation.clone()).unwrap_err();
        assert!(
            error.is_link_missing() && error.is_not_found(),
            "{operation}: {error:?}"
        );
    }
    // Each error contains its operation, also in a batch.
    let batch = [
        Operation::AddAddress(link, address("10.1.1.1/32")),
        Operation::DeleteAddress(link, key("10.1.1.2/32")),
        Operation::UpdateAddress(link, address("10.1.1.3/32")),
    ];
    for (operation, outcome) in batch.iter().zip(links.execute(&batch)) {
        let text = outcome.unwrap_err().to_string();
        assert!(text.contains(&operation.to_string()), "{operation}: {text}");
    }
    assert!(links.list(Selection::On(link)).unwrap_err().is_link_missing());
    assert!(links.routes(&link).unwrap_err().is_link_missing());
    links.list(Selection::Except(link)).unwrap();
}

/// Not those of other links.
pub(super) fn deleting_a_link_deletes_its_addresses(links: &mut Links) {
    let (one, two) = (ensured(links, "contract12"), ensured(links, "contract13"));
    links.add(&one, &address("10.1.12.1/32")).unwrap();
    links.add(&two, &address("10.1.12.1/32")).unwrap();
    links.delete_link(&one).unwrap();
    let remaining: Vec<_> = links.list(Selection::Except(name("lo"))).unwrap();
    assert_eq!(
        remaining
            .iter()
            .map(|seen| (seen.link, seen.address.key))
            .collect::<Vec<_>>(),
        [(two, key("10.1.12.1/32"))]
    );
    ensured(links, "contract12");
    assert_eq!(keys(links, one), set([]));
    links.delete_link(&one).unwrap();
    links.delete_link(&two).unwrap();
}

/// IPv4 remains. Addresses that are added while the link is down remain when it is set up.
pub(super) fn setting_a_link_down_deletes_its_ipv6_addresses_and_routes(links: &mut Links) {
    let link = ensured(links, "contract26");
    let state = |state| DummyLink::new(link).with_state(state);
    for text in ["10.1.26.1/32", "fd00::26/128"] {
        links.add(&link, &address(text)).unwrap();
    }
    links.ensure_link(&state(LinkState::Down)).unwrap();
    assert_eq!(keys(links, link), set(["10.1.26.1/32", "fd00::26/128"]));
    links.ensure_link(&state(LinkState::Up)).unwrap();
    let range = route("10.96.0.0/12");
    links.add_route(&link, &range).unwrap();
    links.add_route(&link, &route("fd00:26::/112")).unwrap();
    assert_eq!(owned_keys(links, link), set(["10.1.26.1/32", "fd00::26/128"]));
    links.ensure_link(&state(LinkState::Down)).unwrap();
    assert_eq!(keys(links, link), set(["10.1.26.1/32"]));
    assert_eq!(links.routes(&link).unwrap(), [range]);
    links.delete_link(&link).unwrap();
}

/// IPv6 below 1280, IPv4 with its routes below 68.
pub(super) fn a_small_mtu_deletes_the_addresses(links: &mut Links) {
    let link = ensured(links, "contract27");
    let mtu = |mtu| DummyLink::new(link).with_mtu(mtu);
    let both = ["10.1.27.1/32", "fd00::27/128"].map(address);
    for address in &both {
        links.add(&link, address).unwrap();
    }
    let range = route("10.96.0.0/12");
    links.add_route(&link, &range).unwrap();
    links.ensure_link(&mtu(1280)).unwrap();
    assert_eq!(keys(links, link), set(["10.1.27.1/32", "fd00::27/128"]));
    links.ensure_link(&mtu(1279)).unwrap();
    assert_eq!(keys(links, link), set(["10.1.27.1/32"]));
    assert!(links.add(&link, &both[1]).is_err());
    assert!(links.add_route(&link, &route("fd00:27::/112")).is_err());
    links.ensure_link(&mtu(68)).unwrap();
    assert_eq!(keys(links, link), set(["10.1.27.1/32"]));
    assert_eq!(links.routes(&link).unwrap(), [range]);
    links.ensure_link(&mtu(67)).unwrap();
    assert_eq!(keys(links, link), set([]));
    assert_eq!(links.routes(&link).unwrap(), []);
    assert!(links.add(&link, &both[0]).is_err());
    links.ensure_link(&mtu(1500)).unwrap();
    assert_eq!(keys(links, link), set([]));
    let report = links.replace(&link, &both, &Ownership::All).unwrap();
    assert_eq!((report.done, report.failures.len()), (2, 0), "{report:?}");
    links.delete_link(&link).unwrap();
}

/// The keys on a link without the link-local address that the kernel adds to a link that is up.
fn owned_keys(links: &mut Links, link: LinkName) -> BTreeSet<AddressKey> {
    let listed = links.list(Selection::On(link)).unwrap();
    listed
        .into_iter()
        .filter(|seen| Ownership::All.is_owned(&seen.address))
        .map(|seen| seen.address.key)
        .collect()
}
