//! Ports come and go at addresses that stay bound, while processes of the node listen on these ports: after every step of the change they
//! get nothing.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Instant;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server};
use kernlink_proxier::ipvs_mode::Proxier;

use crate::support::{cluster_ips, proxier, replace_objects, service, slices, sync};

/// The ports that come and go.
const PORTS: [(Protocol, u16); 2] = [(Protocol::Tcp, 81), (Protocol::Udp, 82)];

/// What a client without an answer gets at once: an ICMP message, or on the node an error when it sends.
const REFUSED: &str = "refused";

/// A Service with port 80, and with the other ports or without them.
fn web(has_more: bool) -> String {
    let more = if has_more {
        ", {name: more, port: 81, protocol: TCP}, {name: ask, port: 82, protocol: UDP}"
    } else {
        ""
    };
    let spec = format!("type: ClusterIP, ports: [{{name: web, port: 80, protocol: TCP}}{more}]");
    let ports = "[{name: web, port: 8080, protocol: TCP}, {name: more, port: 8080, protocol: TCP}, \
                 {name: ask, port: 5353, protocol: UDP}]";
    service("web", 1, &spec, "") + &slices("web", ports, &[(0, "node-a")])
}

/// The ports at both cluster IPs.
fn targets() -> Vec<(Protocol, SocketAddr)> {
    let of_address = |address| PORTS.map(|(protocol, port)| (protocol, SocketAddr::new(address, port)));
    cluster_ips(1).into_iter().flat_map(of_address).collect()
}

/// The server that answers a new connection or flow, or why there is no answer.
fn answer(from: &NetNs, protocol: Protocol, target: SocketAddr) -> String {
    match Connection::open(from, protocol, target).and_then(|mut connection| connection.ask()) {
        Ok(answer) => answer.server,
        Err(error) if [ErrorKind::ConnectionRefused, ErrorKind::PermissionDenied].contains(&error.kind()) => {
            REFUSED.to_owned()
        }
        Err(error) => error.to_string(),
    }
}

/// The answers to a client outside and to one on the node, for each of these targets.
fn answers(network: &Network, targets: &[(Protocol, SocketAddr)]) -> BTreeSet<String> {
    let clients = [("client", &network.client), ("node", &network.node)];
    let of_client = |(name, from)| {
        targets
            .iter()
            .map(move |&(protocol, target)| (name, protocol, target, answer(from, protocol, target)))
    };
    let all: Vec<_> = clients.into_iter().flat_map(of_client).collect();
    for (name, protocol, target, answer) in &all {
        println!("{name} to {target}/{protocol}: {answer}");
    }
    all.into_iter().map(|(.., answer)| answer).collect()
}

/// Executes the plan for these ports step by step, with connections after each step.
fn change(network: &Network, proxier: &mut Proxier, has_more: bool) {
    replace_objects(proxier, &web(has_more));
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.len() >= 12, "{plan}");
    // With TCP and IPv6 only at the end: that a connection is refused is noticed a second later, when the client repeats its SYN.
    let mut quick = targets();
    quick.retain(|(protocol, target)| *protocol == Protocol::Udp || target.is_ipv4());
    for (id, step) in plan.steps() {
        proxier.kernel_mut().execute(&step.operation).unwrap();
        println!("after step {id}, {}:", step.operation);
        let answers = answers(network, &quick);
        let is_served = |answer: &String| ["pod0", REFUSED].contains(&answer.as_str());
        assert!(
            answers.iter().all(is_served),
            "after step {id} of\n{plan}\n{answers:?}"
        );
    }
    let expected = if has_more { "pod0" } else { REFUSED };
    assert_eq!(
        answers(network, &targets()),
        [expected.to_owned()].into(),
        "after\n{plan}"
    );
}

#[test]
fn a_process_of_the_node_gets_nothing_while_ports_of_a_bound_address_come_and_go() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let mut servers = network.serve(Protocol::Tcp, 8080);
    servers.extend(network.serve(Protocol::Udp, 5353));
    let _on_node = network.node.enter();
    // A client without an answer waits for its timeout.
    tools::permit_icmp_errors();
    let mut proxier = proxier(&web(false));
    sync(&mut proxier);
    for (protocol, target) in targets() {
        servers.push(Server::start(&network.node, "node", protocol, target));
    }

    change(&network, &mut proxier, true);
    proxier.resync();
    let rest = sync(&mut proxier).plan;
    assert!(rest.is_empty(), "{rest}");
    change(&network, &mut proxier, false);

    // The processes would answer, if nothing refused the connections.
    for iptables in ["iptables", "ip6tables"] {
        tools::must(iptables, &["-w", "-F", "KUBE-IPVS-FILTER"]);
    }
    assert_eq!(answers(&network, &targets()), ["node".to_owned()].into());
}
