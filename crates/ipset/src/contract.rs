//! The behaviour that every implementation of [`IpSets`] must show.
//!
//! Each check takes an implementation over an empty network namespace and panics where it behaves otherwise. They run on
//! [`Fake`](crate::Fake) in this crate's unit tests and on the kernel in the kernel tests. Of set types that the kernel
//! has not, nothing is checked. An implementation without [`IpSets::revisions`] must have all types.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a check says what is wrong by panicking"
)]

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    Comment, Element, Entry, EntryRange, Error, IfExists, IpSets, Network, Operation, Position, ProtocolPort,
    Reason, Set, SetFamily, SetName, SetRange, SetType, SkbMark, SkbPriority, Timeout,
};

/// A check with its name.
pub type Check = (&'static str, fn(&mut dyn IpSets));

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        /// All checks.
        pub const CHECKS: &[Check] = &[$((stringify!($name), $name)),*];
    };
}

checks![
    an_empty_namespace_lists_nothing,
    a_set_is_created_listed_and_destroyed,
    creating_a_set_again_is_a_matter_of_choice,
    a_set_that_is_not_there_is_not_found,
    entries_are_added_once_and_deleted_once,
    every_type_holds_and_lists_its_entries,
    one_outcome_for_each_operation_in_order,
    a_run_that_stops_leaves_the_rest_alone,
    the_first_entry_that_does_not_fit_is_named,
    a_set_made_in_a_batch_takes_entries_in_the_same_batch,
    entries_of_the_wrong_shape_do_not_reach_the_set,
    options_that_the_set_has_not_are_refused,
    options_that_mean_nothing_are_refused,
    an_entry_ensured_again_takes_the_new_options,
    swapping_exchanges_the_contents,
    renaming_moves_a_set,
    a_set_in_a_list_cannot_be_destroyed,
    a_list_keeps_its_order,
    ranges_spread_over_their_entries,
    a_network_of_all_addresses_is_split,
    a_set_is_replaced_as_a_whole,
    a_replacement_that_fails_changes_nothing,
    addresses_are_tested_against_networks,
    a_bitmap_refuses_what_lies_outside,
    sets_are_found_by_name_and_index,
    all_sets_are_flushed_and_destroyed,
];

fn name(name: &str) -> SetName {
    SetName::new(name).unwrap()
}

fn ip_port_set(text: &str) -> Set {
    Set::new(name(text), SetType::HashIpPort)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn web(last: u8) -> Entry {
    Entry::ip_port(ip(&format!("10.0.0.{last}")), ProtocolPort::tcp(80))
}

fn entries(sets: &mut dyn IpSets, set: &str) -> Vec<String> {
    let mut entries: Vec<String> = sets
        .list_set(&name(set))
        .unwrap()
        .entries
        .iter()
        .map(ToString::to_string)
        .collect();
    entries.sort();
    entries
}

/// The reason of a refusal.
fn reason(outcome: Result<(), Error>) -> Reason {
    let error = outcome.unwrap_err();
    error
        .reason()
        .unwrap_or_else(|| panic!("not a refusal: {error:?}"))
}

fn oks(outcomes: Vec<Result<(), Error>>) {
    for outcome in outcomes {
        outcome.unwrap();
    }
}

/// Of every type and family a set with all extensions, and entries with every option that the type takes. The time-out
/// of the entries never ends, so that it reads the same later.
pub fn examples() -> Vec<(Set, Vec<Entry>)> {
    let mut examples = Vec::new();
    for set_type in SetType::ALL {
        for family in set_type.families().iter().copied() {
            let mut set = Set::new(name(&format!("{set_type}-{family}")), set_type)
                .with_family(family)
                .with_timeout(Timeout::from_secs(1000).unwrap())
                .with_counters()
                .with_comment()
                .with_skbinfo();
            if matches!(set_type, SetType::BitmapIp | SetType::BitmapIpMac) {
                set = set.with_range(SetRange::Addresses(
                    Ipv4Addr::new(10, 0, 0, 0),
                    Ipv4Addr::new(10, 0, 255, 255),
                ));
            }
            if set_type == SetType::HashIpMark {
                set = set.with_markmask(0x00ff_ff0f);
            }
            if set_type.is_hash() {
                set = set.with_hashsize(2048).with_maxelem(4321);
            }
            let entries = texts(set_type, family)
                .into_iter()
                .enumerate()
                .map(|(index, text)| {
                    let text = format!("{text} timeout 0 packets {index} bytes {}", index * 1000);
                    let entry = Entry::parse(&text, set_type, family).unwrap();
                    match index % 3 {
                        0 => entry.with_comment(Comment::new("a remark, with \\ and 'marks'").unwrap()),
                        1 => entry
                            .with_skb_mark(SkbMark {
                                mark: 0x1234_5678,
                                mask: 0xffff_0000,
                            })
                            .with_skb_priority(SkbPriority {
                                major: 0x12,
                                minor: 0x3456,
                            })
                            .with_skb_queue(0x789a),
                        _ => entry.with_skb_mark(SkbMark {
                            mark: 1,
                            mask: u32::MAX,
                        }),
                    }
                })
                .collect();
            examples.push((set, entries));
        }
    }
    examples
}

/// Elements in the kernel's own spelling.
fn texts(set_type: SetType, family: SetFamily) -> Vec<String> {
    let inet6 = family == SetFamily::Inet6;
    let a = if inet6 { "2001:db8::1234" } else { "10.0.1.2" };
    let b = if inet6 { "::ffff:10.1.2.3" } else { "10.0.3.4" };
    let net = if inet6 {
        "2001:db8:12::/46"
    } else {
        "172.16.0.0/13"
    };
    let net2 = if inet6 {
        "fe80::/64 nomatch"
    } else {
        "192.168.4.0/22 nomatch"
    };
    let plain2 = net2.trim_end_matches(" nomatch");
    let all = if inet6 { "::/0" } else { "0.0.0.0/0" };
    let icmp = if inet6 {
        "ipv6-icmp:echo-request"
    } else {
        "icmp:8/7"
    };
    match set_type {
        SetType::BitmapIp | SetType::HashIp => vec![a.into(), b.into()],
        SetType::BitmapIpMac => vec![a.into(), format!("{b},0A:0B:0C:0D:0E:0F")],
        SetType::BitmapPort => vec!["0".into(), "4660".into(), "65535".into()],
        SetType::HashMac => vec!["0A:0B:0C:0D:0E:0F".into(), "02:00:00:00:00:01".into()],
        SetType::HashIpMac => vec![format!("{a},0A:0B:0C:0D:0E:0F"), format!("{b},02:00:00:00:00:01")],
        SetType::HashIpMark => vec![format!("{a},0x00345608"), format!("{b},0x00000000")],
        SetType::HashIpPort => {
            vec![
                format!("{a},tcp:4660"),
                format!("{b},udp:0"),
                format!("{a},{icmp}"),
                format!("{b},ospf:0"),
            ]
        }
        SetType::HashIpPortIp => vec![format!("{a},sctp:4660,{b}"), format!("{b},udplite:1,{a}")],
        SetType::HashIpPortNet => vec![
            format!("{a},tcp:4660,{net}"),
            format!("{b},udp:1,{a}"),
            format!("{b},udp:1,{net2}"),
        ],
        SetType::HashNet => vec![net.into(), net2.into(), a.into()],
        SetType::HashNetNet => vec![
            format!("{net},{plain2}"),
            format!("{a},{net2}"),
            format!("{a},{b}"),
        ],
        SetType::HashNetPort => vec![
            format!("{net},tcp:4660"),
            format!("{plain2},udp:1 nomatch"),
            format!("{a},{icmp}"),
        ],
        SetType::HashNetPortNet => {
            vec![
                format!("{net},tcp:4660,{plain2}"),
                format!("{all},udp:1,{net2}"),
                format!("{a},tcp:1,{b}"),
            ]
        }
        SetType::HashNetIface => {
            vec![
                format!("{net},eth0"),
                format!("{plain2},physdev:veth nomatch wildcard"),
                format!("{all},lo"),
            ]
        }
        SetType::ListSet => vec!["member-b".into(), "member-a".into()],
        SetType::Unknown(_) => Vec::new(),
    }
}

/// Creates the sets that the example of a list of sets has as members.
pub fn create_members(sets: &mut dyn IpSets) {
    for member in ["member-a", "member-b"] {
        sets.ensure_set(&Set::new(name(member), SetType::HashIp)).unwrap();
    }
}

fn has(sets: &mut dyn IpSets, set_type: SetType) -> bool {
    let family = set_type.families().first().copied().unwrap();
    match sets.revisions(set_type, family) {
        Ok(revisions) => revisions.is_some(),
        Err(error) => matches!(error, Error::NotImplemented { .. }) || panic!("{error}"),
    }
}

/// Nothing to list is an empty list.
pub fn an_empty_namespace_lists_nothing(sets: &mut dyn IpSets) {
    assert_eq!(sets.list().unwrap(), []);
    assert_eq!(sets.headers().unwrap(), []);
    assert_eq!(sets.names().unwrap(), []);
    assert_eq!(sets.execute(&[]), []);
    sets.flush_all().unwrap();
    sets.destroy_all().unwrap();
}

/// What was asked for is there, with the kernel's defaults filled in.
pub fn a_set_is_created_listed_and_destroyed(sets: &mut dyn IpSets) {
    let set = ip_port_set("a")
        .with_family(SetFamily::Inet6)
        .with_maxelem(100)
        .with_hashsize(100)
        .with_counters();
    sets.create(&set).unwrap();
    let header = sets.header(&set.name).unwrap();
    assert_eq!(
        (header.set.name, header.set.set_type, header.set.family),
        (set.name, set.set_type, set.family)
    );
    assert_eq!(header.set.options.maxelem, Some(100));
    assert_eq!(
        header.set.options.hashsize,
        Some(128),
        "rounded up to a power of two"
    );
    assert!(
        header.set.options.counters && !header.set.options.comment && header.set.options.timeout.is_none()
    );
    assert_eq!((header.stats.references, header.stats.elements), (0, 0));
    assert!(header.stats.memory > 0);
    assert_eq!(sets.names().unwrap(), [set.name]);
    assert_eq!(sets.list().unwrap().len(), 1);
    assert_eq!(
        sets.list_set(&set.name).unwrap().header,
        sets.header(&set.name).unwrap()
    );
    sets.destroy(&set.name).unwrap();
    assert_eq!(sets.names().unwrap(), []);
}

/// `create` fails on repeat, `ensure_set` succeeds where the sets are alike but for the hashsize.
pub fn creating_a_set_again_is_a_matter_of_choice(sets: &mut dyn IpSets) {
    let set = ip_port_set("a").with_maxelem(100);
    sets.ensure_set(&set).unwrap();
    sets.ensure_set(&set).unwrap();
    sets.ensure_set(&set.clone().with_hashsize(4096)).unwrap();
    let error = sets.create(&set).unwrap_err();
    assert!(error.is_already_exists(), "{error}");
    for other in [
        set.clone().with_maxelem(101),
        set.clone().with_counters(),
        set.clone().with_timeout(Timeout::from_secs(1).unwrap()),
        Set::new(set.name, SetType::HashIp).with_maxelem(100),
    ] {
        let error = sets.ensure_set(&other).unwrap_err();
        assert!(error.is_already_exists(), "{other}: {error}");
    }
}

/// Whatever is done to it.
pub fn a_set_that_is_not_there_is_not_found(sets: &mut dyn IpSets) {
    let (missing, other) = (name("missing"), name("other"));
    sets.create(&ip_port_set("other")).unwrap();
    for operation in [
        Operation::destroy(missing),
        Operation::Flush { set: missing },
        Operation::Rename {
            from: missing,
            to: name("c"),
        },
        Operation::Swap {
            first: missing,
            second: other,
        },
        Operation::Swap {
            first: other,
            second: missing,
        },
        Operation::add(missing, web(1)),
        Operation::ensure(missing, web(1)),
        Operation::delete(missing, web(1)),
    ] {
        let error = sets
            .execute(std::slice::from_ref(&operation))
            .remove(0)
            .unwrap_err();
        assert!(error.is_not_found(), "{operation}: {error:?}");
    }
    let outcome = sets.execute(&[Operation::Destroy {
        set: missing,
        if_exists: IfExists::Succeed,
    }]);
    assert_eq!(outcome, [Ok(())]);
    assert!(sets.list_set(&missing).unwrap_err().is_not_found());
    assert!(sets.header(&missing).unwrap_err().is_not_found());
    assert!(sets.test(&missing, &web(1)).unwrap_err().is_not_found());
    assert!(sets.replace(&missing, &[]).unwrap_err().is_not_found());
}

/// And ensured and removed as often as one likes.
pub fn entries_are_added_once_and_deleted_once(sets: &mut dyn IpSets) {
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

/// With every option, in both families: what goes in comes out.
pub fn every_type_holds_and_lists_its_entries(sets: &mut dyn IpSets) {
    create_members(sets);
    for (set, given) in examples() {
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
        let mut wanted = given.clone();
        if set.set_type != SetType::ListSet {
            listed.entries.sort();
            wanted.sort();
        }
        assert_eq!(listed.entries, wanted, "{set}");
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

/// A refused operation does not stop those behind it, wherever it stands.
pub fn one_outcome_for_each_operation_in_order(sets: &mut dyn IpSets) {
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

/// What is behind the failure is not attempted, what is before it stays.
pub fn a_run_that_stops_leaves_the_rest_alone(sets: &mut dyn IpSets) {
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

/// Exactly as many entries are in as fit, and the error says how many that is.
pub fn the_first_entry_that_does_not_fit_is_named(sets: &mut dyn IpSets) {
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
    assert_eq!(cause, "the set is full, it takes 100 entries (error 4352)");
    assert_eq!(sets.header(&set).unwrap().stats.elements, 100);
    let until = sets.execute_until_failure(&[Operation::Flush { set }]);
    assert_eq!(until, [Ok(())]);
    let until = sets.execute_until_failure(&operations);
    assert_eq!(until.iter().position(Result::is_err), Some(100));
    assert_eq!(until.get(101), Some(&Err(Error::NotAttempted)));
}

/// Operations see what those before them did.
pub fn a_set_made_in_a_batch_takes_entries_in_the_same_batch(sets: &mut dyn IpSets) {
    let (a, b) = (name("a"), name("b"));
    let outcomes = sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::add(a, web(1)),
        Operation::add(a, web(2)),
        Operation::Rename { from: a, to: b },
        Operation::add(b, web(3)),
        Operation::add(a, web(4)),
        Operation::destroy(b),
        Operation::create(Set::new(b, SetType::HashIp)),
        Operation::add(b, web(5)),
        Operation::add(b, Entry::ip(ip("10.0.0.5"))),
    ]);
    let failed: Vec<usize> = outcomes
        .iter()
        .enumerate()
        .filter(|(_, o)| o.is_err())
        .map(|(i, _)| i)
        .collect();
    assert_eq!(failed, [5, 8], "{outcomes:?}");
    assert_eq!(entries(sets, "b"), ["10.0.0.5"]);
}

/// Set, dimension and reason are in the error, and the set is as it was.
pub fn entries_of_the_wrong_shape_do_not_reach_the_set(sets: &mut dyn IpSets) {
    let set = name("a");
    sets.create(&Set::new(set, SetType::HashIpPortNet)).unwrap();
    let port = ProtocolPort::tcp(1);
    let net: Network = "10.0.0.0/8".parse().unwrap();
    for (entry, message) in [
        (web(1), "the entry has 2 dimensions, the set 3"),
        (
            Entry::ip_port_ip(ip("10.0.0.1"), port, ip("10.0.0.2")),
            "dimension 3 (net): the entry has ip there",
        ),
        (
            Entry::ip_port_net(ip("::1"), port, net),
            "dimension 1 (ip): ::1 is no address of family inet",
        ),
        (
            Entry::ip_port_net(ip("10.0.0.1"), port, "::/8".parse().unwrap()),
            "dimension 3 (net): :: is no address of family inet",
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

/// Each with its own reason.
pub fn options_that_the_set_has_not_are_refused(sets: &mut dyn IpSets) {
    let set = name("a");
    sets.create(&ip_port_set("a")).unwrap();
    for (entry, wanted) in [
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
        assert_eq!(reason(sets.add(&set, &entry)), wanted, "{entry}");
    }
    assert_eq!(entries(sets, "a"), [""; 0]);
    let hash = name("h");
    sets.create(&Set::new(hash, SetType::HashIp)).unwrap();
    assert_eq!(
        reason(sets.add(&hash, &Entry::ip(ip("0.0.0.0")))),
        Reason::NullElement
    );
}

/// What the kernel would ignore or correct is refused before it is asked.
pub fn options_that_mean_nothing_are_refused(sets: &mut dyn IpSets) {
    let option = |outcome: Result<(), Error>| match outcome.unwrap_err() {
        Error::WrongOption { problem, .. } => problem.option,
        error => panic!("{error:?}"),
    };
    let a = name("a");
    assert_eq!(
        option(sets.create(&ip_port_set("a").with_markmask(1))),
        "markmask"
    );
    assert_eq!(option(sets.create(&ip_port_set("a").with_size(1))), "size");
    assert_eq!(
        option(sets.create(&ip_port_set("a").with_family(SetFamily::Unspecified))),
        "family"
    );
    assert_eq!(option(sets.create(&Set::new(a, SetType::BitmapIp))), "range");
    assert_eq!(
        option(sets.create(&Set::new(a, SetType::BitmapIp).with_family(SetFamily::Inet6))),
        "family"
    );
    assert_eq!(
        option(sets.create(&Set::new(a, SetType::BitmapPort).with_maxelem(1))),
        "maxelem"
    );
    assert_eq!(
        option(sets.create(&Set::new(a, SetType::HashIp).with_netmask(33))),
        "netmask"
    );
    assert_eq!(
        option(sets.create(&Set::new(a, SetType::HashIp).with_netmask(0))),
        "netmask"
    );
    assert_eq!(
        option(sets.create(&ip_port_set("a").with_bucketsize(3))),
        "bucketsize"
    );
    sets.create(&ip_port_set("a")).unwrap();
    assert_eq!(option(sets.add(&a, &web(1).with_nomatch())), "nomatch");
    assert_eq!(
        option(sets.add(&a, &web(1).with_position(Position::After(a)))),
        "before or after"
    );
}

/// `ensure` is `add -exist`.
pub fn an_entry_ensured_again_takes_the_new_options(sets: &mut dyn IpSets) {
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

/// Of sets of one type and family; others are refused.
pub fn swapping_exchanges_the_contents(sets: &mut dyn IpSets) {
    let (a, b) = (name("a"), name("b"));
    oks(sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::create(ip_port_set("b").with_maxelem(7)),
        Operation::create(ip_port_set("c").with_family(SetFamily::Inet6)),
        Operation::create(Set::new(name("d"), SetType::HashIp)),
        Operation::add(a, web(1)),
        Operation::add(b, web(2)),
        Operation::Swap { first: a, second: b },
    ]));
    assert_eq!(
        (entries(sets, "a"), entries(sets, "b")),
        (vec![web(2).to_string()], vec![web(1).to_string()])
    );
    assert_eq!(sets.header(&a).unwrap().set.options.maxelem, Some(7));
    assert_eq!(reason(sets.swap(&a, &name("c"))), Reason::DifferentTypes);
    assert_eq!(reason(sets.swap(&a, &name("d"))), Reason::DifferentTypes);
    assert_eq!(reason(sets.swap(&a, &name("missing"))), Reason::NoSuchSecondSet);
}

/// To a name that is free.
pub fn renaming_moves_a_set(sets: &mut dyn IpSets) {
    let (a, b) = (name("a"), name("b"));
    oks(sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::add(a, web(1)),
        Operation::Rename { from: a, to: b },
        Operation::create(ip_port_set("a")),
    ]));
    assert_eq!(entries(sets, "b"), ["10.0.0.1,tcp:80"]);
    let error = sets.rename(&a, &b).unwrap_err();
    assert!(error.is_already_exists(), "{error:?}");
}

/// Nor renamed.
pub fn a_set_in_a_list_cannot_be_destroyed(sets: &mut dyn IpSets) {
    let (a, list) = (name("a"), name("list"));
    oks(sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::create(Set::new(list, SetType::ListSet)),
        Operation::add(list, Entry::set(a)),
    ]));
    assert_eq!(sets.header(&a).unwrap().stats.references, 1);
    assert!(sets.destroy(&a).unwrap_err().is_busy());
    assert!(sets.rename(&a, &name("b")).unwrap_err().is_busy());
    sets.delete(&list, &Entry::set(a)).unwrap();
    sets.destroy(&a).unwrap();
}

/// Before, after, at the end; and says what is wrong with a member or a place.
pub fn a_list_keeps_its_order(sets: &mut dyn IpSets) {
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

/// By the kernel where it can, else here.
pub fn ranges_spread_over_their_entries(sets: &mut dyn IpSets) {
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
        let mut wanted: Vec<Entry> = parsed.entries().collect();
        listed.sort();
        wanted.sort();
        assert_eq!(listed, wanted, "{range}");
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

/// `/0` as a range becomes two halves; as an entry it is refused.
pub fn a_network_of_all_addresses_is_split(sets: &mut dyn IpSets) {
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

/// In one step, whatever was in it, with room for more entries than the old hash.
pub fn a_set_is_replaced_as_a_whole(sets: &mut dyn IpSets) {
    let set = name("a-name-that-is-as-long-as-can-b");
    sets.create(
        &Set::new(set, SetType::HashIpPort)
            .with_hashsize(64)
            .with_comment(),
    )
    .unwrap();
    sets.add(&set, &web(1)).unwrap();
    let wanted: Vec<Entry> = (2..=200)
        .map(|last| web(last).with_comment(Comment::new("x").unwrap()))
        .collect();
    sets.replace(&set, &wanted).unwrap();
    let mut listed = sets.list_set(&set).unwrap();
    listed.entries.sort();
    assert_eq!(listed.entries, wanted);
    assert!(listed.header.set.options.comment);
    assert_eq!(sets.names().unwrap(), [set]);
    sets.replace(&set, &[]).unwrap();
    assert_eq!(sets.list_set(&set).unwrap().entries, []);
    assert_eq!(sets.names().unwrap(), [set]);
}

/// No temporary set stays behind.
pub fn a_replacement_that_fails_changes_nothing(sets: &mut dyn IpSets) {
    let set = name("a");
    sets.create(&ip_port_set("a").with_maxelem(5)).unwrap();
    sets.add(&set, &web(1)).unwrap();
    let too_many: Vec<Entry> = (1..=6).map(web).collect();
    let error = sets.replace(&set, &too_many).unwrap_err();
    assert_eq!(error.reason(), Some(Reason::Full { maxelem: Some(5) }));
    assert!(
        sets.replace(&set, &[web(1), web(1)])
            .unwrap_err()
            .is_already_exists()
    );
    assert!(
        sets.replace(&set, &[web(1), Entry::port(1)])
            .unwrap_err()
            .is_invalid()
    );
    assert_eq!(entries(sets, "a"), ["10.0.0.1,tcp:80"]);
    assert_eq!(sets.names().unwrap(), [set]);
}

/// The smallest network decides, and an exception is none.
pub fn addresses_are_tested_against_networks(sets: &mut dyn IpSets) {
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

/// And a range that is too long.
pub fn a_bitmap_refuses_what_lies_outside(sets: &mut dyn IpSets) {
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

/// A swap leaves the numbers with the names.
pub fn sets_are_found_by_name_and_index(sets: &mut dyn IpSets) {
    let (a, b) = (name("a"), name("b"));
    oks(sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::create(ip_port_set("b")),
    ]));
    let (index_a, index_b) = (sets.index_of(&a).unwrap(), sets.index_of(&b).unwrap());
    assert_ne!(index_a, index_b);
    assert_eq!(
        (sets.name_of(index_a).unwrap(), sets.name_of(index_b).unwrap()),
        (a, b)
    );
    sets.swap(&a, &b).unwrap();
    assert_eq!(
        (sets.index_of(&a).unwrap(), sets.index_of(&b).unwrap()),
        (index_a, index_b)
    );
    assert!(sets.name_of(60_000).unwrap_err().is_not_found());
    assert!(sets.index_of(&name("missing")).unwrap_err().is_not_found());
}

/// None is destroyed while one is in use.
pub fn all_sets_are_flushed_and_destroyed(sets: &mut dyn IpSets) {
    let (a, list) = (name("a"), name("list"));
    oks(sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::create(ip_port_set("b")),
        Operation::create(Set::new(list, SetType::ListSet)),
        Operation::add(a, web(1)),
        Operation::add(list, Entry::set(a)),
    ]));
    assert!(sets.destroy_all().unwrap_err().is_busy());
    assert_eq!(sets.names().unwrap(), [a, name("b"), list]);
    sets.flush_all().unwrap();
    assert_eq!((entries(sets, "a"), entries(sets, "list")), (vec![], vec![]));
    sets.destroy_all().unwrap();
    assert_eq!(sets.names().unwrap(), []);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fake;

    #[test]
    fn the_fake_keeps_the_contract() {
        for (name, check) in CHECKS {
            println!("{name}");
            check(&mut Fake::new());
        }
    }
}
