//! How real servers leave a virtual server that stays: their policy, and the sets that hold the deadlines.
//!
//! A real server that is withdrawn gets weight 0: it drains. It gets no new connections, keeps those that it has, and is deleted when they
//! have ended or a limit has passed. A draining real server is one that exists, is not desired, and has weight 0; so the kernel alone
//! holds which ones drain. Deadlines are entries with a timeout in the set `KERNLINK-DRAIN`, or `KERNLINK-6-DRAIN` for IPv6: virtual IP,
//! protocol and port, address of the real server.

use std::net::IpAddr;
use std::time::Duration;

use kernlink_ipset::{Element, Entry, ProtocolPort, Set, SetName, SetType, Timeout};
use kernlink_ipvs::{Protocol, Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey};
use kernlink_services::Family;

/// How often the virtual servers with draining real servers are read.
pub(super) const READ_INTERVAL: Duration = Duration::from_secs(5);

/// How the real servers that are withdrawn from a virtual server leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// They are deleted at once, and their connections end.
    AtOnce,
    /// They are deleted when their connections have ended, or after a limit if there is one; it is not 0.
    Connections { limit: Option<Duration> },
}

impl Drain {
    /// How the real servers of a virtual server leave, with the timeout of its Service.
    ///
    /// UDP and SCTP have no connections that end: the clients of a draining real server would stay with it.
    pub(super) fn of(server: &VirtualServer, timeout: Option<Duration>) -> Self {
        let is_tcp = server.key.protocol() == Some(Protocol::Tcp);
        if !is_tcp
            || timeout == Some(Duration::ZERO)
            || refuses_at_weight_0(server.scheduler, server.scheduler_flags)
        {
            Drain::AtOnce
        } else {
            Drain::Connections { limit: timeout }
        }
    }
}

/// Whether a scheduler selects a real server regardless of its weight and refuses the connection if the weight is 0.
///
/// `dh`, `sh` and `mh` hash the connection to a bucket. The buckets of a real server stay when its weight becomes 0: `ip_vs_dh.c` and
/// `ip_vs_sh.c` do not compare weights to fill them, and `ip_vs_mh.c` uses the last weight that was not 0. With the flag `FALLBACK`, `sh` and
/// `mh` try further buckets.
pub(super) fn refuses_at_weight_0(scheduler: Scheduler, flags: SchedulerFlags) -> bool {
    let is_hash = [Scheduler::SH, Scheduler::MH].contains(&scheduler);
    scheduler == Scheduler::DH || (is_hash && !flags.contains(SchedulerFlags::FALLBACK))
}

/// The name of the set of a family.
pub(super) fn set_name(family: Family) -> SetName {
    let text = match family {
        Family::Ipv4 => "KERNLINK-DRAIN",
        Family::Ipv6 => "KERNLINK-6-DRAIN",
    };
    // The names have at most 31 characters and no NUL.
    #[expect(clippy::expect_used, reason = "constants that a test checks")]
    SetName::new(text).expect("a name of at most 31 characters")
}

/// The family whose set has this name.
pub(super) fn family_of_set(name: &SetName) -> Option<Family> {
    Family::ALL.into_iter().find(|family| set_name(*family) == *name)
}

/// The set as it is created. It exists since a deadline was added for the first time.
pub(super) fn definition(family: Family) -> Set {
    Set::new(set_name(family), SetType::HashIpPortIp)
        .with_family(family)
        .with_timeout(Timeout::PERMANENT)
}

/// The entry of the real servers of a virtual server at an address, without its timeout. `None` if a set cannot hold it: the families
/// differ, or the virtual server has a mark.
pub(super) fn entry(server: &VirtualServerKey, address: IpAddr) -> Option<Entry> {
    let (virtual_ip, protocol, port) = (server.address()?, server.protocol()?, server.port()?);
    let protocol = u8::try_from(protocol.number()).ok()?;
    let port = ProtocolPort::new(kernlink_ipset::Protocol(protocol), port);
    (virtual_ip.is_ipv4() == address.is_ipv4()).then(|| Entry::ip_port_ip(virtual_ip, port, address))
}

/// The virtual server and the address of the real servers of an entry.
pub(super) fn of_entry(entry: &Entry) -> Option<(VirtualServerKey, IpAddr)> {
    match entry.element() {
        Element::IpPortIp { ip, port, second } => {
            let protocol = Protocol::from_number(u16::from(port.protocol.0));
            Some((VirtualServerKey::new(*ip, port.port, protocol), *second))
        }
        _ => None,
    }
}

/// A time as the timeout of an entry: in seconds, rounded up, at least 1.
pub(super) fn timeout(time: Duration) -> Timeout {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    let seconds = u32::try_from(seconds.max(1)).unwrap_or(u32::MAX);
    Timeout::from_secs(seconds).unwrap_or(Timeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_identify_their_virtual_server_and_address() {
        for (virtual_ip, address) in [("10.96.0.1", "10.244.1.2"), ("fd00:96::1", "fd01::2")] {
            let key = VirtualServerKey::tcp(virtual_ip.parse::<IpAddr>().unwrap(), 80);
            let address: IpAddr = address.parse().unwrap();
            let entry = entry(&key, address).unwrap();
            assert_eq!(of_entry(&entry), Some((key, address)));
            let family = Family::of(address);
            assert_eq!(family_of_set(&set_name(family)), Some(family));
            assert_eq!(
                entry.element().check(SetType::HashIpPortIp, family.into()),
                Ok(())
            );
        }
    }

    #[test]
    fn schedulers_that_keep_the_buckets_of_a_draining_real_server_refuse_connections() {
        let refuses = refuses_at_weight_0;
        for &scheduler in Scheduler::KNOWN {
            let hashes = [Scheduler::DH, Scheduler::SH, Scheduler::MH].contains(&scheduler);
            assert_eq!(refuses(scheduler, SchedulerFlags::PORT), hashes, "{scheduler}");
        }
        assert!(!refuses(Scheduler::SH, SchedulerFlags::FALLBACK));
        assert!(!refuses(
            Scheduler::MH,
            SchedulerFlags::FALLBACK | SchedulerFlags::PORT
        ));
        assert!(refuses(Scheduler::DH, SchedulerFlags::FALLBACK));
    }

    #[test]
    fn timeouts_are_rounded_up_and_never_permanent() {
        for (millis, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (u64::MAX, 2_147_483)] {
            assert_eq!(timeout(Duration::from_millis(millis)).as_secs(), seconds);
        }
    }
}
