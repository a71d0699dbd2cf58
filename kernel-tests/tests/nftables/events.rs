//! Events and traces.

use std::net::UdpSocket;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{
    Chain, Element, Elements, Event, EventFilter, Item, ItemKinds, Monitor, MonitorScope, Nftables,
    Operation, Set, Table, TableFamily, TableKey, TraceKind, Value, Verdict,
};

use crate::{client, nft, table};

const LONG: Option<Duration> = Some(Duration::from_secs(30));

#[test]
fn the_changes_of_a_transaction_are_followed_by_its_generation_with_the_process() {
    NetNs::new().run(|| {
        let mut monitor = Monitor::open(MonitorScope::Changes, LONG).unwrap();
        let set = Set::new(table().set("s"), &[kernlink_nftables::DataType::Service]);
        let elements = Elements::new(table().set("s"), [Element::new(Value::port(80))]);
        client()
            .apply(&[
                Operation::add(Table::new(table())),
                Operation::add(Chain::new(table().chain("a"))),
                Operation::add(set),
                Operation::add(elements.clone()),
                Operation::delete(table().chain("a")),
            ])
            .unwrap();
        let mut events = Vec::new();
        let generation = loop {
            match monitor.next().unwrap().unwrap() {
                Event::Generation(generation) => break generation,
                event => events.push(event),
            }
        };
        assert_eq!(generation.id, client().generation().unwrap());
        assert_eq!(generation.pid, Some(nix::unistd::gettid().as_raw() as u32));
        assert!(
            matches!(
                &*events,
                [
                    Event::Added(Item::Table(_)),
                    Event::Added(Item::Chain(_)),
                    Event::Added(Item::Set(_)),
                    Event::Added(Item::Elements(added)),
                    Event::Deleted(Item::Chain(_)),
                ] if *added == elements
            ),
            "{events:?}"
        );
        nft("delete table ip t");
        let deleted = monitor
            .find(|event| matches!(event, Ok(Event::Generation(_))))
            .unwrap()
            .unwrap();
        let Event::Generation(generation) = deleted else {
            panic!("{deleted:?}")
        };
        assert_eq!(generation.name.as_deref(), Some("nft"));
    });
}

#[test]
fn the_rules_that_a_packet_matches_are_traced() {
    NetNs::new().run(|| {
        nft("table ip t {
                 chain in { type filter hook input priority 0; policy drop; udp dport 5353 meta nftrace set 1; udp dport 5353 jump a; }
                 chain a { counter; }
             }");
        let monitor = Monitor::open(MonitorScope::Traces, LONG).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"?", "127.0.0.1:5353").unwrap();
        let mut steps = Vec::new();
        for event in monitor {
            let Event::Trace(trace) = event.unwrap() else { continue };
            let is_last = trace.kind == TraceKind::Policy;
            steps.push(trace);
            if is_last {
                break;
            }
        }
        let ids: Vec<u32> = steps.iter().map(|step| step.id).collect();
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{steps:?}");
        assert!(steps.iter().all(|step| step.table == table()));
        // The first step of the hook has the headers.
        let first = &steps[0];
        assert_eq!((&*first.chain, first.kind), ("in", TraceKind::Rule));
        assert_eq!(first.network_header[16..20], [127, 0, 0, 1]);
        assert_eq!(first.transport_header[2..4], 5353_u16.to_be_bytes());
        let jump = steps.iter().find(|step| step.verdict == Some(Verdict::jump("a")));
        assert!(jump.is_some_and(|step| step.rule.is_some()), "{steps:?}");
        let text = first.to_string();
        assert!(text.contains(" ip t in rule handle "), "{text}");
    });
}

/// One transaction for each line.
const CHANGES: [&str; 5] = [
    "add table ip t; add table ip6 t; add table ip other",
    "add chain ip other a; add rule ip other a accept",
    "add chain ip6 t a; add chain ip t a; add rule ip t a counter",
    "add set ip t s { type inet_service; }; add element ip t s { 80 }; add counter ip t c",
    "delete table ip other; delete table ip t; delete table ip6 t",
];

/// The events that a filter returns of [`CHANGES`], in short.
fn returned(filter: EventFilter) -> Vec<String> {
    NetNs::new().run(|| {
        let timeout = Some(Duration::ZERO);
        let monitor = Monitor::open(MonitorScope::All, timeout)
            .unwrap()
            .with_filter(filter);
        let first = client().generation().unwrap();
        CHANGES.iter().for_each(|text| nft(text));
        let short = |event: Result<Event, _>| match event.unwrap() {
            Event::Generation(generation) => format!("end {}", generation.id - first),
            Event::Added(item) => format!("{} {}", kind(&item), item.table()),
            Event::Deleted(item) => format!("no {} {}", kind(&item), item.table()),
            other => panic!("{other:?}"),
        };
        monitor.map(short).collect()
    })
}

fn kind(item: &Item) -> &'static str {
    match item {
        Item::Table(_) => "table",
        Item::Chain(_) => "chain",
        Item::Rule(_) => "rule",
        Item::Set(_) => "set",
        Item::Elements(_) => "elements",
        Item::Object(_) => "object",
        _ => "other",
    }
}

#[test]
fn the_events_of_one_table_are_returned_with_the_ends_of_their_transactions() {
    let all = returned(EventFilter::new());
    assert_eq!(all.iter().filter(|event| event.starts_with("end")).count(), 5);
    assert!(all.contains(&"rule ip other".to_owned()), "{all:?}");
    let of_table = |event: &&String| !event.ends_with("other") && !event.contains("ip6") && *event != "end 2";
    let expected: Vec<_> = all.iter().filter(of_table).cloned().collect();
    assert_eq!(returned(EventFilter::of_table(&table())), expected);
    assert_eq!(expected.last().map(String::as_str), Some("end 5"));
    let ip6 = returned(EventFilter::new().with_family(TableFamily::Ip6));
    assert_eq!(
        ip6,
        [
            "table ip6 t",
            "end 1",
            "chain ip6 t",
            "end 3",
            "no chain ip6 t",
            "no table ip6 t",
            "end 5"
        ]
    );
}

#[test]
fn the_events_of_one_kind_are_returned() {
    let elements = EventFilter::of_table(&table()).with_kinds(ItemKinds::ELEMENTS);
    assert_eq!(returned(elements)[..2], ["elements ip t", "end 4"]);
    let chains = EventFilter::new().with_kinds(ItemKinds::CHAINS);
    let expected = ["chain ip other", "end 2", "chain ip6 t", "chain ip t", "end 3"];
    assert_eq!(returned(chains)[..5], expected);
    let tables = EventFilter::new().with_kinds(ItemKinds::TABLES);
    assert_eq!(returned(tables).len(), 3 + 1 + 3 + 1);
}

#[test]
fn after_lost_events_the_next_generation_is_returned_regardless_of_the_filter() {
    NetNs::new().run(|| {
        let filter = EventFilter::of_table(&TableKey::new(TableFamily::Ip6, "missing"));
        let mut monitor = Monitor::open(MonitorScope::Changes, Some(Duration::ZERO))
            .unwrap()
            .with_filter(filter);
        monitor.set_receive_buffer(4 << 10).unwrap();
        let add = |name: String| {
            client().apply(&[Operation::add(Table::new(TableKey::new(TableFamily::Ip, name)))])
        };
        (0..200).for_each(|number| add(format!("table-{number}")).unwrap());
        let events: Vec<Event> = monitor.by_ref().map(Result::unwrap).collect();
        assert!(events.contains(&Event::Overrun), "{events:?}");
        assert!(
            events
                .iter()
                .all(|event| matches!(event, Event::Overrun | Event::Generation(_)))
        );
        add("later".into()).unwrap();
        add("last".into()).unwrap();
        let ends = events.len() + monitor.map(Result::unwrap).count();
        // One for each overrun at most, not one for each transaction.
        assert!((2..=4).contains(&ends), "{ends} {events:?}");
    });
}
