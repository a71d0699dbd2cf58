//! Stateful objects, which rules and elements of maps refer to by name.

use std::fmt;

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error};

use crate::expression::{ConnectionLimit, Counter, Limit, Quota, Synproxy};
use crate::table::TableKey;
use crate::user_data::{self, UserData};
use crate::wire::{Attributes, Field, attributes, open_enum};

open_enum! {
    /// The kind of an object. Each kind has names of its own.
    ObjectKind: u32 {
        /// Counts packets and bytes.
        Counter = NFT_OBJECT_COUNTER "counter",
        /// Limits the number of bytes.
        Quota = NFT_OBJECT_QUOTA "quota",
        /// A helper of connection tracking.
        Helper = NFT_OBJECT_CT_HELPER "ct helper",
        /// Limits the rate.
        Limit = NFT_OBJECT_LIMIT "limit",
        /// Limits the number of connections.
        ConnectionLimit = NFT_OBJECT_CONNLIMIT "ct count",
        /// A header of a tunnel.
        Tunnel = NFT_OBJECT_TUNNEL "tunnel",
        /// Timeouts of connection tracking.
        Timeout = NFT_OBJECT_CT_TIMEOUT "ct timeout",
        /// A security mark.
        SecurityMark = NFT_OBJECT_SECMARK "secmark",
        /// An expectation of connection tracking.
        Expectation = NFT_OBJECT_CT_EXPECT "ct expectation",
        /// Parameters of a synproxy.
        Synproxy = NFT_OBJECT_SYNPROXY "synproxy",
    }
}

/// An object: table, kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ObjectKey {
    /// The table.
    pub table: TableKey,
    /// The kind.
    pub kind: ObjectKind,
    /// The name, at most 255 bytes.
    pub name: Box<str>,
}

impl ObjectKey {
    /// The object of this kind and name.
    #[must_use]
    pub fn new(table: TableKey, kind: ObjectKind, name: impl Into<Box<str>>) -> Self {
        ObjectKey {
            table,
            kind,
            name: name.into(),
        }
    }
}

/// As in `nft` commands: `counter ip filter https`.
impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.kind, self.table, self.name)
    }
}

attributes! {
    /// A helper of connection tracking.
    Helper {
        /// The name of the helper, such as `ftp`.
        name: Box<str> = NFTA_CT_HELPER_NAME,
        /// The protocol of the transport layer.
        protocol: u8 = NFTA_CT_HELPER_L4PROTO,
        ;
        /// The family (`NFPROTO_*`).
        with_family family: Option<u16> = NFTA_CT_HELPER_L3PROTO,
    }
}

attributes! {
    /// Timeouts of connection tracking.
    ConnectionTimeout {
        /// The protocol of the transport layer.
        protocol: u8 = NFTA_CT_TIMEOUT_L4PROTO,
        /// The timeouts.
        timeouts: Timeouts = NFTA_CT_TIMEOUT_DATA,
        ;
        /// The family (`NFPROTO_*`).
        with_family family: Option<u16> = NFTA_CT_TIMEOUT_L3PROTO,
    }
}

/// Timeouts in seconds, with the number of the state (`CTA_TIMEOUT_*`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeouts(pub Vec<(u16, u32)>);

impl Field for Timeouts {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        writer.nested(kind, |writer| {
            for (state, seconds) in &self.0 {
                writer.be_u32(*state, *seconds);
            }
        });
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        let mut timeouts = Vec::new();
        for attribute in attribute.nested() {
            let attribute = attribute?;
            timeouts.push((attribute.kind(), attribute.be_u32()?));
        }
        Ok(Timeouts(timeouts))
    }
}

/// 32 bits in the host's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostU32(pub u32);

impl From<u32> for HostU32 {
    fn from(number: u32) -> Self {
        HostU32(number)
    }
}

impl Field for HostU32 {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        writer.ne_u32(kind, self.0);
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        attribute.ne_u32().map(HostU32)
    }
}

attributes! {
    /// An expectation that connections of a rule create.
    ConnectionExpectation {
        /// The protocol of the transport layer.
        protocol: u8 = NFTA_CT_EXPECT_L4PROTO,
        /// The destination port.
        port: u16 = NFTA_CT_EXPECT_DPORT,
        /// Milliseconds until the expectation ends.
        timeout: HostU32 = NFTA_CT_EXPECT_TIMEOUT,
        /// The number of connections that may be expected at a time.
        size: u8 = NFTA_CT_EXPECT_SIZE,
        ;
        /// The family (`NFPROTO_*`).
        with_family family: Option<u16> = NFTA_CT_EXPECT_L3PROTO,
    }
}

attributes! {
    /// A security mark.
    SecurityMark {
        /// The security context.
        context: Box<str> = NFTA_SECMARK_CTX,
    }
}

/// The content of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectData {
    /// A counter.
    Counter(Counter),
    /// A quota.
    Quota(Quota),
    /// A limit.
    Limit(Limit),
    /// A limit of connections.
    ConnectionLimit(ConnectionLimit),
    /// A helper.
    Helper(Helper),
    /// Timeouts.
    Timeout(ConnectionTimeout),
    /// An expectation.
    Expectation(ConnectionExpectation),
    /// A security mark.
    SecurityMark(SecurityMark),
    /// Parameters of a synproxy.
    Synproxy(Synproxy),
    /// The attributes of another kind, or of a newer kernel.
    Opaque(Box<[u8]>),
}

macro_rules! contents {
    ($($variant:ident),*) => {
        impl ObjectData {
            pub(crate) fn encode(&self, writer: &mut AttributeWriter<'_>) {
                match self {
                    $(ObjectData::$variant(data) => data.encode(writer),)*
                    ObjectData::Opaque(bytes) => {
                        writer.header(bytes);
                    }
                }
            }

            pub(crate) fn decode(kind: ObjectKind, bytes: &[u8]) -> Self {
                let attributes = || AttributeReader::new(bytes);
                let decoded = match kind {
                    $(ObjectKind::$variant => Attributes::decode(attributes()).map(ObjectData::$variant),)*
                    _ => Ok(ObjectData::Opaque(bytes.into())),
                };
                decoded.unwrap_or_else(|_| ObjectData::Opaque(bytes.into()))
            }
        }
    };
}

contents!(
    Counter,
    Quota,
    Limit,
    ConnectionLimit,
    Helper,
    Timeout,
    Expectation,
    SecurityMark,
    Synproxy
);

/// A stateful object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Object {
    /// Table, kind and name.
    pub key: ObjectKey,
    /// Its content.
    pub data: ObjectData,
    /// User data.
    pub user_data: UserData,
    /// The kernel's number of the object; only read.
    pub handle: Option<u64>,
    /// Number of rules and elements that refer to it; only read.
    pub use_count: u32,
}

impl Object {
    /// An object with this content.
    #[must_use]
    pub fn new(key: ObjectKey, data: ObjectData) -> Self {
        Object {
            key,
            data,
            user_data: UserData::new(),
            handle: None,
            use_count: 0,
        }
    }

    /// A counter that begins with 0.
    #[must_use]
    pub fn counter(table: TableKey, name: impl Into<Box<str>>) -> Self {
        Object::new(
            ObjectKey::new(table, ObjectKind::Counter, name),
            ObjectData::Counter(Counter::new()),
        )
    }

    /// Adds a comment, of at most 128 bytes for `nft`. One of more than 254 bytes is not added.
    #[must_use]
    pub fn with_comment(mut self, comment: &str) -> Self {
        self.user_data.push_text(user_data::COMMENT, comment);
        self
    }

    /// The comment.
    #[must_use]
    pub fn comment(&self) -> Option<&str> {
        self.user_data.text(user_data::COMMENT)
    }
}
