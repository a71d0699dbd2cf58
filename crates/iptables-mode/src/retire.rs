//! iptables mode on a node that it does not serve any more.
//!
//! Its rules translate new connections before any other mode sees them. A frontend that the serving mode does not serve yet keeps its rules in
//! `KUBE-SERVICES` or `KUBE-NODEPORTS`, and as long as there is one, its family keeps the chains of all Services. Established connections
//! continue without rules: connection tracking translates their packets.
//!
//! If the serving mode has a chain with this name too, it writes the rules that stay on top of it ([`Retire::interim`]).

mod plan;

use std::fmt;
use std::time::{Duration, Instant};

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Interim, Kept, Name, Retire, Retired, RetiredOutcome, Round};
use kernlink_iptables_restore::{Error, Iptables, Operation, Rule, Ruleset, Save, Table};
use kernlink_netfilter::{interim, read_tables_of, retired_step, unreadable_table};
use kernlink_services::Family;

use self::plan::{Remaining, is_left, is_services_kept, retain_unserved, rules_of_services};
use super::chains::FixedChain;
use super::cleanup::remaining;
use super::names::ChainKind;
use super::observe::has_service_chains;

/// For how long the serving mode waits for the rules of a family that cannot be read. Then none are known: otherwise it would wait for ever where the
/// tool always fails.
const UNREAD_LIMIT: Duration = Duration::from_secs(120);

/// Finds and removes what iptables mode left: its chains, and the jumps to them.
pub struct Retiring {
    rules: Box<dyn Iptables>,
    /// By family.
    found: [Found; 2],
}

/// What was found of a family.
#[derive(Default)]
struct Found {
    /// Whether anything was left when the tables were read last.
    is_left: bool,
    /// The rules of `KUBE-SERVICES` that lead to chains that only iptables mode has, if the serving mode writes this chain. `None`: they could not
    /// be read yet.
    interim: Option<Vec<Rule>>,
    /// When they could not be read for the first time.
    unread_since: Option<Instant>,
}

impl Retiring {
    /// Through these tables.
    #[must_use]
    pub fn new(rules: Box<dyn Iptables>) -> Self {
        Self {
            rules,
            found: Default::default(),
        }
    }

    /// Reads the tables of both families.
    fn tables(&mut self) -> Vec<(Family, Result<Ruleset, Error>)> {
        let read = read_tables_of(&mut *self.rules, &Family::ALL).into_iter();
        read.map(|(family, read)| (family, known(read))).collect()
    }

    /// Records what the tables of a family have. The tool will not print a table later that it cannot print now.
    fn set_read(&mut self, family: Family, tables: &Ruleset, kept: Kept<'_>) {
        let found = &mut self.found[family.index()];
        found.is_left = is_left(tables, family, kept);
        if tables.is_unreadable(Table::Nat) {
            found.interim.get_or_insert_default();
        } else if is_services_kept(family, kept) {
            found.interim = Some(rules_of_services(tables, family, kept));
        } else {
            found.interim = Some(Vec::new());
        }
    }

    /// Records that the tables of a family cannot be read. What was read before stays.
    fn set_unread(&mut self, family: Family, now: Instant, kept: Kept<'_>) {
        let found = &mut self.found[family.index()];
        if found.interim.is_some() {
            return;
        }
        let since = *found.unread_since.get_or_insert(now);
        // One chain may be readable where a table is not, such as a large one.
        let alone = is_services_kept(family, kept).then(|| self.services_alone(family, kept));
        let found = &mut self.found[family.index()];
        match alone {
            Some(Ok(rules)) => {
                found.is_left = !rules.is_empty();
                found.interim = Some(rules);
            }
            Some(Err(_)) if now.saturating_duration_since(since) < UNREAD_LIMIT => {}
            _ => found.interim = Some(Vec::new()),
        }
    }

    /// The rules that are needed, from the chain of Services alone.
    fn services_alone(&mut self, family: Family, kept: Kept<'_>) -> Result<Vec<Rule>, Error> {
        let services = FixedChain::NatServices;
        let name = services.name();
        let mut tables = Ruleset::new();
        if let Some(chain) = self.rules.list_chain(family, services.table(), &name)? {
            tables.table_mut(services.table()).insert(name, chain);
        }
        Ok(rules_of_services(&tables, family, kept))
    }

    fn has_any(&self) -> bool {
        self.found.iter().any(|found| found.is_left)
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
        if let Some(error) = unprintable(&tables) {
            add_problem(retired, &error);
        }
        retired.held.extend(&remaining.held);
        let found = &mut self.found[family.index()];
        found.is_left = !remaining.restore.is_empty() || !remaining.held.is_empty();
        let mut is_done = true;
        if !remaining.restore.is_empty() {
            let step = retired_step(&mut *self.rules, round, &Operation::Restore(remaining.restore));
            is_done = step.outcome == RetiredOutcome::Done;
            retired.steps.push(step);
        }
        if !is_done || !round.executes {
            return;
        }
        match remaining.interim {
            Some(interim) => found.interim = Some(interim),
            None => found.release(family, round),
        }
    }
}

impl Found {
    /// What is known without the tables: the rules of unserved frontends stay on top of the chain of the serving mode.
    fn release(&mut self, family: Family, round: &Round<'_>) {
        if let Some(rules) = self.interim.as_mut().filter(|_| round.executes) {
            retain_unserved(rules, family, round.unserved);
        }
    }
}

impl fmt::Debug for Retiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retiring").finish_non_exhaustive()
    }
}

/// Tables that could be read, except those that the tool cannot print. A host without the tables of a family has no rules of it.
fn known(read: Result<Ruleset, Error>) -> Result<Ruleset, Error> {
    match read {
        Err(error) if error.is_unsupported() => Ok(Ruleset::new()),
        read => read,
    }
}

/// The error about the first table that the tool cannot print. What is in the others is known.
fn unprintable(tables: &Ruleset) -> Option<Error> {
    let mut unreadable = Table::ALL.iter().filter(|table| tables.is_unreadable(**table));
    unreadable.next().map(|table| unreadable_table(tables, *table))
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

    fn read(&mut self, now: Instant, kept: Kept<'_>) -> Result<bool, String> {
        let mut problem = None;
        for (family, read) in self.tables() {
            let error = match read {
                Ok(tables) => {
                    self.set_read(family, &tables, kept);
                    unprintable(&tables)
                }
                Err(error) => {
                    self.set_unread(family, now, kept);
                    Some(error)
                }
            };
            problem = problem.or(error);
        }
        match problem {
            Some(error) => Err(ErrorChain(&error).to_string()),
            None => Ok(self.has_any()),
        }
    }

    fn has_found(&self) -> bool {
        self.has_any()
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        has_service_chains(&mut *self.rules).map_err(|error| ErrorChain(&error).to_string())
    }

    fn interim(&self) -> Vec<Interim> {
        let services = FixedChain::NatServices;
        let of_family = |family: Family| match &self.found[family.index()].interim {
            Some(rules) if rules.is_empty() => None,
            Some(rules) => Some(interim(family, services.table(), services.text(), rules)),
            None => Some(Interim {
                family,
                table: services.table().as_str(),
                chain: services.text(),
                rules: None,
            }),
        };
        Family::ALL.into_iter().filter_map(of_family).collect()
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
                Err(error) => {
                    self.set_unread(family, round.now, round.kept);
                    self.found[family.index()].release(family, round);
                    add_problem(&mut retired, &error);
                }
            }
        }
        retired.is_gone = retired.steps.is_empty() && !self.has_any();
        retired
    }
}
