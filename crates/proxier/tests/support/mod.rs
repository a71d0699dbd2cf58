//! What several tests need: worlds of manifests, and differences of listings that can be read.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod worlds;

use std::collections::BTreeMap;
use std::fmt::Write;

use kernlink_proxier::config::Config;
use kernlink_proxier::desired::{DesiredState, KernelVersion, Listings};
use kernlink_proxier::event::Event;
use kernlink_proxier::model::{InterfaceAddress, Model};
use kernlink_proxier::source::{Change, SourceId};

/// A model of these changes, on a node with these addresses (`eth0=192.0.2.1`), and its desired state.
pub(crate) fn build(config: Config, addresses: &str, changes: Vec<Change>) -> (Model, DesiredState) {
    let mut model = Model::new(config);
    model.set_interface_addresses(interface_addresses(addresses));
    for change in changes {
        model.change(SourceId(0), change);
    }
    assert!(model.is_ready());
    let mut desired = DesiredState::new(&model);
    let touched = model.take_touched();
    desired.fold(&model, &touched);
    (model, desired)
}

/// Reads `eth0=192.0.2.1,eth0=2001:db8::1`.
pub(crate) fn interface_addresses(text: &str) -> Vec<InterfaceAddress> {
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            let (interface, address) = part.trim().split_once('=').expect("INTERFACE=ADDRESS");
            InterfaceAddress::new(interface, address.parse().expect("an address"))
        })
        .collect()
}

/// The listings on the kernel that the worlds of kube-proxy were recorded on.
pub(crate) fn listings(desired: &DesiredState) -> Listings {
    desired.listings(KernelVersion::new(6, 1), 1)
}

/// All that is said about the present state.
pub(crate) fn events(model: &Model, desired: &DesiredState) -> Vec<Event> {
    let mut events = model.configuration_events();
    events.extend(model.object_events());
    events.extend(desired.events());
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

/// What two lists of lines have not in common, as `diff` would say it; empty if they are the same.
pub(crate) fn difference(what: &str, want: &[String], have: &[String]) -> String {
    let mut text = String::new();
    for line in want.iter().filter(|line| !have.contains(line)) {
        let _ = writeln!(text, "{what}: missing {line}");
    }
    for line in have.iter().filter(|line| !want.contains(line)) {
        let _ = writeln!(text, "{what}: extra   {line}");
    }
    if text.is_empty() && want != have {
        let _ = writeln!(
            text,
            "{what}: other order\n  want\n    {}\n  have\n    {}",
            want.join("\n    "),
            have.join("\n    ")
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
