//! The configuration of iptables mode from kube-proxy's configuration file.

use kernlink_engine::error::InvalidConfig;
use kernlink_host::FromFile;
use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;

use super::config::Config;

impl Config {
    /// The configuration in a file of kube-proxy of any mode. The node name is `hostnameOverride`. Without that field it is empty, and no
    /// endpoint is local: set [`node_name`](kernlink_services::Config::node_name) then.
    ///
    /// # Errors
    /// Every value that iptables mode cannot use, such as an invalid interface name.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        let mut problems = Vec::new();
        let common = FromFile::new(file, &mut problems);
        if !problems.is_empty() {
            return Err(InvalidConfig { problems });
        }
        let mut config = Config::new("");
        config.services = common.services;
        config.local_detection = common.local_detection;
        config.masquerade_bit = common.masquerade_bit;
        config.conntrack = common.conntrack;
        config.masquerade_all = file.iptables.masquerade_all;
        config.loopback_node_ports = file.iptables.localhost_node_ports;
        config.sync_period = file.iptables.sync_period;
        config.min_sync_period = file.iptables.min_sync_period;
        Ok(config)
    }
}
