//! What the agent needs of the data path of each mode.

use std::fmt;

use ipnet::IpNet;
use kernlink_base::ErrorChain;
use kernlink_proxier::host::{Conntrack, Sysctl};
use kernlink_proxier::iptables_mode::accounting::{Accounting, KernelAccounting};
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_proxier::metrics::Collect;
use kernlink_proxier::nftables_mode::{self, NftablesMode};
use kernlink_proxier::watch::Watchable;
use kernlink_proxier::{DataPath, Intervals};
use kernlink_services::{FrontendKey, ServicePortId, Services};
use kernlink_userspace::limits::raise_descriptor_limit;
use kernlink_userspace::{AllStats, Proxy, UserspaceMode, data_path as userspace};
use tokio::runtime::{Builder, Runtime};

use super::listing::{Desired, Listings};
use super::mode::Mode;
use super::objects::{self, Find};
use super::settings::{IptablesConfig, NftablesConfig, UserspaceConfig};

/// A data path that the agent can run.
pub trait Served:
    DataPath<
        Config: Watchable<Key = <Self as DataPath>::Key, Kernel = <Self as DataPath>::Kernel>,
        Totals: Collect,
    >
{
    /// The mode.
    const MODE: Mode;
    /// The kernel modules that its rules and objects use, if they are not built in.
    const MODULES: &'static [&'static str];
    /// What [`Config`](super::Config) has of the mode.
    type Settings: Clone;

    /// The configuration of the data path.
    fn of_settings(settings: &Self::Settings) -> &Self::Config;

    /// The node, and which of the Services it serves, to be changed.
    fn services_mut(settings: &mut Self::Settings) -> &mut kernlink_services::Config;

    /// The networks that cluster IPs are allocated from if they are known, to be changed. Default: the mode does not use them.
    fn service_cidrs_mut(_settings: &mut Self::Settings) -> Option<&mut Option<Vec<IpNet>>> {
        None
    }

    /// The intervals of the schedule.
    fn schedule(settings: &Self::Settings) -> Intervals;

    /// The configuration of IPVS mode for the removal of what it left, which decides what is owned. Default: that of kube-proxy. The
    /// Services are those of [`of_settings`](Self::of_settings).
    fn retiring_ipvs(_settings: &Self::Settings) -> ipvs_mode::Config {
        ipvs_mode::Config::new("")
    }

    /// Opens the kernel APIs, in the network namespace of the calling thread. The thread that calls
    /// [`sync`](kernlink_proxier::Proxier::sync) must be in the same: the iptables tools run in its namespace.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    fn open(settings: &Self::Settings) -> Result<Opened<Self>, OpenError>;

    /// The in-memory fakes of the kernel APIs, without objects.
    #[cfg(test)]
    fn fake_kernel() -> Self::Kernel;

    /// What reads the kernel objects that serve a frontend of a service port, on another thread.
    fn find_objects(&self, frontend: &FrontendKey, port: ServicePortId) -> Find;

    /// The sysctl that an operation writes. Default: the mode writes none.
    fn sysctl(_operation: &Self::Operation) -> Option<&Sysctl> {
        None
    }

    /// The port that an operation binds. Default: the mode binds none.
    fn bound_port(_operation: &Self::Operation) -> Option<u16> {
        None
    }

    /// The desired state as text. `None`: it depends on the process.
    fn desired_state(&self, _desired: &Desired<'_>) -> Option<Listings> {
        None
    }
}

/// The kernel APIs of a mode, and what belongs to them.
pub struct Opened<M: DataPath> {
    /// The kernel APIs.
    pub kernel: M::Kernel,
    /// The counters of the proxy of userspace mode.
    pub stats: Option<AllStats>,
    /// What rules count.
    pub accounting: Option<Box<dyn Accounting>>,
    /// The threads of the proxy of userspace mode. They must end after its sockets were closed.
    pub runtime: Option<Runtime>,
}

impl<M: DataPath> Opened<M> {
    fn of(kernel: M::Kernel) -> Self {
        Self {
            kernel,
            stats: None,
            accounting: None,
            runtime: None,
        }
    }
}

impl<M: DataPath> fmt::Debug for Opened<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

/// A kernel API cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError(String);

impl OpenError {
    /// With its causes.
    pub(super) fn of(error: impl std::error::Error + 'static) -> Self {
        Self(ErrorChain(&error).to_string())
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OpenError {}

impl Served for IpvsMode {
    const MODE: Mode = Mode::Ipvs;
    const MODULES: &'static [&'static str] = &[
        "ip_vs",
        "ip_set",
        "ip_set_hash_ip",
        "ip_set_hash_ipport",
        "ip_set_hash_ipportip",
        "ip_set_hash_ipportnet",
        "ip_set_bitmap_port",
        "dummy",
        "nf_conntrack",
        "nf_nat",
        "nf_conntrack_netlink",
        "xt_set",
        "xt_comment",
        "xt_mark",
        "xt_conntrack",
        "xt_MASQUERADE",
    ];
    type Settings = ipvs_mode::Config;

    fn of_settings(settings: &ipvs_mode::Config) -> &ipvs_mode::Config {
        settings
    }

    fn services_mut(settings: &mut ipvs_mode::Config) -> &mut kernlink_services::Config {
        &mut settings.services
    }

    fn schedule(settings: &ipvs_mode::Config) -> Intervals {
        settings.intervals()
    }

    fn retiring_ipvs(settings: &ipvs_mode::Config) -> ipvs_mode::Config {
        settings.clone()
    }

    fn open(_settings: &ipvs_mode::Config) -> Result<Opened<Self>, OpenError> {
        ipvs_mode::Kernel::open().map(Opened::of).map_err(OpenError::of)
    }

    fn find_objects(&self, frontend: &FrontendKey, _port: ServicePortId) -> Find {
        objects::of_ipvs(self, frontend)
    }

    #[cfg(test)]
    fn fake_kernel() -> ipvs_mode::Kernel {
        ipvs_mode::Kernel::fake()
    }

    fn sysctl(operation: &ipvs_mode::Operation) -> Option<&Sysctl> {
        match operation {
            ipvs_mode::Operation::Sysctl(sysctl) => Some(sysctl),
            _ => None,
        }
    }

    fn desired_state(&self, desired: &Desired<'_>) -> Option<Listings> {
        let listings = self.listings(desired.kernel, desired.processors);
        Some(Listings::Ipvs(Box::new(listings)))
    }
}

impl Served for IptablesMode {
    const MODE: Mode = Mode::Iptables;
    const MODULES: &'static [&'static str] = &[
        "nf_conntrack",
        "nf_nat",
        "nf_conntrack_netlink",
        "xt_comment",
        "xt_mark",
        "xt_conntrack",
        "xt_addrtype",
        "xt_statistic",
        "xt_recent",
        "xt_nat",
        "xt_MASQUERADE",
    ];
    type Settings = IptablesConfig;

    fn of_settings(settings: &IptablesConfig) -> &iptables_mode::Config {
        &settings.config
    }

    fn services_mut(settings: &mut IptablesConfig) -> &mut kernlink_services::Config {
        &mut settings.config.services
    }

    fn schedule(settings: &IptablesConfig) -> Intervals {
        settings.config.intervals()
    }

    fn retiring_ipvs(settings: &IptablesConfig) -> ipvs_mode::Config {
        retiring_ipvs(&settings.exclude_cidrs, settings.config.conntrack)
    }

    fn open(_settings: &IptablesConfig) -> Result<Opened<Self>, OpenError> {
        let kernel = iptables_mode::Kernel::open().map_err(OpenError::of)?;
        let accounting = match KernelAccounting::open() {
            Ok(accounting) => Some(Box::new(accounting) as Box<dyn Accounting>),
            Err(error) => {
                tracing::warn!("no metrics of accounting objects: {}", ErrorChain(&error));
                None
            }
        };
        Ok(Opened {
            accounting,
            ..Opened::of(kernel)
        })
    }

    fn find_objects(&self, _frontend: &FrontendKey, port: ServicePortId) -> Find {
        objects::of_iptables(self, port)
    }

    #[cfg(test)]
    fn fake_kernel() -> iptables_mode::Kernel {
        iptables_mode::Kernel::fake()
    }

    fn sysctl(operation: &iptables_mode::Operation) -> Option<&Sysctl> {
        match operation {
            iptables_mode::Operation::Sysctl(sysctl) => Some(sysctl),
            _ => None,
        }
    }

    fn desired_state(&self, desired: &Desired<'_>) -> Option<Listings> {
        let listings = self.listings(desired.processors);
        Some(Listings::Iptables(Box::new(listings)))
    }
}

/// The configuration of a removal of IPVS mode next to a mode that has these settings.
fn retiring_ipvs(exclude_cidrs: &[IpNet], conntrack: Conntrack) -> ipvs_mode::Config {
    let mut retiring = ipvs_mode::Config::new("");
    retiring.exclude_cidrs = exclude_cidrs.to_vec();
    retiring.conntrack = conntrack;
    retiring
}

impl Served for NftablesMode {
    const MODE: Mode = Mode::Nftables;
    const MODULES: &'static [&'static str] = &[
        "nf_tables",
        "nf_conntrack",
        "nf_nat",
        "nf_conntrack_netlink",
        "nft_chain_nat",
        "nft_ct",
        "nft_nat",
        "nft_masq",
        "nft_numgen",
        "nft_fib",
        "nft_reject",
    ];
    type Settings = NftablesConfig;

    fn of_settings(settings: &NftablesConfig) -> &nftables_mode::Config {
        &settings.config
    }

    fn services_mut(settings: &mut NftablesConfig) -> &mut kernlink_services::Config {
        &mut settings.config.services
    }

    fn service_cidrs_mut(settings: &mut NftablesConfig) -> Option<&mut Option<Vec<IpNet>>> {
        Some(&mut settings.config.service_cidrs)
    }

    fn schedule(settings: &NftablesConfig) -> Intervals {
        settings.config.intervals()
    }

    fn retiring_ipvs(settings: &NftablesConfig) -> ipvs_mode::Config {
        retiring_ipvs(&settings.exclude_cidrs, settings.config.conntrack)
    }

    fn open(_settings: &NftablesConfig) -> Result<Opened<Self>, OpenError> {
        let kernel = nftables_mode::Kernel::open();
        kernel.map(Opened::of).map_err(OpenError::of)
    }

    fn find_objects(&self, frontend: &FrontendKey, _port: ServicePortId) -> Find {
        objects::of_nftables(self, frontend)
    }

    #[cfg(test)]
    fn fake_kernel() -> nftables_mode::Kernel {
        nftables_mode::Kernel::fake()
    }

    fn sysctl(operation: &nftables_mode::Operation) -> Option<&Sysctl> {
        match operation {
            nftables_mode::Operation::Sysctl(sysctl) => Some(sysctl),
            _ => None,
        }
    }

    fn desired_state(&self, desired: &Desired<'_>) -> Option<Listings> {
        let listings = self.listings(desired.processors);
        Some(Listings::Nftables(Box::new(listings)))
    }
}

/// The open files that the process may have at least, as in kube-proxy.
const DESCRIPTORS: u64 = 64_000;

impl Served for UserspaceMode {
    const MODE: Mode = Mode::Userspace;
    const MODULES: &'static [&'static str] = &[
        "nf_conntrack",
        "nf_nat",
        "nf_conntrack_netlink",
        "xt_comment",
        "xt_addrtype",
        "xt_nat",
        "xt_REDIRECT",
    ];
    type Settings = UserspaceConfig;

    fn of_settings(settings: &UserspaceConfig) -> &userspace::Config {
        &settings.config
    }

    fn services_mut(settings: &mut UserspaceConfig) -> &mut kernlink_services::Config {
        &mut settings.config.services
    }

    fn schedule(settings: &UserspaceConfig) -> Intervals {
        settings.config.intervals()
    }

    fn retiring_ipvs(settings: &UserspaceConfig) -> ipvs_mode::Config {
        settings.retiring_ipvs.clone()
    }

    /// None: the listening ports are those of this process, and the rules are compared by the syncs.
    fn find_objects(&self, _frontend: &FrontendKey, _port: ServicePortId) -> Find {
        Box::new(Vec::new)
    }

    #[cfg(test)]
    fn fake_kernel() -> userspace::Kernel {
        userspace::Kernel::fake()
    }

    fn bound_port(operation: &userspace::Operation) -> Option<u16> {
        match operation {
            userspace::Operation::Listen { key, .. } | userspace::Operation::Claim(key) => {
                Some(key.address.port())
            }
            _ => None,
        }
    }

    /// The threads of the proxy start; it has no listening ports yet.
    fn open(settings: &UserspaceConfig) -> Result<Opened<Self>, OpenError> {
        let failed = |error: std::io::Error| {
            OpenError(format!(
                "the proxy of userspace mode cannot start: {}",
                ErrorChain(&error)
            ))
        };
        raise_descriptor_limit(DESCRIPTORS).map_err(failed)?;
        let runtime = Builder::new_multi_thread()
            .thread_name("kernlink-proxy")
            .enable_all()
            .build()
            .map_err(failed)?;
        let proxy = Proxy::new(runtime.handle().clone(), settings.limits.clone()).map_err(failed)?;
        let stats = proxy.all_stats();
        let kernel = userspace::Kernel::with_proxy(proxy).map_err(failed)?;
        Ok(Opened {
            stats: Some(stats),
            runtime: Some(runtime),
            ..Opened::of(kernel)
        })
    }
}

/// The state of a data path after these Services.
pub(super) fn compiled<M: Served>(
    settings: &M::Settings,
    desired: &Desired<'_>,
) -> (M, Vec<kernlink_services::Event>) {
    let mut state = M::new(M::of_settings(settings));
    let services: &Services = desired.services;
    let events = state.compile(services, desired.changes);
    (state, events)
}
