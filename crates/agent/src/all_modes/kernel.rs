//! The APIs of all modes.

use std::fmt;

use kernlink_base::ErrorChain;
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_userspace::limits::raise_descriptor_limit;
use kernlink_userspace::{AllStats, Proxy, data_path as userspace};
use tokio::runtime::{Builder, Runtime};

use super::config::{Config, UserspaceConfig};
use super::error::Error;

/// The APIs of all modes. Those of a mode are opened when it is used first: iptables mode needs no IPVS, no sets and no dummy link.
#[derive(Default)]
pub struct Kernel {
    ipvs: Option<ipvs_mode::Kernel>,
    iptables: Option<iptables_mode::Kernel>,
    userspace: Option<Userspace>,
}

/// The proxy of userspace mode.
struct Userspace {
    kernel: userspace::Kernel,
    stats: Option<AllStats>,
    /// Its threads. They end after the sockets were closed.
    _runtime: Option<Runtime>,
}

/// The open files that the process may have at least, as in kube-proxy.
const DESCRIPTORS: u64 = 64_000;

impl Kernel {
    /// The APIs, of which nothing is open. The first sync opens what the configured mode needs, in the network namespace of the thread that
    /// calls [`sync`](kernlink_proxier::Proxier::sync).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The APIs that the configured mode needs, in the network namespace of the calling thread. The thread that calls
    /// [`sync`](kernlink_proxier::Proxier::sync) must be in the same: the iptables tools run in its namespace. In userspace mode the threads
    /// of the proxy start; it has no listening ports yet.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn open(config: &Config) -> Result<Self, Error> {
        let mut kernel = Self::new();
        match config {
            Config::Ipvs(_) => _ = kernel.ipvs()?,
            Config::Iptables(_) => _ = kernel.iptables()?,
            Config::Userspace(_) => _ = kernel.userspace(config)?,
        }
        Ok(kernel)
    }

    /// The in-memory fakes of all APIs, without objects. The modes do not share objects.
    #[cfg(test)]
    pub(crate) fn fake() -> Self {
        Self::new()
            .with_ipvs(ipvs_mode::Kernel::fake())
            .with_iptables(iptables_mode::Kernel::fake())
            .with_userspace(userspace::Kernel::fake())
    }

    /// Sets the APIs of IPVS mode.
    #[must_use]
    pub fn with_ipvs(mut self, kernel: ipvs_mode::Kernel) -> Self {
        self.ipvs = Some(kernel);
        self
    }

    /// Sets the APIs of iptables mode.
    #[must_use]
    pub fn with_iptables(mut self, kernel: iptables_mode::Kernel) -> Self {
        self.iptables = Some(kernel);
        self
    }

    /// Sets the APIs of userspace mode.
    #[must_use]
    pub fn with_userspace(mut self, kernel: userspace::Kernel) -> Self {
        self.userspace = Some(Userspace {
            kernel,
            stats: None,
            _runtime: None,
        });
        self
    }

    /// The counters of the proxy of userspace mode, if it was started.
    #[must_use]
    pub fn stats(&self) -> Option<AllStats> {
        self.userspace.as_ref()?.stats.clone()
    }

    /// The APIs of IPVS mode; opens them if they are not open.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn ipvs(&mut self) -> Result<&mut ipvs_mode::Kernel, Error> {
        Ok(match &mut self.ipvs {
            Some(kernel) => kernel,
            closed => closed.insert(ipvs_mode::Kernel::open()?),
        })
    }

    /// The APIs of iptables mode; opens them if they are not open.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn iptables(&mut self) -> Result<&mut iptables_mode::Kernel, Error> {
        Ok(match &mut self.iptables {
            Some(kernel) => kernel,
            closed => closed.insert(iptables_mode::Kernel::open()?),
        })
    }

    /// The APIs of userspace mode; opens them if they are not open.
    pub(super) fn userspace(&mut self, config: &Config) -> Result<&mut userspace::Kernel, Error> {
        let opened = match (&mut self.userspace, config) {
            (Some(opened), _) => opened,
            (closed, Config::Userspace(config)) => closed.insert(Userspace::open(config)?),
            (None, _) => return Err(Error::Start("another mode is configured".to_owned())),
        };
        Ok(&mut opened.kernel)
    }

    /// Whether the link of IPVS mode exists, which a node keeps as long as anything of this mode is left. No module is loaded for it.
    ///
    /// # Errors
    /// If the links cannot be read.
    pub fn has_ipvs_link(&mut self) -> Result<bool, Error> {
        let links = &mut self.iptables()?.links;
        iptables_mode::has_ipvs_link(&mut **links).map_err(Error::from)
    }

    /// The APIs of userspace mode, if they are open.
    pub(super) fn opened_userspace(&mut self) -> Option<&mut userspace::Kernel> {
        self.userspace.as_mut().map(|opened| &mut opened.kernel)
    }

    /// Closes the listening ports of userspace mode. Open connections end.
    pub(super) fn close_userspace(&mut self) {
        self.userspace = None;
    }
}

impl Userspace {
    fn open(config: &UserspaceConfig) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Start(ErrorChain(&error).to_string());
        raise_descriptor_limit(DESCRIPTORS).map_err(failed)?;
        let runtime = Builder::new_multi_thread()
            .thread_name("kernlink-proxy")
            .enable_all()
            .build()
            .map_err(failed)?;
        let proxy = Proxy::new(runtime.handle().clone(), config.limits.clone()).map_err(failed)?;
        Ok(Self {
            stats: Some(proxy.all_stats()),
            kernel: userspace::Kernel::with_proxy(proxy).map_err(failed)?,
            _runtime: Some(runtime),
        })
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
