//! The notation of `ipvsadm -S -n` and `ipvsadm -R`, printed and parsed.
//!
//! [`VirtualServer`], [`RealServer`] and [`Operation`] print in this notation, [`save`] prints a whole table, and [`parse`] parses
//! one. Addresses and ports are numbers. Names of hosts and services, which `ipvsadm` looks up, are refused.
//!
//! In addition to the output of `ipvsadm -S -n` it contains:
//!
//! - thresholds, as `-x` and `-y`, which `ipvsadm -R` accepts but `ipvsadm -S` does not print;
//! - the third flag of the schedulers `sh` and `mh`, as `flag-3`, which `ipvsadm -R` accepts but `ipvsadm -S` does not print;
//! - values without an option of `ipvsadm`, in options that `ipvsadm` refuses: `--ip-protocol N ADDRESS:PORT`, `--forwarding
//!   local`, `--forwarding bypass`, `--forwarding N`, and `--tun-type N`, `--tun-port` and `--tun-flags N` in combinations that
//!   `ipvsadm` does not accept.
//!
//! One option is parsed differently: `ipvsadm` replaces the port of a real server that is not masqueraded by the port of its
//! virtual server. The kernel stores any port, and [`parse`] keeps the port of the line.
//!
//! So every state of the kernel's table can be saved, compared and restored without loss, and everything that `ipvsadm` supports is
//! printed in a form that `ipvsadm -R` accepts.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use kernlink_base::Family;

use crate::daemon::Daemon;
use crate::forwarding::ForwardingMethod;
use crate::operation::Operation;
use crate::real_server::{RealServer, Tunnel, TunnelFlags, TunnelKind};
use crate::scheduler::{Scheduler, SchedulerFlags};
use crate::virtual_server::{Protocol, VirtualServer, VirtualServerKey};

mod arguments;
mod options;
mod parser;

/// Prints virtual servers, each followed by its real servers, one per line, in the order of `table`: the output of `ipvsadm -S -n`
/// with thresholds.
#[must_use]
pub fn save<'a, R>(table: impl IntoIterator<Item = (&'a VirtualServer, R)>) -> String
where
    R: IntoIterator<Item = &'a RealServer>,
{
    use fmt::Write;
    let mut text = String::new();
    for (server, real_servers) in table {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{server}");
        for real_server in real_servers {
            let _ = writeln!(text, "-a {} {real_server}", server.key);
        }
    }
    text
}

/// Parses the input of `ipvsadm -R`: one operation per line, with or without the word `ipvsadm` at the start. Empty lines and lines
/// that begin with `#` are ignored.
///
/// # Errors
/// The first invalid line. To continue after an invalid line, parse each line with
/// [`Operation::from_str`](std::str::FromStr::from_str).
pub fn parse(text: &str) -> Result<Vec<Operation>, ParseError> {
    let mut operations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        match trimmed.parse() {
            Ok(operation) => operations.push(operation),
            Err(problem) => {
                return Err(ParseError {
                    line: index + 1,
                    problem,
                });
            }
        }
    }
    Ok(operations)
}

/// The first invalid line of a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
#[non_exhaustive]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// Why it is invalid.
    pub problem: Problem,
}

/// Why a line is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The line has no command such as `-A` or `-a`.
    #[error("missing command; valid: -A, -E, -D, -a, -e, -d, -C, -Z, --set, --start-daemon, --stop-daemon")]
    NoCommand,
    /// The line has more than one command.
    #[error("unexpected command {option}; a line has only one command")]
    SecondCommand {
        /// The second command.
        option: String,
    },
    /// An option that is not part of the notation, or that does not change the table, such as `-L`.
    #[error("unknown option {option}")]
    UnknownOption {
        /// The option.
        option: String,
    },
    /// An argument where an option was expected.
    #[error("unexpected argument {argument:?}; expected an option")]
    NotAnOption {
        /// The argument.
        argument: String,
    },
    /// An option that the command does not accept.
    #[error("{option} is not valid with {command}")]
    Misplaced {
        /// The option.
        option: &'static str,
        /// The command.
        command: &'static str,
    },
    /// An option that is given more than once.
    #[error("{option} is given more than once")]
    Repeated {
        /// The option.
        option: &'static str,
    },
    /// An option without its argument.
    #[error("{option} requires an argument")]
    NoArgument {
        /// The option.
        option: String,
    },
    /// A command without a required option.
    #[error("{command} requires {option}")]
    MissingOption {
        /// The option.
        option: &'static str,
        /// The command.
        command: &'static str,
    },
    /// An invalid argument of an option.
    #[error("invalid argument {argument:?} of {option}; expected {expected}")]
    Argument {
        /// The option.
        option: &'static str,
        /// Its argument.
        argument: String,
        /// The valid arguments.
        expected: String,
    },
}

impl FromStr for VirtualServerKey {
    type Err = Problem;

    /// Parses what `Display` prints: `-t 10.0.0.1:80`, `-f 7 -6`.
    fn from_str(text: &str) -> Result<Self, Problem> {
        match format!("-D {text}").parse::<Operation>()? {
            Operation::DeleteVirtualServer(key) => Ok(key),
            _ => Err(Problem::NoCommand),
        }
    }
}

impl fmt::Display for VirtualServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address {
                address,
                protocol,
                port,
            } => {
                let socket = SocketAddr::new(*address, *port);
                match Protocol::from_number(protocol.number()) {
                    Protocol::Tcp => write!(f, "-t {socket}"),
                    Protocol::Udp => write!(f, "-u {socket}"),
                    Protocol::Sctp => write!(f, "--sctp-service {socket}"),
                    Protocol::Unknown(number) => write!(f, "--ip-protocol {number} {socket}"),
                }
            }
            Self::Mark {
                family: Family::Ipv4,
                mark,
            } => write!(f, "-f {mark}"),
            Self::Mark {
                family: Family::Ipv6,
                mark,
            } => write!(f, "-f {mark} -6"),
        }
    }
}

impl fmt::Display for VirtualServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-A ")?;
        fmt_virtual_server(self, f)
    }
}

pub(crate) fn fmt_virtual_server(server: &VirtualServer, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{} -s {}", server.key, server.scheduler)?;
    if let Some(persistence) = server.persistence {
        write!(f, " -p {}", persistence.seconds())?;
        let granularity = persistence.granularity();
        if !granularity.is_address() {
            match (granularity.mask(), granularity.prefix_length()) {
                (Some(mask), _) => write!(f, " -M {mask}")?,
                (None, Some(length)) => write!(f, " -M {length}")?,
                (None, None) => {}
            }
        }
    }
    if let Some(engine) = server.persistence_engine {
        write!(f, " --pe {engine}")?;
    }
    if server.one_packet {
        write!(f, " -o")?;
    }
    let mut separator = " -b ";
    for (flag, name) in flag_names(server.scheduler) {
        if server.scheduler_flags.contains(flag) {
            write!(f, "{separator}{name}")?;
            separator = ",";
        }
    }
    Ok(())
}

/// The names of a scheduler's flags, in the order of the output of `ipvsadm`.
fn flag_names(scheduler: Scheduler) -> [(SchedulerFlags, &'static str); 3] {
    let [first, second] = match scheduler {
        Scheduler::SH => ["sh-fallback", "sh-port"],
        Scheduler::MH => ["mh-fallback", "mh-port"],
        _ => ["flag-1", "flag-2"],
    };
    [
        (SchedulerFlags::FALLBACK, first),
        (SchedulerFlags::PORT, second),
        (SchedulerFlags::THIRD, "flag-3"),
    ]
}

impl fmt::Display for RealServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "-r {}", self.key)?;
        match self.forwarding.named() {
            ForwardingMethod::Masquerade => write!(f, " -m")?,
            ForwardingMethod::Tunnel => write!(f, " -i")?,
            ForwardingMethod::DirectRoute => write!(f, " -g")?,
            ForwardingMethod::Local => write!(f, " --forwarding local")?,
            ForwardingMethod::Bypass => write!(f, " --forwarding bypass")?,
            ForwardingMethod::Unknown(number) => write!(f, " --forwarding {number}")?,
        }
        write!(f, " -w {}", self.weight)?;
        if self.thresholds.upper() != 0 {
            write!(f, " -x {}", self.thresholds.upper())?;
        }
        if self.thresholds.lower() != 0 {
            write!(f, " -y {}", self.thresholds.lower())?;
        }
        fmt_tunnel(self, f)
    }
}

fn fmt_tunnel(server: &RealServer, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Tunnel { kind, port, flags } = server.tunnel;
    // `ipvsadm` prints the default too, but only for the forwarding method tunnel.
    if server.tunnel == Tunnel::IPIP && server.forwarding != ForwardingMethod::Tunnel {
        return Ok(());
    }
    match TunnelKind::from_number(kind.number()) {
        TunnelKind::Ipip => write!(f, " --tun-type ipip")?,
        TunnelKind::Gue => write!(f, " --tun-type gue")?,
        TunnelKind::Gre => write!(f, " --tun-type gre")?,
        TunnelKind::Unknown(number) => write!(f, " --tun-type {number}")?,
    }
    if port != 0 {
        write!(f, " --tun-port {port}")?;
    }
    // `ipvsadm` always prints the kind of checksum, except for IPIP, which has none.
    if flags.is_empty() && !matches!(kind, TunnelKind::Ipip) {
        write!(f, " --tun-nocsum")
    } else if flags == TunnelFlags::CHECKSUM {
        write!(f, " --tun-csum")
    } else if flags == TunnelFlags::REMOTE_CHECKSUM {
        write!(f, " --tun-remcsum")
    } else if flags.is_empty() {
        Ok(())
    } else {
        write!(f, " --tun-flags {}", flags.bits())
    }
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "--start-daemon {} --mcast-interface {}",
            self.role, self.interface
        )?;
        write!(f, " --syncid {}", self.sync_id)?;
        if let Some(max_length) = self.max_length {
            write!(f, " --sync-maxlen {max_length}")?;
        }
        if let Some(group) = self.group {
            write!(f, " --mcast-group {group}")?;
        }
        if let Some(port) = self.port {
            write!(f, " --mcast-port {port}")?;
        }
        if let Some(ttl) = self.ttl {
            write!(f, " --mcast-ttl {ttl}")?;
        }
        Ok(())
    }
}
