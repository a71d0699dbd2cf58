//! Accounting objects: the kernel counts the packets of rules that name them (`nfacct`).

#[cfg(feature = "fake")]
use std::collections::BTreeMap;

use kernlink_netlink::{Connection, Errno, Error, Protocol, accounting};

use super::chains::{Counters, INVALID_DROPPED, LOOPBACK_ACCEPTED};

/// Access to the accounting objects of a network namespace.
pub trait Accounting: Send {
    /// Creates an object unless it exists.
    ///
    /// # Errors
    /// If the kernel refuses; [`is_unsupported`] if it does not have accounting objects.
    fn ensure(&mut self, name: &str) -> Result<(), Error>;

    /// The number of packets that an object has counted; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`ensure`](Self::ensure).
    fn packets(&mut self, name: &str) -> Result<Option<u64>, Error>;
}

/// The accounting objects of the kernel, in one network namespace.
#[derive(Debug)]
pub struct KernelAccounting {
    connection: Connection,
}

impl KernelAccounting {
    /// The objects of the calling thread's network namespace. They can be used from any thread.
    ///
    /// # Errors
    /// If a netlink socket cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            connection: Connection::open(Protocol::Netfilter)?,
        })
    }
}

impl Accounting for KernelAccounting {
    fn ensure(&mut self, name: &str) -> Result<(), Error> {
        match accounting::add(&mut self.connection, name) {
            Err(Error::Refused(refusal)) if refusal.errno == Errno::EEXIST => Ok(()),
            outcome => outcome,
        }
    }

    fn packets(&mut self, name: &str) -> Result<Option<u64>, Error> {
        match accounting::read(&mut self.connection, name) {
            Ok(object) => Ok(object.map(|object| object.packets)),
            Err(Error::Refused(refusal)) if refusal.errno == Errno::ENOENT => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Whether the kernel does not have accounting objects.
#[must_use]
pub fn is_unsupported(error: &Error) -> bool {
    matches!(error, Error::Refused(refusal) if matches!(refusal.errno, Errno::EINVAL | Errno::EOPNOTSUPP))
}

/// What a kernel has of the accounting objects.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// The objects that exist or can be created.
    pub(super) available: Counters,
    /// The names of those that exist.
    pub(super) existing: Vec<Box<str>>,
    /// The first error that is not about a kernel without such objects.
    pub(super) error: Option<Error>,
}

/// Reads which of the objects that rules name exist, or can be created. One that cannot be read exists if it `did_exist`: rules that name it
/// stay as they are.
pub(super) fn find(
    accounting: &mut dyn Accounting,
    serves_loopback: bool,
    did_exist: impl Fn(&str) -> bool,
) -> Found {
    let mut found = Found::default();
    let mut is_available = |name: &str| match accounting.packets(name) {
        Ok(packets) => {
            found.existing.extend(packets.map(|_| name.into()));
            true
        }
        Err(error) => {
            if is_unsupported(&error) {
                return false;
            }
            found.error.get_or_insert(error);
            let exists = did_exist(name);
            found.existing.extend(exists.then(|| name.into()));
            exists
        }
    };
    let available = Counters {
        invalid_dropped: is_available(INVALID_DROPPED),
        loopback_accepted: serves_loopback && is_available(LOOPBACK_ACCEPTED),
    };
    found.available = available;
    found
}

/// The fake of [`Accounting`].
#[cfg(feature = "fake")]
#[derive(Clone, Debug, Default)]
pub struct FakeAccounting {
    /// The packets that each object has counted.
    pub objects: BTreeMap<Box<str>, u64>,
}

#[cfg(feature = "fake")]
impl Accounting for FakeAccounting {
    fn ensure(&mut self, name: &str) -> Result<(), Error> {
        self.objects.entry(name.into()).or_default();
        Ok(())
    }

    fn packets(&mut self, name: &str) -> Result<Option<u64>, Error> {
        Ok(self.objects.get(name).copied())
    }
}

#[cfg(feature = "metrics")]
pub use self::collector::AccountingCollector;

#[cfg(feature = "metrics")]
mod collector {
    use std::collections::HashMap;
    use std::fmt;
    use std::sync::{Mutex, PoisonError};

    use kernlink_engine::metrics::Families;
    use prometheus::core::{Collector, Desc};
    use prometheus::proto::MetricFamily;

    use super::{Accounting, INVALID_DROPPED, LOOPBACK_ACCEPTED};

    /// The metrics and the objects that they show.
    const METRICS: [(&str, &str, &str); 2] = [
        (
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "[ALPHA] packets dropped by iptables to work around conntrack problems",
            INVALID_DROPPED,
        ),
        (
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "[ALPHA] Number of packets accepted on nodeports of loopback interface",
            LOOPBACK_ACCEPTED,
        ),
    ];

    /// kube-proxy's metrics of the accounting objects, read from the kernel at each scrape. Register it in
    /// [`Metrics::registry`](kernlink_engine::metrics::Metrics::registry). An object that does not exist, or cannot be read, has no sample.
    pub struct AccountingCollector {
        accounting: Mutex<Box<dyn Accounting>>,
        descriptions: Vec<Desc>,
    }

    impl AccountingCollector {
        /// The metrics of these objects.
        ///
        /// # Errors
        /// None in practice: the names are valid and different.
        pub fn new(accounting: Box<dyn Accounting>) -> Result<Self, prometheus::Error> {
            let descriptions = METRICS.iter().map(|(name, help, _)| {
                Desc::new((*name).to_owned(), (*help).to_owned(), Vec::new(), HashMap::new())
            });
            Ok(Self {
                accounting: Mutex::new(accounting),
                descriptions: descriptions.collect::<Result<_, _>>()?,
            })
        }
    }

    impl fmt::Debug for AccountingCollector {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("AccountingCollector").finish_non_exhaustive()
        }
    }

    impl Collector for AccountingCollector {
        fn desc(&self) -> Vec<&Desc> {
            self.descriptions.iter().collect()
        }

        fn collect(&self) -> Vec<MetricFamily> {
            let mut accounting = self.accounting.lock().unwrap_or_else(PoisonError::into_inner);
            let mut page = Families::default();
            for (name, help, object) in METRICS {
                let packets = accounting.packets(object).ok().flatten();
                page.counter(name, help, packets.map(|packets| (&[][..], packets)));
            }
            page.into_families()
        }
    }
}
