//! Schedulers and their flags, and persistence engines.

use std::fmt;
use std::str::FromStr;

use crate::name::{InvalidName, ShortName};
use crate::uapi;

/// The algorithm that selects a real server for a new connection.
///
/// Any name is possible: the scheduler `x` is the kernel module `ip_vs_x`, which the kernel loads for the first virtual server that
/// uses it. The kernel refuses a name without a module, see
/// [`Error::is_scheduler_unavailable`](crate::Error::is_scheduler_unavailable).
///
/// # Modules
/// The kernel loads the module of a scheduler while it holds the mutex of IPVS. The modules of [`LBLC`](Self::LBLC) and
/// [`LBLCR`](Self::LBLCR) wait meanwhile for the end of the deletion of network namespaces
/// ([`ip_vs_lblc_init`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_lblc.c)), which waits for this mutex
/// ([`ip_vs_dst_event`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c)). If the kernel loads one of the two
/// for a request while it deletes a network namespace, the request does not end before its process is killed, and until then no link,
/// address or route of the machine can be changed. A module that is loaded before does no harm: load the two at the start of the machine,
/// for example with a file in `/etc/modules-load.d`.
///
/// Therefore [`Client`](crate::Client) sends a virtual server with one of the two, or with a name that is not one of
/// [`KNOWN`](Self::KNOWN), only if the scheduler is loaded. If it is missing, the client first runs the program of the sysctl
/// `kernel.modprobe`, as the kernel does; the program needs `CAP_SYS_MODULE` (a process of root with this capability passes it on) and the
/// kernel's module directory. Otherwise the operation fails with
/// [`Error::is_scheduler_not_loaded`](crate::Error::is_scheduler_not_loaded).
/// [`Ipvs::permit_loading`](crate::Ipvs::permit_loading) permits that the kernel loads the module. A virtual server that exists has a
/// scheduler that is loaded. Requests that are made with [`Operation::encode`](crate::Operation::encode) are not checked.
///
/// ```
/// use kernlink_ipvs::Scheduler;
/// assert_eq!(Scheduler::new("rr").unwrap(), Scheduler::RR);
/// assert!(Scheduler::new("a-name-much-too-long").is_err());
/// ```
#[doc(alias = "IPVS_SVC_ATTR_SCHED_NAME")]
#[doc(alias = "--scheduler")]
#[doc(alias = "-s")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheduler(ShortName);

impl Scheduler {
    /// Round robin.
    pub const RR: Self = Self(ShortName::known("rr"));
    /// Weighted round robin.
    pub const WRR: Self = Self(ShortName::known("wrr"));
    /// Least connections.
    pub const LC: Self = Self(ShortName::known("lc"));
    /// Weighted least connections.
    pub const WLC: Self = Self(ShortName::known("wlc"));
    /// Locality-based least connections. See [Modules](Self#modules).
    pub const LBLC: Self = Self(ShortName::known("lblc"));
    /// Locality-based least connections with replication. See [Modules](Self#modules).
    pub const LBLCR: Self = Self(ShortName::known("lblcr"));
    /// Destination hashing.
    pub const DH: Self = Self(ShortName::known("dh"));
    /// Source hashing; uses [`SchedulerFlags::FALLBACK`] and [`SchedulerFlags::PORT`].
    pub const SH: Self = Self(ShortName::known("sh"));
    /// Maglev hashing; uses [`SchedulerFlags::FALLBACK`] and [`SchedulerFlags::PORT`].
    pub const MH: Self = Self(ShortName::known("mh"));
    /// Shortest expected delay.
    pub const SED: Self = Self(ShortName::known("sed"));
    /// Never queue.
    pub const NQ: Self = Self(ShortName::known("nq"));
    /// Weighted fail-over.
    pub const FO: Self = Self(ShortName::known("fo"));
    /// Weighted overflow.
    pub const OVF: Self = Self(ShortName::known("ovf"));
    /// Power of two random choices.
    pub const TWOS: Self = Self(ShortName::known("twos"));
    /// No scheduler: the virtual server accepts no connections.
    pub const NONE: Self = Self(ShortName::known("none"));

    /// The schedulers of the mainline kernel, in the order of their names, without [`NONE`](Self::NONE).
    pub const KNOWN: &[Self] = &[
        Self::DH,
        Self::FO,
        Self::LBLC,
        Self::LBLCR,
        Self::LC,
        Self::MH,
        Self::NQ,
        Self::OVF,
        Self::RR,
        Self::SED,
        Self::SH,
        Self::TWOS,
        Self::WLC,
        Self::WRR,
    ];

    /// A scheduler by name.
    ///
    /// # Errors
    /// The name is empty, is longer than 15 bytes, or contains white space or a control character.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        ShortName::new("scheduler", "IP_VS_SCHEDNAME_MAXLEN", name).map(Self)
    }

    /// The name in the kernel and for `ipvsadm -s`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// Its kernel module, for example `ip_vs_rr`; `None` for [`NONE`](Self::NONE).
    #[must_use]
    pub fn module(&self) -> Option<String> {
        (*self != Self::NONE).then(|| format!("ip_vs_{self}"))
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scheduler({:?})", self.0)
    }
}

impl FromStr for Scheduler {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

bitflags::bitflags! {
    /// Flags of a scheduler. Most virtual servers have none.
    ///
    /// The kernel stores them for every scheduler; only [`Scheduler::SH`] and [`Scheduler::MH`] use them.
    #[doc(alias = "--sched-flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct SchedulerFlags: u32 {
        /// The first flag. `sh` and `mh`: use another real server if the selected one is overloaded or draining.
        #[doc(alias = "IP_VS_SVC_F_SCHED1")]
        #[doc(alias = "IP_VS_SVC_F_SCHED_SH_FALLBACK")]
        #[doc(alias = "sh-fallback")]
        #[doc(alias = "mh-fallback")]
        const FALLBACK = uapi::IP_VS_SVC_F_SCHED1;
        /// The second flag. `sh` and `mh`: hash the client's port in addition to its address.
        #[doc(alias = "IP_VS_SVC_F_SCHED2")]
        #[doc(alias = "IP_VS_SVC_F_SCHED_SH_PORT")]
        #[doc(alias = "sh-port")]
        #[doc(alias = "mh-port")]
        const PORT = uapi::IP_VS_SVC_F_SCHED2;
        /// The third flag; no mainline scheduler uses it.
        #[doc(alias = "IP_VS_SVC_F_SCHED3")]
        const THIRD = uapi::IP_VS_SVC_F_SCHED3;
    }
}

/// A module that reads the persistence key from packets. The mainline kernel has `sip`, which directs one SIP call to one real
/// server. It requires a UDP virtual server with [`Persistence`](crate::Persistence).
#[doc(alias = "IPVS_SVC_ATTR_PE_NAME")]
#[doc(alias = "--pe")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersistenceEngine(ShortName);

impl PersistenceEngine {
    /// SIP calls by their Call-ID.
    pub const SIP: Self = Self(ShortName::known("sip"));

    /// A persistence engine by name.
    ///
    /// # Errors
    /// The name is empty, is longer than 15 bytes, or contains white space or a control character.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        ShortName::new("persistence engine", "IP_VS_PENAME_MAXLEN", name).map(Self)
    }

    /// The name in the kernel and for `ipvsadm --pe`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for PersistenceEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PersistenceEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PersistenceEngine({:?})", self.0)
    }
}

impl FromStr for PersistenceEngine {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}
