use kernlink_dummylink::{Link, LinkAddress};
use kernlink_netlink::nftables::Generation;

use super::*;
use crate::watch::pace::{SETTLE, SPACING};

fn name(name: &str) -> LinkName {
    LinkName::new(name).unwrap()
}

fn link(index: u32, of: &str) -> Link {
    Link::new(index, name(of), None)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn address(index: u32, of: &str, address: &str) -> HostAddress {
    HostAddress::new(name(of), index, LinkAddress::host(ip(address)).unwrap())
}

fn key(address: &str) -> Changed {
    Changed::Address(AddressKey::host(ip(address)).unwrap())
}

/// Owned and built-in chains.
fn tables() -> Vec<WatchedTable> {
    vec![
        WatchedTable::new("nat").with_chains(["KUBE-SERVICES", "PREROUTING", "OUTPUT"]),
        WatchedTable::new("filter").with_chains(["KUBE-FORWARD", "INPUT"]),
    ]
}

/// A node with an address on `eth0` (2), and the dummy link (7); rules of both families in nftables.
fn changes() -> Changes {
    let sources = Family::ALL.map(|family| (family, RulesSource::Events));
    let mut changes = Changes::new(Some(name("kube-ipvs0")), tables(), &WatchOptions::new(sources));
    let mut snapshot = Snapshot::default();
    snapshot.links = vec![link(2, "eth0"), link(7, "kube-ipvs0")];
    snapshot.addresses = vec![
        address(2, "eth0", "192.0.2.1"),
        address(7, "kube-ipvs0", "10.96.0.1"),
    ];
    changes.start(&snapshot);
    changes.set_rules_events(true, Instant::now());
    changes
}

/// What the events at this time require, and nothing after it.
fn settled(changes: &mut Changes, now: Instant) -> Option<WatchEvent<Changed>> {
    let next = changes.next()?;
    assert_eq!(next, now + SETTLE);
    let needed = changes.take(next);
    assert_eq!(changes.take(next), None);
    assert_eq!(changes.next(), None);
    needed
}

/// What these events require.
fn after(events: &[LinkEvent]) -> Option<WatchEvent<Changed>> {
    let mut changes = changes();
    let now = Instant::now();
    for event in events {
        changes.on_link_event(event, now);
    }
    settled(&mut changes, now)
}

fn recheck<const N: usize>(keys: [Changed; N]) -> Option<WatchEvent<Changed>> {
    Some(WatchEvent::Recheck(keys.into()))
}

#[test]
fn removed_addresses_of_the_link_are_read_together() {
    let removed = |text| LinkEvent::AddressDeleted(address(7, "kube-ipvs0", text));
    let events = [removed("10.96.0.2"), removed("10.96.0.1"), removed("10.96.0.2")];
    assert_eq!(after(&events), recheck([key("10.96.0.1"), key("10.96.0.2")]));
    // The kernel removes it when the link is set down.
    assert_eq!(after(&[removed("fe80::1")]), None);
    // The name of a link that was deleted at once is not known.
    let unnamed = LinkEvent::AddressDeleted(address(7, "if7", "10.96.0.1"));
    assert_eq!(after(&[unnamed]), recheck([key("10.96.0.1")]));
}

#[test]
fn own_additions_need_nothing() {
    let events = [
        LinkEvent::LinkChanged(link(7, "kube-ipvs0")),
        LinkEvent::AddressChanged(address(7, "kube-ipvs0", "10.96.0.9")),
    ];
    assert_eq!(after(&events), None);
    let mut without_link = Changes::new(Some(name("kube-ipvs0")), tables(), &WatchOptions::new([]));
    without_link.on_link_event(&events[0], Instant::now());
    assert_eq!(without_link.next(), None);
}

#[test]
fn a_removed_or_renamed_link_needs_a_full_listing_instead_of_its_addresses() {
    let removed = LinkEvent::AddressDeleted(address(7, "kube-ipvs0", "10.96.0.1"));
    let events = [removed, LinkEvent::LinkDeleted(link(7, "kube-ipvs0"))];
    assert_eq!(after(&events), Some(WatchEvent::Resync));
    let renamed = LinkEvent::LinkChanged(link(7, "other"));
    assert_eq!(after(&[renamed]), Some(WatchEvent::Resync));
    // Its deletion was not received.
    let recreated = LinkEvent::LinkChanged(link(8, "kube-ipvs0"));
    assert_eq!(after(&[recreated]), Some(WatchEvent::Resync));
    // Other links.
    let others = [
        LinkEvent::LinkDeleted(link(2, "eth0")),
        LinkEvent::LinkChanged(link(9, "veth9")),
    ];
    assert_eq!(after(&others), None);
}

#[test]
fn only_new_and_lost_addresses_of_the_node_are_read() {
    let changed = |index, of, text| LinkEvent::AddressChanged(address(index, of, text));
    let deleted = |index, of, text| LinkEvent::AddressDeleted(address(index, of, text));
    assert_eq!(
        after(&[changed(3, "eth1", "192.0.2.3")]),
        Some(WatchEvent::Addresses)
    );
    assert_eq!(
        after(&[deleted(2, "eth0", "192.0.2.1")]),
        Some(WatchEvent::Addresses)
    );
    for event in [
        // A new lifetime.
        changed(2, "eth0", "192.0.2.1"),
        // The gateway address that some network plugins give to the link of each pod.
        changed(9, "veth9", "192.0.2.1"),
        changed(9, "veth9", "fe80::9"),
        deleted(9, "veth9", "fe80::9"),
        changed(1, "lo", "127.0.0.2"),
        changed(1, "lo", "::1"),
        deleted(9, "veth9", "192.0.2.7"),
    ] {
        assert_eq!(after(std::slice::from_ref(&event)), None, "{event:?}");
    }
    // The last link with an address.
    let moved = [changed(9, "veth9", "192.0.2.1"), deleted(2, "eth0", "192.0.2.1")];
    assert_eq!(after(&moved), None);
    let [changed, deleted_first] = moved;
    let lost = [changed, deleted_first, deleted(9, "veth9", "192.0.2.1")];
    assert_eq!(after(&lost), Some(WatchEvent::Addresses));
}

/// A notification of a change.
fn change(family: u8, table: &str, chain: Option<&str>) -> RulesEvent<RulesNotification> {
    RulesEvent::Notification(RulesNotification::Rules(Notification::Change(Change::new(
        family, table, chain,
    ))))
}

fn generation() -> RulesEvent<RulesNotification> {
    RulesEvent::Notification(RulesNotification::Rules(Notification::Generation(
        Generation::new(5),
    )))
}

#[test]
fn a_transaction_that_changes_owned_or_built_in_chains_needs_the_tables_of_its_family() {
    let relevant = [
        change(2, "nat", Some("KUBE-SERVICES")),
        change(2, "nat", Some("PREROUTING")),
        change(2, "filter", Some("KUBE-FORWARD")),
        change(2, "filter", Some("INPUT")),
        change(2, "nat", None),
    ];
    for event in relevant {
        let mut changes = changes();
        let now = Instant::now();
        changes.on_rules_event(&event, now);
        assert_eq!(changes.next(), None, "the transaction has not ended");
        changes.on_rules_event(&generation(), now);
        let due = changes.next().unwrap();
        assert_eq!(
            changes.take(due),
            recheck([Changed::Rules(Family::Ipv4)]),
            "{event:?}"
        );
        assert_eq!(changes.next(), None);
    }
    let irrelevant = [
        change(2, "nat", Some("CNI-HOSTPORT-DNAT")),
        change(2, "mangle", Some("PREROUTING")),
        change(2, "filter", Some("KUBE-SERVICES")),
        change(2, "kube-proxy", None),
        change(1, "nat", Some("KUBE-SERVICES")),
    ];
    let mut changes = changes();
    for event in irrelevant {
        changes.on_rules_event(&event, Instant::now());
        changes.on_rules_event(&generation(), Instant::now());
        assert_eq!(changes.next(), None, "{event:?}");
    }
    changes.on_rules_event(&change(10, "nat", None), Instant::now());
    changes.on_rules_event(&generation(), Instant::now());
    let due = changes.next().unwrap();
    assert_eq!(changes.take(due), recheck([Changed::Rules(Family::Ipv6)]));
}

#[test]
fn every_chain_of_a_table_that_is_watched_as_a_whole_is_relevant() {
    let options = WatchOptions::new([(Family::Ipv4, RulesSource::Events)]);
    let tables = vec![WatchedTable::new("kube-proxy")];
    let mut changes = Changes::new(None, tables, &options);
    let now = Instant::now();
    changes.set_rules_events(true, now);
    for event in [
        change(2, "nat", None),
        change(2, "nat", Some("services")),
        change(10, "kube-proxy", None),
    ] {
        changes.on_rules_event(&event, now);
        changes.on_rules_event(&generation(), now);
        assert_eq!(changes.next(), None, "{event:?}");
    }
    let mut now = now;
    for chain in [None, Some("services")] {
        changes.on_rules_event(&change(2, "kube-proxy", chain), now);
        changes.on_rules_event(&generation(), now);
        now = changes.next().unwrap();
        assert_eq!(
            changes.take(now),
            recheck([Changed::Rules(Family::Ipv4)]),
            "{chain:?}"
        );
    }
}

#[test]
fn lost_notifications_need_all_tables() {
    let mut changes = changes();
    changes.on_rules_event(&RulesEvent::Overrun, Instant::now());
    let due = changes.next().unwrap();
    let all = Family::ALL.map(Changed::Rules);
    assert_eq!(changes.take(due), recheck(all));
}

#[test]
fn tables_that_change_all_the_time_are_read_at_most_every_ten_seconds() {
    let mut changes = changes();
    let start = Instant::now();
    let mut now = start;
    let mut readings = 0;
    while now < start + Duration::from_secs(600) {
        changes.on_rules_event(&change(2, "nat", Some("OUTPUT")), now);
        changes.on_rules_event(&generation(), now);
        if changes.take(now).is_some() {
            readings += 1;
        }
        now += SPACING / 10;
    }
    // 10 in a row, then one for each 10 seconds.
    assert_eq!(readings, 69);
}

#[test]
fn legacy_tables_are_read_at_intervals() {
    let interval = Duration::from_secs(5);
    let sources = [
        (Family::Ipv4, RulesSource::Checks),
        (Family::Ipv6, RulesSource::Events),
    ];
    let mut changes = Changes::new(Some(name("kube-ipvs0")), tables(), &WatchOptions::new(sources));
    let now = Instant::now();
    changes.set_rules_events(true, now);
    for number in 1..4 {
        let due = now + interval * number;
        assert_eq!(changes.next(), Some(due));
        assert_eq!(changes.take(due - SETTLE), None);
        assert_eq!(changes.take(due), recheck([Changed::Rules(Family::Ipv4)]));
    }
    // Without notifications, the other family too.
    changes.set_rules_events(false, now);
    assert_eq!(
        changes.take(now + interval),
        recheck(Family::ALL.map(Changed::Rules))
    );
    changes.set_rules_events(true, now);
    assert_eq!(
        changes.take(now + interval),
        recheck([Changed::Rules(Family::Ipv4)])
    );
    let options = WatchOptions::new(sources).with_check_interval(Duration::ZERO);
    let mut changes = Changes::new(Some(name("kube-ipvs0")), tables(), &options);
    changes.set_rules_events(false, now);
    assert_eq!(changes.next(), None);
}

#[test]
fn after_lost_events_of_links_everything_is_read_once() {
    let mut changes = changes();
    let now = Instant::now();
    let removed = LinkEvent::AddressDeleted(address(7, "kube-ipvs0", "10.96.0.1"));
    changes.on_link_event(&removed, now);
    changes.on_rules_event(&RulesEvent::Overrun, now);
    changes.start(&Snapshot::default());
    changes.request_resync(now);
    let due = changes.next().unwrap();
    assert_eq!(changes.take(due), Some(WatchEvent::Resync));
    assert_eq!(changes.next(), None);
}

fn elements(family: u8, table: &str, numbers: std::ops::Range<u32>) -> RulesEvent<RulesNotification> {
    let keys = numbers.map(|number| Box::from(number.to_be_bytes())).collect();
    let change = ElementChange::new(family, table, "endpoints", keys);
    RulesEvent::Notification(RulesNotification::Elements(change))
}

fn element(family: Family, number: u32) -> Changed {
    Changed::Element(ChangedElement {
        family,
        table: "own".into(),
        set: "endpoints".into(),
        key: number.to_be_bytes().into(),
    })
}

/// What changes of elements require, where those of table `own` are noticed.
fn after_elements(events: &[RulesEvent<RulesNotification>]) -> Option<WatchEvent<Changed>> {
    let tables = vec![
        WatchedTable::new("own").with_elements(),
        WatchedTable::new("other"),
    ];
    let options = WatchOptions::new([
        (Family::Ipv4, RulesSource::Events),
        (Family::Ipv6, RulesSource::Checks),
    ]);
    let mut changes = Changes::new(None, tables, &options.with_check_interval(Duration::ZERO));
    let now = Instant::now();
    changes.set_rules_events(true, now);
    for event in events {
        changes.on_rules_event(event, now);
    }
    settled(&mut changes, now)
}

#[test]
fn changed_elements_are_read_one_by_one_and_many_as_a_whole() {
    let few = [elements(2, "own", 7..9), elements(2, "own", 8..9), generation()];
    let expected = [7, 8].map(|number| element(Family::Ipv4, number));
    assert_eq!(after_elements(&few), recheck(expected));
    for parts in [&[0..1_000, 1_000..1_001][..], &[0..500, 2_000..2_501]] {
        let many: Vec<_> = parts
            .iter()
            .map(|part| elements(2, "own", part.clone()))
            .collect();
        assert_eq!(
            after_elements(&many),
            recheck([Changed::Elements(Family::Ipv4, "own".into())])
        );
    }
    let at_the_limit = after_elements(&[elements(2, "own", 0..1_000)]);
    assert_eq!(
        at_the_limit,
        recheck(std::array::from_fn::<_, 1_000, _>(|number| {
            element(Family::Ipv4, number as u32)
        }))
    );
}

#[test]
fn elements_of_two_tables_are_not_mistaken_for_each_other() {
    let tables = ["own", "second"].map(|name| WatchedTable::new(name).with_elements());
    let options = WatchOptions::new([(Family::Ipv4, RulesSource::Events)]);
    let mut changes = Changes::new(None, tables.into(), &options);
    let now = Instant::now();
    changes.set_rules_events(true, now);
    for event in [
        elements(2, "own", 7..8),
        elements(2, "second", 0..1_001),
        generation(),
    ] {
        changes.on_rules_event(&event, now);
    }
    let many = Changed::Elements(Family::Ipv4, "second".into());
    let expected = recheck([element(Family::Ipv4, 7), many]);
    assert_eq!(settled(&mut changes, now), expected);
}

#[test]
fn elements_that_another_program_changes_all_the_time_are_read_at_a_pace_and_none_is_forgotten() {
    let tables = vec![WatchedTable::new("own").with_elements()];
    let options = WatchOptions::new([(Family::Ipv4, RulesSource::Events)]);
    let mut changes = Changes::new(None, tables, &options);
    let start = Instant::now();
    changes.set_rules_events(true, start);
    let (mut read, mut known) = (Vec::new(), BTreeSet::new());
    // Ten changes in a second.
    for number in 0..1_200_u32 {
        let now = start + Duration::from_millis(100) * number;
        changes.on_rules_event(&elements(2, "own", number..number + 1), now);
        if let Some(WatchEvent::Recheck(keys)) = changes.take(now) {
            read.push(now - start);
            known.extend(keys);
        }
    }
    // 10 at once, a second apart, and then one in ten seconds.
    let expected = 10 + 11;
    assert!(read.len() <= expected && read.len() >= expected - 2, "{read:?}");
    let due = changes.next().unwrap();
    assert!(due <= start + Duration::from_secs(131));
    let Some(WatchEvent::Recheck(keys)) = changes.take(due) else {
        panic!("the last ones are due");
    };
    known.extend(keys);
    assert_eq!(known.len(), 1_200);
}

#[test]
fn elements_of_other_tables_and_of_families_without_events_are_not_read() {
    for event in [
        elements(2, "other", 0..3),
        elements(2, "third", 0..3),
        elements(10, "own", 0..3),
        elements(1, "own", 0..3),
    ] {
        assert_eq!(after_elements(std::slice::from_ref(&event)), None, "{event:?}");
    }
}
