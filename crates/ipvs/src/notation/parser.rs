//! Parsing a line to an operation.

use std::net::Ipv4Addr;
use std::str::FromStr;

use kernlink_base::Family;

use super::arguments::Arguments;
use super::options::{Command, Options, Service, argument};
use super::{Problem, flag_names};
use crate::daemon::{Daemon, DaemonRole};
use crate::forwarding::ForwardingMethod;
use crate::operation::Operation;
use crate::real_server::{RealServer, RealServerKey, Thresholds, Tunnel, Weight};
use crate::scheduler::Scheduler;
use crate::virtual_server::{Granularity, Persistence, VirtualServer, VirtualServerKey};

impl FromStr for Operation {
    type Err = Problem;

    fn from_str(line: &str) -> Result<Self, Problem> {
        let mut arguments = Arguments::new(line);
        let mut options = Options::default();
        while let Some(option) = arguments.next_option()? {
            options.parse_option(option, &mut arguments)?;
        }
        options.operation()
    }
}

impl Options {
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
                // `ipvsadm` accepts and ignores them here.
                self.interface = None;
                self.sync_id = None;
                Operation::StopDaemon(role)
            }
        };
        match self.unused() {
            Some(option) => Err(Problem::Misplaced {
                option,
                command: name,
            }),
            None => Ok(operation),
        }
    }

    fn key(&mut self, command: &'static str) -> Result<VirtualServerKey, Problem> {
        match self.service.take() {
            None => Err(Problem::MissingOption {
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
        let (address, port) = self.real_server.take().ok_or(Problem::MissingOption {
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
        let interface = self.interface.take().ok_or(Problem::MissingOption {
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
}

/// The scheduler that `ipvsadm -A` uses without `-s`.
const DEFAULT_SCHEDULER: Scheduler = Scheduler::WLC;

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

    fn error_of(line: &str) -> String {
        line.parse::<Operation>().unwrap_err().to_string()
    }

    #[test]
    fn an_error_names_the_invalid_option() {
        for (line, text) in [
            (
                "-t 1.2.3.4:1 -s rr",
                "missing command; valid: -A, -E, -D, -a, -e, -d, -C, -Z, --set, --start-daemon, --stop-daemon",
            ),
            (
                "-A -t 1.2.3.4:1 -D",
                "unexpected command -D; a line has only one command",
            ),
            ("-L", "unknown option -L"),
            ("-A web", "unexpected argument \"web\"; expected an option"),
            (
                "-A -t web:80",
                "invalid argument \"web:80\" of -t; expected a numeric ADDRESS or ADDRESS:PORT, IPv6 addresses in brackets",
            ),
            (
                "-A -t 1.2.3.4:http",
                "invalid argument \"1.2.3.4:http\" of -t; expected a numeric ADDRESS or ADDRESS:PORT, IPv6 addresses in brackets",
            ),
            ("-A -t 1.2.3.4:1 -w 1", "-w is not valid with -A"),
            (
                "-A -t 1.2.3.4:1 -M 255.0.0.0",
                "-M without -p is not valid with -A",
            ),
            ("-A -t 1.2.3.4:1 -s rr -s rr", "-s is given more than once"),
            (
                "-A -t 1.2.3.4:1 -s weighted-round-robin",
                "invalid argument \"weighted-round-robin\" of -s; expected a name of 1 to 15 bytes",
            ),
            (
                "-A -t 1.2.3.4:1 -p 4294968",
                "invalid argument \"4294968\" of -p; expected a number from 0 to 4294967",
            ),
            ("-A -t", "-t requires an argument"),
            ("-a -t 1.2.3.4:1", "-a requires -r"),
            ("-a -r 1.2.3.4:1", "-a requires -t, -u, --sctp-service or -f"),
            (
                "-A -f 0",
                "invalid argument \"0\" of -f; expected a firewall mark from 1 to 4294967295",
            ),
            (
                "-A -t 1.2.3.4:1 -s rr -b sh-port",
                "invalid argument \"sh-port\" of -b; expected a flag of the scheduler rr",
            ),
            (
                "-A -t [2001:db8::1]:1 -p 5 -M 129",
                "invalid argument \"129\" of -M; expected a prefix length from 1 to 128",
            ),
            (
                "-a -t 1.2.3.4:1 -r 1.2.3.5 -w 2147483648",
                "invalid argument \"2147483648\" of -w; expected a number from 0 to 2147483647",
            ),
            (
                "-a -t 1.2.3.4:1 -r 1.2.3.5 -x 5 -y 6",
                "invalid argument \"6\" of -y; expected a number from 0 to the upper threshold 5",
            ),
            ("--set 1 2", "--set requires an argument"),
            (
                "--start-daemon master",
                "--start-daemon requires --mcast-interface",
            ),
        ] {
            assert_eq!(error_of(line), text, "{line}");
        }
        let error = notation::parse("-C\n\n# deleted\n-A\n").unwrap_err();
        assert_eq!(error.line, 4);
    }

    #[test]
    fn defaults_and_short_forms_are_those_of_ipvsadm() {
        // The output of `ipvsadm -Sn` after `ipvsadm -R` (1.31) has read these lines.
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
