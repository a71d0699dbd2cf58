//! Fakes of kernel APIs that the proxiers of two modes and a test share, as they share the kernel.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::sync::{Arc, Mutex, MutexGuard};

use kernlink_agent::all_modes::Kernel;
use kernlink_conntrack::{Conntrack, Filter, Flow, Flows};
use kernlink_dummylink::{DummyLinks, HostAddress, Link, LinkAddress, LinkName, Selection};
use kernlink_iptables_restore::{Family, Iptables, Ruleset, Save};
use kernlink_proxier::{iptables_mode, ipvs_mode};

use crate::shared_ipvs::SharedIpvs;

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
        self.fake().execute(operations)
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
        self.fake().execute(operations)
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
        self.fake().execute(operations)
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, kernlink_conntrack::Error> {
        let listed: Vec<Result<Flow, kernlink_conntrack::Error>> = self.fake().flows(filter)?.collect();
        Ok(Flows::new(listed.into_iter()))
    }
}

/// A kernel with a link `eth0` and some foreign rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedKernel {
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

    /// The kernel APIs of both modes. Sets and sysctls are new: a second call is another host in this respect.
    pub(crate) fn apis(&self) -> Kernel {
        let mut ipvs = ipvs_mode::Kernel::fake();
        ipvs.ipvs = Box::new(self.ipvs.clone());
        ipvs.rules = Box::new(self.rules.clone());
        ipvs.links = Box::new(self.links.clone());
        ipvs.conntrack = Box::new(self.conntrack.clone());
        let mut iptables = iptables_mode::Kernel::fake();
        iptables.rules = Box::new(self.rules.clone());
        iptables.links = Box::new(self.links.clone());
        Kernel::new().with_ipvs(ipvs).with_iptables(iptables)
    }

    /// Whether the link of IPVS mode exists.
    pub(crate) fn has_ipvs_link(&self) -> bool {
        let link = LinkName::new("kube-ipvs0").unwrap();
        self.links.clone().exists(&link).unwrap()
    }
}
