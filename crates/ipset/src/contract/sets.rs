//! Checks of sets as a whole.

use super::{Sets, entries, ip, ip_port_set, name, oks, reason, web};
use crate::{Comment, Entry, Error, IfExists, Operation, Position, Reason, Set, SetFamily, SetType, Timeout};

/// Lists are empty; they are not an error.
pub(super) fn an_empty_namespace_lists_nothing(sets: &mut Sets) {
    assert_eq!(sets.list().unwrap(), []);
    assert_eq!(sets.headers().unwrap(), []);
    assert_eq!(sets.names().unwrap(), []);
    assert_eq!(sets.execute(&[]), []);
    sets.flush_all().unwrap();
    sets.destroy_all().unwrap();
}

/// The header has the requested options and the kernel's defaults.
pub(super) fn a_set_is_created_listed_and_destroyed(sets: &mut Sets) {
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

/// `create` fails if the set exists. `ensure_set` succeeds if the sets differ in nothing but the hashsize.
pub(super) fn an_existing_set_is_not_created_again_but_can_be_ensured(sets: &mut Sets) {
    let set = ip_port_set("a").with_maxelem(100);
    sets.ensure_set(&set).unwrap();
    sets.ensure_set(&set).unwrap();
    sets.ensure_set(&set.clone().with_hashsize(4096)).unwrap();
    let error = sets.create(&set).unwrap_err();
    assert!(error.is_already_exists(), "{error}");
    let set_type = Some(SetType::HashIpPort);
    assert_eq!(error.reason(), Some(Reason::SetExists { set_type }));
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

/// Every operation on it fails, except destroying it with `IfExists::Succeed`.
pub(super) fn a_missing_set_is_not_found(sets: &mut Sets) {
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

/// Operations depend on the effects of those before them.
pub(super) fn a_set_created_in_a_batch_takes_entries_in_the_same_batch(sets: &mut Sets) {
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

/// The kernel would ignore or correct them, so they are refused before they are sent.
pub(super) fn options_that_the_set_type_does_not_support_are_refused(sets: &mut Sets) {
    let option = |outcome: Result<(), Error>| match outcome.unwrap_err() {
        Error::InvalidOption { problem, .. } => problem.option,
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

/// Both sets must have the same type and family.
pub(super) fn swapping_exchanges_the_contents(sets: &mut Sets) {
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

/// The new name must be free.
pub(super) fn renaming_moves_a_set(sets: &mut Sets) {
    let (a, b) = (name("a"), name("b"));
    oks(sets.execute(&[
        Operation::create(ip_port_set("a")),
        Operation::add(a, web(1)),
        Operation::Rename { from: a, to: b },
        Operation::create(ip_port_set("a")),
    ]));
    assert_eq!(entries(sets, "b"), ["10.0.0.1,tcp:80"]);
    let error = sets.rename(&a, &b).unwrap_err();
    let set_type = Some(SetType::HashIpPort);
    assert_eq!(error.reason(), Some(Reason::SetExists { set_type }));
}

/// It cannot be renamed either.
pub(super) fn a_set_in_a_list_cannot_be_destroyed(sets: &mut Sets) {
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

/// The new entries may be more than the hash had buckets. No temporary set remains.
pub(super) fn replacing_a_set_replaces_all_entries(sets: &mut Sets) {
    let set = name("a-name-that-is-as-long-as-can-b");
    sets.create(
        &Set::new(set, SetType::HashIpPort)
            .with_hashsize(64)
            .with_comment(),
    )
    .unwrap();
    sets.add(&set, &web(1)).unwrap();
    let new: Vec<Entry> = (2..=200)
        .map(|last| web(last).with_comment(Comment::new("x").unwrap()))
        .collect();
    sets.replace(&set, &new).unwrap();
    let mut listed = sets.list_set(&set).unwrap();
    listed.entries.sort();
    assert_eq!(listed.entries, new);
    assert!(listed.header.set.options.comment);
    assert_eq!(sets.names().unwrap(), [set]);
    sets.replace(&set, &[]).unwrap();
    assert_eq!(sets.list_set(&set).unwrap().entries, []);
    assert_eq!(sets.names().unwrap(), [set]);
}

/// No temporary set remains.
pub(super) fn a_failed_replacement_changes_nothing(sets: &mut Sets) {
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

/// After a swap the indexes stay with the names.
pub(super) fn sets_are_found_by_name_and_index(sets: &mut Sets) {
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

/// No set is destroyed if one of them is in use.
pub(super) fn all_sets_are_flushed_and_destroyed(sets: &mut Sets) {
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
