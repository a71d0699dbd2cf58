//! Fakes that the processes of a node share as they share the kernel. A process may end after an operation, and operations may be refused.

#[path = "../../../tests/support/by_table.rs"]
mod by_table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use kernlink_proxier::host::{FakeSysctls, Sysctl, SysctlError, Sysctls};
use kernlink_proxier::ipvs_mode::dummylink::{
    DummyLinks, Error as LinkError, Fake as FakeLinks, HostAddress, Link, LinkName,
    Operation as LinkOperation, Selection,
};
use kernlink_proxier::ipvs_mode::ipset::{
    Error as SetError, Fake as FakeSets, IpSets, Operation as SetOperation, SetContents, SetHeader, SetName,
};
use kernlink_proxier::ipvs_mode::iptables_restore::{
    Edit, Error as RulesError, Fake as FakeRules, Iptables, Operation as RulesOperation,
    Refused as RefusedPart, RefusedKind, Ruleset, Save,
};
use kernlink_proxier::ipvs_mode::ipvs::{
    Error as IpvsError, Fake as FakeIpvs, Ipvs, Operation as IpvsOperation, RealServerStatus, Timeouts,
    VirtualServerKey, VirtualServerStatus,
};
use kernlink_proxier::nftables_mode::nftables::{
    self, Error as NftError, Fake as FakeNftables, Nftables, Operation as NftOperation,
};

use self::by_table::by_table;

/// The sysctls of a node.
#[derive(Clone, Copy, Default)]
pub(super) struct NodeSysctls {
    pub(super) are_read_only: bool,
}

impl NodeSysctls {
    pub(super) fn make(self) -> Box<dyn Sysctls> {
        if self.are_read_only {
            Box::new(ReadOnlySysctls(FakeSysctls::default()))
        } else {
            Box::new(FakeSysctls::default())
        }
    }
}

/// `/proc/sys` that cannot be written, except what IPVS mode cannot serve without.
pub(super) struct ReadOnlySysctls(FakeSysctls);

impl Sysctls for ReadOnlySysctls {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        let error = std::io::Error::from(std::io::ErrorKind::ReadOnlyFilesystem);
        let outcomes = sysctls.iter().map(|sysctl| match &*sysctl.name {
            "net.ipv4.ip_forward" | "net.ipv4.vs.conntrack" => {
                self.0.execute(std::slice::from_ref(sysctl)).remove(0)
            }
            name => Err(SysctlError::new("write", name, &error)),
        });
        outcomes.collect()
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.0.read(name)
    }
}

/// A fake that all processes of a node share.
pub(super) struct Shared<T> {
    pub(super) fake: Arc<Mutex<T>>,
    pub(super) process: RunningProcess,
}

/// The number of operations after which the process of a node ends: it changes nothing any more. `None`: it does not end.
#[derive(Clone, Default)]
pub(super) struct RunningProcess(
    pub(super) Arc<Mutex<Option<usize>>>,
    pub(super) Refused,
    pub(super) UnreadableSets,
    pub(super) UnreadableLink,
);

/// Whether it cannot be asked if a link exists, which a retiring IPVS mode does first.
pub(super) type UnreadableLink = Arc<AtomicBool>;

/// Whether no set can be listed.
pub(super) type UnreadableSets = Arc<AtomicBool>;

/// The kernel refuses operations whose command has this text.
pub(super) type Refused = Arc<Mutex<Option<String>>>;

impl RunningProcess {
    /// Whether the process still executes an operation, and the kernel accepts it.
    pub(super) fn executes(&self, operation: &impl ToString) -> bool {
        let refused = self.1.lock().unwrap();
        let is_refused = |refused: &String| operation.to_string().contains(refused);
        if refused.as_ref().is_some_and(is_refused) {
            return false;
        }
        match &mut *self.0.lock().unwrap() {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

pub(super) const ENDED: &str = "the process has ended";

const UNREADABLE: &str = "the sets cannot be read";

impl RunningProcess {
    /// The error of the tool: the edit that is refused, or that the process has ended.
    fn refusal(&self, part: &RulesOperation) -> RulesError {
        let refused = self.1.lock().unwrap();
        if let (RulesOperation::Restore(restore), Some(refused)) = (part, &*refused) {
            for (table, edits) in restore.tables() {
                let is_refused = |edit: &&Edit| edit.to_string().contains(refused);
                if let Some(edit) = edits.iter().find(is_refused).cloned() {
                    return RulesError::Refused {
                        tool: "iptables-restore".into(),
                        refused: Box::new(RefusedPart::Edit { table, edit }),
                        kind: RefusedKind::Other,
                        text: "refused".into(),
                        status: Some(1),
                        applied: Vec::new(),
                    };
                }
            }
        }
        RulesError::custom("write", ENDED)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            fake: Arc::clone(&self.fake),
            process: self.process.clone(),
        }
    }
}

impl<T: Default> Shared<T> {
    pub(super) fn of(process: &RunningProcess) -> Self {
        Self {
            fake: Arc::default(),
            process: process.clone(),
        }
    }

    /// Executes operations one by one.
    fn one_by_one<O: ToString, E>(
        &self,
        operations: &[O],
        execute: impl Fn(&mut T, &O) -> Result<(), E>,
        ended: impl Fn(&O) -> E,
    ) -> Vec<Result<(), E>> {
        let outcomes = operations.iter().map(|operation| {
            if self.process.executes(operation) {
                execute(&mut self.fake.lock().unwrap(), operation)
            } else {
                Err(ended(operation))
            }
        });
        outcomes.collect()
    }
}

impl Iptables for Shared<FakeRules> {
    /// Each table of an input is an operation.
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        let outcomes = operations.iter().map(|operation| {
            let parts = by_table(operation);
            let execute = |fake: &mut FakeRules, part: &RulesOperation| {
                fake.execute(std::slice::from_ref(part)).remove(0)
            };
            let ended = |part: &RulesOperation| self.process.refusal(part);
            self.one_by_one(&parts, execute, ended).into_iter().collect()
        });
        outcomes.collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        self.fake.lock().unwrap().save(request)
    }
}

impl DummyLinks for Shared<FakeLinks> {
    fn execute(&mut self, operations: &[LinkOperation]) -> Vec<Result<(), LinkError>> {
        self.one_by_one(
            operations,
            |fake, operation| fake.execute(std::slice::from_ref(operation)).remove(0),
            |operation| LinkError::custom(operation, ENDED),
        )
    }

    fn links(&mut self) -> Result<Vec<Link>, LinkError> {
        self.fake.lock().unwrap().links()
    }

    fn exists(&mut self, name: &LinkName) -> Result<bool, LinkError> {
        if self.process.3.load(Ordering::Relaxed) {
            return Err(LinkError::custom(format!("link show {name}"), "not now"));
        }
        self.fake.lock().unwrap().exists(name)
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, LinkError> {
        self.fake.lock().unwrap().list(selection)
    }
}

impl IpSets for Shared<FakeSets> {
    fn execute(&mut self, operations: &[SetOperation]) -> Vec<Result<(), SetError>> {
        self.one_by_one(
            operations,
            |fake, operation| fake.execute(std::slice::from_ref(operation)).remove(0),
            |operation| SetError::custom(operation.clone(), ENDED),
        )
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, SetError> {
        if self.process.2.load(Ordering::Relaxed) {
            return Err(SetError::custom(format!("list {name}"), UNREADABLE));
        }
        self.fake.lock().unwrap().list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, SetError> {
        if self.process.2.load(Ordering::Relaxed) {
            return Err(SetError::custom("list sets", UNREADABLE));
        }
        self.fake.lock().unwrap().headers()
    }
}

impl Ipvs for Shared<FakeIpvs> {
    fn execute(&mut self, operations: &[IpvsOperation]) -> Vec<Result<(), IpvsError>> {
        self.one_by_one(
            operations,
            |fake, operation| fake.execute(std::slice::from_ref(operation)).remove(0),
            |operation| IpvsError::custom(operation.to_string(), ENDED),
        )
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, IpvsError> {
        self.fake.lock().unwrap().list_virtual_servers()
    }

    fn list_real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<RealServerStatus>, IpvsError> {
        self.fake.lock().unwrap().list_real_servers(key)
    }

    fn timeouts(&mut self) -> Result<Timeouts, IpvsError> {
        self.fake.lock().unwrap().timeouts()
    }
}

impl Nftables for Shared<FakeNftables> {
    /// A transaction is an operation.
    fn execute_at(
        &mut self,
        generation: Option<u32>,
        transaction: &[NftOperation],
    ) -> Vec<Result<(), NftError>> {
        let text: Vec<String> = transaction.iter().map(ToString::to_string).collect();
        if self.process.executes(&text.join("\n")) {
            return self.fake.lock().unwrap().execute_at(generation, transaction);
        }
        vec![Err(NftError::custom("execute", ENDED)); transaction.len()]
    }

    fn generation(&mut self) -> Result<u32, NftError> {
        self.fake.lock().unwrap().generation()
    }

    fn tables(&mut self, family: Option<nftables::TableFamily>) -> Result<Vec<nftables::Table>, NftError> {
        self.fake.lock().unwrap().tables(family)
    }

    fn chains(&mut self, table: &nftables::TableKey) -> Result<Vec<nftables::Chain>, NftError> {
        self.fake.lock().unwrap().chains(table)
    }

    fn rules(
        &mut self,
        table: &nftables::TableKey,
        chain: Option<&str>,
    ) -> Result<Vec<nftables::Rule>, NftError> {
        self.fake.lock().unwrap().rules(table, chain)
    }

    fn sets(&mut self, table: &nftables::TableKey) -> Result<Vec<nftables::Set>, NftError> {
        self.fake.lock().unwrap().sets(table)
    }

    fn elements<'a>(&'a mut self, set: &nftables::SetKey) -> Result<nftables::ElementIter<'a>, NftError> {
        let fake = self.fake.lock().unwrap();
        let mut fake = fake.clone();
        let elements: Result<Vec<nftables::Element>, NftError> = fake.elements(set)?.collect();
        Ok(Box::new(elements?.into_iter().map(Ok)))
    }

    fn find_elements(
        &mut self,
        elements: &nftables::Elements,
    ) -> Result<Vec<Option<nftables::Element>>, NftError> {
        self.fake.lock().unwrap().find_elements(elements)
    }

    fn objects(&mut self, table: &nftables::TableKey) -> Result<Vec<nftables::Object>, NftError> {
        self.fake.lock().unwrap().objects(table)
    }

    fn flowtables(&mut self, table: &nftables::TableKey) -> Result<Vec<nftables::Flowtable>, NftError> {
        self.fake.lock().unwrap().flowtables(table)
    }
}
