//! The configuration of IPVS mode.

use std::time::Duration;

use ipnet::IpNet;
use kernlink_dummylink::LinkName;
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::schedule::Intervals;
use kernlink_host::IPVS_LINK;
pub use kernlink_host::{Conntrack, InvalidMasqueradeBit, LocalDetection, MasqueradeBit};
use kernlink_ipvs::{Scheduler, Timeouts};
use kernlink_services::ObjectName;
use kernlink_services::model::options::is_drain_timeout;

use super::options::{IpvsOptions, known_scheduler};

/// The configuration of IPVS mode. [`Config::new`] has kube-proxy's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The node, and which of the Services it serves.
    pub services: kernlink_services::Config,
    /// The options of Services without the corresponding annotation, such as the scheduler.
    pub defaults: IpvsOptions,
    /// The schedulers that Services may request by the annotation `scheduler`, in addition to the default one; a Service with another one
    /// has the default scheduler, and an event. Default: `None`, all schedulers of [`Scheduler::KNOWN`], but those whose module the kernel
    /// should not load for a Service, `lblc` and `lblcr`, only if it is loaded or this process can load it before (see
    /// [Modules](Scheduler#modules)). The kernel may load the modules of the schedulers that are named here, and that of the default
    /// scheduler, in any case: load those of `lblc` and `lblcr` at the start of the node.
    pub service_schedulers: Option<Vec<Scheduler>>,
    /// Masquerades all traffic to cluster IPs, from any source. Default: false.
    pub masquerade_all: bool,
    /// The bit of the packet mark that requests masquerading. Default: 14.
    pub masquerade_bit: MasqueradeBit,
    /// How traffic from pods of this node is recognised. Default: [`ClusterCidr`](LocalDetection::ClusterCidr) without a network.
    pub local_detection: LocalDetection,
    /// Virtual servers in these networks are foreign, unless the ledger names them: kernlink wrote or adopted these for a Service.
    pub exclude_cidrs: Vec<IpNet>,
    /// Whether a foreign virtual server with the address, protocol and port of a frontend is changed to what its Service needs. With
    /// `false` such a frontend is not served, and an event names it, until the virtual server is gone or equal to the desired one.
    /// Default: false.
    pub adopt_foreign: bool,
    /// Sets `arp_ignore` to 1 and `arp_announce` to 2, so that the node does not answer ARP requests for addresses on the dummy link.
    /// Default: false.
    pub strict_arp: bool,
    /// How long IPVS keeps idle connections. Default: the kernel's values.
    pub ipvs_timeouts: IpvsTimeouts,
    /// Limits and timeouts of connection tracking.
    pub conntrack: Conntrack,
    /// The Services without which a node or an agent cannot start. If the kernel is empty, as after a boot, they are served before all
    /// other Services; empty: no Service is preferred. Default: `default/kubernetes` and `kube-system/kube-dns`.
    pub first_services: Vec<ObjectName>,
    /// The longest time between two syncs, for the embedder's schedule. Default: 30 seconds.
    pub sync_period: Duration,
    /// The shortest time between two syncs, for the embedder's schedule; 0 is no limit. Default: 0.
    pub min_sync_period: Duration,
    /// The name of the dummy link that carries virtual IPs: 1 to 15 bytes, no `/`, no space. Default: `kube-ipvs0`.
    pub dummy_link: String,
    /// Chooses source ports at random when masquerading (`--random-fully`, iptables 1.6.2). Default: true.
    pub random_fully: bool,
}

impl Config {
    /// kube-proxy's defaults for the node with this name.
    #[must_use]
    pub fn new(node_name: impl Into<std::sync::Arc<str>>) -> Self {
        Self {
            services: kernlink_services::Config::new(node_name),
            defaults: IpvsOptions::default(),
            service_schedulers: None,
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            local_detection: LocalDetection::ClusterCidr(Vec::new()),
            exclude_cidrs: Vec::new(),
            adopt_foreign: false,
            strict_arp: false,
            ipvs_timeouts: IpvsTimeouts::default(),
            conntrack: Conntrack::default(),
            first_services: vec![
                ObjectName::new("default", "kubernetes"),
                ObjectName::new("kube-system", "kube-dns"),
            ],
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::ZERO,
            dummy_link: IPVS_LINK.to_owned(),
            random_fully: true,
        }
    }

    /// The intervals of a [`Schedule`](kernlink_engine::Schedule), from `min_sync_period` and `sync_period`.
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        Intervals {
            min: self.min_sync_period,
            max: self.sync_period,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let mut problems = self.services.problems();
        if let Err(error) = LinkName::new(&self.dummy_link) {
            problems.push((
                "dummy_link",
                format!("invalid name {:?}: {error}", self.dummy_link),
            ));
        }
        if let Some(timeout) = self.services.defaults.drain_timeout
            && !is_drain_timeout(timeout)
        {
            problems.push((
                "services.defaults.drain_timeout",
                format!("{timeout:?} is invalid; valid: none, 0, or whole seconds from 1s to 2147483s"),
            ));
        }
        for scheduler in self.service_schedulers.iter().flatten() {
            if let Err(problem) = known_scheduler(scheduler.as_str()) {
                problems.push((
                    "service_schedulers",
                    format!("{:?}: {problem}", scheduler.as_str()),
                ));
            }
        }
        let limit = u64::from(Timeouts::MAX_SECONDS);
        for (field, timeout) in [
            ("ipvs_timeouts.tcp", self.ipvs_timeouts.tcp),
            ("ipvs_timeouts.tcp_fin", self.ipvs_timeouts.tcp_fin),
            ("ipvs_timeouts.udp", self.ipvs_timeouts.udp),
        ] {
            if timeout.as_secs() > limit {
                problems.push((
                    field,
                    format!("{} seconds is too long; valid: 0 to {limit}", timeout.as_secs()),
                ));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(InvalidConfig { problems })
        }
    }

    /// The name of the dummy link; `None` if it is invalid, which is an error of [`validate`](Self::validate).
    pub(crate) fn link(&self) -> Option<LinkName> {
        LinkName::new(&self.dummy_link).ok()
    }
}

/// How long IPVS keeps idle connections, in whole seconds: a fraction is discarded, as in kube-proxy. A value below one second keeps the
/// kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpvsTimeouts {
    /// Established TCP connections.
    pub tcp: Duration,
    /// TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// UDP.
    pub udp: Duration,
}

impl IpvsTimeouts {
    /// The values in whole seconds, as the kernel takes them.
    #[must_use]
    pub fn whole_seconds(&self) -> Self {
        let whole = |timeout: Duration| Duration::from_secs(timeout.as_secs());
        Self {
            tcp: whole(self.tcp),
            tcp_fin: whole(self.tcp_fin),
            udp: whole(self.udp),
        }
    }

    /// Whether no value is set, so that the kernel keeps all of its own.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        self.whole_seconds() == Self::default()
    }
}
