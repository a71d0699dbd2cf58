//! Netlink attributes: type-length-value triples, four-byte aligned, possibly nested.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLA_ALIGNTO, NLA_F_NESTED, NLA_F_NET_BYTEORDER, NLA_HEADER_SIZE, NLA_TYPE_MASK};

use crate::Error;

/// Appends attributes to a buffer. Allocates only when the buffer grows.
///
/// Each method names the attribute type first and says in its name how the value is laid out:
/// `ne_` is the host's byte order, `be_` is network byte order. [`net`](Self::net) adds the
/// `NLA_F_NET_BYTEORDER` bit that ipset requires. An attribute longer than the 16-bit length
/// field allows is not truncated: [`has_overflowed`](Self::has_overflowed) becomes true, and the whole message
/// fails with [`Error::TooLarge`].
#[derive(Debug)]
pub struct AttributeWriter<'b> {
    buffer: &'b mut Vec<u8>,
    overflowed: bool,
    flags: u16,
}

impl<'b> AttributeWriter<'b> {
    /// Appends to `buffer`. Its length must be a multiple of four, so that the attributes are
    /// aligned.
    pub fn new(buffer: &'b mut Vec<u8>) -> Self {
        AttributeWriter {
            buffer,
            overflowed: false,
            flags: 0,
        }
    }

    /// Appends a protocol's fixed header (`genlmsghdr`, `nfgenmsg`, `ifaddrmsg`, ...), padded to
    /// four bytes. Call it before the first attribute.
    pub fn header(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Sets the `NLA_F_NET_BYTEORDER` bit of the next attribute.
    #[inline]
    pub fn net(&mut self) -> &mut Self {
        self.flags |= NLA_F_NET_BYTEORDER;
        self
    }

    /// An attribute with this payload.
    #[inline]
    pub fn bytes(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        let start = self.open(kind, 0);
        self.buffer.extend_from_slice(payload);
        self.close(start);
        self
    }

    /// An attribute without a payload: its presence is the value.
    pub fn flag(&mut self, kind: u16) -> &mut Self {
        self.bytes(kind, &[])
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    /// 16 bits in host byte order.
    pub fn ne_u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// 16 bits in network byte order.
    #[inline]
    pub fn be_u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// 32 bits in host byte order.
    pub fn ne_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// 32 bits in network byte order.
    #[inline]
    pub fn be_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// 64 bits in host byte order.
    pub fn ne_u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// 64 bits in network byte order.
    pub fn be_u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Text, with a terminating NUL byte.
    pub fn string(&mut self, kind: u16, text: &str) -> &mut Self {
        let start = self.open(kind, 0);
        self.buffer.extend_from_slice(text.as_bytes());
        self.buffer.push(0);
        self.close(start);
        self
    }

    /// 4 bytes for an IPv4 address, 16 for an IPv6 address.
    #[inline]
    pub fn address(&mut self, kind: u16, address: IpAddr) -> &mut Self {
        match address {
            IpAddr::V4(v4) => self.bytes(kind, &v4.octets()),
            IpAddr::V6(v6) => self.bytes(kind, &v6.octets()),
        }
    }

    /// An attribute that contains the attributes that `write` appends. Sets `NLA_F_NESTED`.
    #[inline]
    pub fn nested(&mut self, kind: u16, write: impl FnOnce(&mut AttributeWriter<'_>)) -> &mut Self {
        let start = self.open(kind, NLA_F_NESTED);
        let mut inner = AttributeWriter::new(self.buffer);
        write(&mut inner);
        self.overflowed |= inner.overflowed;
        self.close(start);
        self
    }

    /// Length of the buffer in bytes, including the netlink header.
    #[must_use]
    pub fn position(&self) -> usize {
        self.buffer.len()
    }

    /// Whether an attribute was longer than its 16-bit length field allows.
    #[must_use]
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    #[inline]
    fn open(&mut self, kind: u16, flags: u16) -> usize {
        let start = self.buffer.len();
        let [k0, k1] = (kind | flags | std::mem::take(&mut self.flags)).to_ne_bytes();
        self.buffer.extend_from_slice(&[0, 0, k0, k1]);
        start
    }

    #[inline]
    fn close(&mut self, start: usize) {
        match u16::try_from(self.buffer.len() - start) {
            Ok(length) => {
                if let Some(field) = self.buffer.get_mut(start..start + 2) {
                    field.copy_from_slice(&length.to_ne_bytes());
                }
            }
            Err(_) => self.overflowed = true,
        }
        self.pad();
    }

    #[inline]
    fn pad(&mut self) {
        let padding = self.buffer.len().next_multiple_of(NLA_ALIGNTO) - self.buffer.len();
        self.buffer.extend_from_slice(&[0; NLA_ALIGNTO][..padding]);
    }
}

/// Iterates over the attributes of a payload, without copying.
///
/// An attribute whose length exceeds the payload, or is less than its own header, is one
/// [`Error::Malformed`], after which the iterator ends. Fewer than four bytes at the end are
/// padding.
#[derive(Clone, Debug)]
pub struct AttributeReader<'b> {
    rest: &'b [u8],
}

impl<'b> AttributeReader<'b> {
    /// Reads attributes from the start of `payload`.
    #[must_use]
    pub fn new(payload: &'b [u8]) -> Self {
        AttributeReader { rest: payload }
    }

    /// Reads attributes after a fixed header of `length` bytes, padded to four.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the payload is shorter than the header.
    pub fn after_header(payload: &'b [u8], length: usize) -> Result<Self, Error> {
        let rest = payload
            .get(length.next_multiple_of(NLA_ALIGNTO)..)
            .ok_or(Error::Malformed {
                what: "message: shorter than its header",
            })?;
        Ok(AttributeReader { rest })
    }
}

impl<'b> Iterator for AttributeReader<'b> {
    type Item = Result<Attribute<'b>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let [l0, l1, k0, k1, ..] = *self.rest else {
            return None;
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let kind = u16::from_ne_bytes([k0, k1]);
        let Some(payload) = self.rest.get(NLA_HEADER_SIZE..length) else {
            self.rest = &[];
            return Some(Err(Error::Malformed {
                what: "attribute: its length exceeds the data",
            }));
        };
        self.rest = self
            .rest
            .get(length.next_multiple_of(NLA_ALIGNTO)..)
            .unwrap_or(&[]);
        Some(Ok(Attribute { kind, payload }))
    }
}

/// One received attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'b> {
    kind: u16,
    payload: &'b [u8],
}

impl<'b> Attribute<'b> {
    /// The type, without the two flag bits.
    #[must_use]
    pub fn kind(&self) -> u16 {
        self.kind & NLA_TYPE_MASK
    }

    /// Whether the kernel set `NLA_F_NESTED`. Older subsystems do not set it for nested attributes.
    #[must_use]
    pub fn is_nested(&self) -> bool {
        self.kind & NLA_F_NESTED != 0
    }

    /// Whether the kernel set `NLA_F_NET_BYTEORDER`.
    #[must_use]
    pub fn is_net_byte_order(&self) -> bool {
        self.kind & NLA_F_NET_BYTEORDER != 0
    }

    /// The payload, unchanged.
    #[must_use]
    pub fn bytes(&self) -> &'b [u8] {
        self.payload
    }

    /// The payload, which must have exactly `N` bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], Error> {
        self.payload.try_into().map_err(|_| Error::AttributeLength {
            kind: self.kind(),
            length: self.payload.len(),
            expected: N,
        })
    }

    /// One byte.
    pub fn u8(&self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// 16 bits in host byte order.
    pub fn ne_u16(&self) -> Result<u16, Error> {
        self.array().map(u16::from_ne_bytes)
    }

    /// 16 bits in network byte order.
    pub fn be_u16(&self) -> Result<u16, Error> {
        self.array().map(u16::from_be_bytes)
    }

    /// 32 bits in host byte order.
    pub fn ne_u32(&self) -> Result<u32, Error> {
        self.array().map(u32::from_ne_bytes)
    }

    /// 32 bits in network byte order.
    pub fn be_u32(&self) -> Result<u32, Error> {
        self.array().map(u32::from_be_bytes)
    }

    /// 64 bits in host byte order.
    pub fn ne_u64(&self) -> Result<u64, Error> {
        self.array().map(u64::from_ne_bytes)
    }

    /// 64 bits in network byte order.
    pub fn be_u64(&self) -> Result<u64, Error> {
        self.array().map(u64::from_be_bytes)
    }

    /// Text up to the first NUL byte or the end of the payload.
    ///
    /// # Errors
    /// [`Error::Malformed`] if it is not UTF-8.
    pub fn string(&self) -> Result<&'b str, Error> {
        let text = self.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        std::str::from_utf8(text).map_err(|_| Error::Malformed {
            what: "attribute: its text is not UTF-8",
        })
    }

    /// An address: IPv4 if the payload has 4 bytes, otherwise IPv6 (16 bytes).
    pub fn address(&self) -> Result<IpAddr, Error> {
        match self.payload.len() {
            4 => self.array().map(|octets: [u8; 4]| Ipv4Addr::from(octets).into()),
            _ => self.array().map(|octets: [u8; 16]| Ipv6Addr::from(octets).into()),
        }
    }

    /// The attributes in the payload.
    #[must_use]
    pub fn nested(&self) -> AttributeReader<'b> {
        AttributeReader::new(self.payload)
    }
}
