//! Events.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_conntrack::{
    Client, Conntrack, Event, EventKinds, EventOptions, Events, Family, Filter, Flow, FlowKey, FlushScope,
    NewFlow, Operation, Protocol, Tuple,
};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, wait};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::listing::{host, populate, socket};
use crate::service_network::{ServiceNetwork, services};

#[test]
fn events_of_a_flow_are_received() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let services_network = ServiceNetwork::new();
    let filter = Filter::new()
        .with_destination(host(services()[0]))
        .with_protocol(Protocol::TCP);
    let mut events = services_network
        .network
        .node
        .run(|| Events::open(EventKinds::all(), &filter, Some(Duration::from_secs(2))))
        .unwrap();
    services_network.make_requests(1);
    let keys = services_network.network.node.run(|| {
        let mut client = Client::open().unwrap();
        let keys: Vec<FlowKey> = client.list(&filter).unwrap().iter().map(Flow::key).collect();
        client.delete_matching(&filter).unwrap();
        keys
    });
    let mut received = Vec::new();
    for event in &mut events {
        let event = event.unwrap();
        let (name, flow) = match &event {
            Event::New(flow) => ("new", flow),
            Event::Update(flow) => ("update", flow),
            Event::Destroy(flow) => ("destroy", flow),
            other => panic!("{other:?}"),
        };
        assert_eq!([flow.key()], keys.as_slice());
        if name == "destroy" {
            assert!(flow.counters.unwrap()[0].packets > 0, "{flow:?}");
            assert!(flow.stopped.unwrap() >= flow.started.unwrap());
            received.push(name);
            break;
        }
        received.push(name);
    }
    assert_eq!(
        (received.first(), received.last()),
        (Some(&"new"), Some(&"destroy")),
        "{received:?}"
    );
    assert!(received.contains(&"update"), "{received:?}");
}

#[test]
fn after_an_overrun_resync_returns_the_table() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut client = Client::open().unwrap();
        let filter = Filter::new();
        let mut events = Events::open(EventKinds::all(), &filter, Some(Duration::from_millis(200))).unwrap();
        events.set_receive_buffer(4096).unwrap();
        populate(&mut client);
        client.delete_matching(&Filter::new().with_mark(1)).unwrap();
        let received: Vec<Event> = events.by_ref().map(Result::unwrap).collect();
        assert!(
            received.contains(&Event::Overrun),
            "{} events and no overrun",
            received.len()
        );
        assert!(received.len() < 80);
        let mut copy: BTreeSet<FlowKey> = events
            .resync(&mut client, &filter)
            .unwrap()
            .iter()
            .map(Flow::key)
            .collect();
        assert_eq!(copy.len(), 64);
        // The copy and the later events are complete.
        events.set_receive_buffer(1 << 20).unwrap();
        client
            .delete_matching(&Filter::new().with_mark(2).with_family(Family::Ipv4))
            .unwrap();
        for event in &mut events {
            match event.unwrap() {
                Event::New(flow) => drop(copy.insert(flow.key())),
                Event::Destroy(flow) => drop(copy.remove(&flow.key())),
                Event::Update(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let now: BTreeSet<FlowKey> = client.list(&filter).unwrap().iter().map(Flow::key).collect();
        assert_eq!(now.len(), 56);
        assert_eq!(copy, now);
    });
}

/// Whether an event or the report of an overrun is queued.
fn is_readable(events: &Events) -> bool {
    let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

#[test]
fn the_kernel_queues_only_events_of_its_filters() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let service = |text: &str| Filter::new().with_destination(text.parse::<IpNet>().unwrap());
        let filters = [
            service("10.96.0.8/30").with_protocol(Protocol::UDP),
            service("fd96::10/128").with_source("fd00::/64".parse::<IpNet>().unwrap()),
        ];
        let options = EventOptions::new(EventKinds::all())
            .with_kernel_filters(filters.clone())
            .with_timeout(Some(Duration::ZERO))
            .with_receive_buffer(4096);
        let mut events = options.open().unwrap();
        // For comparison: without a filter the same events overrun the same receive buffer.
        let mut unfiltered = EventOptions::new(EventKinds::all())
            .with_timeout(Some(Duration::ZERO))
            .with_receive_buffer(4096)
            .open()
            .unwrap();
        let mut client = Client::open().unwrap();
        // 80 flows of other addresses begin and end.
        populate(&mut client);
        client.flush(FlushScope::All).unwrap();
        assert!(!is_readable(&events));
        assert!(unfiltered.any(|event| event.unwrap() == Event::Overrun));
        drop(unfiltered);

        let flow = |tuple| Operation::Add(NewFlow::new(tuple, Duration::from_secs(600)));
        let matching = [
            Tuple::udp(socket("10.0.0.1:1"), socket("10.96.0.10:53")),
            Tuple::tcp(socket("[fd00::1]:1"), socket("[fd96::10]:53")),
        ];
        let others = [
            // Each violates one condition.
            Tuple::tcp(socket("10.0.0.1:1"), socket("10.96.0.10:53")),
            Tuple::udp(socket("10.0.0.1:1"), socket("10.96.0.12:53")),
            Tuple::udp(socket("[fd00::1]:1"), socket("[fd96::11]:53")),
            Tuple::udp(socket("[fd00:0:0:1::1]:1"), socket("[fd96::10]:53")),
        ];
        for tuple in others {
            client.execute(&[flow(tuple)]).pop().unwrap().unwrap();
        }
        assert!(!is_readable(&events));
        for tuple in matching {
            client.execute(&[flow(tuple)]).pop().unwrap().unwrap();
        }
        assert!(is_readable(&events));
        client.flush(FlushScope::All).unwrap();
        let mut received: Vec<(&str, Tuple)> = events
            .by_ref()
            .map(|event| match event.unwrap() {
                Event::New(flow) => ("new", flow.original),
                Event::Destroy(flow) => ("destroy", flow.original),
                other => panic!("{other:?}"),
            })
            .collect();
        // A flush deletes flows in the order of the hash table.
        received[2..].sort_by_key(|(_, tuple)| tuple.source);
        let [first, second] = matching;
        assert_eq!(
            received,
            [
                ("new", first),
                ("new", second),
                ("destroy", first),
                ("destroy", second)
            ]
        );
    });
}

#[test]
fn a_kernel_filter_with_an_unsupported_condition_is_refused() {
    requires!(Feature::Conntrack);
    let options = EventOptions::new(EventKinds::all())
        .with_kernel_filters([Filter::new(), Filter::new().with_destination_port(53)]);
    let error = NetNs::new().run(|| options.open()).unwrap_err();
    assert_eq!(error.to_string(), "invalid filter --dport 53");
}

/// The tuples of ended flows, and whether an overrun was reported; waits for the events of `count` flows.
fn ended(events: &mut Events, count: usize) -> (BTreeSet<Tuple>, bool) {
    let mut tuples = BTreeSet::new();
    let mut overran = false;
    for event in events {
        match event.unwrap() {
            Event::Destroy(flow) => drop(tuples.insert(flow.original)),
            Event::Overrun => overran = true,
            _ => {}
        }
        if tuples.len() == count {
            break;
        }
    }
    (tuples, overran)
}

#[test]
fn reliable_delivery_loses_no_event_of_an_ended_flow() {
    requires!(Feature::Conntrack);
    for kinds in [EventKinds::DESTROY, EventKinds::all()] {
        NetNs::new().run(|| {
            let mut events = EventOptions::new(kinds)
                .with_reliable_delivery()
                .with_timeout(Some(Duration::from_secs(60)))
                .with_receive_buffer(4096)
                .open()
                .unwrap();
            let mut client = Client::open().unwrap();
            populate(&mut client);
            client.flush(FlushScope::All).unwrap();
            // No event was read: the receive buffer is full, and the kernel keeps the other flows.
            assert!(!client.dying().unwrap().is_empty());
            let (tuples, overran) = ended(&mut events, 80);
            assert_eq!(tuples.len(), 80);
            // Lost events of the other kinds are reported.
            assert_eq!(overran, kinds != EventKinds::DESTROY);
            wait::until(|| match client.dying().unwrap().len() {
                0 => Ok(()),
                left => Err(format!("{left} dying flows")),
            });
        });
    }
}

#[test]
fn without_reliable_delivery_lost_events_of_ended_flows_are_reported() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut events = EventOptions::new(EventKinds::DESTROY)
            .with_timeout(Some(Duration::ZERO))
            .with_receive_buffer(4096)
            .open()
            .unwrap();
        let mut client = Client::open().unwrap();
        populate(&mut client);
        client.flush(FlushScope::All).unwrap();
        assert_eq!(client.dying().unwrap(), []);
        let (tuples, overran) = ended(&mut events, 80);
        assert!(tuples.len() < 80, "{}", tuples.len());
        assert!(overran);
    });
}
