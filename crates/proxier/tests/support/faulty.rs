//! Kernel APIs that refuse operations, or lose requests or replies.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::fmt::Display;
use std::slice;
use std::sync::{Arc, Mutex};

use kernlink_conntrack as conntrack;
use kernlink_dummylink as link;
use kernlink_ipset as set;
use kernlink_iptables_restore as rules;
use kernlink_ipvs as ipvs;
use kernlink_proxier::ipvs_mode::Kernel;

/// The faults of a kernel. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<Active>>);

#[derive(Debug, Default)]
struct Active {
    /// The faults of the commands that contain a text.
    commands: Vec<(String, Fault)>,
    /// How many of a hundred operations fail at random.
    percent: u64,
    /// How many of a hundred readings fail at random.
    reading_percent: u64,
    /// The state of the random numbers; never 0.
    seed: u64,
    /// The commands in the order of execution, also those that fail.
    executed: Vec<String>,
}

impl Active {
    fn random(&mut self) -> u64 {
        // xorshift64
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The operation is refused.
    Refused,
    /// The operation is not executed, and its outcome is unknown.
    RequestLost,
    /// The operation is executed, and its outcome is unknown.
    ReplyLost,
}

impl Faults {
    /// A kernel with faults in all operations but those of rules, and its faults: none at first.
    pub(crate) fn of_kernel(kernel: Kernel) -> (Kernel, Self) {
        let faults = Self::default();
        (faults.kernel(kernel), faults)
    }

    /// Refuses the commands that contain a text.
    pub(crate) fn refuse(&self, command: &str) {
        self.add(command, Fault::Refused);
    }

    /// Executes the commands that contain a text and loses the reply.
    pub(crate) fn lose_reply(&self, command: &str) {
        self.add(command, Fault::ReplyLost);
    }

    fn add(&self, command: &str, fault: Fault) {
        self.0.lock().unwrap().commands.push((command.to_owned(), fault));
    }

    /// Lets so many of a hundred operations fail at random, two thirds of them with an unknown outcome.
    pub(crate) fn fail_at_random(&self, percent: u64, seed: u64) {
        let mut active = self.0.lock().unwrap();
        (active.percent, active.seed) = (percent, seed);
    }

    /// Lets so many of a hundred readings fail at random, in addition.
    pub(crate) fn fail_readings_at_random(&self, percent: u64) {
        self.0.lock().unwrap().reading_percent = percent;
    }

    /// Whether a reading fails: at random, or because [`refuse`](Self::refuse) was called with a text that begins with `read `.
    fn fails_reading(&self, what: &str) -> bool {
        let mut active = self.0.lock().unwrap();
        let mut commands = active.commands.iter();
        if commands.any(|(text, _)| text.starts_with("read ") && what.contains(text)) {
            return true;
        }
        active.reading_percent > 0 && active.random() % 100 < active.reading_percent
    }

    /// The first lines of the commands since the last call, in the order of execution, also of those that failed.
    pub(crate) fn take_executed(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap().executed)
    }

    /// Ends the faults of the commands that contain a text.
    pub(crate) fn allow(&self, command: &str) {
        let mut active = self.0.lock().unwrap();
        active.commands.retain(|(text, _)| text != command);
    }

    /// Ends all faults.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap() = Active::default();
    }

    fn of(&self, command: &str) -> Option<Fault> {
        let mut active = self.0.lock().unwrap();
        let line = command.lines().next().unwrap_or_default().to_owned();
        active.executed.push(line);
        if let Some((_, fault)) = active.commands.iter().find(|(text, _)| command.contains(text)) {
            return Some(*fault);
        }
        if active.percent == 0 {
            return None;
        }
        let random = active.random() % 300;
        let fault = match random / 100 {
            0 => Fault::Refused,
            1 => Fault::RequestLost,
            _ => Fault::ReplyLost,
        };
        (random % 100 < active.percent).then_some(fault)
    }

    /// A kernel with these faults in all operations but those of rules.
    fn kernel(&self, kernel: Kernel) -> Kernel {
        let faults = || self.clone();
        Kernel {
            ipvs: Box::new(Faulty {
                inner: kernel.ipvs,
                faults: faults(),
            }),
            sets: Box::new(Faulty {
                inner: kernel.sets,
                faults: faults(),
            }),
            links: Box::new(Faulty {
                inner: kernel.links,
                faults: faults(),
            }),
            rules: kernel.rules,
            conntrack: Box::new(Faulty {
                inner: kernel.conntrack,
                faults: faults(),
            }),
            sysctls: kernel.sysctls,
        }
    }

    /// Tables with these faults.
    pub(crate) fn tables(&self, inner: Box<dyn rules::Iptables>) -> Box<dyn rules::Iptables> {
        Box::new(FaultyTables {
            tables: Faulty {
                inner,
                faults: self.clone(),
            },
            is_readable: true,
        })
    }

    /// Empty tables with these faults that cannot be read.
    pub(crate) fn unreadable_tables(&self) -> Box<dyn rules::Iptables> {
        Box::new(FaultyTables {
            tables: Faulty {
                inner: Box::new(rules::Fake::new()),
                faults: self.clone(),
            },
            is_readable: false,
        })
    }
}

struct Faulty<T> {
    inner: T,
    faults: Faults,
}

impl<T> Faulty<T> {
    /// Executes each operation separately, unless a fault prevents it.
    fn each<O: Display, E>(
        &mut self,
        operations: &[O],
        refused: impl Fn(&O) -> E,
        outcome_missing: impl Fn() -> E,
        execute: impl Fn(&mut T, &[O]) -> Vec<Result<(), E>>,
    ) -> Vec<Result<(), E>> {
        let each = |operation: &O| {
            let fault = self.faults.of(&operation.to_string());
            match fault {
                Some(Fault::Refused) => return Err(refused(operation)),
                Some(Fault::RequestLost) => return Err(outcome_missing()),
                Some(Fault::ReplyLost) | None => {}
            }
            let outcome = execute(&mut self.inner, slice::from_ref(operation))
                .pop()
                .unwrap();
            match fault {
                None => outcome,
                Some(_) => Err(outcome_missing()),
            }
        };
        operations.iter().map(each).collect()
    }
}

const REFUSED: &str = "refused by the test";

impl ipvs::Ipvs for Faulty<Box<dyn ipvs::Ipvs>> {
    fn execute(&mut self, operations: &[ipvs::Operation]) -> Vec<Result<(), ipvs::Error>> {
        self.each(
            operations,
            |operation| ipvs::Error::custom(operation.to_string(), REFUSED),
            || ipvs::Error::OutcomeMissing,
            |ipvs, one| ipvs.execute(one),
        )
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<ipvs::VirtualServerStatus>, ipvs::Error> {
        if self.faults.fails_reading("read virtual servers") {
            return Err(ipvs::Error::custom("list virtual servers", REFUSED));
        }
        self.inner.list_virtual_servers()
    }

    fn list_real_servers(
        &mut self,
        key: &ipvs::VirtualServerKey,
    ) -> Result<Vec<ipvs::RealServerStatus>, ipvs::Error> {
        self.inner.list_real_servers(key)
    }

    fn timeouts(&mut self) -> Result<ipvs::Timeouts, ipvs::Error> {
        self.inner.timeouts()
    }
}

impl set::IpSets for Faulty<Box<dyn set::IpSets>> {
    fn execute(&mut self, operations: &[set::Operation]) -> Vec<Result<(), set::Error>> {
        self.each(
            operations,
            |operation| set::Error::custom(operation.clone(), REFUSED),
            || set::Error::OutcomeMissing,
            |sets, one| sets.execute(one),
        )
    }

    fn list_set(&mut self, name: &set::SetName) -> Result<set::SetContents, set::Error> {
        if self.faults.fails_reading(&format!("read set {name}")) {
            return Err(set::Error::custom(format!("list {name}"), REFUSED));
        }
        self.inner.list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<set::SetHeader>, set::Error> {
        if self.faults.fails_reading("read sets") {
            return Err(set::Error::custom("list sets", REFUSED));
        }
        self.inner.headers()
    }
}

impl link::DummyLinks for Faulty<Box<dyn link::DummyLinks>> {
    fn execute(&mut self, operations: &[link::Operation]) -> Vec<Result<(), link::Error>> {
        self.each(
            operations,
            |operation| link::Error::custom(operation, REFUSED),
            || link::Error::OutcomeMissing,
            |links, one| links.execute(one),
        )
    }

    fn links(&mut self) -> Result<Vec<link::Link>, link::Error> {
        self.inner.links()
    }

    fn list(&mut self, selection: link::Selection) -> Result<Vec<link::HostAddress>, link::Error> {
        if self.faults.fails_reading("read addresses") {
            return Err(link::Error::custom("list addresses", REFUSED));
        }
        self.inner.list(selection)
    }
}

/// Listings fail, as the command `conntrack -L`, if they are refused or lost; deletions as the commands of single flows.
impl conntrack::Conntrack for Faulty<Box<dyn conntrack::Conntrack>> {
    fn execute(&mut self, operations: &[conntrack::Operation]) -> Vec<Result<(), conntrack::Error>> {
        self.each(
            operations,
            |operation| conntrack::Error::custom(operation.to_string(), REFUSED),
            || conntrack::Error::OutcomeMissing,
            |flows, one| flows.execute(one),
        )
    }

    fn flows<'a>(&'a mut self, filter: &conntrack::Filter) -> Result<conntrack::Flows<'a>, conntrack::Error> {
        match self.faults.of(&format!("conntrack -L {filter}")) {
            Some(_) => Err(conntrack::Error::custom("list flows", REFUSED)),
            None => self.inner.flows(filter),
        }
    }

    fn totals(&mut self) -> Result<conntrack::Totals, conntrack::Error> {
        self.inner.totals()
    }
}

struct FaultyTables {
    tables: Faulty<Box<dyn rules::Iptables>>,
    is_readable: bool,
}

impl rules::Iptables for FaultyTables {
    fn execute(&mut self, operations: &[rules::Operation]) -> Vec<Result<(), rules::Error>> {
        self.tables.each(
            operations,
            |operation| rules::Error::custom(operation.to_string(), REFUSED),
            || rules::Error::OutcomeMissing,
            |rules, one| rules.execute(one),
        )
    }

    fn save(&mut self, request: &rules::Save) -> Result<rules::Ruleset, rules::Error> {
        if self.is_readable && !self.tables.faults.fails_reading("read tables") {
            self.tables.inner.save(request)
        } else {
            Err(rules::Error::custom("read the tables", REFUSED))
        }
    }
}
