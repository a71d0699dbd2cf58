//! iptables mode on a node that it does not serve any more.
//!
//! Its rules translate new connections before any other mode sees them. A frontend that the serving mode does not serve yet keeps its rules in
//! `KUBE-SERVICES` or `KUBE-NODEPORTS`, and as long as there is one, its family keeps the chains of all Services. Established connections
//! continue without rules: connection tracking translates their packets.
//!
//! If the serving mode has a chain with this name too, it writes the rules that stay on top of it ([`Retire::interim`]).

mod plan;

use std::fmt;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Interim, Kept, Name, Retire, Retired, RetiredOutcome, Round};
use kernlink_iptables_restore::{Error, Iptables, Operation, Rule, Ruleset, Save, Table};
use kernlink_netfilter::{interim, name_of_chain, read_tables_of, retired_step, unreadable_table};
use kernlink_services::Family;

use self::plan::{Remaining, is_left, rules_of_services};
use super::chains::FixedChain;
use super::cleanup::remaining;
use super::names::ChainKind;
use super::observe::has_service_chains;

/// Finds and removes what iptables mode left: its chains, and the jumps to them.
pub struct Retiring {
    rules: Box<dyn Iptables>,
    /// The rules of `KUBE-SERVICES` that lead to chains that only iptables mode has, by family, if the serving mode writes this chain.
    interim: [Vec<Rule>; 2],
}

impl Retiring {
    /// Through these tables.
    #[must_use]
    pub fn new(rules: Box<dyn Iptables>) -> Self {
        Self {
            rules,
            interim: Default::default(),
        }
    }

    /// Reads the tables of both families.
    fn tables(&mut self) -> Vec<(Family, Result<Ruleset, Error>)> {
        let read = read_tables_of(&mut *self.rules, &Family::ALL).into_iter();
        read.map(|(family, read)| (family, known(read))).collect()
    }

    /// Removes from a family what nothing needs, and adds it to `retired`.
    fn retire_family(
        &mut self,
        family: Family,
        mut tables: Ruleset,
        round: &Round<'_>,
        retired: &mut Retired,
    ) {
        let mut remaining = Remaining::of(&tables, family, round);
        if remaining.held.is_empty() {
            // Its chain is removed at the end.
            match known(self.rules.save(&Save::table(family, Table::Mangle).lenient())) {
                Ok(mangle) => {
                    tables.merge(mangle);
                    remaining = Remaining::of(&tables, family, round);
                }
                Err(error) => add_problem(retired, &error),
            }
        }
        retired.held.extend(&remaining.held);
        let mut is_done = true;
        if !remaining.restore.is_empty() {
            let step = retired_step(&mut *self.rules, round, &Operation::Restore(remaining.restore));
            is_done = step.outcome == RetiredOutcome::Done;
            retired.steps.push(step);
        }
        if is_done && round.executes {
            self.interim[family.index()] = remaining.interim;
        }
    }
}

impl fmt::Debug for Retiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retiring").finish_non_exhaustive()
    }
}

/// Tables that could be read. A host without the tables of a family has no rules of it.
fn known(read: Result<Ruleset, Error>) -> Result<Ruleset, Error> {
    match read {
        Err(error) if error.is_unsupported() => Ok(Ruleset::new()),
        Ok(tables) => match Table::ALL
            .iter()
            .copied()
            .find(|table| tables.is_unreadable(*table))
        {
            Some(table) => Err(unreadable_table(&tables, table)),
            None => Ok(tables),
        },
        Err(error) => Err(error),
    }
}

fn add_problem(retired: &mut Retired, error: &Error) {
    retired.problems.push(ErrorChain(error).to_string());
}

/// Whether iptables mode may have a chain with this name.
#[must_use]
pub fn has_chain(name: &Name<'_>) -> bool {
    let is_fixed = |chain: &FixedChain| chain.table().as_str() == name.table && chain.text() == name.name;
    let is_of_port = || {
        ChainKind::ALL
            .iter()
            .any(|kind| name.name.starts_with(kind.prefix()))
    };
    FixedChain::ALL.iter().any(is_fixed) || (name.table == Table::Nat.as_str() && is_of_port())
}

impl Retire for Retiring {
    fn mode(&self) -> &'static str {
        "iptables mode"
    }

    fn has(&self, name: &Name<'_>) -> bool {
        has_chain(name)
    }

    fn read(&mut self, _now: Instant, kept: Kept<'_>) -> Result<bool, String> {
        let mut is_any_left = false;
        let mut problem = None;
        for (family, read) in self.tables() {
            let services = FixedChain::NatServices;
            let is_kept = kept(&name_of_chain(family, services.table(), services.text()));
            match read {
                Ok(tables) => {
                    is_any_left |= is_left(&tables, family, kept);
                    let rules = rules_of_services(&tables, family, kept);
                    self.interim[family.index()] = if is_kept { rules } else { Vec::new() };
                }
                Err(error) => _ = problem.get_or_insert(error),
            }
        }
        match problem {
            Some(error) => Err(ErrorChain(&error).to_string()),
            None => Ok(is_any_left),
        }
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        has_service_chains(&mut *self.rules).map_err(|error| ErrorChain(&error).to_string())
    }

    fn interim(&self) -> Vec<Interim> {
        let services = FixedChain::NatServices;
        let families = Family::ALL.into_iter();
        let with_rules = families.filter(|family| !self.interim[family.index()].is_empty());
        let of_family = |family: Family| {
            let rules = &self.interim[family.index()];
            interim(family, services.table(), services.text(), rules)
        };
        with_rules.map(of_family).collect()
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        if !round.has_serving_mode {
            // Each table by itself.
            return remaining(&mut *self.rules).retire(&mut *self.rules, round);
        }
        let mut retired = Retired::default();
        for (family, read) in self.tables() {
            match read {
                Ok(tables) => self.retire_family(family, tables, round, &mut retired),
                Err(error) => add_problem(&mut retired, &error),
            }
        }
        retired.is_gone = retired.steps.is_empty();
        retired
    }
}
