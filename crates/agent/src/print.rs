//! Text on standard output, and errors that end the program.

use std::error::Error;
use std::io::{self, Write};
use std::time::Duration;

use kernlink_base::ErrorChain;
use kernlink_kubernetes::kube_proxy_config::{DetectLocalMode, KubeProxyConfiguration, NodePortAddresses};
use serde_json::{Value, json};

use crate::exit::Exit;

/// Prints a line. Fails if it cannot be written, such as when the reader of a pipe has ended.
#[must_use]
pub fn line(text: &str) -> Exit {
    match writeln!(io::stdout(), "{text}") {
        Ok(()) => Exit::Success,
        Err(_) => Exit::Failure,
    }
}

/// Prints an error that ends the program, with its causes, on standard error.
pub fn error(error: &(dyn Error + 'static)) {
    text(&ErrorChain(error).to_string());
}

/// Prints a problem that ends the program on standard error.
pub fn text(problem: &str) {
    // There is no other place to report that standard error is closed.
    let _ = writeln!(io::stderr(), "kernlink-agent: {problem}");
}

/// A configuration as the text of a `KubeProxyConfiguration`, in JSON, which is also YAML.
#[must_use]
pub fn configuration(file: &KubeProxyConfiguration) -> String {
    serde_json::to_string_pretty(&configuration_value(file)).unwrap_or_default()
}

/// A configuration as an object with the fields of the file.
#[must_use]
pub fn configuration_value(file: &KubeProxyConfiguration) -> Value {
    let texts = |nets: &[ipnet::IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>();
    let ports = match &file.node_port_addresses {
        NodePortAddresses::All => Vec::new(),
        NodePortAddresses::Networks(nets) => texts(nets),
        NodePortAddresses::Primary => vec!["primary".to_owned()],
    };
    let mode = match file.detect_local_mode {
        DetectLocalMode::NodeCidr => "NodeCIDR",
        DetectLocalMode::BridgeInterface => "BridgeInterface",
        DetectLocalMode::InterfaceNamePrefix => "InterfaceNamePrefix",
        _ => "ClusterCIDR",
    };
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": file.mode,
        "hostnameOverride": file.hostname_override,
        "bindAddress": file.bind_address.map(|address| address.to_string()).unwrap_or_default(),
        "bindAddressHardFail": file.bind_address_hard_fail,
        "healthzBindAddress": file.healthz_bind_address.to_string(),
        "metricsBindAddress": file.metrics_bind_address.to_string(),
        "serviceProxyName": file.service_proxy_name.as_deref().unwrap_or_default(),
        "clientConnection": { "kubeconfig": file.client_connection.kubeconfig },
        "nodePortAddresses": ports,
        "detectLocalMode": mode,
        "detectLocal": {
            "bridgeInterface": file.detect_local.bridge_interface,
            "interfaceNamePrefix": file.detect_local.interface_name_prefix,
        },
        "clusterCIDR": texts(&file.cluster_cidr).join(","),
        "ipvs": {
            "syncPeriod": duration(file.ipvs.sync_period),
            "minSyncPeriod": duration(file.ipvs.min_sync_period),
            "scheduler": file.ipvs.scheduler,
            "excludeCIDRs": texts(&file.ipvs.exclude_cidrs),
            "strictARP": file.ipvs.strict_arp,
            "tcpTimeout": duration(file.ipvs.tcp_timeout),
            "tcpFinTimeout": duration(file.ipvs.tcp_fin_timeout),
            "udpTimeout": duration(file.ipvs.udp_timeout),
        },
        "iptables": {
            "masqueradeBit": file.iptables.masquerade_bit,
            "masqueradeAll": file.iptables.masquerade_all,
            "localhostNodePorts": file.iptables.localhost_node_ports,
            "syncPeriod": duration(file.iptables.sync_period),
            "minSyncPeriod": duration(file.iptables.min_sync_period),
        },
        "conntrack": {
            "maxPerCore": file.conntrack.max_per_core,
            "min": file.conntrack.min,
            "tcpEstablishedTimeout": duration(file.conntrack.tcp_established_timeout),
            "tcpCloseWaitTimeout": duration(file.conntrack.tcp_close_wait_timeout),
            "tcpBeLiberal": file.conntrack.tcp_be_liberal,
            "udpTimeout": duration(file.conntrack.udp_timeout),
            "udpStreamTimeout": duration(file.conntrack.udp_stream_timeout),
        },
        "portRange": file.port_range,
        "udpIdleTimeout": duration(file.udp_idle_timeout),
    })
}

/// A duration in Go's notation, in the largest unit without a fraction.
fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let unit = units.iter().find(|(size, _)| nanos.is_multiple_of(*size));
    unit.map_or_else(
        || format!("{nanos}ns"),
        |(size, unit)| format!("{}{unit}", nanos / size),
    )
}

#[cfg(test)]
mod tests {
    use kernlink_kubernetes::kube_proxy_config::read;

    use super::*;

    #[test]
    fn a_printed_configuration_is_read_as_the_same_configuration() {
        let text = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: ipvs
hostnameOverride: node-a
bindAddress: 2001:db8::1
bindAddressHardFail: true
serviceProxyName: other
clientConnection: {kubeconfig: /etc/kubeconfig}
nodePortAddresses: [192.0.2.0/24]
detectLocalMode: InterfaceNamePrefix
detectLocal: {interfaceNamePrefix: veth, bridgeInterface: br0}
ipvs: {syncPeriod: 1m30s, minSyncPeriod: 1500us, scheduler: lc, excludeCIDRs: [10.9.0.0/16], strictARP: true, tcpTimeout: 15m}
iptables: {masqueradeBit: 3, masqueradeAll: true, syncPeriod: 90s}
conntrack: {maxPerCore: 1, min: 2, tcpBeLiberal: true, udpTimeout: 10s}
";
        // Fields without effect are printed too, and cause a warning.
        let read = |text: &str| {
            let mut config = read("f", text).unwrap();
            config.warnings.clear();
            config
        };
        let config = read(text);
        assert_eq!(read(&configuration(&config)), config);
        for rest in [
            "mode: userspace\nportRange: 300-400\nudpIdleTimeout: 250ms",
            "nodePortAddresses: [primary]",
            "clusterCIDR: 10.0.0.0/8,fd00::/8",
            "detectLocalMode: NodeCIDR",
        ] {
            let text =
                format!("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n{rest}");
            let config = read(&text);
            assert_eq!(read(&configuration(&config)), config, "{rest}");
        }
    }
}
