//! The kernel APIs that nftables mode programs.

use std::collections::BTreeMap;
use std::fmt;

use kernlink_conntrack::Conntrack;
use kernlink_dummylink::DummyLinks;
use kernlink_host::{KernelConntrack, KernelSysctls, Sysctls};
use kernlink_nftables::{
    Element, Elements, Error as TableError, ItemKey, Nftables, Operation as TableOperation, SetKey, Table,
    TableFlags, TableKey,
};

use crate::error::Error;
use crate::item::Item;
use crate::layout::SetName;
use crate::operation::{Create, Operation, Write, owner_flags};

/// The most elements of a transaction, unless one Service alone needs more. Others wait for a long transaction, and the hash tables of the
/// kernel grow between two.
const MOST_ELEMENTS: usize = 4_000;

/// How often the clients with session affinity of a table that is replaced are read, if they cannot be read.
const COPIES: usize = 3;

/// How often a transaction is repeated without the operations that were refused, before each operation has a transaction of its own.
const MOST_ROUNDS: usize = 4;

/// The kernel APIs of nftables mode. Each can be replaced by the embedder.
pub struct Kernel {
    /// Tables, rules and elements. The socket is the owner of the tables, so it is open as long as the process.
    pub tables: Box<dyn Nftables>,
    /// The addresses of the node; nothing else is read, and nothing is changed.
    pub links: Box<dyn DummyLinks>,
    /// Tracked flows.
    pub conntrack: Box<dyn Conntrack>,
    /// Sysctls.
    pub sysctls: Box<dyn Sysctls>,
    /// Whether tables have an owner, so that no other program can change them while the process runs (Linux 6.9). It is false as soon as the
    /// kernel refused that.
    pub owns_tables: bool,
}

impl Kernel {
    /// The kernel, in the calling thread's network namespace.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            tables: Box::new(kernlink_nftables::Client::open()?),
            links: Box::new(kernlink_dummylink::Client::open()?),
            conntrack: Box::new(KernelConntrack::open()?),
            sysctls: Box::new(KernelSysctls::open()?),
            owns_tables: true,
        })
    }

    /// The in-memory fakes of all kernel APIs, without objects. Their tables have no owners.
    #[cfg(feature = "fake")]
    #[must_use]
    pub fn fake() -> Self {
        Self {
            tables: Box::new(kernlink_nftables::Fake::new()),
            links: Box::new(kernlink_dummylink::Fake::new()),
            conntrack: Box::new(kernlink_conntrack::Fake::new()),
            sysctls: Box::new(kernlink_host::FakeSysctls::default()),
            owns_tables: false,
        }
    }

    /// Executes operations in order and returns one outcome for each, in order. Writes that follow each other are passed to the kernel in
    /// one transaction.
    pub(crate) fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Result<(), Error>> = Vec::with_capacity(operations.len());
        let mut writes: Vec<Prepared> = Vec::new();
        let mut elements = 0;
        for operation in operations {
            if let Operation::Write(write) = operation {
                let prepared = Prepared::new(write);
                let more = prepared.elements();
                if elements + more > MOST_ELEMENTS && !writes.is_empty() {
                    outcomes.extend(self.write(&writes));
                    writes.clear();
                    elements = 0;
                }
                elements += more;
                writes.push(prepared);
                continue;
            }
            outcomes.extend(self.write(&writes));
            writes.clear();
            elements = 0;
            outcomes.push(self.execute_one(operation));
        }
        outcomes.extend(self.write(&writes));
        outcomes
    }

    fn execute_one(&mut self, operation: &Operation) -> Result<(), Error> {
        match operation {
            Operation::Sysctl(sysctl) => {
                let outcome = self.sysctls.execute(std::slice::from_ref(sysctl)).pop();
                outcome.map_or(Err(Error::OutcomeMissing), |done| done.map_err(Into::into))
            }
            Operation::Flows(flows) => flows.execute(&mut *self.conntrack).map_err(Into::into),
            Operation::Create(create) => self.create(create),
            Operation::Own(family, slot) => {
                let table = Table::new(slot.table(*family)).with_flags(owner_flags());
                self.tables
                    .apply(&[TableOperation::add(table)])
                    .map_err(Into::into)
            }
            Operation::Switch(switch) => {
                if let Some(clients) = switch.clients() {
                    self.copy_clients(&clients, &switch.slot.table(switch.parameters.family))?;
                }
                self.replace_tables(switch.operations()).map_err(Into::into)
            }
            Operation::DeleteTable(table) => {
                let deletion = TableOperation::delete(table.clone());
                self.replace_tables(vec![deletion]).map_err(Into::into)
            }
            Operation::Write(_) => Err(Error::OutcomeMissing),
        }
    }

    /// Executes a transaction. If another program deleted a table meanwhile, it is repeated without the deletion of this one.
    fn replace_tables(&mut self, mut transaction: Vec<TableOperation>) -> Result<(), TableError> {
        loop {
            let mut outcomes = self.tables.execute(&transaction).into_iter();
            let before = transaction.len();
            let mut result = Ok(());
            transaction.retain(|operation| {
                let outcome = outcomes.next().unwrap_or(Err(TableError::OutcomeMissing));
                if is_gone(operation, &outcome) {
                    return false;
                }
                // The first reason counts, not what follows from it.
                if result.is_ok() || result.as_ref().is_err_and(TableError::is_not_executed) {
                    result = outcome;
                }
                true
            });
            if transaction.is_empty() || transaction.len() == before {
                return result;
            }
        }
    }

    /// Copies the clients with session affinity to a table that no packet reaches yet.
    fn copy_clients(&mut self, from: &SetKey, to: &TableKey) -> Result<(), Error> {
        let mut attempts = 0;
        let elements = loop {
            attempts += 1;
            match self.tables.list_elements(from) {
                Ok(elements) => break elements,
                // An earlier version of the table may have had other sets, and what others interrupt was listed several times. Clients that are not
                // copied get an endpoint again: without the switch no change of any Service would take effect.
                Err(error)
                    if attempts == COPIES
                        || error.is_not_found()
                        || matches!(error, TableError::Interrupted { .. }) =>
                {
                    return Ok(());
                }
                Err(_) => {}
            }
        };
        let elements = elements
            .into_iter()
            .filter(|element| element.key_end.is_none() && element.data.is_some());
        let elements = Elements::new(SetName::AffinityClients.key(to), elements);
        match self.tables.add_elements(&elements, MOST_ELEMENTS) {
            Err(error) if error.is_outcome_unknown() => Err(error.into()),
            // What the kernel refuses is not of this layout.
            _ => Ok(()),
        }
    }

    /// Makes a table, with an owner if the kernel has that.
    fn create(&mut self, create: &Create) -> Result<(), Error> {
        if self.owns_tables {
            match self.replace_tables(create.operations(owner_flags())) {
                Err(error) if error.is_unsupported() || is_invalid(&error) => self.owns_tables = false,
                outcome => return outcome.map_err(Into::into),
            }
        }
        let operations = create.operations(TableFlags::empty());
        self.replace_tables(operations).map_err(Into::into)
    }

    /// Executes writes in one transaction. What the kernel refuses is left out, and the others are executed without it.
    fn write(&mut self, writes: &[Prepared]) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Option<Result<(), Error>>> = vec![None; writes.len()];
        for _ in 0..MOST_ROUNDS {
            let rest: Vec<usize> = (0..writes.len())
                .filter(|index| outcomes.get(*index) == Some(&None))
                .collect();
            let mut set = |index: usize, outcome: Result<(), Error>| {
                if let Some(known) = outcomes.get_mut(index) {
                    known.get_or_insert(outcome);
                }
            };
            match self.write_at_once(writes, &rest) {
                Attempt::Done => rest.into_iter().for_each(|index| set(index, Ok(()))),
                Attempt::Failed(error) => rest
                    .into_iter()
                    .for_each(|index| set(index, Err(error.clone().into()))),
                Attempt::Refused(refused) => {
                    refused
                        .into_iter()
                        .for_each(|(index, error)| set(index, Err(error.into())));
                    continue;
                }
                Attempt::Unclear => {}
            }
            break;
        }
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            if outcome.is_none() {
                *outcome = Some(match self.write_at_once(writes, &[index]) {
                    Attempt::Done => Ok(()),
                    Attempt::Failed(error) => Err(error.into()),
                    Attempt::Refused(refused) => Err(refused
                        .into_iter()
                        .next()
                        .map_or(Error::OutcomeMissing, |(_, error)| error.into())),
                    Attempt::Unclear => Err(Error::OutcomeMissing),
                });
            }
        }
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or(Err(Error::OutcomeMissing)))
            .collect()
    }

    /// Executes the writes with these indices in one transaction.
    fn write_at_once(&mut self, writes: &[Prepared], indices: &[usize]) -> Attempt {
        let mut deleted = Joined::default();
        let mut added = Joined::default();
        for index in indices {
            if let Some(write) = writes.get(*index) {
                deleted.extend(*index, &write.table, &write.deleted);
                added.extend(*index, &write.table, &write.added);
            }
        }
        let mut origins = Vec::new();
        let mut transaction = Vec::new();
        for ((table, set), joined) in deleted.0 {
            let elements = Elements::new(set.key(&table), joined.elements);
            transaction.push(TableOperation::delete(ItemKey::Elements(elements)));
            origins.push(joined.origins);
        }
        for ((table, set), joined) in added.0 {
            transaction.push(TableOperation::add(Elements::new(
                set.key(&table),
                joined.elements,
            )));
            origins.push(joined.origins);
        }
        if transaction.is_empty() {
            return Attempt::Done;
        }
        let mut refused: Vec<(usize, TableError)> = Vec::new();
        let mut outcomes = self.tables.execute(&transaction).into_iter();
        for of_operation in &origins {
            let Err(error) = outcomes.next().unwrap_or(Err(TableError::OutcomeMissing)) else {
                continue;
            };
            let element = match &error {
                TableError::NotExecuted { .. } => continue,
                TableError::Refused { element, .. } => *element,
                TableError::Invalid { .. } => None,
                _ => return Attempt::Failed(error),
            };
            match (element, &**of_operation) {
                (Some(element), _) if element < of_operation.len() => {
                    refused.extend(of_operation.get(element).map(|origin| (*origin, error)));
                }
                (_, [first, rest @ ..]) if rest.iter().all(|origin| origin == first) => {
                    refused.push((*first, error))
                }
                // It may be about any of them.
                _ => return Attempt::Unclear,
            }
        }
        if refused.is_empty() {
            Attempt::Done
        } else {
            Attempt::Refused(refused)
        }
    }
}

/// The outcome of a transaction with several writes.
enum Attempt {
    /// All were executed.
    Done,
    /// These were refused, and none was executed.
    Refused(Vec<(usize, TableError)>),
    /// All have this error, and may have been executed.
    Failed(TableError),
    /// It is not known which were refused. None was executed.
    Unclear,
}

/// Whether an operation was to delete a table that does not exist any more.
fn is_gone(operation: &TableOperation, outcome: &Result<(), TableError>) -> bool {
    let is_deletion = matches!(operation, TableOperation::Delete(ItemKey::Table(_)));
    is_deletion && outcome.as_ref().is_err_and(TableError::is_not_found)
}

/// Whether the kernel does not know a flag of a table.
fn is_invalid(error: &TableError) -> bool {
    error.errno() == Some(kernlink_netlink::Errno::EINVAL)
}

/// The elements of a write.
struct Prepared {
    table: TableKey,
    deleted: Vec<Item>,
    added: Vec<Item>,
}

impl Prepared {
    fn new(write: &Write) -> Self {
        let (deleted, added) = write.changes();
        Self {
            table: write.table(),
            deleted,
            added,
        }
    }

    fn elements(&self) -> usize {
        self.deleted.len() + self.added.len()
    }
}

/// The elements of several writes by set, with the index of the write of each.
#[derive(Default)]
struct Joined(BTreeMap<(TableKey, SetName), JoinedSet>);

#[derive(Default)]
struct JoinedSet {
    elements: Vec<Element>,
    origins: Vec<usize>,
}

impl Joined {
    fn extend(&mut self, origin: usize, table: &TableKey, items: &[Item]) {
        for item in items {
            let joined = self.0.entry((table.clone(), item.set)).or_default();
            joined.elements.push(item.clone().element());
            joined.origins.push(origin);
        }
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("owns_tables", &self.owns_tables)
            .finish_non_exhaustive()
    }
}
