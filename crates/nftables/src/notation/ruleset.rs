//! Rulesets as `nft list ruleset` lists them.

use std::fmt;

use super::rule::{Context, bytes};
use super::set::{elements, write_definition};
use super::value::Quoted;
use crate::chain::{BaseChain, Hook};
use crate::expression::Expression;
use crate::object::{Object, ObjectData};
use crate::rule::Rule;
use crate::ruleset::{ChainContents, Ruleset, SetContents, TableContents};
use crate::set::SetFlags;
use crate::table::TableFlags;
use crate::table_family::TableFamily;

/// As `nft list ruleset`, with all elements of a set on one line. Expressions without a notation here are in brackets.
impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tables.iter().try_for_each(|table| table.fmt(f))
    }
}

/// As `nft list table`.
impl fmt::Display for TableContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let context = Context { sets: &self.sets };
        writeln!(f, "table {} {{", self.table.key)?;
        let mut is_first = true;
        if let Some(comment) = self.table.comment() {
            writeln!(f, "\tcomment {}", Quoted(comment))?;
        }
        let flags = [
            (TableFlags::DORMANT, "dormant"),
            (TableFlags::OWNER, "owner"),
            (TableFlags::PERSIST, "persist"),
        ];
        let flags: Vec<&str> = flags
            .iter()
            .filter(|(flag, _)| self.table.flags.contains(*flag))
            .map(|(_, name)| *name)
            .collect();
        if !flags.is_empty() {
            writeln!(f, "\tflags {}", flags.join(","))?;
            is_first = false;
        }
        let mut separate = |f: &mut fmt::Formatter<'_>| {
            if std::mem::take(&mut is_first) {
                Ok(())
            } else {
                f.write_str("\n")
            }
        };
        for object in &self.objects {
            separate(f)?;
            write_object(f, object)?;
        }
        for contents in self
            .sets
            .iter()
            .filter(|contents| !contents.set.flags.contains(SetFlags::ANONYMOUS))
        {
            separate(f)?;
            write_set(f, contents, &context)?;
        }
        for flowtable in &self.flowtables {
            separate(f)?;
            writeln!(f, "\tflowtable {} {{", flowtable.key.name)?;
            writeln!(
                f,
                "\t\thook ingress priority {}",
                priority(TableFamily::Netdev, Hook::Ingress, flowtable.priority)
            )?;
            writeln!(f, "\t\tdevices = {{ {} }}\n\t}}", flowtable.devices.join(", "))?;
        }
        for contents in self
            .chains
            .iter()
            .filter(|contents| !contents.chain.is_anonymous())
        {
            separate(f)?;
            write_chain(f, contents, &context)?;
        }
        f.write_str("}\n")
    }
}

fn write_set(f: &mut fmt::Formatter<'_>, contents: &SetContents, context: &Context<'_>) -> fmt::Result {
    let kind = if contents.set.is_map() { "map" } else { "set" };
    writeln!(f, "\t{kind} {} {{", contents.set.key.name)?;
    write_definition(f, &contents.set, context)?;
    let elements = elements(&contents.set, &contents.elements, context);
    if !elements.is_empty() {
        writeln!(f, "\t\telements = {{ {} }}", elements.join(", "))?;
    }
    f.write_str("\t}\n")
}

fn write_chain(f: &mut fmt::Formatter<'_>, contents: &ChainContents, context: &Context<'_>) -> fmt::Result {
    let chain = &contents.chain;
    writeln!(f, "\tchain {} {{", chain.key.name)?;
    if let Some(comment) = chain.comment() {
        writeln!(f, "\t\tcomment {}", Quoted(comment))?;
    }
    if let Some(base) = &chain.base {
        f.write_str("\t\t")?;
        write_base(f, chain.key.table.family, base)?;
        f.write_str("\n")?;
    }
    for rule in &contents.rules {
        writeln!(f, "\t\t{}", context.rule(rule))?;
    }
    f.write_str("\t}\n")
}

pub(super) fn write_base(f: &mut fmt::Formatter<'_>, family: TableFamily, base: &BaseChain) -> fmt::Result {
    write!(f, "type {} hook {}", base.chain_type.name(), base.hook)?;
    match base.devices.as_slice() {
        [] => {}
        [device] => write!(f, " device {}", Quoted(device))?,
        devices => write!(f, " devices = {{ {} }}", devices.join(", "))?,
    }
    write!(f, " priority {};", priority(family, base.hook, base.priority))?;
    match base.policy {
        Some(policy) => write!(f, " policy {policy};"),
        None => Ok(()),
    }
}

/// The name of a priority, with the difference to it if that is small.
fn priority(family: TableFamily, hook: Hook, priority: i32) -> String {
    let names: &[(i32, &str)] = match family {
        TableFamily::Ip | TableFamily::Ip6 | TableFamily::Inet => &[
            (-300, "raw"),
            (-150, "mangle"),
            (-100, "dstnat"),
            (0, "filter"),
            (50, "security"),
            (100, "srcnat"),
        ],
        TableFamily::Arp | TableFamily::Netdev => &[(0, "filter")],
        TableFamily::Bridge => &[(-300, "dstnat"), (-200, "filter"), (100, "out"), (300, "srcnat")],
        TableFamily::Unknown(_) => &[],
    };
    let is_valid = |name: &str| match (family, name) {
        (_, "dstnat") => {
            matches!(hook, Hook::Prerouting | Hook::Output)
                && (hook == Hook::Prerouting || family == TableFamily::Bridge)
        }
        (_, "srcnat") => hook == Hook::Postrouting,
        (TableFamily::Bridge, "out") => hook == Hook::Output,
        _ => true,
    };
    let near = names
        .iter()
        .filter(|(_, name)| is_valid(name))
        .find(|(number, _)| (number - priority).abs() <= 10);
    match near {
        Some((number, name)) if *number == priority => (*name).to_owned(),
        Some((number, name)) if priority > *number => format!("{name} + {}", priority - number),
        Some((number, name)) => format!("{name} - {}", number - priority),
        None => priority.to_string(),
    }
}

fn write_object(f: &mut fmt::Formatter<'_>, object: &Object) -> fmt::Result {
    writeln!(f, "\t{} {} {{", object.key.kind, object.key.name)?;
    if let Some(comment) = object.comment() {
        writeln!(f, "\t\tcomment {}", Quoted(comment))?;
    }
    let context = Context::default();
    let text = |expression: Expression, prefix: &str| {
        let text = context.expression(&expression);
        text.strip_prefix(prefix).map(str::to_owned).unwrap_or(text)
    };
    match &object.data {
        ObjectData::Counter(counter) => {
            writeln!(f, "\t\tpackets {} bytes {}", counter.packets, counter.bytes)?
        }
        ObjectData::Quota(quota) => {
            let over = if quota.flags.contains(crate::QuotaFlags::INVERT) {
                "over "
            } else {
                ""
            };
            let (number, unit) = bytes(quota.bytes);
            writeln!(f, "\t\t{over}{number} {unit}")?;
        }
        ObjectData::Limit(limit) => writeln!(f, "\t\t{}", text(limit.clone().into(), "limit "))?,
        data => writeln!(f, "\t\t[ {data:?} ]")?,
    }
    f.write_str("\t}\n")
}

/// The statements of the rule as `nft` lists them. Fields of sets need the set, so rules with lookups print better as part of
/// their [`TableContents`].
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Context::default().rule(self))
    }
}
