//! Listing, reading and deleting single flows.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use kernlink_conntrack::{
    Client, Conntrack, Family, Filter, FlowKey, FlowUpdate, FlushScope, KernelFiltering, Labels, NewFlow,
    Operation, Protocol, ProtocolPart, ProtocolState, Status, TcpState, Tuple, Zone, ZoneDirection,
};
use kernlink_kernel_tests::traffic::{self, Connection, Network, Server};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, since, tools};

use crate::listing::{client_list, host, populate, socket, tool_list};
use crate::service_network::{DNS, ServiceNetwork, pod, services};

#[test]
fn flows_are_listed_as_the_tool_lists_them() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let services_network = ServiceNetwork::new();
    services_network.make_requests(3);
    services_network.network.node.run(|| {
        let mut client = Client::open().unwrap();
        for ends in [["192.0.2.2", "10.244.0.2"], ["2001:db8:1::2", "fd00:10:244::2"]] {
            let [source, destination] = ends.map(|end| end.parse().unwrap());
            let echo = Tuple::echo_request(source, destination, 0x1234);
            client.add(&NewFlow::new(echo, Duration::from_secs(600))).unwrap();
        }
        let expected = tool_list(&[]);
        assert_eq!(client_list(&mut client, &Filter::new()), expected);
        for kind in [
            "udp",
            "tcp",
            "icmp",
            "icmpv6",
            "[ASSURED]",
            "packets=",
            "TIME_WAIT",
        ] {
            assert!(
                expected.iter().any(|line| line.contains(kind)),
                "no {kind} in {expected:#?}"
            );
        }
        for (filter, options) in [
            (Filter::new().with_family(Family::Ipv6), vec!["-f", "ipv6"]),
            (Filter::new().with_family(Family::Ipv4), vec!["-f", "ipv4"]),
            (Filter::new().with_protocol(Protocol::TCP), vec!["-p", "tcp"]),
            (
                Filter::new()
                    .with_destination(host(services()[0]))
                    .with_protocol(Protocol::UDP)
                    .with_destination_port(DNS),
                vec!["-f", "ipv4", "-d", "10.96.0.10", "-p", "udp", "--dport", "53"],
            ),
            (
                Filter::new().with_destination(host(services()[1])),
                vec!["-f", "ipv6", "-d", "fd96::10"],
            ),
            (
                Filter::new()
                    .with_reply_source(host(pod(1, services()[1])))
                    .with_status(Status::ASSURED),
                vec!["-f", "ipv6", "-r", "fd00:10:244:1::2", "-u", "ASSURED"],
            ),
        ] {
            let expected = tool_list(&options);
            assert!(!expected.is_empty(), "{options:?} lists nothing");
            assert_eq!(client_list(&mut client, &filter), expected, "{filter}");
            // Again, after the client has probed the kernel.
            assert_eq!(client_list(&mut client, &filter), expected, "{filter}");
        }
    });
}

#[test]
fn counters_times_and_states_are_decoded() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let services_network = ServiceNetwork::new();
    let before = std::time::SystemTime::now();
    services_network.make_requests(1);
    services_network.network.node.run(|| {
        let mut client = Client::open().unwrap();
        for service in services() {
            let filter = Filter::new().with_destination(host(service));
            let flows = client.list(&filter).unwrap();
            assert_eq!(flows.len(), 2, "{flows:#?}");
            for flow in &flows {
                assert!(
                    flow.status
                        .contains(Status::SRC_NAT | Status::DST_NAT | Status::SEEN_REPLY | Status::CONFIRMED)
                );
                let [original, reply] = flow.counters.unwrap();
                assert!(
                    original.packets > 0 && reply.packets > 0 && original.bytes > 20,
                    "{flow:?}"
                );
                let started = flow.started.unwrap();
                let slack = Duration::from_secs(5);
                assert!(started + slack > before && started < std::time::SystemTime::now() + slack);
                let server = match flow.protocol() {
                    Protocol::UDP => SocketAddr::new(pod(0, service), 5353),
                    _ => SocketAddr::new(pod(1, service), 8080),
                };
                assert_eq!(flow.reply.source_socket(), server);
                if flow.protocol() == Protocol::TCP {
                    let Some(ProtocolState::Tcp {
                        state, window_scale, ..
                    }) = flow.protocol_state
                    else {
                        panic!("{flow:?}");
                    };
                    assert!(matches!(state, TcpState::TIME_WAIT | TcpState::CLOSE), "{flow}");
                    assert!(
                        window_scale.iter().all(|scale| (1..=14).contains(scale)),
                        "{flow:?}"
                    );
                }
                assert_eq!(client.flow(&flow.key()).unwrap().key(), flow.key());
            }
        }
        // Sets counters to zero, as `conntrack -L -z`.
        let all = client.list_and_zero_counters(Some(Family::Ipv4)).unwrap();
        assert!(all.iter().any(|flow| flow.counters.unwrap()[0].packets > 0));
        let later = client
            .list(&Filter::new().with_destination(host(services()[0])))
            .unwrap();
        assert!(
            later.iter().all(|flow| flow.counters.unwrap()[0].packets == 0),
            "{later:#?}"
        );
    });
}

#[test]
fn zones_and_labels_of_rules_are_decoded() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let network = Network::new(1);
    let _server = Server::start(
        &network.pods[0],
        "pod0",
        traffic::Protocol::Udp,
        SocketAddr::new(Network::pod_ipv4(0).into(), 5353),
    );
    network.node.run(|| {
        let rule = |arguments: &str| tools::must("iptables", &arguments.split(' ').collect::<Vec<_>>());
        rule("-w -t raw -A PREROUTING -i client -p udp --dport 5353 -j CT --zone-orig 4660");
        tools::must("nft", &["add", "table", "ip", "labels"]);
        tools::must(
            "nft",
            &["add chain ip labels forward { type filter hook forward priority 0; }"],
        );
        tools::must("nft", &["add rule ip labels forward ct label set 71"]);
    });
    let target = SocketAddr::new(Network::pod_ipv4(0).into(), 5353);
    let reply = Connection::open(&network.client, traffic::Protocol::Udp, target)
        .unwrap()
        .ask();
    reply.unwrap();
    network.node.run(|| {
        let mut client = Client::open().unwrap();
        let flows = client.list(&Filter::new().with_zone(4660)).unwrap();
        let [flow] = flows.as_slice() else {
            panic!("{flows:#?}")
        };
        assert_eq!(
            flow.zone,
            Zone {
                id: 4660,
                direction: ZoneDirection::Original
            }
        );
        assert!(flow.labels.unwrap().contains(71), "{flow:?}");
        let expected: BTreeSet<String> = tool_list(&[]);
        assert_eq!(client_list(&mut client, &Filter::new()), expected);
        let only_three = FlowUpdate::new().with_labels(Labels(1 << 3), Labels(1 << 3 | 1 << 71));
        client.update(&flow.key(), &only_three).unwrap();
        assert_eq!(client.flow(&flow.key()).unwrap().labels, Some(Labels(1 << 3)));
        client.delete(&flow.key()).unwrap();
        assert_eq!(client.totals().unwrap().entries, 0);
    });
}

#[test]
fn statistics_are_those_of_the_tool() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let services_network = ServiceNetwork::new();
    services_network.make_requests(2);
    services_network.network.node.run(|| {
        let mut client = Client::open().unwrap();
        let totals = client.totals().unwrap();
        assert_eq!(
            totals.entries.to_string(),
            tools::must("conntrack", &["-C"]).trim()
        );
        assert_eq!(
            totals.limit.unwrap().to_string(),
            tools::sysctl("net.netfilter.nf_conntrack_max")
        );
        let found: Vec<String> = client
            .cpu_statistics()
            .unwrap()
            .iter()
            .map(|cpu| {
                format!(
                    "cpu={} found={} invalid={} insert={} insert_failed={} drop={}",
                    cpu.cpu, cpu.found, cpu.invalid, cpu.insert, cpu.insert_failed, cpu.drop
                )
            })
            .collect();
        let expected: Vec<String> = tools::must("conntrack", &["-S"])
            .lines()
            .map(|line| line.split_whitespace().take(6).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(found, expected);
        let processors = client.expectation_statistics().unwrap().len();
        assert_eq!(processors, found.len());
        assert_eq!(client.dying().unwrap(), []);
        assert_eq!(client.unconfirmed().unwrap(), []);
    });
}

#[test]
fn flows_of_a_protocol_that_the_kernel_does_not_track_are_deleted() {
    requires!(Feature::Conntrack);
    // Older kernels track DCCP.
    since!(6, 16);
    NetNs::new().run(|| {
        let mut client = Client::open().unwrap();
        client.set_kernel_filtering(KernelFiltering::Listing);
        let new = |source: &str, destination: &str| {
            let tuple = Tuple {
                protocol: Protocol::DCCP,
                part: ProtocolPart::None,
                ..Tuple::udp(socket(source), socket(destination))
            };
            NewFlow::new(tuple, Duration::from_secs(600))
        };
        let flows = [
            new("10.0.0.1:0", "10.0.0.2:0"),
            new("10.0.0.1:0", "10.0.0.3:0"),
            new("[fd00::1]:0", "[fd00::2]:0"),
        ];
        for flow in &flows {
            client.add(flow).unwrap();
        }
        let listed = client.list(&Filter::new().with_protocol(Protocol::DCCP)).unwrap();
        assert_eq!(listed.len(), 3);
        for flow in &listed {
            assert_eq!(flow.original.part, ProtocolPart::None);
            assert_eq!(client.flow(&flow.key()).unwrap().key(), flow.key());
        }
        client.delete(&listed[0].key()).unwrap();
        client.flush(FlushScope::Family(Family::Ipv4)).unwrap();
        client.flush(FlushScope::Family(Family::Ipv6)).unwrap();
        assert_eq!(client.totals().unwrap().entries, 0);
    });
}

#[test]
fn without_permission_every_operation_of_a_batch_is_refused() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        populate(&mut Client::open().unwrap());
        // The part without capabilities is a process of its own, because safe Rust cannot change those of a thread.
        let program = std::env::current_exe().unwrap();
        let part = [
            program.to_str().unwrap(),
            "--exact",
            "flows::part_without_permission",
            "--ignored",
        ];
        let arguments: Vec<_> = ["--bounding-set=-all", "--inh-caps=-all"]
            .into_iter()
            .chain(part)
            .collect();
        let output = tools::must("setpriv", &arguments);
        assert!(output.contains("1 passed"), "{output}");
        assert_eq!(Client::open().unwrap().totals().unwrap().entries, 80);
    });
}

#[test]
#[ignore = "started by without_permission_every_operation_of_a_batch_is_refused"]
fn part_without_permission() {
    let connection = kernlink_netlink::Connection::open(kernlink_netlink::Protocol::Netfilter).unwrap();
    let mut client = Client::from_connection(connection);
    let key = |number: u16| {
        let ends = [format!("10.0.0.1:{number}"), "10.96.0.1:53".to_owned()];
        FlowKey::new(Tuple::udp(socket(&ends[0]), socket(&ends[1])))
    };
    let new = NewFlow::new(key(1).tuple, Duration::from_secs(60));
    let timeout = FlowUpdate::new().with_timeout(Duration::from_secs(60));
    let outcomes = client.execute(&[
        Operation::Delete(key(1002)),
        Operation::Add(new.clone()),
        Operation::Update(key(1004), timeout),
        Operation::Delete(key(1006)),
        Operation::Ensure(new.with_status(Status::ASSURED)),
        Operation::Delete(key(1008)),
        Operation::DeleteMatching(Filter::new().with_protocol(Protocol::UDP)),
        Operation::Flush(FlushScope::All),
        Operation::Delete(key(1010)),
        Operation::Delete(key(1012)),
    ]);
    let keys: Vec<FlowKey> = (1000..1040).map(key).collect();
    let deletion = client.delete_many(&keys);
    assert_eq!(
        (deletion.deleted, deletion.not_found, deletion.failed.len()),
        (Some(0), 0, keys.len())
    );
    let errors = deletion.failed.into_iter().map(|(_, error)| Err(error));
    for outcome in outcomes.into_iter().chain(errors) {
        let error = outcome.unwrap_err();
        assert!(
            error.is_permission_denied() && !error.is_outcome_unknown(),
            "{error:?}"
        );
    }
}

#[test]
fn a_client_of_another_namespace_uses_its_table() {
    requires!(Feature::Conntrack);
    let [here, there] = [NetNs::new(), NetNs::new()];
    let namespace = kernlink_netlink::Namespace::open(there.path()).unwrap();
    here.run(|| {
        let mut client = Client::open_in(&namespace).unwrap();
        populate(&mut client);
        assert_eq!(Client::open().unwrap().totals().unwrap().entries, 0);
        assert_eq!(
            there.run(|| Client::open().unwrap().totals().unwrap().entries),
            80
        );
    });
}
