//! Makes a plan: compares the dirty objects and adds the steps that change them.

mod drains;
mod entries;
mod flows;
mod frontends;
mod ledger;
mod links;
mod replacement;
mod retired;
mod rules;
mod servers;
mod sysctls;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::Subject;
use kernlink_engine::table::Difference;
use kernlink_ipset::Entry;
use kernlink_ipvs::VirtualServerKey;
use kernlink_services::Family;

use self::rules::plan_rules;
use super::key::Key;
use super::sets::SetId;
use super::state::{DesiredServer, ObservedServer, State};

type Need = kernlink_engine::plan::Need<Key>;
type EntryKey = (Family, SetId, Entry);

/// Adds the steps for all dirty objects.
pub(super) fn plan(state: &mut State, builder: &mut BuilderOf<'_, State>) {
    if state.retired.is_some() {
        return retired::plan(state, builder);
    }
    state.find_stale_flows();
    state.find_usable_sets();
    let rules = plan_rules(state);
    // The rules of a family that is not planned are not in place.
    for chains in state
        .chains
        .iter_mut()
        .filter(|chains| chains.is_dirty && !chains.is_unread)
    {
        chains.pending = None;
    }
    for (family, operations, interim) in &rules {
        let chains = &mut state.chains[family.index()];
        chains.pending = operations.as_ref().map(Vec::len);
        chains.interim.clone_from(interim);
    }
    let mut planner = Planner {
        state,
        builder,
        servers: decided_servers(state),
        necessary: [Vec::new(), Vec::new()],
        ledgers: BTreeMap::new(),
        late: HashMap::new(),
        after_servers: Vec::new(),
        rules: BTreeMap::new(),
        added: HashMap::new(),
        deleted_real: HashMap::new(),
        kept_deadlines: HashSet::new(),
        bound: Vec::new(),
    };
    planner.sysctls();
    planner.links();
    planner.sets();
    planner.destroy_temporary_sets();
    planner.replace_small_sets();
    planner.write_ledgers();
    planner.unbind_addresses();
    planner.find_late_entries();
    planner.add_entries();
    planner.rules(rules);
    planner.virtual_servers();
    planner.add_frontends();
    planner.remove_local_entries();
    planner.real_servers();
    planner.bind_addresses();
    planner.remove_real_servers();
    planner.add_late_entries();
    planner.remove_frontends();
    planner.remove_virtual_servers();
    planner.remove_deadlines();
    planner.remove_entries();
    planner.delete_flows();
    planner.remove_ledger_entries();
    planner.remove_rules();
    planner.remove_links();
}

/// The dirty virtual servers of the families whose objects may be changed.
fn decided_servers(state: &State) -> Vec<ServerDifference<'_>> {
    let mut servers = state.servers.differences();
    servers.retain(|difference| state.is_server_decided(difference.key));
    servers
}

type ServerDifference<'a> = Difference<'a, VirtualServerKey, DesiredServer, ObservedServer>;

struct Planner<'a, 'b, 'c> {
    state: &'a State,
    builder: &'b mut BuilderOf<'c, State>,
    servers: Vec<ServerDifference<'a>>,
    /// By family: the sysctls without which new frontends would not work, and that do not have their values.
    necessary: [Vec<Need>; 2],
    /// The ledgers that are written in one step, each with its entries.
    ledgers: BTreeMap<Family, (Need, Vec<Entry>)>,
    /// Local-policy entries that are added after removals of real servers, with the steps of these removals.
    late: HashMap<EntryKey, Vec<Need>>,
    /// The entries that are added after their virtual servers.
    after_servers: Vec<(Family, SetId, Entry, Subject)>,
    rules: BTreeMap<Family, Vec<Need>>,
    /// The additions of real servers, and the updates of those that had weight 0, by virtual server.
    added: HashMap<VirtualServerKey, Vec<Need>>,
    /// The deletions of real servers, by virtual server and address.
    deleted_real: HashMap<(VirtualServerKey, IpAddr), Vec<Need>>,
    /// The addresses of virtual servers with real servers that drain with a limit after the plan.
    kept_deadlines: HashSet<(VirtualServerKey, IpAddr)>,
    bound: Vec<Need>,
}

impl Planner<'_, '_, '_> {
    /// The families whose objects may be changed.
    fn families(&self) -> Vec<Family> {
        let managed = self.state.managed.iter().copied();
        managed
            .filter(|family| self.state.is_ownership_known(*family))
            .collect()
    }
}
