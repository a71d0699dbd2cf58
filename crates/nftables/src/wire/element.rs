//! Elements of sets.

use kernlink_netlink::{AttributeReader, AttributeWriter, Error, Message, netfilter};

use super::{Field, MISSING, Milliseconds, header, parts, text};
use crate::element::Element;
use crate::expression::write_one_or_list;
use crate::set::{Set, SetKey};
use crate::table::TableKey;
use crate::uapi::{
    NFTA_LIST_ELEM, NFTA_SET_ELEM_DATA, NFTA_SET_ELEM_EXPIRATION, NFTA_SET_ELEM_EXPR,
    NFTA_SET_ELEM_EXPRESSIONS, NFTA_SET_ELEM_FLAGS, NFTA_SET_ELEM_KEY, NFTA_SET_ELEM_KEY_END,
    NFTA_SET_ELEM_LIST_ELEMENTS, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_SET_ID, NFTA_SET_ELEM_LIST_TABLE,
    NFTA_SET_ELEM_OBJREF, NFTA_SET_ELEM_TIMEOUT, NFTA_SET_ELEM_USERDATA,
};
use crate::user_data::UserData;

/// Length in bytes at which a list of elements ends. Its maximum is 65 535; the rest is for an element with long data and
/// expressions.
const LIST_LIMIT: usize = 48 << 10;

/// Writes as many of the elements as fit into one message, at least one, and returns their number. `id` is the number of an anonymous
/// set in the transaction.
pub(crate) fn encode_elements(
    writer: &mut AttributeWriter<'_>,
    set: &SetKey,
    id: Option<u32>,
    elements: &[Element],
) -> usize {
    header(writer, set.table.family);
    writer.string(NFTA_SET_ELEM_LIST_TABLE, &set.table.name);
    match id {
        None => writer.string(NFTA_SET_ELEM_LIST_SET, &set.name),
        Some(id) => writer
            .string(NFTA_SET_ELEM_LIST_SET, &Set::template(&set.name))
            .be_u32(NFTA_SET_ELEM_LIST_SET_ID, id),
    };
    let mut count = 0;
    writer.nested(NFTA_SET_ELEM_LIST_ELEMENTS, |writer| {
        let start = writer.position();
        for element in elements {
            if writer.position() - start > LIST_LIMIT {
                break;
            }
            encode_element(writer, element);
            count += 1;
        }
    });
    count
}

/// The set alone: all its elements.
pub(crate) fn encode_set_of_elements(writer: &mut AttributeWriter<'_>, set: &SetKey) {
    header(writer, set.table.family);
    writer.string(NFTA_SET_ELEM_LIST_TABLE, &set.table.name);
    writer.string(NFTA_SET_ELEM_LIST_SET, &set.name);
}

fn encode_element(writer: &mut AttributeWriter<'_>, element: &Element) {
    writer.nested(NFTA_LIST_ELEM, |writer| {
        if !element.key.is_empty() {
            element.key.write(writer, NFTA_SET_ELEM_KEY);
        }
        element.key_end.write(writer, NFTA_SET_ELEM_KEY_END);
        element.data.write(writer, NFTA_SET_ELEM_DATA);
        element.object.write(writer, NFTA_SET_ELEM_OBJREF);
        element.flags.write(writer, NFTA_SET_ELEM_FLAGS);
        element
            .timeout
            .map(Milliseconds)
            .write(writer, NFTA_SET_ELEM_TIMEOUT);
        element
            .expiration
            .map(Milliseconds)
            .write(writer, NFTA_SET_ELEM_EXPIRATION);
        write_one_or_list(
            &element.expressions,
            writer,
            NFTA_SET_ELEM_EXPR,
            NFTA_SET_ELEM_EXPRESSIONS,
        );
        element.user_data.write(writer, NFTA_SET_ELEM_USERDATA);
    });
}

/// The elements in a message, decoded one after the other.
#[derive(Clone, Debug)]
pub(crate) struct ElementList<'b> {
    pub(crate) set: SetKey,
    attributes: AttributeReader<'b>,
}

impl<'b> ElementList<'b> {
    pub(crate) fn decode(message: &Message<'b>) -> Result<Self, Error> {
        let (family, attributes) = parts(message)?;
        let (mut table, mut set) = (None, None);
        let mut list = AttributeReader::new(&[]);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_SET_ELEM_LIST_TABLE => table = Some(text(&attribute)),
                NFTA_SET_ELEM_LIST_SET => set = Some(text(&attribute)),
                NFTA_SET_ELEM_LIST_ELEMENTS => list = attribute.nested(),
                _ => {}
            }
        }
        let table = TableKey::new(family, table.ok_or(MISSING)?);
        Ok(ElementList {
            set: SetKey::new(table, set.ok_or(MISSING)?),
            attributes: list,
        })
    }
}

impl Iterator for ElementList<'_> {
    type Item = Result<Element, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let attribute = self.attributes.next()?;
        Some(attribute.and_then(|attribute| decode_element(attribute.nested())))
    }
}

fn decode_element(attributes: AttributeReader<'_>) -> Result<Element, Error> {
    let mut element = Element::new([]);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_SET_ELEM_KEY => element.key = Field::read(&attribute)?,
            NFTA_SET_ELEM_KEY_END => element.key_end = Field::read(&attribute)?,
            NFTA_SET_ELEM_DATA => element.data = Field::read(&attribute)?,
            NFTA_SET_ELEM_OBJREF => element.object = Some(text(&attribute)),
            NFTA_SET_ELEM_FLAGS => element.flags = Field::read(&attribute)?,
            NFTA_SET_ELEM_TIMEOUT => element.timeout = Some(Milliseconds::read(&attribute)?.0),
            NFTA_SET_ELEM_EXPIRATION => element.expiration = Some(Milliseconds::read(&attribute)?.0),
            NFTA_SET_ELEM_USERDATA => element.user_data = UserData::read(&attribute)?,
            NFTA_SET_ELEM_EXPR => element.expressions = vec![Field::read(&attribute)?],
            NFTA_SET_ELEM_EXPRESSIONS => element.expressions = Field::read(&attribute)?,
            _ => {}
        }
    }
    Ok(element)
}

/// The index of the element at an offset of a message that this crate wrote, which begins with its netlink header.
pub(crate) fn located(message: &[u8], offset: usize) -> Option<usize> {
    let headers = NETLINK_HEADER_LENGTH + netfilter::HEADER_LENGTH;
    let mut position = headers;
    for attribute in AttributeReader::new(message.get(headers..)?) {
        let attribute = attribute.ok()?;
        let payload = position + ATTRIBUTE_HEADER_LENGTH;
        let end = payload + attribute.bytes().len();
        if attribute.kind() == NFTA_SET_ELEM_LIST_ELEMENTS {
            // The offset of the whole list says nothing about an element.
            if offset < payload || offset >= end {
                return None;
            }
            let mut start = payload;
            for (index, element) in attribute.nested().enumerate() {
                let after = start + ATTRIBUTE_HEADER_LENGTH + element.ok()?.bytes().len().next_multiple_of(4);
                if offset < after {
                    return Some(index);
                }
                start = after;
            }
            return None;
        }
        position = end.next_multiple_of(4);
    }
    None
}

const NETLINK_HEADER_LENGTH: usize = 16;
const ATTRIBUTE_HEADER_LENGTH: usize = 4;
