//! Flowtables.

use kernlink_netlink::{AttributeWriter, Error, Message};

use super::chain::devices;
use super::{Field, MISSING, header, parts, text};
use crate::flowtable::{Flowtable, FlowtableKey};
use crate::table::TableKey;
use crate::uapi::{
    NFTA_DEVICE_NAME, NFTA_FLOWTABLE_FLAGS, NFTA_FLOWTABLE_HANDLE, NFTA_FLOWTABLE_HOOK,
    NFTA_FLOWTABLE_HOOK_DEVS, NFTA_FLOWTABLE_HOOK_NUM, NFTA_FLOWTABLE_HOOK_PRIORITY, NFTA_FLOWTABLE_NAME,
    NFTA_FLOWTABLE_TABLE, NFTA_FLOWTABLE_USE,
};

pub(crate) fn encode_flowtable(writer: &mut AttributeWriter<'_>, flowtable: &Flowtable) {
    encode_flowtable_key(writer, &flowtable.key);
    flowtable.flags.write(writer, NFTA_FLOWTABLE_FLAGS);
    writer.nested(NFTA_FLOWTABLE_HOOK, |writer| {
        writer.be_u32(NFTA_FLOWTABLE_HOOK_NUM, flowtable.hook);
        writer.be_u32(NFTA_FLOWTABLE_HOOK_PRIORITY, flowtable.priority as u32);
        writer.nested(NFTA_FLOWTABLE_HOOK_DEVS, |writer| {
            for device in &flowtable.devices {
                writer.string(NFTA_DEVICE_NAME, device);
            }
        });
    });
}

pub(crate) fn encode_flowtable_key(writer: &mut AttributeWriter<'_>, key: &FlowtableKey) {
    header(writer, key.table.family);
    writer.string(NFTA_FLOWTABLE_TABLE, &key.table.name);
    writer.string(NFTA_FLOWTABLE_NAME, &key.name);
}

pub(crate) fn decode_flowtable(message: &Message<'_>) -> Result<Flowtable, Error> {
    let (family, attributes) = parts(message)?;
    let (mut table, mut name) = (None, None);
    let key = FlowtableKey::new(TableKey::new(family, ""), "");
    let mut flowtable = Flowtable::new(key, 0, [] as [&str; 0]);
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_FLOWTABLE_TABLE => table = Some(text(&attribute)),
            NFTA_FLOWTABLE_NAME => name = Some(text(&attribute)),
            NFTA_FLOWTABLE_USE => flowtable.use_count = attribute.be_u32()?,
            NFTA_FLOWTABLE_HANDLE => flowtable.handle = Some(attribute.be_u64()?),
            NFTA_FLOWTABLE_FLAGS => flowtable.flags = Field::read(&attribute)?,
            NFTA_FLOWTABLE_HOOK => {
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind() {
                        NFTA_FLOWTABLE_HOOK_NUM => flowtable.hook = attribute.be_u32()?,
                        NFTA_FLOWTABLE_HOOK_PRIORITY => flowtable.priority = attribute.be_u32()? as i32,
                        NFTA_FLOWTABLE_HOOK_DEVS => flowtable.devices = devices(attribute.nested())?,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    flowtable.key.table.name = table.ok_or(MISSING)?;
    flowtable.key.name = name.ok_or(MISSING)?;
    Ok(flowtable)
}
