//! A second data path: it only binds the addresses of cluster IPs to a dummy link.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test reports errors by panicking")]

use std::collections::BTreeMap;
use std::time::Instant;

use kernlink_dummylink::{AddressKey, DummyLinks, Error, Fake, LinkAddress, LinkName, Operation, Selection};
use kernlink_proxier::data_path::{BuilderOf, Class};
use kernlink_proxier::plan::Needs;
use kernlink_proxier::table::Table;
use kernlink_proxier::{DataPath, InvalidConfig, Proxier, Subject};
use kernlink_services::{
    Change, Changes, Config, Event, FrontendKey, ObjectChange, ObjectName, Port, Service, Services, SourceId,
};

#[derive(Debug, Default)]
struct AddressMode {
    table: Table<AddressKey, ()>,
    /// The frontends with a reference in the table: several ports of a Service share its address.
    frontends: BTreeMap<FrontendKey, Subject>,
}

fn link() -> LinkName {
    LinkName::new("vips").unwrap()
}
impl DataPath for AddressMode {
    type Config = Config;
    type Kernel = Fake;
    type Key = AddressKey;
    type Operation = Operation;
    type Phase = &'static str;
    type Error = Error;
    type Totals = usize;
    fn validate(_: &Config) -> Result<(), InvalidConfig> {
        Ok(())
    }
    fn services_config(config: &Config) -> &Config {
        config
    }
    fn new(_: &Config) -> Self {
        Self::default()
    }
    fn set_config(&mut self, _: &Config) {}
    fn observe(&mut self, kernel: &mut Fake) -> Result<Vec<Event>, Error> {
        let listed = kernel.list(Selection::On(link()))?.into_iter();
        let listed = listed.map(|listed| (listed.address.key, ()));
        self.table.observe_all(listed);
        Ok(Vec::new())
    }
    fn observe_keys(&mut self, _: &mut Fake, _: &[AddressKey]) -> Result<(), Error> {
        Ok(())
    }
    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        for key in &changes.frontends {
            let address = AddressKey::host(key.address).unwrap();
            if let Some(subject) = self.frontends.remove(key) {
                self.table.remove(&address, &subject);
            }
            if let Some(frontend) = services.frontend(key) {
                let subject = Subject::Service(frontend.owner.key.name.service.clone());
                self.table.add(address, (), subject.clone());
                self.frontends.insert(*key, subject);
            }
        }
        Vec::new()
    }
    fn set_dirty(&mut self, key: &AddressKey) {
        self.table.set_dirty(*key);
    }
    fn is_dirty(&self, key: &AddressKey) -> bool {
        self.table.is_dirty(key)
    }
    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        for address in self.table.differences() {
            let key = *address.key;
            let (phase, operation) = match (address.desired, address.observed) {
                (Some(()), None) => {
                    let host = LinkAddress::host(key.address()).unwrap();
                    ("bind", Operation::EnsureAddress(link(), host))
                }
                (None, Some(())) => ("unbind", Operation::DeleteAddress(link(), key)),
                _ => continue,
            };
            plan.push(phase, key, address.subject, operation, Needs::none());
        }
    }
    fn execute(kernel: &mut Fake, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let operations: Vec<Operation> = operations.iter().copied().cloned().collect();
        kernel.execute(&operations)
    }
    fn outcome_missing() -> Error {
        Error::OutcomeMissing
    }
    fn is_outcome_unknown(error: &Error) -> bool {
        error.is_outcome_unknown()
    }
    fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::EnsureAddress(_, address) => self.table.observe(address.key, Some(())),
            Operation::DeleteAddress(_, key) => self.table.observe(*key, None),
            _ => {}
        }
    }
    fn clear_dirty(&mut self) {
        self.table.clear_dirty();
    }
    fn class(_: &AddressKey) -> Class {
        let (kind, family) = ("address", None);
        Class {
            kind,
            family,
            is_shared: false,
        }
    }
    fn totals(&self) -> usize {
        self.table.len()
    }
}

#[test]
fn a_data_path_needs_only_its_own_kernel_objects() {
    let foreign = LinkAddress::host([198, 51, 100, 9].into()).unwrap();
    let kernel = Fake::new().with_link(link(), Some("dummy"), &[foreign]);
    let mut proxier = Proxier::<AddressMode>::new(&Config::new("node-a"), kernel).unwrap();
    let service = |name: &str, address: &str| {
        Service::new(ObjectName::new("ns", name))
            .with_cluster_ip(address)
            .with_port(Port::new("http", 80))
            .with_port(Port::new("https", 443))
    };
    let services = vec![service("a", "10.96.0.1"), service("b", "10.96.0.2")];
    proxier.change(SourceId(0), Change::Services(ObjectChange::ReplaceAll(services)));
    proxier.change(SourceId(0), Change::Services(ObjectChange::Synced));
    proxier.change(SourceId(0), Change::EndpointSlices(ObjectChange::Synced));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        synced.plan.to_string(),
        "# bind\n[1] address replace 10.96.0.1/32 dev vips\n[2] address replace 10.96.0.2/32 dev vips\n\
         # unbind\n[3] address delete 198.51.100.9/32 dev vips\n"
    );
    assert!(synced.is_success(), "{synced}");
    let change = Change::Services(ObjectChange::Delete(ObjectName::new("ns", "a")));
    proxier.change(SourceId(0), change);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        synced.plan.to_string(),
        "# unbind\n[1] address delete 10.96.0.1/32 dev vips\n"
    );
    assert_eq!(synced.report.by_subject(&synced.plan).len(), 1);
    let mut one_port = service("b", "10.96.0.2");
    one_port.ports.pop();
    proxier.change(SourceId(0), Change::Services(ObjectChange::Upsert(one_port)));
    assert!(proxier.plan(Instant::now()).unwrap().is_empty());
}
