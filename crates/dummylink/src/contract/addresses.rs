//! Checks of addresses.

use std::collections::BTreeSet;

use super::{Links, address, ensured, key, keys, name, set};
use crate::{
    AddressFlags, AddressProtocol, DummyLink, HostAddress, Lifetime, LinkAddress, LinkName, Operation, Scope,
    Selection,
};

/// Of both families. Adding or deleting an address twice fails, ensuring it twice succeeds.
pub(super) fn addresses_are_added_listed_and_deleted(links: &mut Links) {
    let link = ensured(links, "contract2");
    assert_eq!(keys(links, link), set([]));
    for text in ["10.1.2.3/32", "fd00:1:2::3/128"] {
        links.add(&link, &address(text)).unwrap();
        let error = links.add(&link, &address(text)).unwrap_err();
        assert!(error.is_already_exists(), "{error:?}");
        links.ensure(&link, &address(text)).unwrap();
    }
    links.ensure(&link, &address("10.1.2.4/32")).unwrap();
    assert_eq!(
        keys(links, link),
        set(["10.1.2.3/32", "10.1.2.4/32", "fd00:1:2::3/128"])
    );
    for text in ["10.1.2.3/32", "fd00:1:2::3/128", "10.1.2.4/32"] {
        links.delete(&link, &key(text)).unwrap();
        let error = links.delete(&link, &key(text)).unwrap_err();
        assert!(error.is_not_found() && !error.is_link_missing(), "{error:?}");
    }
    assert_eq!(keys(links, link), set([]));
    links.delete_link(&link).unwrap();
}

/// The same IPv4 address can be on a link with two prefix lengths, and on two links.
pub(super) fn an_address_is_identified_by_address_prefix_length_and_link(links: &mut Links) {
    let (one, two) = (ensured(links, "contract3"), ensured(links, "contract4"));
    links.add(&one, &address("10.1.2.3/32")).unwrap();
    links.add(&one, &address("10.1.2.3/24")).unwrap();
    links.add(&two, &address("10.1.2.3/32")).unwrap();
    links.add(&one, &address("fd00::3/128")).unwrap();
    links.add(&two, &address("fd00::3/128")).unwrap();
    assert!(
        links
            .delete(&one, &key("10.1.2.3/30"))
            .unwrap_err()
            .is_not_found()
    );
    assert!(links.delete(&one, &key("fd00::3/64")).unwrap_err().is_not_found());
    links.delete(&one, &key("10.1.2.3/32")).unwrap();
    assert_eq!(keys(links, one), set(["10.1.2.3/24", "fd00::3/128"]));
    assert_eq!(keys(links, two), set(["10.1.2.3/32", "fd00::3/128"]));
    links.delete_link(&one).unwrap();
    links.delete_link(&two).unwrap();
}

/// Ensuring it with another prefix length fails.
pub(super) fn an_ipv6_address_has_one_prefix_length_per_link(links: &mut Links) {
    let link = ensured(links, "contract5");
    links.add(&link, &address("fd00::5/128")).unwrap();
    assert!(
        links
            .add(&link, &address("fd00::5/64"))
            .unwrap_err()
            .is_already_exists()
    );
    assert!(
        links
            .ensure(&link, &address("fd00::5/64"))
            .unwrap_err()
            .is_already_exists()
    );
    assert_eq!(keys(links, link), set(["fd00::5/128"]));
    links.delete_link(&link).unwrap();
}

/// Scope, label, broadcast address, flags and lifetime.
pub(super) fn attributes_of_an_address_are_listed_as_they_were_set(links: &mut Links) {
    let link = ensured(links, "contract6");
    let ipv4 = address("10.1.6.1/24")
        .with_scope(Scope::Link)
        .with_label("contract6:x".parse().unwrap())
        .with_broadcast([10, 1, 6, 255].into())
        .with_flags(AddressFlags::NO_PREFIX_ROUTE)
        .with_protocol(AddressProtocol::KERNLINK);
    let ipv6 = address("fd00::6/64")
        .with_flags(AddressFlags::NO_DAD | AddressFlags::NO_PREFIX_ROUTE)
        .with_lifetime(Lifetime {
            valid: 86_400,
            preferred: 43_200,
        });
    let plain = address("10.1.7.1/32");
    for desired in [&ipv4, &ipv6, &plain] {
        links.add(&link, desired).unwrap();
    }
    let listed = links.list(Selection::On(link)).unwrap();
    let find = |desired: &LinkAddress| -> &LinkAddress {
        &listed
            .iter()
            .find(|seen| seen.address.key == desired.key)
            .unwrap()
            .address
    };
    let listed_address = find(&ipv4);
    assert_eq!(
        (
            listed_address.scope,
            listed_address.label,
            listed_address.broadcast
        ),
        (ipv4.scope, ipv4.label, ipv4.broadcast)
    );
    assert_eq!(
        listed_address.flags,
        AddressFlags::NO_PREFIX_ROUTE | AddressFlags::PERMANENT
    );
    assert_eq!(listed_address.lifetime, Lifetime::FOREVER);
    let listed_address = find(&ipv6);
    assert_eq!(
        listed_address.flags,
        AddressFlags::NO_DAD | AddressFlags::NO_PREFIX_ROUTE
    );
    // Seconds may have passed.
    assert!(
        (86_000..=86_400).contains(&listed_address.lifetime.valid),
        "{listed_address:?}"
    );
    assert!(
        (43_000..=43_200).contains(&listed_address.lifetime.preferred),
        "{listed_address:?}"
    );
    let listed_address = find(&plain);
    assert_eq!(
        (
            listed_address.scope,
            listed_address.label,
            listed_address.broadcast,
            listed_address.key.peer()
        ),
        (Scope::Universe, None, None, None)
    );
    links.delete_link(&link).unwrap();
}

/// Multicast and loopback addresses, IPv4 attributes of IPv6 addresses, and two scopes in one IPv4 prefix.
pub(super) fn invalid_addresses_are_refused(links: &mut Links) {
    let link = ensured(links, "contract7");
    for desired in [
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
        let error = links.add(&link, &desired).unwrap_err();
        assert!(
            !error.is_already_exists() && !error.is_link_missing(),
            "{desired}: {error:?}"
        );
    }
    assert_eq!(keys(links, link), set([]));
    links.add(&link, &address("10.1.7.1/24")).unwrap();
    links
        .add(&link, &address("10.1.7.2/24").with_scope(Scope::Host))
        .unwrap_err();
    assert_eq!(keys(links, link), set(["10.1.7.1/24"]));
    links.delete_link(&link).unwrap();
}

/// All links, one link, all except one. An address on two links is listed for each.
pub(super) fn listings_select_addresses_by_link(links: &mut Links) {
    let (one, two) = (ensured(links, "contract8"), ensured(links, "contract9"));
    for link in [one, two] {
        links.add(&link, &address("10.1.8.1/32")).unwrap();
        links.add(&link, &address("fd00::8/128")).unwrap();
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
        pick(links.list(Selection::All).unwrap()),
        of(one).chain(of(two)).collect()
    );
    assert_eq!(pick(links.list(Selection::On(two)).unwrap()), of(two).collect());
    assert_eq!(
        pick(links.list(Selection::Except(two)).unwrap()),
        of(one).collect()
    );
    let all_links = links.links().unwrap();
    for seen in links.list(Selection::All).unwrap() {
        assert!(
            all_links
                .iter()
                .any(|link| link.name == seen.link && link.index == seen.link_index),
            "{seen}"
        );
    }
    links.delete_link(&one).unwrap();
    links.delete_link(&two).unwrap();
}

/// In the order of the operations, also if some fail.
pub(super) fn each_operation_of_a_batch_has_its_outcome(links: &mut Links) {
    let link = name("contract10");
    let missing = name("contract-none");
    let outcomes = links.execute(&[
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
    let kinds: Vec<_> = outcomes
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
        kinds,
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
    assert!(!links.exists(&link).unwrap());
}

/// More than the receive buffer can hold acknowledgements of. All succeed, then all fail.
pub(super) fn a_batch_can_contain_thousands_of_operations(links: &mut Links) {
    let link = ensured(links, "contract11");
    let desired: Vec<_> = (0..3_000_u32)
        .map(|number| LinkAddress::host(std::net::Ipv4Addr::from(0x0a0b_0000 + number).into()).unwrap())
        .collect();
    let add: Vec<_> = desired
        .iter()
        .map(|one| Operation::AddAddress(link, one.clone()))
        .collect();
    let outcomes = links.execute(&add);
    assert_eq!(outcomes.len(), desired.len());
    assert!(
        outcomes.iter().all(Result::is_ok),
        "{:?}",
        outcomes.iter().find(|outcome| outcome.is_err())
    );
    assert_eq!(keys(links, link), desired.iter().map(|one| one.key).collect());
    assert!(
        links
            .execute(&add)
            .iter()
            .all(|outcome| outcome.as_ref().is_err_and(crate::Error::is_already_exists))
    );
    let delete: Vec<_> = desired
        .iter()
        .map(|one| Operation::DeleteAddress(link, one.key))
        .collect();
    assert!(links.execute(&delete).iter().all(Result::is_ok));
    assert!(
        links
            .execute(&delete)
            .iter()
            .all(|outcome| outcome.as_ref().is_err_and(crate::Error::is_not_found))
    );
    links.delete_link(&link).unwrap();
}

/// An IPv4 peer by its network; an IPv6 peer is ignored.
pub(super) fn a_peer_is_part_of_the_key(links: &mut Links) {
    let link = ensured(links, "contract24");
    let several = [
        "10.1.24.1/32",
        "10.1.24.1 peer 10.1.24.2/32",
        "10.1.24.1 peer 10.1.24.3/32",
        "10.1.24.1 peer 10.2.24.4/24",
    ];
    for text in several {
        links.add(&link, &address(text)).unwrap();
        links.ensure(&link, &address(text)).unwrap();
    }
    assert_eq!(keys(links, link), set(several));
    for one in [Operation::AddAddress, Operation::EnsureAddress] {
        let outcome = links.execute_one(one(link, address("10.1.24.1 peer 10.2.24.5/24")));
        assert!(outcome.unwrap_err().is_already_exists());
    }
    let absent = key("10.1.24.1 peer 10.1.24.9/32");
    assert!(links.delete(&link, &absent).unwrap_err().is_not_found());
    for text in several {
        links.delete(&link, &key(text)).unwrap();
    }
    assert_eq!(keys(links, link), set([]));
    links.add(&link, &address("fd00::24 peer fd00::25/128")).unwrap();
    assert_eq!(keys(links, link), set(["fd00::24 peer fd00::25/128"]));
    for one in [Operation::AddAddress, Operation::EnsureAddress] {
        let outcome = links.execute_one(one(link, address("fd00::24/128")));
        assert!(outcome.unwrap_err().is_already_exists());
    }
    links.delete(&link, &key("fd00::24/128")).unwrap();
    assert_eq!(keys(links, link), set([]));
    links.delete_link(&link).unwrap();
}

/// Lifetime, metric and protocol. A missing address is not added.
pub(super) fn an_address_is_changed_in_place(links: &mut Links) {
    let link = ensured(links, "contract29");
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
        assert!(links.update(&link, &first).unwrap_err().is_not_found());
        assert_eq!(links.list(Selection::On(link)).unwrap(), []);
        links.add(&link, &first).unwrap();
        let other_length = key(&text.replace("/24", "/25").replace("/64", "/65"));
        let other_length = LinkAddress::new(other_length);
        assert!(links.update(&link, &other_length).unwrap_err().is_not_found());
        links
            .update(&link, &first.clone().with_lifetime(long).with_metric(7))
            .unwrap();
        let listed = links.list(Selection::On(link)).unwrap();
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
        // In a batch after the operation that adds it, with infinite lifetime.
        links.delete(&link, &first.key).unwrap();
        let infinite = address(text);
        let outcomes = links.execute(&[
            Operation::UpdateAddress(link, infinite.clone()),
            Operation::AddAddress(link, first.clone()),
            Operation::UpdateAddress(link, infinite.clone()),
            Operation::UpdateAddress(
                link,
                infinite.with_lifetime(Lifetime {
                    valid: 0,
                    preferred: 0,
                }),
            ),
        ]);
        let [Err(absent), Ok(()), Ok(()), Err(invalid)] = &outcomes[..] else {
            panic!("{outcomes:?}")
        };
        assert!(absent.is_not_found() && !invalid.is_not_found(), "{outcomes:?}");
        let listed = links.list(Selection::On(link)).unwrap();
        assert!(
            listed
                .iter()
                .all(|seen| seen.address.lifetime == Lifetime::FOREVER)
        );
        let keeps_flag = listed
            .iter()
            .all(|seen| seen.address.flags.contains(AddressFlags::NO_PREFIX_ROUTE));
        assert_eq!(keeps_flag, first.key.address().is_ipv4(), "{listed:?}");
        links.delete(&link, &first.key).unwrap();
    }
    links.delete_link(&link).unwrap();
}

/// And is not an error.
pub(super) fn an_empty_batch_has_no_outcomes(links: &mut Links) {
    assert_eq!(links.execute(&[]), []);
}
