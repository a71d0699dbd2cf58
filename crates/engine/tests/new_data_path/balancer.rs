//! The data path of `docs/new-data-path.md`: forwards, and addresses that are bound after a forward exists at them.

// snippet
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::plan::Needs;
use kernlink_engine::services::{
    Changes, Config, Event, FrontendKey, InterfaceAddress, ObjectName, Services, TrafficPolicy,
};
use kernlink_engine::table::Table;
use kernlink_engine::{InvalidConfig, Subject};

use crate::example::host::{Kernel, Owner};
use crate::example::{Error, Forward, Key, Operation, Phase};

#[derive(Debug, Default)]
pub(crate) struct Balancer {
    forwards: Table<FrontendKey, Forward>,
    addresses: Table<IpAddr, ()>,
    /// The frontends at each address, and whom they are for: each has a reference to its address.
    frontends: BTreeMap<IpAddr, BTreeMap<FrontendKey, Subject>>,
}

impl DataPath for Balancer {
    type Config = Config;
    type Kernel = Kernel;
    type Key = Key;
    type Operation = Operation;
    type Phase = Phase;
    type Error = Error;
    type Totals = usize;

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

    // What the kernel has.

    fn observe(&mut self, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        let (memory, is_complete) = kernel.list()?;
        if !is_complete {
            return Err(Error::Torn);
        }
        let owned = |owner| owner == Owner::Example;
        let forwards = memory
            .forwards
            .into_iter()
            .filter(|(_, (owner, _))| owned(*owner));
        self.forwards
            .observe_all(forwards.map(|(key, (_, forward))| (key, forward)));
        let addresses = memory.addresses.into_iter().filter(|(_, owner)| owned(*owner));
        self.addresses
            .observe_all(addresses.map(|(address, _)| (address, ())));
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

    fn is_observed(&self, key: &Key) -> bool {
        match key {
            Key::Forward(key) => self.forwards.is_observed(key),
            Key::Address(address) => self.addresses.is_observed(address),
        }
    }

    fn interface_addresses(&mut self, kernel: &mut Kernel) -> Result<Vec<InterfaceAddress>, Error> {
        Ok(kernel.interfaces())
    }

    // What it should have.

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        for key in &changes.frontends {
            let before = self.frontends.get_mut(&key.address).and_then(|at| at.remove(key));
            let Some(arbitrated) = services.frontend(key) else {
                self.forwards.set(*key, None, Subject::DataPath);
                self.release(key.address, before);
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
                let at = self.frontends.entry(key.address).or_default();
                at.insert(*key, subject.clone());
            }
            self.release(key.address, before);
            let chosen = match frontend.policy {
                TrafficPolicy::Cluster => &arbitrated.owner.endpoints.cluster,
                TrafficPolicy::Local => &arbitrated.owner.endpoints.local,
            };
            let endpoints: BTreeSet<SocketAddr> = chosen
                .iter()
                .map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port))
                .collect();
            let forward = Forward {
                frontend: frontend.clone(),
                endpoints,
            };
            self.forwards.set(*key, Some(forward), subject);
        }
        Vec::new()
    }

    fn serves(&self, frontend: &FrontendKey, _service: &ObjectName) -> bool {
        let is_bound =
            !self.addresses.is_desired(&frontend.address) || self.addresses.is_observed(&frontend.address);
        is_bound && self.forwards.desired(frontend) == self.forwards.observed(frontend)
    }

    // The difference.

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
        let forwards = self.forwards.differences();
        for forward in &forwards {
            let operation = match (forward.desired, forward.observed) {
                (Some(desired), None) => Operation::Add(*forward.key, desired.clone()),
                (Some(desired), Some(observed)) if desired != observed => {
                    Operation::Change(*forward.key, desired.clone())
                }
                _ => continue,
            };
            let (key, subject) = (Key::Forward(*forward.key), forward.subject.clone());
            plan.push(Phase::WriteForwards, key, subject, operation, Needs::none());
        }
        for address in self.addresses.differences() {
            let key = Key::Address(*address.key);
            match (address.desired, address.observed) {
                (Some(()), None) => {
                    let bind = Operation::Bind(*address.key);
                    let needs = Needs::none().and_any(self.first_forwards(address.key, plan));
                    plan.push(Phase::BindAddresses, key, address.subject, bind, needs);
                }
                (None, Some(())) => {
                    let release = Operation::Release(*address.key);
                    let subject = address.subject;
                    plan.push(Phase::ReleaseAddresses, key, subject, release, Needs::none());
                }
                _ => {}
            }
        }
        for forward in forwards {
            if forward.desired.is_some() || forward.observed.is_none() {
                continue;
            }
            let at = &forward.key.address;
            let is_bound = self.addresses.is_desired(at);
            let needs = if is_bound {
                Needs::none().and_any(self.first_forwards(at, plan))
            } else {
                Needs::all(plan.after(&Key::Address(*at), !self.addresses.is_observed(at)))
            };
            let (key, delete) = (Key::Forward(*forward.key), Operation::Delete(*forward.key));
            plan.push(Phase::DeleteForwards, key, forward.subject, delete, needs);
        }
    }

    fn clear_dirty(&mut self) {
        self.forwards.clear_dirty();
        self.addresses.clear_dirty();
    }

    // Its execution.

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
                self.forwards.observe(*key, Some(forward.clone()));
            }
            Operation::Delete(key) => self.forwards.observe(*key, None),
            Operation::Bind(address) => self.addresses.observe(*address, Some(())),
            Operation::Release(address) => self.addresses.observe(*address, None),
        }
    }

    // What is counted.

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

impl Balancer {
    /// Removes the reference of a frontend to its address.
    fn release(&mut self, address: IpAddr, subject: Option<Subject>) {
        if let Some(subject) = subject {
            self.addresses.remove(&address, &subject);
        }
        if self.frontends.get(&address).is_some_and(BTreeMap::is_empty) {
            self.frontends.remove(&address);
        }
    }

    /// The steps of which one must be done before there is a desired forward at an address; none if there is one already.
    fn first_forwards(
        &self,
        address: &IpAddr,
        plan: &BuilderOf<'_, Self>,
    ) -> Vec<kernlink_engine::plan::Need<Key>> {
        let mut keys = self.frontends.get(address).into_iter().flat_map(BTreeMap::keys);
        if keys.clone().any(|key| self.forwards.is_observed(key)) {
            return Vec::new();
        }
        keys.by_ref()
            .flat_map(|key| plan.after(&Key::Forward(*key), false))
            .collect()
    }
}
// snippet
