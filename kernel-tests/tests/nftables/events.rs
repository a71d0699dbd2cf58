//! Events and traces.

use std::net::UdpSocket;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{
    Chain, Element, Elements, Event, Item, Monitor, MonitorScope, Nftables, Operation, Set, Table, TraceKind,
    Value, Verdict,
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
