//! Compares the desired state of iptables mode with what kube-proxy 1.36.3 wrote: `tests/oracle_iptables` has 19 fixtures, see its README.
#![cfg(feature = "kubernetes")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/oracle.rs"]
mod oracle;

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use kernlink_kubernetes::manifest;
use kernlink_proxier::iptables_mode::{Config, Listings, State};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, InterfaceAddress, ObjectChange, ObjectName, Port,
    Service, Services, SourceId,
};

use crate::oracle::{iptables_config, read};

/// The addresses of the node of the fixtures.
const ADDRESSES: [(&str, &str); 7] = [
    ("lo", "127.0.0.1"),
    ("lo", "::1"),
    ("eth0", "192.0.2.1"),
    ("eth0", "2001:db8::1"),
    ("eth0", "fe80::1"),
    ("eth1", "198.51.100.7"),
    ("eth1", "fe80::2"),
];

/// The chains in which each service port has rules.
const SHARED: [&str; 6] = [
    "filter KUBE-SERVICES",
    "filter KUBE-EXTERNAL-SERVICES",
    "filter KUBE-NODEPORTS",
    "filter KUBE-PROXY-FIREWALL",
    "nat KUBE-SERVICES",
    "nat KUBE-NODEPORTS",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn fixtures() -> Vec<String> {
    let entries = fs::read_dir(folder("oracle_iptables")).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The configuration of a fixture, with the facts of its Node.
fn config(fixture: &str) -> Config {
    iptables_config(
        &folder("oracle_iptables").join(fixture),
        &folder("oracle").join(fixture),
    )
}

fn listings(fixture: &str) -> Listings {
    let config = config(fixture);
    let objects = manifest::read(
        "objects.yaml",
        &read(&folder("oracle").join(fixture).join("objects.yaml")),
    );
    assert_eq!(objects.errors, []);
    let mut services = Services::new(config.services.clone());
    let addresses = ADDRESSES.map(|(link, address)| InterfaceAddress::new(link, address.parse().unwrap()));
    services.set_interface_addresses(addresses.to_vec());
    for change in objects.into_changes().unwrap() {
        services.change(SourceId(0), change);
    }
    services.update();
    let changes = services.take_changes();
    let mut state = State::new(&config);
    state.compile(&services, &changes);
    state.listings(4)
}

/// The rules by table and chain. In chains with rules of several service ports they are sorted by service port; rules of one keep
/// their order.
fn by_chain(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap();
            assert!(
                chains.insert(format!("{table} {name}"), Vec::new()).is_none(),
                "{line}"
            );
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let name = rule.split(' ').next().unwrap();
            chains
                .get_mut(&format!("{table} {name}"))
                .expect(line)
                .push(line.to_owned());
        }
    }
    for chain in SHARED {
        if let Some(rules) = chains.get_mut(chain) {
            rules.sort_by_key(|rule| {
                let comment = rule.split_once("--comment ").map_or("", |(_, comment)| comment);
                let label = comment.trim_start_matches('"').split([' ', '"']).next();
                let is_last = rule.contains("must be the last rule");
                // The addresses that accept node ports are in random order in kube-proxy.
                let address = if is_last { rule.clone() } else { String::new() };
                (is_last, label.unwrap_or_default().to_owned(), address)
            });
            // kube-proxy writes two rules for an address that a Service lists twice.
            rules.dedup();
        }
    }
    chains
}

fn compare(fixture: &str, listings: &Listings) -> Vec<String> {
    let reference = |file: &str| read(&folder("oracle_iptables").join(fixture).join(file));
    let mut differences = Vec::new();
    for (file, text) in [
        ("iptables.txt", &listings.iptables),
        ("ip6tables.txt", &listings.ip6tables),
    ] {
        let (mut expected, mut actual) = (by_chain(&reference(file)), by_chain(text));
        let mut names: Vec<String> = expected.keys().chain(actual.keys()).cloned().collect();
        names.sort();
        names.dedup();
        for name in names {
            let (expected, actual) = (expected.remove(&name), actual.remove(&name));
            if expected != actual {
                differences.push(format!(
                    "{fixture} {file} {name}\n  kube-proxy: {expected:#?}\n  kernlink: {actual:#?}"
                ));
            }
        }
    }
    if reference("jumps.txt") != listings.jumps {
        differences.push(format!("{fixture} jumps.txt\n{}", listings.jumps));
    }
    // The reference also lists a sysctl that kube-proxy does not set.
    let sysctls = reference("sysctl.txt");
    for line in listings.sysctl.lines() {
        if !sysctls.lines().any(|reference| reference == line) {
            differences.push(format!("{fixture} sysctl.txt: {line}"));
        }
    }
    let route_localnet = |text: &str| text.contains("route_localnet = 1");
    if route_localnet(&sysctls) != route_localnet(&listings.sysctl) {
        differences.push(format!("{fixture} sysctl.txt: route_localnet"));
    }
    differences
}

#[test]
fn the_desired_state_of_every_fixture_equals_that_of_kube_proxy() {
    let fixtures = fixtures();
    assert_eq!(fixtures.len(), 19);
    let differences: Vec<String> = fixtures
        .iter()
        .flat_map(|fixture| compare(fixture, &listings(fixture)))
        .collect();
    assert!(
        differences.is_empty(),
        "{} differences\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// The IPv4 and IPv6 rules for a Service with a number of endpoints in each family, all but one of which are not ready.
fn rules_with(endpoints: [u32; 2]) -> [String; 2] {
    let config = Config::new("node-a");
    let mut services = Services::new(config.services.clone());
    let name = ObjectName::new("default", "web");
    let mut service = Service::new(name.clone()).with_port(Port::new("http", 80));
    service.cluster_ip = "10.96.0.9".to_owned();
    service.cluster_ips = vec!["10.96.0.9".to_owned(), "fd00:10:96::9".to_owned()];
    service.ip_families = Family::ALL.to_vec();
    let slices = Family::ALL.map(|family| {
        let slice = EndpointSlice::new(
            ObjectName::new("default", format!("web-{family}")),
            name.name.clone(),
            family,
        );
        let slice = slice.with_port(EndpointPort::new("http", 8_080));
        (1..=endpoints[family.index()]).fold(slice, |slice, number| {
            let address: IpAddr = match family {
                Family::Ipv4 => Ipv4Addr::from_bits(0x0af4_0000 + number).into(),
                Family::Ipv6 => Ipv6Addr::from_bits(0xfd00_0010_0244 << 80 | u128::from(number)).into(),
            };
            let mut endpoint = Endpoint::new(address);
            endpoint.conditions.ready = number == 1;
            endpoint.conditions.serving = number == 1;
            slice.with_endpoint(endpoint)
        })
    });
    for change in [
        Change::Services(ObjectChange::ReplaceAll(vec![service])),
        Change::EndpointSlices(ObjectChange::ReplaceAll(slices.into())),
    ] {
        services.change(SourceId(0), change);
    }
    services.update();
    let changes = services.take_changes();
    let mut state = State::new(&config);
    state.compile(&services, &changes);
    let listings = state.listings(4);
    [listings.iptables, listings.ip6tables]
}

#[test]
fn rules_of_endpoints_have_comments_up_to_a_thousand_endpoints_of_the_family_ready_or_not() {
    // The comments in the chains of the Service and of its only ready endpoint.
    let comments = |text: &String| {
        assert_eq!(text.matches("-j DNAT").count(), 1, "{text}");
        let of_endpoint = |line: &&str| line.contains("KUBE-SEP-") && line.contains("--comment");
        text.lines().filter(of_endpoint).count()
    };
    for (endpoints, expected) in [
        ([1_000, 1_000], [3, 3]),
        ([1_001, 1_000], [0, 3]),
        ([1, 1_001], [3, 0]),
    ] {
        let rules = rules_with(endpoints);
        assert_eq!(rules.each_ref().map(comments), expected, "{endpoints:?}");
    }
}
