//! kube-proxy's own configuration file: `KubeProxyConfiguration`, `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! Defaults and limits are kube-proxy's for its IPVS mode. What kube-proxy knows and a proxier has no use for is named in a
//! warning; so is a field that kube-proxy would not know.

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use kernlink_ipvs::Scheduler;

use crate::config::{Config, Conntrack, IpvsTimeouts, LocalDetection, MasqueradeBit, NodePortAddresses};
use crate::duration::{GoDuration, go_duration};
use crate::family::{Family, parse_address, parse_net};
use crate::field::{Field, FieldError};
use crate::model::annotations::known_scheduler;
use crate::one_line::OneLine;
use crate::yaml;

/// What a file said.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct KubeProxyConfiguration {
    /// What shapes the desired state. The node name is `hostnameOverride`, trimmed and in lower case; empty where the file has
    /// none.
    pub config: Config,
    /// `mode`: `ipvs`, or whatever else the file says; empty where it says nothing.
    pub mode: String,
    /// `healthzBindAddress`.
    pub healthz_bind_address: SocketAddr,
    /// `metricsBindAddress`.
    pub metrics_bind_address: SocketAddr,
    /// `bindAddressHardFail`: whether a health or metrics port that cannot be opened ends the process.
    pub bind_address_hard_fail: bool,
    /// What was not used, and why.
    pub warnings: Vec<Warning>,
}

/// A field that was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The path of the field.
    pub field: String,
    /// Why it was not used.
    pub reason: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(OneLine(f), "{}: {}", self.field, self.reason)
    }
}

/// Everything that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The file as named by the caller.
    pub file: String,
    /// What is wrong, in the order of the fields; at least one.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path of the field, or `line N` where the text is no YAML.
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is in the text may hold anything, and this is one line.
        let mut f = OneLine(f);
        f.write_str(&self.file)?;
        for (position, problem) in self.problems.iter().enumerate() {
            let separator = if position == 0 { ": " } else { "; " };
            f.write_str(separator)?;
            if !problem.field.is_empty() {
                write!(f, "{}: ", problem.field)?;
            }
            f.write_str(&problem.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Reads a file's text. `file` is only named in errors.
///
/// # Errors
/// [`Error`] with everything that is wrong, as kube-proxy would refuse it too.
pub fn read(file: &str, text: &str) -> Result<KubeProxyConfiguration, Error> {
    let failed = |problems| Error {
        file: file.to_owned(),
        problems,
    };
    let value = match yaml::parse(text) {
        Ok(Some(value)) => value,
        Ok(None) => serde_json::Value::Object(serde_json::Map::new()),
        Err((line, reason)) => {
            return Err(failed(vec![Problem {
                field: format!("line {}", line + 1),
                reason,
            }]));
        }
    };
    let root = Field::root(&value);
    let mut reader = Reader {
        problems: Vec::new(),
        warnings: Vec::new(),
    };
    let read = reader.read(&root);
    match read {
        Some(read) if reader.problems.is_empty() => Ok(KubeProxyConfiguration {
            warnings: reader.warnings,
            ..read
        }),
        _ => Err(failed(reader.problems)),
    }
}

/// The fields that matter, or are known not to, by block.
const KNOWN: [(&str, &[&str]); 5] = [
    (
        "",
        &[
            "apiVersion",
            "kind",
            "mode",
            "bindAddress",
            "bindAddressHardFail",
            "healthzBindAddress",
            "metricsBindAddress",
            "hostnameOverride",
            "clusterCIDR",
            "detectLocalMode",
            "detectLocal",
            "nodePortAddresses",
            "serviceProxyName",
            "ipvs",
            "iptables",
            "conntrack",
        ],
    ),
    (
        "ipvs",
        &[
            "syncPeriod",
            "minSyncPeriod",
            "scheduler",
            "excludeCIDRs",
            "strictARP",
            "tcpTimeout",
            "tcpFinTimeout",
            "udpTimeout",
        ],
    ),
    ("iptables", &["masqueradeBit", "masqueradeAll"]),
    ("detectLocal", &["bridgeInterface", "interfaceNamePrefix"]),
    (
        "conntrack",
        &[
            "maxPerCore",
            "min",
            "tcpEstablishedTimeout",
            "tcpCloseWaitTimeout",
            "tcpBeLiberal",
            "udpTimeout",
            "udpStreamTimeout",
        ],
    ),
];

/// Fields of kube-proxy that a proxier has no use for.
const WITHOUT_USE: [(&str, &str); 15] = [
    (
        "clientConnection",
        "whoever watches the cluster decides how it connects",
    ),
    (
        "configSyncPeriod",
        "whoever watches the cluster decides when it lists anew",
    ),
    ("oomScoreAdj", "the service manager sets it"),
    ("enableProfiling", "there is no profiling port"),
    ("featureGates", "there are no feature gates"),
    ("showHiddenMetricsForVersion", "there are no hidden metrics"),
    ("logging", "the embedder decides about its log"),
    ("nftables", "the mode is ipvs"),
    ("winkernel", "this is not Windows"),
    ("portRange", "kube-proxy ignores it too"),
    ("windowsRunAsService", "this is not Windows"),
    ("iptables.syncPeriod", "the mode is ipvs"),
    ("iptables.minSyncPeriod", "the mode is ipvs"),
    (
        "iptables.localhostNodePorts",
        "IPVS never serves node ports on loopback addresses",
    ),
    ("udpIdleTimeout", "kube-proxy ignores it too"),
];

struct Reader {
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Reader {
    /// The value, or the problem noted.
    fn take<T>(&mut self, read: Result<T, FieldError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                self.problems.push(Problem {
                    field: error.field,
                    reason: error.reason,
                });
                None
            }
        }
    }

    fn refuse(&mut self, field: &Field<'_>, reason: impl Into<String>) {
        self.take::<()>(Err(field.error(reason)));
    }

    /// Returns something wherever reading can go on; a problem noted makes the whole fail in the end.
    fn read(&mut self, root: &Field<'_>) -> Option<KubeProxyConfiguration> {
        for (field, wanted) in [
            ("apiVersion", "kubeproxy.config.k8s.io/v1alpha1"),
            ("kind", "KubeProxyConfiguration"),
        ] {
            let field = self.take(root.get(field))?;
            match self.take(field.string())? {
                Some(text) if text == wanted => {}
                Some(text) => self.refuse(&field, format!("{text:?} is not {wanted:?}")),
                None => self.refuse(&field, format!("is missing; it must be {wanted:?}")),
            }
        }
        self.warn_about_the_rest(root);
        let name = self.text(root, "hostnameOverride").trim().to_lowercase();
        let mut config = Config::new(name);
        let mode = self.text(root, "mode");
        match mode.as_str() {
            "ipvs" => {}
            "" | "iptables" | "nftables" => {
                let why = "only kube-proxy's mode \"ipvs\" is served; it is taken as that";
                self.warnings.push(Warning {
                    field: "mode".to_owned(),
                    reason: why.to_owned(),
                });
            }
            _ => {
                let field = self.take(root.get("mode"))?;
                self.refuse(
                    &field,
                    "must be iptables, ipvs, nftables or blank (blank means the best-available proxy \
                     [currently iptables])",
                );
            }
        }
        self.bind_address(root, &mut config);
        self.ipvs(root, &mut config);
        self.iptables(root, &mut config);
        self.local_detection(root, &mut config);
        self.node_port_addresses(root, &mut config);
        self.conntrack(root, &mut config);
        config.service_proxy_name = Some(self.text(root, "serviceProxyName")).filter(|name| !name.is_empty());
        let six = matches!(config.bind_address, Some(IpAddr::V6(_)));
        let (all, loopback) = if six {
            ("[::]", "[::1]")
        } else {
            ("0.0.0.0", "127.0.0.1")
        };
        let healthz_bind_address = self.socket(root, "healthzBindAddress", all, 10_256);
        let metrics_bind_address = self.socket(root, "metricsBindAddress", loopback, 10_249);
        let hard_fail = self.take(root.get("bindAddressHardFail"))?;
        Some(KubeProxyConfiguration {
            config,
            mode,
            healthz_bind_address: healthz_bind_address?,
            metrics_bind_address: metrics_bind_address?,
            bind_address_hard_fail: self.take(hard_fail.boolean())?.unwrap_or(false),
            warnings: Vec::new(),
        })
    }

    fn warn_about_the_rest(&mut self, root: &Field<'_>) {
        for (block, known) in KNOWN {
            let Some(field) = (if block.is_empty() {
                Some(*root)
            } else {
                self.take(root.get(block))
            }) else {
                continue;
            };
            let Some(names) = self.take(field.names()) else {
                continue;
            };
            for name in names.into_iter().filter(|name| !known.contains(name)) {
                let path = if block.is_empty() {
                    name.to_owned()
                } else {
                    format!("{block}.{name}")
                };
                let without_use = WITHOUT_USE.iter().find(|(known, _)| *known == path);
                let reason = without_use.map_or("is no field of KubeProxyConfiguration", |(_, why)| *why);
                self.warnings.push(Warning {
                    field: path,
                    reason: reason.to_owned(),
                });
            }
        }
    }

    fn text(&mut self, parent: &Field<'_>, name: &str) -> String {
        let read = parent
            .get(name)
            .and_then(|field| Ok(field.string()?.unwrap_or_default().to_owned()));
        self.take(read).unwrap_or_default()
    }

    fn flag(&mut self, parent: &Field<'_>, name: &str) -> bool {
        let read = parent
            .get(name)
            .and_then(|field| Ok(field.boolean()?.unwrap_or_default()));
        self.take(read).unwrap_or_default()
    }

    /// A duration of at least zero; `default` where the file has none.
    fn duration(&mut self, parent: &Field<'_>, name: &str, default: Duration) -> Duration {
        let read = parent.get(name).and_then(|field| match field.string()? {
            None => Ok(default),
            Some(text) => match go_duration(text) {
                Some(GoDuration::Positive(duration)) => Ok(duration),
                Some(GoDuration::Negative) => Err(field.error("must be greater than or equal to 0")),
                None => Err(field.error(format!("{text:?} is not a duration such as 30s or 1m30s"))),
            },
        });
        self.take(read).unwrap_or(default)
    }

    fn count(&mut self, parent: &Field<'_>, name: &str, default: u32) -> u32 {
        let read = parent.get(name).and_then(|field| match field.integer()? {
            None => Ok(default),
            Some(number) if number < 0 => Err(field.error("must be greater than or equal to 0")),
            Some(number) => {
                u32::try_from(number).map_err(|_| field.error(format!("{number} is more than {}", u32::MAX)))
            }
        });
        self.take(read).unwrap_or(default)
    }

    fn bind_address(&mut self, root: &Field<'_>, config: &mut Config) {
        let read =
            root.get("bindAddress")
                .and_then(|field| match field.string()?.filter(|text| !text.is_empty()) {
                    None => Ok(None),
                    Some(text) => parse_address(text)
                        .map(Some)
                        .ok_or_else(|| field.error("not a valid textual representation of an IP address")),
                });
        config.bind_address = self.take(read).flatten();
    }

    fn ipvs(&mut self, root: &Field<'_>, config: &mut Config) {
        let Some(ipvs) = self.take(root.get("ipvs")) else {
            return;
        };
        let default = Duration::from_secs(30);
        let period = self.duration(&ipvs, "syncPeriod", default);
        // An explicit zero is defaulted too.
        config.sync_period = if period.is_zero() { default } else { period };
        config.min_sync_period = self.duration(&ipvs, "minSyncPeriod", Duration::ZERO);
        if config.min_sync_period > config.sync_period
            && let Some(field) = self.take(ipvs.get("syncPeriod"))
        {
            self.refuse(&field, "must be greater than or equal to ipvs.minSyncPeriod");
        }
        let scheduler = ipvs.get("scheduler").and_then(|field| match field.string()? {
            None | Some("") => Ok(Scheduler::RR),
            Some(name) => {
                known_scheduler(name).map_err(|problem| field.error(format!("{name:?}: {problem}")))
            }
        });
        if let Some(scheduler) = self.take(scheduler) {
            config.defaults.scheduler = scheduler;
        }
        let cidrs = ipvs
            .get("excludeCIDRs")
            .and_then(|field| field.list(|item| cidr(&item, "must be a valid CIDR")));
        config.exclude_cidrs = self.take(cidrs).unwrap_or_default();
        config.strict_arp = self.flag(&ipvs, "strictARP");
        config.ipvs_timeouts = IpvsTimeouts {
            tcp: self.duration(&ipvs, "tcpTimeout", Duration::ZERO),
            tcp_fin: self.duration(&ipvs, "tcpFinTimeout", Duration::ZERO),
            udp: self.duration(&ipvs, "udpTimeout", Duration::ZERO),
        };
    }

    fn iptables(&mut self, root: &Field<'_>, config: &mut Config) {
        let Some(iptables) = self.take(root.get("iptables")) else {
            return;
        };
        config.masquerade_all = self.flag(&iptables, "masqueradeAll");
        let bit = iptables
            .get("masqueradeBit")
            .and_then(|field| match field.integer()? {
                None => Ok(MasqueradeBit::default()),
                Some(number) => u8::try_from(number)
                    .ok()
                    .and_then(|bit| MasqueradeBit::new(bit).ok())
                    .ok_or_else(|| field.error("must be within the range [0, 31]")),
            });
        config.masquerade_bit = self.take(bit).unwrap_or_default();
    }

    fn local_detection(&mut self, root: &Field<'_>, config: &mut Config) {
        let mode = self.text(root, "detectLocalMode");
        let Some(detect) = self.take(root.get("detectLocal")) else {
            return;
        };
        let name = |name: &str| -> Result<String, FieldError> {
            let field = detect.get(name)?;
            match field.string()? {
                None | Some("") => Err(field.error("must not be empty")),
                Some(text) => Ok(text.to_owned()),
            }
        };
        let detection = match mode.as_str() {
            "" | "ClusterCIDR" => cluster_cidr(root).map(LocalDetection::ClusterCidr),
            "NodeCIDR" => Ok(LocalDetection::NodeCidr),
            "BridgeInterface" => name("bridgeInterface").and_then(|name| {
                let field = detect.get("bridgeInterface")?;
                LocalDetection::bridge_interface(&name).map_err(|error| field.error(error.to_string()))
            }),
            "InterfaceNamePrefix" => name("interfaceNamePrefix").and_then(|name| {
                let field = detect.get("interfaceNamePrefix")?;
                LocalDetection::interface_prefix(&name).map_err(|error| field.error(error.to_string()))
            }),
            other => root.get("detectLocalMode").and_then(|field| {
                Err(field.error(format!(
                    "{other:?} is not one of \"BridgeInterface\", \"ClusterCIDR\", \"InterfaceNamePrefix\", \
                     \"NodeCIDR\", \"\""
                )))
            }),
        };
        if let Some(detection) = self.take(detection) {
            config.local_detection = detection;
        }
    }

    fn node_port_addresses(&mut self, root: &Field<'_>, config: &mut Config) {
        let read = root.get("nodePortAddresses").and_then(|field| {
            let primary = |item: &Field<'_>| Ok(item.string()? == Some("primary"));
            let words = field.list(|item| primary(&item))?;
            match words.iter().filter(|word| **word).count() {
                0 => field
                    .list(|item| cidr(&item, "must be a valid CIDR"))
                    .map(|nets| {
                        if nets.is_empty() {
                            NodePortAddresses::All
                        } else {
                            NodePortAddresses::Networks(nets)
                        }
                    }),
                1 if words.len() == 1 => Ok(NodePortAddresses::Primary),
                _ => Err(field.error("can't use both 'primary' and CIDRs")),
            }
        });
        config.node_port_addresses = self.take(read).unwrap_or_default();
    }

    fn conntrack(&mut self, root: &Field<'_>, config: &mut Config) {
        let Some(conntrack) = self.take(root.get("conntrack")) else {
            return;
        };
        let default = Conntrack::default();
        config.conntrack = Conntrack {
            max_per_core: self.count(&conntrack, "maxPerCore", default.max_per_core),
            min: self.count(&conntrack, "min", default.min),
            tcp_established: self.duration(&conntrack, "tcpEstablishedTimeout", default.tcp_established),
            tcp_close_wait: self.duration(&conntrack, "tcpCloseWaitTimeout", default.tcp_close_wait),
            tcp_be_liberal: self.flag(&conntrack, "tcpBeLiberal"),
            udp: self.duration(&conntrack, "udpTimeout", Duration::ZERO),
            udp_stream: self.duration(&conntrack, "udpStreamTimeout", Duration::ZERO),
        };
    }

    /// An address with or without a port; an empty one is defaulted, as in kube-proxy.
    fn socket(&mut self, root: &Field<'_>, name: &str, host: &str, port: u16) -> Option<SocketAddr> {
        let read = root.get(name).and_then(|field| {
            let text = match field.string()? {
                None | Some("") => format!("{host}:{port}"),
                Some(text) => match parse_address(text) {
                    Some(address) => SocketAddr::new(address, port).to_string(),
                    None => text.to_owned(),
                },
            };
            let socket: SocketAddr = text.parse().map_err(|_| {
                let reason = match text.rsplit_once(':') {
                    None => "must be IP:port",
                    Some(_) if text.ends_with(']') => "must be IP:port",
                    Some((_, number)) if number.parse::<u16>().is_err() => "must be a valid port",
                    Some(_) => "must be a valid IP",
                };
                field.error(reason)
            })?;
            if socket.port() == 0 {
                return Err(field.error("must be a valid port"));
            }
            Ok(socket)
        });
        self.take(read)
    }
}

fn cidr(item: &Field<'_>, refusal: &str) -> Result<IpNet, FieldError> {
    item.string()?
        .and_then(parse_net)
        .ok_or_else(|| item.error(refusal))
}

/// `clusterCIDR`: nothing, one network, or one of each family separated by a comma.
fn cluster_cidr(root: &Field<'_>) -> Result<Vec<IpNet>, FieldError> {
    let field = root.get("clusterCIDR")?;
    let text = field.string()?.unwrap_or_default();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let nets: Vec<IpNet> = text
        .split(',')
        .map(|part| {
            parse_net(part).ok_or_else(|| {
                field.error("must be a valid CIDR block (e.g. 10.100.0.0/16 or fde4:8dba:82e1::/48)")
            })
        })
        .collect::<Result<_, _>>()?;
    let single_of_each = Family::ALL
        .iter()
        .all(|family| nets.iter().filter(|n| Family::of_net(n) == *family).count() < 2);
    if single_of_each {
        Ok(nets)
    } else {
        Err(field.error("must be a either a single CIDR or dual-stack pair of CIDRs (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n";

    fn parsed(rest: &str) -> KubeProxyConfiguration {
        read("f", &format!("{HEAD}{rest}")).unwrap()
    }

    fn refused(rest: &str) -> String {
        read("f", &format!("{HEAD}{rest}")).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_file_has_kube_proxys_defaults() {
        let read = parsed("");
        assert_eq!(read.config, Config::new(""));
        assert_eq!(read.healthz_bind_address.to_string(), "0.0.0.0:10256");
        assert_eq!(read.metrics_bind_address.to_string(), "127.0.0.1:10249");
        assert_eq!(read.warnings, []);
    }

    #[test]
    fn explicit_zeros_are_defaulted_only_where_kube_proxy_does() {
        let read = parsed(
            "ipvs: {syncPeriod: 0s, minSyncPeriod: 0s}\nconntrack: {maxPerCore: 0, min: null, tcpEstablishedTimeout: 0s}",
        );
        assert_eq!(read.config.sync_period, Duration::from_secs(30));
        assert_eq!(read.config.conntrack.max_per_core, 0);
        assert_eq!(read.config.conntrack.min, 131_072);
        assert_eq!(read.config.conntrack.tcp_established, Duration::ZERO);
    }

    #[test]
    fn all_fields_that_matter_are_used() {
        let read = parsed(
            "hostnameOverride: ' Node-A '\nbindAddress: '::'\nclusterCIDR: 10.244.0.0/16,fd00::/16
nodePortAddresses: [192.0.2.7/24]\nserviceProxyName: mine
ipvs: {scheduler: mh, strictARP: true, tcpTimeout: 1m30s, excludeCIDRs: [10.0.0.0/8], minSyncPeriod: 1.5s}
iptables: {masqueradeAll: true, masqueradeBit: 0}
conntrack: {tcpBeLiberal: true, udpTimeout: 10s}\nhealthzBindAddress: 192.0.2.7",
        );
        let config = read.config;
        assert_eq!(&*config.node_name, "node-a");
        assert_eq!(config.defaults.scheduler, Scheduler::MH);
        assert_eq!(config.ipvs_timeouts.tcp, Duration::from_secs(90));
        assert_eq!(config.min_sync_period, Duration::from_millis(1_500));
        assert_eq!(config.masquerade_bit.mark(), 1);
        assert_eq!(config.service_proxy_name.as_deref(), Some("mine"));
        assert_eq!(
            config.node_port_addresses,
            NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()])
        );
        assert_eq!(read.healthz_bind_address.to_string(), "192.0.2.7:10256");
        assert_eq!(read.metrics_bind_address.to_string(), "[::1]:10249");
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        assert_eq!(
            refused(
                "ipvs: {syncPeriod: 1s, minSyncPeriod: 2s, excludeCIDRs: [x], tcpTimeout: -1s}
iptables: {masqueradeBit: 32}\nconntrack: {min: -1}\nclusterCIDR: 10.0.0.0/8,11.0.0.0/8
nodePortAddresses: [primary, 10.0.0.0/8]\nbindAddress: nowhere\nmetricsBindAddress: '127.0.0.1:99999'"
            ),
            "f: bindAddress: not a valid textual representation of an IP address; \
             ipvs.syncPeriod: must be greater than or equal to ipvs.minSyncPeriod; \
             ipvs.excludeCIDRs[0]: must be a valid CIDR; ipvs.tcpTimeout: must be greater than or equal to 0; \
             iptables.masqueradeBit: must be within the range [0, 31]; \
             clusterCIDR: must be a either a single CIDR or dual-stack pair of CIDRs \
             (e.g. 10.100.0.0/16,fde4:8dba:82e1::/48); nodePortAddresses: can't use both 'primary' and CIDRs; \
             conntrack.min: must be greater than or equal to 0; metricsBindAddress: must be a valid port"
        );
        assert_eq!(
            refused("detectLocalMode: BridgeInterface"),
            "f: detectLocal.bridgeInterface: must not be empty"
        );
        assert!(refused("detectLocalMode: x").starts_with("f: detectLocalMode: \"x\" is not one of"));
        assert_eq!(
            read("f", "[1]").unwrap_err().to_string(),
            "f: expected an object, found a list"
        );
        assert!(
            refused("clusterCIDR: 10.244.0.0/16, fd00::/16").starts_with("f: clusterCIDR: must be a valid")
        );
        assert_eq!(
            refused("healthzBindAddress: '[::1]'"),
            "f: healthzBindAddress: must be IP:port"
        );
        assert!(refused("mode: x\n").starts_with("f: "));
    }

    #[test]
    fn fields_without_use_are_named() {
        let read = parsed("oomScoreAdj: -999\niptables: {syncPeriod: 1s}\nfrobnicate: 1\n");
        let warnings: Vec<String> = read.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warnings,
            [
                "frobnicate: is no field of KubeProxyConfiguration",
                "oomScoreAdj: the service manager sets it",
                "iptables.syncPeriod: the mode is ipvs",
            ]
        );
    }
}
