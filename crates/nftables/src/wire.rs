//! Conversion between types and messages. Each file has the encoder and the decoder of a kind of message.

mod chain;
mod element;
mod field;
mod flowtable;
mod names;
mod object;
mod rule;
mod set;
mod table;

use std::time::Duration;

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, Message, netfilter};

pub(crate) use self::chain::{decode_chain, encode_chain, encode_chain_key};
pub(crate) use self::element::{ElementList, encode_elements, encode_set_of_elements, located};
pub(crate) use self::field::{Attributes, Field, MISSING, UNKNOWN, attributes, flags_field, open_enum, text};
pub(crate) use self::flowtable::{decode_flowtable, encode_flowtable, encode_flowtable_key};
pub(crate) use self::names::Names;
pub(crate) use self::object::{decode_object, encode_object, encode_object_key};
pub(crate) use self::rule::{Placement, decode_rule, encode_rule, encode_rule_key, encode_rules_of};
pub(crate) use self::set::{decode_set, encode_set, encode_set_key};
pub(crate) use self::table::{decode_table, encode_table, encode_table_key};
use crate::generation::Generation;
use crate::table_family::TableFamily;
use crate::uapi::{NFTA_GEN_ID, NFTA_GEN_PROC_NAME, NFTA_GEN_PROC_PID};

/// The header of every message.
pub(crate) fn header(writer: &mut AttributeWriter<'_>, family: TableFamily) {
    writer.header(&netfilter::Header::new(family.number()).to_bytes());
}

/// The type of a message of nf_tables.
pub(crate) fn message_type(command: u8) -> u16 {
    netfilter::message_type(netfilter::NFNL_SUBSYS_NFTABLES, command)
}

/// Family and attributes of a message.
pub(crate) fn parts<'b>(message: &Message<'b>) -> Result<(TableFamily, AttributeReader<'b>), Error> {
    let header = netfilter::Header::from_bytes(message.payload)?;
    Ok((
        TableFamily::from_number(header.family),
        message.attributes(netfilter::HEADER_LENGTH)?,
    ))
}

/// A duration in whole milliseconds, 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Milliseconds(pub(crate) Duration);

impl Milliseconds {
    pub(crate) fn nonzero(self) -> Option<Duration> {
        (!self.0.is_zero()).then_some(self.0)
    }
}

impl Field for Milliseconds {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        // A timeout of less than a millisecond is not "no timeout".
        let milliseconds = self.0.as_nanos().div_ceil(1_000_000);
        writer.be_u64(kind, u64::try_from(milliseconds).unwrap_or(u64::MAX));
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        attribute.be_u64().map(Duration::from_millis).map(Milliseconds)
    }
}

pub(crate) fn decode_generation(message: &Message<'_>) -> Result<Generation, Error> {
    let (mut id, mut pid, mut name) = (None, None, None);
    for attribute in parts(message)?.1 {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_GEN_ID => id = Some(attribute.be_u32()?),
            NFTA_GEN_PROC_PID => pid = Some(attribute.be_u32()?),
            NFTA_GEN_PROC_NAME => name = Some(text(&attribute)),
            _ => {}
        }
    }
    Ok(Generation {
        id: id.ok_or(MISSING)?,
        pid,
        name,
    })
}

#[cfg(test)]
mod vectors;
