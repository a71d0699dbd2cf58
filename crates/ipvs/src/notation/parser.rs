//! Reading a line: words to options, options to an operation.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use super::{Problem, flag_names};
use crate::daemon::{Daemon, DaemonRole, InterfaceName};
use crate::forwarding::ForwardingMethod;
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, Thresholds, Tunnel, TunnelFlags, TunnelKind, Weight};
use crate::scheduler::{PersistenceEngine, Scheduler};
use crate::timeouts::Timeouts;
use crate::virtual_server::{Family, Granularity, Persistence, Protocol, VirtualServer, VirtualServerKey};

impl FromStr for Operation {
    type Err = Problem;

    fn from_str(line: &str) -> Result<Self, Problem> {
        let mut arguments = Arguments::new(line);
        let mut options = Options::default();
        while let Some(option) = arguments.next_option()? {
            options.take(option, &mut arguments)?;
        }
        options.operation()
    }
}

/// The words of a line, options told from arguments as `popt` does for `ipvsadm`.
struct Arguments<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    /// What is stuck to the last option: `80` of `-w80`, `rr` of `--scheduler=rr`.
    attached: Option<&'a str>,
    /// Options stuck together behind the last one: `n` of `-Sn`.
    stuck: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    fn new(line: &'a str) -> Self {
        let mut words = line.split_whitespace().peekable();
        words.next_if_eq(&"ipvsadm");
        Self {
            words,
            attached: None,
            stuck: None,
        }
    }

    /// The next option in its long or its one-letter form, dashes included.
    fn next_option(&mut self) -> Result<Option<String>, Problem> {
        if let Some(argument) = self.attached.take() {
            // The option took no argument: what is stuck to it are further options.
            self.stuck = Some(argument);
        }
        if let Some(stuck) = self.stuck.take() {
            let mut letters = stuck.chars();
            if let Some(letter) = letters.next() {
                self.attached = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                return Ok(Some(format!("-{letter}")));
            }
        }
        let Some(word) = self.words.next() else {
            return Ok(None);
        };
        if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, argument) = match long.split_once('=') {
                Some((name, argument)) => (name, Some(argument)),
                None => (long, None),
            };
            self.attached = argument;
            return Ok(Some(format!("--{name}")));
        }
        let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
        match letters.next() {
            Some(letter) => {
                self.attached = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                Ok(Some(format!("-{letter}")))
            }
            None => Err(Problem::NotAnOption {
                argument: word.to_owned(),
            }),
        }
    }

    fn argument(&mut self, option: &str) -> Result<&'a str, Problem> {
        self.attached
            .take()
            .or_else(|| self.words.next())
            .ok_or_else(|| Problem::NoArgument {
                option: option.to_owned(),
            })
    }

    /// An argument that may be left out: a word that begins with a dash is the next option.
    fn optional_argument(&mut self) -> Option<&'a str> {
        self.attached
            .take()
            .or_else(|| self.words.next_if(|word| !word.starts_with('-')))
    }
}

/// What a line says, before its command is known.
#[derive(Default)]
struct Options {
    command: Option<Command>,
    service: Option<Service>,
    is_ipv6: Option<()>,
    scheduler: Option<Scheduler>,
    scheduler_flags: Option<Vec<String>>,
    persistence: Option<u32>,
    netmask: Option<String>,
    engine: Option<PersistenceEngine>,
    one_packet: Option<()>,
    real_server: Option<(IpAddr, Option<u16>)>,
    forwarding: Option<ForwardingMethod>,
    weight: Option<Weight>,
    upper: Option<u32>,
    lower: Option<u32>,
    tunnel_kind: Option<TunnelKind>,
    tunnel_port: Option<u16>,
    tunnel_flags: Option<TunnelFlags>,
    interface: Option<InterfaceName>,
    sync_id: Option<u32>,
    max_length: Option<u16>,
    group: Option<IpAddr>,
    port: Option<u16>,
    ttl: Option<u8>,
}

#[derive(Clone, Copy)]
enum Service {
    Address(VirtualServerKey),
    Mark(NonZeroU32),
}

enum Command {
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
    fn name(&self) -> &'static str {
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
    /// Takes in one option with its arguments.
    fn take(&mut self, option: String, arguments: &mut Arguments<'_>) -> Result<(), Problem> {
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
                // `ipvsadm` prints marks from 2^31 on as negative numbers.
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
                    Some(word) => number("-p", word, u32::MAX)?,
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
            // Numeric output, which `-S -n` carries; it changes nothing here.
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

    fn operation(mut self) -> Result<Operation, Problem> {
        let command = self.command.take().ok_or(Problem::NoCommand)?;
        let name = command.name();
        let operation = match command {
            Command::AddVirtualServer => Operation::AddVirtualServer(self.virtual_server(name)?),
            Command::UpdateVirtualServer => Operation::UpdateVirtualServer(self.virtual_server(name)?),
            Command::DeleteVirtualServer => Operation::DeleteVirtualServer(self.key(name)?),
            Command::AddRealServer => {
                let virtual_server = self.key(name)?;
                Operation::AddRealServer {
                    virtual_server,
                    real_server: self.real_server(name, virtual_server)?,
                }
            }
            Command::UpdateRealServer => {
                let virtual_server = self.key(name)?;
                Operation::UpdateRealServer {
                    virtual_server,
                    real_server: self.real_server(name, virtual_server)?,
                }
            }
            Command::DeleteRealServer => {
                let virtual_server = self.key(name)?;
                Operation::DeleteRealServer {
                    virtual_server,
                    real_server: self.real_server_key(name, virtual_server)?,
                }
            }
            Command::Flush => Operation::Flush,
            Command::Zero if self.service.is_none() => Operation::ZeroAll,
            Command::Zero => Operation::Zero(self.key(name)?),
            Command::SetTimeouts(timeouts) => Operation::SetTimeouts(timeouts),
            Command::StartDaemon(role) => Operation::StartDaemon(self.daemon(name, role)?),
            Command::StopDaemon(role) => {
                // `ipvsadm` takes them here and ignores them.
                self.interface = None;
                self.sync_id = None;
                Operation::StopDaemon(role)
            }
        };
        match self.left_over() {
            Some(option) => Err(Problem::Misplaced {
                option,
                command: name,
            }),
            None => Ok(operation),
        }
    }

    fn key(&mut self, command: &'static str) -> Result<VirtualServerKey, Problem> {
        match self.service.take() {
            None => Err(Problem::Missing {
                option: "-t, -u, --sctp-service or -f",
                command,
            }),
            Some(Service::Address(key)) => Ok(key),
            Some(Service::Mark(mark)) => {
                let family = if self.is_ipv6.take().is_some() {
                    Family::Ipv6
                } else {
                    Family::Ipv4
                };
                Ok(VirtualServerKey::Mark { family, mark })
            }
        }
    }

    fn virtual_server(&mut self, command: &'static str) -> Result<VirtualServer, Problem> {
        let key = self.key(command)?;
        let scheduler = self.scheduler.take().unwrap_or(DEFAULT_SCHEDULER);
        let mut server = VirtualServer::new(key, scheduler);
        server.one_packet = self.one_packet.take().is_some();
        server.persistence_engine = self.engine.take();
        for flag in self.scheduler_flags.take().unwrap_or_default() {
            let mut names = flag_names(scheduler)
                .into_iter()
                .chain(flag_names(DEFAULT_SCHEDULER));
            let (bit, _) = names
                .find(|(_, name)| *name == flag)
                .ok_or_else(|| argument("-b", &flag, format_args!("a flag of the scheduler {scheduler}")))?;
            server.scheduler_flags |= bit;
        }
        if let Some(seconds) = self.persistence.take() {
            let mut persistence = Persistence::from_seconds(seconds).map_err(|_| {
                argument(
                    "-p",
                    &seconds.to_string(),
                    format_args!("a number from 0 to {}", Persistence::MAX_SECONDS),
                )
            })?;
            if let Some(word) = self.netmask.take() {
                persistence = persistence.with_granularity(granularity(key.family(), &word)?);
            }
            server.persistence = Some(persistence);
        }
        Ok(server)
    }

    fn real_server_key(
        &mut self,
        command: &'static str,
        virtual_server: VirtualServerKey,
    ) -> Result<RealServerKey, Problem> {
        let (address, port) = self.real_server.take().ok_or(Problem::Missing {
            option: "-r",
            command,
        })?;
        Ok(RealServerKey::new(
            address,
            port.or(virtual_server.port()).unwrap_or(0),
        ))
    }

    fn real_server(
        &mut self,
        command: &'static str,
        virtual_server: VirtualServerKey,
    ) -> Result<RealServer, Problem> {
        let key = self.real_server_key(command, virtual_server)?;
        let (upper, lower) = (self.upper.take().unwrap_or(0), self.lower.take().unwrap_or(0));
        let thresholds = Thresholds::new(upper, lower).map_err(|_| {
            argument(
                "-y",
                &lower.to_string(),
                format_args!("a number from 0 to the upper threshold {upper}"),
            )
        })?;
        let mut server = RealServer::new(key)
            .with_forwarding(self.forwarding.take().unwrap_or(ForwardingMethod::DirectRoute))
            .with_weight(self.weight.take().unwrap_or(Weight::ONE))
            .with_thresholds(thresholds);
        server.tunnel = Tunnel {
            kind: self.tunnel_kind.take().unwrap_or_default(),
            port: self.tunnel_port.take().unwrap_or(0),
            flags: self.tunnel_flags.take().unwrap_or_default(),
        };
        Ok(server)
    }

    fn daemon(&mut self, command: &'static str, role: DaemonRole) -> Result<Daemon, Problem> {
        let interface = self.interface.take().ok_or(Problem::Missing {
            option: "--mcast-interface",
            command,
        })?;
        let mut daemon = Daemon::new(role, interface);
        daemon.sync_id = self.sync_id.take().unwrap_or(0);
        daemon.max_length = self.max_length.take();
        daemon.group = self.group.take();
        daemon.port = self.port.take();
        daemon.ttl = self.ttl.take();
        Ok(daemon)
    }

    /// An option that the command did not take.
    fn left_over(&self) -> Option<&'static str> {
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
        .find_map(|(is_left, option)| is_left.then_some(option))
    }
}

const NAME: &str = "a name of 1 to 15 bytes";

/// What `ipvsadm -A` takes without `-s`.
const DEFAULT_SCHEDULER: Scheduler = Scheduler::WLC;

/// Seconds that `ipvsadm` takes for `-p` without an argument; its manual page says 300.
const DEFAULT_PERSISTENCE: u32 = 360;

fn once<T>(option: &'static str, place: &mut Option<T>, value: T) -> Result<(), Problem> {
    if place.is_some() {
        return Err(Problem::Twice { option });
    }
    *place = Some(value);
    Ok(())
}

fn argument(option: &'static str, argument: &str, expected: impl fmt::Display) -> Problem {
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
        // A scope has no place in IPVS.
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

fn granularity(family: Family, word: &str) -> Result<Granularity, Problem> {
    match family {
        Family::Ipv4 => word
            .parse::<Ipv4Addr>()
            .map(Granularity::from_mask)
            .map_err(|_| argument("-M", word, "an IPv4 mask such as 255.255.255.0")),
        Family::Ipv6 => word
            .parse()
            .ok()
            .and_then(|length| Granularity::from_prefix_length(length).ok())
            .ok_or_else(|| argument("-M", word, "a prefix length from 1 to 128")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation;

    fn refused(line: &str) -> String {
        line.parse::<Operation>().unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, text) in [
            (
                "-t 1.2.3.4:1 -s rr",
                "no command: expected one of -A, -E, -D, -a, -e, -d, -C, -Z, --set, --start-daemon, --stop-daemon",
            ),
            ("-A -t 1.2.3.4:1 -D", "-D is a second command"),
            ("-L", "unknown option -L"),
            ("-A web", "\"web\" is not an option"),
            (
                "-A -t web:80",
                "-t \"web:80\" is not a numeric ADDRESS or ADDRESS:PORT, IPv6 addresses in brackets",
            ),
            (
                "-A -t 1.2.3.4:http",
                "-t \"1.2.3.4:http\" is not a numeric ADDRESS or ADDRESS:PORT, IPv6 addresses in brackets",
            ),
            ("-A -t 1.2.3.4:1 -w 1", "-w does not go with -A"),
            (
                "-A -t 1.2.3.4:1 -M 255.0.0.0",
                "-M without -p does not go with -A",
            ),
            ("-A -t 1.2.3.4:1 -s rr -s rr", "-s is there twice"),
            (
                "-A -t 1.2.3.4:1 -s weighted-round-robin",
                "-s \"weighted-round-robin\" is not a name of 1 to 15 bytes",
            ),
            (
                "-A -t 1.2.3.4:1 -p 4294968",
                "-p \"4294968\" is not a number from 0 to 4294967",
            ),
            ("-A -t", "-t needs an argument"),
            ("-a -t 1.2.3.4:1", "-a needs -r"),
            ("-a -r 1.2.3.4:1", "-a needs -t, -u, --sctp-service or -f"),
            ("-A -f 0", "-f \"0\" is not a firewall mark from 1 to 4294967295"),
            (
                "-A -t 1.2.3.4:1 -s rr -b sh-port",
                "-b \"sh-port\" is not a flag of the scheduler rr",
            ),
            (
                "-A -t [2001:db8::1]:1 -p 5 -M 129",
                "-M \"129\" is not a prefix length from 1 to 128",
            ),
            (
                "-a -t 1.2.3.4:1 -r 1.2.3.5 -w 2147483648",
                "-w \"2147483648\" is not a number from 0 to 2147483647",
            ),
            (
                "-a -t 1.2.3.4:1 -r 1.2.3.5 -x 5 -y 6",
                "-y \"6\" is not a number from 0 to the upper threshold 5",
            ),
            ("--set 1 2", "--set needs an argument"),
            ("--start-daemon master", "--start-daemon needs --mcast-interface"),
        ] {
            assert_eq!(refused(line), text, "{line}");
        }
        let error = notation::parse("-C\n\n# all gone\n-A\n").unwrap_err();
        assert_eq!(error.line, 4);
    }

    #[test]
    fn defaults_and_short_forms_are_those_of_ipvsadm() {
        // What `ipvsadm -R` (1.31) made of these lines, as `ipvsadm -Sn` printed it.
        for (line, printed) in [
            ("-A -t 1.2.3.4:1", "-A -t 1.2.3.4:1 -s wlc"),
            ("-A -t 1.2.3.4:2 -p", "-A -t 1.2.3.4:2 -s wlc -p 360"),
            ("ipvsadm -A -t 1.2.3.4:4 -s rr", "-A -t 1.2.3.4:4 -s rr"),
            ("-A -t 1.2.3.4:5 -srr", "-A -t 1.2.3.4:5 -s rr"),
            ("-A -t1.2.3.4:6", "-A -t 1.2.3.4:6 -s wlc"),
            ("-A -t 1.2.3.4:7 --persistent=9", "-A -t 1.2.3.4:7 -s wlc -p 9"),
            ("-A -f 4000000000", "-A -f 4000000000 -s wlc"),
            ("-A -f -294967296 -s wlc", "-A -f 4000000000 -s wlc"),
            ("-a -f 9 -r 9.9.9.9", "-a -f 9 -r 9.9.9.9:0 -g -w 1"),
            (
                "-a -t 10.7.0.1:80 -r 10.7.1.1",
                "-a -t 10.7.0.1:80 -r 10.7.1.1:80 -g -w 1",
            ),
        ] {
            assert_eq!(line.parse::<Operation>().unwrap().to_string(), printed);
        }
    }
}
