//! Families and protocols as the tool `conntrack` prints them.

use std::fmt;

use kernlink_base::{Family, Protocol};

/// `ipv4` or `ipv6`.
pub(crate) fn family_name(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    }
}

/// The name of a protocol whose tuples have more than addresses. ICMPv6 is `icmpv6`, not `ipv6-icmp` as in `/etc/protocols`.
pub(crate) fn protocol_name(protocol: Protocol) -> Option<&'static str> {
    match protocol {
        Protocol::ICMPV6 => Some("icmpv6"),
        Protocol::ICMP
        | Protocol::TCP
        | Protocol::UDP
        | Protocol::DCCP
        | Protocol::GRE
        | Protocol::SCTP
        | Protocol::UDPLITE => protocol.name(),
        _ => None,
    }
}

/// Prints the [`protocol_name`], otherwise the number.
pub(crate) struct ProtocolName(pub(crate) Protocol);

impl fmt::Display for ProtocolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match protocol_name(self.0) {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_the_names_of_the_tool() {
        for (protocol, name) in [
            (Protocol::TCP, "tcp"),
            (Protocol::UDPLITE, "udplite"),
            (Protocol::ICMPV6, "icmpv6"),
            // `esp` in `/etc/protocols`.
            (Protocol(50), "50"),
        ] {
            assert_eq!(ProtocolName(protocol).to_string(), name);
        }
    }
}
