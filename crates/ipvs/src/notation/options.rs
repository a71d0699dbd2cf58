//! Parsing options and their arguments.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::Problem;
use super::arguments::Arguments;
use crate::daemon::{DaemonRole, InterfaceName};
use crate::forwarding::ForwardingMethod;
use crate::real_server::{Thresholds, TunnelFlags, TunnelKind, Weight};
use crate::scheduler::{PersistenceEngine, Scheduler};
use crate::timeouts::Timeouts;
use crate::virtual_server::{Persistence, Protocol, VirtualServerKey};

/// The options of a line, collected before its command is known.
#[derive(Default)]
pub(super) struct Options {
    pub(super) command: Option<Command>,
    pub(super) service: Option<Service>,
    pub(super) is_ipv6: Option<()>,
    pub(super) scheduler: Option<Scheduler>,
    pub(super) scheduler_flags: Option<Vec<String>>,
    pub(super) persistence: Option<u32>,
    pub(super) netmask: Option<String>,
    pub(super) engine: Option<PersistenceEngine>,
    pub(super) one_packet: Option<()>,
    pub(super) real_server: Option<(IpAddr, Option<u16>)>,
    pub(super) forwarding: Option<ForwardingMethod>,
    pub(super) weight: Option<Weight>,
    pub(super) upper: Option<u32>,
    pub(super) lower: Option<u32>,
    pub(super) tunnel_kind: Option<TunnelKind>,
    pub(super) tunnel_port: Option<u16>,
    pub(super) tunnel_flags: Option<TunnelFlags>,
    pub(super) interface: Option<InterfaceName>,
    pub(super) sync_id: Option<u32>,
    pub(super) max_length: Option<u16>,
    pub(super) group: Option<IpAddr>,
    pub(super) port: Option<u16>,
    pub(super) ttl: Option<u8>,
}

#[derive(Clone, Copy)]
pub(super) enum Service {
    Address(VirtualServerKey),
    Mark(NonZeroU32),
}

pub(super) enum Command {
    AddVirtualServer,
    UpdateVirtualServer,
    DeleteVirtualServer,
    AddRealServer,
    UpdateRealServer,
    DeleteRealServer,
    Flush,
    Zero,
    SetTimeouts(Timeouts),
    StartDaemon(DaemonRole),
    StopDaemon(DaemonRole),
}

impl Command {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::AddVirtualServer => "-A",
            Self::UpdateVirtualServer => "-E",
            Self::DeleteVirtualServer => "-D",
            Self::AddRealServer => "-a",
            Self::UpdateRealServer => "-e",
            Self::DeleteRealServer => "-d",
            Self::Flush => "-C",
            Self::Zero => "-Z",
            Self::SetTimeouts(_) => "--set",
            Self::StartDaemon(_) => "--start-daemon",
            Self::StopDaemon(_) => "--stop-daemon",
        }
    }
}

impl Options {
    /// Parses one option with its arguments.
    pub(super) fn parse_option(
        &mut self,
        option: String,
        arguments: &mut Arguments<'_>,
    ) -> Result<(), Problem> {
        match option.as_str() {
            "-A" | "--add-service" => self.command(Command::AddVirtualServer, &option),
            "-E" | "--edit-service" => self.command(Command::UpdateVirtualServer, &option),
            "-D" | "--delete-service" => self.command(Command::DeleteVirtualServer, &option),
            "-a" | "--add-server" => self.command(Command::AddRealServer, &option),
            "-e" | "--edit-server" => self.command(Command::UpdateRealServer, &option),
            "-d" | "--delete-server" => self.command(Command::DeleteRealServer, &option),
            "-C" | "--clear" => self.command(Command::Flush, &option),
            "-Z" | "--zero" => self.command(Command::Zero, &option),
            "--set" => {
                let mut seconds = || {
                    let word = arguments.argument("--set")?;
                    number::<u32>("--set", word, Timeouts::MAX_SECONDS).map(|s| Duration::from_secs(s.into()))
                };
                let timeouts = Timeouts::new(seconds()?, seconds()?, seconds()?);
                self.command(Command::SetTimeouts(timeouts), &option)
            }
            "--start-daemon" => {
                let role = role("--start-daemon", arguments.argument(&option)?)?;
                self.command(Command::StartDaemon(role), &option)
            }
            "--stop-daemon" => {
                let role = role("--stop-daemon", arguments.argument(&option)?)?;
                self.command(Command::StopDaemon(role), &option)
            }
            "-t" | "--tcp-service" => self.address("-t", Protocol::Tcp, arguments.argument(&option)?),
            "-u" | "--udp-service" => self.address("-u", Protocol::Udp, arguments.argument(&option)?),
            "--sctp-service" => self.address("--sctp-service", Protocol::Sctp, arguments.argument(&option)?),
            "--ip-protocol" => {
                let protocol = number("--ip-protocol", arguments.argument(&option)?, u16::MAX)?;
                self.address(
                    "--ip-protocol",
                    Protocol::from_number(protocol),
                    arguments.argument(&option)?,
                )
            }
            "-f" | "--fwmark-service" => {
                let word = arguments.argument(&option)?;
                // `ipvsadm` prints marks of 2^31 and above as negative numbers.
                let mark = word
                    .parse::<u32>()
                    .ok()
                    .or_else(|| word.parse::<i32>().ok().map(i32::cast_unsigned))
                    .and_then(NonZeroU32::new)
                    .ok_or_else(|| argument("-f", word, "a firewall mark from 1 to 4294967295"))?;
                once("-f", &mut self.service, Service::Mark(mark))
            }
            "-6" | "--ipv6" => once("-6", &mut self.is_ipv6, ()),
            "-s" | "--scheduler" => {
                let word = arguments.argument(&option)?;
                let scheduler = Scheduler::new(word).map_err(|_| argument("-s", word, NAME))?;
                once("-s", &mut self.scheduler, scheduler)
            }
            "-b" | "--sched-flags" => {
                let flags = arguments
                    .argument(&option)?
                    .split(',')
                    .map(str::to_owned)
                    .collect();
                once("-b", &mut self.scheduler_flags, flags)
            }
            "-p" | "--persistent" => {
                let seconds = match arguments.optional_argument() {
                    Some(word) => number("-p", word, Persistence::MAX_SECONDS)?,
                    None => DEFAULT_PERSISTENCE,
                };
                once("-p", &mut self.persistence, seconds)
            }
            "-M" | "--netmask" => once("-M", &mut self.netmask, arguments.argument(&option)?.to_owned()),
            "--pe" => {
                let word = arguments.argument(&option)?;
                let engine = PersistenceEngine::new(word).map_err(|_| argument("--pe", word, NAME))?;
                once("--pe", &mut self.engine, engine)
            }
            "-o" | "--ops" => once("-o", &mut self.one_packet, ()),
            "-r" | "--real-server" => {
                let socket = socket("-r", arguments.argument(&option)?)?;
                once("-r", &mut self.real_server, socket)
            }
            "-m" | "--masquerading" => once("-m", &mut self.forwarding, ForwardingMethod::Masquerade),
            "-i" | "--ipip" => once("-i", &mut self.forwarding, ForwardingMethod::Tunnel),
            "-g" | "--gatewaying" => once("-g", &mut self.forwarding, ForwardingMethod::DirectRoute),
            "--forwarding" => {
                let word = arguments.argument(&option)?;
                let method = match word {
                    "local" => ForwardingMethod::Local,
                    "bypass" => ForwardingMethod::Bypass,
                    _ => ForwardingMethod::from_number(number("--forwarding", word, 7)?),
                };
                once("--forwarding", &mut self.forwarding, method)
            }
            "-w" | "--weight" => {
                let weight = Weight::new(number("-w", arguments.argument(&option)?, Weight::MAX.get())?)
                    .map_err(|error| {
                        argument(
                            "-w",
                            &error.weight.to_string(),
                            format_args!("a number from 0 to {}", Weight::MAX),
                        )
                    })?;
                once("-w", &mut self.weight, weight)
            }
            "-x" | "--u-threshold" => once(
                "-x",
                &mut self.upper,
                number("-x", arguments.argument(&option)?, Thresholds::MAX)?,
            ),
            "-y" | "--l-threshold" => once(
                "-y",
                &mut self.lower,
                number("-y", arguments.argument(&option)?, Thresholds::MAX)?,
            ),
            "--tun-type" => {
                let word = arguments.argument(&option)?;
                let kind = match word {
                    "ipip" => TunnelKind::Ipip,
                    "gue" => TunnelKind::Gue,
                    "gre" => TunnelKind::Gre,
                    _ => TunnelKind::from_number(number("--tun-type", word, u8::MAX)?),
                };
                once("--tun-type", &mut self.tunnel_kind, kind)
            }
            "--tun-port" => {
                let port = number("--tun-port", arguments.argument(&option)?, u16::MAX)?;
                once("--tun-port", &mut self.tunnel_port, port)
            }
            "--tun-nocsum" => once("--tun-nocsum", &mut self.tunnel_flags, TunnelFlags::empty()),
            "--tun-csum" => once("--tun-csum", &mut self.tunnel_flags, TunnelFlags::CHECKSUM),
            "--tun-remcsum" => once(
                "--tun-remcsum",
                &mut self.tunnel_flags,
                TunnelFlags::REMOTE_CHECKSUM,
            ),
            "--tun-flags" => {
                let bits = number("--tun-flags", arguments.argument(&option)?, u16::MAX)?;
                once(
                    "--tun-flags",
                    &mut self.tunnel_flags,
                    TunnelFlags::from_bits_retain(bits),
                )
            }
            "--mcast-interface" => {
                let word = arguments.argument(&option)?;
                let name = InterfaceName::new(word).map_err(|_| argument("--mcast-interface", word, NAME))?;
                once("--mcast-interface", &mut self.interface, name)
            }
            "--syncid" => once(
                "--syncid",
                &mut self.sync_id,
                number("--syncid", arguments.argument(&option)?, 255)?,
            ),
            "--sync-maxlen" => {
                let length = number("--sync-maxlen", arguments.argument(&option)?, u16::MAX)?;
                once("--sync-maxlen", &mut self.max_length, length)
            }
            "--mcast-group" => {
                let word = arguments.argument(&option)?;
                let group = word
                    .parse()
                    .map_err(|_| argument("--mcast-group", word, "an IP address"))?;
                once("--mcast-group", &mut self.group, group)
            }
            "--mcast-port" => once(
                "--mcast-port",
                &mut self.port,
                number("--mcast-port", arguments.argument(&option)?, u16::MAX)?,
            ),
            "--mcast-ttl" => once(
                "--mcast-ttl",
                &mut self.ttl,
                number("--mcast-ttl", arguments.argument(&option)?, u8::MAX)?,
            ),
            // Numeric output, which has no effect here.
            "-n" | "--numeric" => Ok(()),
            _ => Err(Problem::UnknownOption { option }),
        }
    }

    fn command(&mut self, command: Command, option: &str) -> Result<(), Problem> {
        if self.command.is_some() {
            return Err(Problem::SecondCommand {
                option: option.to_owned(),
            });
        }
        self.command = Some(command);
        Ok(())
    }

    fn address(&mut self, option: &'static str, protocol: Protocol, word: &str) -> Result<(), Problem> {
        let (address, port) = socket(option, word)?;
        let key = VirtualServerKey::new(address, port.unwrap_or(0), protocol);
        once(option, &mut self.service, Service::Address(key))
    }

    /// An option that the command did not use.
    pub(super) fn unused(&self) -> Option<&'static str> {
        let Self {
            command: _,
            service,
            is_ipv6,
            scheduler,
            scheduler_flags,
            persistence,
            netmask,
            engine,
            one_packet,
            real_server,
            forwarding,
            weight,
            upper,
            lower,
            tunnel_kind,
            tunnel_port,
            tunnel_flags,
            interface,
            sync_id,
            max_length,
            group,
            port,
            ttl,
        } = self;
        [
            (service.is_some(), "a virtual server"),
            (is_ipv6.is_some(), "-6"),
            (scheduler.is_some(), "-s"),
            (scheduler_flags.is_some(), "-b"),
            (persistence.is_some(), "-p"),
            (netmask.is_some(), "-M without -p"),
            (engine.is_some(), "--pe"),
            (one_packet.is_some(), "-o"),
            (real_server.is_some(), "-r"),
            (forwarding.is_some(), "a forwarding method"),
            (weight.is_some(), "-w"),
            (upper.is_some(), "-x"),
            (lower.is_some(), "-y"),
            (tunnel_kind.is_some(), "--tun-type"),
            (tunnel_port.is_some(), "--tun-port"),
            (tunnel_flags.is_some(), "a tunnel checksum"),
            (interface.is_some(), "--mcast-interface"),
            (sync_id.is_some(), "--syncid"),
            (max_length.is_some(), "--sync-maxlen"),
            (group.is_some(), "--mcast-group"),
            (port.is_some(), "--mcast-port"),
            (ttl.is_some(), "--mcast-ttl"),
        ]
        .into_iter()
        .find_map(|(is_set, option)| is_set.then_some(option))
    }
}

const NAME: &str = "a name of 1 to 15 bytes";

/// The value that `ipvsadm` uses for `-p` without an argument, in seconds. Its manual page contains 300.
const DEFAULT_PERSISTENCE: u32 = 360;

fn once<T>(option: &'static str, place: &mut Option<T>, value: T) -> Result<(), Problem> {
    if place.is_some() {
        return Err(Problem::Repeated { option });
    }
    *place = Some(value);
    Ok(())
}

pub(super) fn argument(option: &'static str, argument: &str, expected: impl fmt::Display) -> Problem {
    Problem::Argument {
        option,
        argument: argument.to_owned(),
        expected: expected.to_string(),
    }
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    option: &'static str,
    word: &str,
    max: T,
) -> Result<T, Problem> {
    match word.parse() {
        Ok(number) if number <= max => Ok(number),
        _ => Err(argument(option, word, format_args!("a number from 0 to {max}"))),
    }
}

fn role(option: &'static str, word: &str) -> Result<DaemonRole, Problem> {
    match word {
        "master" => Ok(DaemonRole::Master),
        "backup" => Ok(DaemonRole::Backup),
        _ => Err(argument(option, word, "master or backup")),
    }
}

fn socket(option: &'static str, word: &str) -> Result<(IpAddr, Option<u16>), Problem> {
    if let Ok(socket) = word.parse::<SocketAddr>() {
        // IPVS does not support scopes.
        if matches!(socket, SocketAddr::V6(v6) if v6.scope_id() != 0) {
            return Err(argument(option, word, "an address without a scope"));
        }
        return Ok((socket.ip(), Some(socket.port())));
    }
    let bare = word
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'))
        .unwrap_or(word);
    bare.parse().map(|address| (address, None)).map_err(|_| {
        argument(
            option,
            word,
            "a numeric ADDRESS or ADDRESS:PORT, IPv6 addresses in brackets",
        )
    })
}
