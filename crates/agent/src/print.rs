//! Text on standard output, and errors that end the program.

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use kernlink_base::ErrorChain;
use kernlink_kubernetes::kube_proxy_config::{
    DetectLocalMode, Kernlink, KubeProxyConfiguration, NodePortAddresses,
};
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

/// Prints a notice on standard error, for a program whose standard output is a file.
pub fn notice(text: &str) {
    // As for [`text`].
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a plan, and before it what could not be read. Fails if anything could not be read: the kernel may need other commands.
#[must_use]
pub fn commands(plan: &str, unknown: &[String]) -> Exit {
    let mut page = String::new();
    for problem in unknown {
        text(problem);
        page.push_str(&format!("# cannot be read; the plan may be wrong: {problem}\n"));
    }
    // A plan of a removal has them too.
    let is_repeated = |line: &str| {
        let comment = line.strip_prefix("# ");
        comment.is_some_and(|comment| unknown.iter().any(|problem| problem == comment))
    };
    let lines: Vec<&str> = plan
        .trim_end()
        .lines()
        .filter(|line| !is_repeated(line))
        .collect();
    match (lines.is_empty(), unknown.is_empty()) {
        (false, _) => page.push_str(&lines.join("\n")),
        (true, true) => page.push_str("# nothing to do"),
        (true, false) => page.push_str("# nothing to do, as far as it is known"),
    }
    let exit = line(&page);
    if unknown.is_empty() { exit } else { Exit::Failure }
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
    let mut value = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": file.mode,
        "hostnameOverride": file.hostname_override,
        "bindAddress": file.bind_address.map(|address| address.to_string()).unwrap_or_default(),
        "bindAddressHardFail": file.bind_address_hard_fail,
        "healthzBindAddress": server(file.healthz_bind_address),
        "metricsBindAddress": server(file.metrics_bind_address),
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
        "nftables": {
            "masqueradeBit": file.nftables.masquerade_bit,
            "masqueradeAll": file.nftables.masquerade_all,
            "syncPeriod": duration(file.nftables.sync_period),
            "minSyncPeriod": duration(file.nftables.min_sync_period),
        },
        "logging": { "verbosity": file.log_verbosity },
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
    });
    // kube-proxy warns about fields that it does not have.
    let kernlink = &file.kernlink;
    if *kernlink != Kernlink::default()
        && let Value::Object(fields) = &mut value
    {
        let block = json!({
            "serviceAnnotations": kernlink.service_annotations,
            "serviceAnnotationNamespaces": kernlink.service_annotation_namespaces,
            "serviceSchedulers": kernlink.service_schedulers,
            "ignoreExternalIPs": kernlink.ignore_external_ips,
        });
        fields.insert("kernlink".to_owned(), block);
    }
    value
}

fn server(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "none".to_owned(), |address| address.to_string())
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
    use std::ffi::OsString;

    use kernlink_kubernetes::kube_proxy_config::read;

    use super::*;
    use crate::flags::Flags;
    use crate::settings::Settings;

    const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

    /// A file with this text is read again from what is printed, with the same warnings.
    fn assert_round_trip(text: &str) {
        let config = read("f", &format!("{HEAD}{text}")).unwrap();
        let printed = configuration(&config);
        assert_eq!(read("f", &printed).unwrap(), config, "{text}: {printed}");
    }

    #[test]
    fn a_printed_configuration_is_read_as_the_same_configuration() {
        assert_round_trip("");
        for mode in ["ipvs", "iptables", "nftables", "userspace", "''"] {
            assert_round_trip(&format!("mode: {mode}"));
            // Every field with another value than the default.
            assert_round_trip(&format!(
                "mode: {mode}
hostnameOverride: node-a
bindAddress: 2001:db8::1
bindAddressHardFail: true
healthzBindAddress: '[2001:db8::1]:1'
metricsBindAddress: 192.0.2.1
serviceProxyName: other
clientConnection: {{kubeconfig: /etc/kubeconfig}}
nodePortAddresses: [192.0.2.0/24, '2001:db8::/64']
detectLocalMode: InterfaceNamePrefix
detectLocal: {{interfaceNamePrefix: veth, bridgeInterface: br0}}
ipvs: {{syncPeriod: 1m30s, minSyncPeriod: 1500us, scheduler: lc, excludeCIDRs: [10.9.0.0/16], strictARP: true, tcpTimeout: 15m, tcpFinTimeout: 1.5s,
  udpTimeout: 1ns}}
iptables: {{masqueradeBit: 3, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 90s, minSyncPeriod: 2s}}
nftables: {{masqueradeBit: 4, masqueradeAll: true, syncPeriod: 91s, minSyncPeriod: 3s}}
conntrack: {{maxPerCore: 1, min: 2, tcpBeLiberal: true, udpTimeout: 10s, udpStreamTimeout: 20s, tcpEstablishedTimeout: 1s,
  tcpCloseWaitTimeout: 2s}}
portRange: 300-400
udpIdleTimeout: 250ms
kernlink: {{serviceAnnotations: [scheduler], serviceAnnotationNamespaces: [a, b], serviceSchedulers: [lblc, rr], ignoreExternalIPs: true}}
"
            ));
        }
        for rest in [
            "healthzBindAddress: none",
            "metricsBindAddress: none\nbindAddress: '::'",
            "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
            "iptables: {masqueradeBit: 0}",
            "portRange: ' 0-0 '",
            "udpIdleTimeout: 1s",
            "nodePortAddresses: [primary]",
            "nodePortAddresses: []",
            "mode: nftables\nnodePortAddresses: []",
            "mode: nftables\nnodePortAddresses: [0.0.0.0/0, '::/0']",
            "clusterCIDR: 10.0.0.0/8,fd00::/8",
            "detectLocalMode: NodeCIDR",
            "kernlink: {serviceAnnotations: [], serviceAnnotationNamespaces: [], serviceSchedulers: []}",
            "kernlink: {ignoreExternalIPs: true}",
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: \"b\\\"\\u00e9\"}",
        ] {
            assert_round_trip(rest);
        }
    }

    #[test]
    fn the_configuration_of_a_command_line_is_printed_so_that_the_file_has_the_same_effect() {
        let settings = |arguments: &[&str]| {
            let arguments = arguments.iter().map(OsString::from);
            Settings::new(&Flags::parse(arguments).unwrap()).unwrap()
        };
        for flags in [
            "--healthz-bind-address none --metrics-bind-address none",
            "--proxy-mode ipvs --ipvs-scheduler wrr --nodeport-addresses primary --hostname-override X",
            "--proxy-mode userspace --proxy-port-range 300+10 --udp-timeout 5s --bind-address 192.0.2.1",
            "--service-annotations= --ignore-external-ips",
            "--proxy-mode ipvs --service-annotations scheduler,weights --service-annotation-namespaces a --service-schedulers lblc",
            "--cluster-cidr 10.0.0.0/8 --kubeconfig /k --masquerade-all --iptables-localhost-nodeports=false",
        ] {
            let mut line = vec!["--watch", "/m"];
            line.extend(flags.split(' '));
            let of_flags = settings(&line);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, configuration(&of_flags.file)).unwrap();
            let of_file = settings(&["--watch", "/m", "--config", file.path().to_str().unwrap()]);
            assert_eq!(of_file.without_origin(), of_flags.without_origin(), "{flags}");
        }
    }
}
