//! Rulesets as `nft list ruleset` lists them.

use std::fmt;

use super::object;
use super::priority::priority;
use super::rule::Context;
use super::set::{definition, elements};
use super::value::Quoted;
use crate::chain::{BaseChain, ChainFlags};
use crate::names::Names;
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

impl Ruleset {
    /// Prints as `nft list ruleset` does on a machine with these names.
    #[must_use]
    pub fn with_names<'a>(&'a self, names: &'a Names) -> Listing<'a> {
        Listing {
            tables: &self.tables,
            names,
        }
    }
}

impl TableContents {
    /// Prints as `nft list table` does on a machine with these names.
    #[must_use]
    pub fn with_names<'a>(&'a self, names: &'a Names) -> Listing<'a> {
        Listing {
            tables: std::slice::from_ref(self),
            names,
        }
    }
}

/// Tables that print with names of numbers; see [`Ruleset::with_names`].
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a> {
    tables: &'a [TableContents],
    names: &'a Names,
}

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tables = self.tables.iter();
        tables.try_for_each(|table| table.write(f, self.names))
    }
}

/// As `nft list table`.
impl fmt::Display for TableContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, Context::default().names)
    }
}

impl TableContents {
    fn write(&self, f: &mut fmt::Formatter<'_>, names: &Names) -> fmt::Result {
        let context = Context {
            sets: &self.sets,
            chains: &self.chains,
            names,
            depth: 0,
        };
        writeln!(f, "table {} {{", self.table.key)?;
        let mut is_first = true;
        if let Some(comment) = self.table.comment() {
            writeln!(f, "\tcomment {}", Quoted(comment))?;
        }
        let flags = table_flags(self.table.flags);
        if !flags.is_empty() {
            writeln!(f, "\tflags {flags}")?;
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
            writeln!(f, "\t{} {} {{", object.key.kind, object.key.name)?;
            write_lines(f, &object::object(object))?;
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
            write_lines(f, &object::flowtable(flowtable))?;
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

/// The names of flags, with commas between them.
pub(super) fn table_flags(flags: TableFlags) -> String {
    let names = [
        (TableFlags::DORMANT, "dormant"),
        (TableFlags::OWNER, "owner"),
        (TableFlags::PERSIST, "persist"),
    ];
    let names = names.iter().filter(|(flag, _)| flags.contains(*flag));
    names.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// The lines between braces, and the closing one.
fn write_lines(f: &mut fmt::Formatter<'_>, lines: &[String]) -> fmt::Result {
    lines.iter().try_for_each(|line| writeln!(f, "\t\t{line}"))?;
    f.write_str("\t}\n")
}

fn write_set(f: &mut fmt::Formatter<'_>, contents: &SetContents, context: &Context<'_>) -> fmt::Result {
    let kind = if contents.set.is_map() { "map" } else { "set" };
    writeln!(f, "\t{kind} {} {{", contents.set.key.name)?;
    let mut lines = definition(&contents.set, context);
    let elements = elements(&contents.set, &contents.elements, context, None);
    lines.extend((!elements.is_empty()).then(|| format!("elements = {{ {} }}", elements.join(", "))));
    write_lines(f, &lines)
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
    if chain.flags.contains(ChainFlags::HARDWARE_OFFLOAD) {
        f.write_str("\t\tflags offload\n")?;
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
        devices => {
            let devices: Vec<String> = devices.iter().map(|device| Quoted(device).to_string()).collect();
            write!(f, " devices = {{ {} }}", devices.join(", "))?;
        }
    }
    write!(f, " priority {};", priority(family, base.hook, base.priority))?;
    match base.policy {
        Some(policy) => write!(f, " policy {policy};"),
        None => Ok(()),
    }
}

/// The statements of the rule as `nft` lists them. Fields of sets need the set, so rules with lookups print better as part of
/// their [`TableContents`].
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Context::default().rule(self))
    }
}
