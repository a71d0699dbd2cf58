//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::net::SocketAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_host::flows::Reading;
use kernlink_iptables_restore::{Condition, Mask, Match, Network, PortRange, Rule};
use kernlink_services::{Family, ObjectName};

use crate::chains::FixedChain;
use crate::key::Key;
use crate::order::Phase;
use crate::rule_key::RuleKey;
use crate::state::State;

type Need = kernlink_engine::plan::Need<Key>;

/// The rules of an earlier process that are removed, and the steps.
pub(super) type Withdrawn = Vec<(Vec<RuleKey>, Need)>;

/// The steps that write a Service; without any, that which removes its rules after those of others were written.
pub(super) fn steps_of(builder: &BuilderOf<'_, State>, family: Family, service: &ObjectName) -> Vec<Need> {
    let [service, replaced] = Key::of_service(family, service);
    let steps = builder.steps_of(&service);
    if steps.is_empty() {
        return builder.steps_of(&replaced);
    }
    steps
}

/// Adds the step for the stale flows of a family.
pub(super) fn plan_flows(
    state: &State,
    family: Family,
    withdrawn: Withdrawn,
    builder: &mut BuilderOf<'_, State>,
) {
    if state.flows.tracked.reading() == Reading::Unsupported {
        return;
    }
    let mut stale = state
        .flows
        .stale(family, |service| steps_of(builder, family, service));
    for (rules, step) in withdrawn {
        let withdrawn = rules.iter().flat_map(|rule| destinations_of(state, family, rule));
        stale.change(withdrawn, None, step);
    }
    stale.push(builder, Phase::DeleteFlows, Key::Flows(family), |destinations| {
        state.flows.pass(family, destinations).into()
    });
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
        Match::Destination(Condition::Is(network)) => Some(*network),
        _ => None,
    });
    match (key.chain, address) {
        // A node port has rules for single addresses if another Service has its number at one of them.
        (FixedChain::NatServices | FixedChain::NatNodePorts, Some(network)) if is_host(network) => {
            vec![SocketAddr::new(network.address, port)]
        }
        (FixedChain::NatNodePorts, None) => {
            let addresses = state.interfaces.iter().map(|interface| interface.address);
            let of_family = addresses.filter(|address| Family::of(*address) == family);
            of_family.map(|address| SocketAddr::new(address, port)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a network is a single address. Loopback addresses have a rule for all of them.
fn is_host(network: Network) -> bool {
    let bits = if network.address.is_ipv4() { 32 } else { 128 };
    network.mask.is_none_or(|mask| mask == Mask::Prefix(bits))
}
