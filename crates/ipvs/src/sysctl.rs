//! The settings below `net.ipv4.vs`, each with its type, range and first kernel.
//!
//! They belong to a network namespace. [`Client::setting`](crate::Client::setting) reads one,
//! [`Client::set_setting`](crate::Client::set_setting) writes one:
//!
//! ```no_run
//! use kernlink_ipvs::{Client, sysctl};
//!
//! let mut client = Client::open()?;
//! if !client.setting(&sysctl::CONNTRACK)? {
//!     client.set_setting(&sysctl::CONNTRACK, &true)?;
//! }
//! # Ok::<(), kernlink_ipvs::Error>(())
//! ```
//!
//! Source: [`vs_vars` in `ip_vs_ctl.c` at v6.1][vars] and [`ipvs-sysctl.rst`][doc]. Where the kernel's own check is wider than
//! what it understands, the range here is what it understands.
//!
//! The first kernel is the release that took the change: `run_estimation`, for one, was merged in October 2021, for Linux 5.16.
//! Before Linux 4.4, the oldest that this crate is for, it is given as far as it is known; `Linux 2.6` means 2.6.12 or older,
//! where the kernel's public history begins.
//!
//! [vars]: https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c
//! [doc]: https://github.com/torvalds/linux/blob/v6.1/Documentation/networking/ipvs-sysctl.rst

use std::marker::PhantomData;

use kernlink_netlink::Errno;

use crate::error::Error;

/// The folder of the calling thread's network namespace.
pub const DIRECTORY: &str = "/proc/sys/net/ipv4/vs";

/// One setting.
#[derive(Debug)]
pub struct Setting<T> {
    about: About,
    range: fn(&T) -> bool,
    value: PhantomData<fn() -> T>,
}

/// What is known of a setting besides its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct About {
    /// The file below [`DIRECTORY`].
    pub name: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// The values it takes.
    pub range: &'static str,
    /// Since which kernel it is there.
    pub since: &'static str,
    /// What it needs besides such a kernel, if anything: a module, or an option that the kernel was built with.
    pub needs: Option<&'static str>,
}

impl<T: Value> Setting<T> {
    const fn new(
        name: &'static str,
        since: &'static str,
        range: &'static str,
        is_in_range: fn(&T) -> bool,
        meaning: &'static str,
    ) -> Self {
        Self {
            about: About {
                name,
                meaning,
                range,
                since,
                needs: None,
            },
            range: is_in_range,
            value: PhantomData,
        }
    }

    const fn with_need(mut self, need: &'static str) -> Self {
        self.about.needs = Some(need);
        self
    }

    /// Name, meaning, range and first kernel.
    pub fn about(&self) -> About {
        self.about
    }

    fn path(&self) -> String {
        format!("{DIRECTORY}/{}", self.about.name)
    }

    fn failed(&self, attempt: &'static str, error: &std::io::Error) -> Error {
        match Errno::of(error) {
            Errno::ENOENT => Error::NoSuchSetting {
                name: self.about.name,
                since: self.about.since,
                needs: self.about.needs,
            },
            errno => Error::File {
                attempt,
                path: self.path(),
                errno,
            },
        }
    }

    fn out_of_range(&self, value: String) -> Error {
        Error::SettingRange {
            name: self.about.name,
            value,
            range: self.about.range.to_owned(),
        }
    }

    /// Reads it in the calling thread's network namespace.
    pub(crate) fn read(&self) -> Result<T, Error> {
        let text = std::fs::read_to_string(self.path()).map_err(|error| self.failed("read", &error))?;
        T::parse(text.trim()).ok_or_else(|| self.out_of_range(text.trim().to_owned()))
    }

    /// Writes it in the calling thread's network namespace.
    pub(crate) fn write(&self, value: &T) -> Result<(), Error> {
        if !(self.range)(value) {
            return Err(self.out_of_range(value.print()));
        }
        std::fs::write(self.path(), value.print()).map_err(|error| self.failed("write", &error))
    }
}

/// A type that a setting can have.
pub trait Value: Sized + Send + Sync + 'static {
    /// Reads what the file says, white space around it removed.
    fn parse(text: &str) -> Option<Self>;
    /// What is written to the file.
    fn print(&self) -> String;
}

impl Value for bool {
    /// Every number but 0 is true: the kernel checks few of its switches.
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

/// After how many packets of a connection the master daemon tells of it: the value of [`SYNC_THRESHOLD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncThreshold {
    /// Packets before the first message.
    pub threshold: u32,
    /// Packets between messages; 0 sends no more. Must be above `threshold` unless 0.
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

/// When a defence against memory exhaustion works: the value of [`DROP_ENTRY`], [`DROP_PACKET`] and [`SECURE_TCP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Defence {
    /// Never: 0.
    Off,
    /// When memory is short, from now on: 1. The kernel makes it [`ActiveWhenShort`](Self::ActiveWhenShort) while it is.
    WhenShort,
    /// When memory is short, and it is now: 2. The kernel makes it [`WhenShort`](Self::WhenShort) when it no longer is.
    ActiveWhenShort,
    /// Always: 3.
    Always,
}

impl Value for Defence {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "0" => Self::Off,
            "1" => Self::WhenShort,
            "2" => Self::ActiveWhenShort,
            "3" => Self::Always,
            _ => return None,
        })
    }

    fn print(&self) -> String {
        let number = match self {
            Self::Off => 0,
            Self::WhenShort => 1,
            Self::ActiveWhenShort => 2,
            Self::Always => 3,
        };
        number.to_string()
    }
}

macro_rules! settings {
    ($($constant:ident: $type:ty = $name:literal, $since:literal $(with $needs:literal)?, $range:literal, $is_in_range:expr,
        $meaning:literal;)*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning, ". Range: ", $range, ". Since ", $since $(, ", with ", $needs)?, ".")]
            pub const $constant: Setting<$type> =
                Setting::new($name, $since, $range, $is_in_range, $meaning)$(.with_need($needs))?;
        )*

        /// Every setting, by name.
        pub const ALL: &[About] = &[$($constant.about),*];
    };
}

settings! {
    AM_DROPRATE: u32 = "am_droprate", "Linux 2.6", "0 to 2147483647", is_int,
        "with drop_packet always on, one packet in so many is dropped; 0 counts as 1";
    AMEMTHRESH: u32 = "amemthresh", "Linux 2.6", "0 to 2147483647", is_int,
        "free pages of memory below which the defences begin";
    BACKUP_ONLY: bool = "backup_only", "Linux 3.9", "0 or 1", |_| true,
        "while the backup daemon runs alone, packets for virtual servers are not balanced again";
    CACHE_BYPASS: bool = "cache_bypass", "Linux 2.6", "0 or 1", |_| true,
        "without a real server, packets for a virtual server by mark go to their own destination";
    CONN_LFACTOR: i32 = "conn_lfactor", "Linux 7.1", "-8 to 8", |n| (-8..=8).contains(n),
        "size of the connection table: it holds two to this power connections a bucket before it grows";
    CONN_MAX: u32 = "conn_max", "Linux 7.2", "0 to 1073741824, on 32-bit kernels to 16777216", |n| *n <= 1 << 30,
        "how many connections the network namespace may have";
    CONN_REUSE_MODE: u32 = "conn_reuse_mode", "Linux 4.1", "0 to 3", |n| *n <= 3,
        "what a new connection from a port in use does: 0 goes on with the old one, bit 0 schedules anew where that is safe, bit 1 also while the old one is in FIN_WAIT";
    CONNTRACK: bool = "conntrack", "Linux 2.6.37" with "CONFIG_IP_VS_NFCT", "0 or 1", |_| true,
        "connections are kept in connection tracking too, which masquerading by iptables needs";
    DEBUG_LEVEL: i32 = "debug_level", "Linux 2.6" with "CONFIG_IP_VS_DEBUG", "0 to 12", |n| (0..=12).contains(n),
        "how much is written to the kernel's log; 0 is nothing but errors. One for all network namespaces: since Linux 5.15 only the initial one may write it";
    DROP_ENTRY: Defence = "drop_entry", "Linux 2.6", "0 to 3", |_| true,
        "whether connections are dropped at random to gain memory";
    DROP_PACKET: Defence = "drop_packet", "Linux 2.6", "0 to 3", |_| true,
        "whether packets are dropped at random before they reach real servers";
    EST_CPULIST: String = "est_cpulist", "Linux 6.2", "a list of processors such as 0-3,8, all, or nothing", |_| true,
        "processors that work out the rates; with an empty list none does";
    EST_NICE: i32 = "est_nice", "Linux 6.2", "-20 to 19", |n| (-20..=19).contains(n),
        "priority of the threads that work out the rates";
    EXPIRE_NODEST_CONN: bool = "expire_nodest_conn", "Linux 2.6", "0 or 1", |_| true,
        "connections to a deleted real server end with their next packet";
    EXPIRE_QUIESCENT_TEMPLATE: bool = "expire_quiescent_template", "Linux 2.6", "0 or 1", |_| true,
        "persistence does not bring clients back to a real server of weight 0";
    IGNORE_TUNNELED: bool = "ignore_tunneled", "Linux 4.4", "0 or 1", |_| true,
        "packets that came out of an IPIP tunnel are not balanced again";
    LBLC_EXPIRATION: u32 = "lblc_expiration", "Linux 2.6" with "the module ip_vs_lblc", "0 to 2147483 seconds", |n| *n <= SECONDS,
        "how long the scheduler lblc remembers an unused choice";
    LBLCR_EXPIRATION: u32 = "lblcr_expiration", "Linux 2.6" with "the module ip_vs_lblcr", "0 to 2147483 seconds", |n| *n <= SECONDS,
        "how long the scheduler lblcr remembers an unused choice";
    NAT_ICMP_SEND: bool = "nat_icmp_send", "Linux 2.6", "0 or 1", |_| true,
        "masqueraded answers without a connection are refused by ICMP";
    PMTU_DISC: bool = "pmtu_disc", "Linux 3.7", "0 or 1", |_| true,
        "packets that do not fit a tunnel are answered by ICMP and not sent in fragments";
    RUN_ESTIMATION: bool = "run_estimation", "Linux 5.16", "0 or 1", |_| true,
        "rates are worked out";
    SCHEDULE_ICMP: bool = "schedule_icmp", "Linux 4.4", "0 or 1", |_| true,
        "ICMP errors without a connection go to a real server";
    SECURE_TCP: Defence = "secure_tcp", "Linux 2.6", "0 to 3", |_| true,
        "whether TCP's states are followed in the stricter way";
    SLOPPY_SCTP: bool = "sloppy_sctp", "Linux 3.11", "0 or 1", |_| true,
        "any SCTP packet begins a connection, not only INIT";
    SLOPPY_TCP: bool = "sloppy_tcp", "Linux 3.11", "0 or 1", |_| true,
        "any TCP packet begins a connection, not only SYN";
    SNAT_REROUTE: bool = "snat_reroute", "Linux 2.6.37", "0 or 1", |_| true,
        "masqueraded answers are routed anew by their new source";
    SVC_LFACTOR: i32 = "svc_lfactor", "Linux 7.1", "-8 to 8", |n| (-8..=8).contains(n),
        "size of the table of virtual servers: it holds two to this power of them a bucket before it grows";
    SYNC_PERSIST_MODE: bool = "sync_persist_mode", "Linux 3.11", "0 or 1", |_| true,
        "of persistent virtual servers only the templates are synchronised";
    SYNC_PORTS: u32 = "sync_ports", "Linux 3.5", "a power of two from 1 to 64", |n| n.is_power_of_two() && *n <= 64,
        "threads and ports of each synchronisation daemon; read when it starts";
    SYNC_QLEN_MAX: u64 = "sync_qlen_max", "Linux 3.5", "0 to 18446744073709551615", |_| true,
        "messages that may wait to be sent; 0 is no limit";
    SYNC_REFRESH_PERIOD: u32 = "sync_refresh_period", "Linux 3.5", "0 to 2147483 seconds", |n| *n <= SECONDS,
        "a connection is told of again when its time left has changed by this; 0 goes by sync_threshold alone";
    SYNC_RETRIES: u32 = "sync_retries", "Linux 3.5", "0 to 3", |n| *n <= 3,
        "how often a message is sent again within sync_refresh_period";
    SYNC_SOCK_SIZE: u32 = "sync_sock_size", "Linux 3.5", "0 to 2147483647", is_int,
        "bytes of the daemons' socket buffers; 0 takes the system's default";
    SYNC_THRESHOLD: SyncThreshold = "sync_threshold", "Linux 2.6",
        "two numbers up to 2147483647, the first below the second unless that is 0",
        |n| is_int(&n.threshold) && is_int(&n.period) && (n.period == 0 || n.threshold < n.period),
        "packets of a connection before it is synchronised, and between times";
    SYNC_VERSION: u32 = "sync_version", "Linux 2.6.39", "0 or 1", |n| *n <= 1,
        "version of the daemons' messages; 0 is for peers before Linux 2.6.39";
}

/// What an `int` of jiffies holds at 1000 of them a second.
const SECONDS: u32 = i32::MAX as u32 / 1000;

fn is_int(number: &u32) -> bool {
    i32::try_from(*number).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_what_they_print() {
        let threshold = SyncThreshold {
            threshold: 3,
            period: 50,
        };
        assert_eq!(SyncThreshold::parse("3\t50"), Some(threshold));
        assert_eq!(SyncThreshold::parse(&threshold.print()), Some(threshold));
        assert_eq!(SyncThreshold::parse("3"), None);
        for defence in [
            Defence::Off,
            Defence::WhenShort,
            Defence::ActiveWhenShort,
            Defence::Always,
        ] {
            assert_eq!(Defence::parse(&defence.print()), Some(defence));
        }
        assert_eq!(Defence::parse("4"), None);
    }

    #[test]
    fn an_absent_setting_says_what_it_needs() {
        let absent = std::io::Error::from_raw_os_error(2);
        let error = CONN_MAX.failed("read", &absent);
        assert_eq!(
            error.to_string(),
            "the kernel has no setting conn_max: it is there since Linux 7.2"
        );
        assert!(error.is_kernel_too_old() && error.is_unsupported());
        let error = LBLC_EXPIRATION.failed("read", &absent);
        assert_eq!(
            error.to_string(),
            "the kernel has no setting lblc_expiration: it is there since Linux 2.6, with the module ip_vs_lblc"
        );
        assert!(!error.is_kernel_too_old() && error.is_unsupported());
        // A file that may not be read is another matter.
        assert!(
            CONN_MAX
                .failed("read", &std::io::Error::from_raw_os_error(13))
                .is_permission_denied()
        );
    }

    #[test]
    fn values_out_of_range_are_not_written() {
        let error = SYNC_PORTS.write(&3).unwrap_err();
        assert_eq!(
            error.to_string(),
            "setting sync_ports is 3, which is not a power of two from 1 to 64"
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
