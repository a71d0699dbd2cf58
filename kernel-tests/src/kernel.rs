//! Release and features of the running kernel, and skipping of tests that need others.
//!
//! libtest reports a skipped test as passed. A skipped test therefore also writes a line
//! `kernlink-skip: TEST: REASON`: to the file named by `KERNLINK_SKIP_FILE`, or to standard output if the variable is not
//! set. `cargo xtask test` counts these lines.

use std::{
    collections::BTreeMap,
    env, fmt,
    fs::{self, OpenOptions},
    io::Write,
    sync::{Mutex, PoisonError},
    thread,
};

use kernlink_base::KernelRelease;

use crate::{netns::NetNs, tools};

/// The release of the running kernel. Panics if it cannot be read.
#[must_use]
pub fn release() -> KernelRelease {
    KernelRelease::current().unwrap_or_else(|error| panic!("cannot read the kernel release: {error}"))
}

/// True on this kernel or a newer one. On an older one the calling test is recorded as skipped, and has to return.
///
/// Features are not probed: if one is missing on a kernel that is new enough, the test fails.
#[must_use = "the test has to return if this is false"]
pub fn since(major: u32, minor: u32) -> bool {
    let required = KernelRelease::new(major, minor);
    let running = release();
    if running < required {
        // `cargo xtask test` recognises this text.
        skip(&format!("kernel is older than {required}: {running}"));
    }
    running >= required
}

/// An optional feature of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    /// IPVS, `CONFIG_IP_VS`.
    Ipvs,
    /// The dummy network device, `CONFIG_DUMMY`.
    DummyLink,
    /// ipset, `CONFIG_IP_SET`.
    IpSet,
    /// The tables of `iptables` and `ip6tables`.
    Iptables,
    /// SCTP in rules of `iptables`, `CONFIG_NETFILTER_XT_MATCH_SCTP`.
    SctpRules,
    /// Connection tracking over netlink, `CONFIG_NF_CT_NETLINK`.
    Conntrack,
    /// Devices that decapsulate IP in IP, `CONFIG_NET_IPIP` and `CONFIG_IPV6_TUNNEL`.
    Tunnel,
    /// Flowtables of nf_tables, `CONFIG_NF_FLOW_TABLE_INET`.
    Flowtable,
}

impl Feature {
    /// Uses the feature in a temporary network namespace. `Err` is the error of the tool.
    fn probe(self) -> Result<(), String> {
        let namespace = NetNs::new();
        namespace.run(|| match self {
            // modprobe succeeds if the module is built in or loaded. If it fails, its output is the cause.
            Self::Ipvs if fs::exists("/proc/thread-self/net/ip_vs").unwrap_or(false) => Ok(()),
            Self::Ipvs => tools::run("modprobe", &["ip_vs"]).map(drop),
            Self::DummyLink => tools::run("ip", &["link", "add", "probe", "type", "dummy"]).map(drop),
            Self::IpSet => tools::run("ipset", &["create", "probe", "hash:ip,port"]).map(drop),
            Self::Iptables => ["iptables", "ip6tables"]
                .iter()
                .try_for_each(|program| tools::run(program, &["-w", "-t", "nat", "-S"]).map(drop)),
            Self::SctpRules => {
                let rule = "*nat\n-A OUTPUT -p sctp -m sctp --dport 99 -j DNAT --to-destination 192.0.2.1:9900\nCOMMIT\n";
                tools::run_with_input("iptables-restore", &["-w"], rule).map(drop)
            }
            Self::Conntrack => tools::run("conntrack", &["-L"]).map(drop),
            Self::Tunnel => {
                let devices = "link add probe4 type ipip local 192.0.2.1\n\
                               link add probe6 type ip6tnl mode ip6ip6 local 2001:db8::1\n";
                tools::run_with_input("ip", &["-batch", "-"], devices).map(drop)
            }
            Self::Flowtable => {
                let table = "table inet t { flowtable f { hook ingress priority 0; devices = { lo }; }; }";
                tools::run_with_input("nft", &["-f", "-"], table).map(drop)
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
            Self::SctpRules => "SCTP in rules of iptables",
            Self::Conntrack => "connection tracking",
            Self::Tunnel => "tunnel devices",
            Self::Flowtable => "flowtables",
        })
    }
}

/// Whether the test runs in the VM, which is emulated.
#[must_use]
pub fn is_in_vm() -> bool {
    env::var("KERNLINK_TIER").is_ok_and(|tier| tier == "vm")
}

/// True if the kernel has all these features. If one is missing on the host, the calling test is recorded as skipped,
/// and has to return. In the VM a missing feature panics.
#[must_use = "the test has to return if this is false"]
pub fn has(features: &[Feature]) -> bool {
    let missing = features
        .iter()
        .find_map(|&feature| Some((feature, probed(feature).err()?)));
    let Some((feature, cause)) = missing else {
        return true;
    };
    let cause = cause.lines().collect::<Vec<_>>().join("; ");
    if is_in_vm() {
        panic!("the kernel of the VM does not support {feature}: {cause}");
    }
    skip(&format!("this kernel does not support {feature}: {cause}"));
    false
}

/// True in the VM. Otherwise the calling test, which changes global state of the machine, is recorded as skipped, and has to
/// return. Such a test needs a file without other tests: tests of one file run in parallel, files one after the other.
#[must_use = "the test has to return if this is false"]
pub fn may_change_the_machine() -> bool {
    let is_vm = is_in_vm();
    if !is_vm {
        skip("the test changes global state of the machine and runs only in the VM");
    }
    is_vm
}

/// Replaces the program that loads modules until it is dropped, on the whole machine: see [`may_change_the_machine`].
#[derive(Debug)]
pub struct Autoload {
    before: String,
}

impl Autoload {
    /// Loads modules with another program, which gets the arguments of `modprobe`.
    #[must_use]
    pub fn with(program: &str) -> Self {
        let before = tools::sysctl("kernel.modprobe");
        tools::set_sysctl("kernel.modprobe", program);
        Self { before }
    }

    /// Loads no modules.
    #[must_use]
    pub fn disabled() -> Self {
        Self::with("/bin/false")
    }
}

impl Drop for Autoload {
    fn drop(&mut self) {
        tools::set_sysctl("kernel.modprobe", &self.before);
    }
}

/// The result of [`Feature::probe`], which runs once in each test binary.
fn probed(feature: Feature) -> Result<(), String> {
    static RESULTS: Mutex<BTreeMap<Feature, Result<(), String>>> = Mutex::new(BTreeMap::new());
    let mut results = RESULTS.lock().unwrap_or_else(PoisonError::into_inner);
    results.entry(feature).or_insert_with(|| feature.probe()).clone()
}

/// Records that the calling test is skipped. Its name is that of the thread, which libtest sets.
fn skip(reason: &str) {
    let thread = thread::current();
    let line = format!("kernlink-skip: {}: {reason}\n", thread.name().unwrap_or("?"));
    let Some(file) = env::var_os("KERNLINK_SKIP_FILE") else {
        print!("{line}");
        return;
    };
    // One write per line, because tests run in parallel.
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("cannot record a skipped test in {}: {error}", file.display());
    }
}

/// Returns from the test if the kernel does not have these features; see [`has`].
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

/// Returns from the test if the kernel does not have the features that IPVS mode needs; see [`has`].
#[macro_export]
macro_rules! requires_ipvs_mode {
    () => {
        $crate::requires!(
            $crate::kernel::Feature::Ipvs,
            $crate::kernel::Feature::IpSet,
            $crate::kernel::Feature::Iptables,
            $crate::kernel::Feature::DummyLink
        )
    };
}

/// Returns from the test on a kernel older than this; see
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
    fn the_running_kernel_is_not_older_than_3_0() {
        assert!(since(3, 0));
    }
}
