//! kube-proxy's configuration files.
#![cfg(feature = "kube-proxy-config")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test reports the reason by panicking"
)]

use std::time::Duration;

use kernlink_kubernetes::kube_proxy_config::{
    DetectLocalMode, KubeProxyConfiguration, NodePortAddresses, Override, OverrideValue, read, read_with,
};

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";

fn parsed(rest: &str) -> KubeProxyConfiguration {
    read("f", &format!("{HEAD}{rest}")).unwrap_or_else(|error| panic!("{error}"))
}

fn error_of(rest: &str) -> String {
    read("f", &format!("{HEAD}{rest}")).unwrap_err().to_string()
}

fn warnings(rest: &str) -> Vec<String> {
    parsed(rest).warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn an_empty_file_has_kube_proxys_defaults() {
    let read = parsed("");
    let mut defaults = KubeProxyConfiguration::default();
    defaults.mode = "ipvs".to_owned();
    assert_eq!(read, defaults);
    assert_eq!(read.healthz_bind_address.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(read.metrics_bind_address.unwrap().to_string(), "127.0.0.1:10249");
    assert_eq!(
        (read.ipvs.sync_period, read.ipvs.min_sync_period),
        (Duration::from_secs(30), Duration::ZERO)
    );
    assert_eq!(
        (read.iptables.sync_period, read.iptables.min_sync_period),
        (Duration::from_secs(30), Duration::from_secs(1))
    );
    assert_eq!(
        (read.conntrack.max_per_core, read.conntrack.min),
        (32_768, 131_072)
    );
}

#[test]
fn explicit_zeros_have_the_default_only_where_kube_proxy_applies_it() {
    let read = parsed(
        "ipvs: {syncPeriod: 0s, minSyncPeriod: 0s, scheduler: ''}\niptables: {syncPeriod: 0s, minSyncPeriod: '0'}
conntrack: {maxPerCore: 0, min: null, tcpEstablishedTimeout: 0s}\nhealthzBindAddress: ''\nserviceProxyName: ''",
    );
    assert_eq!(read.ipvs.sync_period, Duration::from_secs(30));
    assert_eq!(read.ipvs.min_sync_period, Duration::ZERO);
    assert_eq!(read.ipvs.scheduler, "rr");
    assert_eq!(read.iptables.sync_period, Duration::from_secs(30));
    assert_eq!(read.iptables.min_sync_period, Duration::from_secs(1));
    assert_eq!(read.conntrack.max_per_core, 0);
    assert_eq!(read.conntrack.min, 131_072);
    assert_eq!(read.conntrack.tcp_established_timeout, Duration::ZERO);
    assert_eq!(read.healthz_bind_address.unwrap().port(), 10_256);
    assert_eq!(read.service_proxy_name, None);
    // Null is the same as absent.
    assert_eq!(
        parsed("ipvs: null\nconntrack:\nmode2: null").ipvs,
        parsed("").ipvs
    );
}

#[test]
fn all_fields_are_read() {
    let read = parsed(
        "hostnameOverride: ' Node-A '\nbindAddress: '::'\nclusterCIDR: 10.244.0.0/16,fd00::/16
nodePortAddresses: [192.0.2.7/24]\nserviceProxyName: mine\nbindAddressHardFail: true
ipvs: {scheduler: mh, strictARP: true, tcpTimeout: 1m30s, tcpFinTimeout: 2m, udpTimeout: 3m, excludeCIDRs: [10.1.2.3/8],
  syncPeriod: 1h, minSyncPeriod: 1.5s}
iptables: {masqueradeAll: true, masqueradeBit: 0}
conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, tcpBeLiberal: true, udpTimeout: 10s,
  udpStreamTimeout: 11s}
healthzBindAddress: 192.0.2.7",
    );
    assert_eq!(read.warnings, []);
    assert_eq!(read.hostname_override, "node-a");
    assert_eq!(read.bind_address, Some("::".parse().unwrap()));
    assert!(read.bind_address_hard_fail);
    assert_eq!(
        read.cluster_cidr,
        ["10.244.0.0/16".parse().unwrap(), "fd00::/16".parse().unwrap()]
    );
    assert_eq!(read.service_proxy_name.as_deref(), Some("mine"));
    assert_eq!(
        read.node_port_addresses,
        NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()])
    );
    assert_eq!(read.healthz_bind_address.unwrap().to_string(), "192.0.2.7:10256");
    assert_eq!(read.metrics_bind_address.unwrap().to_string(), "[::1]:10249");
    let ipvs = read.ipvs;
    assert_eq!((ipvs.scheduler.as_str(), ipvs.strict_arp), ("mh", true));
    assert_eq!(ipvs.exclude_cidrs, ["10.0.0.0/8".parse().unwrap()]);
    let periods = (ipvs.sync_period.as_millis(), ipvs.min_sync_period.as_millis());
    assert_eq!(periods, (3_600_000, 1_500));
    let timeouts = [ipvs.tcp_timeout, ipvs.tcp_fin_timeout, ipvs.udp_timeout];
    assert_eq!(timeouts.map(|timeout| timeout.as_secs()), [90, 120, 180]);
    assert_eq!(
        (read.iptables.masquerade_all, read.iptables.masquerade_bit),
        (true, 0)
    );
    let conntrack = read.conntrack;
    assert_eq!(
        (conntrack.max_per_core, conntrack.min, conntrack.tcp_be_liberal),
        (1, 2, true)
    );
    let timeouts = [
        conntrack.tcp_established_timeout,
        conntrack.tcp_close_wait_timeout,
        conntrack.udp_timeout,
        conntrack.udp_stream_timeout,
    ];
    assert_eq!(timeouts.map(|timeout| timeout.as_secs()), [3, 4, 10, 11]);
}

#[test]
fn local_traffic_is_detected_in_four_ways() {
    let bridge = parsed("detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}");
    assert_eq!(bridge.detect_local_mode, DetectLocalMode::BridgeInterface);
    assert_eq!(bridge.detect_local.bridge_interface, "cbr0");
    let prefix = parsed("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}");
    assert_eq!(prefix.detect_local_mode, DetectLocalMode::InterfaceNamePrefix);
    assert_eq!(prefix.detect_local.interface_name_prefix, "veth");
    let node = parsed("detectLocalMode: NodeCIDR\nclusterCIDR: not read in this mode");
    assert_eq!(node.detect_local_mode, DetectLocalMode::NodeCidr);
    assert_eq!(node.cluster_cidr, []);
    let cluster = parsed("detectLocalMode: ClusterCIDR\nclusterCIDR: fd00::/16");
    assert_eq!(cluster.cluster_cidr, ["fd00::/16".parse().unwrap()]);
    assert_eq!(
        error_of("detectLocalMode: BridgeInterface"),
        "f: detectLocal.bridgeInterface: must not be empty if detectLocalMode is BridgeInterface"
    );
    assert_eq!(
        error_of("detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: cbr0}"),
        "f: detectLocal.interfaceNamePrefix: must not be empty if detectLocalMode is InterfaceNamePrefix"
    );
    assert!(error_of("detectLocalMode: x").starts_with("f: detectLocalMode: \"x\" is not one of"));
}

#[test]
fn everything_invalid_is_reported_at_once() {
    assert_eq!(
        error_of(
            "ipvs: {syncPeriod: 1s, minSyncPeriod: 2s, excludeCIDRs: [x, 10.0.0.0/8, z], tcpTimeout: -1s}
iptables: {masqueradeBit: 32}\nconntrack: {min: -1}\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8
nodePortAddresses: [primary, 10.0.0.0/8]\nbindAddress: nowhere\nmetricsBindAddress: '127.0.0.1:99999'"
        ),
        "f: bindAddress: \"nowhere\" must be a valid IP address; \
         ipvs.syncPeriod: must be greater than or equal to ipvs.minSyncPeriod; \
         ipvs.excludeCIDRs[0]: \"x\" must be a valid CIDR such as 192.0.2.0/24; \
         ipvs.excludeCIDRs[2]: \"z\" must be a valid CIDR such as 192.0.2.0/24; \
         ipvs.tcpTimeout: must be greater than or equal to 0; \
         iptables.masqueradeBit: 32 must be within the range [0, 31]; \
         clusterCIDR: must be a single CIDR or a dual-stack pair of CIDRs \
         (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48); nodePortAddresses: must be either primary or a list of CIDRs, not both; \
         conntrack.min: must be greater than or equal to 0; metricsBindAddress: \"127.0.0.1:99999\" must be IP:port with a port \
         from 1 to 65535, an IP address, or none"
    );
    assert!(
        error_of("clusterCIDR: 10.244.0.0/16, fd00::/16")
            .starts_with("f: clusterCIDR: \"10.244.0.0/16, fd00::/16\" must be a valid")
    );
    for address in [
        "[::1]",
        "127.0.0.1:0",
        "127.0.0.1:",
        ":80",
        "localhost:80",
        "localhost",
        "None",
    ] {
        assert_eq!(
            error_of(&format!("healthzBindAddress: '{address}'")),
            format!(
                "f: healthzBindAddress: {address:?} must be IP:port with a port from 1 to 65535, an IP address, or none"
            )
        );
    }
}

#[test]
fn wrong_types_are_reported_together_with_invalid_values() {
    assert_eq!(
        error_of(
            "bindAddress: 7\nipvs: {strictARP: 'yes', tcpTimeout: 900, udpTimeout: soon, excludeCIDRs: [5, x, {}]}
conntrack: []\niptables: {masqueradeBit: 1.5}"
        ),
        "f: bindAddress: expected a text, found the number 7; \
         conntrack: expected an object, found a list; \
         iptables.masqueradeBit: expected a whole number, found the number 1.5; \
         ipvs.excludeCIDRs[0]: expected a text, found the number 5; \
         ipvs.excludeCIDRs[2]: expected a text, found an object; \
         ipvs.strictARP: expected true or false, found the text \"yes\"; \
         ipvs.tcpTimeout: expected a duration such as 30s or 1m30s, found the number 900; \
         ipvs.excludeCIDRs[1]: \"x\" must be a valid CIDR such as 192.0.2.0/24; \
         ipvs.udpTimeout: \"soon\" is not a duration such as 30s or 1m30s"
    );
    assert_eq!(
        read("f", "[1]").unwrap_err().to_string(),
        "f: expected an object, found a list"
    );
}

#[test]
fn a_file_of_another_kind_is_an_error() {
    assert_eq!(
        read("f", "").unwrap_err().to_string(),
        "f: apiVersion: is missing; expected \"kubeproxy.config.k8s.io/v1alpha1\"; \
         kind: is missing; expected \"KubeProxyConfiguration\""
    );
    assert_eq!(
        read("f", "apiVersion: v1\nkind: Service\nmode: x")
            .unwrap_err()
            .to_string(),
        "f: apiVersion: \"v1\" is not supported; expected \"kubeproxy.config.k8s.io/v1alpha1\"; \
         kind: \"Service\" is not supported; expected \"KubeProxyConfiguration\"; mode: must be iptables, ipvs, nftables, userspace or \
         empty (empty means iptables)"
    );
    let error = read("f", "a: 1\nb: [\n").unwrap_err();
    assert!(error.problems[0].field.starts_with("line "), "{error}");
}

#[test]
fn fields_without_effect_have_a_warning() {
    assert_eq!(
        warnings("oomScoreAdj: -998\niptables: {syncPeriod: 1s}\nfrobnicate: 1\nipvs: {a: {b: 1}}\n"),
        [
            "frobnicate: is not a field of KubeProxyConfiguration",
            "ipvs.a: is not a field of KubeProxyConfiguration",
            "oomScoreAdj: not used: the service manager sets it",
            "iptables.syncPeriod: has no effect in mode ipvs",
        ]
    );
    let iptables = HEAD.replace("ipvs", "iptables") + "iptables: {syncPeriod: 2s, localhostNodePorts: false}";
    let read = read("f", &iptables).unwrap();
    assert_eq!(read.warnings, []);
    assert_eq!(
        (
            read.iptables.sync_period.as_secs(),
            read.iptables.localhost_node_ports
        ),
        (2, false)
    );
}

/// As in kube-proxy, which compares only the periods of its mode.
#[test]
fn periods_of_iptables_mode_are_compared_in_that_mode() {
    let periods = "iptables: {syncPeriod: 500ms}";
    assert_eq!(parsed(periods).iptables.sync_period.as_millis(), 500);
    for mode in ["iptables", "''"] {
        let text = HEAD.replace("mode: ipvs", &format!("mode: {mode}")) + periods;
        assert_eq!(
            read("f", &text).unwrap_err().to_string(),
            "f: iptables.syncPeriod: must be greater than or equal to iptables.minSyncPeriod"
        );
    }
}

fn in_nftables_mode(rest: &str) -> String {
    HEAD.replace("mode: ipvs", "mode: nftables") + rest
}

#[test]
fn nftables_mode_has_the_defaults_of_kube_proxy() {
    let config = read("f", &in_nftables_mode("")).unwrap();
    let nftables = &config.nftables;
    assert_eq!((nftables.masquerade_bit, nftables.masquerade_all), (14, false));
    assert_eq!(
        (nftables.sync_period, nftables.min_sync_period),
        (Duration::from_secs(30), Duration::from_secs(1))
    );
    assert_eq!(config.node_port_addresses, NodePortAddresses::Primary);
    assert_eq!(config.warnings, []);
    assert_eq!(parsed("").node_port_addresses, NodePortAddresses::All);
    let all = read("f", &in_nftables_mode("nodePortAddresses: [0.0.0.0/0]")).unwrap();
    assert_eq!(
        all.node_port_addresses,
        NodePortAddresses::Networks(vec!["0.0.0.0/0".parse().unwrap()])
    );
}

#[test]
fn fields_of_nftables_mode_are_read_and_validated() {
    let fields = "nftables: {masqueradeBit: 31, masqueradeAll: true, syncPeriod: 2m, minSyncPeriod: 0s}";
    let nftables = read("f", &in_nftables_mode(fields)).unwrap().nftables;
    assert_eq!((nftables.masquerade_bit, nftables.masquerade_all), (31, true));
    assert_eq!(nftables.sync_period, Duration::from_secs(120));
    assert_eq!(
        nftables.min_sync_period,
        Duration::from_secs(1),
        "0 is the default, as in kube-proxy"
    );
    let error = |rest: &str| read("f", &in_nftables_mode(rest)).unwrap_err().to_string();
    assert_eq!(
        error("nftables: {masqueradeBit: 32, syncPeriod: soon}"),
        "f: nftables.syncPeriod: \"soon\" is not a duration such as 30s or 1m30s; nftables.masqueradeBit: 32 must be within the range [0, 31]"
    );
    let periods = "nftables: {syncPeriod: 500ms}";
    assert_eq!(
        error(periods),
        "f: nftables.syncPeriod: must be greater than or equal to nftables.minSyncPeriod"
    );
    assert_eq!(
        warnings(periods),
        ["nftables.syncPeriod: has an effect in mode nftables only"],
        "compared in nftables mode only"
    );
}

#[test]
fn fields_of_iptables_mode_have_no_effect_in_nftables_mode() {
    let rest = "iptables: {masqueradeBit: 3, masqueradeAll: true, localhostNodePorts: false, syncPeriod: 1m, minSyncPeriod: 2s}";
    let config = read("f", &in_nftables_mode(rest)).unwrap();
    let warnings: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        ["masqueradeBit", "masqueradeAll", "syncPeriod", "minSyncPeriod"]
            .map(|field| format!("iptables.{field}: has no effect in mode nftables"))
    );
}

#[test]
fn the_mode_is_read_from_a_file_whose_other_fields_are_invalid() {
    let mode = |text: &str| kernlink_kubernetes::kube_proxy_config::mode(text);
    assert_eq!(mode("mode: nftables\nipvs: 5").as_deref(), Some("nftables"));
    assert_eq!(mode("mode: 5"), None);
    assert_eq!(mode("a: ["), None);
    assert_eq!(mode(""), None);
}

/// A fraction of a second has no effect in the kernel. The value stays exact.
#[test]
fn a_timeout_with_a_fraction_of_a_second_has_a_warning() {
    let rest =
        "ipvs: {tcpTimeout: 1500ms, tcpFinTimeout: 2s, udpTimeout: 300ms}\nconntrack: {udpTimeout: 1.25s}";
    let read = parsed(rest);
    assert_eq!(read.ipvs.tcp_timeout, Duration::from_millis(1_500));
    assert_eq!(read.ipvs.udp_timeout, Duration::from_millis(300));
    assert_eq!(
        warnings(rest),
        [
            "ipvs.tcpTimeout: 1.5s is not a whole number of seconds; 1s is used",
            "ipvs.udpTimeout: 300ms is less than 1s; the kernel's value is kept",
            "conntrack.udpTimeout: 1.25s is not a whole number of seconds; 1s is used",
        ]
    );
}

/// The file as kubeadm writes it to its ConfigMap, and as kube-proxy writes it with `--write-config-to`: no value is chosen by a user.
#[test]
fn fields_that_kubeadm_and_kube_proxy_write_unchanged_have_no_warning() {
    for text in [
        include_str!("kube_proxy_config/kubeadm.yaml"),
        include_str!("kube_proxy_config/defaults.yaml"),
    ] {
        for mode in ["", "iptables", "ipvs", "nftables", "userspace"] {
            let mode_of = |value: &str| format!("mode: \"{value}\"");
            assert!(text.contains(&mode_of("")));
            let read = read("f", &text.replace(&mode_of(""), &mode_of(mode))).unwrap();
            assert_eq!(read.warnings, [], "{mode}");
        }
    }
    let read = read("f", include_str!("kube_proxy_config/kubeadm.yaml")).unwrap();
    let mut defaults = KubeProxyConfiguration::default();
    defaults.bind_address = Some([0, 0, 0, 0].into());
    defaults.client_connection.kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf".to_owned();
    defaults.cluster_cidr = vec!["10.244.0.0/16".parse().unwrap()];
    assert_eq!(read, defaults);
}

#[test]
fn each_value_without_effect_that_a_user_chose_has_a_warning() {
    assert_eq!(
        warnings(
            "clientConnection: {qps: 50, burst: 10, contentType: ''}\nfeatureGates: {A: false}\nnftables: {syncPeriod: 30000ms, masqueradeBit: 3}
logging: {verbosity: 4, format: text, options: {json: {infoBufferSize: '0', splitStream: true}}}\nwinkernel: {sourceVip: 192.0.2.1}
configSyncPeriod: 15m0s\nshowHiddenMetricsForVersion: '1.35'\nportRange: 0-0\nudpIdleTimeout: 250ms\niptables: {minSyncPeriod: 1000ms}"
        ),
        [
            "clientConnection.qps: not used: a list and a watch for each kind are all requests",
            "featureGates: not used: there are no feature gates",
            "logging.options.json.splitStream: not used: the program configures its own log",
            "showHiddenMetricsForVersion: not used: there are no hidden metrics",
            "winkernel.sourceVip: not used: applies to Windows only",
            "nftables.masqueradeBit: has an effect in mode nftables only",
        ]
    );
    assert_eq!(
        warnings("portRange: 300-400\nudpIdleTimeout: 1s\niptables: {localhostNodePorts: false}"),
        [
            "iptables.localhostNodePorts: has no effect in mode ipvs",
            "portRange: has an effect in mode userspace only",
            "udpIdleTimeout: has an effect in mode userspace only",
        ]
    );
}

#[test]
fn a_server_can_be_switched_off() {
    let read = parsed("healthzBindAddress: none\nmetricsBindAddress: '127.0.0.1:1'");
    assert_eq!(read.healthz_bind_address, None);
    assert_eq!(read.metrics_bind_address, "127.0.0.1:1".parse().ok());
}

#[test]
fn text_of_the_file_is_printed_on_one_line() {
    let error = error_of("detectLocalMode: \"a\\nb\\e[31m\\u202e\"\nbindAddress: {\"c\\nd\": 1}");
    let warning = &warnings("\"x\\ny\\u202e\": 1")[0];
    for line in [&error, warning] {
        assert!(
            !line.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{line:?}"
        );
    }
    // A long value is shortened.
    let long = error_of(&format!("bindAddressHardFail: {}", "x".repeat(100_000)));
    assert!(
        long.len() < 500 && long.contains("expected true or false, found the text"),
        "{}",
        long.len()
    );
}

#[test]
fn the_configurations_of_recorded_clusters_are_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../proxier/tests/oracle");
    let mut files = 0;
    for fixture in std::fs::read_dir(folder).unwrap() {
        if let Ok(text) = std::fs::read_to_string(fixture.unwrap().path().join("config.yaml")) {
            let read = read("config.yaml", &text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(read.mode, "ipvs");
            files += 1;
        }
    }
    assert_eq!(files, 19);
}

#[test]
fn overrides_replace_fields_of_the_file_before_they_are_checked() {
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: bad\nipvs: {scheduler: lc, tcpTimeout: 5s}\n";
    let text_of = |text: &str| OverrideValue::Text(text.to_owned());
    let set = |field, value| Override { field, value };
    let config = read_with(
        "c.yaml",
        text,
        &[
            set("ipvs.scheduler", text_of("wrr")),
            set("clusterCIDR", text_of("10.244.0.0/16")),
            set("conntrack.min", OverrideValue::Number(7)),
            set("iptables.masqueradeAll", OverrideValue::Bool(true)),
            set(
                "nodePortAddresses",
                OverrideValue::List(vec!["192.0.2.0/24".to_owned()]),
            ),
        ],
    )
    .unwrap();
    assert_eq!(config.ipvs.scheduler, "wrr");
    assert_eq!(
        config.ipvs.tcp_timeout.as_secs(),
        5,
        "other fields of the block stay"
    );
    assert_eq!((config.conntrack.min, config.cluster_cidr.len()), (7, 1));
    assert!(config.iptables.masquerade_all);
    assert_eq!(
        config.node_port_addresses,
        NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()])
    );
    let error = read_with("c.yaml", text, &[set("clusterCIDR.x", OverrideValue::Number(1))]).unwrap_err();
    assert!(error.to_string().contains("clusterCIDR"), "{error}");
    let error = read_with("c.yaml", "", &[set("mode", text_of("x"))]).unwrap_err();
    assert!(error.to_string().contains("mode: must be"), "{error}");
}

#[test]
fn restrictions_of_what_services_may_request_are_read() {
    let none = parsed("").kernlink;
    assert_eq!(
        (&none.service_annotations, &none.service_annotation_namespaces),
        (&None, &None)
    );
    assert_eq!(
        (&none.service_schedulers, none.ignore_external_ips),
        (&None, false)
    );
    assert_eq!(parsed("kernlink: {serviceAnnotations: null}").kernlink, none);
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let read = parsed(
        "kernlink: {serviceAnnotations: [scheduler, weights], serviceAnnotationNamespaces: [kube-system, a], serviceSchedulers: [lblc],
  ignoreExternalIPs: true}",
    );
    assert_eq!(read.warnings, []);
    assert_eq!(
        read.kernlink.service_annotations,
        names(&["scheduler", "weights"])
    );
    assert_eq!(
        read.kernlink.service_annotation_namespaces,
        names(&["kube-system", "a"])
    );
    assert_eq!(read.kernlink.service_schedulers, names(&["lblc"]));
    assert!(read.kernlink.ignore_external_ips);
    // An empty list permits nothing.
    let empty = parsed("kernlink: {serviceAnnotations: [], serviceSchedulers: []}").kernlink;
    assert_eq!(
        (empty.service_annotations, empty.service_schedulers),
        (names(&[]), names(&[]))
    );
}

#[test]
fn an_invalid_restriction_is_an_error_and_not_taken_for_absent() {
    for (block, expected) in [
        (
            "{ignoreExternalIps: true}",
            "kernlink.ignoreExternalIps: is not a field; valid: serviceAnnotations, serviceAnnotationNamespaces, serviceSchedulers, \
             ignoreExternalIPs",
        ),
        (
            "{ignoreExternalIPs: 'yes'}",
            "kernlink.ignoreExternalIPs: expected",
        ),
        (
            "{serviceAnnotations: [kernlink.io/scheduler]}",
            "kernlink.serviceAnnotations[0]: \"kernlink.io/scheduler\" must be one of affinity-mask, drain-timeout, forwarding-method, \
             one-packet, scheduler, scheduler-flags, weights",
        ),
        (
            "{serviceAnnotationNamespaces: [a, A_b, null]}",
            "kernlink.serviceAnnotationNamespaces[1]: \"A_b\" must be the name of a namespace: at most 63 lower-case letters, digits and -; \
             kernlink.serviceAnnotationNamespaces[2]: \"\" must be",
        ),
        (
            "{serviceSchedulers: ['']}",
            "kernlink.serviceSchedulers[0]: \"\" must be the name of an IPVS scheduler",
        ),
        (
            "{serviceSchedulers: rr}",
            "kernlink.serviceSchedulers: expected a list",
        ),
        ("[]", "kernlink: expected an object"),
    ] {
        let error = error_of(&format!("kernlink: {block}"));
        assert!(error.starts_with(&format!("f: {expected}")), "{block}: {error}");
    }
}
