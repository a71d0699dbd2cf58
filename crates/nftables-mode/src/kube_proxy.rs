//! The configuration of nftables mode from kube-proxy's configuration file.

use kernlink_engine::error::InvalidConfig;
use kernlink_host::{FromFile, MasqueradeBit};
use kernlink_kubernetes::kube_proxy_config::KubeProxyConfiguration;
use kernlink_services::NodePortAddresses;

use super::config::Config;

impl Config {
    /// The configuration in a file of kube-proxy of any mode. The node name is `hostnameOverride`. Without that field it is empty, and no
    /// endpoint is local: set [`node_name`](kernlink_services::Config::node_name) then.
    ///
    /// # Errors
    /// Every value that nftables mode cannot use, such as an invalid interface name.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        let mut problems = Vec::new();
        let common = FromFile::new(file, &mut problems);
        let masquerade_bit = MasqueradeBit::new(file.nftables.masquerade_bit);
        let masquerade_bit = masquerade_bit.unwrap_or_else(|error| {
            problems.push(("nftables.masqueradeBit", error.to_string()));
            MasqueradeBit::default()
        });
        if !problems.is_empty() {
            return Err(InvalidConfig { problems });
        }
        let mut config = Config::new("");
        config.services = common.services;
        // As in kube-proxy's nftables mode, and only there.
        if config.services.node_port_addresses == NodePortAddresses::All {
            config.services.node_port_addresses = NodePortAddresses::Primary;
        }
        config.local_detection = common.local_detection;
        config.masquerade_bit = masquerade_bit;
        config.masquerade_all = file.nftables.masquerade_all;
        config.sync_period = file.nftables.sync_period;
        config.min_sync_period = file.nftables.min_sync_period;
        config.conntrack = common.conntrack;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kernlink_kubernetes::kube_proxy_config::read;

    use super::*;

    #[test]
    fn the_fields_of_nftables_mode_are_used_and_those_of_iptables_mode_are_not() {
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nhostnameOverride: node-a
nftables: {masqueradeBit: 3, masqueradeAll: true, syncPeriod: 1m, minSyncPeriod: 2s}
iptables: {masqueradeBit: 4, syncPeriod: 2m, minSyncPeriod: 3s}\n";
        let config = Config::from_kube_proxy(&read("f", text).unwrap()).unwrap();
        assert_eq!(config.masquerade_bit, MasqueradeBit::new(3).unwrap());
        assert!(config.masquerade_all);
        assert_eq!(config.sync_period, Duration::from_secs(60));
        assert_eq!(config.min_sync_period, Duration::from_secs(2));
        assert_eq!(config.services.node_port_addresses, NodePortAddresses::Primary);
        let defaults = text.split("nftables: {").next().unwrap();
        let config = Config::from_kube_proxy(&read("f", defaults).unwrap()).unwrap();
        assert_eq!(config, Config::new("node-a"));
    }
}
