//! Packets reach what the Services mean: random Services on the fake, which evaluates packets, compared with the resolved Services.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod node;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use kernlink_engine::contract::{Calls, Client, Cluster, Random, Request, seeds};
use kernlink_nftables_mode::Proxier;
use kernlink_services::{ArbitratedFrontend, ChosenEndpoint, Family, FrontendKind, SourceId, TrafficPolicy};

use crate::node::{NODE, Node, config};

const SOURCE: SourceId = SourceId(0);

/// Clients: a pod of this node, hosts that ranges admit and do not admit, and the node.
fn clients(family: Family) -> [Client; 4] {
    let hosts: [&str; 3] = match family {
        Family::Ipv4 => ["10.244.3.3", "198.19.0.7", "198.18.255.1"],
        Family::Ipv6 => ["fd00:244::3:3", "2001:db8:5::7", "2001:db8:ffff::1"],
    };
    let [pod, admitted, denied] = hosts.map(|address| Client::Host(address.parse().unwrap()));
    [pod, admitted, denied, Client::Node]
}

/// The endpoints that a client reaches, by what the Service says.
fn expected(of: &ArbitratedFrontend<'_>, client: Client) -> BTreeSet<SocketAddr> {
    let family = of.key.family();
    let source: IpAddr = match client {
        Client::Host(address) => address,
        Client::Node => NODE[family.index()].parse().unwrap(),
    };
    let pods: [ipnet::IpNet; 2] = ["10.244.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
    let is_internal = client == Client::Node || pods[family.index()].contains(&source);
    let ranges: Vec<ipnet::IpNet> = of
        .frontends()
        .flat_map(|frontend| frontend.source_ranges.iter().copied())
        .collect();
    if !ranges.is_empty() && !ranges.iter().any(|range| range.contains(&source)) {
        return BTreeSet::new();
    }
    let frontend = of.frontends().next().unwrap();
    let port = of.owner;
    let list: &[ChosenEndpoint] = match (frontend.policy, frontend.kind) {
        (TrafficPolicy::Local, FrontendKind::ClusterIp) => &port.endpoints.local,
        (TrafficPolicy::Local, _) if !is_internal => &port.endpoints.local,
        _ => &port.endpoints.cluster,
    };
    let usable = list.iter().filter(|endpoint| endpoint.weight > 0);
    usable
        .map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port))
        .collect()
}

#[test]
fn packets_of_random_services_reach_the_endpoints_that_the_services_choose() {
    let mut compared = 0;
    for seed in seeds(20) {
        let mut random = Random::new(seed + 1_000);
        let config = config();
        let mut cluster = Cluster::random(&config.services.families, &mut random);
        let node = Node::new(&Calls::default());
        let mut proxier = Proxier::new(&config, node.kernel()).unwrap();
        for change in cluster.all() {
            proxier.change(SOURCE, change);
        }
        let mut now = Instant::now();
        for round in 0..4 {
            let synced = proxier.sync(now).unwrap();
            assert!(synced.is_success(), "seed {seed}: {synced}");
            let frontends: Vec<_> = proxier.services().frontends().collect();
            let mut requests = Vec::new();
            let mut endpoints = Vec::new();
            for frontend in &frontends {
                for client in clients(frontend.key.family()) {
                    requests.push(Request {
                        frontend: frontend.key,
                        client,
                    });
                    endpoints.push(expected(frontend, client));
                }
            }
            for ((request, expected), served) in requests.iter().zip(&endpoints).zip(node.served(&requests)) {
                assert_eq!(*expected, served, "seed {seed}, round {round}: {request}");
                compared += expected.len();
            }
            let change = cluster.change(&mut random);
            proxier.change(SOURCE, change);
            now += Duration::from_secs(1);
        }
    }
    assert!(compared > 1_000, "{compared}");
}
