//! A data path for tests, whose steps and outcomes are given.

use std::collections::VecDeque;

use kernlink_services::{Changes, Config, Event, InterfaceAddress, Services};

use crate::data_path::{BuilderOf, Class, DataPath};
use crate::error::InvalidConfig;
use crate::plan::{Needs, Subject};

/// Its kernel: what the next listing finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// The steps of each plan: phase, key and operation.
    pub(crate) steps: Vec<(u8, &'static str, &'static str)>,
    /// The outcomes of the calls of [`DataPath::execute`], one list for each.
    pub(crate) outcomes: VecDeque<Vec<Result<(), Refused>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("refused")]
    Refused,
    #[error("there is no outcome")]
    OutcomeMissing,
}

#[derive(Debug, Default)]
pub(crate) struct Scripted {
    steps: Vec<(u8, &'static str, &'static str)>,
    /// The operations that were recorded as done.
    pub(crate) done: Vec<String>,
    /// Those that were recorded as failed.
    pub(crate) failed: Vec<(String, Refused)>,
    /// The objects that were read by themselves, and those that were made dirty.
    pub(crate) read: Vec<&'static str>,
    pub(crate) set_dirty: Vec<&'static str>,
    /// The objects that no listing reads.
    pub(crate) unlisted: Vec<&'static str>,
    /// Whether single objects cannot be read.
    pub(crate) is_unreadable: bool,
    /// The objects that are not dirty; all others are.
    pub(crate) clean: Vec<&'static str>,
}

impl DataPath for Scripted {
    type Config = Config;
    type Kernel = Script;
    type Key = &'static str;
    type Operation = String;
    type Phase = u8;
    type Error = Refused;
    type Totals = ();

    fn validate(_config: &Config) -> Result<(), InvalidConfig> {
        Ok(())
    }

    fn services_config(config: &Config) -> &Config {
        config
    }

    fn new(_config: &Config) -> Self {
        Self::default()
    }

    fn set_config(&mut self, _config: &Config) {}

    fn observe(&mut self, kernel: &mut Script) -> Result<Vec<Event>, Refused> {
        self.steps.clone_from(&kernel.steps);
        Ok(Vec::new())
    }

    fn observe_keys(&mut self, _kernel: &mut Script, keys: &[&'static str]) -> Result<(), Refused> {
        if self.is_unreadable {
            return Err(Refused::Refused);
        }
        self.read.extend(keys);
        Ok(())
    }

    fn is_read_by_listing(&self, key: &&'static str) -> bool {
        !self.unlisted.contains(key)
    }

    fn interface_addresses(&mut self, _kernel: &mut Script) -> Result<Vec<InterfaceAddress>, Refused> {
        Ok(Vec::new())
    }

    fn compile(&mut self, _services: &Services, _changes: &Changes) -> Vec<Event> {
        Vec::new()
    }

    fn set_dirty(&mut self, key: &&'static str) {
        self.set_dirty.push(key);
    }

    fn is_dirty(&self, key: &&'static str) -> bool {
        !self.clean.contains(key)
    }

    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        for (phase, key, operation) in &self.steps {
            plan.push(*phase, *key, Subject::DataPath, *operation, Needs::none());
        }
    }

    fn execute(kernel: &mut Script, _operations: &[&String]) -> Vec<Result<(), Refused>> {
        kernel.outcomes.pop_front().unwrap_or_default()
    }

    fn outcome_missing() -> Refused {
        Refused::OutcomeMissing
    }

    fn is_outcome_unknown(error: &Refused) -> bool {
        *error == Refused::OutcomeMissing
    }

    fn record(&mut self, operation: &String) {
        self.done.push(operation.clone());
    }

    fn record_failure(&mut self, operation: &String, error: &Refused) {
        self.failed.push((operation.clone(), *error));
    }

    fn clear_dirty(&mut self) {}

    fn class(_key: &&'static str) -> Class {
        Class {
            kind: "object",
            family: None,
            is_shared: false,
        }
    }

    fn totals(&self) {}
}
