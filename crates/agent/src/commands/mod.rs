//! The subcommands, which ask the running agent. The flags of the agent itself are those of kube-proxy: [`crate::flags`].

mod client;
mod support_bundle;
pub(crate) mod table;
mod top;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use kernlink_services::address::parse_address;
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::client::{Client, Failed};
use crate::exit::Exit;
use crate::flags::{Output, PREFLIGHT};
use crate::print;
use crate::query::documents::{Explanation, ServiceList, Status};
use crate::query::explain::{NOT_SERVED, SERVED};

/// The exit status if a frontend is not served.
const NOT_SERVED_STATUS: u8 = 10;
/// The exit status if it is not known whether a frontend is served.
const UNKNOWN_STATUS: u8 = 11;

/// The subcommands.
#[derive(Debug, Parser)]
#[command(
    name = "kernlink-agent",
    about = "Asks the running agent of this network namespace",
    version,
    disable_help_subcommand = true,
    after_help = "kernlink-agent --help shows the flags of the agent itself, and those of `kernlink-agent preflight`."
)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
struct Common {
    /// The Unix socket of the agent; default: that of this network namespace in /run/kernlink
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The form of the answer
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    output: Output,
}

/// What to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Frontend {
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

/// Whether a command line is that of a subcommand that asks the running agent. The agent itself has no arguments that are no flags, except
/// [`PREFLIGHT`], which has its flags.
pub(crate) fn is_subcommand(first: Option<&OsString>) -> bool {
    let is_flag = |first: &OsString| first.as_encoded_bytes().starts_with(b"-") || first.is_empty();
    first.is_some_and(|first| !is_flag(first) && first != PREFLIGHT)
}

/// Runs a subcommand.
pub(crate) fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = std::iter::once(OsString::from("kernlink-agent")).chain(arguments);
    match CommandLine::try_parse_from(arguments) {
        Ok(line) => line.command.run(),
        Err(error) => {
            // It cannot be printed if the reader has ended.
            let _ = error.print();
            match error.use_stderr() {
                true => Exit::Usage.into(),
                false => Exit::Success.into(),
            }
        }
    }
}

impl Command {
    fn run(self) -> ExitCode {
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
        }
    }
}

impl Common {
    /// Asks the agent, and prints the answer.
    fn ask<T: DeserializeOwned + Serialize>(
        &self,
        path: &str,
        show: impl FnOnce(&T) -> (String, u8),
    ) -> ExitCode {
        let answer = Client::new(self.socket.clone()).and_then(|client| client.get(path));
        let shown = answer.and_then(|body| {
            let document: T = serde_json::from_slice(&body).map_err(|error| {
                Failed(format!(
                    "the answer of the agent is not valid: {error}; is it of another version?"
                ))
            })?;
            let (page, status) = show(&document);
            Ok(match self.output {
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
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<CommandLine, String> {
        let arguments = std::iter::once("kernlink-agent").chain(line.split_whitespace());
        CommandLine::try_parse_from(arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn only_what_is_no_flag_is_a_subcommand() {
        for (first, expected) in [
            ("status", true),
            ("--watch", false),
            ("-v", false),
            ("", false),
            ("/m", true),
            ("preflight", false),
        ] {
            assert_eq!(is_subcommand(Some(&first.into())), expected, "{first}");
        }
        assert!(!is_subcommand(None));
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
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
        assert!(parse("services shop/web -o json --socket /tmp/s").is_ok());
    }
}
