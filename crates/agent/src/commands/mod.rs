//! The command line: the subcommands, and those which ask the running agent. The flags of the agent itself are in [`crate::flags`].

mod client;
mod support_bundle;
pub(crate) mod table;
mod top;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Arg, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use hyper::Method;
use kernlink_services::address::parse_address;
use kernlink_services::duration::{GoDuration, parse_go_duration};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::client::{Client, Failed};
use crate::exit::Exit;
use crate::flags::{Action, Flags, Output, Run, is_offered};
use crate::log::Filter;
use crate::print;
use crate::query::documents::{Explanation, LogLevel, ServiceList, Status};
use crate::query::explain::{NOT_SERVED, SERVED};
use crate::query::log_level::MAX_TIME;
use crate::version;

/// The exit status if a frontend is not served.
const NOT_SERVED_STATUS: u8 = 10;
/// The exit status if it is not known whether a frontend is served.
const UNKNOWN_STATUS: u8 = 11;

/// The command line.
#[derive(Debug, Parser)]
#[command(
    name = "kernlink-agent",
    about = "Keeps the kernel in step with the Services, EndpointSlices and Nodes of an API server, of manifests in a folder, or of both",
    version = version::TEXT,
    propagate_version = true,
    args_conflicts_with_subcommands = true,
    args_override_self = true,
    disable_help_subcommand = true,
    // Lines are as long as the terminal, and each flag has one.
    term_width = 0,
    after_help = AFTER_HELP,
)]
struct CommandLine {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: Run,
}

const AFTER_HELP: &str = "Without a subcommand: run.

SIGUSR1 makes the running agent log one level more, SIGUSR2 one level less.

Exit status: 0 success, 1 failure, 2 invalid command line or configuration, 3 another process programs this network namespace.";

/// What the program is to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the agent; the default
    #[command(after_help = AFTER_HELP)]
    Run(Box<Run>),
    /// Whether this node is ready, and what would change; changes nothing
    #[command(after_help = "Exit status: 0 ready, 20 not ready, 21 not known; 1 and 2 as of the agent.")]
    Preflight(Box<Preflight>),
    #[command(flatten)]
    Ask(Command),
    /// Print a script that completes command lines in a shell
    ///
    /// In bash: `source <(kernlink-agent completions bash)`
    Completions {
        /// The shell
        #[arg(value_parser = shell())]
        shell: Shell,
    },
}

#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct Preflight {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    form: Form,
}

impl From<Preflight> for Flags {
    fn from(preflight: Preflight) -> Self {
        Self {
            action: Action::Preflight,
            output: preflight.form.output,
            ..preflight.flags
        }
    }
}

/// A subcommand that asks the running agent.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What the agent does: mode, last sync, what waits and what fails
    ///
    /// Exit status: 0 success, also if something fails; 1 the agent does not answer; 2 invalid command line.
    Status {
        #[command(flatten)]
        common: Common,
    },
    /// The frontends of all Services, or of one, with owner, policy and number of endpoints
    ///
    /// Exit status: 0 success; 1 the agent does not answer, or the Service is not served; 2 invalid command line.
    Services {
        /// NAMESPACE/NAME of a Service; default: all
        #[arg(value_name = "NAMESPACE/NAME", value_parser = service)]
        service: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Why a connection to an address and port is served, or is not
    ///
    /// Exit status: 0 served; 10 not served; 11 not known; 1 the agent does not answer; 2 invalid command line.
    Explain {
        /// ADDRESS:PORT or ADDRESS:PORT/PROTOCOL, [ADDRESS]:PORT in IPv6; default protocol: the first of TCP, UDP, SCTP that a Service has
        #[arg(value_name = "ADDRESS:PORT[/PROTOCOL]", value_parser = frontend)]
        frontend: Frontend,
        /// The source of the connection
        #[arg(long, value_name = "ADDRESS", value_parser = address)]
        from: Option<IpAddr>,
        #[command(flatten)]
        common: Common,
    },
    /// The level of the log, or a change of it
    ///
    /// Without a level it is printed. A change has an effect until the next one, a signal, or the end of the agent. Only root and the user of the agent
    /// may change it. Exit status: 0 success; 1 the agent does not answer, or refuses; 2 invalid command line.
    LogLevel {
        /// off, error, warn, info, debug, trace; levels of modules, such as kernlink_agent::cluster=debug; several, separated by commas; configured:
        /// that of --v
        #[arg(value_name = "LEVEL|FILTER", value_parser = Filter::parse)]
        filter: Option<Filter>,
        /// Return to the configured level after this time, 1s to 24h, such as 10m
        #[arg(long = "for", value_name = "DURATION", value_parser = duration, requires = "filter")]
        time: Option<Duration>,
        #[command(flatten)]
        common: Common,
    },
    /// Writes one archive for an issue: what the agent and the node have, without secrets
    ///
    /// Exit status: 0 the archive was written, also if something is missing in it; 1 it was not; 2 invalid command line.
    SupportBundle(support_bundle::Arguments),
    /// Services and endpoints by connections and, where the kernel counts them, bytes a second
    ///
    /// Exit status: 0 success; 1 the agent does not answer, or the terminal cannot be used; 2 invalid command line.
    Top(top::Arguments),
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Socket {
    /// The Unix socket of the agent; default: that of this network namespace in /run/kernlink
    #[arg(long = "socket", value_name = "PATH", id = "socket")]
    path: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Form {
    /// table, for people, which may change; or json, for programs, which is documented
    #[arg(
        long,
        short,
        value_name = "FORM",
        default_value = "table",
        hide_possible_values = true
    )]
    output: Output,
}

/// What to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frontend {
    address: IpAddr,
    port: u16,
    protocol: Option<String>,
}

fn service(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    match text.split_once('/') {
        Some((namespace, name)) if is_part(namespace) && is_part(name) => Ok(text.to_owned()),
        _ => Err("valid: NAMESPACE/NAME".to_owned()),
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    parse_address(text).ok_or_else(|| "valid: an IP address".to_owned())
}

/// Whole seconds.
fn duration(text: &str) -> Result<Duration, String> {
    match parse_go_duration(text) {
        Some(GoDuration::NonNegative(time)) if time >= Duration::from_secs(1) && time <= MAX_TIME => {
            Ok(Duration::from_secs(time.as_secs()))
        }
        _ => Err("valid: a duration from 1s to 24h, such as 10m".to_owned()),
    }
}

fn frontend(text: &str) -> Result<Frontend, String> {
    let (socket, protocol) = match text.split_once('/') {
        Some((socket, protocol)) => (socket, Some(protocol.to_ascii_uppercase())),
        None => (text, None),
    };
    if let Some(protocol) = &protocol
        && !["TCP", "UDP", "SCTP"].contains(&protocol.as_str())
    {
        return Err("the protocol is not valid; valid: TCP, UDP, SCTP".to_owned());
    }
    let socket: SocketAddr = socket
        .parse()
        .map_err(|_| "valid: ADDRESS:PORT, with [ADDRESS] in IPv6".to_owned())?;
    if socket.port() == 0 {
        return Err("the port is not valid; valid: 1 to 65535".to_owned());
    }
    Ok(Frontend {
        address: socket.ip().to_canonical(),
        port: socket.port(),
        protocol,
    })
}

fn shell() -> impl TypedValueParser<Value = Shell> {
    PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse())
}

/// Parses arguments, without the name of the program.
///
/// # Errors
/// How the program ends: the arguments are invalid, which is printed, or ask for the help or the version.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Verb, Exit> {
    let arguments = std::iter::once(OsString::from("kernlink-agent")).chain(arguments);
    match CommandLine::try_parse_from(arguments) {
        Ok(line) => Ok(line.verb.unwrap_or_else(|| Verb::Run(Box::new(line.run)))),
        Err(error) => {
            // There is no other place to report that standard error is closed.
            let printed = error.print();
            Err(match (error.use_stderr(), printed) {
                (true, _) => Exit::Usage,
                (false, Ok(())) => Exit::Success,
                (false, Err(_)) => Exit::Failure,
            })
        }
    }
}

/// Prints a script that completes command lines.
pub(crate) fn completions(shell: Shell) -> Exit {
    print::line(completion_script(shell).trim_end())
}

fn completion_script(shell: Shell) -> String {
    script_of(shell, with_arguments(&CommandLine::command(), is_offered))
}

fn script_of(shell: Shell, mut command: clap::Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kernlink-agent", &mut script);
    // In clap_complete 4.6 the script for bash has two labels for a program with `-` in its name.
    String::from_utf8_lossy(&script).replace("__subcmd__agent", "__agent")
}

/// A command with some of its arguments, and its subcommands with some of theirs, as far as scripts have it. clap_complete offers hidden
/// arguments too, and arguments cannot be removed.
fn with_arguments(command: &clap::Command, is_kept: fn(&Arg) -> bool) -> clap::Command {
    let arguments = command
        .get_arguments()
        .filter(|argument| is_kept(argument))
        .cloned();
    let subcommands = command
        .get_subcommands()
        .map(|subcommand| with_arguments(subcommand, is_kept));
    let mut kept = clap::Command::new(command.get_name().to_owned())
        .args(arguments)
        .subcommands(subcommands)
        .propagate_version(command.is_propagate_version_set())
        .disable_help_subcommand(command.is_disable_help_subcommand_set());
    if let Some(version) = command.get_version() {
        kept = kept.version(version.to_owned());
    }
    if let Some(about) = command.get_about() {
        kept = kept.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        kept = kept.long_about(about.clone());
    }
    kept
}

impl Command {
    /// Asks the agent, and prints the answer.
    pub(crate) fn run(self) -> ExitCode {
        match self {
            Command::Status { common } => {
                common.ask("/v1/status", |status: &Status| (table::status(status), 0))
            }
            Command::SupportBundle(arguments) => arguments.run(),
            Command::Top(arguments) => arguments.run(),
            Command::Services { service, common } => {
                let query = service
                    .map(|service| format!("?service={service}"))
                    .unwrap_or_default();
                common.ask(&format!("/v1/services{query}"), |list: &ServiceList| {
                    (table::services(list), u8::from(list.not_served.is_some()))
                })
            }
            Command::Explain {
                frontend,
                from,
                common,
            } => {
                let mut path = format!("/v1/explain?address={}&port={}", frontend.address, frontend.port);
                if let Some(protocol) = frontend.protocol {
                    path.push_str(&format!("&protocol={protocol}"));
                }
                if let Some(from) = from {
                    path.push_str(&format!("&from={from}"));
                }
                common.ask(&path, |explanation: &Explanation| {
                    let status = match explanation.verdict.as_str() {
                        SERVED => 0,
                        NOT_SERVED => NOT_SERVED_STATUS,
                        _ => UNKNOWN_STATUS,
                    };
                    (table::explanation(explanation), status)
                })
            }
            Command::LogLevel { filter, time, common } => {
                let (mut method, mut path) = (Method::GET, "/v1/log-level".to_owned());
                if let Some(filter) = filter {
                    method = Method::PUT;
                    path.push_str(&format!("?filter={filter}"));
                }
                if let Some(time) = time {
                    path.push_str(&format!("&seconds={}", time.as_secs()));
                }
                common.send(&method, &path, |level: &LogLevel| (table::log_level(level), 0))
            }
        }
    }
}

impl Socket {
    fn client(&self) -> Result<Client, Failed> {
        Client::new(self.path.clone())
    }
}

impl Common {
    /// Asks the agent, and prints the answer.
    fn ask<T: DeserializeOwned + Serialize>(
        &self,
        path: &str,
        show: impl FnOnce(&T) -> (String, u8),
    ) -> ExitCode {
        self.send(&Method::GET, path, show)
    }

    /// Sends a request to the agent, and prints the answer.
    fn send<T: DeserializeOwned + Serialize>(
        &self,
        method: &Method,
        path: &str,
        show: impl FnOnce(&T) -> (String, u8),
    ) -> ExitCode {
        let answer = self.socket.client().and_then(|client| client.send(method, path));
        let shown = answer.and_then(|body| {
            let document: T = client::parse(&body)?;
            let (page, status) = show(&document);
            Ok(match self.form.output {
                Output::Table => (page, status),
                // As the agent sent it: it may be of a later version, with more fields.
                Output::Json => (String::from_utf8_lossy(&body).into_owned(), status),
            })
        });
        match shown {
            Ok((page, status)) => match print::line(page.trim_end()) {
                Exit::Success => ExitCode::from(status),
                failed => failed.into(),
            },
            Err(Failed(problem)) => {
                print::text(&problem);
                Exit::Failure.into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<CommandLine, String> {
        let arguments = std::iter::once("kernlink-agent").chain(line.split_whitespace());
        CommandLine::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    fn flags(line: &str) -> Flags {
        let line = parse(line).unwrap();
        match line.verb {
            None => line.run.into(),
            Some(Verb::Run(run)) => (*run).into(),
            Some(Verb::Preflight(preflight)) => (*preflight).into(),
            Some(verb) => panic!("{verb:?}"),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn the_agent_runs_without_a_subcommand_too() {
        for line in ["", "--watch /m --proxy-mode=ipvs -v4", "--once --node-name n"] {
            let plain = flags(line);
            assert_eq!(
                plain,
                Flags::parse(line.split_whitespace().map(OsString::from)).unwrap(),
                "{line}"
            );
            assert_eq!(flags(&format!("run {line}")), plain, "{line}");
            assert_eq!(plain.output, Output::Table);
        }
        assert_eq!(flags("--zone a --zone b").zone.as_deref(), Some("b"));
    }

    #[test]
    fn preflight_has_the_flags_of_the_agent_and_a_form_of_its_output() {
        let of = flags("preflight --watch /m -o json --proxy-mode nftables --zone a --zone b");
        assert_eq!((of.action, of.output), (Action::Preflight, Output::Json));
        assert_eq!((of.overrides.0.len(), of.zone.as_deref()), (1, Some("b")));
        assert_eq!(flags("preflight --watch /m").output, Output::Table);
    }

    #[test]
    fn help_and_version_need_nothing_else() {
        let kind = |line: &str| {
            let arguments = std::iter::once("kernlink-agent").chain(line.split_whitespace());
            CommandLine::try_parse_from(arguments)
                .map(|_| ())
                .map_err(|error| error.kind())
        };
        for line in [
            "--help",
            "-h",
            "--once --help --nonsense",
            "run --help",
            "preflight -h",
            "status --help",
        ] {
            assert_eq!(kind(line), Err(ErrorKind::DisplayHelp), "{line}");
        }
        assert_eq!(kind("--version"), Err(ErrorKind::DisplayVersion));
        assert_eq!(
            parse("--version").unwrap_err(),
            format!("kernlink-agent {}\n", version::TEXT)
        );
    }

    #[test]
    fn scripts_for_each_shell_complete_subcommands_and_flags() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completion_script(shell);
            for word in [
                "explain",
                "preflight",
                "completions",
                "ipvs-scheduler",
                "socket-group",
                "from",
            ] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn flags_that_are_not_supported_or_have_no_effect_are_not_completed() {
        let command = CommandLine::command();
        let names = |is_offered_here: bool| -> Vec<&str> {
            let arguments = command.get_arguments();
            let arguments = arguments.filter(|argument| is_offered(argument) == is_offered_here);
            arguments.filter_map(Arg::get_long).collect()
        };
        let (offered, others) = (names(true), names(false));
        for name in ["profiling", "feature-gates", "healthz-port", "vmodule"] {
            assert!(others.contains(&name), "{others:?}");
        }
        assert!(
            offered.contains(&"proxy-mode") && offered.contains(&"watch"),
            "{offered:?}"
        );
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completion_script(shell);
            let words = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let words: BTreeSet<&str> = words.map(|word| word.trim_start_matches('-')).collect();
            for name in &offered {
                assert!(words.contains(name), "{shell}: {name}");
            }
            for name in &others {
                assert!(!words.contains(name), "{shell}: {name}");
            }
        }
    }

    #[test]
    fn a_script_has_everything_of_the_arguments_that_are_kept() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let all = with_arguments(&CommandLine::command(), |_| true);
            assert_eq!(
                script_of(shell, all),
                script_of(shell, CommandLine::command()),
                "{shell}"
            );
        }
    }

    #[test]
    fn a_frontend_has_an_address_a_port_and_perhaps_a_protocol() {
        let of = |text: &str| frontend(text).unwrap();
        assert_eq!(of("10.96.0.1:80").protocol, None);
        assert_eq!(of("10.96.0.1:53/udp").protocol.as_deref(), Some("UDP"));
        assert_eq!(
            of("[fd00::1]:443/TCP").address,
            "fd00::1".parse::<IpAddr>().unwrap()
        );
        for line in [
            "10.96.0.1",
            "10.96.0.1:0",
            "fd00::1:443",
            "a:80",
            "10.96.0.1:80/icmp",
            "10.96.0.1:99999",
        ] {
            assert!(frontend(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_is_invalid_is_named() {
        for (line, expected) in [
            ("stat", "unrecognized subcommand 'stat'"),
            ("explain", "<ADDRESS:PORT[/PROTOCOL]>"),
            ("explain 1.2.3.4", "invalid value '1.2.3.4'"),
            ("explain 1.2.3.4:80 --from x", "valid: an IP address"),
            ("services web", "valid: NAMESPACE/NAME"),
            ("status --output xml", "[possible values: table, json]"),
            ("preflight --output yaml", "[possible values: table, json]"),
            ("preflight --once", "unexpected argument '--once'"),
            ("--watch /m --output json", "unexpected argument '--output'"),
            (
                "--watch /m x",
                "the subcommand 'x' cannot be used with '--watch <DIR>'",
            ),
            ("/m", "unrecognized subcommand '/m'"),
            (
                "--watch /m status",
                "the subcommand 'status' cannot be used with '--watch <DIR>'",
            ),
            (
                "log-level loud",
                "the level \"loud\" is not valid; valid: off, error, warn, info, debug, trace, ",
            ),
            ("log-level debug --for 1", "valid: a duration from 1s to 24h"),
            ("log-level debug --for 25h", "valid: a duration from 1s to 24h"),
            ("log-level --for 1m", "LEVEL|FILTER"),
            ("completions tcsh", "[possible values: bash, zsh, fish]"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(parse("services shop/web -o json --socket /tmp/s").is_ok());
        assert!(parse("log-level info,kernlink_agent::cluster=trace --for 1h30m").is_ok());
    }
}
