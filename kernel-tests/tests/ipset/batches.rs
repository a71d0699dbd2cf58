//! Batches of more than one message, and ranges.

use std::collections::BTreeSet;

use kernlink_ipset::{Comment, Entry, EntryRange, Error, IpSets, Operation, Reason, Set, SetType};
use kernlink_kernel_tests::{kernel::Feature, requires};

use crate::{client, fill, name, web};

/// Far more than one message in each direction.
#[test]
fn sixty_thousand_entries_are_added_listed_tested_and_deleted() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("large"), SetType::HashIpPort).with_hashsize(65536);
    fill(&mut client, &set, (0..60_000).map(web));
    let mut listed = client.list_set(&set.name).unwrap();
    assert_eq!(listed.header.stats.elements, 60_000);
    listed.entries.sort();
    assert!(
        listed
            .entries
            .iter()
            .eq((0..60_000).map(web).collect::<BTreeSet<_>>().iter())
    );
    let all = client.list().unwrap();
    assert_eq!((all.len(), all[0].entries.len()), (1, 60_000));
    let answers = client.test_all(&set.name, &[web(0), web(59_999), web(60_000)]);
    assert_eq!(answers, [Ok(true), Ok(true), Ok(false)]);
    let deletions: Vec<_> = (0..60_000).map(|n| Operation::delete(set.name, web(n))).collect();
    assert!(client.execute(&deletions).iter().all(Result::is_ok));
    assert_eq!(client.list_set(&set.name).unwrap().entries, []);
}

/// Entries of very different sizes fill messages to their limit.
#[test]
fn entries_of_different_sizes_fit_their_messages() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("comments"), SetType::HashIpPort).with_comment();
    let entry = |n: u32| match n % 3 {
        0 => web(n),
        rest => web(n).with_comment(Comment::new(&"x".repeat(rest as usize * 127)).unwrap()),
    };
    fill(&mut client, &set, (0..5000).map(entry));
    let mut listed = client.list_set(&set.name).unwrap().entries;
    listed.sort();
    assert_eq!(
        listed,
        (0..5000)
            .map(entry)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
}

/// In the middle of a long batch, exactly the entries that fit are added, and the first refused entry is named.
///
/// The kernel counts in parts of 1 024 buckets (`ahash_region` in
/// [`ip_set_hash_gen.h`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipset/ip_set_hash_gen.h)), so only a hash of
/// one part has an exact limit. With one entry for each bucket no bucket overflows for any random seed of the hash, so the
/// hash does not grow to two parts. The comments make the batch several messages long.
#[test]
fn a_set_that_becomes_full_in_a_batch_refuses_the_rest() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("full"), SetType::HashIpPort)
        .with_hashsize(1024)
        .with_maxelem(1001)
        .with_comment();
    client.create(&set).unwrap();
    let entry = |n| web(n).with_comment(Comment::new(&"x".repeat(100)).unwrap());
    let operations: Vec<_> = (0..3000).map(|n| Operation::add(set.name, entry(n))).collect();
    let outcomes = client.execute_until_failure(&operations);
    assert_eq!(outcomes.iter().position(Result::is_err), Some(1001));
    let error = outcomes[1001].clone().unwrap_err();
    assert_eq!(error.to_string(), format!("cannot {}", operations[1001]));
    assert_eq!(error.reason(), Some(Reason::Full { maxelem: Some(1001) }));
    assert!(
        outcomes[1002..]
            .iter()
            .all(|outcome| *outcome == Err(Error::NotAttempted))
    );
    let listed: BTreeSet<Entry> = client.list_set(&set.name).unwrap().entries.into_iter().collect();
    assert_eq!(listed, (0..1001).map(entry).collect());
    // A second execution fails for every entry: those in the set exist, the others do not fit.
    let outcomes = client.execute(&operations);
    assert!(
        outcomes[..1001]
            .iter()
            .all(|outcome| outcome.as_ref().unwrap_err().is_already_exists())
    );
    assert!(
        outcomes[1001..]
            .iter()
            .all(|outcome| outcome.as_ref().unwrap_err().is_full())
    );
}

/// A hash of more than 1 024 buckets counts in parts of that many. Once the set as a whole has reached its limit, a part that has
/// its share accepts no more entries, and the other parts accept entries until they have their share. So the set takes a few
/// hundred entries more than its limit; how many and which depends on the random seed of the hash. The outcomes name them.
#[test]
fn the_outcomes_of_a_large_full_set_name_the_entries_that_were_added() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("full"), SetType::HashIpPort)
        .with_hashsize(32768)
        .with_maxelem(20_001);
    client.create(&set).unwrap();
    let operations: Vec<_> = (0..22_000).map(|n| Operation::add(set.name, web(n))).collect();
    let outcomes = client.execute(&operations);
    let taken: BTreeSet<Entry> = (0..)
        .zip(&outcomes)
        .filter(|(_, o)| o.is_ok())
        .map(|(n, _)| web(n))
        .collect();
    // All parts except a few have their share by then, so some of the last 1 999 entries are refused and the others are added.
    assert!((20_001..22_000).contains(&taken.len()), "{}", taken.len());
    assert!(
        outcomes
            .iter()
            .flat_map(|outcome| outcome.as_ref().err())
            .all(Error::is_full)
    );
    let listed: BTreeSet<Entry> = client.list_set(&set.name).unwrap().entries.into_iter().collect();
    assert_eq!(listed, taken);
}

/// Refused entries are scattered over many messages.
#[test]
fn refusals_in_a_long_batch_name_the_right_entries() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("scattered"), SetType::HashIpPort).with_hashsize(32768);
    let exists = |n: u32| n % 1013 == 7 || (9000..9300).contains(&n);
    fill(&mut client, &set, (0..20_000).filter(|n| exists(*n)).map(web));
    let operations: Vec<_> = (0..20_000).map(|n| Operation::add(set.name, web(n))).collect();
    for (n, outcome) in client.execute(&operations).into_iter().enumerate() {
        assert_eq!(outcome.is_err(), exists(n as u32), "{n}: {outcome:?}");
    }
    assert_eq!(client.header(&set.name).unwrap().stats.elements, 20_000);
}

/// The kernel adds a range in parts of 2^14 entries and continues by itself.
#[test]
fn a_long_range_is_one_operation() {
    requires!(Feature::IpSet);
    let mut client = client();
    let set = Set::new(name("range"), SetType::HashIp)
        .with_hashsize(1 << 17)
        .with_maxelem(1 << 17);
    client.create(&set).unwrap();
    let range = |text: &str| EntryRange::parse(text, set.set_type, set.family).unwrap();
    client
        .add_range(&set.name, &range("10.0.0.0-10.1.200.0"))
        .unwrap();
    let expected = 0x1_c801;
    assert_eq!(client.header(&set.name).unwrap().stats.elements, expected);
    // Reaches the limit in the middle: the entries that fit are added.
    let error = client.add_range(&set.name, &range("11.0.0.0/15")).unwrap_err();
    assert_eq!(
        error.reason(),
        Some(Reason::Full {
            maxelem: Some(1 << 17)
        })
    );
    assert!(client.header(&set.name).unwrap().stats.elements >= 1 << 17);
}
