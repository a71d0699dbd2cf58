//! Checks of `DummyLinks::replace`.

use super::{Links, address, ensured, key, keys, route, set};
use crate::{AddressFlags, AddressProtocol, HostAddress, Ownership, Selection};

/// Existing addresses are not changed. Repeating it changes nothing.
pub(super) fn replacing_makes_the_smallest_change(links: &mut Links) {
    let link = ensured(links, "contract14");
    let desired = |texts: &[&str]| -> Vec<_> { texts.iter().map(|text| address(text)).collect() };
    let first = links
        .replace(
            &link,
            &desired(&["10.1.14.1/32", "fd00::14/128", "10.1.14.2/32"]),
            &Ownership::All,
        )
        .unwrap();
    assert_eq!((first.done, first.failures.len()), (3, 0), "{first:?}");
    let second = links
        .replace(
            &link,
            &desired(&["10.1.14.3/32", "10.1.14.1/32"]),
            &Ownership::All,
        )
        .unwrap();
    assert_eq!((second.done, second.failures.len()), (3, 0), "{second:?}");
    assert_eq!(second.difference.missing, [address("10.1.14.3/32")]);
    assert_eq!(keys(links, link), set(["10.1.14.1/32", "10.1.14.3/32"]));
    let third = links
        .replace(
            &link,
            &desired(&["10.1.14.3/32", "10.1.14.1/32"]),
            &Ownership::All,
        )
        .unwrap();
    assert_eq!(third.done, 0, "{third:?}");
    let last = links.replace(&link, &[], &Ownership::All).unwrap();
    assert_eq!(last.done, 2, "{last:?}");
    assert_eq!(keys(links, link), set([]));
    links.delete_link(&link).unwrap();
    assert!(
        links
            .replace(&link, &[], &Ownership::All)
            .unwrap_err()
            .is_link_missing()
    );
}

/// An IPv6 address can have one prefix length only, so the old one is deleted first; of IPv4 both can exist.
pub(super) fn replacing_changes_a_prefix_length(links: &mut Links) {
    let link = ensured(links, "contract21");
    links.add(&link, &address("fd00:21::1/64")).unwrap();
    links.add(&link, &address("10.1.21.1/24")).unwrap();
    let desired = [address("fd00:21::1/128"), address("10.1.21.1/32")];
    let report = links.replace(&link, &desired, &Ownership::All).unwrap();
    assert_eq!((report.done, report.failures.len()), (4, 0), "{report:?}");
    assert_eq!(keys(links, link), set(["fd00:21::1/128", "10.1.21.1/32"]));
    links.delete_link(&link).unwrap();
}

/// A foreign address on the link and a desired address on another link are reported and not changed.
pub(super) fn replacing_does_not_change_foreign_addresses(links: &mut Links) {
    let (link, other) = (ensured(links, "contract15"), ensured(links, "contract16"));
    links.add(&link, &address("172.16.15.1/24")).unwrap();
    links.add(&link, &address("10.1.15.9/32")).unwrap();
    links.add(&other, &address("10.1.15.1/32")).unwrap();
    let ownership = Ownership::Within(vec!["10.1.0.0/16".parse().unwrap()]);
    let report = links
        .replace(&link, &[address("10.1.15.1/32")], &ownership)
        .unwrap();
    assert_eq!(report.failures, []);
    let reported =
        |seen: &[HostAddress]| -> Vec<_> { seen.iter().map(|seen| (seen.link, seen.address.key)).collect() };
    assert_eq!(
        reported(&report.difference.foreign),
        [(link, key("172.16.15.1/24"))]
    );
    assert_eq!(
        reported(&report.difference.elsewhere),
        [(other, key("10.1.15.1/32"))]
    );
    assert_eq!(keys(links, link), set(["172.16.15.1/24", "10.1.15.1/32"]));
    assert_eq!(keys(links, other), set(["10.1.15.1/32"]));
    links.delete_link(&link).unwrap();
    links.delete_link(&other).unwrap();
}

/// With the first IPv4 address of a prefix the kernel deletes the others.
pub(super) fn replacing_restores_secondary_addresses(links: &mut Links) {
    let link = ensured(links, "contract17");
    for text in ["10.1.17.1/24", "10.1.17.2/24", "10.1.17.3/24"] {
        links.add(&link, &address(text)).unwrap();
    }
    let desired = [address("10.1.17.2/24"), address("10.1.17.3/24")];
    let report = links.replace(&link, &desired, &Ownership::All).unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(keys(links, link), set(["10.1.17.2/24", "10.1.17.3/24"]));
    links.delete_link(&link).unwrap();
}

/// Also if the last IPv4 address is deleted, and if the first of a prefix is deleted with the others.
pub(super) fn replacing_keeps_the_local_routes(links: &mut Links) {
    let link = ensured(links, "contract23");
    let ranges = [route("10.1.128.0/20"), route("10.96.0.0/12")];
    for range in &ranges {
        links.add_route(&link, range).unwrap();
    }
    let desired = [address("10.1.23.1/32"), address("10.1.23.2/32")];
    let report = links.replace(&link, &desired, &Ownership::All).unwrap();
    assert_eq!((report.done, report.restored.len()), (2, 0), "{report:?}");
    // One of two remains: the routes are not affected.
    let report = links.replace(&link, &desired[..1], &Ownership::All).unwrap();
    assert_eq!((report.done, report.restored.len()), (1, 0), "{report:?}");
    let report = links.replace(&link, &[], &Ownership::All).unwrap();
    assert_eq!((report.done, report.failures.len()), (1, 0), "{report:?}");
    assert_eq!(report.restored, ranges);
    assert_eq!(links.routes(&link).unwrap(), ranges);
    for text in ["10.1.23.1/24", "10.1.23.2/24"] {
        links.add(&link, &address(text)).unwrap();
    }
    let report = links
        .replace(&link, &[address("10.1.23.2/24")], &Ownership::All)
        .unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(keys(links, link), set(["10.1.23.2/24"]));
    assert_eq!(links.routes(&link).unwrap(), ranges);
    links.delete_link(&link).unwrap();
}

/// A surplus address with a peer is deleted. An address that is desired without or with another peer is replaced.
pub(super) fn replacing_deletes_and_changes_peers(links: &mut Links) {
    let link = ensured(links, "contract25");
    for text in [
        "10.1.25.1 peer 10.1.25.2/32",
        "10.1.25.3 peer 10.1.25.4/24",
        "fd00::25 peer fd00::26/128",
    ] {
        links.add(&link, &address(text)).unwrap();
    }
    let desired = ["10.1.25.1/32", "10.1.25.3/24", "fd00::25/128"];
    let report = links
        .replace(&link, &desired.map(address), &Ownership::All)
        .unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(keys(links, link), set(desired));
    let with_peers = ["10.1.25.1 peer 10.1.25.2/32", "fd00::25 peer fd00::26/128"];
    let report = links
        .replace(&link, &with_peers.map(address), &Ownership::All)
        .unwrap();
    assert_eq!(report.failures, []);
    assert_eq!(keys(links, link), set(with_peers));
    let report = links.replace(&link, &[], &Ownership::All).unwrap();
    assert_eq!((report.done, report.failures.len()), (2, 0), "{report:?}");
    assert_eq!(keys(links, link), set([]));
    links.delete_link(&link).unwrap();
}

/// Not those that the kernel adds; see [`Ownership`].
pub(super) fn replacing_deletes_owned_link_local_addresses(links: &mut Links) {
    let link = ensured(links, "contract28");
    let within = Ownership::Within(vec!["fe80::/10".parse().unwrap()]);
    let owned = address("fe80::30/64")
        .with_flags(AddressFlags::empty())
        .with_protocol(AddressProtocol::KERNLINK);
    for ownership in [Ownership::All, within] {
        for text in ["fe80::28/128", "fe80::29/64"] {
            links.add(&link, &address(text)).unwrap();
        }
        links.add(&link, &owned).unwrap();
        let kept = [address("fe80::29/64"), owned.clone()];
        let report = links.replace(&link, &kept, &ownership).unwrap();
        assert_eq!(report.done, 1, "{report:?}");
        // Kernels before 5.18 do not store the protocol, so the address is treated as added by the kernel.
        let is_protocol_stored = links
            .list(Selection::On(link))
            .unwrap()
            .iter()
            .any(|seen| seen.address.protocol == AddressProtocol::KERNLINK);
        if !is_protocol_stored {
            links.delete(&link, &owned.key).unwrap();
        }
        let report = links.replace(&link, &[], &ownership).unwrap();
        assert_eq!(report.failures, []);
        assert_eq!(keys(links, link), set([]), "{ownership:?}");
    }
    links.delete_link(&link).unwrap();
}
