//! What can be done to sets, as values.

use std::fmt;

use crate::entry::Entry;
use crate::entry_range::EntryRange;
use crate::name::SetName;
use crate::set::Set;

/// One change of a set or of its content. Printed as a line of `ipset restore`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Creates a set.
    Create {
        /// The set.
        set: Box<Set>,
        /// What if there is one of this name. Accepted only where type, `maxelem`, time-out, extensions and the other
        /// options that decide what fits are equal; a different `hashsize` is accepted.
        if_exists: IfExists,
    },
    /// Destroys a set that no rule and no list uses.
    Destroy {
        /// The set.
        set: SetName,
        /// What if there is none.
        if_exists: IfExists,
    },
    /// Removes all entries of a set.
    Flush {
        /// The set.
        set: SetName,
    },
    /// Gives a set that nothing uses another name.
    Rename {
        /// The set.
        from: SetName,
        /// Its new name, which no set has.
        to: SetName,
    },
    /// Exchanges the content of two sets of one type and family. Rules that use one go on with the other's content.
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
        /// What if it is there. Accepted, the entry takes the options given now.
        if_exists: IfExists,
    },
    /// Deletes an entry. Its options are not compared.
    Delete {
        /// The set.
        set: SetName,
        /// The entry.
        entry: Entry,
        /// What if it is not there.
        if_exists: IfExists,
    },
    /// Adds all entries of a range. When one of them is refused, those before it stay.
    AddRange {
        /// The set.
        set: SetName,
        /// The entries.
        range: Box<EntryRange>,
        /// What if one is there.
        if_exists: IfExists,
    },
    /// Deletes all entries of a range. When one of them is refused, those before it are gone.
    DeleteRange {
        /// The set.
        set: SetName,
        /// The entries.
        range: Box<EntryRange>,
        /// What if one is not there.
        if_exists: IfExists,
    },
}

/// What happens when an operation finds its work done: the set or entry to make is there, the one to remove is not.
#[doc(alias = "exist")]
#[doc(alias = "NLM_F_EXCL")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IfExists {
    /// It fails.
    Fail,
    /// It succeeds, as with `-exist`.
    Succeed,
}

impl Operation {
    /// Creates a set that must not be there.
    pub fn create(set: Set) -> Self {
        Operation::Create {
            set: Box::new(set),
            if_exists: IfExists::Fail,
        }
    }

    /// Creates a set unless it is there.
    pub fn ensure_set(set: Set) -> Self {
        Operation::Create {
            set: Box::new(set),
            if_exists: IfExists::Succeed,
        }
    }

    /// Destroys a set that must be there.
    pub fn destroy(set: SetName) -> Self {
        Operation::Destroy {
            set,
            if_exists: IfExists::Fail,
        }
    }

    /// Adds an entry that must not be there.
    pub fn add(set: SetName, entry: Entry) -> Self {
        Operation::Add {
            set,
            entry,
            if_exists: IfExists::Fail,
        }
    }

    /// Adds an entry, or gives the one that is there these options.
    pub fn ensure(set: SetName, entry: Entry) -> Self {
        Operation::Add {
            set,
            entry,
            if_exists: IfExists::Succeed,
        }
    }

    /// Deletes an entry that must be there.
    pub fn delete(set: SetName, entry: Entry) -> Self {
        Operation::Delete {
            set,
            entry,
            if_exists: IfExists::Fail,
        }
    }

    /// The set that it changes; of a rename or swap the first.
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

    /// What happens when its work is done already; those that do not ask fail.
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

/// Anything that was asked of the kernel, for the text of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Opening the connection.
    Open,
    /// A change.
    Change(Operation),
    /// Listing all sets.
    ListAll,
    /// Listing one set, or asking for its header.
    List(SetName),
    /// Asking whether an entry is in a set.
    Test(SetName, Entry),
    /// Asking for the name behind an index.
    NameOf(u16),
    /// Asking for the index of a set.
    IndexOf(SetName),
    /// Asking for the revisions of a set type.
    Revisions(crate::SetType),
    /// Destroying all sets.
    DestroyAll,
    /// Removing all entries of all sets.
    FlushAll,
    /// Replacing a set's content.
    Replace(SetName),
    /// Something else, in the words of an implementation of [`IpSets`](crate::IpSets).
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

/// As the command line that does the same, where there is one.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Open => f.write_str("open a connection to ipset"),
            Action::Change(operation) => operation.fmt(f),
            Action::ListAll => f.write_str("list all sets"),
            Action::List(set) => write!(f, "list {set}"),
            Action::Test(set, entry) => write!(f, "test {set} {entry}"),
            Action::NameOf(index) => write!(f, "find the set of index {index}"),
            Action::IndexOf(set) => write!(f, "find the index of {set}"),
            Action::Revisions(set_type) => write!(f, "find the revisions of {set_type}"),
            Action::DestroyAll => f.write_str("destroy all sets"),
            Action::FlushAll => f.write_str("flush all sets"),
            Action::Replace(set) => write!(f, "replace the content of {set}"),
            Action::Other(text) => f.write_str(text),
        }
    }
}
