//! `-j REJECT`: the error that is sent.

use kernlink_base::Family;

use crate::wire::options::Options;
use crate::wire::render::Printer;

/// The error that is sent to the sender of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RejectWith {
    /// `icmp-net-unreachable` (IPv4)
    IcmpNetUnreachable,
    /// `icmp-host-unreachable` (IPv4)
    IcmpHostUnreachable,
    /// `icmp-proto-unreachable` (IPv4)
    IcmpProtoUnreachable,
    /// `icmp-port-unreachable` (IPv4); the default.
    IcmpPortUnreachable,
    /// `icmp-net-prohibited` (IPv4)
    IcmpNetProhibited,
    /// `icmp-host-prohibited` (IPv4)
    IcmpHostProhibited,
    /// `icmp-admin-prohibited` (IPv4)
    IcmpAdminProhibited,
    /// `icmp6-no-route` (IPv6)
    Icmp6NoRoute,
    /// `icmp6-adm-prohibited` (IPv6)
    Icmp6AdmProhibited,
    /// `icmp6-addr-unreachable` (IPv6)
    Icmp6AddrUnreachable,
    /// `icmp6-port-unreachable` (IPv6); the default.
    Icmp6PortUnreachable,
    /// `icmp6-policy-fail` (IPv6)
    Icmp6PolicyFail,
    /// `icmp6-reject-route` (IPv6)
    Icmp6RejectRoute,
    /// `port-unreach`: port unreachable, in both families.
    PortUnreachable,
    /// `tcp-reset`; requires `-p tcp`.
    TcpReset,
}

/// The printed name, followed by other names that the tools accept.
const NAMES: [(RejectWith, &[&str]); 15] = [
    (
        RejectWith::IcmpNetUnreachable,
        &["icmp-net-unreachable", "net-unreach"],
    ),
    (
        RejectWith::IcmpHostUnreachable,
        &["icmp-host-unreachable", "host-unreach"],
    ),
    (
        RejectWith::IcmpProtoUnreachable,
        &["icmp-proto-unreachable", "proto-unreach"],
    ),
    (RejectWith::IcmpPortUnreachable, &["icmp-port-unreachable"]),
    (
        RejectWith::IcmpNetProhibited,
        &["icmp-net-prohibited", "net-prohib"],
    ),
    (
        RejectWith::IcmpHostProhibited,
        &["icmp-host-prohibited", "host-prohib"],
    ),
    (
        RejectWith::IcmpAdminProhibited,
        &["icmp-admin-prohibited", "admin-prohib"],
    ),
    (RejectWith::Icmp6NoRoute, &["icmp6-no-route", "no-route"]),
    (
        RejectWith::Icmp6AdmProhibited,
        &["icmp6-adm-prohibited", "adm-prohibited"],
    ),
    (
        RejectWith::Icmp6AddrUnreachable,
        &["icmp6-addr-unreachable", "addr-unreach"],
    ),
    (RejectWith::Icmp6PortUnreachable, &["icmp6-port-unreachable"]),
    (RejectWith::Icmp6PolicyFail, &["icmp6-policy-fail", "policy-fail"]),
    (
        RejectWith::Icmp6RejectRoute,
        &["icmp6-reject-route", "reject-route"],
    ),
    (RejectWith::PortUnreachable, &["port-unreach"]),
    (RejectWith::TcpReset, &["tcp-reset", "tcp-rst"]),
];

impl RejectWith {
    fn default_for(family: Family) -> Self {
        match family {
            Family::Ipv4 => RejectWith::IcmpPortUnreachable,
            Family::Ipv6 => RejectWith::Icmp6PortUnreachable,
        }
    }

    /// With the default written out and the name of the family.
    pub(super) fn normal_form(with: Option<Self>, family: Family) -> Self {
        match with {
            None | Some(RejectWith::PortUnreachable) => RejectWith::default_for(family),
            Some(with) => with,
        }
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Option<Self>> {
        let Some(flag) = options.flag() else {
            return Some(None);
        };
        if flag.name != "--reject-with" || flag.negated {
            return None;
        }
        let name = options.next()?;
        let (with, _) = NAMES.iter().find(|(_, names)| names.contains(&name))?;
        Some(Some(*with))
    }

    pub(super) fn print(with: Option<Self>, out: &mut Printer<'_>) {
        out.literal("-j REJECT");
        let known = NAMES.iter().find(|(known, _)| Some(*known) == with);
        if let Some(name) = known.and_then(|(_, names)| names.first()) {
            out.literal("--reject-with");
            out.literal(name);
        }
    }
}
