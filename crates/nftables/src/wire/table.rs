//! Tables.

use kernlink_netlink::{AttributeWriter, Error, Message};

use super::{Field, MISSING, header, parts, text};
use crate::table::{Table, TableKey};
use crate::uapi::{
    NFTA_TABLE_FLAGS, NFTA_TABLE_HANDLE, NFTA_TABLE_NAME, NFTA_TABLE_OWNER, NFTA_TABLE_USE,
    NFTA_TABLE_USERDATA,
};

pub(crate) fn encode_table(writer: &mut AttributeWriter<'_>, table: &Table) {
    encode_table_key(writer, &table.key);
    // Also 0: it removes the dormant flag.
    writer.be_u32(NFTA_TABLE_FLAGS, table.flags.bits());
    table.user_data.write(writer, NFTA_TABLE_USERDATA);
}

pub(crate) fn encode_table_key(writer: &mut AttributeWriter<'_>, key: &TableKey) {
    header(writer, key.family);
    writer.string(NFTA_TABLE_NAME, &key.name);
}

pub(crate) fn decode_table(message: &Message<'_>) -> Result<Table, Error> {
    let (family, attributes) = parts(message)?;
    let mut name = None;
    let mut table = Table::new(TableKey::new(family, ""));
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_TABLE_NAME => name = Some(text(&attribute)),
            NFTA_TABLE_FLAGS => table.flags = Field::read(&attribute)?,
            NFTA_TABLE_USE => table.use_count = attribute.be_u32()?,
            NFTA_TABLE_HANDLE => table.handle = Some(attribute.be_u64()?),
            NFTA_TABLE_USERDATA => table.user_data = Field::read(&attribute)?,
            NFTA_TABLE_OWNER => table.owner = Some(attribute.be_u32()?),
            _ => {}
        }
    }
    table.key.name = name.ok_or(MISSING)?;
    Ok(table)
}
