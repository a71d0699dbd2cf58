//! What only the kernel shows of `conntrack`: real flows through translation, listed, deleted and watched, with the
//! `conntrack` command as second opinion.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by panicking")]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_conntrack::{
    Changes, Client, Conntrack, Error, Event, EventKinds, EventOptions, Events, Family, Filter, Flow,
    FlowKey, KernelFiltering, Labels, NewExpectation, NewFlow, Operation, PortRange, Protocol, ProtocolPart,
    ProtocolState, Scope, StaleFlows, Status, TcpState, Tuple, Zone, ZoneScope,
};
use kernlink_kernel_tests::traffic::{self, Connection, Network, Server};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, since, tools, wait};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const DNS: u16 = 53;
const WEB: u16 = 80;

/// A service address of each family, translated by the node: UDP port 53 to pod 0, TCP port 80 to pod 1. Clients are
/// masqueraded.
fn services() -> [IpAddr; 2] {
    ["10.96.0.10", "fd96::10"].map(|address| address.parse().unwrap())
}

fn pod(number: u8, family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => Network::pod_ipv4(number).into(),
        IpAddr::V6(_) => Network::pod_ipv6(number).into(),
    }
}

struct Site {
    network: Network,
    _servers: Vec<Server>,
}

impl Site {
    fn new() -> Self {
        let network = Network::new(2);
        network.node.run(|| {
            tools::set_sysctl("net.netfilter.nf_conntrack_acct", "1");
            tools::set_sysctl("net.netfilter.nf_conntrack_timestamp", "1");
            // No flow ends by itself between two listings that are compared.
            tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout", "600");
            tools::set_sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "600");
            for service in services() {
                let program = if service.is_ipv4() {
                    "iptables"
                } else {
                    "ip6tables"
                };
                let rule = |words: &str| {
                    tools::must(
                        program,
                        &[
                            &["-w", "-t", "nat"],
                            words.split(' ').collect::<Vec<_>>().as_slice(),
                        ]
                        .concat(),
                    );
                };
                let dns = SocketAddr::new(pod(0, service), 5353);
                let web = SocketAddr::new(pod(1, service), 8080);
                rule(&format!(
                    "-A PREROUTING -d {service} -p udp --dport 53 -j DNAT --to-destination {dns}"
                ));
                rule(&format!(
                    "-A PREROUTING -d {service} -p tcp --dport 80 -j DNAT --to-destination {web}"
                ));
                rule("-A POSTROUTING -o pod+ -j MASQUERADE");
            }
        });
        let mut servers = network.serve(traffic::Protocol::Udp, 5353);
        servers.extend(network.serve(traffic::Protocol::Tcp, 8080));
        Site {
            network,
            _servers: servers,
        }
    }

    /// Flows of both protocols and families, ended as far as TCP ends: nothing changes any more when this returns.
    fn talk(&self, times: usize) {
        for service in services() {
            let ask = |protocol, port: u16| {
                let tally = traffic::ask_many(
                    &self.network.client,
                    protocol,
                    SocketAddr::new(service, port),
                    times,
                );
                assert!(tally.failures.is_empty(), "{tally:?}");
            };
            ask(traffic::Protocol::Udp, DNS);
            ask(traffic::Protocol::Tcp, WEB);
        }
        self.network.node.run(|| {
            let mut client = Client::open().unwrap();
            let tcp = Filter::new().with_protocol(Protocol::TCP);
            let is_over = |flow: &Flow| {
                let state = flow.protocol_state.as_ref();
                matches!(
                    state,
                    Some(ProtocolState::Tcp {
                        state: TcpState::TIME_WAIT | TcpState::CLOSE,
                        ..
                    })
                )
            };
            wait::until(|| {
                let flows = client.list(&tcp).unwrap();
                if flows.iter().all(is_over) {
                    Ok(())
                } else {
                    Err(format!("connections that do not end: {flows:#?}"))
                }
            });
        });
    }
}

/// A line of `conntrack -L` or of ours without what goes on changing: time left and time passed.
fn steady(line: &str) -> String {
    let has_timeout = line
        .split_whitespace()
        .nth(4)
        .is_some_and(|word| word.parse::<u32>().is_ok());
    let words = line
        .split_whitespace()
        .enumerate()
        .map(|(index, word)| {
            if index == 4 && has_timeout {
                "TIMEOUT"
            } else {
                word
            }
        })
        .filter(|word| !word.starts_with("delta-time=") && !word.starts_with("use="));
    words.collect::<Vec<_>>().join(" ")
}

fn tool_list(options: &[&str]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    // Without a family the tool lists both; asked for one by its options, that one.
    let text = tools::must("conntrack", &[&["-L", "-o", "extended,id"], options].concat());
    all.extend(text.lines().map(steady));
    all
}

fn our_list(client: &mut Client, filter: &Filter) -> BTreeSet<String> {
    let flows = client.list(filter).unwrap();
    flows.iter().map(|flow| steady(&flow.to_string())).collect()
}

fn host(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn real_flows_are_listed_as_the_tool_lists_them() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let site = Site::new();
    site.talk(3);
    site.network.node.run(|| {
        let mut client = Client::open().unwrap();
        for ends in [["192.0.2.2", "10.244.0.2"], ["2001:db8:1::2", "fd00:10:244::2"]] {
            let [source, destination] = ends.map(|end| end.parse().unwrap());
            let echo = Tuple::echo_request(source, destination, 0x1234);
            client.add(&NewFlow::new(echo, Duration::from_secs(600))).unwrap();
        }
        let theirs = tool_list(&[]);
        assert_eq!(our_list(&mut client, &Filter::new()), theirs);
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
                theirs.iter().any(|line| line.contains(kind)),
                "no {kind} in {theirs:#?}"
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
            let theirs = tool_list(&options);
            assert!(!theirs.is_empty(), "{options:?} lists nothing");
            assert_eq!(our_list(&mut client, &filter), theirs, "{filter}");
            // Once more: the client has learned what its kernel can do.
            assert_eq!(our_list(&mut client, &filter), theirs, "{filter}");
        }
    });
}

#[test]
fn what_the_kernel_keeps_of_a_flow_is_read() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let site = Site::new();
    let before = std::time::SystemTime::now();
    site.talk(1);
    site.network.node.run(|| {
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
        // Counters to zero, as `conntrack -L -z`.
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
fn zones_and_labels_are_as_rules_set_them() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let network = Network::new(1);
    let _server = Server::start(
        &network.pods[0],
        "pod0",
        traffic::Protocol::Udp,
        SocketAddr::new(Network::pod_ipv4(0).into(), 5353),
    );
    network.node.run(|| {
        let rule = |words: &str| tools::must("iptables", &words.split(' ').collect::<Vec<_>>());
        rule("-w -t raw -A PREROUTING -i client -p udp --dport 5353 -j CT --zone-orig 4660");
        tools::must("nft", &["add", "table", "ip", "labels"]);
        tools::must(
            "nft",
            &["add chain ip labels forward { type filter hook forward priority 0; }"],
        );
        tools::must("nft", &["add rule ip labels forward ct label set 71"]);
    });
    let target = SocketAddr::new(Network::pod_ipv4(0).into(), 5353);
    let answer = Connection::open(&network.client, traffic::Protocol::Udp, target)
        .unwrap()
        .ask();
    answer.unwrap();
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
                scope: ZoneScope::Original
            }
        );
        assert!(flow.labels.unwrap().contains(71), "{flow:?}");
        let theirs: BTreeSet<String> = tool_list(&[]);
        assert_eq!(our_list(&mut client, &Filter::new()), theirs);
        let only_three = Changes::new().with_labels(Labels(1 << 3), Labels(1 << 3 | 1 << 71));
        client.update(&flow.key(), &only_three).unwrap();
        assert_eq!(client.flow(&flow.key()).unwrap().labels, Some(Labels(1 << 3)));
        client.delete(&flow.key()).unwrap();
        assert_eq!(client.totals().unwrap().entries, 0);
    });
}

/// Many flows of two services in two zones, both families, made without packets.
fn populate(client: &mut Client) {
    let mut operations = Vec::new();
    for number in 1..=40_u16 {
        for (source, service) in [("10.0.0.1", "10.96.0.1"), ("[fd00::1]", "[fd96::1]")] {
            let port = 1000 + number;
            let target = if number % 2 == 0 { 53 } else { 80 };
            let tuple = Tuple::udp(
                socket(&format!("{source}:{port}")),
                socket(&format!("{service}:{target}")),
            );
            let flow = NewFlow::new(tuple, Duration::from_secs(600))
                .with_zone(Zone::new(number % 3))
                .with_mark(u32::from(number % 5));
            operations.push(Operation::Add(flow));
        }
    }
    for outcome in client.execute(&operations) {
        outcome.unwrap();
    }
}

#[test]
fn deleting_leaves_what_the_tool_leaves() {
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
            let [theirs, ours] = [NetNs::new(), NetNs::new()];
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
            let expected = theirs.run(|| {
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
            ours.run(|| {
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
fn the_kernel_deletes_by_itself_where_it_can() {
    requires!(Feature::Conntrack);
    since!(6, 11);
    NetNs::new().run(|| {
        let mut client = Client::open().unwrap();
        populate(&mut client);
        let filter = Filter::new()
            .with_protocol(Protocol::UDP)
            .with_destination(host("10.96.0.1".parse().unwrap()));
        // The kernel does not count, so a deletion with a count was not its own.
        assert_eq!(client.delete_matching(&filter).unwrap().deleted, None);
        assert_eq!(client.list(&Filter::new()).unwrap().len(), 40);
    });
}

#[test]
fn a_deleted_flow_leads_anew() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let site = Site::new();
    let service = SocketAddr::new(services()[0], DNS);
    let source = SocketAddr::new(Network::client_ipv4().into(), 4660);
    let mut connection = Connection::open_udp_from(&site.network.client, source, service).unwrap();
    assert_eq!(connection.ask().unwrap().server, "pod0");
    let [old, new] = [0, 1].map(|number| SocketAddr::new(Network::pod_ipv4(number).into(), 5353));
    site.network.node.run(|| {
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
    // The kernel goes on leading the flow to where it began.
    assert_eq!(connection.ask().unwrap().server, "pod0");
    site.network.node.run(|| {
        let mut client = Client::open().unwrap();
        let still_good = StaleFlows::new().with_destination(Protocol::UDP, service, [old]);
        assert_eq!(client.delete_stale(&still_good).unwrap().deleted, Some(0));
        let question = StaleFlows::new().with_destination(Protocol::UDP, service, [new]);
        assert_eq!(client.delete_stale(&question).unwrap().deleted, Some(1));
    });
    assert_eq!(connection.ask().unwrap().server, "pod1");
}

#[test]
fn news_of_real_flows_are_heard() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let site = Site::new();
    let filter = Filter::new()
        .with_destination(host(services()[0]))
        .with_protocol(Protocol::TCP);
    let mut events = site
        .network
        .node
        .run(|| Events::open(EventKinds::all(), &filter, Some(Duration::from_secs(2))))
        .unwrap();
    site.talk(1);
    let keys = site.network.node.run(|| {
        let mut client = Client::open().unwrap();
        let keys: Vec<FlowKey> = client.list(&filter).unwrap().iter().map(Flow::key).collect();
        client.delete_matching(&filter).unwrap();
        keys
    });
    let mut heard = Vec::new();
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
            heard.push(name);
            break;
        }
        heard.push(name);
    }
    assert_eq!(
        (heard.first(), heard.last()),
        (Some(&"new"), Some(&"destroy")),
        "{heard:?}"
    );
    assert!(heard.contains(&"update"), "{heard:?}");
}

#[test]
fn an_overrun_is_seen_and_the_table_is_known_again() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut client = Client::open().unwrap();
        let filter = Filter::new();
        let mut events = Events::open(EventKinds::all(), &filter, Some(Duration::from_millis(200))).unwrap();
        events.set_receive_buffer(4096).unwrap();
        populate(&mut client);
        client.delete_matching(&Filter::new().with_mark(1)).unwrap();
        let heard: Vec<Event> = events.by_ref().map(Result::unwrap).collect();
        assert!(
            heard.contains(&Event::Overrun),
            "{} events and no overrun",
            heard.len()
        );
        assert!(heard.len() < 80);
        let mut picture: BTreeSet<FlowKey> = events
            .resynchronise(&mut client, &filter)
            .unwrap()
            .iter()
            .map(Flow::key)
            .collect();
        assert_eq!(picture.len(), 64);
        // From here on the news are the whole story again.
        events.set_receive_buffer(1 << 20).unwrap();
        client
            .delete_matching(&Filter::new().with_mark(2).with_family(Family::Ipv4))
            .unwrap();
        for event in &mut events {
            match event.unwrap() {
                Event::New(flow) => drop(picture.insert(flow.key())),
                Event::Destroy(flow) => drop(picture.remove(&flow.key())),
                Event::Update(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let now: BTreeSet<FlowKey> = client.list(&filter).unwrap().iter().map(Flow::key).collect();
        assert_eq!(now.len(), 56);
        assert_eq!(picture, now);
    });
}

/// Whether an event, or the report of an overrun, waits.
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
        // Other addresses: 80 flows begin and end.
        populate(&mut client);
        client.flush(Scope::Everything).unwrap();
        assert!(!is_readable(&events));
        assert!(unfiltered.any(|event| event.unwrap() == Event::Overrun));
        drop(unfiltered);

        let flow = |tuple| Operation::Add(NewFlow::new(tuple, Duration::from_secs(600)));
        let matching = [
            Tuple::udp(socket("10.0.0.1:1"), socket("10.96.0.10:53")),
            Tuple::tcp(socket("[fd00::1]:1"), socket("[fd96::10]:53")),
        ];
        let others = [
            // One condition of each filter is not fulfilled.
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
        client.flush(Scope::Everything).unwrap();
        let mut heard: Vec<(&str, Tuple)> = events
            .by_ref()
            .map(|event| match event.unwrap() {
                Event::New(flow) => ("new", flow.original),
                Event::Destroy(flow) => ("destroy", flow.original),
                other => panic!("{other:?}"),
            })
            .collect();
        // Flows end in the order of the hash table.
        heard[2..].sort_by_key(|(_, tuple)| tuple.source);
        let [first, second] = matching;
        assert_eq!(
            heard,
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
fn a_filter_of_events_that_the_kernel_cannot_compare_is_refused() {
    requires!(Feature::Conntrack);
    let options = EventOptions::new(EventKinds::all())
        .with_kernel_filters([Filter::new(), Filter::new().with_destination_port(53)]);
    let error = NetNs::new().run(|| options.open()).unwrap_err();
    assert_eq!(error.to_string(), "cannot filter by --dport 53");
}

/// The tuples of flows that ended, and whether an overrun was reported; waits until `count` ended.
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
fn reliable_delivery_loses_no_end_of_a_flow() {
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
            client.flush(Scope::Everything).unwrap();
            // Nothing was read so far: the receive buffer is full, and the kernel keeps the rest.
            assert!(!client.dying().unwrap().is_empty());
            let (tuples, overran) = ended(&mut events, 80);
            assert_eq!(tuples.len(), 80);
            // What was lost of the other kinds is reported.
            assert_eq!(overran, kinds != EventKinds::DESTROY);
            wait::until(|| match client.dying().unwrap().len() {
                0 => Ok(()),
                left => Err(format!("{left} flows are kept")),
            });
        });
    }
}

#[test]
fn without_reliable_delivery_ends_of_flows_are_lost_and_reported() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut events = EventOptions::new(EventKinds::DESTROY)
            .with_timeout(Some(Duration::ZERO))
            .with_receive_buffer(4096)
            .open()
            .unwrap();
        let mut client = Client::open().unwrap();
        populate(&mut client);
        client.flush(Scope::Everything).unwrap();
        assert_eq!(client.dying().unwrap(), []);
        let (tuples, overran) = ended(&mut events, 80);
        assert!(tuples.len() < 80, "{}", tuples.len());
        assert!(overran);
    });
}

#[test]
fn counts_are_those_of_the_tool() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let site = Site::new();
    site.talk(2);
    site.network.node.run(|| {
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
        let ours: Vec<String> = client
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
        let theirs: Vec<String> = tools::must("conntrack", &["-S"])
            .lines()
            .map(|line| line.split_whitespace().take(6).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(ours, theirs);
        let processors = client.expectation_statistics().unwrap().len();
        assert_eq!(processors, ours.len());
        assert_eq!(client.dying().unwrap(), []);
        assert_eq!(client.unconfirmed().unwrap(), []);
    });
}

#[test]
fn an_announced_connection_is_listed() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let network = Network::new(1);
    let server = SocketAddr::new(Network::pod_ipv4(0).into(), 21);
    network.node.run(|| {
        // The helper is a module of its own; where it is built in there is none to load.
        let _built_in = tools::run("modprobe", &["nf_conntrack_ftp"]);
        let rule = "-w -t raw -A PREROUTING -p tcp --dport 21 -j CT --helper ftp";
        tools::must("iptables", &rule.split(' ').collect::<Vec<_>>());
    });
    let kinds = EventKinds::EXPECTATIONS;
    let patience = Some(Duration::from_secs(5));
    let mut events = network
        .node
        .run(|| Events::open(kinds, &Filter::new(), patience))
        .unwrap();

    // The part of an FTP session in which the server announces where it will listen: port 2000.
    let listener = network.pods[0].run(|| TcpListener::bind(server)).unwrap();
    let mut control = network.client.run(|| TcpStream::connect(server)).unwrap();
    let (mut session, client) = listener.accept().unwrap();
    // The helper reads what follows a line, so there has to be one.
    let mut line = [0; 6];
    session.write_all(b"220 ok\r\n").unwrap();
    control.read_exact(&mut line).unwrap();
    control.write_all(b"PASV\r\n").unwrap();
    session.read_exact(&mut line).unwrap();
    session
        .write_all(b"227 Entering Passive Mode (10,244,0,2,7,208)\r\n")
        .unwrap();
    control.read_exact(&mut line).unwrap();

    network.node.run(|| {
        let mut table = Client::open().unwrap();
        let master = Tuple::tcp(client, server);
        let flow = table.flow(&FlowKey::new(master)).unwrap();
        assert_eq!(flow.helper.as_deref(), Some("ftp"));
        assert_eq!(our_list(&mut table, &Filter::new()), tool_list(&[]));
        let expectations = table.expectations().unwrap();
        let [expectation] = expectations.as_slice() else {
            panic!("{expectations:#?}")
        };
        assert_eq!(expectation.master, master);
        let data = Tuple::tcp(
            SocketAddr::new(client.ip(), 0),
            SocketAddr::new(server.ip(), 2000),
        );
        assert_eq!(expectation.tuple, data);
        let mask = ProtocolPart::Ports {
            source: 0,
            destination: 0xffff,
        };
        assert_eq!(expectation.mask.part, mask);
        assert_eq!(expectation.helper.as_deref(), Some("ftp"));
        assert!(
            (200..=300).contains(&expectation.timeout.unwrap().as_secs()),
            "{expectation}"
        );

        let Some(Ok(Event::ExpectationNew(heard))) = events.next() else {
            panic!("no news of the expectation")
        };
        // Not the number: Linux 6.1 tells another one in its news than in its list.
        assert_eq!(
            (heard.tuple, heard.master),
            (expectation.tuple, expectation.master)
        );
        let theirs = tools::must("conntrack", &["-L", "expect"]);
        let without_time = |line: &str| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap();
        assert_eq!(
            without_time(theirs.trim()),
            without_time(&expectation.to_string())
        );
        // What is expected comes, and has the flow that announced it as its master.
        let listener = network.pods[0]
            .run(|| TcpListener::bind((server.ip(), 2000)))
            .unwrap();
        let transfer = network
            .client
            .run(|| TcpStream::connect((server.ip(), 2000)))
            .unwrap();
        let child = Tuple::tcp(transfer.local_addr().unwrap(), listener.local_addr().unwrap());
        let flow = table.flow(&FlowKey::new(child)).unwrap();
        assert_eq!(flow.master.as_deref(), Some(&master));
        assert!(flow.status.contains(Status::EXPECTED));
        assert_eq!(table.expectations().unwrap(), []);
        assert!(matches!(events.next(), Some(Ok(Event::ExpectationDestroy(_)))));
    });
}

#[test]
fn flows_of_a_protocol_without_a_tracker_are_deleted() {
    requires!(Feature::Conntrack);
    // Kernels before have a tracker for DCCP.
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
        client.flush(Scope::Family(Family::Ipv4)).unwrap();
        client.flush(Scope::Family(Family::Ipv6)).unwrap();
        assert_eq!(client.totals().unwrap().entries, 0);
    });
}

#[test]
fn expectations_are_created_and_deleted() {
    requires!(Feature::Conntrack, Feature::Iptables);
    NetNs::new().run(|| {
        // The helper is a module of its own; where it is built in there is none to load.
        let _built_in = tools::run("modprobe", &["nf_conntrack_ftp"]);
        let mut client = Client::open().unwrap();
        for (source, server) in [("10.0.0.1", "10.0.0.2"), ("[fd00::1]", "[fd00::2]")] {
            let master = Tuple::tcp(socket(&format!("{source}:4660")), socket(&format!("{server}:21")));
            let tuple = Tuple::tcp(socket(&format!("{source}:0")), socket(&format!("{server}:2000")));
            let ones = if tuple.source.is_ipv4() {
                "255.255.255.255"
            } else {
                "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]"
            };
            let mask = Tuple::tcp(socket(&format!("{ones}:0")), socket(&format!("{ones}:65535")));
            let new = NewExpectation::new(master, tuple, mask)
                .with_zone(7)
                .with_helper("ftp")
                .with_timeout(Duration::from_secs(4000));
            assert!(client.add_expectation(&new).unwrap_err().is_not_found());
            let flow = NewFlow::new(master, Duration::from_secs(600)).with_zone(Zone::new(7));
            client.add(&flow).unwrap();
            // Of a flow without a helper.
            assert!(client.add_expectation(&new).unwrap_err().is_unsupported());
            client.delete(&flow.key()).unwrap();
            client.add(&flow.with_helper("ftp")).unwrap();
            client.add_expectation(&new).unwrap();
            assert!(client.add_expectation(&new).unwrap_err().is_already_exists());
            let expectations = client.expectations().unwrap();
            let [made] = expectations.as_slice() else {
                panic!("{expectations:#?}")
            };
            assert_eq!(
                (made.master, made.tuple, made.mask),
                (new.master, new.tuple, new.mask)
            );
            assert_eq!(made.helper.as_deref(), Some("ftp"));
            assert!((3000..=4000).contains(&made.timeout.unwrap().as_secs()), "{made}");
            let family = tuple.family().to_string();
            let theirs = tools::must("conntrack", &["-L", "expect", "-f", &family]);
            let without_time = |line: &str| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap();
            assert_eq!(without_time(theirs.trim()), without_time(&made.to_string()));
            // The kernel does not list the zone.
            let mut there = made.clone();
            there.zone = Zone::new(7);
            let mut other = there.clone();
            other.id ^= 1;
            assert!(client.delete_expectation(&other).unwrap_err().is_not_found());
            client.delete_expectation(&there).unwrap();
            assert!(client.delete_expectation(&there).unwrap_err().is_not_found());
            assert_eq!(client.expectations().unwrap(), []);
            client.add_expectation(&new).unwrap();
            client.flush_expectations().unwrap();
            assert_eq!(client.expectations().unwrap(), []);
        }
    });
}

/// Addresses and ports that meet now and then.
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
            // Of two families no filter can be made.
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
fn a_filter_in_the_kernel_means_the_same_as_here() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        let mut runner = TestRunner::new(Config {
            cases: 50,
            failure_persistence: None,
            ..Config::default()
        });
        // One client for all cases, so that it learns on the way what its kernel can do.
        let client = std::cell::RefCell::new(Client::open().unwrap());
        let flows = proptest::collection::vec(new_flows(), 1..40);
        let outcome = runner.run(&(flows, filters()), |(flows, filter)| {
            let client = &mut *client.borrow_mut();
            client.flush(Scope::Everything).unwrap();
            let operations: Vec<Operation> = flows.iter().cloned().map(Operation::Add).collect();
            for outcome in client.execute(&operations) {
                // The same tuple may come twice.
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
            let here = flows
                .iter()
                .filter(|flow| filter.matches(flow))
                .map(Flow::key)
                .collect();
            let kernel = keys(client, KernelFiltering::Full, &filter);
            prop_assert_eq!(&here, &kernel, "-L {}", filter);
            if !filter.is_unconditional() {
                client.delete_matching(&filter).unwrap();
                let left = keys(client, KernelFiltering::Off, &Filter::new());
                prop_assert_eq!(
                    left,
                    all.difference(&here).copied().collect::<BTreeSet<_>>(),
                    "-D {}",
                    filter
                );
            }
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
    });
}

#[test]
fn without_privilege_every_operation_of_a_batch_is_refused() {
    requires!(Feature::Conntrack);
    NetNs::new().run(|| {
        populate(&mut Client::open().unwrap());
        // Capabilities belong to a process as far as safe Rust goes, so the part without them is a process.
        let program = std::env::current_exe().unwrap();
        let part = [
            program.to_str().unwrap(),
            "--exact",
            "part_without_privilege",
            "--ignored",
        ];
        let arguments: Vec<_> = ["--bounding-set=-all", "--inh-caps=-all"]
            .into_iter()
            .chain(part)
            .collect();
        let said = tools::must("setpriv", &arguments);
        assert!(said.contains("1 passed"), "{said}");
        assert_eq!(Client::open().unwrap().totals().unwrap().entries, 80);
    });
}

#[test]
#[ignore = "started by without_privilege_every_operation_of_a_batch_is_refused"]
fn part_without_privilege() {
    let connection = kernlink_netlink::Connection::open(kernlink_netlink::Protocol::Netfilter).unwrap();
    let mut client = Client::over(connection);
    let key = |number: u16| {
        let ends = [format!("10.0.0.1:{number}"), "10.96.0.1:53".to_owned()];
        FlowKey::new(Tuple::udp(socket(&ends[0]), socket(&ends[1])))
    };
    let new = NewFlow::new(key(1).tuple, Duration::from_secs(60));
    let timeout = Changes::new().with_timeout(Duration::from_secs(60));
    let outcomes = client.execute(&[
        Operation::Delete(key(1002)),
        Operation::Add(new.clone()),
        Operation::Update(key(1004), timeout),
        Operation::Delete(key(1006)),
        Operation::Ensure(new.with_status(Status::ASSURED)),
        Operation::Delete(key(1008)),
        Operation::DeleteMatching(Filter::new().with_protocol(Protocol::UDP)),
        Operation::Flush(Scope::Everything),
        Operation::Delete(key(1010)),
        Operation::Delete(key(1012)),
    ]);
    let keys: Vec<FlowKey> = (1000..1040).map(key).collect();
    let deletion = client.delete_all(&keys);
    assert_eq!(
        (deletion.deleted, deletion.vanished, deletion.failed.len()),
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
fn a_client_of_another_namespace_stays_there() {
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
