//! Expressions, of which rules consist.

pub(crate) mod lengths;
mod load;
#[cfg(feature = "fake")]
mod registers;
mod sets;
mod stateful;
mod statement;
mod transform;

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error};

pub use self::load::{
    ConnectionTracking, ConnectionTrackingKey, ConnectionTrackingSet, ExtensionHeader, ExtensionHeaderKind,
    ExtensionHeaderRemoval, ExtensionHeaderSet, Fib, FibFlags, FibResult, Hash, HashKind, Immediate, Inner,
    Meta, MetaKey, MetaSet, NumberGenerator, NumberGeneratorKind, OsFingerprint, OsFingerprintFlags, Payload,
    PayloadBase, PayloadChecksum, PayloadSet, Route, RouteKey, Socket, SocketKey, Tunnel, TunnelKey,
    TunnelMode, Xfrm, XfrmKey,
};
pub use self::sets::{Dynset, DynsetOperation, Lookup, LookupFlags, ObjectMap, ObjectReference};
pub use self::stateful::{ConnectionLimit, Counter, InvertFlags, Last, Limit, LimitKind, Quota, QuotaFlags};
pub use self::statement::{
    Duplicate, FlowOffload, Forward, Log, LogFlags, LogLevel, Masquerade, Nat, NatFlags, NatKind, Notrack,
    Queue, QueueFlags, Redirect, Reject, RejectKind, Synproxy, SynproxyFlags, Tproxy,
};
pub use self::transform::{
    Bitwise, BitwiseOperation, ByteOrder, ByteOrderOperation, Compare, CompareOperator, Range,
};
use crate::uapi::{NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_LIST_ELEM};
use crate::wire::{Attributes, Field, MISSING, UNKNOWN, text};

macro_rules! expressions {
    ($($(#[$doc:meta])* $variant:ident $name:literal,)*) => {
        /// One step of a rule. A step reads and writes [registers](crate::Register), and may end the rule.
        ///
        /// Steps of the kernel that this crate does not decode, or with attributes of a newer kernel, are
        /// [`Opaque`](Expression::Opaque), and are written as they were read.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Expression {
            $($(#[$doc])* $variant($variant),)*
            /// Another one.
            Opaque(Opaque),
        }

        impl Expression {
            /// The name in the kernel.
            #[must_use]
            pub fn name(&self) -> &str {
                match self {
                    $(Expression::$variant(_) => $name,)*
                    Expression::Opaque(opaque) => &opaque.name,
                }
            }

            /// Appends the data of the expression, without its name.
            fn encode_data(&self, writer: &mut AttributeWriter<'_>) {
                match self {
                    $(Expression::$variant(expression) => expression.encode(writer),)*
                    Expression::Opaque(_) => {}
                }
            }

            /// The first variant with this name whose attributes are those of the data.
            fn decode_data(name: &str, data: &[u8]) -> Option<Self> {
                $(
                    if name == $name && let Ok(expression) = $variant::decode(AttributeReader::new(data)) {
                        return Some(Expression::$variant(expression));
                    }
                )*
                None
            }
        }

        $(
            impl From<$variant> for Expression {
                fn from(expression: $variant) -> Self {
                    Expression::$variant(expression)
                }
            }
        )*
    };
}

expressions! {
    /// Loads a constant, or decides about the packet.
    Immediate "immediate",
    /// Loads bytes of the packet.
    Payload "payload",
    /// Writes bytes of the packet.
    PayloadSet "payload",
    /// Loads metadata of the packet, such as its mark or input device.
    Meta "meta",
    /// Writes metadata of the packet.
    MetaSet "meta",
    /// Loads a property of the packet's connection.
    ConnectionTracking "ct",
    /// Writes a property of the packet's connection.
    ConnectionTrackingSet "ct",
    /// Loads a field of an extension header or option.
    ExtensionHeader "exthdr",
    /// Writes a field of an option.
    ExtensionHeaderSet "exthdr",
    /// Removes an option.
    ExtensionHeaderRemoval "exthdr",
    /// Loads a result of a route lookup.
    Fib "fib",
    /// Loads a property of the packet's route.
    Route "rt",
    /// Loads a property of the local socket of the packet.
    Socket "socket",
    /// Loads the operating system that a SYN packet looks like.
    OsFingerprint "osf",
    /// Loads a property of the tunnel.
    Tunnel "tunnel",
    /// Loads a property of the packet's IPsec state.
    Xfrm "xfrm",
    /// Loads a number.
    NumberGenerator "numgen",
    /// Loads a hash.
    Hash "hash",
    /// Evaluates an expression on the packet inside of a tunnel.
    Inner "inner",
    /// Compares a register with a constant; the rule ends if that is false.
    Compare "cmp",
    /// Compares a register with a range; the rule ends if that is false.
    Range "range",
    /// Computes with bits.
    Bitwise "bitwise",
    /// Changes the byte order.
    ByteOrder "byteorder",
    /// Looks up an element of a set or map; the rule ends if there is none.
    Lookup "lookup",
    /// Adds, renews or deletes an element of a set.
    Dynset "dynset",
    /// Uses a stateful object.
    ObjectReference "objref",
    /// Uses the stateful object that a map has for a key.
    ObjectMap "objref",
    /// Counts packets and bytes.
    Counter "counter",
    /// Limits the rate.
    Limit "limit",
    /// Limits the number of bytes.
    Quota "quota",
    /// Limits the number of connections.
    ConnectionLimit "connlimit",
    /// The time of the last packet.
    Last "last",
    /// Translates addresses and ports.
    Nat "nat",
    /// Translates the source to an address of the output device.
    Masquerade "masq",
    /// Translates the destination to the local host.
    Redirect "redir",
    /// Passes the packet to a local socket.
    Tproxy "tproxy",
    /// Sends a copy of the packet.
    Duplicate "dup",
    /// Sends the packet out of a device.
    Forward "fwd",
    /// Answers with an error and drops the packet.
    Reject "reject",
    /// Logs the packet.
    Log "log",
    /// Passes the packet to a program.
    Queue "queue",
    /// Does not track the connection of the packet.
    Notrack "notrack",
    /// Adds the connection to a flowtable.
    FlowOffload "flow_offload",
    /// Answers SYN packets for the server.
    Synproxy "synproxy",
}

/// An expression that this crate does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opaque {
    /// Its name in the kernel.
    pub name: Box<str>,
    /// Its attributes; `None` if it has none.
    pub data: Option<Box<[u8]>>,
}

impl Opaque {
    /// An expression with this name and these attributes.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, data: Option<&[u8]>) -> Self {
        Opaque {
            name: name.into(),
            data: data.map(Into::into),
        }
    }
}

impl From<Opaque> for Expression {
    fn from(opaque: Opaque) -> Self {
        Expression::Opaque(opaque)
    }
}

impl Expression {
    /// The set or map that the expression names.
    #[must_use]
    pub fn set(&self) -> Option<&str> {
        match self {
            Expression::Lookup(lookup) => Some(&lookup.set),
            Expression::Dynset(dynset) => Some(&dynset.set),
            Expression::ObjectMap(map) => Some(&map.set),
            _ => None,
        }
    }

    /// The chain that the expression jumps to.
    #[must_use]
    pub fn chain(&self) -> Option<&str> {
        match self {
            Expression::Immediate(Immediate {
                data: crate::Data::Verdict(verdict),
                ..
            }) => verdict.chain(),
            _ => None,
        }
    }
}

/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
impl Attributes for Expression {
    fn encode(&self, writer: &mut AttributeWriter<'_>) {
        writer.string(NFTA_EXPR_NAME, self.name());
        match self {
            Expression::Opaque(Opaque { data: None, .. }) | Expression::Notrack(_) => {}
            Expression::Opaque(Opaque { data: Some(data), .. }) => {
                writer.nested(NFTA_EXPR_DATA, |writer| {
                    writer.header(data);
                });
            }
            expression => {
                writer.nested(NFTA_EXPR_DATA, |writer| expression.encode_data(writer));
            }
        }
    }

    fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error> {
        let (mut name, mut data) = (None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_EXPR_NAME => name = Some(text(&attribute)),
                NFTA_EXPR_DATA => data = Some(attribute.bytes()),
                _ => {}
            }
        }
        let name = name.ok_or(MISSING)?;
        let decoded = Expression::decode_data(&name, data.unwrap_or(&[]));
        Ok(decoded.unwrap_or_else(|| Opaque::new(name, data).into()))
    }
}

impl Field for Expression {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        writer.nested(kind, |writer| self.encode(writer));
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        Expression::decode(attribute.nested())
    }
}

impl Field for Box<Expression> {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        (**self).write(writer, kind);
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        // The kernel has nothing else there. Without this a message could be a thousand expressions in each other.
        match &*name(attribute)? {
            "payload" | "meta" => Expression::read(attribute).map(Box::new),
            _ => Err(UNKNOWN),
        }
    }
}

/// The name of an expression.
fn name(attribute: &Attribute<'_>) -> Result<Box<str>, Error> {
    for attribute in attribute.nested() {
        let attribute = attribute?;
        if attribute.kind() == NFTA_EXPR_NAME {
            return Ok(text(&attribute));
        }
    }
    Err(MISSING)
}

/// An expression of the elements that an expression adds, which adds none itself.
pub(crate) fn read_of_element(attribute: &Attribute<'_>) -> Result<Expression, Error> {
    match &*name(attribute)? {
        "dynset" => Err(UNKNOWN),
        _ => Expression::read(attribute),
    }
}

/// A list of expressions (`NFTA_LIST_ELEM`); nothing if it is empty.
impl Field for Vec<Expression> {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        if self.is_empty() {
            return;
        }
        writer.nested(kind, |writer| {
            for expression in self {
                expression.write(writer, NFTA_LIST_ELEM);
            }
        });
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        attribute
            .nested()
            .map(|attribute| Expression::read(&attribute?))
            .collect()
    }
}

/// One expression in an attribute of its own, several in a list: sets, elements and dynset have both attributes.
pub(crate) fn write_one_or_list(
    expressions: &Vec<Expression>,
    writer: &mut AttributeWriter<'_>,
    one: u16,
    list: u16,
) {
    match expressions.as_slice() {
        [expression] => expression.write(writer, one),
        _ => expressions.write(writer, list),
    }
}

#[cfg(test)]
mod tests;
