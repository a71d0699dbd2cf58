//! The messages of a transaction.

use kernlink_netlink::flags::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use kernlink_netlink::{AttributeWriter, Batch, netfilter};

use crate::element::Elements;
use crate::error::Error;
use crate::operation::{Flush, Item, ItemKey, Operation};
use crate::table_family::TableFamily;
use crate::uapi::{
    NFNL_BATCH_GENID, NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END, NFT_MSG_DELCHAIN, NFT_MSG_DELFLOWTABLE,
    NFT_MSG_DELOBJ, NFT_MSG_DELRULE, NFT_MSG_DELSET, NFT_MSG_DELSETELEM, NFT_MSG_DELTABLE,
    NFT_MSG_DESTROYCHAIN, NFT_MSG_DESTROYFLOWTABLE, NFT_MSG_DESTROYOBJ, NFT_MSG_DESTROYRULE,
    NFT_MSG_DESTROYSET, NFT_MSG_DESTROYSETELEM, NFT_MSG_DESTROYTABLE, NFT_MSG_GETGEN, NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWFLOWTABLE, NFT_MSG_NEWOBJ, NFT_MSG_NEWRULE, NFT_MSG_NEWSET, NFT_MSG_NEWSETELEM,
    NFT_MSG_NEWTABLE,
};
use crate::wire::{self, Names, Placement};

/// Which operation each message of a batch belongs to.
#[derive(Debug, Default)]
pub(super) struct Encoded {
    /// For each message but the first: the index of the operation, and of the first element in the message.
    origins: Vec<(u32, u32)>,
}

impl Encoded {
    /// Of the message with this index; `None` for those that begin and end the transaction.
    pub(super) fn origin(&self, message: usize) -> Option<(usize, usize)> {
        let (operation, element) = self.origins.get(message.checked_sub(1)?)?;
        Some((*operation as usize, *element as usize))
    }
}

/// Fills the batch. On an error it has the index of the operation.
pub(super) fn encode(
    batch: &mut Batch,
    generation: Option<u32>,
    operations: &[Operation],
) -> Result<Encoded, (usize, Error)> {
    let failed = |source| (0, Error::Failed { source });
    let names = Names::new(operations);
    let mut encoded = Encoded::default();
    push_limit(batch, NFNL_MSG_BATCH_BEGIN, generation).map_err(failed)?;
    for (index, operation) in operations.iter().enumerate() {
        let invalid = |problem| {
            let operation = crate::notation::Brief(operation).to_string().into();
            (index, Error::Invalid { operation, problem })
        };
        operation.check().map_err(invalid)?;
        push(batch, operation, index as u32, &names, &mut encoded)
            .map_err(|source| (index, Error::Failed { source }))?;
    }
    push_limit(batch, NFNL_MSG_BATCH_END, None).map_err(failed)?;
    Ok(encoded)
}

/// A transaction that changes nothing.
pub(super) fn reading_transaction() -> Result<Batch, kernlink_netlink::Error> {
    let mut batch = Batch::new();
    push_limit(&mut batch, NFNL_MSG_BATCH_BEGIN, None)?;
    batch.push(wire::message_type(NFT_MSG_GETGEN), 0, |writer| {
        wire::header(writer, TableFamily::Unknown(0));
    })?;
    push_limit(&mut batch, NFNL_MSG_BATCH_END, None)?;
    Ok(batch)
}

/// The message that begins or ends the transaction.
fn push_limit(batch: &mut Batch, kind: u16, generation: Option<u32>) -> Result<(), kernlink_netlink::Error> {
    let mut header = netfilter::Header::new(0);
    header.resource = u16::from(netfilter::NFNL_SUBSYS_NFTABLES);
    batch.push(kind, 0, |writer| {
        writer.header(&header.to_bytes());
        if let Some(generation) = generation {
            writer.be_u32(NFNL_BATCH_GENID, generation);
        }
    })
}

fn push(
    batch: &mut Batch,
    operation: &Operation,
    index: u32,
    names: &Names<'_>,
    encoded: &mut Encoded,
) -> Result<(), kernlink_netlink::Error> {
    let mut one = |command: u8, flags: u16, write: &dyn Fn(&mut AttributeWriter<'_>)| {
        batch.push(wire::message_type(command), flags, |writer| write(writer))?;
        encoded.origins.push((index, 0));
        Ok(())
    };
    let (item, flags) = match operation {
        Operation::Add(item) => (item, NLM_F_CREATE),
        Operation::Create(item) => (item, NLM_F_CREATE | NLM_F_EXCL),
        Operation::Insert(rule) => {
            return one(NFT_MSG_NEWRULE, NLM_F_CREATE, &|writer| {
                wire::encode_rule(writer, rule, Placement::Position, names);
            });
        }
        Operation::Replace(key, rule) => {
            return one(NFT_MSG_NEWRULE, NLM_F_REPLACE, &|writer| {
                wire::encode_rule(writer, rule, Placement::Replace(key.handle), names);
            });
        }
        Operation::Delete(key) | Operation::Destroy(key) => {
            let is_destroy = matches!(operation, Operation::Destroy(_));
            let command = |delete, destroy| if is_destroy { destroy } else { delete };
            return match key {
                ItemKey::Table(key) => one(command(NFT_MSG_DELTABLE, NFT_MSG_DESTROYTABLE), 0, &|writer| {
                    wire::encode_table_key(writer, key);
                }),
                ItemKey::Chain(key) => one(command(NFT_MSG_DELCHAIN, NFT_MSG_DESTROYCHAIN), 0, &|writer| {
                    wire::encode_chain_key(writer, key);
                }),
                ItemKey::Set(key) => one(command(NFT_MSG_DELSET, NFT_MSG_DESTROYSET), 0, &|writer| {
                    wire::encode_set_key(writer, key);
                }),
                ItemKey::Rule(key) => one(command(NFT_MSG_DELRULE, NFT_MSG_DESTROYRULE), 0, &|writer| {
                    wire::encode_rule_key(writer, key);
                }),
                ItemKey::Object(key) => one(command(NFT_MSG_DELOBJ, NFT_MSG_DESTROYOBJ), 0, &|writer| {
                    wire::encode_object_key(writer, key);
                }),
                ItemKey::Flowtable(key) => {
                    let command = command(NFT_MSG_DELFLOWTABLE, NFT_MSG_DESTROYFLOWTABLE);
                    one(command, 0, &|writer| wire::encode_flowtable_key(writer, key))
                }
                ItemKey::Elements(elements) => {
                    let command = command(NFT_MSG_DELSETELEM, NFT_MSG_DESTROYSETELEM);
                    push_elements(batch, command, 0, elements, index, names, encoded)
                }
            };
        }
        Operation::Flush(flush) => {
            return match flush {
                Flush::Ruleset => one(NFT_MSG_DELTABLE, 0, &|writer| {
                    wire::header(writer, TableFamily::Unknown(0));
                }),
                Flush::Family(family) => one(NFT_MSG_DELTABLE, 0, &|writer| wire::header(writer, *family)),
                Flush::Table(table) => one(NFT_MSG_DELRULE, 0, &|writer| {
                    wire::encode_rules_of(writer, table, None);
                }),
                Flush::Chain(chain) => one(NFT_MSG_DELRULE, 0, &|writer| {
                    wire::encode_rules_of(writer, &chain.table, Some(&chain.name));
                }),
                Flush::Set(set) => one(NFT_MSG_DELSETELEM, 0, &|writer| {
                    wire::encode_set_of_elements(writer, set);
                }),
            };
        }
    };
    match item {
        Item::Table(table) => one(NFT_MSG_NEWTABLE, flags, &|writer| {
            wire::encode_table(writer, table)
        }),
        Item::Chain(chain) => {
            let id = names.chain(&chain.key);
            one(NFT_MSG_NEWCHAIN, flags, &|writer| {
                wire::encode_chain(writer, chain, id)
            })
        }
        Item::Set(set) => one(NFT_MSG_NEWSET, flags, &|writer| {
            wire::encode_set(writer, set, index + 1);
        }),
        // A rule never exists already.
        Item::Rule(rule) => one(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, &|writer| {
            wire::encode_rule(writer, rule, Placement::Position, names);
        }),
        Item::Object(object) => one(NFT_MSG_NEWOBJ, flags, &|writer| {
            wire::encode_object(writer, object)
        }),
        Item::Flowtable(flowtable) => one(NFT_MSG_NEWFLOWTABLE, flags, &|writer| {
            wire::encode_flowtable(writer, flowtable);
        }),
        Item::Elements(elements) => {
            push_elements(batch, NFT_MSG_NEWSETELEM, flags, elements, index, names, encoded)
        }
    }
}

/// As many messages as the elements need; none for no element.
fn push_elements(
    batch: &mut Batch,
    command: u8,
    flags: u16,
    elements: &Elements,
    index: u32,
    names: &Names<'_>,
    encoded: &mut Encoded,
) -> Result<(), kernlink_netlink::Error> {
    let id = names.set(&elements.set);
    let mut rest = elements.elements.as_slice();
    while !rest.is_empty() {
        let mut count = 0;
        batch.push(wire::message_type(command), flags, |writer| {
            count = wire::encode_elements(writer, &elements.set, id, rest);
        })?;
        let first = elements.elements.len() - rest.len();
        encoded
            .origins
            .push((index, u32::try_from(first).unwrap_or(u32::MAX)));
        rest = rest.get(count.max(1)..).unwrap_or(&[]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, SetKey, TableKey, Value};

    #[test]
    fn elements_by_the_thousand_are_several_messages_of_one_operation() {
        let set = SetKey::new(TableKey::new(TableFamily::Ip, "t"), "s");
        let elements = (0..100_000_u32).map(|number| Element::new(Value::be_u32(number)));
        let operations = [
            Operation::flush_set(set.clone()),
            Operation::add(Elements::new(set.clone(), [])),
            Operation::add(Elements::new(set, elements)),
        ];
        let mut batch = Batch::new();
        let encoded = encode(&mut batch, Some(7), &operations).unwrap();
        assert_eq!(encoded.origin(0), None);
        assert_eq!(encoded.origin(1), Some((0, 0)));
        assert_eq!(encoded.origin(2), Some((2, 0)));
        assert_eq!(encoded.origin(batch.len() - 1), None);
        assert!(batch.messages().all(|message| message.len() < 65_535));
        let (_, second) = encoded.origin(3).unwrap();
        // An element of 4 bytes has 16.
        assert!((2_000..4_096).contains(&second), "{second}");
        let third = batch.messages().nth(3).unwrap();
        let last = third.len() - 16;
        let (_, fourth) = encoded.origin(4).unwrap();
        assert_eq!(wire::located(third, last), Some(fourth - second - 1));
        assert_eq!(wire::located(third, 20), None);
    }
}
