//! Rules.

use kernlink_netlink::{AttributeWriter, Error, Message};

use super::{Field, MISSING, Names, header, parts, text};
use crate::chain::ChainKey;
use crate::expression::Expression;
use crate::rule::{Rule, RuleCompat, RuleKey};
use crate::table::TableKey;
use crate::uapi::{
    NFTA_DATA_VERDICT, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_IMMEDIATE_DATA, NFTA_IMMEDIATE_DREG,
    NFTA_LIST_ELEM, NFTA_RULE_CHAIN, NFTA_RULE_CHAIN_ID, NFTA_RULE_COMPAT, NFTA_RULE_COMPAT_FLAGS,
    NFTA_RULE_COMPAT_PROTO, NFTA_RULE_EXPRESSIONS, NFTA_RULE_HANDLE, NFTA_RULE_ID, NFTA_RULE_POSITION,
    NFTA_RULE_POSITION_ID, NFTA_RULE_TABLE, NFTA_RULE_USERDATA, NFTA_VERDICT_CHAIN_ID, NFTA_VERDICT_CODE,
};
use crate::verdict::{Data, Verdict};

/// Where a rule is placed in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// At the end or front, or relative to the rule's position; the flags of the message decide which.
    Position,
    /// In place of the rule with this handle.
    Replace(u64),
}

pub(crate) fn encode_rule(
    writer: &mut AttributeWriter<'_>,
    rule: &Rule,
    placement: Placement,
    names: &Names<'_>,
) {
    header(writer, rule.chain.table.family);
    writer.string(NFTA_RULE_TABLE, &rule.chain.table.name);
    match names.chain(&rule.chain) {
        Some(id) => writer.be_u32(NFTA_RULE_CHAIN_ID, id),
        None => writer.string(NFTA_RULE_CHAIN, &rule.chain.name),
    };
    match placement {
        Placement::Replace(handle) => {
            writer.be_u64(NFTA_RULE_HANDLE, handle);
        }
        Placement::Position => match rule.position_id {
            Some(id) => {
                writer.be_u32(NFTA_RULE_POSITION_ID, id);
            }
            None => rule.position.write(writer, NFTA_RULE_POSITION),
        },
    }
    if let Some(id) = rule.id {
        writer.be_u32(NFTA_RULE_ID, id);
    }
    writer.nested(NFTA_RULE_EXPRESSIONS, |writer| {
        for expression in &rule.expressions {
            encode_expression(writer, expression, &rule.chain.table, names);
        }
    });
    if let Some(compat) = rule.compat {
        writer.nested(NFTA_RULE_COMPAT, |writer| {
            writer.be_u32(NFTA_RULE_COMPAT_PROTO, compat.protocol);
            writer.be_u32(NFTA_RULE_COMPAT_FLAGS, compat.flags);
        });
    }
    rule.user_data.write(writer, NFTA_RULE_USERDATA);
}

fn encode_expression(
    writer: &mut AttributeWriter<'_>,
    expression: &Expression,
    table: &TableKey,
    names: &Names<'_>,
) {
    if let Expression::Immediate(immediate) = expression
        && let Data::Verdict(verdict @ (Verdict::Jump(chain) | Verdict::Goto(chain))) = &immediate.data
        && let Some(id) = names.chain_named(table, chain)
    {
        writer.nested(NFTA_LIST_ELEM, |writer| {
            writer.string(NFTA_EXPR_NAME, expression.name());
            writer.nested(NFTA_EXPR_DATA, |writer| {
                immediate.destination.write(writer, NFTA_IMMEDIATE_DREG);
                writer.nested(NFTA_IMMEDIATE_DATA, |writer| {
                    writer.nested(NFTA_DATA_VERDICT, |writer| {
                        writer.be_u32(NFTA_VERDICT_CODE, verdict.code() as u32);
                        writer.be_u32(NFTA_VERDICT_CHAIN_ID, id);
                    });
                });
            });
        });
        return;
    }
    names.resolve(table, expression).write(writer, NFTA_LIST_ELEM);
}

pub(crate) fn encode_rule_key(writer: &mut AttributeWriter<'_>, key: &RuleKey) {
    encode_rules_of(writer, &key.chain.table, Some(&key.chain.name));
    writer.be_u64(NFTA_RULE_HANDLE, key.handle);
}

/// All rules of a chain or table.
pub(crate) fn encode_rules_of(writer: &mut AttributeWriter<'_>, table: &TableKey, chain: Option<&str>) {
    header(writer, table.family);
    writer.string(NFTA_RULE_TABLE, &table.name);
    if let Some(chain) = chain {
        writer.string(NFTA_RULE_CHAIN, chain);
    }
}

pub(crate) fn decode_rule(message: &Message<'_>) -> Result<Rule, Error> {
    let (family, attributes) = parts(message)?;
    let (mut table, mut chain) = (None, None);
    let mut rule = Rule::new(ChainKey::new(TableKey::new(family, ""), ""), Vec::new());
    for attribute in attributes {
        let attribute = attribute?;
        match attribute.kind() {
            NFTA_RULE_TABLE => table = Some(text(&attribute)),
            NFTA_RULE_CHAIN => chain = Some(text(&attribute)),
            NFTA_RULE_HANDLE => rule.handle = Some(attribute.be_u64()?),
            NFTA_RULE_EXPRESSIONS => rule.expressions = Field::read(&attribute)?,
            NFTA_RULE_POSITION => rule.position = Some(attribute.be_u64()?),
            NFTA_RULE_USERDATA => rule.user_data = Field::read(&attribute)?,
            NFTA_RULE_COMPAT => {
                let mut compat = RuleCompat::new(0, 0);
                for attribute in attribute.nested() {
                    let attribute = attribute?;
                    match attribute.kind() {
                        NFTA_RULE_COMPAT_PROTO => compat.protocol = attribute.be_u32()?,
                        NFTA_RULE_COMPAT_FLAGS => compat.flags = attribute.be_u32()?,
                        _ => {}
                    }
                }
                rule.compat = Some(compat);
            }
            _ => {}
        }
    }
    rule.chain.table.name = table.ok_or(MISSING)?;
    rule.chain.name = chain.unwrap_or_default();
    Ok(rule)
}
