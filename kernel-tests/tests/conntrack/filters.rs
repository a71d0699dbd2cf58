//! Listing and deleting by a filter, in the kernel and in the client.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use kernlink_conntrack::{
    Client, Conntrack, Error, Family, Filter, Flow, FlowKey, FlushScope, KernelFiltering, NewFlow, Operation,
    PortRange, Protocol, ProtocolPart, StaleFilter, Status, Tuple, Zone,
};
use kernlink_kernel_tests::traffic::{Connection, Network};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, since, tools};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::listing::{host, populate};
use crate::service_network::{DNS, ServiceNetwork, services};

#[test]
fn deletion_keeps_the_flows_that_the_tool_keeps() {
    requires!(Feature::Conntrack);
    for filtering in [
        KernelFiltering::Full,
        KernelFiltering::Listing,
        KernelFiltering::Off,
    ] {
        for (filter, options) in [
            (
                Filter::new()
                    .with_protocol(Protocol::UDP)
                    .with_destination_port(53),
                vec![
                    vec!["-f", "ipv4", "-p", "udp", "--dport", "53"],
                    vec!["-f", "ipv6", "-p", "udp", "--dport", "53"],
                ],
            ),
            (
                Filter::new().with_destination(host("10.96.0.1".parse().unwrap())),
                vec![vec!["-f", "ipv4", "-d", "10.96.0.1"]],
            ),
            (
                Filter::new()
                    .with_destination(host("fd96::1".parse().unwrap()))
                    .with_protocol(Protocol::UDP),
                vec![vec!["-f", "ipv6", "-d", "fd96::1", "-p", "udp"]],
            ),
            (
                Filter::new().with_destination("10.96.0.0/30".parse::<IpNet>().unwrap()),
                vec![vec!["-f", "ipv4", "-d", "10.96.0.0/30"]],
            ),
            (
                Filter::new().with_family(Family::Ipv4).with_masked_mark(1, 3),
                vec![vec!["-f", "ipv4", "-m", "1/3"]],
            ),
            (
                Filter::new().with_family(Family::Ipv6).with_zone(2),
                vec![vec!["-f", "ipv6", "-w", "2"]],
            ),
        ] {
            let [tool_namespace, client_namespace] = [NetNs::new(), NetNs::new()];
            let left = |client: &mut Client| {
                let mut left: Vec<FlowKey> = client
                    .list(&Filter::new())
                    .unwrap()
                    .iter()
                    .map(Flow::key)
                    .collect();
                left.iter_mut().for_each(|key| key.id = None);
                left.sort();
                left
            };
            let expected = tool_namespace.run(|| {
                let mut client = Client::open().unwrap();
                populate(&mut client);
                for options in &options {
                    tools::must("conntrack", &[&["-D"], options.as_slice()].concat());
                }
                left(&mut client)
            });
            assert!(
                !expected.is_empty() && expected.len() < 80,
                "{filter}: {}",
                expected.len()
            );
            client_namespace.run(|| {
                let mut client = Client::open().unwrap();
                client.set_kernel_filtering(filtering);
                populate(&mut client);
                let deletion = client.delete_matching(&filter).unwrap();
                assert_eq!(deletion.failed, []);
                assert_eq!(left(&mut client), expected, "{filtering:?} {filter}");
                if filtering != KernelFiltering::Full {
                    assert_eq!(deletion.deleted, Some(80 - expected.len() as u64));
                }
            });
        }
    }
}

#[test]
fn the_kernel_deletes_by_a_filter_from_6_11_on() {
    requires!(Feature::Conntrack);
    since!(6, 11);
    NetNs::new().run(|| {
        let mut client = Client::open().unwrap();
        populate(&mut client);
        let filter = Filter::new()
            .with_protocol(Protocol::UDP)
            .with_destination(host("10.96.0.1".parse().unwrap()));
        // The kernel does not return the number of deleted flows.
        assert_eq!(client.delete_matching(&filter).unwrap().deleted, None);
        assert_eq!(client.list(&Filter::new()).unwrap().len(), 40);
    });
}

#[test]
fn packets_of_a_deleted_stale_flow_reach_the_new_endpoint() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let services_network = ServiceNetwork::new();
    let service = SocketAddr::new(services()[0], DNS);
    let source = SocketAddr::new(Network::client_ipv4().into(), 4660);
    let mut connection =
        Connection::open_udp_from(&services_network.network.client, source, service).unwrap();
    assert_eq!(connection.ask().unwrap().server, "pod0");
    let [old, new] = [0, 1].map(|number| SocketAddr::new(Network::pod_ipv4(number).into(), 5353));
    services_network.network.node.run(|| {
        let rule = |action: &str, target: SocketAddr| {
            let rule = format!(
                "-w -t nat {action} PREROUTING -d {} -p udp --dport 53 -j DNAT --to-destination {target}",
                service.ip()
            );
            tools::must("iptables", &rule.split(' ').collect::<Vec<_>>());
        };
        rule("-D", old);
        rule("-A", new);
    });
    // The kernel sends packets of the flow to the old endpoint.
    assert_eq!(connection.ask().unwrap().server, "pod0");
    services_network.network.node.run(|| {
        let mut client = Client::open().unwrap();
        let unchanged = StaleFilter::new().with_destination(Protocol::UDP, service, [old]);
        assert_eq!(client.delete_stale(&unchanged).unwrap().deleted, Some(0));
        let changed = StaleFilter::new().with_destination(Protocol::UDP, service, [new]);
        assert_eq!(client.delete_stale(&changed).unwrap().deleted, Some(1));
    });
    assert_eq!(connection.ask().unwrap().server, "pod1");
}

/// Tuples of few addresses and ports, so that flows and filters often match.
fn tuples() -> impl Strategy<Value = Tuple> {
    (0..5_u8, 0..2_u8, 0..2_u8, 0..2_u16, 0..2_u16, any::<bool>()).prop_map(
        |(kind, source, destination, from, to, v6)| {
            let address = |number: u8| -> IpAddr {
                if v6 {
                    [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)].into()
                } else {
                    [10, 0, 0, number].into()
                }
            };
            let [source, destination] = [address(source + 1), address(destination + 3)];
            let ends = [
                SocketAddr::new(source, 0x1234 + from),
                SocketAddr::new(destination, 53 + to),
            ];
            match kind {
                0 => Tuple::tcp(ends[0], ends[1]),
                1 => Tuple::udp(ends[0], ends[1]),
                2 => Tuple::with_ports(Protocol::SCTP, ends[0], ends[1]),
                3 => Tuple::echo_request(source, destination, 0x1234 + from),
                _ => Tuple {
                    protocol: Protocol(50),
                    part: ProtocolPart::None,
                    ..Tuple::udp(ends[0], ends[1])
                },
            }
        },
    )
}

fn new_flows() -> impl Strategy<Value = NewFlow> {
    (tuples(), 0..3_u16, 0..4_u32, any::<bool>()).prop_map(|(tuple, zone, mark, assured)| {
        let status = if assured {
            Status::ASSURED | Status::SEEN_REPLY
        } else {
            Status::empty()
        };
        NewFlow::new(tuple, Duration::from_secs(600))
            .with_zone(Zone::new(zone))
            .with_mark(mark)
            .with_status(status)
    })
}

fn filters() -> impl Strategy<Value = Filter> {
    let some = |probability| proptest::option::weighted(probability, Just(()));
    (
        tuples(),
        tuples(),
        proptest::collection::vec(some(0.25), 16),
        0..4_u32,
        0..4_u32,
        0..4_u16,
        0..3_usize,
    )
        .prop_map(|(original, reply, chosen, mark, mask, zone, prefix)| {
            let is_chosen = |index: usize| chosen[index].is_some();
            // Conditions of two families are invalid.
            let reply = if reply.family() == original.family() {
                reply
            } else {
                original.inverted().unwrap()
            };
            let network = |address: IpAddr| {
                let full = if address.is_ipv4() { 32 } else { 128 };
                IpNet::new(address, full - [0, 1, full][prefix]).unwrap()
            };
            let ports = |tuple: Tuple| (tuple.source_socket().port(), tuple.destination_socket().port());
            let mut filter = Filter::new();
            filter.family = is_chosen(0).then_some(original.family());
            filter.protocol = is_chosen(1).then_some(original.protocol);
            for (conditions, tuple, base) in
                [(&mut filter.original, original, 2), (&mut filter.reply, reply, 8)]
            {
                conditions.source = is_chosen(base).then(|| network(tuple.source));
                conditions.destination = is_chosen(base + 1).then(|| network(tuple.destination));
                if let ProtocolPart::Icmp {
                    kind,
                    code,
                    identifier,
                } = tuple.part
                {
                    conditions.icmp_type = is_chosen(base + 2).then_some(kind);
                    conditions.icmp_code = is_chosen(base + 3).then_some(code);
                    conditions.icmp_identifier = is_chosen(base + 4).then_some(identifier);
                } else {
                    let port = |port: u16| match prefix {
                        0 => PortRange::from(port),
                        _ => PortRange::from(port..=port + 1),
                    };
                    conditions.source_port = is_chosen(base + 2).then_some(port(ports(tuple).0));
                    conditions.destination_port = is_chosen(base + 3).then_some(port(ports(tuple).1));
                }
            }
            if is_chosen(13) {
                filter = filter.with_masked_mark(mark, mask);
            }
            filter.zone = is_chosen(14).then_some(zone);
            if is_chosen(15) {
                filter = filter.with_masked_status(
                    if mark & 1 == 0 {
                        Status::ASSURED
                    } else {
                        Status::empty()
                    },
                    if mask & 1 == 0 {
                        Status::ASSURED
                    } else {
                        Status::ASSURED | Status::SEEN_REPLY
                    },
                );
            }
            filter
        })
}

#[test]
fn the_kernel_and_the_client_match_the_same_flows() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut runner = TestRunner::new(Config {
            cases: 50,
            failure_persistence: None,
            ..Config::default()
        });
        // One client for all cases, which probes the kernel only once.
        let client = std::cell::RefCell::new(Client::open().unwrap());
        let flows = proptest::collection::vec(new_flows(), 1..40);
        let outcome = runner.run(&(flows, filters()), |(flows, filter)| {
            let client = &mut *client.borrow_mut();
            client.flush(FlushScope::All).unwrap();
            let operations: Vec<Operation> = flows.iter().cloned().map(Operation::Add).collect();
            for outcome in client.execute(&operations) {
                // The same tuple may occur twice.
                if !outcome.as_ref().is_err_and(Error::is_already_exists) {
                    outcome.unwrap();
                }
            }
            let keys = |client: &mut Client, filtering, filter: &Filter| -> BTreeSet<FlowKey> {
                client.set_kernel_filtering(filtering);
                client.list(filter).unwrap().iter().map(Flow::key).collect()
            };
            client.set_kernel_filtering(KernelFiltering::Off);
            let flows = client.list(&Filter::new()).unwrap();
            let all: BTreeSet<FlowKey> = flows.iter().map(Flow::key).collect();
            let expected = flows
                .iter()
                .filter(|flow| filter.matches(flow))
                .map(Flow::key)
                .collect();
            let found = keys(client, KernelFiltering::Full, &filter);
            prop_assert_eq!(&expected, &found, "-L {}", filter);
            if !filter.is_unconditional() {
                client.delete_matching(&filter).unwrap();
                let left = keys(client, KernelFiltering::Off, &Filter::new());
                prop_assert_eq!(
                    left,
                    all.difference(&expected).copied().collect::<BTreeSet<_>>(),
                    "-D {}",
                    filter
                );
            }
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
    });
}
