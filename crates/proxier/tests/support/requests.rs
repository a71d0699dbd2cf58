//! The requests of the contract of data paths, as packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use kernlink_proxier::contract::{Client, Request};
use kernlink_services::Family;

use crate::tracer::{End, Packet, Tracer};

/// The node's addresses, as the contract requires.
pub(crate) const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// The endpoints that serve a request.
pub(crate) fn served(tracer: &Tracer, request: &Request) -> BTreeSet<SocketAddr> {
    let frontend = request.frontend;
    let (input, source): (_, IpAddr) = match request.client {
        Client::Node => {
            let node = NODE[Family::of(frontend.address).index()];
            (None, node.parse().unwrap())
        }
        Client::Host(address) => (Some("eth0"), address),
    };
    let destination = SocketAddr::new(frontend.address, frontend.port);
    let packet = Packet::new(input, source, destination, frontend.protocol);
    match tracer.trace(packet) {
        End::Served(served) => served.iter().map(|served| served.endpoint()).collect(),
        _ => BTreeSet::new(),
    }
}

/// Chains with a rule for each frontend, whose order has no effect, apart from a last one.
const WITHOUT_ORDER: [&str; 4] = [
    "KUBE-EXTERNAL-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-PROXY-FIREWALL",
    "KUBE-SERVICES",
];

/// The chains of these rules that a test of names accepts, with their rules, sorted by name.
pub(crate) fn chains(
    rules: &kernlink_iptables_restore::Ruleset,
    is_listed: impl Fn(&str) -> bool,
    is_rule_listed: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (table, rules) in rules.tables() {
        let mut chains: Vec<_> = rules
            .chains()
            .map(|(name, chain)| (name.to_string(), chain))
            .collect();
        chains.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, chain) in chains {
            let rules = chain.rules().map(|rule| format!("    {rule}"));
            let mut rules: Vec<String> = rules.filter(|rule| is_rule_listed(rule)).collect();
            // Jumps in built-in chains that are missing are inserted at the top, as kube-proxy does it.
            if WITHOUT_ORDER.contains(&name.as_str()) || !name.starts_with("KUBE-") {
                let is_last = |rule: &String| rule.contains("must be the last rule");
                let last = rules.pop_if(|rule| is_last(rule));
                rules.sort();
                rules.extend(last);
            }
            if is_listed(&name) || !rules.is_empty() {
                lines.push(format!("{table:?} {name}"));
                lines.extend(rules);
            }
        }
    }
    lines
}
