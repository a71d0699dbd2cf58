//! The sysctls below `net.ipv4.vs`, each with its type, range and first kernel.
//!
//! They belong to a network namespace. [`Client::sysctl`](crate::Client::sysctl) reads one,
//! [`Client::set_sysctl`](crate::Client::set_sysctl) writes one:
//!
//! ```no_run
//! use kernlink_ipvs::{Client, sysctl};
//!
//! let mut client = Client::open()?;
//! if !client.sysctl(&sysctl::CONNTRACK)? {
//!     client.set_sysctl(&sysctl::CONNTRACK, &true)?;
//! }
//! # Ok::<(), kernlink_ipvs::Error>(())
//! ```
//!
//! Source: [`vs_vars` in `ip_vs_ctl.c` at v6.1][vars] and [`ipvs-sysctl.rst`][doc]. Where the kernel accepts values that have no
//! meaning, the range is that of the values with a meaning.
//!
//! The first kernel is the release that contains the change. For example, `run_estimation` was merged in October 2021, for Linux
//! 5.16. Before Linux 4.4, the oldest kernel that this crate supports, the release may be inexact; `Linux 2.6` means 2.6.12 or
//! older, where the kernel's public history begins.
//!
//! [vars]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c
//! [doc]: https://github.com/torvalds/linux/blob/v6.1/Documentation/networking/ipvs-sysctl.rst

use std::marker::PhantomData;

use kernlink_netlink::Errno;

use crate::error::Error;

/// The directory of the sysctls of the calling thread's network namespace.
pub const DIRECTORY: &str = "/proc/sys/net/ipv4/vs";

/// A sysctl with values of type `T`.
#[derive(Debug)]
pub struct Sysctl<T> {
    description: Description,
    range: fn(&T) -> bool,
    value: PhantomData<fn() -> T>,
}

/// Everything about a sysctl except its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The file below [`DIRECTORY`].
    pub name: &'static str,
    /// The effect.
    pub meaning: &'static str,
    /// The valid values.
    pub range: &'static str,
    /// The first kernel release that has it, such as `Linux 5.16`.
    pub since: &'static str,
    /// What it requires in addition to this release: a module, or an option of the kernel's configuration.
    pub requires: Option<&'static str>,
}

impl<T: Value> Sysctl<T> {
    const fn new(
        name: &'static str,
        since: &'static str,
        range: &'static str,
        is_in_range: fn(&T) -> bool,
        meaning: &'static str,
    ) -> Self {
        Self {
            description: Description {
                name,
                meaning,
                range,
                since,
                requires: None,
            },
            range: is_in_range,
            value: PhantomData,
        }
    }

    const fn with_requirement(mut self, requirement: &'static str) -> Self {
        self.description.requires = Some(requirement);
        self
    }

    /// Name, meaning, range and first kernel.
    #[must_use]
    pub fn description(&self) -> Description {
        self.description
    }

    fn path(&self) -> String {
        format!("{DIRECTORY}/{}", self.description.name)
    }

    fn file_error(&self, attempt: &'static str, error: &std::io::Error) -> Error {
        match Errno::from_io(error) {
            Errno::ENOENT => Error::SysctlUnsupported {
                name: self.description.name,
                since: self.description.since,
                requires: self.description.requires,
            },
            errno => Error::File {
                attempt,
                path: self.path(),
                errno,
            },
        }
    }

    fn out_of_range(&self, value: String) -> Error {
        Error::SysctlOutOfRange {
            name: self.description.name,
            value,
            range: self.description.range.to_owned(),
        }
    }

    /// Reads it in the calling thread's network namespace.
    pub(crate) fn read(&self) -> Result<T, Error> {
        let text = std::fs::read_to_string(self.path()).map_err(|error| self.file_error("read", &error))?;
        T::parse(text.trim()).ok_or_else(|| self.out_of_range(text.trim().to_owned()))
    }

    /// Writes it in the calling thread's network namespace.
    pub(crate) fn write(&self, value: &T) -> Result<(), Error> {
        if !(self.range)(value) {
            return Err(self.out_of_range(value.print()));
        }
        std::fs::write(self.path(), value.print()).map_err(|error| self.file_error("write", &error))
    }
}

/// The type of a sysctl's value.
pub trait Value: Sized + Send + Sync + 'static {
    /// Parses the content of the file without surrounding white space. `None` if it is invalid.
    fn parse(text: &str) -> Option<Self>;
    /// The content to write to the file.
    fn print(&self) -> String;
}

impl Value for bool {
    /// Any number other than 0 is true, because the kernel accepts other numbers for most of its flags.
    fn parse(text: &str) -> Option<Self> {
        text.parse::<i64>().ok().map(|number| number != 0)
    }

    fn print(&self) -> String {
        u8::from(*self).to_string()
    }
}

impl Value for u32 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Value for i32 {
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn print(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn print(&self) -> String {
        self.clone()
    }
}

/// After how many packets of a connection the master daemon synchronizes it: the value of [`SYNC_THRESHOLD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncThreshold {
    /// Packets before the first message.
    pub threshold: u32,
    /// Packets between messages. 0: only the first message is sent. Otherwise greater than `threshold`.
    pub period: u32,
}

impl Value for SyncThreshold {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
        let (threshold, period) = (numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(Self { threshold, period })
    }

    fn print(&self) -> String {
        format!("{} {}", self.threshold, self.period)
    }
}

/// When a defense strategy against memory exhaustion is enabled: the value of [`DROP_ENTRY`], [`DROP_PACKET`] and [`SECURE_TCP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DefenseMode {
    /// Always disabled: 0.
    Disabled,
    /// Automatic, and disabled now: 1. The kernel sets [`AutomaticEnabled`](Self::AutomaticEnabled) when free memory falls below
    /// [`AMEMTHRESH`].
    Automatic,
    /// Automatic, and enabled now: 2. The kernel sets [`Automatic`](Self::Automatic) when enough memory is free again.
    AutomaticEnabled,
    /// Always enabled: 3.
    Enabled,
}

impl Value for DefenseMode {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "0" => Self::Disabled,
            "1" => Self::Automatic,
            "2" => Self::AutomaticEnabled,
            "3" => Self::Enabled,
            _ => return None,
        })
    }

    fn print(&self) -> String {
        let number = match self {
            Self::Disabled => 0,
            Self::Automatic => 1,
            Self::AutomaticEnabled => 2,
            Self::Enabled => 3,
        };
        number.to_string()
    }
}

macro_rules! sysctls {
    ($($constant:ident: $type:ty = $name:literal, $since:literal $(with $requirement:literal)?, $range:literal, $is_in_range:expr,
        $meaning:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning, ". Range: ", $range, ". Since ", $since $(, ", with ", $requirement)?, ".")]
            pub const $constant: Sysctl<$type> =
                Sysctl::new($name, $since, $range, $is_in_range, $meaning)$(.with_requirement($requirement))?;
        )*

        /// All sysctls, in the order of their names.
        pub const ALL: &[Description] = &[$($constant.description),*];
    };
}

sysctls! {
    AM_DROPRATE: u32 = "am_droprate", "Linux 2.6", "0 to 2147483647", is_int,
        "drop rate: with drop_packet in mode 3, one of this many packets is dropped; 0 is 1";
    AMEMTHRESH: u32 = "amemthresh", "Linux 2.6", "0 to 2147483647", is_int,
        "number of free memory pages below which the automatic defense strategies are enabled";
    BACKUP_ONLY: bool = "backup_only", "Linux 3.9", "0 or 1", |_| true,
        "while only the backup daemon runs, packets for virtual servers are not scheduled, which avoids loops between directors";
    CACHE_BYPASS: bool = "cache_bypass", "Linux 2.6", "0 or 1", |_| true,
        "packets for a virtual server by mark without an available real server are sent to their original destination";
    CONN_LFACTOR: i32 = "conn_lfactor", "Linux 7.1", "-8 to 8", |n| (-8..=8).contains(n),
        "load factor of the connection table: it grows above two to this power connections per bucket";
    CONN_MAX: u32 = "conn_max", "Linux 7.2", "0 to 1073741824, on 32-bit kernels to 16777216", |n| *n <= 1 << 30,
        "maximum number of connections in the network namespace";
    CONN_REUSE_MODE: u32 = "conn_reuse_mode", "Linux 4.1", "0 to 3", |n| *n <= 3,
        "what happens to a new connection from a client port that a connection already uses: 0 uses the existing connection, bit 0 schedules it anew where that is safe, bit 1 schedules it anew also if the existing connection is in FIN_WAIT";
    CONNTRACK: bool = "conntrack", "Linux 2.6.37" with "CONFIG_IP_VS_NFCT", "0 or 1", |_| true,
        "connections are also tracked by netfilter (conntrack), which iptables rules with MASQUERADE require";
    DEBUG_LEVEL: i32 = "debug_level", "Linux 2.6" with "CONFIG_IP_VS_DEBUG", "0 to 12", |n| (0..=12).contains(n),
        "level of debug messages in the kernel log; 0 is errors only. The value is global: since Linux 5.15 only the initial network namespace can write it";
    DROP_ENTRY: DefenseMode = "drop_entry", "Linux 2.6", "0 to 3", |_| true,
        "when random connections are dropped to free memory";
    DROP_PACKET: DefenseMode = "drop_packet", "Linux 2.6", "0 to 3", |_| true,
        "when packets are dropped at the rate of am_droprate before they are forwarded";
    EST_CPULIST: String = "est_cpulist", "Linux 6.2", "a list of CPUs such as 0-3,8, all, or empty", |_| true,
        "CPUs on which the estimators of the rates run; with an empty list none runs";
    EST_NICE: i32 = "est_nice", "Linux 6.2", "-20 to 19", |n| (-20..=19).contains(n),
        "nice value of the estimator threads";
    EXPIRE_NODEST_CONN: bool = "expire_nodest_conn", "Linux 2.6", "0 or 1", |_| true,
        "a connection to a deleted real server expires on its next packet";
    EXPIRE_QUIESCENT_TEMPLATE: bool = "expire_quiescent_template", "Linux 2.6", "0 or 1", |_| true,
        "persistence templates of a real server with weight 0 expire, so clients are scheduled to another one";
    IGNORE_TUNNELED: bool = "ignore_tunneled", "Linux 4.4", "0 or 1", |_| true,
        "packets from an IPIP tunnel are not scheduled, which avoids loops between directors";
    LBLC_EXPIRATION: u32 = "lblc_expiration", "Linux 2.6" with "the module ip_vs_lblc", "0 to 2147483 seconds", |n| *n <= SECONDS,
        "time after which the scheduler lblc removes an unused entry";
    LBLCR_EXPIRATION: u32 = "lblcr_expiration", "Linux 2.6" with "the module ip_vs_lblcr", "0 to 2147483 seconds", |n| *n <= SECONDS,
        "time after which the scheduler lblcr removes an unused entry";
    NAT_ICMP_SEND: bool = "nat_icmp_send", "Linux 2.6", "0 or 1", |_| true,
        "packets from a masqueraded real server without a connection are answered with an ICMP error";
    PMTU_DISC: bool = "pmtu_disc", "Linux 3.7", "0 or 1", |_| true,
        "path MTU discovery: packets that are too large for a tunnel are answered with an ICMP error and not fragmented";
    RUN_ESTIMATION: bool = "run_estimation", "Linux 5.16", "0 or 1", |_| true,
        "the estimators of the rates run";
    SCHEDULE_ICMP: bool = "schedule_icmp", "Linux 4.4", "0 or 1", |_| true,
        "ICMP errors without a connection are scheduled to a real server";
    SECURE_TCP: DefenseMode = "secure_tcp", "Linux 2.6", "0 to 3", |_| true,
        "when the stricter TCP state transition table is used";
    SLOPPY_SCTP: bool = "sloppy_sctp", "Linux 3.11", "0 or 1", |_| true,
        "any SCTP packet creates a connection, not only INIT";
    SLOPPY_TCP: bool = "sloppy_tcp", "Linux 3.11", "0 or 1", |_| true,
        "any TCP packet creates a connection, not only SYN";
    SNAT_REROUTE: bool = "snat_reroute", "Linux 2.6.37", "0 or 1", |_| true,
        "masqueraded packets from real servers are routed again with their new source address";
    SVC_LFACTOR: i32 = "svc_lfactor", "Linux 7.1", "-8 to 8", |n| (-8..=8).contains(n),
        "load factor of the table of virtual servers: it grows above two to this power virtual servers per bucket";
    SYNC_PERSIST_MODE: bool = "sync_persist_mode", "Linux 3.11", "0 or 1", |_| true,
        "only the templates of persistent virtual servers are synchronized";
    SYNC_PORTS: u32 = "sync_ports", "Linux 3.5", "a power of two from 1 to 64", |n| n.is_power_of_two() && *n <= 64,
        "number of threads and UDP ports of each synchronization daemon; read when a daemon starts";
    SYNC_QLEN_MAX: u64 = "sync_qlen_max", "Linux 3.5", "0 to 18446744073709551615", |_| true,
        "maximum number of queued synchronization messages; 0 is no limit";
    SYNC_REFRESH_PERIOD: u32 = "sync_refresh_period", "Linux 3.5", "0 to 2147483 seconds", |n| *n <= SECONDS,
        "a connection is synchronized again when its remaining time has changed by this; with 0 only sync_threshold decides";
    SYNC_RETRIES: u32 = "sync_retries", "Linux 3.5", "0 to 3", |n| *n <= 3,
        "number of repetitions of a message within sync_refresh_period";
    SYNC_SOCK_SIZE: u32 = "sync_sock_size", "Linux 3.5", "0 to 2147483647", is_int,
        "size of the daemons' socket buffers in bytes; 0 is the system's default";
    SYNC_THRESHOLD: SyncThreshold = "sync_threshold", "Linux 2.6",
        "two numbers up to 2147483647; the first is less than the second unless the second is 0",
        |n| is_int(&n.threshold) && is_int(&n.period) && (n.period == 0 || n.threshold < n.period),
        "number of packets of a connection before it is first synchronized, and between two synchronizations";
    SYNC_VERSION: u32 = "sync_version", "Linux 2.6.39", "0 or 1", |n| *n <= 1,
        "version of the synchronization protocol; 0 is for peers older than Linux 2.6.39";
}

/// The maximum of an `int` in jiffies, at 1000 jiffies per second.
const SECONDS: u32 = i32::MAX as u32 / 1000;

fn is_int(number: &u32) -> bool {
    i32::try_from(*number).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_values_can_be_parsed() {
        let threshold = SyncThreshold {
            threshold: 3,
            period: 50,
        };
        assert_eq!(SyncThreshold::parse("3\t50"), Some(threshold));
        assert_eq!(SyncThreshold::parse(&threshold.print()), Some(threshold));
        assert_eq!(SyncThreshold::parse("3"), None);
        for mode in [
            DefenseMode::Disabled,
            DefenseMode::Automatic,
            DefenseMode::AutomaticEnabled,
            DefenseMode::Enabled,
        ] {
            assert_eq!(DefenseMode::parse(&mode.print()), Some(mode));
        }
        assert_eq!(DefenseMode::parse("4"), None);
    }

    #[test]
    fn the_error_of_an_unsupported_sysctl_has_its_requirements() {
        let absent = std::io::Error::from_raw_os_error(2);
        let error = CONN_MAX.file_error("read", &absent);
        assert_eq!(
            error.to_string(),
            "unsupported sysctl net.ipv4.vs.conn_max; it requires Linux 7.2"
        );
        assert!(error.is_kernel_too_old() && error.is_unsupported());
        let error = LBLC_EXPIRATION.file_error("read", &absent);
        assert_eq!(
            error.to_string(),
            "unsupported sysctl net.ipv4.vs.lblc_expiration; it requires Linux 2.6 and the module ip_vs_lblc"
        );
        assert!(!error.is_kernel_too_old() && error.is_unsupported());
        // Missing permission is a different error.
        assert!(
            CONN_MAX
                .file_error("read", &std::io::Error::from_raw_os_error(13))
                .is_permission_denied()
        );
    }

    #[test]
    fn values_out_of_range_are_not_written() {
        let error = SYNC_PORTS.write(&3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid value 3 of sysctl net.ipv4.vs.sync_ports; valid: a power of two from 1 to 64"
        );
        assert!(error.is_invalid());
        assert!(
            SYNC_THRESHOLD
                .write(&SyncThreshold {
                    threshold: 5,
                    period: 5
                })
                .unwrap_err()
                .is_invalid()
        );
        assert!(SYNC_RETRIES.write(&4).unwrap_err().is_invalid());
    }
}
