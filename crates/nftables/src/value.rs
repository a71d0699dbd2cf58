//! Values: keys and data of elements, operands of comparisons.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_base::Protocol;
use kernlink_netlink::{Attribute, AttributeWriter, Error};

use crate::uapi::{IFNAMSIZ, NFTA_DATA_VALUE};
use crate::wire::{Field, MISSING};

/// The bytes of a value as the kernel compares them. Values of packets are in network byte order, those of the kernel (marks, indexes of
/// devices, states of connection tracking) in the host's byte order.
///
/// A concatenation consists of fields, each padded to 4 bytes.
///
/// ```
/// use kernlink_nftables::Value;
///
/// let key = Value::concat([Value::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), Value::protocol(6), Value::port(80)]);
/// assert_eq!(key.as_bytes(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
/// ```
#[derive(Clone)]
pub struct Value(Bytes);

/// Short values, which nearly all are, need no allocation.
#[derive(Clone)]
enum Bytes {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

/// A concatenation of an IPv6 address, a protocol, a port and an index has 28 bytes.
const SHORT: usize = 28;

impl Value {
    /// A value of these bytes. The kernel has values of 1 to 64 bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT];
        match short.get_mut(..bytes.len()) {
            Some(target) => {
                target.copy_from_slice(bytes);
                Value(Bytes::Short(bytes.len() as u8, short))
            }
            None => Value(Bytes::Long(bytes.into())),
        }
    }

    /// A port: 2 bytes in network byte order.
    #[must_use]
    pub fn port(port: u16) -> Self {
        Value::new(&port.to_be_bytes())
    }

    /// A protocol of the transport layer: 1 byte.
    #[must_use]
    pub fn protocol(protocol: u8) -> Self {
        Value::new(&[protocol])
    }

    /// 4 bytes in the host's byte order: a mark, an index of a device, a random number, a state of connection tracking.
    #[must_use]
    pub fn host_u32(number: u32) -> Self {
        Value::new(&number.to_ne_bytes())
    }

    /// 4 bytes in network byte order.
    #[must_use]
    pub fn be_u32(number: u32) -> Self {
        Value::new(&number.to_be_bytes())
    }

    /// The name of a device: 16 bytes, filled with zeros. Longer names are cut, which the kernel's names never need.
    #[must_use]
    pub fn interface_name(name: &str) -> Self {
        let mut bytes = [0; IFNAMSIZ];
        for (target, byte) in bytes.iter_mut().take(IFNAMSIZ - 1).zip(name.bytes()) {
            *target = byte;
        }
        Value::new(&bytes)
    }

    /// The concatenation of fields: each is padded with zeros to a multiple of 4 bytes.
    #[must_use]
    pub fn concat(fields: impl IntoIterator<Item = Value>) -> Self {
        let mut bytes = [0; 64];
        let mut length = 0_usize;
        let mut long = Vec::new();
        for field in fields {
            let field = field.as_bytes();
            let end = length + field.len().next_multiple_of(4);
            if long.is_empty() && end <= bytes.len() {
                if let Some(target) = bytes.get_mut(length..length + field.len()) {
                    target.copy_from_slice(field);
                }
            } else {
                if long.is_empty() {
                    long.extend_from_slice(bytes.get(..length).unwrap_or(&[]));
                }
                long.extend_from_slice(field);
                long.resize(end, 0);
            }
            length = end;
        }
        if long.is_empty() {
            Value::new(bytes.get(..length).unwrap_or(&[]))
        } else {
            Value(Bytes::Long(long.into()))
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Short(length, bytes) => bytes.get(..usize::from(*length)).unwrap_or(bytes),
            Bytes::Long(bytes) => bytes,
        }
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether there is no byte, which the kernel accepts only as the key of a catch-all element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

impl From<Ipv4Addr> for Value {
    fn from(address: Ipv4Addr) -> Self {
        Value::new(&address.octets())
    }
}

impl From<Ipv6Addr> for Value {
    fn from(address: Ipv6Addr) -> Self {
        Value::new(&address.octets())
    }
}

impl From<IpAddr> for Value {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => address.into(),
            IpAddr::V6(address) => address.into(),
        }
    }
}

impl From<Protocol> for Value {
    fn from(protocol: Protocol) -> Self {
        Value::protocol(protocol.0)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Value::new(bytes)
    }
}

impl<const N: usize> From<[u8; N]> for Value {
    fn from(bytes: [u8; N]) -> Self {
        Value::new(&bytes)
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

/// The order of the bytes.
impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl std::hash::Hash for Value {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Hexadecimal, as `nft --debug=netlink` prints values: `0x0a000001`.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        for byte in self.as_bytes() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl Field for Value {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        writer.nested(kind, |writer| {
            writer.bytes(NFTA_DATA_VALUE, self.as_bytes());
        });
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        for attribute in attribute.nested() {
            let attribute = attribute?;
            if attribute.kind() == NFTA_DATA_VALUE {
                return Ok(Value::new(attribute.bytes()));
            }
        }
        Err(MISSING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_concatenation_are_padded_to_4_bytes() {
        let long = Value::concat([Value::new(&[1; 40]), Value::new(&[2; 30])]);
        assert_eq!(long.len(), 72);
        assert_eq!(long.as_bytes()[70..], [0, 0]);
        assert_eq!(Value::concat([]).len(), 0);
        let three = Value::concat([Value::protocol(17), Value::new(&[1; 64]), Value::port(53)]);
        assert_eq!(three.len(), 72);
        assert_eq!(three.as_bytes()[..5], [17, 0, 0, 0, 1]);
        assert_eq!(three.as_bytes()[68..], [0, 53, 0, 0]);
    }

    #[test]
    fn values_of_any_length_are_compared_by_their_bytes() {
        for length in [0, 1, 27, 28, 29, 64] {
            let bytes = vec![7; length];
            assert_eq!(Value::new(&bytes).as_bytes(), bytes);
            assert_eq!(
                Value::new(&bytes),
                Value::concat([Value::new(&bytes)]).prefix(length)
            );
        }
        assert!(Value::new(&[1]) < Value::new(&[1, 0]));
        assert_eq!(Value::from(Ipv4Addr::new(10, 0, 0, 1)).to_string(), "0x0a000001");
    }

    impl Value {
        fn prefix(&self, length: usize) -> Value {
            Value::new(&self.as_bytes()[..length])
        }
    }
}
