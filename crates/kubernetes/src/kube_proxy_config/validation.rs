//! kube-proxy's defaults and validation.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use kernlink_services::Family;
use kernlink_services::address::{parse_address, parse_net};
use kernlink_services::duration::{GoDuration, parse_go_duration};
use kernlink_services::model::options::{is_known_annotation, known_annotations};

use super::file;
use super::{
    ClientConnection, Conntrack, DEFAULT_SYNC_PERIOD, DetectLocal, DetectLocalMode, Iptables, Ipvs, Kernlink,
    KubeProxyConfiguration, Nftables, NodePortAddresses, Warning,
};
use crate::error::{FieldError, FieldErrors};

/// Validates the values and applies defaults. Serde has checked the types. `warnings` are those about fields that are not read.
pub(super) fn validate(
    file: &file::Fields,
    type_errors: Vec<FieldError>,
    warnings: Vec<Warning>,
) -> Result<KubeProxyConfiguration, Vec<FieldError>> {
    let mut validator = Validator {
        errors: FieldErrors::of_types(type_errors),
        warnings,
    };
    let config = validator.config(file);
    if validator.errors.is_usable() {
        Ok(KubeProxyConfiguration {
            warnings: validator.warnings,
            ..config
        })
    } else {
        Err(validator.errors.into_vec())
    }
}

struct Validator {
    errors: FieldErrors,
    warnings: Vec<Warning>,
}

impl Validator {
    fn config(&mut self, file: &file::Fields) -> KubeProxyConfiguration {
        self.fixed(
            "apiVersion",
            file.api_version.as_ref(),
            "kubeproxy.config.k8s.io/v1alpha1",
        );
        self.fixed("kind", file.kind.as_ref(), "KubeProxyConfiguration");
        let mode = file.mode.clone().unwrap_or_default();
        if !["ipvs", "iptables", "nftables", "userspace", ""].contains(&mode.as_str()) {
            self.errors.add(
                "mode",
                "must be iptables, ipvs, nftables, userspace or empty (empty means iptables)",
            );
        }
        let bind_address = self.bind_address(file.bind_address.as_deref());
        let ipvs = self.ipvs(&file.ipvs);
        let iptables = self.iptables(&file.iptables, &mode);
        let nftables = self.nftables(&file.nftables, &mode);
        let (detect_local_mode, cluster_cidr) = self.local_detection(file);
        let node_port_addresses = self.node_port_addresses(file.node_port_addresses.as_deref(), &mode);
        let conntrack = self.conntrack(&file.conntrack);
        let udp_idle_timeout = self.userspace(file, &mode);
        let kernlink = self.kernlink(&file.kernlink);
        let (all, loopback) = if matches!(bind_address, Some(IpAddr::V6(_))) {
            ("[::]:10256", "[::1]:10249")
        } else {
            ("0.0.0.0:10256", "127.0.0.1:10249")
        };
        KubeProxyConfiguration {
            mode,
            hostname_override: text(file.hostname_override.as_ref()).trim().to_lowercase(),
            bind_address,
            bind_address_hard_fail: file.bind_address_hard_fail.unwrap_or_default(),
            healthz_bind_address: self.socket("healthzBindAddress", file.healthz_bind_address.as_ref(), all),
            metrics_bind_address: self.socket(
                "metricsBindAddress",
                file.metrics_bind_address.as_ref(),
                loopback,
            ),
            service_proxy_name: file.service_proxy_name.clone().filter(|name| !name.is_empty()),
            client_connection: ClientConnection {
                kubeconfig: text(file.client_connection.kubeconfig.as_ref()).to_owned(),
            },
            node_port_addresses,
            detect_local_mode,
            detect_local: DetectLocal {
                bridge_interface: text(file.detect_local.bridge_interface.as_ref()).to_owned(),
                interface_name_prefix: text(file.detect_local.interface_name_prefix.as_ref()).to_owned(),
            },
            cluster_cidr,
            ipvs,
            iptables,
            nftables,
            conntrack,
            port_range: text(file.port_range.as_ref()).trim().to_owned(),
            udp_idle_timeout,
            log_verbosity: self.log_verbosity(file.logging.verbosity),
            kernlink,
            warnings: Vec::new(),
        }
    }

    fn log_verbosity(&mut self, verbosity: Option<i64>) -> u32 {
        u32::try_from(verbosity.unwrap_or_default()).unwrap_or_else(|_| {
            self.errors.add("logging.verbosity", "must be 0 to 4294967295");
            0
        })
    }

    fn fixed(&mut self, field: &str, found: Option<&String>, expected: &str) {
        match found {
            Some(text) if text == expected => {}
            Some(text) => self
                .errors
                .add(field, format!("{text:?} is not supported; expected {expected:?}")),
            None => self
                .errors
                .add(field, format!("is missing; expected {expected:?}")),
        }
    }

    fn warn(&mut self, field: &str, reason: impl Into<String>) {
        self.warnings.push(Warning {
            field: field.to_owned(),
            reason: reason.into(),
        });
    }

    fn bind_address(&mut self, text: Option<&str>) -> Option<IpAddr> {
        let text = text.filter(|text| !text.is_empty())?;
        let address = parse_address(text);
        if address.is_none() {
            self.errors
                .add("bindAddress", format!("{text:?} must be a valid IP address"));
        }
        address
    }

    fn ipvs(&mut self, file: &file::Ipvs) -> Ipvs {
        let sync_period = self.period("ipvs.syncPeriod", file.sync_period.as_ref(), DEFAULT_SYNC_PERIOD);
        let min_sync_period = self.duration(
            "ipvs.minSyncPeriod",
            file.min_sync_period.as_ref(),
            Duration::ZERO,
        );
        if min_sync_period > sync_period {
            self.errors.add(
                "ipvs.syncPeriod",
                "must be greater than or equal to ipvs.minSyncPeriod",
            );
        }
        let nets = file.exclude_cidrs.iter().flatten().enumerate();
        let exclude_cidrs = nets
            .filter_map(|(position, text)| self.net(format!("ipvs.excludeCIDRs[{position}]"), text.as_ref()));
        Ipvs {
            exclude_cidrs: exclude_cidrs.collect(),
            sync_period,
            min_sync_period,
            scheduler: match text(file.scheduler.as_ref()) {
                "" => Ipvs::default().scheduler,
                name => name.to_owned(),
            },
            strict_arp: file.strict_arp.unwrap_or_default(),
            tcp_timeout: self.timeout("ipvs.tcpTimeout", file.tcp_timeout.as_ref(), Duration::ZERO),
            tcp_fin_timeout: self.timeout(
                "ipvs.tcpFinTimeout",
                file.tcp_fin_timeout.as_ref(),
                Duration::ZERO,
            ),
            udp_timeout: self.timeout("ipvs.udpTimeout", file.udp_timeout.as_ref(), Duration::ZERO),
        }
    }

    fn iptables(&mut self, file: &file::Iptables, mode: &str) -> Iptables {
        let default = Iptables::default();
        let sync_period = self.period(
            "iptables.syncPeriod",
            file.sync_period.as_ref(),
            default.sync_period,
        );
        let min_sync_period = self.period(
            "iptables.minSyncPeriod",
            file.min_sync_period.as_ref(),
            default.min_sync_period,
        );
        if ["", "iptables", "userspace"].contains(&mode) && min_sync_period > sync_period {
            self.errors.add(
                "iptables.syncPeriod",
                "must be greater than or equal to iptables.minSyncPeriod",
            );
        }
        let masquerade_bit = self.bit(
            "iptables.masqueradeBit",
            file.masquerade_bit,
            default.masquerade_bit,
        );
        let masquerade_all = file.masquerade_all.unwrap_or_default();
        let localhost_node_ports = file.localhost_node_ports.unwrap_or(default.localhost_node_ports);
        if mode == "ipvs" || mode == "nftables" {
            let is_nftables = mode == "nftables";
            for (field, is_chosen) in [
                (
                    "iptables.masqueradeBit",
                    is_nftables && masquerade_bit != default.masquerade_bit,
                ),
                (
                    "iptables.masqueradeAll",
                    is_nftables && masquerade_all != default.masquerade_all,
                ),
                ("iptables.syncPeriod", sync_period != default.sync_period),
                (
                    "iptables.minSyncPeriod",
                    min_sync_period != default.min_sync_period,
                ),
                (
                    "iptables.localhostNodePorts",
                    // nftables mode does what `false` requests.
                    !is_nftables && localhost_node_ports != default.localhost_node_ports,
                ),
            ] {
                if is_chosen {
                    self.warn(field, format!("has no effect in mode {mode}"));
                }
            }
        }
        Iptables {
            masquerade_bit,
            masquerade_all,
            localhost_node_ports,
            sync_period,
            min_sync_period,
        }
    }

    fn nftables(&mut self, file: &file::Nftables, mode: &str) -> Nftables {
        let default = Nftables::default();
        let sync_period = self.period(
            "nftables.syncPeriod",
            file.sync_period.as_ref(),
            default.sync_period,
        );
        let min_sync_period = self.period(
            "nftables.minSyncPeriod",
            file.min_sync_period.as_ref(),
            default.min_sync_period,
        );
        let masquerade_bit = self.bit(
            "nftables.masqueradeBit",
            file.masquerade_bit,
            default.masquerade_bit,
        );
        let masquerade_all = file.masquerade_all.unwrap_or_default();
        if mode != "nftables" {
            for (field, is_chosen) in [
                ("nftables.masqueradeBit", masquerade_bit != default.masquerade_bit),
                ("nftables.masqueradeAll", masquerade_all != default.masquerade_all),
                ("nftables.syncPeriod", sync_period != default.sync_period),
                (
                    "nftables.minSyncPeriod",
                    min_sync_period != default.min_sync_period,
                ),
            ] {
                if is_chosen {
                    self.warn(field, "has an effect in mode nftables only");
                }
            }
        } else if min_sync_period > sync_period {
            self.errors.add(
                "nftables.syncPeriod",
                "must be greater than or equal to nftables.minSyncPeriod",
            );
        }
        Nftables {
            masquerade_bit,
            masquerade_all,
            sync_period,
            min_sync_period,
        }
    }

    /// The number of a bit of the packet mark. The default if absent or invalid.
    fn bit(&mut self, field: &str, number: Option<i64>, default: u8) -> u8 {
        let Some(number) = number else {
            return default;
        };
        let bit = u8::try_from(number).ok().filter(|bit| *bit < 32);
        bit.unwrap_or_else(|| {
            self.errors
                .add(field, format!("{number} must be within the range [0, 31]"));
            default
        })
    }

    /// The fields that only userspace mode has. Returns `udpIdleTimeout`.
    fn userspace(&mut self, file: &file::Fields, mode: &str) -> Duration {
        let idle = self.duration("udpIdleTimeout", file.udp_idle_timeout.as_ref(), Duration::ZERO);
        if mode != "userspace" {
            let is_default_range = ["", "0", "0-0"].contains(&text(file.port_range.as_ref()).trim());
            // kube-proxy before 1.26 writes its default of 250 ms.
            let is_default_timeout = idle.is_zero() || idle == Duration::from_millis(250);
            for (field, is_chosen) in [
                ("portRange", !is_default_range),
                ("udpIdleTimeout", !is_default_timeout),
            ] {
                if is_chosen {
                    self.warn(field, "has an effect in mode userspace only");
                }
            }
        }
        idle
    }

    fn kernlink(&mut self, file: &file::Kernlink) -> Kernlink {
        let annotations = format!("must be one of {}", known_annotations());
        Kernlink {
            service_annotations: self.names(
                "kernlink.serviceAnnotations",
                file.service_annotations.as_deref(),
                is_known_annotation,
                &annotations,
            ),
            service_annotation_namespaces: self.names(
                "kernlink.serviceAnnotationNamespaces",
                file.service_annotation_namespaces.as_deref(),
                is_namespace,
                "must be the name of a namespace: at most 63 lower-case letters, digits and -",
            ),
            service_schedulers: self.names(
                "kernlink.serviceSchedulers",
                file.service_schedulers.as_deref(),
                |name| !name.is_empty(),
                "must be the name of an IPVS scheduler",
            ),
            ignore_external_ips: file.ignore_external_ips.unwrap_or_default(),
        }
    }

    /// A list of names. `None` if it is absent.
    fn names(
        &mut self,
        field: &str,
        list: Option<&[Option<String>]>,
        is_valid: impl Fn(&str) -> bool,
        expected: &str,
    ) -> Option<Vec<String>> {
        let mut names = Vec::new();
        for (position, name) in list?.iter().enumerate() {
            let name = name.as_deref().unwrap_or_default();
            if is_valid(name) {
                names.push(name.to_owned());
            } else {
                self.errors
                    .add(format!("{field}[{position}]"), format!("{name:?} {expected}"));
            }
        }
        Some(names)
    }

    fn local_detection(&mut self, file: &file::Fields) -> (DetectLocalMode, Vec<IpNet>) {
        let mode = match text(file.detect_local_mode.as_ref()) {
            "" | "ClusterCIDR" => DetectLocalMode::ClusterCidr,
            "NodeCIDR" => DetectLocalMode::NodeCidr,
            "BridgeInterface" => DetectLocalMode::BridgeInterface,
            "InterfaceNamePrefix" => DetectLocalMode::InterfaceNamePrefix,
            other => {
                let reason = format!(
                    "{other:?} is not one of \"BridgeInterface\", \"ClusterCIDR\", \"InterfaceNamePrefix\", \
                     \"NodeCIDR\", \"\""
                );
                self.errors.add("detectLocalMode", reason);
                return (DetectLocalMode::ClusterCidr, Vec::new());
            }
        };
        let needed = match mode {
            DetectLocalMode::ClusterCidr => {
                return (mode, self.cluster_cidr(text(file.cluster_cidr.as_ref())));
            }
            DetectLocalMode::NodeCidr => None,
            DetectLocalMode::BridgeInterface => {
                Some(("detectLocal.bridgeInterface", &file.detect_local.bridge_interface))
            }
            DetectLocalMode::InterfaceNamePrefix => Some((
                "detectLocal.interfaceNamePrefix",
                &file.detect_local.interface_name_prefix,
            )),
        };
        if let Some((field, name)) = needed
            && text(name.as_ref()).is_empty()
        {
            let mode = text(file.detect_local_mode.as_ref());
            self.errors
                .add(field, format!("must not be empty if detectLocalMode is {mode}"));
        }
        (mode, Vec::new())
    }

    /// Parses an empty text, one network, or one network of each family separated by a comma.
    fn cluster_cidr(&mut self, text: &str) -> Vec<IpNet> {
        if text.is_empty() {
            return Vec::new();
        }
        let Some(nets) = text.split(',').map(parse_net).collect::<Option<Vec<_>>>() else {
            let reason =
                format!("{text:?} must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)");
            self.errors.add("clusterCIDR", reason);
            return Vec::new();
        };
        let is_repeated = |family: &Family| {
            nets.iter()
                .filter(|net| Family::of(net.addr()) == *family)
                .count()
                > 1
        };
        if Family::ALL.iter().any(is_repeated) {
            self.errors.add(
                "clusterCIDR",
                "must be a single CIDR or a dual-stack pair of CIDRs (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)",
            );
        }
        nets
    }

    fn node_port_addresses(&mut self, list: Option<&[Option<String>]>, mode: &str) -> NodePortAddresses {
        let list = list.unwrap_or_default();
        if list.is_empty() {
            return match mode {
                "nftables" => NodePortAddresses::Primary,
                _ => NodePortAddresses::All,
            };
        }
        if list.iter().any(|item| item.as_deref() == Some("primary")) {
            if list.len() > 1 {
                self.errors.add(
                    "nodePortAddresses",
                    "must be either primary or a list of CIDRs, not both",
                );
            }
            return NodePortAddresses::Primary;
        }
        let nets = list.iter().enumerate();
        let nets = nets
            .filter_map(|(position, item)| self.net(format!("nodePortAddresses[{position}]"), item.as_ref()));
        NodePortAddresses::Networks(nets.collect())
    }

    fn conntrack(&mut self, file: &file::Conntrack) -> Conntrack {
        let default = Conntrack::default();
        Conntrack {
            max_per_core: self.count("conntrack.maxPerCore", file.max_per_core, default.max_per_core),
            min: self.count("conntrack.min", file.min, default.min),
            tcp_established_timeout: self.timeout(
                "conntrack.tcpEstablishedTimeout",
                file.tcp_established_timeout.as_ref(),
                default.tcp_established_timeout,
            ),
            tcp_close_wait_timeout: self.timeout(
                "conntrack.tcpCloseWaitTimeout",
                file.tcp_close_wait_timeout.as_ref(),
                default.tcp_close_wait_timeout,
            ),
            tcp_be_liberal: file.tcp_be_liberal.unwrap_or_default(),
            udp_timeout: self.timeout(
                "conntrack.udpTimeout",
                file.udp_timeout.as_ref(),
                default.udp_timeout,
            ),
            udp_stream_timeout: self.timeout(
                "conntrack.udpStreamTimeout",
                file.udp_stream_timeout.as_ref(),
                default.udp_stream_timeout,
            ),
        }
    }

    /// A duration of 0 or more. The default if absent or invalid.
    fn duration(&mut self, field: &str, text: Option<&String>, default: Duration) -> Duration {
        let Some(text) = text else {
            return default;
        };
        match parse_go_duration(text) {
            Some(GoDuration::NonNegative(duration)) => return duration,
            Some(GoDuration::Negative) => self.errors.add(field, "must be greater than or equal to 0"),
            None => self
                .errors
                .add(field, format!("{text:?} is not a duration such as 30s or 1m30s")),
        }
        default
    }

    /// A duration. The default if absent, invalid or 0.
    fn period(&mut self, field: &str, text: Option<&String>, default: Duration) -> Duration {
        match self.duration(field, text, default) {
            Duration::ZERO => default,
            period => period,
        }
    }

    /// A duration that the kernel counts in whole seconds. Adds a warning if it has a fraction.
    fn timeout(&mut self, field: &str, text: Option<&String>, default: Duration) -> Duration {
        let timeout = self.duration(field, text, default);
        if timeout.subsec_nanos() > 0 {
            let reason = match timeout.as_secs() {
                0 => format!("{timeout:?} is less than 1s; the kernel's value is kept"),
                seconds => format!("{timeout:?} is not a whole number of seconds; {seconds}s is used"),
            };
            self.warn(field, reason);
        }
        timeout
    }

    fn count(&mut self, field: &str, number: Option<i64>, default: u32) -> u32 {
        let Some(number) = number else {
            return default;
        };
        if number < 0 {
            self.errors.add(field, "must be greater than or equal to 0");
        } else if number > u32::MAX.into() {
            self.errors
                .add(field, format!("must be less than or equal to {}", u32::MAX));
        }
        u32::try_from(number).unwrap_or(default)
    }

    fn net(&mut self, field: String, text: Option<&String>) -> Option<IpNet> {
        let net = text.and_then(|text| parse_net(text));
        if net.is_none() {
            let found = text.map(|text| format!("{text:?} ")).unwrap_or_default();
            self.errors
                .add(field, format!("{found}must be a valid CIDR such as 192.0.2.0/24"));
        }
        net
    }

    /// An address with or without a port. An absent or empty text is the default; an address without a port has the port of the default.
    /// `None` for `none`, and if it is invalid.
    fn socket(&mut self, field: &str, given: Option<&String>, default: &str) -> Option<SocketAddr> {
        let default: SocketAddr = default.parse().ok()?;
        let text = text(given);
        if text.is_empty() {
            return Some(default);
        }
        if text == "none" {
            return None;
        }
        if let Some(address) = parse_address(text) {
            return Some(SocketAddr::new(address, default.port()));
        }
        match text.parse::<SocketAddr>() {
            Ok(socket) if socket.port() > 0 => Some(socket),
            _ => {
                let reason =
                    format!("{text:?} must be IP:port with a port from 1 to 65535, an IP address, or none");
                self.errors.add(field, reason);
                None
            }
        }
    }
}

/// Whether a text is the name of a namespace: a label of RFC 1123.
fn is_namespace(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(is_part)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn text(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}
