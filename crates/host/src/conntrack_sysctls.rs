//! The limits and timeouts of connection tracking as objects of a data path.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_base::ErrorChain;
use kernlink_engine::Subject;
use kernlink_engine::table::Table;
use kernlink_engine::unreadable::SYSCTL_UNREADABLE;
use kernlink_services::Event;

use crate::conntrack::{CONNTRACK_BUCKETS, Conntrack};
use crate::processors::processors;
use crate::sysctls::{Sysctl, SysctlError, Sysctls};

/// The sysctls that a [`Conntrack`] wants, and those that the kernel has, each by its name.
#[derive(Clone, Debug, Default)]
pub struct ConntrackSysctls(Table<Box<str>, Box<str>>);

impl ConntrackSysctls {
    /// Reads all sysctls that the configuration wants. Those that cannot be read are written, except for the size of the connection table where
    /// the process lacks the permission to read it: it is not changed. Returns an event for each that cannot be read.
    pub fn observe_all(&mut self, config: &Conntrack, kernel: &mut dyn Sysctls) -> Vec<Event> {
        self.configure(config, processors());
        let names: BTreeSet<Box<str>> = self.0.iter_desired().map(|(name, _)| name.clone()).collect();
        let mut events = Vec::new();
        let mut values = Vec::new();
        for name in names {
            match kernel.read(&name) {
                Ok(value) => values.extend(value.map(|value| (name, value.into()))),
                Err(error) => {
                    events.push(unreadable(&error));
                    if *name == *CONNTRACK_BUCKETS
                        && error.is_permission_denied()
                        && let Some(value) = self.0.desired(&name).cloned()
                    {
                        values.push((name, value));
                    }
                }
            }
        }
        self.0.observe_all(values);
        events
    }

    /// Reads one sysctl again. Returns an event if it cannot be read.
    pub fn observe(&mut self, name: &str, kernel: &mut dyn Sysctls) -> Option<Event> {
        let (value, event) = match kernel.read(name) {
            Ok(value) => (value, None),
            Err(error) => (None, Some(unreadable(&error))),
        };
        self.0.observe(name.into(), value.map(Into::into));
        event
    }

    /// Sets what is desired, which depends on the number of processors too.
    fn configure(&mut self, config: &Conntrack, processors: u32) {
        let sysctls = config.sysctls(processors).into_iter();
        let mut desired: BTreeMap<Box<str>, Box<str>> =
            sysctls.map(|sysctl| (sysctl.name, sysctl.value)).collect();
        if let Some(buckets) = config.buckets(processors) {
            desired.insert(CONNTRACK_BUCKETS.into(), buckets.to_string().into());
        }
        let names = self.0.iter_desired().map(|(name, _)| name.clone());
        let withdrawn: Vec<Box<str>> = names.filter(|name| !desired.contains_key(name)).collect();
        for name in withdrawn {
            self.0.remove(&name, &Subject::Node);
        }
        for (name, value) in desired {
            self.0.set(name, Some(value), Subject::Node);
        }
    }

    /// The sysctls to be written: those that are dirty and differ.
    pub fn differences(&self) -> impl Iterator<Item = Sysctl> {
        self.0.differences().into_iter().filter_map(|difference| {
            let (value, name) = (difference.desired?, difference.key);
            let is_enough = |observed: &Box<str>| is_enough(name, value, observed);
            let differs = !difference.observed.is_some_and(is_enough);
            differs.then(|| Sysctl::new(name.clone(), value.clone()))
        })
    }

    /// Records that a sysctl was written.
    pub fn record(&mut self, sysctl: &Sysctl) {
        self.0.observe(sysctl.name.clone(), Some(sysctl.value.clone()));
    }

    /// Whether the last reading of all found another value than was recorded.
    #[must_use]
    pub fn is_changed(&self, name: &str) -> bool {
        self.0.is_changed(&name.into())
    }

    /// Makes a sysctl dirty.
    pub fn set_dirty(&mut self, name: &str) {
        self.0.set_dirty(name.into());
    }

    /// Whether a sysctl is dirty.
    #[must_use]
    pub fn is_dirty(&self, name: &str) -> bool {
        self.0.is_dirty(&name.into())
    }

    /// Makes no sysctl dirty.
    pub fn clear_dirty(&mut self) {
        self.0.clear_dirty();
    }
}

fn unreadable(error: &SysctlError) -> Event {
    Event::host(SYSCTL_UNREADABLE, ErrorChain(error).to_string())
}

/// Whether a sysctl need not be changed: the size of the connection table is never reduced.
fn is_enough(name: &str, value: &str, observed: &str) -> bool {
    if name != CONNTRACK_BUCKETS {
        return value == observed;
    }
    match (value.parse::<u64>(), observed.parse::<u64>()) {
        (Ok(value), Ok(observed)) => observed >= value,
        _ => value == observed,
    }
}
