//! The configuration of IPVS mode from kube-proxy's configuration file.

use kernlink_kubernetes::kube_proxy_config::{
    DetectLocalMode, KubeProxyConfiguration, NodePortAddresses as FileNodePortAddresses,
};
use kernlink_services::NodePortAddresses;

use super::config::{Config, Conntrack, IpvsTimeouts, LocalDetection, MasqueradeBit};
use super::options::known_scheduler;
use crate::error::InvalidConfig;

impl Config {
    /// The configuration in a file of kube-proxy of any mode. The node name is `hostnameOverride`. Without that field it is empty, and no
    /// endpoint is local: set [`node_name`](kernlink_services::Config::node_name) then.
    ///
    /// # Errors
    /// Every value that IPVS mode cannot use, such as an unknown scheduler or an invalid interface name.
    pub fn from_kube_proxy(file: &KubeProxyConfiguration) -> Result<Self, InvalidConfig> {
        let mut problems = Vec::new();
        let mut config = Config::new(file.hostname_override.as_str());
        config.services.bind_address = file.bind_address;
        config.services.service_proxy_name = file.service_proxy_name.clone();
        config.services.node_port_addresses = match &file.node_port_addresses {
            FileNodePortAddresses::Networks(nets) => NodePortAddresses::Networks(nets.clone()),
            FileNodePortAddresses::Primary => NodePortAddresses::Primary,
            _ => NodePortAddresses::All,
        };
        match known_scheduler(&file.ipvs.scheduler) {
            Ok(scheduler) => config.defaults.scheduler = scheduler,
            Err(problem) => {
                problems.push(("ipvs.scheduler", format!("{:?}: {problem}", file.ipvs.scheduler)))
            }
        }
        let bridge = &file.detect_local.bridge_interface;
        let prefix = &file.detect_local.interface_name_prefix;
        let (field, detection) = match file.detect_local_mode {
            DetectLocalMode::ClusterCidr => (
                "clusterCIDR",
                Ok(LocalDetection::ClusterCidr(file.cluster_cidr.clone())),
            ),
            DetectLocalMode::NodeCidr => ("detectLocalMode", Ok(LocalDetection::NodeCidr)),
            DetectLocalMode::BridgeInterface => (
                "detectLocal.bridgeInterface",
                LocalDetection::bridge_interface(bridge),
            ),
            DetectLocalMode::InterfaceNamePrefix => (
                "detectLocal.interfaceNamePrefix",
                LocalDetection::interface_prefix(prefix),
            ),
            mode => {
                problems.push(("detectLocalMode", format!("{mode:?} is not supported")));
                ("detectLocalMode", Ok(LocalDetection::NodeCidr))
            }
        };
        match detection {
            Ok(detection) => config.local_detection = detection,
            Err(error) => problems.push((field, error.to_string())),
        }
        match MasqueradeBit::new(file.iptables.masquerade_bit) {
            Ok(bit) => config.masquerade_bit = bit,
            Err(error) => problems.push(("iptables.masqueradeBit", error.to_string())),
        }
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
        config.conntrack = Conntrack {
            max_per_core: file.conntrack.max_per_core,
            min: file.conntrack.min,
            tcp_established: file.conntrack.tcp_established_timeout,
            tcp_close_wait: file.conntrack.tcp_close_wait_timeout,
            tcp_be_liberal: file.conntrack.tcp_be_liberal,
            udp: file.conntrack.udp_timeout,
            udp_stream: file.conntrack.udp_stream_timeout,
        };
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(InvalidConfig { problems })
        }
    }
}
