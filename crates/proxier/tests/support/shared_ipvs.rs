//! A fake of IPVS whose connections a test can set while a proxier uses it.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::{Arc, Mutex, MutexGuard};

use kernlink_ipvs::{
    ConnectionCounts, Error, Fake, Ipvs, Operation, RealServerKey, RealServerStatus, Scheduler, Snapshot,
    Timeouts, VirtualServerKey, VirtualServerStatus,
};

/// Clones share the fake.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedIpvs(Arc<Mutex<Fake>>);

impl SharedIpvs {
    pub(crate) fn new(fake: Fake) -> Self {
        Self(Arc::new(Mutex::new(fake)))
    }

    pub(crate) fn fake(&self) -> MutexGuard<'_, Fake> {
        self.0.lock().unwrap()
    }

    /// Sets the number of active connections of a real server, which must exist.
    pub(crate) fn connect(&self, server: &VirtualServerKey, real_server: &RealServerKey, active: u32) {
        let mut counts = ConnectionCounts::default();
        counts.active = active;
        assert!(self.fake().set_connections(server, real_server, counts));
    }

    /// The operations since the last call, as commands.
    pub(crate) fn executed(&self) -> Vec<String> {
        let mut fake = self.fake();
        let executed = fake.executed().iter().map(ToString::to_string).collect();
        fake.forget_executed();
        executed
    }
}

impl Ipvs for SharedIpvs {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.fake().execute(operations)
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.fake().list_virtual_servers()
    }

    fn list_real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<RealServerStatus>, Error> {
        self.fake().list_real_servers(key)
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        self.fake().snapshot()
    }

    fn is_scheduler_refused(&mut self, scheduler: Scheduler) -> bool {
        self.fake().is_scheduler_refused(scheduler)
    }

    fn permit_loading(&mut self, schedulers: &[Scheduler]) {
        self.fake().permit_loading(schedulers);
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.fake().timeouts()
    }
}
