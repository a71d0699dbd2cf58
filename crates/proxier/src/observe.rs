//! Reading from the backends what the kernel holds.

use kernlink_dummylink::{LinkName, Selection};
use kernlink_iptables_restore::{Ruleset, Save, Table};

use crate::backends::Backends;
use crate::desired::{DesiredState, KernelVersion, SetId};
use crate::error::BackendError;
use crate::family::Family;
use crate::observed::{ObservedServer, ObservedSet, ObservedState};
use crate::plan::CONNTRACK_BUCKETS;

/// What was read, and what could not be.
#[derive(Debug, Default)]
pub struct Observation {
    /// What was read.
    pub state: ObservedState,
    /// Families whose tables could not be read, and why: nothing is planned for their rules.
    pub failures: Vec<(Family, BackendError)>,
}

/// Reads everything that a plan for `desired` looks at.
///
/// # Errors
/// What keeps the whole from being planned: links, sets, settings or virtual servers that cannot be read. Tables that cannot be
/// read concern one family and are in the result.
pub fn observe(backends: &mut Backends, desired: &DesiredState) -> Result<Observation, BackendError> {
    let mut observation = Observation::default();
    let state = &mut observation.state;
    observe_links(backends, desired, state)?;
    for header in backends.sets.headers()? {
        if let Some(key) = SetId::of_name(&header.set.name) {
            let contents = backends.sets.list_set(&header.set.name)?;
            let entries = contents.entries.into_iter().collect();
            state.sets.insert(
                key,
                ObservedSet {
                    definition: contents.header.set,
                    entries,
                },
            );
        }
    }
    observe_settings(backends, desired, state)?;
    for (virtual_server, real_servers) in backends.ipvs.list_all()? {
        let real_servers = real_servers
            .into_iter()
            .map(|server| (server.key, server))
            .collect();
        state.virtual_servers.insert(
            virtual_server.key,
            ObservedServer {
                virtual_server,
                real_servers,
            },
        );
    }
    state.timeouts = Some(backends.ipvs.timeouts()?);
    observe_rules(backends, desired, &mut observation);
    Ok(observation)
}

/// Reads what a plan needs and an operation since has made unknown.
pub(crate) fn complete(
    backends: &mut Backends,
    desired: &DesiredState,
    observation: &mut Observation,
) -> Result<(), BackendError> {
    if observation.state.timeouts.is_none() {
        observation.state.timeouts = Some(backends.ipvs.timeouts()?);
    }
    observe_rules(backends, desired, observation);
    Ok(())
}

/// Reads the addresses of all links, and whether the dummy link is there.
fn observe_links(
    backends: &mut Backends,
    desired: &DesiredState,
    state: &mut ObservedState,
) -> Result<(), BackendError> {
    let link = LinkName::new(&desired.config().dummy_link)?;
    state.has_link = backends.links.exists(&link)?;
    state.set_host_addresses(&link, backends.links.list(Selection::All)?);
    Ok(())
}

fn observe_settings(
    backends: &mut Backends,
    desired: &DesiredState,
    state: &mut ObservedState,
) -> Result<(), BackendError> {
    let release = backends.settings.read("kernel.osrelease")?.unwrap_or_default();
    state.kernel = release.parse().unwrap_or(KernelVersion::new(0, 0));
    state.processors =
        std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX));
    for wanted in desired.sysctls(state.kernel, state.processors) {
        if let Some(value) = backends.settings.read(wanted.name)? {
            state.settings.insert(wanted.name.into(), value.into());
        }
    }
    let buckets = backends.settings.read(CONNTRACK_BUCKETS)?;
    state.conntrack_buckets = buckets.and_then(|text| text.parse().ok());
    Ok(())
}

fn observe_rules(backends: &mut Backends, desired: &DesiredState, observation: &mut Observation) {
    for family in desired.families() {
        if observation.state.rules.contains_key(&family) {
            continue;
        }
        match read_rules(backends, family) {
            Ok(rules) => {
                observation.failures.retain(|(failed, _)| *failed != family);
                observation.state.rules.insert(family, rules);
            }
            Err(error) => observation.failures.push((family, error)),
        }
    }
}

fn read_rules(backends: &mut Backends, family: Family) -> Result<Ruleset, BackendError> {
    let mut rules = Ruleset::new();
    for table in [Table::Nat, Table::Filter] {
        let saved = backends.rules.save(&Save::table(family.tables(), table))?;
        if let Some(table_rules) = saved.table(table) {
            *rules.table_mut(table) = table_rules.clone();
        }
    }
    Ok(rules)
}

/// The addresses of every interface, for the model.
pub(crate) fn interface_addresses(
    desired: &DesiredState,
    state: &ObservedState,
) -> Vec<crate::model::InterfaceAddress> {
    let interface: std::sync::Arc<str> = desired.config().dummy_link.clone();
    let own = state.addresses.iter().map(|key| crate::model::InterfaceAddress {
        interface: interface.clone(),
        address: key.address(),
    });
    state.node_addresses.iter().cloned().chain(own).collect()
}
