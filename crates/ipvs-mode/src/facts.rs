//! What the observed sets and addresses show about ownership.

use std::collections::HashSet;
use std::net::IpAddr;

use kernlink_dummylink::AddressKey;
use kernlink_ipset::{Element, Entry};
use kernlink_services::Family;

use super::ownership::{self, KernelFacts};
use super::sets::SetId;
use super::state::State;

/// What the observed sets and addresses show about ownership.
pub(super) struct Facts<'a> {
    state: &'a State,
    /// The addresses in entries of frontend sets.
    frontend_addresses: HashSet<IpAddr>,
    node_addresses: HashSet<IpAddr>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(state: &'a State) -> Self {
        let mut frontend_addresses = HashSet::new();
        for family in Family::ALL
            .into_iter()
            .filter(|family| !has_ledger(state, *family))
        {
            for set in ownership::FRONTEND_SETS {
                let entries = state.entries[family.index()][set.index()].iter_observed();
                frontend_addresses.extend(entries.filter_map(|(entry, ())| match entry.element() {
                    Element::IpPort { ip, .. } => Some(*ip),
                    _ => None,
                }));
            }
        }
        let interfaces = state.interfaces.iter();
        Self {
            state,
            frontend_addresses,
            node_addresses: interfaces.map(|interface| interface.address).collect(),
        }
    }
}

/// Whether the ledger of a family exists and has an entry.
pub(super) fn has_ledger(state: &State, family: Family) -> bool {
    state.entries[family.index()][SetId::Ledger.index()]
        .iter_observed()
        .len()
        > 0
}

impl KernelFacts for Facts<'_> {
    fn has_ledger(&self, family: Family) -> bool {
        has_ledger(self.state, family)
    }

    fn has_entry(&self, family: Family, set: SetId, entry: &Entry) -> bool {
        self.state.entries[family.index()][set.index()].is_observed(entry)
    }

    fn is_bound(&self, address: IpAddr) -> bool {
        AddressKey::host(address).is_ok_and(|key| self.state.addresses.is_observed(&key))
    }

    fn is_frontend_address(&self, address: IpAddr) -> bool {
        self.frontend_addresses.contains(&address)
    }

    fn is_node_address(&self, address: IpAddr) -> bool {
        self.node_addresses.contains(&address)
    }
}
