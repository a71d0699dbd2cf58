//! Ethernet addresses.

use std::fmt;
use std::str::FromStr;

use crate::parse::ParseError;

/// An Ethernet address, printed as ipset prints it: `0A:0B:CC:01:02:03`.
#[doc(alias = "ether")]
#[doc(alias = "IPSET_ATTR_ETHER")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        let filled = bytes.iter_mut().all(|byte| {
            let part = parts
                .next()
                .filter(|part| matches!(part.len(), 1 | 2) && part.bytes().all(|b| b.is_ascii_hexdigit()));
            part.and_then(|part| u8::from_str_radix(part, 16).ok())
                .map(|value| *byte = value)
                .is_some()
        });
        if filled && parts.next().is_none() {
            Ok(MacAddress(bytes))
        } else {
            Err(ParseError::new(
                "Ethernet address",
                text,
                "is not six hexadecimal bytes separated by colons",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_prints_in_upper_case_and_parses_in_any_case() {
        let address: MacAddress = "0a:0b:cc:1:02:03".parse().unwrap();
        assert_eq!(address, MacAddress([0x0a, 0x0b, 0xcc, 1, 2, 3]));
        assert_eq!(address.to_string(), "0A:0B:CC:01:02:03");
        for invalid in [
            "",
            "0a:0b:cc:01:02",
            "0a:0b:cc:01:02:03:04",
            "0a:0b:cc:01:02:+3",
            "0a:0b:cc:01:02:003",
        ] {
            assert!(invalid.parse::<MacAddress>().is_err(), "{invalid}");
        }
    }
}
