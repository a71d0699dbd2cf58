//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::flows::Reading;
use kernlink_iptables_restore::{Condition, Match, PortRange, Rule};
use kernlink_services::{Family, ObjectName};

use crate::chains::FixedChain;
use crate::key::Key;
use crate::order::Phase;
use crate::rule_key::RuleKey;
use crate::state::State;

type Need = kernlink_engine::plan::Need<Key>;

/// The writes of a plan in one family.
#[derive(Default)]
pub(super) struct Written {
    pub(super) services: BTreeMap<ObjectName, Need>,
    /// The rules of an earlier process that are removed, and the step.
    withdrawn: Vec<(Vec<RuleKey>, Need)>,
}

impl Written {
    /// Adds the rules of an earlier process that a step removes.
    pub(super) fn add_withdrawn(&mut self, rules: Vec<RuleKey>, step: &Need) {
        if !rules.is_empty() {
            self.withdrawn.push((rules, step.clone()));
        }
    }
}

/// Adds the step for the stale flows of a family.
pub(super) fn plan_flows(
    state: &State,
    family: Family,
    written: Written,
    builder: &mut BuilderOf<'_, State>,
) {
    if state.flows.tracked.reading() == Reading::Unsupported {
        return;
    }
    let mut destinations = state.flows.tracked.stale(family).clone();
    let is_unconditional = !destinations.is_empty();
    let mut needs = Vec::new();
    let mut subjects = BTreeSet::new();
    for (address, service) in &state.flows.changed {
        if Family::of(address.ip()) != family {
            continue;
        }
        // A frontend whose rules are in the kernel already was compared by the first listing.
        if let Some(need) = written.services.get(service) {
            destinations.insert(*address);
            if subjects.insert(service) {
                needs.push(need.clone());
            }
        }
    }
    for (rules, need) in written.withdrawn {
        let withdrawn: Vec<SocketAddr> = rules
            .iter()
            .flat_map(|rule| destinations_of(state, family, rule))
            .collect();
        if !withdrawn.is_empty() {
            destinations.extend(withdrawn);
            needs.push(need);
        }
    }
    if destinations.is_empty() {
        return;
    }
    let subject = match (subjects.len(), subjects.first()) {
        (1, Some(service)) if !is_unconditional => Subject::Service((*service).clone()),
        _ => Subject::DataPath,
    };
    let needs = if is_unconditional {
        Needs::none()
    } else {
        Needs::none().and_any(needs)
    };
    let pass = state.flows.pass(family, destinations);
    builder.push(Phase::DeleteFlows, Key::Flows(family), subject, pass, needs);
}

/// The UDP frontends that a rule of a shared chain is for.
fn destinations_of(state: &State, family: Family, key: &RuleKey) -> Vec<SocketAddr> {
    let Ok(rule) = key.text.parse::<Rule>() else {
        return Vec::new();
    };
    let port = rule.matches.iter().find_map(|test| match test {
        Match::Udp(udp) => match udp.destination_ports {
            Some(Condition::Is(PortRange { first, last })) if first == last => Some(first),
            _ => None,
        },
        _ => None,
    });
    let Some(port) = port else { return Vec::new() };
    let address = rule.matches.iter().find_map(|test| match test {
        Match::Destination(Condition::Is(network)) => Some(network.address),
        _ => None,
    });
    match (key.chain, address) {
        (FixedChain::NatServices, Some(address)) => vec![SocketAddr::new(address, port)],
        (FixedChain::NatNodePorts, None) => {
            let addresses = state.interfaces.iter().map(|interface| interface.address);
            let of_family = addresses.filter(|address| Family::of(*address) == family);
            of_family.map(|address| SocketAddr::new(address, port)).collect()
        }
        _ => Vec::new(),
    }
}
