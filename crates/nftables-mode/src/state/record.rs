//! What the state records of operations: those that were done, and those that failed.

use std::net::SocketAddr;

use kernlink_nftables::TableFamily;
use kernlink_services::{ObjectName, Protocol};

use super::State;
use super::family::{CurrentTable, FamilyState};
use crate::error::Error;
use crate::operation::Operation;

impl State {
    /// Records an operation that was done.
    pub(crate) fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Sysctl(sysctl) => {
                self.sysctls
                    .observe(sysctl.name.clone(), Some(sysctl.value.clone()));
            }
            Operation::Create(create) => {
                let family = self.family_mut(create.parameters.family);
                let table = create.slot.table(family.family);
                family.old.retain(|old| old.key != table);
                family.table = Some(CurrentTable {
                    slot: create.slot,
                    parameters: create.parameters.clone(),
                    is_hooked: create.has_base_chains,
                    is_own: true,
                    // The next listing finds out whether the kernel has owners.
                    is_owned: true,
                    is_ownerless: false,
                });
                // They were abandoned when the former table was.
                _ = family.forget();
            }
            Operation::Own(family, _) => {
                let family = self.family_mut(*family);
                if let Some(table) = &mut family.table {
                    table.is_ownerless = false;
                    // Another program may have changed it between the reading and this: it is read once more, now.
                    table.is_own = true;
                    family.needs_listing = true;
                }
            }
            Operation::Write(write) => self.family_mut(write.family).record(write),
            Operation::Switch(switch) => {
                let family = self.family_mut(switch.parameters.family);
                family.old.retain(|old| !switch.deleted.contains(&old.key));
                family.held_since = None;
                if let Some(table) = &mut family.table {
                    table.is_hooked = true;
                }
            }
            Operation::DeleteTable(table) => {
                for family in &mut self.families {
                    family.old.retain(|old| old.key != *table);
                }
            }
            Operation::Flows(pass) => {
                let family = &self.families[pass.family.index()];
                let is_written = |name: &ObjectName| family.is_written(name, &self.ports);
                self.flows.record(pass, is_written);
            }
        }
    }

    /// Records an operation that failed.
    pub(crate) fn record_failure(&mut self, operation: &Operation, error: &Error) {
        match operation {
            Operation::Write(write) => {
                if error.is_outcome_unknown() {
                    // If it was executed, no write follows after which stale flows are deleted.
                    for change in &write.frontends {
                        if change.key.protocol == Protocol::Udp {
                            let address = SocketAddr::new(change.key.address, change.key.port);
                            self.flows.tracked.add_stale(address);
                        }
                    }
                }
                let now = self.now;
                let family = self.family_mut(write.family);
                family.totals.failures += 1;
                family.record_failure(write, now);
            }
            Operation::Flows(pass) => self.flows.tracked.record_failure(pass),
            Operation::Create(create) => self.family_mut(create.parameters.family).totals.failures += 1,
            Operation::Switch(switch) => {
                let family = switch.parameters.family;
                if error.is_outcome_unknown() {
                    self.flows.outcome_unknown(family);
                }
                self.family_mut(family).totals.failures += 1;
            }
            Operation::DeleteTable(table) => {
                let is_family = |family: &&mut FamilyState| TableFamily::from(family.family) == table.family;
                if let Some(family) = self.families.iter_mut().find(is_family) {
                    family.totals.cleanup_failures += 1;
                }
            }
            Operation::Sysctl(_) | Operation::Own(..) => {}
        }
    }
}
