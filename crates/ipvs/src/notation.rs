//! The notation of `ipvsadm -S -n` and `ipvsadm -R`, printed and parsed.
//!
//! Every noun prints in it ([`VirtualServer`], [`RealServer`], [`Operation`]), [`save`] prints a whole table and [`parse`]
//! reads one. Addresses and ports are numbers: names of hosts and services, which `ipvsadm` looks up, are refused.
//!
//! It holds what `ipvsadm` prints, and besides:
//! - thresholds, as `-x` and `-y`, which `ipvsadm -R` takes although `ipvsadm -S` leaves them out;
//! - what `ipvsadm` has no option for, in options of our own that it refuses: `--ip-protocol N ADDRESS:PORT`,
//!   `--forwarding local`, `--forwarding bypass`, `--forwarding N`, and `--tun-type N`, `--tun-port` and `--tun-flags N`
//!   where it would not take them.
//!
//! - the third flag of the schedulers `sh` and `mh`, as `flag-3`, which `ipvsadm -R` takes although `ipvsadm -S` leaves it out.
//!
//! One line is read differently: `ipvsadm` gives a real server that is not masqueraded the port of its virtual server, whatever
//! the line says. The kernel keeps any port, and so does this.
//!
//! So whatever the kernel can hold can be saved, compared and restored without loss, and whatever `ipvsadm` can restore is
//! printed in a form that it reads.

use std::fmt;
use std::net::SocketAddr;

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

/// Prints virtual servers, each followed by its real servers, one a line, in the order given: what `ipvsadm -S -n` prints,
/// thresholds added.
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

/// Reads what `ipvsadm -R` reads: one operation a line, with or without `ipvsadm` in front. Empty lines and lines that begin
/// with `#` say nothing.
///
/// # Errors
/// The first line that is wrong. To go on behind it, as `ipvsadm -R` does not, take the lines one by one with
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

/// Where a text stops being in the notation, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
#[non_exhaustive]
pub struct ParseError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The line has no command, such as `-A` or `-a`.
    #[error(
        "no command: expected one of -A, -E, -D, -a, -e, -d, -C, -Z, --set, --start-daemon, --stop-daemon"
    )]
    NoCommand,
    /// A second command.
    #[error("{option} is a second command")]
    SecondCommand {
        /// The option.
        option: String,
    },
    /// An option that is neither `ipvsadm`'s nor ours, or one that changes nothing, as `-L`.
    #[error("unknown option {option}")]
    UnknownOption {
        /// The option.
        option: String,
    },
    /// An argument where an option was expected.
    #[error("{argument:?} is not an option")]
    NotAnOption {
        /// The argument.
        argument: String,
    },
    /// An option that the command does not take.
    #[error("{option} does not go with {command}")]
    Misplaced {
        /// The option.
        option: &'static str,
        /// The command.
        command: &'static str,
    },
    /// An option that may be there once is there twice.
    #[error("{option} is there twice")]
    Twice {
        /// The option.
        option: &'static str,
    },
    /// An option without its argument.
    #[error("{option} needs an argument")]
    NoArgument {
        /// The option.
        option: String,
    },
    /// A command without an option that it needs.
    #[error("{command} needs {option}")]
    Missing {
        /// The option.
        option: &'static str,
        /// The command.
        command: &'static str,
    },
    /// An argument that does not read as what the option takes.
    #[error("{option} {argument:?} is not {expected}")]
    Argument {
        /// The option.
        option: &'static str,
        /// Its argument.
        argument: String,
        /// What it takes.
        expected: String,
    },
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

/// The names of a scheduler's flags, in the order in which `ipvsadm` prints them.
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
    // `ipvsadm` says even the default, but only of real servers that are reached by a tunnel.
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
    // `ipvsadm` always says which checksum, except for IPIP, which has none.
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
