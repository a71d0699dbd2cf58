//! Kernel APIs that count operations and readings.

use std::sync::{Arc, Mutex};

use kernlink_conntrack as conntrack;
use kernlink_dummylink as link;
use kernlink_ipset as set;
use kernlink_iptables_restore as rules;
use kernlink_ipvs as ipvs;
use kernlink_proxier::ipvs_mode::error::SysctlError;
use kernlink_proxier::ipvs_mode::kernel::Sysctls;
use kernlink_proxier::ipvs_mode::{Kernel, Sysctl};

/// What was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Operations of virtual servers, sets, links, addresses and flows: for each, a client of the kernel sends one netlink message, or a part of
    /// one.
    pub(crate) operations: usize,
    /// Operations of rules and readings of tables, each of which starts a process.
    pub(crate) processes: usize,
    /// Other readings.
    pub(crate) readings: usize,
}

/// The counters of a kernel. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<Mutex<Calls>>);

impl Counter {
    /// The kernel with this counter.
    pub(crate) fn count(&self, kernel: Kernel) -> Kernel {
        Kernel {
            ipvs: Box::new(self.wrap(kernel.ipvs)),
            sets: Box::new(self.wrap(kernel.sets)),
            rules: Box::new(self.wrap(kernel.rules)),
            links: Box::new(self.wrap(kernel.links)),
            conntrack: Box::new(self.wrap(kernel.conntrack)),
            sysctls: Box::new(self.wrap(kernel.sysctls)),
        }
    }

    fn wrap<T>(&self, inner: T) -> Counted<T> {
        Counted {
            inner,
            counter: self.clone(),
        }
    }

    /// The calls since the last time.
    pub(crate) fn take(&self) -> Calls {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Counted<T> {
    inner: T,
    counter: Counter,
}

impl<T> Counted<T> {
    fn operations(&mut self, count: usize) -> &mut T {
        self.counter.0.lock().unwrap().operations += count;
        &mut self.inner
    }

    fn processes(&mut self, count: usize) -> &mut T {
        self.counter.0.lock().unwrap().processes += count;
        &mut self.inner
    }

    fn reading(&mut self) -> &mut T {
        self.counter.0.lock().unwrap().readings += 1;
        &mut self.inner
    }
}

impl ipvs::Ipvs for Counted<Box<dyn ipvs::Ipvs>> {
    fn execute(&mut self, operations: &[ipvs::Operation]) -> Vec<Result<(), ipvs::Error>> {
        self.operations(operations.len()).execute(operations)
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<ipvs::VirtualServerStatus>, ipvs::Error> {
        self.reading().list_virtual_servers()
    }

    fn list_real_servers(
        &mut self,
        key: &ipvs::VirtualServerKey,
    ) -> Result<Vec<ipvs::RealServerStatus>, ipvs::Error> {
        self.reading().list_real_servers(key)
    }

    fn timeouts(&mut self) -> Result<ipvs::Timeouts, ipvs::Error> {
        self.reading().timeouts()
    }
}

impl set::IpSets for Counted<Box<dyn set::IpSets>> {
    fn execute(&mut self, operations: &[set::Operation]) -> Vec<Result<(), set::Error>> {
        self.operations(operations.len()).execute(operations)
    }

    fn list_set(&mut self, name: &set::SetName) -> Result<set::SetContents, set::Error> {
        self.reading().list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<set::SetHeader>, set::Error> {
        self.reading().headers()
    }
}

impl link::DummyLinks for Counted<Box<dyn link::DummyLinks>> {
    fn execute(&mut self, operations: &[link::Operation]) -> Vec<Result<(), link::Error>> {
        self.operations(operations.len()).execute(operations)
    }

    fn links(&mut self) -> Result<Vec<link::Link>, link::Error> {
        self.reading().links()
    }

    fn list(&mut self, selection: link::Selection) -> Result<Vec<link::HostAddress>, link::Error> {
        self.reading().list(selection)
    }
}

impl conntrack::Conntrack for Counted<Box<dyn conntrack::Conntrack>> {
    fn execute(&mut self, operations: &[conntrack::Operation]) -> Vec<Result<(), conntrack::Error>> {
        self.operations(operations.len()).execute(operations)
    }

    fn flows<'a>(&'a mut self, filter: &conntrack::Filter) -> Result<conntrack::Flows<'a>, conntrack::Error> {
        self.reading().flows(filter)
    }
}

impl rules::Iptables for Counted<Box<dyn rules::Iptables>> {
    fn execute(&mut self, operations: &[rules::Operation]) -> Vec<Result<(), rules::Error>> {
        self.processes(operations.len()).execute(operations)
    }

    fn save(&mut self, request: &rules::Save) -> Result<rules::Ruleset, rules::Error> {
        self.processes(1).save(request)
    }
}

impl Sysctls for Counted<Box<dyn Sysctls>> {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        self.inner.execute(sysctls)
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.reading().read(name)
    }
}
