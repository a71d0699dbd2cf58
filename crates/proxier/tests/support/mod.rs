//! Test support: random clusters, the desired state of manifests, and readable differences of listings.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod clusters;

use std::collections::BTreeMap;
use std::fmt::Write;

use kernlink_proxier::ipvs_mode::{Config, KernelRelease, Listings, State};
use kernlink_services::{Change, Changes, Event, InterfaceAddress, Services, SourceId};

/// Services and the desired state that they compile to, without a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Desired {
    pub(crate) services: Services,
    pub(crate) state: State,
    /// The link whose addresses are not addresses of the node.
    dummy_link: String,
}

impl Desired {
    /// No objects, on a node without addresses.
    pub(crate) fn new(config: &Config) -> Self {
        let mut desired = Self {
            services: Services::new(config.services.clone()),
            state: State::new(config),
            dummy_link: config.dummy_link.clone(),
        };
        desired.update();
        desired
    }

    pub(crate) fn change(&mut self, source: u16, change: Change) -> Vec<Event> {
        self.services.change(SourceId(source), change)
    }

    pub(crate) fn set_interface_addresses(&mut self, mut addresses: Vec<InterfaceAddress>) {
        addresses.retain(|address| *address.interface != *self.dummy_link);
        self.services.set_interface_addresses(addresses);
    }

    pub(crate) fn set_config(&mut self, config: &Config) {
        self.services.set_config(config.services.clone());
    }

    /// Resolves and compiles what changed. Returns the changes and new events.
    pub(crate) fn update(&mut self) -> (Changes, Vec<Event>) {
        let mut events = self.services.update().events;
        let changes = self.services.take_changes();
        events.extend(self.state.compile(&self.services, &changes));
        (changes, events)
    }
}

/// The desired state after these changes, on a node with these addresses (`eth0=192.0.2.1`).
pub(crate) fn build(config: &Config, addresses: &str, changes: Vec<Change>) -> Desired {
    let mut desired = Desired::new(config);
    desired.set_interface_addresses(interface_addresses(addresses));
    for change in changes {
        desired.change(0, change);
    }
    assert!(desired.services.has_synced());
    desired.update();
    desired
}

/// Parses `eth0=192.0.2.1,eth0=2001:db8::1`.
pub(crate) fn interface_addresses(text: &str) -> Vec<InterfaceAddress> {
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            let (interface, address) = part.trim().split_once('=').expect("INTERFACE=ADDRESS");
            InterfaceAddress::new(interface, address.parse().expect("an address"))
        })
        .collect()
}

/// The listings for the kernel release on which the fixtures of kube-proxy were recorded.
pub(crate) fn listings(desired: &Desired) -> Listings {
    desired.state.listings(KernelRelease::new(6, 1), 1)
}

/// All events that describe the present state.
pub(crate) fn events(desired: &Desired) -> Vec<Event> {
    let mut events = desired.services.events();
    events.extend(desired.state.events());
    events.sort();
    events.dedup();
    events
}

/// The rules of each chain, in order, and the chains of each table.
pub(crate) fn by_chain(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            chains
                .entry(format!("{table} chains"))
                .or_default()
                .push(chain.to_owned());
            let name = chain.split(' ').next().unwrap_or_default();
            chains.entry(format!("{table} {name}")).or_default();
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default();
            chains
                .entry(format!("{table} {chain}"))
                .or_default()
                .push(line.to_owned());
        }
    }
    chains
}

/// The difference of two lists of lines, one line each; empty if they are equal.
pub(crate) fn difference(what: &str, expected: &[String], actual: &[String]) -> String {
    let mut text = String::new();
    for line in expected.iter().filter(|line| !actual.contains(line)) {
        let _ = writeln!(text, "{what}: missing {line}");
    }
    for line in actual.iter().filter(|line| !expected.contains(line)) {
        let _ = writeln!(text, "{what}: extra   {line}");
    }
    if text.is_empty() && expected != actual {
        let _ = writeln!(
            text,
            "{what}: other order\n  expected\n    {}\n  actual\n    {}",
            expected.join("\n    "),
            actual.join("\n    ")
        );
    }
    text
}

pub(crate) fn lines(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}
