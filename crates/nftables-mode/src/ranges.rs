//! Source ranges in hash sets: an element for each range, with its prefix length, and a rule for each length. The lengths are divided into
//! groups, so that a packet is compared with those that the ranges of its frontend have.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use kernlink_nftables::Value;
use kernlink_services::Family;

/// The number of lengths of a group.
const IN_GROUP: u8 = 8;

/// The groups of a family.
pub(crate) fn groups(family: Family) -> impl Iterator<Item = u8> {
    0..family.address_bits() / IN_GROUP
}

/// The prefix lengths of a group. The length 0 is in none: such a range restricts nothing.
pub(crate) fn lengths(group: u8) -> impl Iterator<Item = u8> {
    group * IN_GROUP + 1..=(group + 1) * IN_GROUP
}

/// The bits of the groups that these ranges need.
pub(crate) fn bits(ranges: &BTreeSet<IpNet>) -> u32 {
    ranges.iter().fold(0, |bits, net| {
        let group = net.prefix_len().saturating_sub(1) / IN_GROUP;
        bits | 1 << group
    })
}

/// The mask of a prefix length.
pub(crate) fn mask(family: Family, length: u8) -> Value {
    let unspecified = family.unspecified();
    match IpNet::new(unspecified, length).map(|net| net.netmask()) {
        Ok(IpAddr::V4(mask)) => Value::from(mask),
        Ok(IpAddr::V6(mask)) => Value::from(mask),
        // No length is greater than the number of bits of an address.
        Err(_) => match family {
            Family::Ipv4 => Value::from(Ipv4Addr::BROADCAST),
            Family::Ipv6 => Value::from(Ipv6Addr::UNSPECIFIED),
        },
    }
}

/// The range in the fields of an element after its frontend: the prefix length and the network.
pub(crate) fn read(fields: &[u8]) -> Option<IpNet> {
    let (length, network) = fields.split_first_chunk::<4>()?;
    let length = u8::try_from(u32::from_ne_bytes(*length)).ok()?;
    let network: IpAddr = match <[u8; 4]>::try_from(network) {
        Ok(network) => network.into(),
        Err(_) => <[u8; 16]>::try_from(network).ok()?.into(),
    };
    IpNet::new(network, length).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_is_in_one_group() {
        for family in Family::ALL {
            let lengths: Vec<u8> = groups(family).flat_map(lengths).collect();
            let all: Vec<u8> = (1..=family.address_bits()).collect();
            assert_eq!(lengths, all);
            for length in all {
                let net = IpNet::new(family.unspecified(), length).unwrap();
                let bits = bits(&BTreeSet::from([net]));
                let group = groups(family).find(|group| super::lengths(*group).any(|of| of == length));
                assert_eq!(bits, 1 << group.unwrap());
            }
        }
    }
}
