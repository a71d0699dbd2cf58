//! `Operation`: one change, executed by one of the kernel APIs.

use std::fmt;
use std::sync::Arc;

use kernlink_host::{DeleteFlows, Sysctl};
use kernlink_nftables::{
    Commands, Elements, ItemKey, Operation as TableOperation, SetKey, TableFlags, TableKey,
};
use kernlink_services::{Family, FrontendKey};

use crate::elements::{difference, items};
use crate::item::{Item, Shared};
use crate::key::Key;
use crate::layout::{SetName, Slot};
use crate::networks::Interval;
use crate::port::Written;
use crate::rules::{Parameters, Skeleton, creation};

/// A change of the kernel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Operation {
    /// Writes a sysctl.
    Sysctl(Sysctl),
    /// Makes a table.
    Create(Box<Create>),
    /// Becomes the owner of a table that exists.
    Own(Family, Slot),
    /// Changes elements. Consecutive ones are passed to the kernel in one transaction.
    Write(Arc<Write>),
    /// Adds the base chains of a table, and deletes the tables that it replaces.
    Switch(Box<Switch>),
    /// Deletes a table.
    DeleteTable(TableKey),
    /// Deletes stale UDP flows.
    Flows(DeleteFlows),
}

/// Makes a table with its sets, chains and rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Create {
    pub(crate) slot: Slot,
    pub(crate) parameters: Parameters,
    /// Whether the table exists, and is deleted first.
    pub(crate) replaces: bool,
    /// Whether packets reach it at once.
    pub(crate) has_base_chains: bool,
}

impl Create {
    /// The operations of the transaction.
    pub(crate) fn operations(&self, flags: TableFlags) -> Vec<TableOperation> {
        let table = self.slot.table(self.parameters.family);
        let skeleton = Skeleton::new(&table, &self.parameters);
        let mut operations = Vec::new();
        if self.replaces {
            operations.push(TableOperation::delete(table.clone()));
        }
        operations.extend(creation(&table, &skeleton, self.parameters.family, flags));
        if self.has_base_chains {
            operations.extend(skeleton.base.creation());
        }
        operations
    }
}

/// Adds the base chains of a table in the transaction that deletes others.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    pub(crate) slot: Slot,
    pub(crate) parameters: Parameters,
    pub(crate) deleted: Vec<TableKey>,
}

impl Switch {
    /// The set of clients with session affinity of the table that it replaces. They are copied.
    pub(crate) fn clients(&self) -> Option<SetKey> {
        let family = self.parameters.family;
        let replaced = self.slot.other().table(family);
        self.deleted
            .contains(&replaced)
            .then(|| SetName::AffinityClients.key(&replaced))
    }
}

impl Switch {
    pub(crate) fn operations(&self) -> Vec<TableOperation> {
        let table = self.slot.table(self.parameters.family);
        let skeleton = Skeleton::new(&table, &self.parameters);
        let deleted = self.deleted.iter().cloned().map(TableOperation::delete);
        deleted.chain(skeleton.base.creation()).collect()
    }
}

/// What is in the kernel for a frontend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Observed {
    /// What this process wrote, or what equals it.
    Written(Arc<Written>),
    /// Other elements, as they were read.
    Raw(Arc<[Item]>),
}

impl Observed {
    pub(crate) fn items(&self, key: &FrontendKey) -> Vec<Item> {
        match self {
            Observed::Written(written) => items_of(written, key),
            Observed::Raw(items) => items.to_vec(),
        }
    }
}

/// The elements of a frontend of a service port.
pub(crate) fn items_of(written: &Written, key: &FrontendKey) -> Vec<Item> {
    let frontend = written.spec.frontend(key);
    frontend.map_or_else(Vec::new, |frontend| items(written, key, frontend))
}

/// A change of the elements of a frontend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FrontendChange {
    pub(crate) key: FrontendKey,
    pub(crate) from: Option<Observed>,
    pub(crate) to: Option<Arc<Written>>,
}

impl FrontendChange {
    /// The elements before and after it.
    pub(crate) fn items(&self) -> (Vec<Item>, Vec<Item>) {
        let from = self.from.as_ref().map(|from| from.items(&self.key));
        let to = self.to.as_ref().map(|to| items_of(to, &self.key));
        (from.unwrap_or_default(), to.unwrap_or_default())
    }
}

/// A change of all elements that a Service needs in one family, or of the networks of cluster IPs. It has no elements: they are made when it is
/// executed or printed.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    pub(crate) key: Key,
    pub(crate) family: Family,
    pub(crate) slot: Slot,
    pub(crate) frontends: Vec<FrontendChange>,
    pub(crate) added: Vec<Shared>,
    pub(crate) deleted: Vec<Shared>,
    pub(crate) added_networks: Vec<Interval>,
    pub(crate) deleted_networks: Vec<Interval>,
}

impl Write {
    /// A write that changes nothing yet.
    pub(crate) fn new(key: Key, family: Family, slot: Slot) -> Self {
        Self {
            key,
            family,
            slot,
            frontends: Vec::new(),
            added: Vec::new(),
            deleted: Vec::new(),
            added_networks: Vec::new(),
            deleted_networks: Vec::new(),
        }
    }

    pub(crate) fn table(&self) -> TableKey {
        self.slot.table(self.family)
    }

    /// The elements to delete, and those to add. What changes its value is in both.
    pub(crate) fn changes(&self) -> (Vec<Item>, Vec<Item>) {
        let mut deleted: Vec<Item> = self.deleted.iter().map(|shared| shared.item()).collect();
        let mut added: Vec<Item> = self.added.iter().map(|shared| shared.item()).collect();
        for change in &self.frontends {
            let (from, to) = change.items();
            let (less, more) = difference(from, to);
            deleted.extend(less);
            added.extend(more);
        }
        deleted.extend(self.deleted_networks.iter().flat_map(Interval::items));
        added.extend(self.added_networks.iter().flat_map(Interval::items));
        (deleted, added)
    }

    /// Whether no element changes.
    pub(crate) fn is_empty(&self) -> bool {
        let (deleted, added) = self.changes();
        deleted.is_empty() && added.is_empty()
    }

    /// The operations of a transaction of its own.
    pub(crate) fn operations(&self) -> Vec<TableOperation> {
        let (deleted, added) = self.changes();
        let table = self.table();
        let deleted = grouped(&table, deleted);
        let deleted = deleted.map(|elements| TableOperation::delete(ItemKey::Elements(elements)));
        let added = grouped(&table, added).map(TableOperation::add);
        deleted.chain(added).collect()
    }
}

/// The elements by set.
fn grouped(table: &TableKey, items: Vec<Item>) -> impl Iterator<Item = Elements> {
    let mut sets: std::collections::BTreeMap<SetName, Vec<Item>> = std::collections::BTreeMap::new();
    for item in items {
        sets.entry(item.set).or_default().push(item);
    }
    let table = table.clone();
    sets.into_iter()
        .map(move |(set, items)| Elements::new(set.key(&table), items.into_iter().map(Item::element)))
}

impl From<Sysctl> for Operation {
    fn from(sysctl: Sysctl) -> Self {
        Operation::Sysctl(sysctl)
    }
}

impl From<DeleteFlows> for Operation {
    fn from(flows: DeleteFlows) -> Self {
        Operation::Flows(flows)
    }
}

impl From<Write> for Operation {
    fn from(write: Write) -> Self {
        Operation::Write(Arc::new(write))
    }
}

/// The flags of tables on kernels that have both.
pub(crate) fn owner_flags() -> TableFlags {
    TableFlags::OWNER | TableFlags::PERSIST
}

impl fmt::Display for Operation {
    /// The equivalent commands of `nft`, which are one transaction. They are for display: no version of `nft` up to 1.1.7 has a language for all rules
    /// of a table, and no other program can change a table with an owner.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (family, slot, operations) = match self {
            Operation::Sysctl(sysctl) => return write!(f, "sysctl -w {}={}", sysctl.name, sysctl.value),
            Operation::Flows(flows) => return flows.fmt(f),
            Operation::DeleteTable(table) => return write!(f, "nft delete table {table}"),
            Operation::Own(family, slot) => {
                return write!(
                    f,
                    "nft add table {} {{ flags owner,persist; }}",
                    slot.table(*family)
                );
            }
            Operation::Create(create) => {
                writeln!(
                    f,
                    "# For display: the table is made by netlink, and its language has rules that no version of nft loads."
                )?;
                let operations = create.operations(TableFlags::empty());
                (create.parameters.family, create.slot, operations)
            }
            Operation::Write(write) => (write.family, write.slot, write.operations()),
            Operation::Switch(switch) => {
                if let Some(clients) = switch.clients() {
                    writeln!(
                        f,
                        "# nft: copy the elements of {clients} to table {}",
                        switch.slot.table(switch.parameters.family)
                    )?;
                }
                (switch.parameters.family, switch.slot, switch.operations())
            }
        };
        let table = slot.table(family);
        let sets = SetName::ALL.iter().map(|name| name.set(&table, family));
        let commands = Commands::new(&operations).with_sets(sets).to_string();
        write!(f, "nft -f - <<END\n{commands}END")
    }
}
