//! Parsing of addresses and networks, with the rules of Kubernetes.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;

/// Parses an address as Kubernetes does: octets of IPv4 may have leading zeros and are decimal. The result of an IPv4-mapped IPv6
/// address is the IPv4 address.
#[must_use]
pub fn parse_address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    parse_padded_ipv4(text).map(IpAddr::V4)
}

/// Parses a network; octets of IPv4 may have leading zeros. The host bits of the result are zero.
#[must_use]
pub fn parse_net(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let prefix: u8 = prefix.parse().ok()?;
    // The prefix length refers to the address as written, so an IPv4-mapped address is not converted.
    let address = address
        .parse::<IpAddr>()
        .ok()
        .or_else(|| parse_padded_ipv4(address).map(IpAddr::V4))?;
    IpNet::new(address, prefix).ok().map(|net| net.trunc())
}

fn parse_padded_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0u8; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *octet = part
            .trim_start_matches('0')
            .parse()
            .or_else(|_| {
                // The trim removes all digits of an octet of zeros.
                if part.bytes().all(|b| b == b'0') {
                    Ok(0)
                } else {
                    Err(())
                }
            })
            .ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_zeros_are_decimal() {
        assert_eq!(parse_address("010.096.00.9"), Some("10.96.0.9".parse().unwrap()));
        assert_eq!(parse_address("10.96.0.256"), None);
        assert_eq!(parse_address("10.96.0"), None);
        assert_eq!(parse_address(""), None);
    }

    #[test]
    fn a_mapped_address_is_ipv4() {
        assert_eq!(
            parse_address("::ffff:192.0.2.7"),
            Some("192.0.2.7".parse().unwrap())
        );
    }

    #[test]
    fn a_network_is_masked() {
        assert_eq!(parse_net("10.244.3.9/16"), Some("10.244.0.0/16".parse().unwrap()));
        assert_eq!(parse_net("10.244.0.0/33"), None);
        assert_eq!(parse_net("10.244.0.0"), None);
        assert_eq!(parse_net("10.244.0.0/+8"), None);
    }
}
