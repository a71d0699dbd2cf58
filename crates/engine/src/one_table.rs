//! A data path with one kind of objects: for each frontend at most one, which is written as a whole.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::{self, Debug, Display};
use std::hash::Hash;

use foldhash::quality::RandomState;
use kernlink_services::{
    ArbitratedFrontend, Changes, Config, Event, FrontendKey, InterfaceAddress, ObjectName, Services,
};

use crate::data_path::{BuilderOf, Class, DataPath};
use crate::error::InvalidConfig;
use crate::plan::{Needs, Subject};
use crate::table::Table;

/// The kernel API of a data path with one kind of objects, and what each frontend needs of it. [`OneTable`] is the data path.
///
/// It is enough if objects depend on no other ones and are replaced as a whole. Any other data path implements [`DataPath`].
pub trait Objects: Send + 'static {
    /// Identifies an object.
    type Key: Clone + Debug + Display + Hash + Ord + Send;
    /// What an object consists of. Values that are equal need no change.
    type Value: Clone + Debug + PartialEq + Send;
    /// Why a call failed.
    type Error: Clone + Error + PartialEq + Send + Sync + 'static;

    /// The kind of the objects, in lower case with underscores: a label of metrics, and the noun in plans.
    const KIND: &'static str;

    /// The object that a frontend needs; `None`: none, it is not served. Frontends that return the same key must return the same value; the
    /// object exists as long as one of them does.
    fn desired(frontend: &ArbitratedFrontend<'_>) -> Option<(Self::Key, Self::Value)>;

    /// The addresses of this node's interfaces, at which node ports are served. Default: none, so there are no frontends for node ports.
    ///
    /// # Errors
    /// What the kernel returned.
    fn interface_addresses(&mut self) -> Result<Vec<InterfaceAddress>, Self::Error> {
        Ok(Vec::new())
    }

    /// All objects of the data path, and none of other programs: what is not desired is deleted.
    ///
    /// # Errors
    /// What the kernel returned; also if the listing may be incomplete.
    fn list(&mut self) -> Result<Listed<Self>, Self::Error>;

    /// One object; `None` if it does not exist. Called after an operation whose outcome is unknown. The default lists all.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    fn read(&mut self, key: &Self::Key) -> Result<Option<Self::Value>, Self::Error> {
        let listed = self.list()?.into_iter();
        Ok(listed.filter(|(of, _)| of == key).map(|(_, value)| value).next())
    }

    /// Adds an object, or replaces it by one with this value.
    ///
    /// # Errors
    /// What the kernel returned.
    fn write(&mut self, key: &Self::Key, value: &Self::Value) -> Result<(), Self::Error>;

    /// Deletes an object. It is not an error if there is none.
    ///
    /// # Errors
    /// What the kernel returned.
    fn delete(&mut self, key: &Self::Key) -> Result<(), Self::Error>;

    /// Whether a call that failed with this error may have been executed nevertheless. Default: always, so the object is read again before
    /// the next attempt.
    fn is_outcome_unknown(_error: &Self::Error) -> bool {
        true
    }
}

/// Objects with their keys.
pub type Listed<T> = Vec<(<T as Objects>::Key, <T as Objects>::Value)>;

/// The data path of [`Objects`]: `Proxier::<OneTable<MyKernel>>::new(&config, kernel)`.
pub struct OneTable<T: Objects> {
    table: Table<T::Key, T::Value>,
    /// The object of each frontend, and whom it is for.
    frontends: HashMap<FrontendKey, (T::Key, Subject), RandomState>,
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation<K, V> {
    /// Adds or replaces it.
    Write {
        /// The kind of the object.
        kind: &'static str,
        /// Which one.
        key: K,
        /// What it consists of afterwards.
        value: V,
    },
    /// Deletes it.
    Delete {
        /// The kind of the object.
        kind: &'static str,
        /// Which one.
        key: K,
    },
}

impl<K: Display, V: Debug> Display for Operation<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Write { kind, key, value } => write!(f, "write {kind} {key}: {value:?}"),
            Operation::Delete { kind, key } => write!(f, "delete {kind} {key}"),
        }
    }
}

/// The phases: no object is deleted before those that are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Objects are written.
    Write,
    /// Objects are deleted.
    Delete,
}

impl Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Write => "write objects",
            Phase::Delete => "delete objects",
        })
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ObjectsError<E: Error + 'static> {
    /// What the kernel API returned.
    #[error(transparent)]
    Kernel(E),
    /// There is no outcome of an operation.
    #[error("there is no outcome of the operation")]
    OutcomeMissing,
}

impl<T: Objects> Debug for OneTable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneTable")
            .field("table", &self.table)
            .field("frontends", &self.frontends)
            .finish()
    }
}

impl<T: Objects> OneTable<T> {
    /// The objects, as desired and as last read or written.
    #[must_use]
    pub fn table(&self) -> &Table<T::Key, T::Value> {
        &self.table
    }
}

impl<T: Objects> DataPath for OneTable<T> {
    type Config = Config;
    type Kernel = T;
    type Key = T::Key;
    type Operation = Operation<T::Key, T::Value>;
    type Phase = Phase;
    type Error = ObjectsError<T::Error>;
    type Totals = usize;

    fn validate(_config: &Config) -> Result<(), InvalidConfig> {
        Ok(())
    }

    fn services_config(config: &Config) -> &Config {
        config
    }

    fn new(_config: &Config) -> Self {
        Self {
            table: Table::default(),
            frontends: HashMap::default(),
        }
    }

    fn set_config(&mut self, _config: &Config) {}

    fn observe(&mut self, kernel: &mut T) -> Result<Vec<Event>, Self::Error> {
        self.table
            .observe_all(kernel.list().map_err(ObjectsError::Kernel)?);
        Ok(Vec::new())
    }

    fn observe_keys(&mut self, kernel: &mut T, keys: &[T::Key]) -> Result<(), Self::Error> {
        for key in keys {
            let value = kernel.read(key).map_err(ObjectsError::Kernel)?;
            self.table.observe(key.clone(), value);
        }
        Ok(())
    }

    fn is_observed(&self, key: &T::Key) -> bool {
        self.table.is_observed(key)
    }

    fn interface_addresses(&mut self, kernel: &mut T) -> Result<Vec<InterfaceAddress>, Self::Error> {
        kernel.interface_addresses().map_err(ObjectsError::Kernel)
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        for frontend in &changes.frontends {
            let before = self.frontends.remove(frontend);
            if let Some(arbitrated) = services.frontend(frontend)
                && let Some((key, value)) = T::desired(&arbitrated)
            {
                let subject = Subject::Service(arbitrated.owner.key.name.service.clone());
                self.table.add(key.clone(), value, subject.clone());
                self.frontends.insert(*frontend, (key, subject));
            }
            if let Some((key, subject)) = before {
                self.table.remove(&key, &subject);
            }
        }
        Vec::new()
    }

    fn serves(&self, frontend: &FrontendKey, _service: &ObjectName) -> bool {
        let object = self.frontends.get(frontend);
        object.is_some_and(|(key, _)| self.table.desired(key) == self.table.observed(key))
    }

    fn set_dirty(&mut self, key: &T::Key) {
        self.table.set_dirty(key.clone());
    }

    fn is_dirty(&self, key: &T::Key) -> bool {
        self.table.is_dirty(key)
    }

    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        for object in self.table.differences() {
            let (kind, key) = (T::KIND, object.key.clone());
            let (phase, operation) = match (object.desired, object.observed) {
                (Some(desired), observed) if Some(desired) != observed => {
                    let value = desired.clone();
                    (Phase::Write, Operation::Write { kind, key, value })
                }
                (None, Some(_)) => (Phase::Delete, Operation::Delete { kind, key }),
                _ => continue,
            };
            plan.push(
                phase,
                object.key.clone(),
                object.subject,
                operation,
                Needs::none(),
            );
        }
    }

    fn execute(kernel: &mut T, operations: &[&Self::Operation]) -> Vec<Result<(), Self::Error>> {
        let execute = |operation: &&Self::Operation| match operation {
            Operation::Write { key, value, .. } => kernel.write(key, value),
            Operation::Delete { key, .. } => kernel.delete(key),
        };
        let outcomes = operations.iter().map(execute);
        outcomes
            .map(|outcome| outcome.map_err(ObjectsError::Kernel))
            .collect()
    }

    fn outcome_missing() -> Self::Error {
        ObjectsError::OutcomeMissing
    }

    fn is_outcome_unknown(error: &Self::Error) -> bool {
        match error {
            ObjectsError::Kernel(error) => T::is_outcome_unknown(error),
            ObjectsError::OutcomeMissing => true,
        }
    }

    fn record(&mut self, operation: &Self::Operation) {
        match operation {
            Operation::Write { key, value, .. } => self.table.observe(key.clone(), Some(value.clone())),
            Operation::Delete { key, .. } => self.table.observe(key.clone(), None),
        }
    }

    fn clear_dirty(&mut self) {
        self.table.clear_dirty();
    }

    fn class(_key: &T::Key) -> Class {
        Class {
            kind: T::KIND,
            family: None,
            is_shared: false,
        }
    }

    fn totals(&self) -> usize {
        self.table.len()
    }
}
