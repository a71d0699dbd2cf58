//! kube-proxy's configuration file: `KubeProxyConfiguration` of `kubeproxy.config.k8s.io/v1alpha1`.
//!
//! [`read`] applies kube-proxy's defaults and validation, and reports all invalid fields at once. The result has plain values, from which
//! a data path takes the fields that it needs. Fields without effect are listed as [`Warning`]s.
//!
//! ```
//! use kernlink_kubernetes::kube_proxy_config::read;
//!
//! let text = "
//! apiVersion: kubeproxy.config.k8s.io/v1alpha1
//! kind: KubeProxyConfiguration
//! mode: ipvs
//! ipvs: {scheduler: lc, tcpTimeout: 15m}
//! ";
//! let config = read("config.yaml", text)?;
//! assert_eq!(config.ipvs.scheduler, "lc");
//! assert_eq!(config.ipvs.tcp_timeout.as_secs(), 900);
//! assert_eq!(config.iptables.masquerade_bit, 14);
//! # Ok::<(), kernlink_kubernetes::kube_proxy_config::Error>(())
//! ```
//!
//! Types and defaults:
//! [types.go](https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/kube-proxy/config/v1alpha1/types.go),
//! [defaults.go](https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/proxy/apis/config/v1alpha1/defaults.go),
//! [validation.go](https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/proxy/apis/config/validation/validation.go).

mod file;
mod overrides;
mod unused;
mod validation;

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use kernlink_services::escape::EscapeWriter;

pub use self::overrides::{Override, OverrideValue};
use crate::error::FieldError;
use crate::{deserialize, yaml};

/// The content of a configuration file. Fields have the names of the file, in snake case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KubeProxyConfiguration {
    /// `mode`: `ipvs`, `iptables`, `nftables`, `userspace`, or empty. kube-proxy treats empty as `iptables`, and has no `userspace` since
    /// version 1.26.
    pub mode: String,
    /// `hostnameOverride`: the name of this node, trimmed and in lower case. Empty: the program uses the host name.
    pub hostname_override: String,
    /// `bindAddress`: the address of this node in its family, which becomes the primary family. `None` (absent or empty in the
    /// file) and the unspecified addresses `0.0.0.0` and `::` have no effect.
    pub bind_address: Option<IpAddr>,
    /// `bindAddressHardFail`: whether the program ends if it cannot listen on the health or metrics address. Default: false.
    pub bind_address_hard_fail: bool,
    /// `healthzBindAddress`. Default: port 10256 on `0.0.0.0`, or on `::` if [`bind_address`](Self::bind_address) is IPv6. An
    /// empty string has the default too. `None`: the text `none`, which kube-proxy does not accept; there is no server.
    pub healthz_bind_address: Option<SocketAddr>,
    /// `metricsBindAddress`. Default: port 10249 on `127.0.0.1`, or on `::1` if [`bind_address`](Self::bind_address) is IPv6. An
    /// empty string has the default too. `None`: as [`healthz_bind_address`](Self::healthz_bind_address).
    pub metrics_bind_address: Option<SocketAddr>,
    /// `serviceProxyName`: only Services whose label `service.kubernetes.io/service-proxy-name` has this value are served.
    /// `None` (absent or empty in the file): only Services without the label.
    pub service_proxy_name: Option<String>,
    /// `clientConnection`: the API server.
    pub client_connection: ClientConnection,
    /// `nodePortAddresses`. Default: all addresses; [`Primary`](NodePortAddresses::Primary) if [`mode`](Self::mode) is `nftables`.
    pub node_port_addresses: NodePortAddresses,
    /// `detectLocalMode`: how traffic from pods of this node is detected. Default: by `clusterCIDR`.
    pub detect_local_mode: DetectLocalMode,
    /// `detectLocal`: the interface names for two of the values of [`detect_local_mode`](Self::detect_local_mode).
    pub detect_local: DetectLocal,
    /// `clusterCIDR`: the network of all pods, at most one of each family, in the order of the file. Read only in
    /// [`DetectLocalMode::ClusterCidr`], empty in the other modes.
    pub cluster_cidr: Vec<IpNet>,
    /// `ipvs`: options of IPVS mode. They are validated in every mode.
    pub ipvs: Ipvs,
    /// `iptables`: options of iptables mode. IPVS mode uses [`masquerade_bit`](Iptables::masquerade_bit) and
    /// [`masquerade_all`](Iptables::masquerade_all), userspace mode the two periods, nftables mode none.
    pub iptables: Iptables,
    /// `nftables`: options of nftables mode. They are validated in every mode.
    pub nftables: Nftables,
    /// `conntrack`: limits and timeouts of connection tracking.
    pub conntrack: Conntrack,
    /// `portRange`: the listening ports of userspace mode, `PORT`, `FIRST-LAST` or `FIRST+OFFSET`. Empty, `0` and `0-0`: the program chooses. Whether
    /// other texts are ranges is not checked. No effect in the other modes.
    pub port_range: String,
    /// `udpIdleTimeout`: how long userspace mode keeps an idle UDP flow. Default: 0, the program chooses; kube-proxy 1.25 had 250 ms. No
    /// effect in the other modes.
    pub udp_idle_timeout: Duration,
    /// `logging.verbosity`: how much is logged, as with kube-proxy's `--v`. Default: 0.
    pub log_verbosity: u32,
    /// `kernlink`: fields that kube-proxy does not have.
    pub kernlink: Kernlink,
    /// Fields that have no effect, or an effect that differs from the value. A field without effect that is empty, zero or has the default of
    /// kube-proxy is not listed: kubeadm and kube-proxy write all fields.
    pub warnings: Vec<Warning>,
}

impl Default for KubeProxyConfiguration {
    /// kube-proxy's defaults, with an empty mode.
    fn default() -> Self {
        Self {
            mode: String::new(),
            hostname_override: String::new(),
            bind_address: None,
            bind_address_hard_fail: false,
            healthz_bind_address: Some((Ipv4Addr::UNSPECIFIED, 10_256).into()),
            metrics_bind_address: Some((Ipv4Addr::LOCALHOST, 10_249).into()),
            service_proxy_name: None,
            client_connection: ClientConnection::default(),
            node_port_addresses: NodePortAddresses::All,
            detect_local_mode: DetectLocalMode::ClusterCidr,
            detect_local: DetectLocal::default(),
            cluster_cidr: Vec::new(),
            ipvs: Ipvs::default(),
            iptables: Iptables::default(),
            nftables: Nftables::default(),
            conntrack: Conntrack::default(),
            port_range: String::new(),
            udp_idle_timeout: Duration::ZERO,
            log_verbosity: 0,
            kernlink: Kernlink::default(),
            warnings: Vec::new(),
        }
    }
}

/// `clientConnection`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientConnection {
    /// `kubeconfig`: the path of the file with the address of the API server and the credentials. Empty: those of the pod.
    pub kubeconfig: String,
}

/// `nodePortAddresses`: the addresses of this node that accept node ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// An empty list in a mode other than `nftables`: all addresses.
    #[default]
    All,
    /// The addresses in these networks, whose host bits are zero.
    Networks(Vec<IpNet>),
    /// `primary`: the node's own address in each family.
    Primary,
}

/// `detectLocalMode`: how traffic from pods of this node is detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DetectLocalMode {
    /// `ClusterCIDR`: by its source address, see [`KubeProxyConfiguration::cluster_cidr`].
    #[default]
    ClusterCidr,
    /// `NodeCIDR`: by its source address, in the Node's `spec.podCIDRs`.
    NodeCidr,
    /// `BridgeInterface`: by its incoming interface, [`DetectLocal::bridge_interface`].
    BridgeInterface,
    /// `InterfaceNamePrefix`: by the name of its incoming interface, [`DetectLocal::interface_name_prefix`].
    InterfaceNamePrefix,
}

/// `detectLocal`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DetectLocal {
    /// `bridgeInterface`: the name of the bridge. Not empty in [`DetectLocalMode::BridgeInterface`]; whether it is a valid
    /// interface name is not checked.
    pub bridge_interface: String,
    /// `interfaceNamePrefix`: the prefix of the names of interfaces. Not empty in [`DetectLocalMode::InterfaceNamePrefix`];
    /// whether an interface name can start with it is not checked.
    pub interface_name_prefix: String,
}

/// `ipvs`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ipvs {
    /// `syncPeriod`: the longest time between two syncs. Default, also for 0: 30 s.
    pub sync_period: Duration,
    /// `minSyncPeriod`: the shortest time between two syncs, at most [`sync_period`](Self::sync_period). Default: 0, no limit.
    pub min_sync_period: Duration,
    /// `scheduler`: the name of an IPVS scheduler. Default, also for an empty name: `rr`. Whether the kernel has the scheduler is
    /// not checked.
    pub scheduler: String,
    /// `excludeCIDRs`: networks in which virtual servers of other programs are not deleted. The host bits are zero.
    pub exclude_cidrs: Vec<IpNet>,
    /// `strictARP`: sets `arp_ignore` to 1 and `arp_announce` to 2. Default: false.
    pub strict_arp: bool,
    /// `tcpTimeout`: how long IPVS keeps an idle TCP connection. Default: 0.
    ///
    /// The kernel counts whole seconds, and kube-proxy truncates: 1.5 s has the effect of 1 s, and a value below 1 s has the
    /// effect of 0, which keeps the kernel's value. This field has the exact value of the file, with a [`Warning`] if it has a fraction;
    /// the caller truncates it. The same applies to the other two timeouts.
    pub tcp_timeout: Duration,
    /// `tcpFinTimeout`: how long IPVS keeps an idle TCP connection after a FIN. Default: 0.
    pub tcp_fin_timeout: Duration,
    /// `udpTimeout`: how long IPVS keeps an idle UDP flow. Default: 0.
    pub udp_timeout: Duration,
}

impl Default for Ipvs {
    fn default() -> Self {
        Self {
            sync_period: DEFAULT_SYNC_PERIOD,
            min_sync_period: Duration::ZERO,
            scheduler: "rr".to_owned(),
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            tcp_timeout: Duration::ZERO,
            tcp_fin_timeout: Duration::ZERO,
            udp_timeout: Duration::ZERO,
        }
    }
}

/// `iptables`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Iptables {
    /// `masqueradeBit`: the bit of the packet mark that requests masquerading, 0 to 31. Default: 14.
    pub masquerade_bit: u8,
    /// `masqueradeAll`: masquerades all traffic to cluster IPs. Default: false.
    pub masquerade_all: bool,
    /// `localhostNodePorts`: accepts node ports on loopback addresses. Default: true. No effect in IPVS mode, and in nftables mode, which never
    /// accepts them.
    pub localhost_node_ports: bool,
    /// `syncPeriod`: the longest time between two syncs. Default, also for 0: 30 s. No effect in IPVS mode and nftables mode.
    pub sync_period: Duration,
    /// `minSyncPeriod`: the shortest time between two syncs. Default, also for 0: 1 s. No effect in IPVS mode and nftables mode.
    /// At most [`sync_period`](Self::sync_period) if [`mode`](KubeProxyConfiguration::mode) is `iptables`, `userspace` or empty; not
    /// compared in the other modes.
    pub min_sync_period: Duration,
}

impl Default for Iptables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            localhost_node_ports: true,
            sync_period: DEFAULT_SYNC_PERIOD,
            min_sync_period: Duration::from_secs(1),
        }
    }
}

/// `nftables`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nftables {
    /// `masqueradeBit`: the bit of the packet mark that requests masquerading, 0 to 31. Default: 14.
    pub masquerade_bit: u8,
    /// `masqueradeAll`: masquerades all traffic to cluster IPs. Default: false.
    pub masquerade_all: bool,
    /// `syncPeriod`: the longest time between two syncs. Default, also for 0: 30 s.
    pub sync_period: Duration,
    /// `minSyncPeriod`: the shortest time between two syncs, at most [`sync_period`](Self::sync_period) if
    /// [`mode`](KubeProxyConfiguration::mode) is `nftables`; not compared in the other modes. Default, also for 0: 1 s.
    pub min_sync_period: Duration,
}

impl Default for Nftables {
    fn default() -> Self {
        Self {
            masquerade_bit: 14,
            masquerade_all: false,
            sync_period: DEFAULT_SYNC_PERIOD,
            min_sync_period: Duration::from_secs(1),
        }
    }
}

/// `conntrack`: limits and timeouts of connection tracking. Zero keeps the kernel's value.
///
/// Timeouts have the exact values of the file. The kernel counts whole seconds; as for [`Ipvs`], the caller truncates a value, and a
/// value with a fraction has a [`Warning`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conntrack {
    /// `maxPerCore`: the number of entries of the table per processor. Default: 32 768.
    pub max_per_core: u32,
    /// `min`: the minimum number of entries of the table; no effect if [`max_per_core`](Self::max_per_core) is 0. Default: 131 072.
    pub min: u32,
    /// `tcpEstablishedTimeout`: how long an idle TCP connection is kept. Default: 24 h.
    pub tcp_established_timeout: Duration,
    /// `tcpCloseWaitTimeout`: how long a TCP connection in CLOSE_WAIT is kept. Default: 1 h.
    pub tcp_close_wait_timeout: Duration,
    /// `tcpBeLiberal`: whether packets outside the TCP window still belong to their connection. Default: false.
    pub tcp_be_liberal: bool,
    /// `udpTimeout`: how long a UDP flow without a reply is kept. Default: 0.
    pub udp_timeout: Duration,
    /// `udpStreamTimeout`: how long a UDP flow with replies is kept. Default: 0.
    pub udp_stream_timeout: Duration,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established_timeout: Duration::from_secs(86_400),
            tcp_close_wait_timeout: Duration::from_secs(3_600),
            tcp_be_liberal: false,
            udp_timeout: Duration::ZERO,
            udp_stream_timeout: Duration::ZERO,
        }
    }
}

/// `kernlink`: fields that kube-proxy does not have; it ignores them with a warning. They restrict what Services may request, so a field
/// below `kernlink` that does not exist is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kernlink {
    /// `serviceAnnotations`: the annotations that Services may set, without the prefix `kernlink.io/`. `None` (absent in the file): all.
    /// Empty: none.
    pub service_annotations: Option<Vec<String>>,
    /// `serviceAnnotationNamespaces`: the namespaces whose Services may set annotations. `None` (absent in the file): all. Empty: none.
    pub service_annotation_namespaces: Option<Vec<String>>,
    /// `serviceSchedulers`: the IPVS schedulers that Services may request by an annotation, in addition to [`Ipvs::scheduler`]. `None`
    /// (absent in the file): the program chooses. Whether the names are schedulers is not checked.
    pub service_schedulers: Option<Vec<String>>,
    /// `ignoreExternalIPs`: whether `externalIPs` of Services are ignored. Default: false.
    pub ignore_external_ips: bool,
}

const DEFAULT_SYNC_PERIOD: Duration = Duration::from_secs(30);

/// A field that has no effect, or an effect that differs from the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The path of the field, such as `ipvs.tcpTimeout`.
    pub field: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Warning {
    /// `field: reason` on one line; control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapeWriter(f), "{}: {}", self.field, self.reason)
    }
}

/// The errors of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The name of the file, as passed by the caller.
    pub file: String,
    /// The invalid fields, at least one: first those of a wrong type, then those with an invalid value. If the text is not YAML, there
    /// is a single error with the field `line N`.
    pub problems: Vec<FieldError>,
}

impl fmt::Display for Error {
    /// All problems on one line; control characters are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        f.write_str(&self.file)?;
        for (position, problem) in self.problems.iter().enumerate() {
            f.write_str(if position == 0 { ": " } else { "; " })?;
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// The field `mode` of a file, which decides what some flags of kube-proxy replace. The other fields are not checked. `None` if the field is
/// absent, or not a text, or if the text is not YAML; [`read`] reports that.
#[must_use]
pub fn mode(text: &str) -> Option<String> {
    let value = yaml::parse(text).ok()??;
    value.get("mode")?.as_str().map(str::to_owned)
}

/// Parses the text of a file, YAML or JSON. `file` is used in errors only.
///
/// # Errors
///
/// [`Error`] if the text is not YAML, if `apiVersion` or `kind` is not that of `KubeProxyConfiguration`, or if kube-proxy rejects the
/// value of a field.
pub fn read(file: &str, text: &str) -> Result<KubeProxyConfiguration, Error> {
    read_with(file, text, &[])
}

/// As [`read`], with other values in place of some fields, such as those of a command line. Values of the file that are replaced are not
/// checked.
///
/// # Errors
///
/// As [`read`]; an invalid value of `overrides` is reported with the name of its field.
pub fn read_with(
    file: &str,
    text: &str,
    overrides: &[Override<'_>],
) -> Result<KubeProxyConfiguration, Error> {
    let failed = |problems| Error {
        file: file.to_owned(),
        problems,
    };
    let mut value = match yaml::parse(text) {
        Ok(value) => value.unwrap_or_default(),
        Err((line, reason)) => {
            let field = format!("line {}", line + 1);
            return Err(failed(vec![FieldError { field, reason }]));
        }
    };
    for replaced in overrides {
        replaced.apply(&mut value);
    }
    let (file, mut errors) = deserialize::from_value::<file::File>(&mut value);
    errors.iter_mut().for_each(expect_duration);
    match file {
        Some(file) => {
            // A restriction with a typing error must not be taken for absent.
            errors.extend(unused::unknown_restrictions(&file.undeclared));
            let warnings = unused::warnings(&file.undeclared, &value);
            validation::validate(&file.fields, errors, warnings).map_err(failed)
        }
        None => Err(failed(errors)),
    }
}

/// Replaces the type by the form in the error about a duration that is not a text.
fn expect_duration(error: &mut FieldError) {
    if (error.field.ends_with("Period") || error.field.ends_with("Timeout"))
        && let Some(found) = error.reason.strip_prefix("expected a text, ")
    {
        error.reason = format!("expected a duration such as 30s or 1m30s, {found}");
    }
}
