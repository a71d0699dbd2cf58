//! Changes of sets and their entries.

use std::fmt;

use crate::entry::Entry;
use crate::entry_range::EntryRange;
use crate::name::SetName;
use crate::set::Set;

/// One change of a set or of its entries. Printed as a line of `ipset restore`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Creates a set.
    Create {
        /// The set.
        set: Box<Set>,
        /// What to do if a set with this name exists. [`IfExists::Succeed`] still requires that type, family, `maxelem`, timeout,
        /// extensions, masks, range and size are equal. `hashsize`, `bucketsize`, `initval` and `forceadd` may differ.
        if_exists: IfExists,
    },
    /// Destroys a set. No rule and no list may use it.
    Destroy {
        /// The set.
        set: SetName,
        /// What to do if the set does not exist.
        if_exists: IfExists,
    },
    /// Removes all entries of a set.
    Flush {
        /// The set.
        set: SetName,
    },
    /// Renames a set. No rule and no list may use it.
    Rename {
        /// The set.
        from: SetName,
        /// Its new name. No set may have it.
        to: SetName,
    },
    /// Exchanges the contents of two sets of the same type and family. A rule that uses one of the names matches the contents of
    /// the other set afterwards.
    Swap {
        /// One set.
        first: SetName,
        /// The other.
        second: SetName,
    },
    /// Adds an entry.
    Add {
        /// The set.
        set: SetName,
        /// The entry.
        entry: Entry,
        /// What to do if the entry exists. [`IfExists::Succeed`] replaces its options; counters stay unless they are given.
        if_exists: IfExists,
    },
    /// Deletes an entry. Its options are not compared.
    Delete {
        /// The set.
        set: SetName,
        /// The entry.
        entry: Entry,
        /// What to do if the entry does not exist.
        if_exists: IfExists,
    },
    /// Adds all entries of a range. If one of them is refused, the entries before it stay in the set.
    AddRange {
        /// The set.
        set: SetName,
        /// The entries.
        range: Box<EntryRange>,
        /// If one of the entries exists.
        if_exists: IfExists,
    },
    /// Deletes all entries of a range. If one of them is refused, the entries before it are deleted.
    DeleteRange {
        /// The set.
        set: SetName,
        /// The entries.
        range: Box<EntryRange>,
        /// If one of the entries does not exist.
        if_exists: IfExists,
    },
}

/// Whether an operation succeeds or fails if it has nothing to do: the set or entry to create exists, or the one to delete does not exist.
#[doc(alias = "exist")]
#[doc(alias = "NLM_F_EXCL")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IfExists {
    /// The operation fails.
    Fail,
    /// The operation succeeds, as with `-exist` of ipset(8).
    Succeed,
}

impl Operation {
    /// Creates a set; fails if it exists.
    #[must_use]
    pub fn create(set: Set) -> Self {
        Operation::Create {
            set: Box::new(set),
            if_exists: IfExists::Fail,
        }
    }

    /// Creates a set, or succeeds if an equal set exists.
    #[must_use]
    pub fn ensure_set(set: Set) -> Self {
        Operation::Create {
            set: Box::new(set),
            if_exists: IfExists::Succeed,
        }
    }

    /// Destroys a set; fails if it does not exist.
    #[must_use]
    pub fn destroy(set: SetName) -> Self {
        Operation::Destroy {
            set,
            if_exists: IfExists::Fail,
        }
    }

    /// Adds an entry; fails if it exists.
    #[must_use]
    pub fn add(set: SetName, entry: Entry) -> Self {
        Operation::Add {
            set,
            entry,
            if_exists: IfExists::Fail,
        }
    }

    /// Adds an entry, or replaces the options of an existing one.
    #[must_use]
    pub fn ensure(set: SetName, entry: Entry) -> Self {
        Operation::Add {
            set,
            entry,
            if_exists: IfExists::Succeed,
        }
    }

    /// Deletes an entry; fails if it does not exist.
    #[must_use]
    pub fn delete(set: SetName, entry: Entry) -> Self {
        Operation::Delete {
            set,
            entry,
            if_exists: IfExists::Fail,
        }
    }

    /// The set that the operation changes; the first of a rename or swap.
    #[must_use]
    pub fn set(&self) -> &SetName {
        match self {
            Operation::Create { set, .. } => &set.name,
            Operation::Destroy { set, .. }
            | Operation::Flush { set }
            | Operation::Rename { from: set, .. }
            | Operation::Swap { first: set, .. }
            | Operation::Add { set, .. }
            | Operation::Delete { set, .. }
            | Operation::AddRange { set, .. }
            | Operation::DeleteRange { set, .. } => set,
        }
    }

    /// Whether the operation succeeds or fails if it has nothing to do; [`IfExists::Fail`] for operations without this field.
    #[must_use]
    pub fn if_exists(&self) -> IfExists {
        match self {
            Operation::Create { if_exists, .. }
            | Operation::Destroy { if_exists, .. }
            | Operation::Add { if_exists, .. }
            | Operation::Delete { if_exists, .. }
            | Operation::AddRange { if_exists, .. }
            | Operation::DeleteRange { if_exists, .. } => *if_exists,
            Operation::Flush { .. } | Operation::Rename { .. } | Operation::Swap { .. } => IfExists::Fail,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Create { set, .. } => write!(f, "create {set}")?,
            Operation::Destroy { set, .. } => write!(f, "destroy {set}")?,
            Operation::Flush { set } => write!(f, "flush {set}")?,
            Operation::Rename { from, to } => write!(f, "rename {from} {to}")?,
            Operation::Swap { first, second } => write!(f, "swap {first} {second}")?,
            Operation::Add { set, entry, .. } => write!(f, "add {set} {entry}")?,
            Operation::Delete { set, entry, .. } => write!(f, "del {set} {entry}")?,
            Operation::AddRange { set, range, .. } => write!(f, "add {set} {range}")?,
            Operation::DeleteRange { set, range, .. } => write!(f, "del {set} {range}")?,
        }
        match self.if_exists() {
            IfExists::Succeed => f.write_str(" -exist"),
            IfExists::Fail => Ok(()),
        }
    }
}

/// Any request to the kernel, as the subject of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Opening the connection.
    Open,
    /// Executing an operation.
    Change(Operation),
    /// Listing all sets.
    ListAll,
    /// Listing one set, or reading its header.
    List(SetName),
    /// Testing whether an entry is in a set.
    Test(SetName, Entry),
    /// Looking up the name of the set with an index.
    NameOf(u16),
    /// Looking up the index of a set.
    IndexOf(SetName),
    /// Looking up the revisions of a set type.
    Revisions(crate::SetType),
    /// Destroying all sets.
    DestroyAll,
    /// Removing all entries of all sets.
    FlushAll,
    /// Replacing the entries of a set.
    Replace(SetName),
    /// Another action of an implementation of [`IpSets`](crate::IpSets), as text after "cannot".
    Other(Box<str>),
}

impl From<Operation> for Action {
    fn from(operation: Operation) -> Self {
        Action::Change(operation)
    }
}

impl From<&str> for Action {
    fn from(text: &str) -> Self {
        Action::Other(text.into())
    }
}

impl From<String> for Action {
    fn from(text: String) -> Self {
        Action::Other(text.into())
    }
}

/// The arguments of ipset(8) if there is a command for the action, otherwise a text that fits after "cannot".
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Open => f.write_str("open a connection to ipset"),
            Action::Change(operation) => operation.fmt(f),
            Action::ListAll => f.write_str("list all sets"),
            Action::List(set) => write!(f, "list {set}"),
            Action::Test(set, entry) => write!(f, "test {set} {entry}"),
            Action::NameOf(index) => write!(f, "look up the set with index {index}"),
            Action::IndexOf(set) => write!(f, "look up the index of {set}"),
            Action::Revisions(set_type) => write!(f, "look up the revisions of {set_type}"),
            Action::DestroyAll => f.write_str("destroy all sets"),
            Action::FlushAll => f.write_str("flush all sets"),
            Action::Replace(set) => write!(f, "replace the entries of {set}"),
            Action::Other(text) => f.write_str(text),
        }
    }
}
