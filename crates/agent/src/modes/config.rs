//! The configuration, which chooses the mode.

use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;
use kernlink_proxier::{DataPath, Intervals, InvalidConfig, iptables_mode, ipvs_mode, nftables_mode};
use kernlink_services::Event;
use kernlink_userspace::{Limits, data_path as userspace};

use super::listing::{Desired, Listings};
use super::mode::Mode;
use super::served::{Served, compiled};
use super::settings::{IptablesConfig, NftablesConfig, UserspaceConfig};

/// The configuration of a mode.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// IPVS mode.
    Ipvs(ipvs_mode::Config),
    /// iptables mode.
    Iptables(IptablesConfig),
    /// nftables mode.
    Nftables(NftablesConfig),
    /// Userspace mode.
    Userspace(Box<UserspaceConfig>),
}

impl Config {
    /// kube-proxy's defaults in a mode, for the node with this name.
    #[must_use]
    pub fn new(mode: Mode, node_name: impl Into<Arc<str>>) -> Self {
        match mode {
            Mode::Ipvs => Config::Ipvs(ipvs_mode::Config::new(node_name)),
            Mode::Iptables => Config::Iptables(iptables_mode::Config::new(node_name).into()),
            Mode::Nftables => Config::Nftables(nftables_mode::Config::new(node_name).into()),
            Mode::Userspace => Config::Userspace(Box::new(UserspaceConfig {
                config: userspace::Config::new(node_name),
                limits: Limits::default(),
                retiring_ipvs: ipvs_mode::Config::new(""),
            })),
        }
    }

    /// The configuration in a file of kube-proxy, in the mode that its field `mode` names; empty is `iptables`. The node name is
    /// `hostnameOverride`.
    ///
    /// # Errors
    /// A mode that is not supported, and every value that the mode cannot use.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        match file.mode.parse() {
            Ok(Mode::Ipvs) => ipvs_mode::Config::from_kube_proxy(file).map(Config::Ipvs),
            Ok(Mode::Iptables) => Ok(Config::Iptables(IptablesConfig {
                config: iptables_mode::Config::from_kube_proxy(file)?,
                exclude_cidrs: file.ipvs.exclude_cidrs.clone(),
            })),
            Ok(Mode::Nftables) => Ok(Config::Nftables(NftablesConfig {
                config: nftables_mode::Config::from_kube_proxy(file)?,
                exclude_cidrs: file.ipvs.exclude_cidrs.clone(),
            })),
            Ok(Mode::Userspace) => {
                let mut retiring_ipvs = ipvs_mode::Config::new("");
                retiring_ipvs.exclude_cidrs.clone_from(&file.ipvs.exclude_cidrs);
                Ok(Config::Userspace(Box::new(UserspaceConfig {
                    config: userspace::Config::from_kube_proxy(file)?,
                    limits: Limits::from_kube_proxy(file),
                    retiring_ipvs,
                })))
            }
            Err(error) => Err(InvalidConfig {
                problems: vec![("mode", error.to_string())],
            }),
        }
    }

    /// The mode.
    #[must_use]
    pub fn mode(&self) -> Mode {
        in_mode!(self, |M, _settings| M::MODE)
    }

    /// The node, and which of the Services it serves.
    #[must_use]
    pub fn services(&self) -> &kernlink_services::Config {
        in_mode!(self, |M, settings| M::services_config(M::of_settings(settings)))
    }

    /// The node, and which of the Services it serves, to be changed.
    pub fn services_mut(&mut self) -> &mut kernlink_services::Config {
        in_mode!(self, |M, settings| M::services_mut(settings))
    }

    /// The networks that cluster IPs are allocated from if they are known, to be changed. `None`: the mode does not use them.
    pub fn service_cidrs_mut(&mut self) -> Option<&mut Option<Vec<IpNet>>> {
        in_mode!(self, |M, settings| M::service_cidrs_mut(settings))
    }

    /// The configuration of IPVS mode for the removal of what it left. If another mode is configured: kube-proxy's defaults, with the
    /// `services` and the `exclude_cidrs` of this configuration, which decide what is owned, and in iptables mode with its sysctls of
    /// connection tracking.
    #[must_use]
    pub fn retiring_ipvs(&self) -> ipvs_mode::Config {
        let mut retiring = in_mode!(self, |M, settings| M::retiring_ipvs(settings));
        retiring.services.clone_from(self.services());
        retiring
    }

    /// The longest time between two syncs.
    #[must_use]
    pub fn sync_period(&self) -> Duration {
        self.intervals().max
    }

    /// The intervals of the schedule.
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        in_mode!(self, |M, settings| M::schedule(settings))
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        in_mode!(self, |M, settings| M::validate(M::of_settings(settings)))
    }

    /// The whole desired state as text, with events about the Services. No kernel is read. `None` in userspace mode: its rules depend on the
    /// ports at which the process listens.
    #[must_use]
    pub fn listings(&self, desired: &Desired<'_>) -> (Option<Listings>, Vec<Event>) {
        in_mode!(self, |M, settings| {
            let (state, events) = compiled::<M>(settings, desired);
            (state.desired_state(desired), events)
        })
    }
}

/// Evaluates an expression with the data path of the configured mode and with what the configuration has of it.
macro_rules! in_mode {
    ($config:expr, |$mode:ident, $settings:ident| $value:expr) => {
        match $config {
            $crate::modes::Config::Ipvs($settings) => {
                type $mode = kernlink_proxier::ipvs_mode::IpvsMode;
                $value
            }
            $crate::modes::Config::Iptables($settings) => {
                type $mode = kernlink_proxier::iptables_mode::IptablesMode;
                $value
            }
            $crate::modes::Config::Nftables($settings) => {
                type $mode = kernlink_proxier::nftables_mode::NftablesMode;
                $value
            }
            $crate::modes::Config::Userspace($settings) => {
                type $mode = kernlink_userspace::UserspaceMode;
                $value
            }
        }
    };
}
pub(crate) use in_mode;

impl From<ipvs_mode::Config> for Config {
    fn from(config: ipvs_mode::Config) -> Self {
        Config::Ipvs(config)
    }
}

impl From<nftables_mode::Config> for Config {
    fn from(config: nftables_mode::Config) -> Self {
        Config::Nftables(config.into())
    }
}

impl From<iptables_mode::Config> for Config {
    fn from(config: iptables_mode::Config) -> Self {
        Config::Iptables(config.into())
    }
}

#[cfg(test)]
mod tests {
    use kernlink_kubernetes::kube_proxy_config::read;

    use super::*;

    #[test]
    fn the_mode_in_the_file_of_kube_proxy_is_used() {
        let of = |mode: &str| {
            let text = format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-a\n{mode}\n\
                 ipvs: {{syncPeriod: 20s, excludeCIDRs: [192.0.2.0/24]}}\n\
                 iptables: {{syncPeriod: 40s, localhostNodePorts: false}}\n\
                 nftables: {{syncPeriod: 50s}}\n"
            );
            Config::from_kube_proxy(&read("config", &text).unwrap())
        };
        for (text, mode, seconds) in [
            ("", Mode::Iptables, 40),
            ("mode: \"\"", Mode::Iptables, 40),
            ("mode: iptables", Mode::Iptables, 40),
            ("mode: ipvs", Mode::Ipvs, 20),
            ("mode: nftables", Mode::Nftables, 50),
            ("mode: userspace", Mode::Userspace, 40),
        ] {
            let config = of(text).unwrap();
            assert_eq!(
                (config.mode(), config.sync_period().as_secs()),
                (mode, seconds),
                "{text}"
            );
            assert_eq!(&*config.services().node_name, "node-a", "{text}");
            let excluded = config.retiring_ipvs().exclude_cidrs;
            assert_eq!(excluded, ["192.0.2.0/24".parse().unwrap()], "{text}");
            if let Config::Iptables(config) = config {
                assert!(!config.config.loopback_node_ports);
            }
        }
        // `read` rejects it too.
        let mut unknown = KubeProxyConfiguration::default();
        unknown.mode = "winkernel".into();
        assert_eq!(
            Config::from_kube_proxy(&unknown).unwrap_err().to_string(),
            "invalid configuration: mode: \"winkernel\" is not supported; supported: iptables, ipvs, nftables, userspace, or empty, which means iptables"
        );
    }

    #[test]
    fn the_removal_of_ipvs_mode_writes_no_other_sysctls_of_connection_tracking() {
        let mut config = iptables_mode::Config::new("node-a");
        config.conntrack.max_per_core = 0;
        let conntrack = config.conntrack;
        assert_eq!(Config::from(config).retiring_ipvs().conntrack, conntrack);
    }
}
