//! What the running kernel is and has, and when a test may be skipped for it.
//!
//! A skipped test passes in the eyes of libtest, so it also says that it was skipped: as a line
//! `kernlink-skip: TEST: REASON`, appended to the file that `KERNLINK_SKIP_FILE` names, or printed where it names
//! none. `cargo xtask test` counts those lines.

use std::{
    collections::BTreeMap,
    env, fmt,
    fs::{self, OpenOptions},
    io::Write,
    str::FromStr,
    sync::{Mutex, PoisonError},
    thread,
};

use crate::{netns::NetNs, tools};

/// Major and minor number of a kernel release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 6 of `6.1.0-56-amd64`.
    pub major: u32,
    /// 1 of `6.1.0-56-amd64`.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Version {
    type Err = String;

    /// Reads a release as `uname -r` prints it.
    fn from_str(release: &str) -> Result<Self, String> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        match (next(), next()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(format!("not a kernel release: {release:?}")),
        }
    }
}

/// The running kernel.
pub fn version() -> Version {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release
        .parse()
        .unwrap_or_else(|error| panic!("/proc/sys/kernel/osrelease: {error}"))
}

/// True on this kernel or a newer one. On an older one the calling test is noted as skipped, and has to return.
///
/// On a kernel that is new enough nothing is probed: a feature that is then missing fails the test.
#[must_use = "the test has to return where this is false"]
pub fn since(major: u32, minor: u32) -> bool {
    let wanted = Version { major, minor };
    let running = version();
    if running < wanted {
        skip(&format!("kernel is older than {wanted}: {running}"));
    }
    running >= wanted
}

/// A part of the kernel that not every kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// IPVS, `CONFIG_IP_VS`.
    Ipvs,
    /// The dummy network device, `CONFIG_DUMMY`.
    DummyLink,
    /// ipset, `CONFIG_IP_SET`.
    IpSet,
    /// The rule tables behind `iptables`, for both families.
    Iptables,
    /// Connection tracking over netlink, `CONFIG_NF_CT_NETLINK`.
    Conntrack,
    /// Devices that take IP in IP out of its tunnel, `CONFIG_NET_IPIP` and `CONFIG_IPV6_TUNNEL`.
    Tunnel,
}

impl Feature {
    /// Asks the kernel, in a namespace of its own. `Err` is what it answered.
    fn probe(self) -> Result<(), String> {
        let namespace = NetNs::new();
        namespace.run(|| match self {
            // modprobe succeeds for what is built in or loaded; its words are the cause where it fails.
            Self::Ipvs if fs::exists("/proc/thread-self/net/ip_vs").unwrap_or(false) => Ok(()),
            Self::Ipvs => tools::run("modprobe", &["ip_vs"]).map(drop),
            Self::DummyLink => tools::run("ip", &["link", "add", "probe", "type", "dummy"]).map(drop),
            Self::IpSet => tools::run("ipset", &["create", "probe", "hash:ip,port"]).map(drop),
            Self::Iptables => ["iptables", "ip6tables"]
                .iter()
                .try_for_each(|program| tools::run(program, &["-w", "-t", "nat", "-S"]).map(drop)),
            Self::Conntrack => tools::run("conntrack", &["-L"]).map(drop),
            Self::Tunnel => {
                let devices = "link add probe4 type ipip local 192.0.2.1\n\
                               link add probe6 type ip6tnl mode ip6ip6 local 2001:db8::1\n";
                tools::run_with_input("ip", &["-batch", "-"], devices).map(drop)
            }
        })
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipvs => "IPVS",
            Self::DummyLink => "the dummy device",
            Self::IpSet => "ipset",
            Self::Iptables => "iptables",
            Self::Conntrack => "connection tracking",
            Self::Tunnel => "tunnel devices",
        })
    }
}

/// True where the kernel has all of these. On the host, where it lacks one, the calling test is noted as skipped,
/// and has to return. In the VM a missing feature panics.
#[must_use = "the test has to return where this is false"]
pub fn has(features: &[Feature]) -> bool {
    let missing = features
        .iter()
        .find_map(|&feature| Some((feature, probed(feature).err()?)));
    let Some((feature, cause)) = missing else {
        return true;
    };
    let cause = cause.lines().collect::<Vec<_>>().join("; ");
    if env::var("KERNLINK_TIER").is_ok_and(|tier| tier == "vm") {
        panic!("the VM's kernel lacks {feature}: {cause}");
    }
    skip(&format!("this kernel lacks {feature}: {cause}"));
    false
}

/// True in the VM. Anywhere else the calling test, which changes what the whole machine shares, is noted as skipped, and has to
/// return. Such a test belongs in a file of its own: tests of one file run side by side, files one after the other.
#[must_use = "the test has to return where this is false"]
pub fn may_change_the_machine() -> bool {
    let is_vm = env::var("KERNLINK_TIER").is_ok_and(|tier| tier == "vm");
    if !is_vm {
        skip("it changes the whole machine, which only a VM allows");
    }
    is_vm
}

/// The answer of [`Feature::probe`], asked for once in each test binary.
fn probed(feature: Feature) -> Result<(), String> {
    static ANSWERS: Mutex<BTreeMap<Feature, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
    answers.entry(feature).or_insert_with(|| feature.probe()).clone()
}

/// Notes that the calling test, whose thread libtest has named after it, is skipped.
fn skip(reason: &str) {
    let thread = thread::current();
    let line = format!("kernlink-skip: {}: {reason}\n", thread.name().unwrap_or("?"));
    let Some(file) = env::var_os("KERNLINK_SKIP_FILE") else {
        print!("{line}");
        return;
    };
    // One write per line: tests run side by side.
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("noting a skipped test in {}: {error}", file.display());
    }
}

/// A statement at the start of a test that ends the test where the kernel lacks a feature, see [`has`].
///
/// ```no_run
/// # use kernlink_kernel_tests::{kernel::Feature, requires};
/// fn sets_are_listed() {
///     requires!(Feature::IpSet);
///     // ...
/// }
/// ```
#[macro_export]
macro_rules! requires {
    ($($feature:expr),+ $(,)?) => {
        if !$crate::kernel::has(&[$($feature),+]) {
            return;
        }
    };
}

/// A statement at the start of a test that ends the test on a kernel older than this, see
/// [`since`](fn@crate::kernel::since).
///
/// ```no_run
/// # use kernlink_kernel_tests::since;
/// fn maglev_balances() {
///     since!(4, 18);
///     // ...
/// }
/// ```
#[macro_export]
macro_rules! since {
    ($major:literal, $minor:literal) => {
        if !$crate::kernel::since($major, $minor) {
            return;
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_read() {
        let read = |release: &str| release.parse::<Version>();
        assert_eq!(read("6.1.0-56-amd64\n"), Ok(Version { major: 6, minor: 1 }));
        assert_eq!(read("5.15.0-1053-generic"), Ok(Version { major: 5, minor: 15 }));
        assert_eq!(read("6.18"), Ok(Version { major: 6, minor: 18 }));
        assert!(read("").is_err());
        assert!(read("six").is_err());
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(Version { major: 5, minor: 15 } > Version { major: 5, minor: 4 });
        assert!(Version { major: 6, minor: 1 } > Version { major: 5, minor: 15 });
    }

    #[test]
    fn the_running_kernel_is_newer_than_the_oldest_with_network_namespaces() {
        assert!(since(3, 0));
    }
}
