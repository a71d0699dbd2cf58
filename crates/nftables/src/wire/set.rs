//! Sets and maps.

use std::time::Duration;

use kernlink_netlink::{AttributeReader, AttributeWriter, Error, Message};

use super::{Field, MISSING, Milliseconds, header, parts, text};
use crate::data_type::DataTypes;
use crate::expression::write_one_or_list;
use crate::object::ObjectKind;
use crate::set::{MapData, Set, SetFlags, SetKey};
use crate::table::TableKey;
use crate::uapi::{
    NFT_DATA_VERDICT, NFTA_LIST_ELEM, NFTA_SET_COUNT, NFTA_SET_DATA_LEN, NFTA_SET_DATA_TYPE, NFTA_SET_DESC,
    NFTA_SET_DESC_CONCAT, NFTA_SET_DESC_SIZE, NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS, NFTA_SET_FIELD_LEN,
    NFTA_SET_FLAGS, NFTA_SET_GC_INTERVAL, NFTA_SET_HANDLE, NFTA_SET_ID, NFTA_SET_KEY_LEN, NFTA_SET_KEY_TYPE,
    NFTA_SET_NAME, NFTA_SET_OBJ_TYPE, NFTA_SET_POLICY, NFTA_SET_TABLE, NFTA_SET_TIMEOUT, NFTA_SET_USERDATA,
};
use crate::user_data::UserData;

/// `id` is the number of the set in the transaction.
pub(crate) fn encode_set(writer: &mut AttributeWriter<'_>, set: &Set, id: u32) {
    header(writer, set.key.table.family);
    writer.string(NFTA_SET_TABLE, &set.key.table.name);
    if set.flags.contains(SetFlags::ANONYMOUS) {
        writer.string(NFTA_SET_NAME, &Set::template(&set.key.name));
    } else {
        writer.string(NFTA_SET_NAME, &set.key.name);
    }
    writer.be_u32(NFTA_SET_FLAGS, set.flags.bits());
    writer.be_u32(NFTA_SET_KEY_TYPE, set.key_types.number());
    writer.be_u32(NFTA_SET_KEY_LEN, set.key_length);
    match set.data {
        None => {}
        Some(MapData::Values { types, length }) => {
            writer.be_u32(NFTA_SET_DATA_TYPE, types.number());
            writer.be_u32(NFTA_SET_DATA_LEN, length);
        }
        Some(MapData::Verdicts) => {
            writer.be_u32(NFTA_SET_DATA_TYPE, NFT_DATA_VERDICT);
        }
        Some(MapData::Objects(kind)) => kind.write(writer, NFTA_SET_OBJ_TYPE),
    }
    if set.policy != Default::default() {
        set.policy.write(writer, NFTA_SET_POLICY);
    }
    let has_fields = set.flags.contains(SetFlags::CONCAT) && !set.field_lengths.is_empty();
    if set.size.is_some() || has_fields {
        writer.nested(NFTA_SET_DESC, |writer| {
            set.size.write(writer, NFTA_SET_DESC_SIZE);
            if has_fields {
                writer.nested(NFTA_SET_DESC_CONCAT, |writer| {
                    for length in &set.field_lengths {
                        writer.nested(NFTA_LIST_ELEM, |writer| {
                            writer.be_u32(NFTA_SET_FIELD_LEN, *length);
                        });
                    }
                });
            }
        });
    }
    writer.be_u32(NFTA_SET_ID, id);
    set.timeout.map(Milliseconds).write(writer, NFTA_SET_TIMEOUT);
    if let Some(interval) = set.collection_interval {
        // As timeouts: less than a millisecond is not none. `Operation::check` refuses longer ones.
        let milliseconds = interval.as_nanos().div_ceil(1_000_000);
        let milliseconds = u32::try_from(milliseconds).unwrap_or(u32::MAX);
        writer.be_u32(NFTA_SET_GC_INTERVAL, milliseconds);
    }
    write_one_or_list(&set.expressions, writer, NFTA_SET_EXPR, NFTA_SET_EXPRESSIONS);
    set.user_data.write(writer, NFTA_SET_USERDATA);
}

pub(crate) fn encode_set_key(writer: &mut AttributeWriter<'_>, key: &SetKey) {
    header(writer, key.table.family);
    writer.string(NFTA_SET_TABLE, &key.table.name);
    writer.string(NFTA_SET_NAME, &key.name);
}

pub(crate) fn decode_set(message: &Message<'_>) -> Result<Set, Error> {
    let (family, attributes) = parts(message)?;
    let (mut table, mut name) = (None, None);
    let (mut data_type, mut data_length, mut object) = (None, 0, None);
    let mut set = Set::new(SetKey::new(TableKey::new(family, ""), ""), &[]);
    set.user_data = UserData::new();
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_SET_TABLE => table = Some(text(&attribute)),
            NFTA_SET_NAME => name = Some(text(&attribute)),
            NFTA_SET_FLAGS => set.flags = Field::read(&attribute)?,
            NFTA_SET_KEY_TYPE => set.key_types = DataTypes::from_number(attribute.be_u32()?),
            NFTA_SET_KEY_LEN => set.key_length = attribute.be_u32()?,
            NFTA_SET_DATA_TYPE => data_type = Some(attribute.be_u32()?),
            NFTA_SET_DATA_LEN => data_length = attribute.be_u32()?,
            NFTA_SET_OBJ_TYPE => object = Some(ObjectKind::read(&attribute)?),
            NFTA_SET_POLICY => set.policy = Field::read(&attribute)?,
            NFTA_SET_DESC => decode_description(&mut set, attribute.nested())?,
            NFTA_SET_TIMEOUT => set.timeout = Milliseconds::read(&attribute)?.nonzero(),
            NFTA_SET_GC_INTERVAL => {
                let interval = Duration::from_millis(attribute.be_u32()?.into());
                set.collection_interval = (!interval.is_zero()).then_some(interval);
            }
            NFTA_SET_USERDATA => set.user_data = Field::read(&attribute)?,
            NFTA_SET_HANDLE => set.handle = Some(attribute.be_u64()?),
            NFTA_SET_EXPR => set.expressions = vec![Field::read(&attribute)?],
            NFTA_SET_EXPRESSIONS => set.expressions = Field::read(&attribute)?,
            NFTA_SET_COUNT => set.count = Some(attribute.be_u32()?),
            _ => {}
        }
    }
    set.data = match (data_type, object) {
        (Some(NFT_DATA_VERDICT), _) => Some(MapData::Verdicts),
        (Some(types), _) => Some(MapData::Values {
            types: DataTypes::from_number(types),
            length: data_length,
        }),
        (None, Some(kind)) => Some(MapData::Objects(kind)),
        (None, None) => None,
    };
    set.key.table.name = table.ok_or(MISSING)?;
    set.key.name = name.ok_or(MISSING)?;
    Ok(set)
}

fn decode_description(set: &mut Set, attributes: AttributeReader<'_>) -> Result<(), Error> {
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_SET_DESC_SIZE => set.size = Some(attribute.be_u32()?),
            NFTA_SET_DESC_CONCAT => {
                for attribute in attribute.nested() {
                    for attribute in attribute?.nested() {
                        let attribute = attribute?;
                        if attribute.kind() == NFTA_SET_FIELD_LEN {
                            set.field_lengths.push(attribute.be_u32()?);
                        }
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}
