//! Fakes of kernel APIs that the proxiers of two modes and a test share, as they share the kernel.
#![allow(dead_code, reason = "each test uses a part of it")]

#[path = "by_table.rs"]
mod by_table;

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use kernlink_agent::modes::{Config, Mode};
use kernlink_conntrack::{Conntrack, Filter, Flow, Flows};
use kernlink_dummylink::{DummyLinks, HostAddress, Link, LinkAddress, LinkName, Selection};
use kernlink_ipset::{IpSets, SetContents, SetHeader, SetName};
use kernlink_iptables_restore::{Family, Iptables, Ruleset, Save};
use kernlink_ipvs::Ipvs;
use kernlink_proxier::host::{FakeSysctls, Sysctl, SysctlError, Sysctls};
use kernlink_proxier::iptables_mode::IptablesMode;
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_proxier::retire::Retire;
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_services::{Change, SourceId};

use self::by_table::by_table;
use crate::any_proxier::{self, AnyProxier, Did};
use crate::shared_ipvs::SharedIpvs;

/// What observes operations.
type Observer = Rc<dyn Fn(&str)>;

thread_local! {
    /// What is called after each operation of this thread, with its command.
    static AFTER: RefCell<Option<Observer>> = const { RefCell::new(None) };
}

fn after(operation: &impl ToString) {
    let after = AFTER.with(|after| after.borrow().clone());
    if let Some(after) = after {
        after(&operation.to_string());
    }
}

/// Calls `then`, and `observe` after each operation meanwhile.
pub(crate) fn observed<T>(observe: impl Fn(&str) + 'static, then: impl FnOnce() -> T) -> T {
    AFTER.with(|after| *after.borrow_mut() = Some(Rc::new(observe)));
    let value = then();
    AFTER.with(|after| *after.borrow_mut() = None);
    value
}

/// Executes operations one by one.
fn one_by_one<O: ToString, E>(
    operations: &[O],
    mut execute: impl FnMut(&[O]) -> Vec<Result<(), E>>,
) -> Vec<Result<(), E>> {
    let each = operations.iter().map(|operation| {
        let outcome = execute(std::slice::from_ref(operation)).remove(0);
        after(operation);
        outcome
    });
    each.collect()
}

/// Clones share the fake.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    pub(crate) fn fake(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

impl Iptables for Shared<kernlink_iptables_restore::Fake> {
    fn execute(
        &mut self,
        operations: &[kernlink_iptables_restore::Operation],
    ) -> Vec<Result<(), kernlink_iptables_restore::Error>> {
        let is_observed = AFTER.with(|after| after.borrow().is_some());
        if !is_observed {
            return self.fake().execute(operations);
        }
        // Each table of an input is committed by itself.
        let outcomes = operations.iter().map(|operation| {
            let parts = by_table(operation);
            let parts = one_by_one(&parts, |part| self.fake().execute(part));
            parts.into_iter().collect()
        });
        outcomes.collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, kernlink_iptables_restore::Error> {
        self.fake().save(request)
    }
}

impl DummyLinks for Shared<kernlink_dummylink::Fake> {
    fn execute(
        &mut self,
        operations: &[kernlink_dummylink::Operation],
    ) -> Vec<Result<(), kernlink_dummylink::Error>> {
        one_by_one(operations, |operation| self.fake().execute(operation))
    }

    fn links(&mut self) -> Result<Vec<Link>, kernlink_dummylink::Error> {
        self.fake().links()
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, kernlink_dummylink::Error> {
        self.fake().list(selection)
    }
}

impl Conntrack for Shared<kernlink_conntrack::Fake> {
    fn execute(
        &mut self,
        operations: &[kernlink_conntrack::Operation],
    ) -> Vec<Result<(), kernlink_conntrack::Error>> {
        one_by_one(operations, |operation| self.fake().execute(operation))
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, kernlink_conntrack::Error> {
        let listed: Vec<Result<Flow, kernlink_conntrack::Error>> = self.fake().flows(filter)?.collect();
        Ok(Flows::new(listed.into_iter()))
    }
}

impl IpSets for Shared<kernlink_ipset::Fake> {
    fn execute(
        &mut self,
        operations: &[kernlink_ipset::Operation],
    ) -> Vec<Result<(), kernlink_ipset::Error>> {
        one_by_one(operations, |operation| self.fake().execute(operation))
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, kernlink_ipset::Error> {
        self.fake().list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, kernlink_ipset::Error> {
        self.fake().headers()
    }
}

impl Sysctls for Shared<FakeSysctls> {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        self.fake().execute(sysctls)
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.fake().read(name)
    }
}

/// The fake of IPVS, whose operations are observed.
struct Observed(SharedIpvs);

impl Ipvs for Observed {
    fn execute(&mut self, operations: &[kernlink_ipvs::Operation]) -> Vec<Result<(), kernlink_ipvs::Error>> {
        one_by_one(operations, |operation| self.0.execute(operation))
    }

    fn list_virtual_servers(
        &mut self,
    ) -> Result<Vec<kernlink_ipvs::VirtualServerStatus>, kernlink_ipvs::Error> {
        self.0.list_virtual_servers()
    }

    fn list_real_servers(
        &mut self,
        key: &kernlink_ipvs::VirtualServerKey,
    ) -> Result<Vec<kernlink_ipvs::RealServerStatus>, kernlink_ipvs::Error> {
        self.0.list_real_servers(key)
    }

    fn snapshot(&mut self) -> Result<kernlink_ipvs::Snapshot, kernlink_ipvs::Error> {
        self.0.snapshot()
    }

    fn is_scheduler_refused(&mut self, scheduler: kernlink_ipvs::Scheduler) -> bool {
        self.0.is_scheduler_refused(scheduler)
    }

    fn permit_loading(&mut self, schedulers: &[kernlink_ipvs::Scheduler]) {
        self.0.permit_loading(schedulers);
    }

    fn timeouts(&mut self) -> Result<kernlink_ipvs::Timeouts, kernlink_ipvs::Error> {
        self.0.timeouts()
    }
}

/// A kernel with a link `eth0` and some foreign rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedKernel {
    pub(crate) sysctls: Shared<FakeSysctls>,
    pub(crate) sets: Shared<kernlink_ipset::Fake>,
    pub(crate) rules: Shared<kernlink_iptables_restore::Fake>,
    pub(crate) links: Shared<kernlink_dummylink::Fake>,
    pub(crate) conntrack: Shared<kernlink_conntrack::Fake>,
    pub(crate) ipvs: SharedIpvs,
}

/// Rules of another program.
const FOREIGN: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:FOREIGN - [0:0]
-A INPUT -j FOREIGN
-A FOREIGN -p sctp -m sctp --dport 9 -j DROP
COMMIT
";

impl SharedKernel {
    pub(crate) fn new() -> Self {
        let kernel = Self::default();
        let eth0 = LinkName::new("eth0").unwrap();
        let addresses =
            ["192.0.2.1", "2001:db8::1"].map(|text| LinkAddress::host(text.parse().unwrap()).unwrap());
        kernel.links.fake().set_link(eth0, None, &addresses);
        for family in Family::ALL {
            kernel.rules.fake().set_ruleset(family, FOREIGN.parse().unwrap());
        }
        kernel
    }

    /// The kernel APIs of IPVS mode.
    pub(crate) fn ipvs(&self) -> ipvs_mode::Kernel {
        let mut ipvs = ipvs_mode::Kernel::fake();
        ipvs.ipvs = Box::new(Observed(self.ipvs.clone()));
        ipvs.sets = Box::new(self.sets.clone());
        ipvs.rules = Box::new(self.rules.clone());
        ipvs.links = Box::new(self.links.clone());
        ipvs.conntrack = Box::new(self.conntrack.clone());
        ipvs.sysctls = Box::new(self.sysctls.clone());
        ipvs
    }

    /// The kernel APIs of iptables mode. Accounting objects are new: a second call is another host in this respect.
    pub(crate) fn iptables(&self) -> iptables_mode::Kernel {
        let mut iptables = iptables_mode::Kernel::fake();
        iptables.rules = Box::new(self.rules.clone());
        iptables.links = Box::new(self.links.clone());
        iptables.sysctls = Box::new(self.sysctls.clone());
        iptables
    }

    /// The kernel APIs of both modes.
    pub(crate) fn apis(&self) -> Kernel {
        let (of_ipvs, of_iptables) = (self.clone(), self.clone());
        Kernel {
            ipvs: Arc::new(move || of_ipvs.ipvs()),
            iptables: Arc::new(move || of_iptables.iptables()),
        }
    }

    /// Whether the link of IPVS mode exists.
    pub(crate) fn has_ipvs_link(&self) -> bool {
        let link = LinkName::new("kube-ipvs0").unwrap();
        self.links.clone().exists(&link).unwrap()
    }
}

/// The kernel APIs of both modes on one kernel.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) ipvs: Arc<dyn Fn() -> ipvs_mode::Kernel + Send + Sync>,
    pub(crate) iptables: Arc<dyn Fn() -> iptables_mode::Kernel + Send + Sync>,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

impl Kernel {
    /// Changes the APIs of IPVS mode, also those of a process that retires it.
    pub(crate) fn with_ipvs(mut self, ipvs: impl Fn() -> ipvs_mode::Kernel + Send + Sync + 'static) -> Self {
        self.ipvs = Arc::new(ipvs);
        self
    }

    /// Changes the APIs of iptables mode, also those of a process that retires it.
    pub(crate) fn with_iptables(
        mut self,
        iptables: impl Fn() -> iptables_mode::Kernel + Send + Sync + 'static,
    ) -> Self {
        self.iptables = Arc::new(iptables);
        self
    }

    /// The mode on a node that it does not serve.
    fn retiring(&self, config: &Config) -> Box<dyn Retire> {
        match config.mode() {
            Mode::Ipvs => Box::new(iptables_mode::retire::Retiring::new((self.iptables)().rules)),
            _ => {
                let kernel = (self.ipvs)();
                let retiring =
                    ipvs_mode::retire::Retiring::new(config.retiring_ipvs(), (self.iptables)().links);
                Box::new(retiring.unwrap().with_kernel(kernel))
            }
        }
    }
}

/// A proxier of either mode, with the other one as retiring mode.
#[derive(Debug)]
pub(crate) struct Proxier {
    process: Box<dyn AnyProxier>,
    kernel: Kernel,
    changes: Vec<Change>,
}

impl Proxier {
    pub(crate) fn new(config: &Config, kernel: Kernel) -> Self {
        let process = Self::process(config, &kernel);
        Self {
            process,
            kernel,
            changes: Vec::new(),
        }
    }

    fn process(config: &Config, kernel: &Kernel) -> Box<dyn AnyProxier> {
        let retiring = vec![kernel.retiring(config)];
        match config {
            Config::Ipvs(config) => any_proxier::proxier::<IpvsMode>(config, (kernel.ipvs)(), retiring),
            Config::Iptables(iptables) => {
                any_proxier::proxier::<IptablesMode>(&iptables.config, (kernel.iptables)(), retiring)
            }
            Config::Nftables(_) | Config::Userspace(_) => {
                unreachable!("these tests are about the other modes")
            }
        }
    }

    /// Ends the process, and starts one with this configuration and the same objects.
    pub(crate) fn restart(&mut self, config: &Config) {
        self.process = Self::process(config, &self.kernel);
        for change in self.changes.clone() {
            self.process.change(change);
        }
    }

    pub(crate) fn change(&mut self, _source: SourceId, change: Change) {
        self.changes.push(change.clone());
        self.process.change(change);
    }

    /// As that of a proxier of one mode.
    pub(crate) fn sync(&mut self, now: Instant) -> Result<Did, Infallible> {
        Ok(self.process.sync(now))
    }

    pub(crate) fn resync(&mut self) {
        self.process.resync();
    }

    /// The APIs of IPVS mode, to read the kernel.
    pub(crate) fn ipvs(&self) -> ipvs_mode::Kernel {
        (self.kernel.ipvs)()
    }

    pub(crate) fn into_kernel(self) -> Kernel {
        self.kernel
    }
}
