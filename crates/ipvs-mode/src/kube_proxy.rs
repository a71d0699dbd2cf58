//! The configuration of IPVS mode from kube-proxy's configuration file.

use kernlink_engine::error::InvalidConfig;
use kernlink_host::FromFile;
use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;

use super::config::{Config, IpvsTimeouts};
use super::options::known_scheduler;

impl Config {
    /// The configuration in a file of kube-proxy of any mode. The node name is `hostnameOverride`. Without that field it is empty, and no
    /// endpoint is local: set [`node_name`](kernlink_services::Config::node_name) then.
    ///
    /// # Errors
    /// Every value that IPVS mode cannot use, such as an unknown scheduler or an invalid interface name.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        let mut problems = Vec::new();
        let mut config = Config::new("");
        match known_scheduler(&file.ipvs.scheduler) {
            Ok(scheduler) => config.defaults.scheduler = scheduler,
            Err(problem) => {
                problems.push(("ipvs.scheduler", format!("{:?}: {problem}", file.ipvs.scheduler)))
            }
        }
        if let Some(names) = &file.kernlink.service_schedulers {
            let mut schedulers = Vec::new();
            for name in names {
                match known_scheduler(name) {
                    Ok(scheduler) => schedulers.push(scheduler),
                    Err(problem) => {
                        problems.push(("kernlink.serviceSchedulers", format!("{name:?}: {problem}")));
                    }
                }
            }
            config.service_schedulers = Some(schedulers);
        }
        let common = FromFile::new(file, &mut problems);
        config.services = common.services;
        config.local_detection = common.local_detection;
        config.masquerade_bit = common.masquerade_bit;
        config.conntrack = common.conntrack;
        config.masquerade_all = file.iptables.masquerade_all;
        config.exclude_cidrs = file.ipvs.exclude_cidrs.clone();
        config.strict_arp = file.ipvs.strict_arp;
        config.sync_period = file.ipvs.sync_period;
        config.min_sync_period = file.ipvs.min_sync_period;
        config.ipvs_timeouts = IpvsTimeouts {
            tcp: file.ipvs.tcp_timeout,
            tcp_fin: file.ipvs.tcp_fin_timeout,
            udp: file.ipvs.udp_timeout,
        };
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(InvalidConfig { problems })
        }
    }
}
