//! The flags of the agent. Those that kube-proxy has too have its names.

mod kube_proxy;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::Error;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use ipnet::IpNet;
use kernlink_services::address::{parse_address, parse_net};
use kernlink_services::{AddressScope, Family, ObjectName};

pub(crate) use self::kube_proxy::is_offered;
pub use self::kube_proxy::{KubeProxyFlag, Overrides};
use crate::log::Format;

const SERVERS: &str = "Servers, as IP:port; `none` for no server";
const QUESTIONS: &str = "Questions to the running agent, see `kernlink-agent status --help`";
const LOG: &str = "Log, on standard error";

/// The flags of the agent, except those of [`Action`].
#[derive(Clone, Debug, PartialEq, Args)]
#[group(skip)]
pub struct Flags {
    /// What to do.
    #[arg(skip)]
    pub action: Action,
    /// The form of what [`Action::Preflight`] prints.
    #[arg(skip)]
    pub output: Output,
    /// The fields of kube-proxy's configuration that flags replace.
    #[command(flatten)]
    pub overrides: Overrides,
    /// The flags that the command line has, with their values.
    #[command(flatten)]
    pub given: Given,
    /// A folder of manifests: its files *.yaml, *.yml and *.json, without hidden ones
    // `Settings` has one: of two, the Services of the first one would be deleted.
    #[arg(long, value_name = "DIR")]
    pub watch: Vec<PathBuf>,
    /// The address of the API server, instead of that of the kubeconfig file
    #[arg(long, value_name = "URL", value_parser = text())]
    pub master: Option<String>,
    /// The API server of this pod; default if there is no other source
    #[arg(id = "in-cluster", long)]
    pub is_in_cluster: bool,
    /// Also read the other Nodes, so that their addresses are not served as external IPs
    #[arg(id = "all-nodes", long)]
    pub has_all_nodes: bool,
    /// A KubeProxyConfiguration; flags take precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The addresses of this node, the primary one first; default: those of its Node object
    #[arg(id = "node-ip", long, value_name = "A[,A6]", value_parser = list(node_ip))]
    pub node_ips: Vec<Vec<IpAddr>>,
    /// The networks of this node's pods; default: those of its Node object
    #[arg(id = "pod-cidr", long, value_name = "C[,C6]", value_parser = list(network))]
    pub pod_cidrs: Vec<Vec<IpNet>>,
    /// The zone of this node; default: that of its Node object
    #[arg(long, value_parser = text())]
    pub zone: Option<String>,
    /// ipv4, ipv6 or both; default: ipv4,ipv6
    #[arg(id = "ip-families", long, value_name = "LIST", value_parser = list(family))]
    pub families: Vec<Vec<Family>>,
    /// Services (NAMESPACE/NAME) that IPVS mode programs before all others on an empty kernel; default: default/kubernetes,kube-system/kube-dns
    #[arg(id = "first-services", long, value_name = "LIST", value_parser = list(object_name))]
    pub first_services: Option<Vec<Vec<ObjectName>>>,
    /// Its Unix socket, or `none`; default: agent-INODE.sock in /run/kernlink, of the network namespace
    #[arg(long, value_name = "PATH", help_heading = QUESTIONS)]
    pub socket: Option<PathBuf>,
    /// The group whose members may ask; default: only root may
    #[arg(id = "socket-group", long, value_name = "GROUP", value_parser = text(), help_heading = QUESTIONS)]
    pub socket_group: Option<String>,
    /// text or json
    #[arg(id = "logging-format", long, value_name = "FORMAT", default_value = "text", hide_possible_values = true, help_heading = LOG)]
    pub log_format: Format,
    /// logging.verbosity: 0: information; 2: a line for each sync that changed something; 4: debug output; 6: traces
    #[arg(id = "v", long, short, value_name = "N", value_parser = parsed(verbosity), help_heading = LOG)]
    pub verbosity: Option<u8>,
}

/// The flags that a command line has, by name, and their values. Those of a repeated list are separated by commas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given(pub BTreeMap<String, String>);

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// Keeps the kernel in step until a signal ends the program.
    #[default]
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
}

/// The flags of the agent with those of [`Action`].
#[derive(Clone, Debug, Args)]
#[group(skip)]
pub(crate) struct Run {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    instead: Instead,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What to do instead of running until SIGTERM or SIGINT")]
#[group(skip)]
struct Instead {
    /// Sync once; exit status 1 if something failed
    #[arg(long, group = "instead")]
    once: bool,
    /// Sync once, after waiting for the API server, with the rights that the agent does not keep, such as for sysctls; exit status 0 also after failures
    #[arg(id = "init-only", long, group = "instead")]
    init_only: bool,
    /// Print what a sync, --cleanup or --hand-back would do, as commands; change nothing
    #[arg(id = "dry-run", long, conflicts_with_all = ["once", "init-only", "print-config"])]
    dry_run: bool,
    /// Remove what kernlink or kube-proxy wrote, in all modes; foreign objects stay
    #[arg(long, group = "instead")]
    cleanup: bool,
    /// Leave the node as kube-proxy expects it in the mode, while traffic flows
    #[arg(id = "hand-back", long, group = "instead")]
    hand_back: bool,
    /// Print the configuration in effect, as a KubeProxyConfiguration in JSON
    #[arg(id = "print-config", long, group = "instead")]
    print_config: bool,
}

impl Flags {
    /// Parses the arguments of `kernlink-agent run`, without the name of the program. If a flag occurs twice, the last one is used; lists are
    /// appended, as in kube-proxy.
    ///
    /// # Errors
    /// The first flag that does not exist, is not supported, or has an invalid value; flags that exclude each other.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, Error> {
        let mut command =
            Run::augment_args(Command::new("kernlink-agent").no_binary_name(true)).args_override_self(true);
        let matches = command.try_get_matches_from_mut(arguments)?;
        let run = Run::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        Ok(run.into())
    }
}

impl From<Run> for Flags {
    fn from(run: Run) -> Self {
        let instead = &run.instead;
        let action = match (instead.dry_run, instead.cleanup, instead.hand_back) {
            (false, true, _) => Action::Cleanup,
            (true, true, _) => Action::PlanCleanup,
            (false, _, true) => Action::HandBack,
            (true, _, true) => Action::PlanHandBack,
            (true, ..) => Action::DryRun,
            _ if instead.once => Action::Once,
            _ if instead.init_only => Action::InitOnly,
            _ if instead.print_config => Action::PrintConfig,
            _ => Action::Run,
        };
        Self { action, ..run.flags }
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

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let command = Flags::augment_args(Command::new("kernlink-agent"));
        let values = command.get_arguments().filter_map(|argument| {
            let id = argument.get_id().as_str();
            let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
            let values = matches.get_raw(id).filter(|_| is_given)?;
            let values = values.map(|value| value.to_string_lossy());
            // An empty value of a list has no items.
            let values: Vec<_> = values.filter(|value| !value.is_empty()).collect();
            Some((argument.get_long()?.to_owned(), values.join(",")))
        });
        Ok(Self(values.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A value that is parsed from text. Unlike that of clap, an error about a value that is no text names the flag.
fn parsed<T: Clone + Send + Sync + 'static>(
    parse: impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    OsStringValueParser::new().try_map(move |value| match value.to_str() {
        Some(text) => parse(text),
        None => Err("valid: UTF-8 text".to_owned()),
    })
}

fn text() -> impl TypedValueParser<Value = String> {
    parsed(|text| Ok(text.to_owned()))
}

/// Values separated by commas. An empty text is an empty list.
fn list<T: Clone + Send + Sync + 'static>(
    parse: fn(&str) -> Result<T, String>,
) -> impl TypedValueParser<Value = Vec<T>> {
    parsed(move |text| {
        let items = text.split(',').map(str::trim).filter(|_| !text.is_empty());
        items
            .map(|item| parse(item).map_err(|problem| format!("{item:?} {problem}")))
            .collect()
    })
}

fn node_ip(text: &str) -> Result<IpAddr, String> {
    let address = parse_address(text).ok_or("is not an IP address")?;
    match AddressScope::of(address) {
        None => Ok(address),
        Some(scope) => Err(format!(
            "is {scope}; valid: addresses of this node, except unspecified, loopback, link-local and multicast ones; without the flag, those \
             of its Node object are used"
        )),
    }
}

fn network(text: &str) -> Result<IpNet, String> {
    parse_net(text).ok_or_else(|| "is not a network; valid: ADDRESS/LENGTH".to_owned())
}

fn object_name(text: &str) -> Result<ObjectName, String> {
    let is_name = |part: &str| !part.is_empty() && !part.contains('/');
    match text.split_once('/') {
        Some((namespace, name)) if is_name(namespace) && is_name(name) => {
            Ok(ObjectName::new(namespace, name))
        }
        _ => Err("is not NAMESPACE/NAME".to_owned()),
    }
}

fn family(text: &str) -> Result<Family, String> {
    match text.to_ascii_lowercase().as_str() {
        "ipv4" => Ok(Family::Ipv4),
        "ipv6" => Ok(Family::Ipv6),
        _ => Err("is not an address family; valid: ipv4, ipv6".to_owned()),
    }
}

fn verbosity(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "valid: 0 to 255".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use kernlink_kubernetes::kube_proxy_config::OverrideValue;

    use super::*;

    fn parse(line: &str) -> Result<Flags, String> {
        Flags::parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_of_kube_proxy_replace_fields() {
        let flags = parse("--watch /m --ipvs-scheduler lc --ipvs-strict-arp --masquerade-all=false --conntrack-min 5 --nodeport-addresses 192.0.2.0/24,2001:db8::/64").unwrap();
        assert_eq!(flags.watch, [PathBuf::from("/m")]);
        let set: Vec<_> = flags
            .overrides
            .0
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
    fn the_last_of_two_equal_flags_is_used_and_node_name_is_another_name() {
        let flags = parse("--hostname-override a --node-name b").unwrap();
        assert_eq!(flags.overrides.0.len(), 1);
        assert_eq!(flags.overrides.0[0].1, OverrideValue::Text("b".to_owned()));
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
            .0
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
            (
                flags.node_ips.concat().len(),
                flags.pod_cidrs.concat().len(),
                flags.families.concat().len()
            ),
            (2, 2, 2)
        );
        assert_eq!(flags.first_services.unwrap().concat().len(), 2);
    }

    #[test]
    fn the_flags_that_are_given_are_kept_with_their_values() {
        let flags = parse(
            "--in-cluster --hostname-override=a --node-ip 192.0.2.1 --node-ip 2001:db8::1 --ipvs-scheduler rr --ipvs-scheduler lc -v 4 \
             --profiling --ipvs-exclude-cidrs= --socket none",
        )
        .unwrap();
        let given: Vec<(&str, &str)> = flags
            .given
            .0
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let expected = [
            ("hostname-override", "a"),
            ("in-cluster", "true"),
            ("ipvs-exclude-cidrs", ""),
            ("ipvs-scheduler", "lc"),
            ("node-ip", "192.0.2.1,2001:db8::1"),
            ("profiling", "true"),
            ("socket", "none"),
            ("v", "4"),
        ];
        assert_eq!(given, expected);
    }

    #[test]
    fn flags_are_written_as_those_of_kube_proxy() {
        for line in ["-v2", "-v 2", "-v=2", "--v 2", "--v=2", "--v 1 -v 2"] {
            assert_eq!(parse(line).unwrap().verbosity, Some(2), "{line}");
        }
        for (line, expected) in [
            ("--oom-score-adj -998", OverrideValue::Text("-998".to_owned())),
            ("--oom-score-adj=-998", OverrideValue::Text("-998".to_owned())),
            ("--cluster-cidr --once", OverrideValue::Text("--once".to_owned())),
            ("--ipvs-strict-arp", OverrideValue::Bool(true)),
            ("--ipvs-strict-arp=true", OverrideValue::Bool(true)),
            ("--ipvs-strict-arp=false", OverrideValue::Bool(false)),
            (
                "--ipvs-strict-arp=false --ipvs-strict-arp",
                OverrideValue::Bool(true),
            ),
        ] {
            let flags = parse(line).unwrap();
            assert_eq!(
                (flags.overrides.0[0].1.clone(), flags.action),
                (expected, Action::Run),
                "{line}"
            );
        }
        // The value of such a flag follows `=` only.
        assert!(parse("--ipvs-strict-arp false").is_err());
    }

    #[test]
    fn flags_choose_what_to_do() {
        for (line, expected) in [
            ("", Action::Run),
            ("--once --once", Action::Once),
            ("--init-only", Action::InitOnly),
            ("--dry-run", Action::DryRun),
            ("--cleanup", Action::Cleanup),
            ("--dry-run --cleanup --dry-run", Action::PlanCleanup),
            ("--hand-back", Action::HandBack),
            ("--hand-back --dry-run", Action::PlanHandBack),
            ("--print-config", Action::PrintConfig),
        ] {
            assert_eq!(parse(line).unwrap().action, expected, "{line}");
        }
        for line in [
            "--once --dry-run",
            "--dry-run --init-only",
            "--print-config --dry-run",
            "--once --cleanup",
            "--cleanup --hand-back --dry-run",
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains("cannot be used with"), "{line}: {error}");
        }
    }

    #[test]
    fn invalid_command_lines_are_errors_that_name_the_flag() {
        for (line, flag, expected) in [
            ("--wach /m", "--wach", "unexpected argument"),
            ("/m", "/m", "unexpected argument"),
            (
                "--write-config-to f",
                "--write-config-to",
                "this flag of kube-proxy is not supported: use --print-config",
            ),
            (
                "--log-json-split-stream",
                "--log-json-split-stream",
                "this flag of kube-proxy is not supported: ",
            ),
            ("--node-ip 1.2.3", "--node-ip", "\"1.2.3\" is not an IP address"),
            (
                "--ip-families ipv5",
                "--ip-families",
                "\"ipv5\" is not an address family; valid: ipv4, ipv6",
            ),
            (
                "--pod-cidr 10.0.0.0",
                "--pod-cidr",
                "\"10.0.0.0\" is not a network; valid: ",
            ),
            (
                "--first-services dns",
                "--first-services",
                "\"dns\" is not NAMESPACE/NAME",
            ),
            (
                "--logging-format xml",
                "--logging-format",
                "[possible values: text, json]",
            ),
            ("--v many", "--v", "valid: 0 to 255"),
            ("--conntrack-min many", "--conntrack-min", "valid: a whole number"),
            (
                "--ipvs-strict-arp=perhaps",
                "--ipvs-strict-arp",
                "valid: true, false",
            ),
            ("--watch", "--watch", "a value is required"),
            ("--zone", "--zone", "a value is required"),
            ("--ipvs-scheduler", "--ipvs-scheduler", "a value is required"),
            ("--once=1", "--once", "unexpected value '1'"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.lines().next().unwrap().contains(flag), "{line}: {error}");
            assert!(error.contains(expected), "{line}: {error}");
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
            assert!(error.contains("'--node-ip <"), "{error}");
            assert!(error.contains(&expected), "{error}");
        }
        let flags = parse("--node-ip 192.0.2.1,2001:db8::1").unwrap();
        assert_eq!(flags.node_ips.concat().len(), 2);
        assert!(parse("--node-ip=").unwrap().node_ips.concat().is_empty());
    }

    #[test]
    fn errors_name_each_flag_once() {
        let command = Run::augment_args(Command::new("kernlink-agent"));
        for argument in command.get_arguments() {
            let flag = format!("--{}", argument.get_long().unwrap());
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
                let problem = error.split("\n\n").next().unwrap();
                assert_eq!(problem.matches(&flag).count(), 1, "{value:?}: {error}");
            }
        }
    }

    #[test]
    fn every_flag_that_is_supported_has_a_text_in_the_help() {
        let command = Run::augment_args(Command::new("kernlink-agent"));
        for argument in command.get_arguments() {
            let has_text = argument.get_help().is_some();
            assert_ne!(argument.is_hide_set(), has_text, "{argument}");
        }
        assert!(command.get_arguments().any(|argument| argument.is_hide_set()));
    }
}
