//! Removing what IPVS mode wrote, and handing the node back to kube-proxy.
//!
//! Both begin with what the kernel holds, so a process that has just started can do them, without sources.

use std::fmt;
use std::time::Instant;

use kernlink_engine::error::InvalidConfig;
use kernlink_ipset::{Operation as SetOperation, SetHeader, SetName};
use kernlink_iptables_restore::{ChainName, Operation as RulesOperation, Table};
use kernlink_netfilter::{Owned, plan_removal, write_removal};
use kernlink_services::{Change, Family, Kind, SourceId};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::operation::Operation;
use super::replacement::{Replacement, of_temporary};
use super::rules;
use super::sets::SetId;
use super::{Plan, Proxier, SyncError, Synced, drain};

/// Operations on the objects that a sync never removes, and what prevents others.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Removal {
    /// The operations, in order.
    pub operations: Vec<Operation>,
    /// What could not be read; its objects stay.
    pub errors: Vec<Error>,
    /// Owned chains that stay because a foreign rule jumps to them, or because such a chain does.
    pub kept_chains: Vec<(Family, Table, ChainName)>,
    /// Sets whose entries do not fit in kube-proxy's parameters; they keep their own. kube-proxy fails to add further entries to them
    /// only when they are full.
    pub too_large: Vec<SetName>,
}

impl Removal {
    /// Executes the operations. Returns one outcome for each, in order; one that fails does not stop those after it.
    pub fn execute(&self, kernel: &mut Kernel) -> Vec<Result<(), Error>> {
        let operations: Vec<&Operation> = self.operations.iter().collect();
        kernel.execute_all(&operations)
    }
}

impl fmt::Display for Removal {
    /// The commands, and a line for everything that stays.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_removal(f, &self.operations, &self.errors, &self.kept_chains)?;
        for set in &self.too_large {
            writeln!(
                f,
                "# set {set} keeps its size: its entries do not fit in that of kube-proxy"
            )?;
        }
        Ok(())
    }
}

/// The source of the empty lists.
const NO_OBJECTS: SourceId = SourceId(0);

/// A proxier of a node without Services, of both families: its sync removes all owned virtual servers, addresses and set entries. What
/// remains is removed by [`remaining`].
///
/// # Errors
/// Everything that is invalid in the configuration.
pub fn without_services(mut config: Config, kernel: Kernel) -> Result<Proxier, InvalidConfig> {
    config.services.families = Family::ALL.into();
    let mut proxier = Proxier::new(&config, kernel)?;
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(NO_OBJECTS, Change::synced(kind));
    }
    Ok(proxier)
}

/// The plan of [`cleanup`]: the removal of what Services needed, and of the rest. The proxier must be one [`without_services`]. The first
/// part is `None` if IPVS mode is not in use here, the second is that of the kernel as it is now.
///
/// # Errors
/// As [`Proxier::plan`](kernlink_engine::Proxier::plan).
pub fn plan_cleanup(proxier: &mut Proxier, now: Instant) -> Result<(Option<Plan>, Removal), SyncError> {
    let config = proxier.state().config().clone();
    let plan = if is_in_use(proxier.kernel_mut(), &config) {
        Some(proxier.plan(now)?)
    } else {
        None
    };
    Ok((plan, remaining(proxier.kernel_mut(), &config)))
}

/// Removes everything that is owned: virtual servers, addresses, set entries, then jumps, chains, sets and the dummy link. Foreign objects
/// stay, and sysctls keep their values. The proxier must be one [`without_services`]. Returns the report of the first part, which is `None`
/// if IPVS mode is not in use here, the operations of the second, and their outcomes.
///
/// # Errors
/// As [`Proxier::sync`](kernlink_engine::Proxier::sync).
#[expect(clippy::type_complexity, reason = "the outcomes of the operations")]
pub fn cleanup(
    proxier: &mut Proxier,
    now: Instant,
) -> Result<(Option<Synced>, Removal, Vec<Result<(), Error>>), SyncError> {
    let config = proxier.state().config().clone();
    let synced = if is_in_use(proxier.kernel_mut(), &config) {
        Some(proxier.sync(now)?)
    } else {
        None
    };
    let removal = remaining(proxier.kernel_mut(), &config);
    let outcomes = removal.execute(proxier.kernel_mut());
    // What was recorded as desired is gone.
    proxier.resync();
    Ok((synced, removal, outcomes))
}

/// Whether there can be virtual servers, addresses or entries that are owned: they are by sets and by the dummy link. True if these cannot be
/// read.
fn is_in_use(kernel: &mut Kernel, config: &Config) -> bool {
    let has_link = |kernel: &mut Kernel| match config.link() {
        Some(link) => kernel.links.exists(&link).unwrap_or(true),
        None => false,
    };
    let has_set = |kernel: &mut Kernel| match kernel.sets.headers() {
        Ok(headers) => headers.iter().any(|header| is_owned(&header.set.name)),
        Err(_) => true,
    };
    has_link(kernel) || has_set(kernel)
}

/// What remains after all Services are removed: jumps, chains, sets, and the dummy link.
#[must_use]
pub fn remaining(kernel: &mut Kernel, config: &Config) -> Removal {
    let mut removal = Removal::default();
    for family in Family::ALL {
        removal.chains(kernel, family);
    }
    match kernel.sets.headers() {
        Ok(headers) => removal.sets(&headers, is_owned),
        Err(error) => removal.errors.push(error.into()),
    }
    if let Some(link) = config.link() {
        match kernel.links.exists(&link) {
            Ok(true) => removal
                .operations
                .push(kernlink_dummylink::Operation::DeleteLink(link).into()),
            Ok(false) => {}
            Err(error) => removal.errors.push(error.into()),
        }
    }
    removal
}

/// What hands the node back to kube-proxy while traffic flows: the sets that only kernlink uses are destroyed, and sets that it enlarged get
/// kube-proxy's parameters. Virtual servers, addresses, entries and rules are those of kube-proxy and stay.
#[must_use]
pub fn hand_back(kernel: &mut Kernel) -> Removal {
    let mut removal = Removal::default();
    let headers = match kernel.sets.headers() {
        Ok(headers) => headers,
        Err(error) => {
            removal.errors.push(error.into());
            return removal;
        }
    };
    for header in &headers {
        let Some((family, id)) = SetId::of_name(&header.set.name).filter(|(_, id)| *id != SetId::Ledger)
        else {
            continue;
        };
        let definition = id.definition(family);
        let (Some(maxelem), Some(actual)) = (definition.options.maxelem, header.set.options.maxelem) else {
            continue;
        };
        if maxelem == actual {
            continue;
        }
        match kernel.sets.list_set(&header.set.name) {
            Ok(contents) if contents.entries.len() > maxelem as usize => {
                removal.too_large.push(header.set.name);
            }
            Ok(contents) => removal
                .operations
                .push(Operation::ReplaceSet(Box::new(Replacement {
                    set: definition,
                    entries: contents.entries,
                }))),
            Err(error) => removal.errors.push(error.into()),
        }
    }
    // Last: until then another process recognises the virtual servers by the ledger.
    removal.sets(&headers, is_only_of_kernlink);
    removal
}

/// Whether a set is one of the ledger, of deadlines, or of a replacement that did not end.
fn is_only_of_kernlink(name: &SetName) -> bool {
    let is_ledger = SetId::of_name(name).is_some_and(|(_, id)| id == SetId::Ledger);
    is_ledger || drain::family_of_set(name).is_some() || of_temporary(name).is_some()
}

fn is_owned(name: &SetName) -> bool {
    SetId::of_name(name).is_some() || is_only_of_kernlink(name)
}

impl Removal {
    fn sets(&mut self, headers: &[SetHeader], is_removed: impl Fn(&SetName) -> bool) {
        let names = headers.iter().map(|header| header.set.name);
        let removed = names.filter(is_removed);
        self.operations
            .extend(removed.map(|name| Operation::from(SetOperation::destroy(name))));
    }

    fn chains(&mut self, kernel: &mut Kernel, family: Family) {
        let jumps = rules::jumps();
        for (table, names) in rules::CHAINS {
            let owned = Owned {
                is_owned: &|name: &ChainName| names.contains(&name.as_str()),
                jumps: &jumps,
                rewritten: &[],
            };
            match plan_removal(&mut *kernel.rules, family, table, &owned) {
                Ok(removal) => {
                    let kept = removal.kept.iter();
                    self.kept_chains.extend(kept.map(|chain| (family, table, *chain)));
                    let restore = removal.restore(family, table);
                    self.operations
                        .extend(restore.map(|restore| Operation::from(RulesOperation::Restore(restore))));
                }
                Err(error) => self.errors.push(error.into()),
            }
        }
    }
}
