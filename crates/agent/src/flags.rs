//! The command line. Flags that kube-proxy has too have its names.

mod kube_proxy;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::ValueEnum;
use ipnet::IpNet;
use kernlink_kubernetes::kube_proxy_config::OverrideValue;
use kernlink_services::address::{parse_address, parse_net};
use kernlink_services::{AddressScope, Family, ObjectName};
use lexopt::{Arg, Parser};

pub use self::kube_proxy::KubeProxyFlag;
use crate::log::Format;

/// What `--help` prints.
pub const USAGE: &str = "usage: kernlink-agent [--kubeconfig FILE] [--watch DIR] [--node-name NAME] [--config FILE] [OPTION]...
       kernlink-agent preflight [OPTION]... [--output table|json]: whether this node is ready, and what would change; changes nothing
       kernlink-agent status | services [NAMESPACE/NAME] | explain ADDRESS:PORT[/PROTOCOL]: asks the running agent
       kernlink-agent support-bundle: writes one archive for an issue, without secrets
       kernlink-agent top: Services and endpoints by connections and bytes a second

Keeps the kernel in step with the Services, EndpointSlices and Nodes of an API server, of manifests in a folder, or of both.

  --kubeconfig FILE              the API server and the credentials, also clientConnection.kubeconfig of the configuration file
  --master URL                   the address of the API server, instead of that of the file
  --in-cluster                   the API server of this pod; default if there is no other source
  --watch DIR                    a folder: its files *.yaml, *.yml and *.json, without hidden ones
  --all-nodes                    also read the other Nodes, so that their addresses are not served as external IPs
  --node-name NAME               this node, also --hostname-override; default: the host name
  --config FILE                  a KubeProxyConfiguration; flags take precedence
  --node-ip A[,A6]               the addresses of this node, the primary one first; default: those of its Node object
  --pod-cidr C[,C6]              the networks of this node's pods; default: those of its Node object
  --zone ZONE                    the zone of this node; default: that of its Node object
  --ip-families LIST             ipv4, ipv6 or both; default: ipv4,ipv6
  --first-services LIST          Services (NAMESPACE/NAME) that IPVS mode programs before all others on an empty kernel;
                                 default: default/kubernetes,kube-system/kube-dns

What Services may request, with the field of the configuration file; without the flag, everything that is safe:
  --service-annotations LIST     kernlink.serviceAnnotations: the annotations that have an effect, without kernlink.io/; empty: none
  --service-annotation-namespaces LIST    kernlink.serviceAnnotationNamespaces: only annotations of Services in these
  --service-schedulers LIST      kernlink.serviceSchedulers: the schedulers that annotations may name, and --ipvs-scheduler
  --ignore-external-ips          kernlink.ignoreExternalIPs: do not serve externalIPs

What to do instead of running until SIGTERM or SIGINT:
  --once                         sync once; exit status 1 if something failed
  --init-only                    sync once, after waiting for the API server, with the rights that the agent does not keep, such as
                                 for sysctls; exit status 0 also if something failed, which the agent tries again
  --dry-run                      print what a sync, --cleanup or --hand-back would do, as commands; change nothing
  --cleanup                      remove what kernlink or kube-proxy wrote, in all modes; foreign objects stay
  --hand-back                    leave the node as kube-proxy expects it in the mode, while traffic flows
  --print-config                 print the configuration in effect, as a KubeProxyConfiguration in JSON
  --version, --help

Servers, as IP:port; `none` for no server:
  --healthz-bind-address A       /healthz and /livez; default: 0.0.0.0:10256
  --metrics-bind-address A       /metrics, /healthz, /proxyMode, /configz, /statusz, /flagz; default: 127.0.0.1:10249

Questions to the running agent, see `kernlink-agent status --help`:
  --socket PATH                  its Unix socket, or `none`; default: agent-INODE.sock in /run/kernlink, of the network namespace
  --socket-group GROUP           the group whose members may ask; default: only root may

Log, on standard error:
  --logging-format text|json     default: text
  -v, --v N                      logging.verbosity: 0: information; 2: a line for each sync that changed something; 4: debug output; 6: traces
  SIGUSR1 makes the running agent log one level more, SIGUSR2 one level less.

As in kube-proxy, with the field of the configuration file that they replace:
  --proxy-mode MODE              mode: nftables, iptables, ipvs or userspace; default: iptables
  --proxy-port-range RANGE       portRange: the listening ports of userspace mode; default: 20000-29999
  --udp-timeout D                udpIdleTimeout: how long userspace mode keeps an idle UDP flow; default: 10s before the first reply, then 30s
  --bind-address A               bindAddress
  --bind-address-hard-fail       bindAddressHardFail
  --cluster-cidr C[,C6]          clusterCIDR
  --detect-local-mode M          detectLocalMode: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
  --pod-bridge-interface NAME    detectLocal.bridgeInterface
  --pod-interface-name-prefix P  detectLocal.interfaceNamePrefix
  --nodeport-addresses LIST      nodePortAddresses: networks, or primary
  --masquerade-all               iptables.masqueradeAll; in nftables mode nftables.masqueradeAll
  --iptables-masquerade-bit N    iptables.masqueradeBit
  --iptables-sync-period D       iptables.syncPeriod; in nftables mode nftables.syncPeriod
  --iptables-min-sync-period D   iptables.minSyncPeriod; in nftables mode nftables.minSyncPeriod
  --iptables-localhost-nodeports iptables.localhostNodePorts; default: true
  --ipvs-scheduler NAME          ipvs.scheduler
  --ipvs-sync-period D           ipvs.syncPeriod
  --ipvs-min-sync-period D       ipvs.minSyncPeriod
  --ipvs-exclude-cidrs LIST      ipvs.excludeCIDRs
  --ipvs-strict-arp              ipvs.strictARP
  --ipvs-tcp-timeout D           ipvs.tcpTimeout
  --ipvs-tcpfin-timeout D        ipvs.tcpFinTimeout
  --ipvs-udp-timeout D           ipvs.udpTimeout
  --conntrack-max-per-core N     conntrack.maxPerCore
  --conntrack-min N              conntrack.min
  --conntrack-tcp-timeout-established D   conntrack.tcpEstablishedTimeout
  --conntrack-tcp-timeout-close-wait D    conntrack.tcpCloseWaitTimeout
  --conntrack-tcp-be-liberal     conntrack.tcpBeLiberal
  --conntrack-udp-timeout D      conntrack.udpTimeout
  --conntrack-udp-timeout-stream D        conntrack.udpStreamTimeout

Of kube-proxy, without effect: --kube-api-content-type, --kube-api-qps, --kube-api-burst, --config-sync-period, --oom-score-adj,
--profiling, --feature-gates, --show-hidden-metrics-for-version

Exit status: 0 success, 1 failure, 2 invalid command line or configuration, 3 another process programs this network namespace;
of preflight: 0 ready, 20 not ready, 21 not known.";

/// The argument that examines the node.
pub(crate) const PREFLIGHT: &str = "preflight";

/// A command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Flags {
    /// What to do.
    pub action: Action,
    /// `--watch`: the folder of manifests.
    pub watch: Option<PathBuf>,
    /// `--master`: the address of the API server.
    pub master: Option<String>,
    /// `--in-cluster`: whether the API server is that of the pod.
    pub is_in_cluster: bool,
    /// `--all-nodes`: whether all Nodes are read.
    pub has_all_nodes: bool,
    /// `--config`: the configuration file.
    pub config: Option<PathBuf>,
    /// The fields of kube-proxy's configuration that flags replace, each flag at most once.
    pub overrides: Vec<(&'static KubeProxyFlag, OverrideValue)>,
    /// `--node-ip`.
    pub node_ips: Vec<IpAddr>,
    /// `--pod-cidr`.
    pub pod_cidrs: Vec<IpNet>,
    /// `--zone`.
    pub zone: Option<String>,
    /// `--ip-families`. Empty: both.
    pub families: Vec<Family>,
    /// `--first-services`. `None`: the default.
    pub first_services: Option<Vec<ObjectName>>,
    /// `--socket`: the Unix socket for questions, inside `None` for the default. `None`: no socket.
    pub socket: Option<Option<PathBuf>>,
    /// `--socket-group`.
    pub socket_group: Option<String>,
    /// `--output`, of `preflight` only.
    pub output: Output,
    /// `--logging-format`.
    pub log_format: Format,
    /// `--v`. `None`: as in the configuration file.
    pub verbosity: Option<u8>,
}

/// The form in which a subcommand prints what it found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people; may change
    #[default]
    Table,
    /// For programs; documented
    Json,
}

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Keeps the kernel in step until a signal ends the program.
    Run,
    /// `--once`: syncs once.
    Once,
    /// `--init-only`: syncs once, with rights that the agent does not keep.
    InitOnly,
    /// `--dry-run`: prints the plan of a sync.
    DryRun,
    /// `--cleanup`: removes everything that is owned.
    Cleanup,
    /// `--cleanup --dry-run`: prints the plan of a cleanup.
    PlanCleanup,
    /// `--hand-back`: leaves what kube-proxy would have written.
    HandBack,
    /// `--hand-back --dry-run`: prints the plan of a hand-back.
    PlanHandBack,
    /// `preflight`: examines the node.
    Preflight,
    /// `--print-config`: prints the configuration in effect.
    PrintConfig,
    /// `--version`.
    Version,
    /// `--help`.
    Help,
}

/// The command line is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidFlags(String);

impl fmt::Display for InvalidFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; see kernlink-agent --help", self.0)
    }
}

impl std::error::Error for InvalidFlags {}

impl Default for Flags {
    /// An empty command line.
    fn default() -> Self {
        Self {
            action: Action::Run,
            watch: None,
            master: None,
            is_in_cluster: false,
            has_all_nodes: false,
            config: None,
            overrides: Vec::new(),
            node_ips: Vec::new(),
            pod_cidrs: Vec::new(),
            zone: None,
            families: Vec::new(),
            first_services: None,
            socket: Some(None),
            socket_group: None,
            output: Output::default(),
            log_format: Format::default(),
            verbosity: None,
        }
    }
}

impl Flags {
    /// Parses arguments, without the name of the program. If a flag occurs twice, the last one is used; lists are appended, as in kube-proxy.
    ///
    /// # Errors
    /// The first flag that does not exist, is not supported, or has an invalid value; flags that exclude each other.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, InvalidFlags> {
        let mut flags = Self::default();
        let mut parser = Parser::from_args(arguments);
        let invalid = |error: lexopt::Error| InvalidFlags(error.to_string());
        let mut has_output = false;
        loop {
            let name = match parser.next().map_err(invalid)? {
                None if has_output && flags.action != Action::Preflight => {
                    return Err(InvalidFlags(format!("--output: is a flag of {PREFLIGHT} only")));
                }
                None => return Ok(flags),
                Some(Arg::Value(argument)) if argument == PREFLIGHT => {
                    flags.set_action(Action::Preflight)?;
                    continue;
                }
                Some(Arg::Long("output") | Arg::Short('o')) => {
                    flags.output = output(&mut parser)?;
                    has_output = true;
                    continue;
                }
                Some(Arg::Long(name)) => name.to_owned(),
                Some(Arg::Short('v')) => "v".to_owned(),
                Some(Arg::Short('h')) => "help".to_owned(),
                Some(other) => return Err(invalid(other.unexpected())),
            };
            flags.flag(&name, &mut parser)?;
            // The other flags do not matter, and need not be complete.
            if matches!(flags.action, Action::Help | Action::Version) {
                return Ok(flags);
            }
        }
    }

    /// The flags that have values, by name, and those values.
    #[must_use]
    pub fn values(&self) -> BTreeMap<String, String> {
        fn list<T: fmt::Display>(items: &[T]) -> Option<String> {
            let items: Vec<String> = items.iter().map(ToString::to_string).collect();
            (!items.is_empty()).then(|| items.join(","))
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let own = [
            ("watch", path(&self.watch)),
            ("config", path(&self.config)),
            ("master", self.master.clone()),
            ("in-cluster", Some(self.is_in_cluster.to_string())),
            ("all-nodes", Some(self.has_all_nodes.to_string())),
            ("node-ip", list(&self.node_ips)),
            ("pod-cidr", list(&self.pod_cidrs)),
            ("zone", self.zone.clone()),
            ("ip-families", list(&self.families)),
            ("first-services", self.first_services.as_deref().and_then(list)),
            (
                "socket",
                match &self.socket {
                    None => Some("none".to_owned()),
                    Some(socket) => path(socket),
                },
            ),
            ("socket-group", self.socket_group.clone()),
            ("logging-format", Some(self.log_format.to_string())),
            ("v", self.verbosity.map(|verbosity| verbosity.to_string())),
        ];
        let own = own
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let of_kube_proxy = self.overrides.iter().map(|(flag, value)| {
            let value = match value {
                OverrideValue::Text(text) => text.clone(),
                OverrideValue::List(items) => items.join(","),
                OverrideValue::Number(number) => number.to_string(),
                OverrideValue::Bool(value) => value.to_string(),
            };
            (flag.name.to_owned(), value)
        });
        own.chain(of_kube_proxy).collect()
    }

    fn flag(&mut self, name: &str, parser: &mut Parser) -> Result<(), InvalidFlags> {
        match name {
            "help" => self.set_action(Action::Help),
            "version" => self.set_action(Action::Version),
            "once" => self.set_action(Action::Once),
            "init-only" => self.set_action(Action::InitOnly),
            "dry-run" => self.set_action(Action::DryRun),
            "cleanup" => self.set_action(Action::Cleanup),
            "hand-back" => self.set_action(Action::HandBack),
            "print-config" => self.set_action(Action::PrintConfig),
            "watch" => match self.watch.replace(path(name, parser)?) {
                None => Ok(()),
                Some(_) => Err(InvalidFlags(format!("--{name}: given twice; valid: one folder"))),
            },
            "master" => {
                // As in kube-proxy, an empty address has no effect.
                self.master = Some(text(name, parser)?).filter(|address| !address.is_empty());
                Ok(())
            }
            "in-cluster" => {
                self.is_in_cluster = true;
                Ok(())
            }
            "all-nodes" => {
                self.has_all_nodes = true;
                Ok(())
            }
            "config" => {
                self.config = Some(path(name, parser)?);
                Ok(())
            }
            "node-ip" => {
                let addresses = list(name, parser, "an IP address", parse_address)?;
                for address in &addresses {
                    if let Some(scope) = AddressScope::of(*address) {
                        return Err(InvalidFlags(format!(
                            "--{name}: {address} is {scope}; valid: addresses of this node, except unspecified, loopback, \
                             link-local and multicast ones; without the flag, those of its Node object are used"
                        )));
                    }
                }
                self.node_ips.extend(addresses);
                Ok(())
            }
            "pod-cidr" => {
                self.pod_cidrs.extend(list(name, parser, "a network", parse_net)?);
                Ok(())
            }
            "ip-families" => {
                let families = list(name, parser, "an address family; valid: ipv4, ipv6", family)?;
                self.families.extend(families);
                Ok(())
            }
            "first-services" => {
                let services = list(name, parser, "NAMESPACE/NAME", object_name)?;
                self.first_services.get_or_insert_default().extend(services);
                Ok(())
            }
            "zone" => {
                self.zone = Some(text(name, parser)?);
                Ok(())
            }
            "socket" => {
                let path = path(name, parser)?;
                self.socket = (path.as_os_str() != "none").then_some(Some(path));
                Ok(())
            }
            "socket-group" => {
                self.socket_group = Some(text(name, parser)?).filter(|group| !group.is_empty());
                Ok(())
            }
            "logging-format" => {
                let value = text(name, parser)?;
                self.log_format = Format::parse(&value).ok_or_else(|| {
                    InvalidFlags(format!("--{name}: {value:?} is not valid; valid: text, json"))
                })?;
                Ok(())
            }
            "v" => {
                let value = text(name, parser)?;
                let invalid = |_| InvalidFlags(format!("--{name}: {value:?} is not valid; valid: 0 to 255"));
                self.verbosity = Some(value.parse().map_err(invalid)?);
                Ok(())
            }
            name => self.kube_proxy_flag(name, parser),
        }
    }

    fn kube_proxy_flag(&mut self, name: &str, parser: &mut Parser) -> Result<(), InvalidFlags> {
        let Some(flag) = KubeProxyFlag::find(name) else {
            return Err(InvalidFlags(match kube_proxy::why_unsupported(name) {
                Some(why) => format!("--{name}: this flag of kube-proxy is not supported: {why}"),
                None => format!("unknown flag --{name}"),
            }));
        };
        let mut value = flag.value(parser)?;
        let known = self
            .overrides
            .iter()
            .position(|(known, _)| known.field == flag.field);
        let known = known.map(|index| self.overrides.remove(index).1);
        if let (Some(OverrideValue::List(mut items)), OverrideValue::List(more)) = (known, &mut value) {
            items.append(more);
            *more = items;
        }
        self.overrides.push((flag, value));
        Ok(())
    }

    fn set_action(&mut self, action: Action) -> Result<(), InvalidFlags> {
        let action = match (self.action, action) {
            (Action::DryRun | Action::PlanCleanup, Action::Cleanup) | (Action::Cleanup, Action::DryRun) => {
                self.action = Action::PlanCleanup;
                return Ok(());
            }
            (Action::DryRun | Action::PlanHandBack, Action::HandBack)
            | (Action::HandBack, Action::DryRun) => {
                self.action = Action::PlanHandBack;
                return Ok(());
            }
            (Action::PlanCleanup | Action::PlanHandBack, Action::DryRun) => return Ok(()),
            (_, action) => action,
        };
        let is_information = matches!(action, Action::Help | Action::Version);
        if is_information || self.action == Action::Run || self.action == action {
            self.action = action;
            return Ok(());
        }
        Err(InvalidFlags(format!(
            "{} and {action} exclude each other",
            self.action
        )))
    }
}

impl Action {
    /// Whether it needs a source of objects.
    #[must_use]
    pub fn needs_source(self) -> bool {
        matches!(
            self,
            Action::Run | Action::Once | Action::InitOnly | Action::DryRun | Action::Preflight
        )
    }
}

impl fmt::Display for Action {
    /// The flag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Run => "run",
            Action::Once => "--once",
            Action::InitOnly => "--init-only",
            Action::DryRun => "--dry-run",
            Action::Cleanup => "--cleanup",
            Action::PlanCleanup => "--cleanup --dry-run",
            Action::HandBack => "--hand-back",
            Action::PlanHandBack => "--hand-back --dry-run",
            Action::Preflight => PREFLIGHT,
            Action::PrintConfig => "--print-config",
            Action::Version => "--version",
            Action::Help => "--help",
        })
    }
}

fn output(parser: &mut Parser) -> Result<Output, InvalidFlags> {
    match text("output", parser)?.as_str() {
        "table" => Ok(Output::Table),
        "json" => Ok(Output::Json),
        other => Err(InvalidFlags(format!(
            "--output: {other:?} is not valid; valid: table, json"
        ))),
    }
}

fn path(name: &str, parser: &mut Parser) -> Result<PathBuf, InvalidFlags> {
    let value = value(name, parser)?;
    if value.is_empty() {
        return Err(InvalidFlags(format!("--{name}: the path is empty")));
    }
    Ok(value.into())
}

fn text(name: &str, parser: &mut Parser) -> Result<String, InvalidFlags> {
    utf8(name, value(name, parser)?)
}

fn value(name: &str, parser: &mut Parser) -> Result<OsString, InvalidFlags> {
    let value = parser.value();
    value.map_err(|_| InvalidFlags(format!("--{name}: the value is missing")))
}

fn utf8(name: &str, value: OsString) -> Result<String, InvalidFlags> {
    let text = value.into_string();
    text.map_err(|value| InvalidFlags(format!("--{name}: {value:?} is not UTF-8 text")))
}

/// Values separated by commas.
fn list<T>(
    name: &str,
    parser: &mut Parser,
    expected: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, InvalidFlags> {
    let value = text(name, parser)?;
    // An empty text is an empty list.
    let items = value.split(',').map(str::trim).filter(|_| !value.is_empty());
    items
        .map(|item| parse(item).ok_or_else(|| InvalidFlags(format!("--{name}: {item:?} is not {expected}"))))
        .collect()
}

fn object_name(text: &str) -> Option<ObjectName> {
    let (namespace, name) = text.split_once('/')?;
    let is_name = |part: &str| !part.is_empty() && !part.contains('/');
    (is_name(namespace) && is_name(name)).then(|| ObjectName::new(namespace, name))
}

fn family(name: &str) -> Option<Family> {
    match name.to_ascii_lowercase().as_str() {
        "ipv4" => Some(Family::Ipv4),
        "ipv6" => Some(Family::Ipv6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        Flags::parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_of_kube_proxy_replace_fields() {
        let flags = parse("--watch /m --ipvs-scheduler lc --ipvs-strict-arp --masquerade-all=false --conntrack-min 5 --nodeport-addresses 192.0.2.0/24,2001:db8::/64").unwrap();
        assert_eq!(flags.watch, Some(PathBuf::from("/m")));
        let set: Vec<_> = flags
            .overrides
            .iter()
            .map(|(flag, value)| (flag.field, value.clone()))
            .collect();
        let nets = ["192.0.2.0/24", "2001:db8::/64"].map(str::to_owned).to_vec();
        let expected = [
            ("ipvs.scheduler", OverrideValue::Text("lc".to_owned())),
            ("ipvs.strictARP", OverrideValue::Bool(true)),
            ("iptables.masqueradeAll", OverrideValue::Bool(false)),
            ("conntrack.min", OverrideValue::Number(5)),
            ("nodePortAddresses", OverrideValue::List(nets)),
        ];
        assert_eq!(set, expected);
    }

    #[test]
    fn preflight_has_the_flags_of_the_agent_and_a_form_of_its_output() {
        let flags = parse("preflight --watch /m -o json --proxy-mode nftables").unwrap();
        assert_eq!((flags.action, flags.output), (Action::Preflight, Output::Json));
        assert_eq!(parse("preflight --watch /m").unwrap().output, Output::Table);
        for (line, expected) in [
            ("preflight --once", "preflight and --once exclude each other"),
            (
                "preflight --output yaml",
                "--output: \"yaml\" is not valid; valid: table, json",
            ),
            (
                "--watch /m --output json",
                "--output: is a flag of preflight only",
            ),
            ("--watch /m x", "unexpected argument \"x\""),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
    }

    #[test]
    fn the_last_of_two_equal_flags_is_used_and_node_name_is_another_name() {
        let flags = parse("--hostname-override a --node-name b").unwrap();
        assert_eq!(flags.overrides.len(), 1);
        assert_eq!(flags.overrides[0].1, OverrideValue::Text("b".to_owned()));
    }

    #[test]
    fn the_items_of_repeated_list_flags_are_all_used() {
        let flags = parse(
            "--nodeport-addresses 192.0.2.0/24 --ipvs-exclude-cidrs 198.51.100.0/24,203.0.113.0/24 \
             --nodeport-addresses 2001:db8::/64 --ipvs-exclude-cidrs= --ipvs-exclude-cidrs 192.0.2.0/24 \
             --node-ip 192.0.2.1 --node-ip 2001:db8::1 --pod-cidr 10.0.0.0/24 --pod-cidr 2001:db8::/64 \
             --ip-families ipv4 --ip-families ipv6 --first-services a/b --first-services c/d",
        )
        .unwrap();
        let list =
            |items: &[&str]| OverrideValue::List(items.iter().map(|item| (*item).to_owned()).collect());
        let set: Vec<_> = flags
            .overrides
            .iter()
            .map(|(flag, value)| (flag.field, value.clone()))
            .collect();
        let expected = [
            ("nodePortAddresses", list(&["192.0.2.0/24", "2001:db8::/64"])),
            (
                "ipvs.excludeCIDRs",
                list(&["198.51.100.0/24", "203.0.113.0/24", "192.0.2.0/24"]),
            ),
        ];
        assert_eq!(set, expected);
        assert_eq!(
            (flags.node_ips.len(), flags.pod_cidrs.len(), flags.families.len()),
            (2, 2, 2)
        );
        assert_eq!(flags.first_services.unwrap().len(), 2);
    }

    #[test]
    fn invalid_command_lines_are_errors_that_name_the_flag() {
        for (line, expected) in [
            ("--wach /m", "unknown flag --wach"),
            ("/m", "unexpected argument \"/m\""),
            (
                "--write-config-to f",
                "--write-config-to: this flag of kube-proxy is not supported: ",
            ),
            ("--once --dry-run", "--once and --dry-run exclude each other"),
            ("--node-ip 1.2.3", "--node-ip: \"1.2.3\" is not an IP address"),
            (
                "--ip-families ipv5",
                "--ip-families: \"ipv5\" is not an address family; valid: ipv4, ipv6",
            ),
            (
                "--first-services dns",
                "--first-services: \"dns\" is not NAMESPACE/NAME",
            ),
            (
                "--logging-format xml",
                "--logging-format: \"xml\" is not valid; valid: text, json",
            ),
            ("--v many", "--v: \"many\" is not valid; valid: 0 to 255"),
            (
                "--conntrack-min many",
                "--conntrack-min: \"many\" is not a whole number",
            ),
            (
                "--ipvs-strict-arp=perhaps",
                "--ipvs-strict-arp: \"perhaps\" is not valid; valid: true, false",
            ),
            ("--watch", "--watch: the value is missing"),
            ("--zone", "--zone: the value is missing"),
            ("--watch /a --watch /b", "--watch: given twice; valid: one folder"),
            ("--once=1", "unexpected argument for option '--once'"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
            assert!(error.ends_with("; see kernlink-agent --help"), "{error}");
        }
    }

    #[test]
    fn an_address_that_no_node_can_have_is_an_error() {
        for (address, scope) in [
            ("0.0.0.0", "an unspecified address"),
            ("::", "an unspecified address"),
            ("::ffff:0.0.0.0", "an unspecified address"),
            ("127.0.0.1", "a loopback address"),
            ("::1", "a loopback address"),
            ("169.254.1.1", "a link-local address"),
            ("fe80::1", "a link-local address"),
            ("224.0.0.1", "a multicast or broadcast address"),
            ("255.255.255.255", "a multicast or broadcast address"),
            ("ff02::1", "a multicast or broadcast address"),
        ] {
            let error = parse(&format!("--node-ip 192.0.2.1,{address}")).unwrap_err();
            let expected = format!(" is {scope}; valid: addresses of this node, except unspecified, ");
            assert!(error.starts_with("--node-ip: "), "{error}");
            assert!(error.contains(&expected), "{error}");
        }
        let flags = parse("--node-ip 192.0.2.1,2001:db8::1").unwrap();
        assert_eq!(flags.node_ips.len(), 2);
        assert!(parse("--node-ip=").unwrap().node_ips.is_empty());
    }

    #[test]
    fn errors_name_each_flag_once() {
        let own = [
            "watch",
            "master",
            "config",
            "node-ip",
            "pod-cidr",
            "zone",
            "ip-families",
            "first-services",
            "socket",
            "logging-format",
            "v",
        ];
        let of_kube_proxy = kube_proxy::FLAGS.iter().map(|flag| flag.name);
        for name in own.into_iter().chain(of_kube_proxy) {
            let flag = format!("--{name}");
            let mut values = vec![None];
            for value in [&b""[..], b"x", b"a,b", b"-1", b"1.5", b"0.0.0.0", b"\xff"] {
                values.push(Some(OsString::from_vec(value.to_vec())));
            }
            for value in values {
                let mut argument = OsString::from(&flag);
                if let Some(value) = &value {
                    argument.push("=");
                    argument.push(value);
                }
                let Err(error) = Flags::parse([argument]) else {
                    continue;
                };
                let error = error.to_string();
                assert!(error.starts_with(&format!("{flag}: ")), "{value:?}: {error}");
                assert_eq!(error.matches(&flag).count(), 1, "{value:?}: {error}");
            }
        }
    }

    #[test]
    fn help_and_version_need_nothing_else() {
        assert_eq!(parse("--once --help --nonsense").unwrap().action, Action::Help);
        assert_eq!(parse("--version").unwrap().action, Action::Version);
    }

    #[test]
    fn the_usage_names_every_flag() {
        for flag in kube_proxy::FLAGS {
            let name = format!("--{}", flag.name);
            let found = USAGE.match_indices(&name).any(|(at, _)| {
                let next = USAGE[at + name.len()..].chars().next();
                next.is_none_or(|next| " ;,\n]".contains(next))
            });
            assert!(found, "{name}");
        }
    }
}
