//! What the data paths on iptables take from kube-proxy's configuration file.

use kernlink_kubernetes::kube_proxy_config::{
    DetectLocalMode, KubeProxyConfiguration, NodePortAddresses as FileNodePortAddresses,
};
use kernlink_services::{AnnotationPolicy, NodePortAddresses};

use super::{Conntrack, LocalDetection, MasqueradeBit};

/// Invalid fields with the reason.
pub type Problems = Vec<(&'static str, String)>;

/// The part of a configuration file that all data paths on iptables use.
#[derive(Clone, Debug)]
pub struct FromFile {
    /// The part that concerns Services.
    pub services: kernlink_services::Config,
    /// `detectLocalMode` and `detectLocal`.
    pub local_detection: LocalDetection,
    /// `iptables.masqueradeBit`.
    pub masquerade_bit: MasqueradeBit,
    /// `conntrack`.
    pub conntrack: Conntrack,
}

impl FromFile {
    /// Takes the part from a file, and adds what is invalid to `problems`.
    pub fn new(file: &KubeProxyConfiguration, problems: &mut Problems) -> Self {
        let masquerade_bit = MasqueradeBit::new(file.iptables.masquerade_bit).unwrap_or_else(|error| {
            problems.push(("iptables.masqueradeBit", error.to_string()));
            MasqueradeBit::default()
        });
        Self {
            services: services_from_kube_proxy(file),
            local_detection: local_detection(file, problems),
            masquerade_bit,
            conntrack: Conntrack {
                max_per_core: file.conntrack.max_per_core,
                min: file.conntrack.min,
                tcp_established: file.conntrack.tcp_established_timeout,
                tcp_close_wait: file.conntrack.tcp_close_wait_timeout,
                tcp_be_liberal: file.conntrack.tcp_be_liberal,
                udp: file.conntrack.udp_timeout,
                udp_stream: file.conntrack.udp_stream_timeout,
            },
        }
    }
}

/// What a configuration file has about Services, for every data path.
#[must_use]
pub fn services_from_kube_proxy(file: &KubeProxyConfiguration) -> kernlink_services::Config {
    let mut services = kernlink_services::Config::new(file.hostname_override.as_str());
    services.bind_address = file.bind_address;
    services.service_proxy_name.clone_from(&file.service_proxy_name);
    let names = |list: &Option<Vec<String>>| list.as_ref().map(|list| list.iter().cloned().collect());
    services.annotations = AnnotationPolicy {
        names: names(&file.kernlink.service_annotations),
        namespaces: names(&file.kernlink.service_annotation_namespaces),
    };
    services.ignore_external_ips = file.kernlink.ignore_external_ips;
    services.node_port_addresses = match &file.node_port_addresses {
        FileNodePortAddresses::Networks(nets) => NodePortAddresses::Networks(nets.clone()),
        FileNodePortAddresses::Primary => NodePortAddresses::Primary,
        _ => NodePortAddresses::All,
    };
    services
}

fn local_detection(file: &KubeProxyConfiguration, problems: &mut Problems) -> LocalDetection {
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
    detection.unwrap_or_else(|error| {
        problems.push((field, error.to_string()));
        LocalDetection::NodeCidr
    })
}
