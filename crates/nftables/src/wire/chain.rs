//! Chains.

use kernlink_netlink::{AttributeReader, AttributeWriter, Error, Message};

use super::{Attributes, Field, MISSING, header, parts, text};
use crate::chain::{BaseChain, Chain, ChainKey, ChainType, Hook};
use crate::table_family::TableFamily;
use crate::uapi::{
    NFTA_CHAIN_COUNTERS, NFTA_CHAIN_FLAGS, NFTA_CHAIN_HANDLE, NFTA_CHAIN_HOOK, NFTA_CHAIN_ID,
    NFTA_CHAIN_NAME, NFTA_CHAIN_POLICY, NFTA_CHAIN_TABLE, NFTA_CHAIN_TYPE, NFTA_CHAIN_USE,
    NFTA_CHAIN_USERDATA, NFTA_DEVICE_NAME, NFTA_HOOK_DEV, NFTA_HOOK_DEVS, NFTA_HOOK_HOOKNUM,
    NFTA_HOOK_PRIORITY,
};

/// `id` is the number of an anonymous chain in the transaction.
pub(crate) fn encode_chain(writer: &mut AttributeWriter<'_>, chain: &Chain, id: Option<u32>) {
    match id {
        None => encode_chain_key(writer, &chain.key),
        Some(id) => {
            header(writer, chain.key.table.family);
            writer.string(NFTA_CHAIN_TABLE, &chain.key.table.name);
            writer.be_u32(NFTA_CHAIN_ID, id);
        }
    }
    chain.flags.write(writer, NFTA_CHAIN_FLAGS);
    chain.user_data.write(writer, NFTA_CHAIN_USERDATA);
    let Some(base) = &chain.base else { return };
    writer.nested(NFTA_CHAIN_HOOK, |writer| {
        writer.be_u32(NFTA_HOOK_HOOKNUM, base.hook.number(chain.key.table.family));
        writer.be_u32(NFTA_HOOK_PRIORITY, base.priority as u32);
        match base.devices.as_slice() {
            [] => {}
            // Kernels before 5.5 support one device.
            [device] => {
                writer.string(NFTA_HOOK_DEV, device);
            }
            devices => {
                writer.nested(NFTA_HOOK_DEVS, |writer| {
                    for device in devices {
                        writer.string(NFTA_DEVICE_NAME, device);
                    }
                });
            }
        }
    });
    base.policy.write(writer, NFTA_CHAIN_POLICY);
    writer.string(NFTA_CHAIN_TYPE, base.chain_type.name());
    if let Some(counter) = &base.counter {
        writer.nested(NFTA_CHAIN_COUNTERS, |writer| counter.encode(writer));
    }
}

pub(crate) fn encode_chain_key(writer: &mut AttributeWriter<'_>, key: &ChainKey) {
    header(writer, key.table.family);
    writer.string(NFTA_CHAIN_TABLE, &key.table.name);
    writer.string(NFTA_CHAIN_NAME, &key.name);
}

pub(crate) fn decode_chain(message: &Message<'_>) -> Result<Chain, Error> {
    let (family, attributes) = parts(message)?;
    let (mut table, mut name) = (None, None);
    let mut chain = Chain::new(ChainKey::new(crate::TableKey::new(family, ""), ""));
    let mut base = BaseChain::new(ChainType::Filter, Hook::Unknown(u32::MAX), 0);
    base.policy = None;
    let mut is_base = false;
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_CHAIN_TABLE => table = Some(text(&attribute)),
            NFTA_CHAIN_NAME => name = Some(text(&attribute)),
            NFTA_CHAIN_HANDLE => chain.handle = Some(attribute.be_u64()?),
            NFTA_CHAIN_USE => chain.use_count = attribute.be_u32()?,
            NFTA_CHAIN_FLAGS => chain.flags = Field::read(&attribute)?,
            NFTA_CHAIN_USERDATA => chain.user_data = Field::read(&attribute)?,
            NFTA_CHAIN_HOOK => {
                is_base = true;
                decode_hook(&mut base, family, attribute.nested())?;
            }
            NFTA_CHAIN_POLICY => base.policy = Some(Field::read(&attribute)?),
            NFTA_CHAIN_TYPE => base.chain_type = ChainType::from(&*text(&attribute)),
            NFTA_CHAIN_COUNTERS => base.counter = Some(Attributes::decode(attribute.nested())?),
            _ => {}
        }
    }
    chain.key.table.name = table.ok_or(MISSING)?;
    // Notifications of the deletion of an anonymous chain have no name.
    chain.key.name = name.unwrap_or_default();
    chain.base = is_base.then_some(base);
    Ok(chain)
}

fn decode_hook(
    base: &mut BaseChain,
    family: TableFamily,
    attributes: AttributeReader<'_>,
) -> Result<(), Error> {
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_HOOK_HOOKNUM => base.hook = Hook::from_number(family, attribute.be_u32()?),
            NFTA_HOOK_PRIORITY => base.priority = attribute.be_u32()? as i32,
            // The kernel sends one device in both attributes.
            NFTA_HOOK_DEV if base.devices.is_empty() => base.devices = vec![text(&attribute)],
            NFTA_HOOK_DEVS => base.devices = devices(attribute.nested())?,
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn devices(attributes: AttributeReader<'_>) -> Result<Vec<Box<str>>, Error> {
    let mut devices = Vec::new();
    for attribute in attributes {
        let attribute = attribute?;
        if attribute.kind() == NFTA_DEVICE_NAME {
            devices.push(text(&attribute));
        }
    }
    Ok(devices)
}
