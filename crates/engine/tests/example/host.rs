//! The kernel of the example: objects in memory, each with the program that owns it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use kernlink_engine::contract::{self, Calls, Client, Fixture, Host, Random, Request};
use kernlink_services::{FrontendKey, InterfaceAddress};

use super::{Config, Defect, Error, Example, Forward, Key, Operation};

/// The program that owns an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Example,
    Other,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) forwards: BTreeMap<FrontendKey, (Owner, Forward)>,
    pub(crate) addresses: BTreeMap<IpAddr, Owner>,
    is_torn: bool,
}

impl Memory {
    fn execute(&mut self, operation: &Operation) -> Result<(), Error> {
        let refused = || Err(Error::Refused(operation.to_string()));
        match operation {
            Operation::Add(key, _) if self.forwards.contains_key(key) => return refused(),
            Operation::Change(key, _) | Operation::Delete(key) if !self.forwards.contains_key(key) => {
                return refused();
            }
            Operation::Bind(address) if self.addresses.contains_key(address) => return refused(),
            Operation::Release(address) if !self.addresses.contains_key(address) => return refused(),
            Operation::Add(key, forward) | Operation::Change(key, forward) => {
                self.forwards.insert(*key, (Owner::Example, forward.clone()));
            }
            Operation::Delete(key) => _ = self.forwards.remove(key),
            Operation::Bind(address) => _ = self.addresses.insert(*address, Owner::Example),
            Operation::Release(address) => _ = self.addresses.remove(address),
        }
        Ok(())
    }

    fn print(&self, of: Owner) -> String {
        let forwards = self.forwards.iter().filter(|(_, (owner, _))| *owner == of);
        let forwards = forwards.map(|(key, (_, forward))| {
            format!(
                "{key} {:?} {:?}\n",
                forward.endpoints, forward.frontend.source_ranges
            )
        });
        let addresses = self.addresses.iter().filter(|(_, owner)| **owner == of);
        forwards
            .chain(addresses.map(|(address, _)| format!("{address}\n")))
            .collect()
    }
}

/// Clones share the memory.
#[derive(Clone, Debug)]
pub(crate) struct ExampleHost {
    memory: Arc<Mutex<Memory>>,
    calls: Calls,
    defect: Option<Defect>,
}

/// The kernel API of a process.
#[derive(Debug)]
pub(crate) struct Kernel(ExampleHost);

const INTERFACES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

impl Kernel {
    pub(crate) fn interfaces(&self) -> Vec<InterfaceAddress> {
        let addresses = INTERFACES.map(|address| InterfaceAddress::new("eth0", address.parse().unwrap()));
        addresses.into()
    }

    /// All objects, and whether none is missing.
    pub(crate) fn list(&self) -> Result<(Memory, bool), Error> {
        let list = || Ok(self.0.lock().clone());
        let tear = |mut memory: Memory| {
            memory.forwards.pop_first();
            memory.addresses.pop_last();
            memory.is_torn = true;
            memory
        };
        let calls = &self.0.calls;
        let memory = calls.list(&"list", list, || Error::Unreadable, tear)?;
        let is_complete = !memory.is_torn;
        Ok((memory, is_complete))
    }

    /// The object with a key.
    pub(crate) fn read(&self, key: &Key) -> Result<Memory, Error> {
        let read = || {
            let mut memory = self.0.lock().clone();
            memory.forwards.retain(|of, _| *key == Key::Forward(*of));
            memory.addresses.retain(|of, _| *key == Key::Address(*of));
            Ok(memory)
        };
        self.0.calls.read(key, read, || Error::Unreadable)
    }

    pub(crate) fn execute(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let defect = self.0.defect;
        let mut outcomes = Vec::new();
        for operation in operations {
            let execute = || self.0.lock().execute(operation);
            let refused = || Error::Refused(operation.to_string());
            let outcome = self
                .0
                .calls
                .change(operation, execute, refused, || Error::Unknown);
            let outcome = match (outcome, defect) {
                (Err(Error::Refused(_)), Some(Defect::IgnoresRefusals)) => Ok(()),
                (Err(Error::Unknown), Some(Defect::TakesUnknownForDone)) => Ok(()),
                (Err(Error::Unknown), Some(Defect::TakesUnknownForRefused)) => Err(refused()),
                (outcome, _) => outcome,
            };
            let has_failed = outcome.is_err();
            outcomes.push(outcome);
            if has_failed && defect == Some(Defect::StopsAtAFailure) {
                break;
            }
        }
        outcomes
    }
}

impl ExampleHost {
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }
}

impl Host for ExampleHost {
    type DataPath = Example;

    fn kernel(&self) -> Kernel {
        Kernel(self.clone())
    }

    fn owned(&self) -> String {
        self.lock().print(Owner::Example)
    }

    fn foreign(&self) -> String {
        self.lock().print(Owner::Other)
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        let memory = self.lock();
        let serve = |request: &Request| {
            let key = request.frontend;
            let is_node = INTERFACES.contains(&key.address.to_string().as_str());
            let is_bound = memory.addresses.get(&key.address) == Some(&Owner::Example);
            let (_, forward) = memory.forwards.get(&key).filter(|_| is_node || is_bound)?;
            let ranges = &forward.frontend.source_ranges;
            let is_admitted = match request.client {
                _ if ranges.is_empty() => true,
                Client::Node => forward.frontend.admits_node,
                Client::Host(address) => ranges.iter().any(|range| range.contains(&address)),
            };
            is_admitted.then(|| forward.endpoints.clone())
        };
        requests
            .iter()
            .map(|request| serve(request).unwrap_or_default())
            .collect()
    }

    fn damage(&self, random: &mut Random) -> String {
        let mut memory = self.lock();
        let forwards = memory
            .forwards
            .iter()
            .filter(|(_, (owner, _))| *owner == Owner::Example);
        let forward = random.choose(forwards.map(|(key, _)| *key).collect::<Vec<_>>());
        let addresses = memory
            .addresses
            .iter()
            .filter(|(_, owner)| **owner == Owner::Example);
        let address = random.choose(addresses.map(|(address, _)| *address).collect::<Vec<_>>());
        let (Some(forward), Some(address)) = (forward, address) else {
            return String::new();
        };
        match random.below(4) {
            0 => {
                memory.forwards.remove(&forward);
                format!("{forward} is deleted")
            }
            1 => {
                memory.addresses.remove(&address);
                format!("{address} is released")
            }
            2 => {
                let value = memory.forwards.get_mut(&forward).unwrap();
                value.1.endpoints.clear();
                format!("{forward} has no endpoints")
            }
            _ => {
                let value = memory.forwards.get(&forward).unwrap().clone();
                let mut added = forward;
                added.port += 1_000;
                memory.forwards.entry(added).or_insert(value);
                format!("{added} is added")
            }
        }
    }

    fn problems(&self) -> Vec<String> {
        let memory = self.lock();
        let has_forward = |address: &IpAddr| memory.forwards.keys().any(|key| key.address == *address);
        let owned = memory
            .addresses
            .iter()
            .filter(|(_, owner)| **owner == Owner::Example);
        let without = owned.filter(|(address, _)| !has_forward(address));
        without
            .map(|(address, _)| format!("{address} has no forward"))
            .collect()
    }
}

/// The example, with or without a defect.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExampleFixture {
    pub(crate) defect: Option<Defect>,
}

impl Fixture for ExampleFixture {
    type DataPath = Example;
    type Host = ExampleHost;

    fn seeds(&self) -> Range<u64> {
        contract::seeds(if self.defect.is_none() { 16 } else { 4 })
    }

    fn config(&self) -> Config {
        let mut services = kernlink_services::Config::new("node-a");
        services.node_ips = INTERFACES.map(|address| address.parse().unwrap()).into();
        Config {
            services,
            defect: self.defect,
        }
    }

    fn host(&self, calls: &Calls) -> ExampleHost {
        let mut memory = Memory::default();
        for address in ["198.51.100.200", "2001:db8:200::1"] {
            memory.addresses.insert(address.parse().unwrap(), Owner::Other);
        }
        ExampleHost {
            memory: Arc::new(Mutex::new(memory)),
            calls: calls.clone(),
            defect: self.defect,
        }
    }
}
