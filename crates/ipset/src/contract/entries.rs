//! Checks of the entries of sets.

use std::net::Ipv4Addr;

use super::{Sets, entries, examples, has, ip, ip_port_set, name, oks, reason, web};
use crate::{
    Comment, Element, Entry, EntryRange, Error, IfExists, IpSets, Network, Operation, Position, ProtocolPort,
    Reason, Set, SetFamily, SetRange, SetType, SkbMark, SkbPriority, Timeout,
};

/// A second `add` or `delete` fails; with `IfExists::Succeed` it succeeds.
pub(super) fn entries_are_added_once_and_deleted_once(sets: &mut Sets) {
    let set = name("a");
    sets.create(&ip_port_set("a")).unwrap();
    sets.add(&set, &web(1)).unwrap();
    let error = sets.add(&set, &web(1)).unwrap_err();
    assert!(error.is_already_exists(), "{error}");
    sets.ensure(&set, &web(1)).unwrap();
    sets.ensure(&set, &web(2)).unwrap();
    assert_eq!(entries(sets, "a"), ["10.0.0.1,tcp:80", "10.0.0.2,tcp:80"]);
    assert_eq!(sets.header(&set).unwrap().stats.elements, 2);
    sets.delete(&set, &web(1)).unwrap();
    let error = sets.delete(&set, &web(1)).unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let removal = Operation::Delete {
        set,
        entry: web(1),
        if_exists: IfExists::Succeed,
    };
    assert_eq!(sets.execute(&[removal]), [Ok(())]);
    assert_eq!(sets.test_all(&set, &[web(1), web(2)]), [Ok(false), Ok(true)]);
    sets.flush(&set).unwrap();
    assert_eq!(entries(sets, "a"), [""; 0]);
}

/// In both families and with every option, a set lists the entries that were added.
pub(super) fn every_type_holds_and_lists_its_entries(sets: &mut Sets) {
    examples::create_members(sets);
    for (set, given) in examples::examples() {
        if !has(sets, set.set_type) {
            continue;
        }
        sets.create(&set)
            .unwrap_or_else(|error| panic!("{set}: {error:?}"));
        let operations: Vec<_> = given
            .iter()
            .map(|entry| Operation::add(set.name, entry.clone()))
            .collect();
        for (operation, outcome) in operations.iter().zip(sets.execute(&operations)) {
            outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
        }
        let mut listed = sets.list_set(&set.name).unwrap();
        let mut expected = given.clone();
        if set.set_type != SetType::ListSet {
            listed.entries.sort();
            expected.sort();
        }
        assert_eq!(listed.entries, expected, "{set}");
        let options = &listed.header.set.options;
        assert_eq!(options.timeout, set.options.timeout, "{set}");
        assert!(options.counters && options.comment && options.skbinfo, "{set}");
        assert_eq!(
            (options.range, options.markmask),
            (set.options.range, set.options.markmask),
            "{set}"
        );
        assert_eq!(options.maxelem, set.options.maxelem, "{set}");
        let deletions: Vec<_> = given
            .iter()
            .map(|entry| Operation::delete(set.name, Entry::new(*entry.element())))
            .collect();
        for (operation, outcome) in deletions.iter().zip(sets.execute(&deletions)) {
            outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
        }
        assert_eq!(sets.list_set(&set.name).unwrap().entries, [], "{set}");
    }
}

/// A refused operation does not stop those that follow it.
pub(super) fn one_outcome_for_each_operation_in_order(sets: &mut Sets) {
    let set = name("a");
    sets.create(&ip_port_set("a")).unwrap();
    sets.add(&set, &web(7)).unwrap();
    let operations: Vec<_> = (0..=255)
        .map(|last| match last {
            9 => Operation::add(name("missing"), web(last)),
            11 => Operation::add(set, Entry::ip(ip("10.0.0.11"))),
            20 => Operation::delete(set, web(200)),
            30 => Operation::ensure(set, web(7)),
            _ => Operation::add(set, web(last)),
        })
        .collect();
    let outcomes = sets.execute(&operations);
    assert_eq!(outcomes.len(), operations.len());
    for (index, outcome) in outcomes.into_iter().enumerate() {
        match index {
            7 => assert_eq!(reason(outcome), Reason::EntryExists),
            9 => assert_eq!(reason(outcome), Reason::NoSuchSet),
            11 => assert!(outcome.unwrap_err().is_invalid()),
            20 => assert_eq!(reason(outcome), Reason::NoSuchEntry),
            _ => outcome.unwrap_or_else(|error| panic!("{index}: {error:?}")),
        }
    }
    assert_eq!(entries(sets, "a").len(), 256 - 4);
    // All of them refused.
    let again: Vec<_> = (100..=255).map(|last| Operation::add(set, web(last))).collect();
    for outcome in sets.execute(&again) {
        assert_eq!(reason(outcome), Reason::EntryExists);
    }
}

/// The operations before the failure stay executed.
pub(super) fn execution_until_the_first_failure_does_not_attempt_the_rest(sets: &mut Sets) {
    let set = name("a");
    sets.create(&ip_port_set("a")).unwrap();
    sets.add(&set, &web(3)).unwrap();
    let mut operations: Vec<_> = (1..=6).map(|last| Operation::add(set, web(last))).collect();
    operations.push(Operation::Flush { set });
    let outcomes = sets.execute_until_failure(&operations);
    assert_eq!(outcomes.get(..2), Some(&[Ok(()), Ok(())][..]));
    assert!(outcomes.get(2).unwrap().as_ref().unwrap_err().is_already_exists());
    assert_eq!(
        outcomes.get(3..),
        Some(&[const { Err(Error::NotAttempted) }; 4][..])
    );
    assert_eq!(
        entries(sets, "a"),
        ["10.0.0.1,tcp:80", "10.0.0.2,tcp:80", "10.0.0.3,tcp:80"]
    );
    let wrong = [
        Operation::add(set, web(9)),
        Operation::add(set, Entry::port(1)),
        Operation::add(set, web(10)),
    ];
    let outcomes = sets.execute_until_failure(&wrong);
    assert!(outcomes.first().unwrap().is_ok());
    assert!(outcomes.get(1).unwrap().as_ref().unwrap_err().is_invalid());
    assert!(outcomes.get(2).unwrap().as_ref().unwrap_err().is_not_attempted());
}

/// Exactly `maxelem` entries are added.
pub(super) fn a_full_set_refuses_further_entries_and_reports_its_limit(sets: &mut Sets) {
    let set = name("small");
    sets.create(&ip_port_set("small").with_maxelem(100)).unwrap();
    let operations: Vec<_> = (0..150).map(|last| Operation::add(set, web(last))).collect();
    let outcomes = sets.execute(&operations);
    let failed: Vec<usize> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, o)| o.is_err())
        .map(|(i, _)| i)
        .collect();
    assert_eq!(failed, (100..150).collect::<Vec<_>>());
    let error = outcomes.get(100).unwrap().clone().unwrap_err();
    assert!(error.is_full());
    assert_eq!(error.reason(), Some(Reason::Full { maxelem: Some(100) }));
    assert_eq!(error.to_string(), "cannot add small 10.0.0.100,tcp:80");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the set is full: at most 100 entries (error 4352)");
    assert_eq!(sets.header(&set).unwrap().stats.elements, 100);
    let until = sets.execute_until_failure(&[Operation::Flush { set }]);
    assert_eq!(until, [Ok(())]);
    let until = sets.execute_until_failure(&operations);
    assert_eq!(until.iter().position(Result::is_err), Some(100));
    assert_eq!(until.get(101), Some(&Err(Error::NotAttempted)));
}

/// The error names the set type, the dimension and the reason; the set is unchanged.
pub(super) fn entries_of_another_type_are_refused(sets: &mut Sets) {
    let set = name("a");
    sets.create(&Set::new(set, SetType::HashIpPortNet)).unwrap();
    let port = ProtocolPort::tcp(1);
    let net: Network = "10.0.0.0/8".parse().unwrap();
    for (entry, message) in [
        (web(1), "the entry has 2 dimensions; the type has 3"),
        (
            Entry::ip_port_ip(ip("10.0.0.1"), port, ip("10.0.0.2")),
            "dimension 3 (net): found ip",
        ),
        (
            Entry::ip_port_net(ip("::1"), port, net),
            "dimension 1 (ip): ::1 is not an address of family inet",
        ),
        (
            Entry::ip_port_net(ip("10.0.0.1"), port, "::/8".parse().unwrap()),
            "dimension 3 (net): :: is not an address of family inet",
        ),
    ] {
        let error = sets.add(&set, &entry).unwrap_err();
        assert!(error.is_invalid());
        assert_eq!(
            error.to_string(),
            format!("cannot add a {entry}: set of type hash:ip,port,net: {message}")
        );
        assert!(sets.delete(&set, &entry).unwrap_err().is_invalid());
        assert!(sets.test(&set, &entry).unwrap_err().is_invalid());
    }
    assert_eq!(entries(sets, "a"), [""; 0]);
}

/// Each option has a reason of its own.
pub(super) fn entry_options_that_the_set_was_created_without_are_refused(sets: &mut Sets) {
    let set = name("a");
    sets.create(&ip_port_set("a")).unwrap();
    for (entry, expected) in [
        (
            web(1).with_timeout(Timeout::from_secs(5).unwrap()),
            Reason::NoTimeouts,
        ),
        (web(1).with_counters(1, 2), Reason::NoCounters),
        (
            web(1).with_comment(Comment::new("x").unwrap()),
            Reason::NoComments,
        ),
        (web(1).with_skb_queue(1), Reason::NoSkbinfo),
        (
            web(1).with_skb_mark(SkbMark { mark: 1, mask: 1 }),
            Reason::NoSkbinfo,
        ),
        (
            web(1).with_skb_priority(SkbPriority { major: 1, minor: 1 }),
            Reason::NoSkbinfo,
        ),
    ] {
        assert_eq!(reason(sets.add(&set, &entry)), expected, "{entry}");
    }
    assert_eq!(entries(sets, "a"), [""; 0]);
    let hash = name("h");
    sets.create(&Set::new(hash, SetType::HashIp)).unwrap();
    assert_eq!(
        reason(sets.add(&hash, &Entry::ip(ip("0.0.0.0")))),
        Reason::NullElement
    );
}

/// As `ipset add -exist` does; counters stay unless they are given.
pub(super) fn ensuring_an_existing_entry_updates_its_options(sets: &mut Sets) {
    let set = name("a");
    sets.create(&ip_port_set("a").with_comment().with_skbinfo().with_counters())
        .unwrap();
    let first = web(1)
        .with_comment(Comment::new("first").unwrap())
        .with_counters(5, 6);
    sets.add(&set, &first).unwrap();
    sets.ensure(&set, &web(1).with_skb_queue(7)).unwrap();
    assert_eq!(
        entries(sets, "a"),
        ["10.0.0.1,tcp:80 packets 5 bytes 6 skbqueue 7"]
    );
    sets.ensure(
        &set,
        &web(1)
            .with_comment(Comment::new("second").unwrap())
            .with_counters(1, 2),
    )
    .unwrap();
    assert_eq!(
        entries(sets, "a"),
        ["10.0.0.1,tcp:80 packets 1 bytes 2 comment \"second\""]
    );
}

/// Members are added before a member, after a member, or at the end; an invalid member or position is refused.
pub(super) fn a_list_keeps_its_order(sets: &mut Sets) {
    let list = name("list");
    let member = |text: &str| Entry::set(name(text));
    for text in ["a", "b", "c", "d", "e"] {
        sets.create(&ip_port_set(text)).unwrap();
    }
    sets.create(&Set::new(list, SetType::ListSet).with_size(16))
        .unwrap();
    oks(sets.execute(&[
        Operation::add(list, member("a")),
        Operation::add(list, member("b")),
        Operation::add(list, member("c").with_position(Position::Before(name("b")))),
        Operation::add(list, member("d").with_position(Position::After(name("a")))),
    ]));
    let order = |sets: &mut dyn IpSets| -> Vec<String> {
        sets.list_set(&list)
            .unwrap()
            .entries
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(order(sets), ["a", "d", "c", "b"]);
    assert_eq!(sets.header(&list).unwrap().set.options.size, Some(16));
    assert_eq!(reason(sets.add(&list, &member("a"))), Reason::EntryExists);
    assert_eq!(reason(sets.add(&list, &member("missing"))), Reason::NoSuchMember);
    assert_eq!(reason(sets.add(&list, &member("list"))), Reason::ListInList);
    let at = |position| member("e").with_position(position);
    assert_eq!(
        reason(sets.add(&list, &at(Position::After(name("missing"))))),
        Reason::NoSuchReference
    );
    assert_eq!(
        reason(sets.add(&list, &at(Position::Before(name("e"))))),
        Reason::ReferenceNotInList
    );
    assert_eq!(
        sets.test_all(&list, &[member("a"), member("e")]),
        [Ok(true), Ok(false)]
    );
    assert_eq!(order(sets), ["a", "d", "c", "b"]);
}

/// For types and families for which the kernel expands ranges, and for those for which the implementation has to.
pub(super) fn a_range_adds_and_deletes_all_its_entries(sets: &mut Sets) {
    for (set, range, count, first) in [
        (ip_port_set("v4"), "10.0.0.0/24,tcp:1-3", 768, "10.0.0.0,tcp:1"),
        (
            ip_port_set("v6").with_family(SetFamily::Inet6),
            "fe80::1-fe80::7,tcp:5-6",
            14,
            "fe80::1,tcp:5",
        ),
        (
            Set::new(name("ports"), SetType::BitmapPort),
            "100-199",
            100,
            "100",
        ),
        (
            Set::new(name("ip6"), SetType::HashIp).with_family(SetFamily::Inet6),
            "fe80::10/124",
            16,
            "fe80::10",
        ),
        (
            Set::new(name("net"), SetType::HashNet),
            "10.0.0.1-10.0.0.14",
            6,
            "10.0.0.1",
        ),
        (
            Set::new(name("pnet"), SetType::HashIpPortNet),
            "10.0.0.1-10.0.0.2,udp:7-8,10.0.0.1-10.0.0.3",
            8,
            "10.0.0.1,udp:7,10.0.0.1",
        ),
    ] {
        sets.create(&set).unwrap();
        let parsed = EntryRange::parse(range, set.set_type, set.family).unwrap();
        assert_eq!(parsed.count(), count);
        sets.add_range(&set.name, &parsed)
            .unwrap_or_else(|error| panic!("{range}: {error:?}"));
        let mut listed = sets.list_set(&set.name).unwrap().entries;
        let mut expected: Vec<Entry> = parsed.entries().collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{range}");
        assert_eq!(
            listed.iter().min().map(ToString::to_string).as_deref(),
            Some(first)
        );
        let error = sets.add_range(&set.name, &parsed).unwrap_err();
        assert!(error.is_already_exists(), "{range}: {error:?}");
        let delete = |if_exists| Operation::DeleteRange {
            set: set.name,
            range: Box::new(parsed.clone()),
            if_exists,
        };
        assert_eq!(sets.execute(&[delete(IfExists::Fail)]), [Ok(())], "{range}");
        assert_eq!(sets.list_set(&set.name).unwrap().entries, [], "{range}");
        assert_eq!(sets.execute(&[delete(IfExists::Succeed)]), [Ok(())], "{range}");
    }
    let huge = EntryRange::parse("fe80::/64", SetType::HashIp, SetFamily::Inet6).unwrap();
    assert!(sets.add_range(&name("ip6"), &huge).unwrap_err().is_invalid());
    let delete = Operation::DeleteRange {
        set: name("ip6"),
        range: Box::new(huge),
        if_exists: IfExists::Succeed,
    };
    assert!(sets.execute(&[delete])[0].as_ref().unwrap_err().is_invalid());
}

/// A single entry with prefix length 0 is refused.
pub(super) fn a_range_of_all_addresses_is_split_in_two(sets: &mut Sets) {
    let set = name("net");
    sets.create(&Set::new(set, SetType::HashNet)).unwrap();
    let all = Entry::net("0.0.0.0/0".parse().unwrap());
    assert!(sets.add(&set, &all).unwrap_err().is_invalid());
    sets.add_range(&set, &all.clone().into()).unwrap();
    assert_eq!(entries(sets, "net"), ["0.0.0.0/1", "128.0.0.0/1"]);
    let range = EntryRange::parse("0.0.0.0-255.255.255.255", SetType::HashNet, SetFamily::Inet).unwrap();
    let delete = Operation::DeleteRange {
        set,
        range: Box::new(range),
        if_exists: IfExists::Fail,
    };
    assert_eq!(sets.execute(&[delete]), [Ok(())]);
    assert_eq!(entries(sets, "net"), [""; 0]);
}

/// The smallest network that contains the address decides; with `nomatch` the address is not in the set.
pub(super) fn addresses_are_tested_against_networks(sets: &mut Sets) {
    let set = name("net");
    let net = |text: &str| Entry::net(text.parse().unwrap());
    oks(sets.execute(&[
        Operation::create(Set::new(set, SetType::HashNet)),
        Operation::add(set, net("10.0.0.0/8")),
        Operation::add(set, net("10.1.0.0/16").with_nomatch()),
        Operation::add(set, net("10.1.2.0/24")),
    ]));
    let answers = sets.test_all(
        &set,
        &[
            "10.2.0.1",
            "10.1.1.1",
            "10.1.2.3",
            "11.0.0.1",
            "10.0.0.0/8",
            "10.0.0.0/9",
        ]
        .map(net),
    );
    assert_eq!(
        answers,
        [Ok(true), Ok(false), Ok(true), Ok(false), Ok(true), Ok(false)]
    );
}

/// A range of more than 65 536 elements is refused as well.
pub(super) fn a_bitmap_refuses_entries_outside_its_range(sets: &mut Sets) {
    let ports = name("ports");
    sets.create(&Set::new(ports, SetType::BitmapPort).with_range(SetRange::Ports(10, 20)))
        .unwrap();
    assert_eq!(reason(sets.add(&ports, &Entry::port(21))), Reason::OutOfRange);
    sets.add(&ports, &Entry::port(20)).unwrap();
    let addresses = name("addresses");
    let range = SetRange::Addresses(Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(10, 1, 0, 0));
    let set = Set::new(addresses, SetType::BitmapIp).with_range(range);
    assert_eq!(reason(sets.create(&set)), Reason::RangeTooLarge);
    sets.create(&set.with_netmask(24)).unwrap();
    sets.add(&addresses, &Entry::ip(ip("10.0.7.9"))).unwrap();
    assert_eq!(entries(sets, "addresses"), ["10.0.7.0"]);
    let macs = name("macs");
    let range = SetRange::Addresses(Ipv4Addr::new(10, 0, 0, 0), Ipv4Addr::new(10, 0, 0, 255));
    sets.create(&Set::new(macs, SetType::BitmapIpMac).with_range(range))
        .unwrap();
    let bare = Element::IpMac {
        ip: ip("10.0.0.1"),
        mac: None,
    };
    let full = Element::IpMac {
        ip: ip("10.0.0.1"),
        mac: Some("0a:0b:0c:0d:0e:0f".parse().unwrap()),
    };
    sets.add(&macs, &bare.into()).unwrap();
    sets.add(&macs, &full.into()).unwrap();
    assert_eq!(entries(sets, "macs"), ["10.0.0.1,0A:0B:0C:0D:0E:0F"]);
    assert_eq!(reason(sets.add(&macs, &full.into())), Reason::EntryExists);
}
