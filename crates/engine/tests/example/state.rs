//! The tables of the example, and what the engine calls.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::plan::{Need, Needs};
use kernlink_engine::table::Table;
use kernlink_engine::{InvalidConfig, Subject};
use kernlink_services::{Changes, Event, FrontendKey, InterfaceAddress, Services, TrafficPolicy};

use super::host::{Kernel, Owner};
use super::{Config, Defect, Error, Forward, Key, Operation, Phase};

/// The tables of the example.
#[derive(Debug)]
pub(crate) struct Example {
    forwards: Table<FrontendKey, Forward>,
    addresses: Table<IpAddr, ()>,
    has_read: bool,
    /// The frontends with a reference in the addresses.
    bound: BTreeMap<FrontendKey, Subject>,
    defect: Option<Defect>,
    /// Whether an operation was recorded, or a plan made.
    has_started: bool,
    /// The objects that this process wrote.
    written: BTreeSet<Key>,
}

impl DataPath for Example {
    type Config = Config;
    type Kernel = Kernel;
    type Key = Key;
    type Operation = Operation;
    type Phase = Phase;
    type Error = Error;
    type Totals = usize;

    fn validate(_: &Config) -> Result<(), InvalidConfig> {
        Ok(())
    }

    fn services_config(config: &Config) -> &kernlink_services::Config {
        &config.services
    }

    fn new(config: &Config) -> Self {
        Self {
            forwards: Table::default(),
            addresses: Table::default(),
            has_read: false,
            bound: BTreeMap::new(),
            defect: config.defect,
            has_started: false,
            written: BTreeSet::new(),
        }
    }

    fn set_config(&mut self, _: &Config) {}

    fn observe(&mut self, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        if self.has(Defect::ReadsOnce) && self.has_read {
            return Ok(Vec::new());
        }
        self.has_read = true;
        let (memory, is_complete) = match kernel.list() {
            Err(_) if self.has(Defect::TakesUnreadableForEmpty) => Default::default(),
            listed => listed?,
        };
        if !is_complete && !self.has(Defect::UsesTornListings) && !self.has(Defect::TakesUnreadableForEmpty) {
            return Err(Error::Torn);
        }
        let owns_everything = self.has(Defect::OwnsEverything);
        let is_owned = |owner| owner == Owner::Example || owns_everything;
        let forwards = memory.forwards.into_iter();
        let forwards = forwards.filter(|(_, (owner, _))| is_owned(*owner));
        let addresses = memory.addresses.into_iter().filter(|(_, owner)| is_owned(*owner));
        let addresses: Vec<_> = addresses.map(|(address, _)| (address, ())).collect();
        self.forwards
            .observe_all(forwards.map(|(key, (_, forward))| (key, forward)));
        self.addresses.observe_all(addresses);
        Ok(Vec::new())
    }

    fn observe_keys(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        for key in keys {
            let mut memory = kernel.read(key)?;
            match key {
                Key::Forward(key) => {
                    let found = memory.forwards.remove(key);
                    let owned = found.filter(|(owner, _)| *owner == Owner::Example);
                    self.forwards.observe(*key, owned.map(|(_, forward)| forward));
                }
                Key::Address(address) => {
                    let found = memory.addresses.remove(address);
                    let owned = found.filter(|owner| *owner == Owner::Example);
                    self.addresses.observe(*address, owned.map(|_| ()));
                }
            }
        }
        Ok(())
    }

    fn interface_addresses(&mut self, kernel: &mut Kernel) -> Result<Vec<InterfaceAddress>, Error> {
        Ok(kernel.interfaces())
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        for key in &changes.frontends {
            if let Some(subject) = self.bound.remove(key) {
                self.addresses.remove(&key.address, &subject);
            }
            let Some(arbitrated) = services.frontend(key) else {
                self.forwards.set(*key, None, Subject::DataPath);
                continue;
            };
            // An address may be restricted and open: as load-balancer IP and as external IP.
            let frontends = arbitrated.frontends();
            let Some(frontend) = frontends.min_by_key(|frontend| !frontend.source_ranges.is_empty()) else {
                continue;
            };
            let subject = Subject::Service(arbitrated.owner.key.name.service.clone());
            if !frontend.is_node_address {
                self.addresses.add(key.address, (), subject.clone());
                self.bound.insert(*key, subject.clone());
            }
            let chosen = match frontend.policy {
                TrafficPolicy::Cluster => &arbitrated.owner.endpoints.cluster,
                TrafficPolicy::Local => &arbitrated.owner.endpoints.local,
            };
            let chosen = chosen.iter();
            let mut forward = Forward {
                frontend: frontend.clone(),
                endpoints: chosen
                    .map(|chosen| SocketAddr::new(chosen.address, chosen.port))
                    .collect(),
            };
            if self.has(Defect::KeepsEndpoints)
                && let Some(before) = self.forwards.desired(key)
            {
                forward.endpoints.extend(&before.endpoints);
            }
            self.forwards.set(*key, Some(forward), subject);
        }
        let has_changes = !changes.frontends.is_empty();
        if has_changes && (self.has(Defect::ComparesEverything) || self.has(Defect::RebuildsForEachChange)) {
            self.forwards.set_all_dirty();
        }
        Vec::new()
    }

    fn set_dirty(&mut self, key: &Key) {
        match key {
            Key::Forward(key) => self.forwards.set_dirty(*key),
            Key::Address(address) => self.addresses.set_dirty(*address),
        }
    }

    fn is_dirty(&self, key: &Key) -> bool {
        match key {
            Key::Forward(key) => self.forwards.is_dirty(key),
            Key::Address(address) => self.addresses.is_dirty(address),
        }
    }

    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        let writes_all = match self.defect {
            Some(Defect::WritesAlways) => true,
            Some(Defect::WritesAtStart) => !self.has_started,
            _ => false,
        };
        if self.has(Defect::PlansEachObjectOnce) && self.has_started {
            self.has_started = false;
            return;
        }
        let rebuilds = self.has(Defect::RebuildsForEachChange);
        let deletes = rebuilds || self.has(Defect::DeletesToReplace);
        let mut written: BTreeMap<IpAddr, Vec<Need<Key>>> = BTreeMap::new();
        let mut withdrawn = Vec::new();
        for forward in self.forwards.differences() {
            let key = *forward.key;
            let mut needs = Needs::none();
            let operation = match (forward.desired, forward.observed) {
                (Some(desired), None) => Operation::Add(key, desired.clone()),
                (Some(desired), Some(observed)) if desired != observed || writes_all || rebuilds => {
                    if deletes {
                        let (delete, subject) = (Operation::Delete(key), forward.subject.clone());
                        let delete =
                            plan.push(Phase::WriteForwards, Key::Forward(key), subject, delete, needs);
                        needs = Needs::all([delete]);
                        Operation::Add(key, desired.clone())
                    } else {
                        Operation::Change(key, desired.clone())
                    }
                }
                (None, Some(_)) => {
                    withdrawn.push((key, forward.subject));
                    continue;
                }
                _ => continue,
            };
            if self.has(Defect::OpensBeforeItRestricts) && !desired_ranges(&operation).is_empty() {
                let mut open = operation.clone();
                if let Operation::Add(_, forward) | Operation::Change(_, forward) = &mut open {
                    forward.frontend.source_ranges = [].into();
                }
                let (key, subject) = (Key::Forward(key), forward.subject.clone());
                let restrict = match operation {
                    Operation::Add(key, forward) => Operation::Change(key, forward),
                    other => other,
                };
                let open = plan.push(Phase::WriteForwards, key, subject.clone(), open, Needs::none());
                plan.push(Phase::DeleteForwards, key, subject, restrict, Needs::all([open]));
                continue;
            }
            let step = plan.push(
                Phase::WriteForwards,
                Key::Forward(key),
                forward.subject,
                operation,
                needs,
            );
            if forward.observed.is_none() || deletes {
                written.entry(key.address).or_default().push(step);
            }
        }
        let mut released = BTreeMap::new();
        for address in self.addresses.differences() {
            let key = Key::Address(*address.key);
            match (address.desired, address.observed) {
                (Some(()), None) => {
                    let bind = Operation::Bind(*address.key);
                    let forwards = written.get(address.key).cloned().unwrap_or_default();
                    let needs = if self.has(Defect::HasNoNeeds) || self.has_forward(address.key) {
                        Needs::none()
                    } else {
                        Needs::none().and_any(forwards)
                    };
                    plan.push(Phase::BindAddresses, key, address.subject, bind, needs);
                }
                (None, Some(())) if self.may_delete(&key) => {
                    let release = Operation::Release(*address.key);
                    let subject = address.subject;
                    let step = plan.push(Phase::ReleaseAddresses, key, subject, release, Needs::none());
                    released.insert(*address.key, step);
                }
                _ => {}
            }
        }
        for (forward, subject) in withdrawn {
            let key = Key::Forward(forward);
            if self.may_delete(&key) {
                // The last forward of an address that stays bound is deleted after another one exists.
                let others = written.get(&forward.address).cloned().unwrap_or_default();
                let is_last = !self.has_forward(&forward.address);
                let others = others.into_iter().filter(|_| is_last);
                let needs = Needs::all(released.get(&forward.address).cloned()).and_any(others);
                plan.push(
                    Phase::DeleteForwards,
                    key,
                    subject,
                    Operation::Delete(forward),
                    needs,
                );
            }
        }
        self.has_started = true;
    }

    fn execute(kernel: &mut Kernel, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        kernel.execute(operations)
    }

    fn outcome_missing() -> Error {
        Error::Unknown
    }

    fn is_outcome_unknown(error: &Error) -> bool {
        *error == Error::Unknown
    }

    fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Add(key, forward) | Operation::Change(key, forward) => {
                self.written.insert(Key::Forward(*key));
                self.forwards.observe(*key, Some(forward.clone()));
            }
            Operation::Delete(key) => self.forwards.observe(*key, None),
            Operation::Bind(address) => {
                self.written.insert(Key::Address(*address));
                self.addresses.observe(*address, Some(()));
            }
            Operation::Release(address) => self.addresses.observe(*address, None),
        }
    }

    fn clear_dirty(&mut self) {
        self.forwards.clear_dirty();
        self.addresses.clear_dirty();
    }

    fn class(key: &Key) -> Class {
        Class {
            kind: match key {
                Key::Forward(_) => "forward",
                Key::Address(_) => "address",
            },
            family: None,
            is_shared: false,
        }
    }

    fn totals(&self) -> usize {
        self.forwards.len()
    }
}

impl Example {
    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Whether a desired forward exists at an address.
    fn has_forward(&self, address: &IpAddr) -> bool {
        let of_address = self.bound.keys().filter(|key| key.address == *address);
        of_address.into_iter().any(|key| self.forwards.is_observed(key))
    }

    fn may_delete(&self, key: &Key) -> bool {
        !self.has(Defect::RemembersWhatItOwns) || self.written.contains(key)
    }
}

fn desired_ranges(operation: &Operation) -> &[impl std::fmt::Debug] {
    match operation {
        Operation::Add(_, forward) | Operation::Change(_, forward) => &forward.frontend.source_ranges,
        _ => &[],
    }
}
