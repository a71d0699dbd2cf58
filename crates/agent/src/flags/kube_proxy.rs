//! The flags that replace fields of the configuration file, and those of kube-proxy that are not supported.

use clap::builder::OsStringValueParser;
use clap::error::{Error, ErrorKind};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use kernlink_kubernetes::kube_proxy_config::OverrideValue;

use self::Form::{Bool, List, Number, Text};
use super::{SERVERS, parsed};

/// A flag that replaces a field of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeProxyFlag {
    /// The name, without the dashes.
    pub name: &'static str,
    /// The path of the field, such as `ipvs.scheduler`. See [`field_in`](Self::field_in).
    pub field: &'static str,
    form: Form,
    /// What `--help` prints after the field.
    help: &'static str,
}

/// How the value is written, with its name in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text(&'static str),
    /// Separated by commas.
    List,
    Number,
    /// Without a value: true.
    Bool,
}

const fn flag(name: &'static str, field: &'static str, form: Form, help: &'static str) -> KubeProxyFlag {
    KubeProxyFlag {
        name,
        field,
        form,
        help,
    }
}

const REQUESTS: &str = "What Services may request, with the field of the configuration file; without the flag, everything that is safe";
const FIELDS: &str = "As in kube-proxy, with the field of the configuration file that they replace";
const WITHOUT_EFFECT: &str = "Of kube-proxy, without effect";

/// All such flags, by their headings in `--help`. The first one of a field is the one that errors name.
const FLAGS: &[(Option<&str>, &[KubeProxyFlag])] = &[
    (
        None,
        &[
            flag(
                "kubeconfig",
                "clientConnection.kubeconfig",
                Text("FILE"),
                "the API server and the credentials",
            ),
            flag(
                "node-name",
                "hostnameOverride",
                Text("NAME"),
                "this node; default: the host name",
            ),
            flag(
                "hostname-override",
                "hostnameOverride",
                Text("NAME"),
                "another name of --node-name",
            ),
        ],
    ),
    (
        Some(REQUESTS),
        &[
            flag(
                "service-annotations",
                "kernlink.serviceAnnotations",
                List,
                "the annotations that have an effect, without kernlink.io/; empty: none",
            ),
            flag(
                "service-annotation-namespaces",
                "kernlink.serviceAnnotationNamespaces",
                List,
                "only annotations of Services in these",
            ),
            flag(
                "service-schedulers",
                "kernlink.serviceSchedulers",
                List,
                "the schedulers that annotations may name, and --ipvs-scheduler",
            ),
            flag(
                "ignore-external-ips",
                "kernlink.ignoreExternalIPs",
                Bool,
                "do not serve externalIPs",
            ),
        ],
    ),
    (
        Some(SERVERS),
        &[
            flag(
                "healthz-bind-address",
                "healthzBindAddress",
                Text("A"),
                "/healthz and /livez; default: 0.0.0.0:10256",
            ),
            flag(
                "metrics-bind-address",
                "metricsBindAddress",
                Text("A"),
                "/metrics, /healthz, /proxyMode, /configz, /statusz, /flagz; default: 127.0.0.1:10249",
            ),
        ],
    ),
    (
        Some(FIELDS),
        &[
            flag(
                "proxy-mode",
                "mode",
                Text("MODE"),
                "nftables, iptables, ipvs or userspace; default: iptables",
            ),
            flag(
                "proxy-port-range",
                "portRange",
                Text("RANGE"),
                "the listening ports of userspace mode; default: 20000-29999",
            ),
            flag(
                "udp-timeout",
                "udpIdleTimeout",
                Text("D"),
                "how long userspace mode keeps an idle UDP flow; default: 10s before the first reply, then 30s",
            ),
            flag("bind-address", "bindAddress", Text("A"), ""),
            flag("bind-address-hard-fail", "bindAddressHardFail", Bool, ""),
            flag("cluster-cidr", "clusterCIDR", Text("C[,C6]"), ""),
            flag(
                "detect-local-mode",
                "detectLocalMode",
                Text("M"),
                "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix",
            ),
            flag(
                "pod-bridge-interface",
                "detectLocal.bridgeInterface",
                Text("NAME"),
                "",
            ),
            flag(
                "pod-interface-name-prefix",
                "detectLocal.interfaceNamePrefix",
                Text("P"),
                "",
            ),
            flag(
                "nodeport-addresses",
                "nodePortAddresses",
                List,
                "networks, or primary",
            ),
            flag("masquerade-all", "iptables.masqueradeAll", Bool, ""),
            flag("iptables-masquerade-bit", "iptables.masqueradeBit", Number, ""),
            flag("iptables-sync-period", "iptables.syncPeriod", Text("D"), ""),
            flag(
                "iptables-min-sync-period",
                "iptables.minSyncPeriod",
                Text("D"),
                "",
            ),
            flag(
                "iptables-localhost-nodeports",
                "iptables.localhostNodePorts",
                Bool,
                "also at loopback addresses; default: true",
            ),
            flag("ipvs-scheduler", "ipvs.scheduler", Text("NAME"), ""),
            flag("ipvs-sync-period", "ipvs.syncPeriod", Text("D"), ""),
            flag("ipvs-min-sync-period", "ipvs.minSyncPeriod", Text("D"), ""),
            flag("ipvs-exclude-cidrs", "ipvs.excludeCIDRs", List, ""),
            flag("ipvs-strict-arp", "ipvs.strictARP", Bool, ""),
            flag("ipvs-tcp-timeout", "ipvs.tcpTimeout", Text("D"), ""),
            flag("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Text("D"), ""),
            flag("ipvs-udp-timeout", "ipvs.udpTimeout", Text("D"), ""),
            flag("conntrack-max-per-core", "conntrack.maxPerCore", Number, ""),
            flag("conntrack-min", "conntrack.min", Number, ""),
            flag(
                "conntrack-tcp-timeout-established",
                "conntrack.tcpEstablishedTimeout",
                Text("D"),
                "",
            ),
            flag(
                "conntrack-tcp-timeout-close-wait",
                "conntrack.tcpCloseWaitTimeout",
                Text("D"),
                "",
            ),
            flag("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", Bool, ""),
            flag("conntrack-udp-timeout", "conntrack.udpTimeout", Text("D"), ""),
            flag(
                "conntrack-udp-timeout-stream",
                "conntrack.udpStreamTimeout",
                Text("D"),
                "",
            ),
        ],
    ),
    // A warning about the field reports that it has no effect: command lines of kube-proxy often have them.
    (
        Some(WITHOUT_EFFECT),
        &[
            flag(
                "kube-api-content-type",
                "clientConnection.contentType",
                Text("TYPE"),
                "",
            ),
            flag("kube-api-qps", "clientConnection.qps", Text("N"), ""),
            flag("kube-api-burst", "clientConnection.burst", Text("N"), ""),
            flag("config-sync-period", "configSyncPeriod", Text("D"), ""),
            flag("oom-score-adj", "oomScoreAdj", Text("N"), ""),
            flag("profiling", "enableProfiling", Bool, ""),
            flag("feature-gates", "featureGates", Text("LIST"), ""),
            flag(
                "show-hidden-metrics-for-version",
                "showHiddenMetricsForVersion",
                Text("VERSION"),
                "",
            ),
        ],
    ),
];

/// Whether a completion offers a flag: not if it is not supported, or has no effect.
pub(crate) fn is_offered(argument: &Arg) -> bool {
    !argument.is_hide_set() && argument.get_help_heading() != Some(WITHOUT_EFFECT)
}

fn flags() -> impl Iterator<Item = &'static KubeProxyFlag> {
    FLAGS.iter().flat_map(|(_, flags)| flags.iter())
}

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

    /// The flag that replaces this field.
    pub(crate) fn of_field(field: &str) -> Option<&'static Self> {
        flags().find(|flag| flag.fields().any(|replaced| replaced == field))
    }

    fn argument(&'static self) -> Arg {
        let form = self.form;
        // The last flag of a field decides.
        let others = flags().filter(|other| other.field == self.field && other.name != self.name);
        let argument = Arg::new(self.name)
            .long(self.name)
            .overrides_with_all(others.map(|other| other.name))
            .help(self.help())
            .value_parser(parsed(move |text| form.parse(text)))
            .value_name(form.value_name())
            // As in kube-proxy, what follows the flag is its value.
            .allow_hyphen_values(true);
        match form {
            Text(_) | Number => argument,
            List => argument.action(ArgAction::Append),
            Bool => argument
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
        }
    }

    fn help(&self) -> String {
        let field = match self.field_in("nftables") {
            field if field == self.field => field.to_owned(),
            other => format!("{}; in nftables mode {other}", self.field),
        };
        match self.help {
            "" => field,
            help => format!("{field}: {help}"),
        }
    }
}

impl Form {
    fn value_name(self) -> &'static str {
        match self {
            Text(name) => name,
            List => "LIST",
            Number => "N",
            Bool => "true|false",
        }
    }

    fn parse(self, text: &str) -> Result<OverrideValue, String> {
        match self {
            Text(_) => Ok(OverrideValue::Text(text.to_owned())),
            List => {
                let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
                Ok(OverrideValue::List(items.map(str::to_owned).collect()))
            }
            Number => {
                let number = text.parse().map_err(|_| "valid: a whole number")?;
                Ok(OverrideValue::Number(number))
            }
            Bool => {
                // As in kube-proxy.
                let value = match text {
                    "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                    "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                    _ => return Err("valid: true, false".to_owned()),
                };
                Ok(OverrideValue::Bool(value))
            }
        }
    }
}

/// The fields of kube-proxy's configuration that flags replace, in the order of the command line, each field at most once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(pub Vec<(&'static KubeProxyFlag, OverrideValue)>);

impl Args for Overrides {
    fn augment_args(mut command: Command) -> Command {
        for (heading, flags) in FLAGS {
            let arguments = flags.iter().map(|flag| flag.argument().help_heading(*heading));
            command = command.args(arguments);
        }
        let unsupported = UNSUPPORTED.iter().map(|(name, _)| {
            let argument = Arg::new(*name).long(*name).hide(true);
            argument
                .num_args(0..=1)
                .allow_hyphen_values(true)
                .value_parser(OsStringValueParser::new())
        });
        command.args(unsupported)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Overrides {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        if let Some((name, why)) = UNSUPPORTED.iter().find(|(name, _)| matches.contains_id(name)) {
            let problem = format!("--{name}: this flag of kube-proxy is not supported: {why}");
            return Err(Error::raw(ErrorKind::UnknownArgument, problem));
        }
        let mut given: Vec<(usize, &'static KubeProxyFlag, OverrideValue)> = Vec::new();
        for flag in flags() {
            let values = matches.get_many(flag.name).into_iter().flatten().cloned();
            let positions = matches.indices_of(flag.name).into_iter().flatten();
            given.extend(
                positions
                    .zip(values)
                    .map(|(position, value)| (position, flag, value)),
            );
        }
        given.sort_by_key(|(position, ..)| *position);
        let mut overrides = Self::default();
        for (_, flag, value) in given {
            overrides.set(flag, value);
        }
        Ok(overrides)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Overrides {
    /// Replaces the value of a field, which another flag may have too, or appends to it.
    fn set(&mut self, flag: &'static KubeProxyFlag, mut value: OverrideValue) {
        let known = self.0.iter().position(|(known, _)| known.field == flag.field);
        let known = known.map(|index| self.0.remove(index).1);
        if let (Some(OverrideValue::List(mut items)), OverrideValue::List(more)) = (known, &mut value) {
            items.append(more);
            *more = items;
        }
        self.0.push((flag, value));
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
