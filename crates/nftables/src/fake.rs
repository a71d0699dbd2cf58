//! An implementation in memory.

mod changes;
mod content;
mod packet;
mod rules;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kernlink_netlink::{Errno, Refusal};

use self::changes::Changes;
use self::content::{FakeTable, StoredElements};
pub use self::packet::{Packet, PacketFate, PacketOutcome};
use crate::chain::Chain;
use crate::client::{ElementIter, Nftables};
use crate::element::{Element, Elements};
use crate::error::Error;
use crate::flowtable::Flowtable;
use crate::notation::Brief;
use crate::object::Object;
use crate::operation::Operation;
use crate::reason::Reason;
use crate::rule::Rule;
use crate::set::{Set, SetKey};
use crate::table::{Table, TableFlags, TableKey};
use crate::table_family::TableFamily;

/// A ruleset in memory, for tests without root privileges (feature `fake`).
///
/// It refuses what the kernel refuses: missing names, objects in use, sets that are full, keys and data of another length, registers that no
/// expression wrote, jumps in a loop or deeper than 16 chains, changes of a table that [another client](Fake::set_client) owns.
/// [`evaluate`](Fake::evaluate) evaluates packets. It has no network devices or events.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    /// Without the elements of sets, so that a copy is cheap.
    tables: BTreeMap<TableKey, Arc<FakeTable>>,
    elements: BTreeMap<SetKey, StoredElements>,
    generation: u32,
    /// Time since the fake was made.
    now: Duration,
    /// State of random numbers.
    random: u64,
    /// What every random number is, instead of a random one.
    fixed_random: Option<u32>,
    /// The next number of `numgen inc`.
    sequence: u64,
    /// How many operations were executed, for tests of cost.
    executed: u64,
    /// The number of the socket that operations come from.
    client: u32,
    /// The handle of the last table.
    last_table: u64,
}

impl Fake {
    /// An empty ruleset.
    #[must_use]
    pub fn new() -> Self {
        Fake {
            generation: 1,
            client: 1,
            last_table: 0,
            random: 0x9e37_79b9_7f4a_7c15,
            ..Fake::default()
        }
    }

    /// Lets time pass: elements expire.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        for elements in self.elements.values_mut() {
            elements.expire(now);
        }
    }

    /// Later operations come from the socket with this number, which owns the tables that it makes with the flag
    /// [`OWNER`](crate::TableFlags::OWNER). The first one is 1.
    pub fn set_client(&mut self, client: u32) {
        self.client = client;
    }

    /// Closes a socket, as the end of a process does: the tables that it owns are deleted. Those with the flag
    /// [`PERSIST`](crate::TableFlags::PERSIST) remain, and the next client may take them over.
    pub fn close_client(&mut self, client: u32) {
        let owned = self
            .tables
            .values()
            .filter(|content| content.table.owner == Some(client));
        let keys: Vec<TableKey> = owned.map(|content| content.table.key.clone()).collect();
        for key in &keys {
            let persists = self
                .content(key)
                .is_some_and(|content| content.table.flags.contains(TableFlags::PERSIST));
            if persists && let Some(content) = self.tables.get_mut(key) {
                let table = &mut Arc::make_mut(content).table;
                table.flags.remove(TableFlags::OWNER);
                table.owner = None;
            } else {
                self.tables.remove(key);
                self.elements.retain(|set, _| set.table != *key);
            }
        }
        if !keys.is_empty() {
            self.change_generation();
        }
    }

    /// The number of operations that were executed.
    #[must_use]
    pub fn executed_operations(&self) -> u64 {
        self.executed
    }

    /// Sets what every number of `numgen random` is, before the remainder by its modulus; `None`: a random one. So a test can find everything
    /// that a rule may choose.
    pub fn set_random(&mut self, number: Option<u32>) {
        self.fixed_random = number;
    }

    /// Adds 1 to the generation, as another program that changes another table does.
    pub fn change_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1).max(1);
    }

    fn content(&self, table: &TableKey) -> Option<&FakeTable> {
        self.tables.get(table).map(|table| &**table)
    }
}

impl Nftables for Fake {
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        for (refused, operation) in transaction.iter().enumerate() {
            if let Err(problem) = operation.check() {
                let mut outcomes = vec![Err(Error::NotExecuted { refused }); transaction.len()];
                if let Some(outcome) = outcomes.get_mut(refused) {
                    let operation = Brief(operation).to_string().into();
                    *outcome = Err(Error::Invalid { operation, problem });
                }
                return outcomes;
            }
        }
        if let Some(required) = generation.filter(|generation| ![0, self.generation].contains(generation)) {
            return vec![Err(Error::GenerationChanged { required }); transaction.len()];
        }
        let mut changes = Changes::new(self, transaction);
        let mut refusals: Vec<(usize, Option<usize>, Errno)> = Vec::new();
        for (index, operation) in transaction.iter().enumerate() {
            if let Err(refused) = changes.execute(operation) {
                refusals.push((index, refused.element, refused.errno));
            }
        }
        if refusals.is_empty()
            && let Err((index, errno)) = changes.validate()
        {
            refusals.push((index, None, errno));
        }
        let is_changed = changes.is_changed();
        let Some((first, ..)) = refusals.first().copied() else {
            changes.commit();
            if is_changed {
                self.change_generation();
            }
            self.executed += transaction.len() as u64;
            return vec![Ok(()); transaction.len()];
        };
        changes.roll_back();
        let mut outcomes = vec![Err(Error::NotExecuted { refused: first }); transaction.len()];
        for (index, element, errno) in refusals {
            let (Some(outcome), Some(operation)) = (outcomes.get_mut(index), transaction.get(index)) else {
                continue;
            };
            *outcome = Err(Error::refused(
                operation,
                element,
                Reason::new(Refusal::new(errno)),
            ));
        }
        outcomes
    }

    fn generation(&mut self) -> Result<u32, Error> {
        Ok(self.generation)
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        let tables = self.tables.values().map(|content| content.table.clone());
        Ok(tables
            .filter(|table| family.is_none_or(|family| table.key.family == family))
            .collect())
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
        let chains = self
            .content(table)
            .into_iter()
            .flat_map(|table| table.chains.values());
        Ok(chains.map(|content| content.chain.clone()).collect())
    }

    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        let chains = self
            .content(table)
            .into_iter()
            .flat_map(|table| table.chains.values());
        Ok(chains
            .filter(|content| chain.is_none_or(|chain| *content.chain.key.name == *chain))
            .flat_map(|content| content.rules.iter().cloned())
            .collect())
    }

    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
        let sets = self
            .content(table)
            .into_iter()
            .flat_map(|table| table.sets.values());
        Ok(sets.cloned().collect())
    }

    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
        let now = self.now;
        match self.elements.get(set) {
            Some(elements) => Ok(Box::new(elements.iter(now).map(Ok))),
            None => {
                let error = missing(format!("list elements of set {set}"));
                Ok(Box::new(std::iter::once(Err(error))))
            }
        }
    }

    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
        let set = self
            .content(&elements.set.table)
            .and_then(|table| table.sets.get(&elements.set.name));
        let (Some(set), Some(stored)) = (set, self.elements.get(&elements.set)) else {
            return Err(missing(format!("look up elements of set {}", elements.set)));
        };
        let found = elements
            .elements
            .iter()
            .map(|element| stored.find(set, &element.key, self.now));
        Ok(found.collect())
    }

    fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
        let objects = self
            .content(table)
            .into_iter()
            .flat_map(|table| table.objects.values());
        Ok(objects.cloned().collect())
    }

    fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error> {
        let flowtables = self
            .content(table)
            .into_iter()
            .flat_map(|table| table.flowtables.values());
        Ok(flowtables.cloned().collect())
    }
}

fn missing(attempt: String) -> Error {
    Error::Request {
        attempt: attempt.into(),
        source: kernlink_netlink::Error::Refused(Refusal::new(Errno::ENOENT)),
    }
}
