//! The flags that replace fields of the configuration file, and those of kube-proxy that are not supported.

use kernlink_kubernetes::kube_proxy_config::OverrideValue;
use lexopt::Parser;

use super::{InvalidFlags, text, utf8};

/// A flag that replaces a field of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeProxyFlag {
    /// The name, without the dashes.
    pub name: &'static str,
    /// The path of the field, such as `ipvs.scheduler`. See [`field_in`](Self::field_in).
    pub field: &'static str,
    form: Form,
}

/// How the value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    /// Separated by commas.
    List,
    Number,
    /// Without a value: true.
    Bool,
}

const fn flag(name: &'static str, field: &'static str, form: Form) -> KubeProxyFlag {
    KubeProxyFlag { name, field, form }
}

/// All such flags. The first one of a field is the one that errors name.
pub(super) const FLAGS: &[KubeProxyFlag] = &[
    flag("node-name", "hostnameOverride", Form::Text),
    flag("hostname-override", "hostnameOverride", Form::Text),
    flag("kubeconfig", "clientConnection.kubeconfig", Form::Text),
    flag("proxy-mode", "mode", Form::Text),
    flag("proxy-port-range", "portRange", Form::Text),
    flag("udp-timeout", "udpIdleTimeout", Form::Text),
    flag("bind-address", "bindAddress", Form::Text),
    flag("bind-address-hard-fail", "bindAddressHardFail", Form::Bool),
    flag("healthz-bind-address", "healthzBindAddress", Form::Text),
    flag("metrics-bind-address", "metricsBindAddress", Form::Text),
    flag("cluster-cidr", "clusterCIDR", Form::Text),
    flag("detect-local-mode", "detectLocalMode", Form::Text),
    flag("pod-bridge-interface", "detectLocal.bridgeInterface", Form::Text),
    flag(
        "pod-interface-name-prefix",
        "detectLocal.interfaceNamePrefix",
        Form::Text,
    ),
    flag("nodeport-addresses", "nodePortAddresses", Form::List),
    flag("masquerade-all", "iptables.masqueradeAll", Form::Bool),
    flag("iptables-masquerade-bit", "iptables.masqueradeBit", Form::Number),
    flag("iptables-sync-period", "iptables.syncPeriod", Form::Text),
    flag("iptables-min-sync-period", "iptables.minSyncPeriod", Form::Text),
    flag(
        "iptables-localhost-nodeports",
        "iptables.localhostNodePorts",
        Form::Bool,
    ),
    flag("ipvs-scheduler", "ipvs.scheduler", Form::Text),
    flag("ipvs-sync-period", "ipvs.syncPeriod", Form::Text),
    flag("ipvs-min-sync-period", "ipvs.minSyncPeriod", Form::Text),
    flag("ipvs-exclude-cidrs", "ipvs.excludeCIDRs", Form::List),
    flag("ipvs-strict-arp", "ipvs.strictARP", Form::Bool),
    flag("ipvs-tcp-timeout", "ipvs.tcpTimeout", Form::Text),
    flag("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Form::Text),
    flag("ipvs-udp-timeout", "ipvs.udpTimeout", Form::Text),
    flag("conntrack-max-per-core", "conntrack.maxPerCore", Form::Number),
    flag("conntrack-min", "conntrack.min", Form::Number),
    flag(
        "conntrack-tcp-timeout-established",
        "conntrack.tcpEstablishedTimeout",
        Form::Text,
    ),
    flag(
        "conntrack-tcp-timeout-close-wait",
        "conntrack.tcpCloseWaitTimeout",
        Form::Text,
    ),
    flag("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", Form::Bool),
    flag("conntrack-udp-timeout", "conntrack.udpTimeout", Form::Text),
    flag(
        "conntrack-udp-timeout-stream",
        "conntrack.udpStreamTimeout",
        Form::Text,
    ),
    // Of fields that kube-proxy does not have.
    flag("service-annotations", "kernlink.serviceAnnotations", Form::List),
    flag(
        "service-annotation-namespaces",
        "kernlink.serviceAnnotationNamespaces",
        Form::List,
    ),
    flag("service-schedulers", "kernlink.serviceSchedulers", Form::List),
    flag("ignore-external-ips", "kernlink.ignoreExternalIPs", Form::Bool),
    // Without effect, which a warning about the field reports: command lines of kube-proxy often have them.
    flag(
        "kube-api-content-type",
        "clientConnection.contentType",
        Form::Text,
    ),
    flag("kube-api-qps", "clientConnection.qps", Form::Text),
    flag("kube-api-burst", "clientConnection.burst", Form::Text),
    flag("config-sync-period", "configSyncPeriod", Form::Text),
    flag("oom-score-adj", "oomScoreAdj", Form::Text),
    flag("profiling", "enableProfiling", Form::Bool),
    flag("feature-gates", "featureGates", Form::Text),
    flag(
        "show-hidden-metrics-for-version",
        "showHiddenMetricsForVersion",
        Form::Text,
    ),
];

/// The fields that the flags of some fields replace in nftables mode, as in kube-proxy.
const IN_NFTABLES_MODE: &[(&str, &str)] = &[
    ("iptables.masqueradeAll", "nftables.masqueradeAll"),
    ("iptables.syncPeriod", "nftables.syncPeriod"),
    ("iptables.minSyncPeriod", "nftables.minSyncPeriod"),
];

impl KubeProxyFlag {
    /// The path of the field that the flag replaces in a mode: nftables mode has fields of its own for some flags.
    #[must_use]
    pub fn field_in(&self, mode: &str) -> &'static str {
        if mode != "nftables" {
            return self.field;
        }
        let found = IN_NFTABLES_MODE.iter().find(|(field, _)| *field == self.field);
        found.map_or(self.field, |(_, replaced)| replaced)
    }

    /// The paths of all fields that the flag replaces in one of the modes.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static str> {
        [self.field, self.field_in("nftables")].into_iter()
    }

    /// The flag with this name.
    pub(super) fn find(name: &str) -> Option<&'static Self> {
        FLAGS.iter().find(|flag| flag.name == name)
    }

    /// The flag that replaces this field.
    pub(crate) fn of_field(field: &str) -> Option<&'static Self> {
        FLAGS
            .iter()
            .find(|flag| flag.fields().any(|replaced| replaced == field))
    }

    pub(super) fn value(&self, parser: &mut Parser) -> Result<OverrideValue, InvalidFlags> {
        let invalid =
            |value: &str, expected: &str| InvalidFlags(format!("--{}: {value:?} is {expected}", self.name));
        match self.form {
            Form::Text => text(self.name, parser).map(OverrideValue::Text),
            Form::List => {
                let value = text(self.name, parser)?;
                let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(OverrideValue::List(items.map(str::to_owned).collect()))
            }
            Form::Number => {
                let value = text(self.name, parser)?;
                let number = value.parse().map_err(|_| invalid(&value, "not a whole number"))?;
                Ok(OverrideValue::Number(number))
            }
            Form::Bool => match parser.optional_value() {
                None => Ok(OverrideValue::Bool(true)),
                Some(value) => {
                    let value = utf8(self.name, value)?;
                    let bool = value
                        .parse()
                        .map_err(|_| invalid(&value, "not valid; valid: true, false"))?;
                    Ok(OverrideValue::Bool(bool))
                }
            },
        }
    }
}

/// The flags of kube-proxy 1.36 that are not supported, with the reason.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("healthz-port", "use --healthz-bind-address"),
    ("metrics-port", "use --metrics-bind-address"),
    ("write-config-to", "use --print-config"),
    ("vmodule", "use --v"),
    ("log-flush-frequency", "the log is not buffered"),
    ("log-text-split-stream", LOG),
    ("log-text-info-buffer-size", LOG),
    ("log-json-split-stream", LOG),
    ("log-json-info-buffer-size", LOG),
];

const LOG: &str = "the log is written to standard error";

/// Why a flag of kube-proxy is not supported. `None` if kube-proxy does not have it.
pub(super) fn why_unsupported(name: &str) -> Option<&'static str> {
    let found = UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == name);
    found.map(|(_, why)| *why)
}
