//! Operations as commands of `nft`.

use std::fmt;

use super::object;
use super::rule::Context;
use super::ruleset::{table_flags, write_base};
use super::set::{attributes, definition, elements};
use super::value::Quoted;
use crate::chain::{BaseChain, ChainFlags};
use crate::element::{Element, Elements};
use crate::operation::{Flush, Item, ItemKey, Operation};
use crate::rule::Rule;
use crate::ruleset::SetContents;
use crate::set::{Set, SetFlags, SetKey};
use crate::table::TableKey;
use crate::table_family::TableFamily;

/// An operation without its elements and expressions, for errors: at most a few hundred bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief<'a>(pub(crate) &'a Operation);

/// An operation on elements, with the one of this index only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneElement<'a>(pub(crate) &'a Operation, pub(crate) usize);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, item) = match self.0 {
            Operation::Add(item) => ("add", item),
            Operation::Create(item) => ("create", item),
            Operation::Insert(rule) => return write!(f, "insert rule {}", rule.chain),
            Operation::Replace(key, _) => return write!(f, "replace rule {key}"),
            Operation::Delete(key) => {
                f.write_str("delete ")?;
                return write_key(f, key);
            }
            Operation::Destroy(key) => {
                f.write_str("destroy ")?;
                return write_key(f, key);
            }
            Operation::Flush(flush) => {
                return match flush {
                    Flush::Ruleset => f.write_str("flush ruleset"),
                    Flush::Family(family) => write!(f, "flush ruleset {family}"),
                    Flush::Table(table) => write!(f, "flush table {table}"),
                    Flush::Chain(chain) => write!(f, "flush chain {chain}"),
                    Flush::Set(set) => write!(f, "flush set {set}"),
                };
            }
        };
        match item {
            Item::Table(table) => write!(f, "{verb} table {}", table.key),
            Item::Chain(chain) => write!(f, "{verb} chain {}", chain.key),
            Item::Set(set) => {
                let kind = if set.is_map() { "map" } else { "set" };
                write!(f, "{verb} {kind} {}", set.key)
            }
            Item::Elements(elements) => write!(f, "{verb} element {}", elements.set),
            Item::Rule(rule) => write!(f, "{verb} rule {}", rule.chain),
            Item::Object(object) => write!(f, "{verb} {}", object.key),
            Item::Flowtable(flowtable) => write!(f, "{verb} flowtable {}", flowtable.key),
        }
    }
}

fn write_key(f: &mut fmt::Formatter<'_>, key: &ItemKey) -> fmt::Result {
    match key {
        ItemKey::Table(table) => write!(f, "table {table}"),
        ItemKey::Chain(chain) => write!(f, "chain {chain}"),
        ItemKey::Set(set) => write!(f, "set {set}"),
        ItemKey::Elements(elements) => write!(f, "element {}", elements.set),
        ItemKey::Rule(rule) => write!(f, "rule {rule}"),
        ItemKey::Object(object) => write!(f, "{object}"),
        ItemKey::Flowtable(flowtable) => write!(f, "flowtable {flowtable}"),
    }
}

impl fmt::Display for OneElement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OneElement(operation, index) = *self;
        Brief(operation).fmt(f)?;
        let elements = operation.elements().map(|elements| &elements.elements);
        match elements.and_then(|elements| elements.get(index)) {
            Some(element) => write!(f, " {{ {} }}", element.key),
            None => Ok(()),
        }
    }
}

/// As a command of `nft`, with everything in it. Elements and lookups are printed as far as that is possible without the types of the sets;
/// [`Commands`] has the types of sets of other operations.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_command(f, self, &[])
    }
}

/// Operations as commands of `nft`, one on each line: a file for `nft -f`, which executes it in one transaction too.
///
/// The types of elements are those of the sets that the same operations add, and of [`with_sets`](Self::with_sets). Anonymous sets are printed
/// in the rules that refer to them. Expressions without a notation here are in brackets, which `nft` refuses.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    operations: &'a [Operation],
    sets: Vec<SetContents>,
}

impl<'a> Commands<'a> {
    /// The commands of these operations.
    #[must_use]
    pub fn new(operations: &'a [Operation]) -> Self {
        let mut sets: Vec<SetContents> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Add(Item::Set(set)) | Operation::Create(Item::Set(set)) => {
                    sets.push(SetContents::new(set.clone(), Vec::new()));
                }
                Operation::Add(Item::Elements(elements)) => {
                    let is_anonymous = |contents: &&mut SetContents| {
                        contents.set.key == elements.set && contents.set.flags.contains(SetFlags::ANONYMOUS)
                    };
                    if let Some(contents) = sets.iter_mut().find(is_anonymous) {
                        contents.elements.extend(elements.elements.iter().cloned());
                    }
                }
                _ => {}
            }
        }
        Self { operations, sets }
    }

    /// Adds sets that exist, whose elements the operations change or that rules refer to.
    #[must_use]
    pub fn with_sets(mut self, sets: impl IntoIterator<Item = Set>) -> Self {
        let sets = sets.into_iter().map(|set| SetContents::new(set, Vec::new()));
        self.sets.extend(sets);
        self
    }

    fn is_anonymous(&self, key: &SetKey) -> bool {
        let named = |contents: &SetContents| {
            contents.set.key == *key && contents.set.flags.contains(SetFlags::ANONYMOUS)
        };
        self.sets.iter().any(named)
    }
}

impl fmt::Display for Commands<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in self.operations {
            let of_anonymous = match operation {
                Operation::Add(Item::Set(set)) | Operation::Create(Item::Set(set)) => {
                    self.is_anonymous(&set.key)
                }
                Operation::Add(Item::Elements(elements)) => self.is_anonymous(&elements.set),
                _ => false,
            };
            // `nft` has no command without elements.
            let is_nothing = operation
                .elements()
                .is_some_and(|elements| elements.elements.is_empty());
            if !of_anonymous && !is_nothing {
                write_command(f, operation, &self.sets)?;
                f.write_str("\n")?;
            }
        }
        Ok(())
    }
}

fn write_command(f: &mut fmt::Formatter<'_>, operation: &Operation, sets: &[SetContents]) -> fmt::Result {
    write!(f, "{}", Brief(operation))?;
    match operation {
        Operation::Insert(rule) => write_rule(f, rule, sets),
        Operation::Replace(_, rule) => write!(
            f,
            " {}",
            of_table(sets, &rule.chain.table, |sets| sets.rule(rule))
        ),
        Operation::Add(item) | Operation::Create(item) => match item {
            Item::Rule(rule) => write_rule(f, rule, sets),
            Item::Chain(chain) => {
                let mut lines = Vec::new();
                if let Some(base) = &chain.base {
                    lines.push(Base(chain.key.table.family, base).to_string());
                }
                if chain.flags.contains(ChainFlags::HARDWARE_OFFLOAD) {
                    lines.push("flags offload;".to_owned());
                }
                lines.extend(
                    chain
                        .comment()
                        .map(|comment| format!("comment {};", Quoted(comment))),
                );
                match lines.as_slice() {
                    [] => Ok(()),
                    lines => write!(f, " {{ {} }}", lines.join(" ")),
                }
            }
            Item::Elements(elements) => write_elements(f, elements, sets),
            Item::Set(set) => write_block(f, &definition(set, &Context::default())),
            Item::Table(table) => {
                let flags = table_flags(table.flags);
                let mut lines = Vec::new();
                lines.extend(
                    table
                        .comment()
                        .map(|comment| format!("comment {}", Quoted(comment))),
                );
                lines.extend((!flags.is_empty()).then(|| format!("flags {flags}")));
                write_block(f, &lines)
            }
            Item::Object(object) => write_block(f, &object::object(object)),
            Item::Flowtable(flowtable) => write_block(f, &object::flowtable(flowtable)),
        },
        Operation::Delete(ItemKey::Elements(elements)) | Operation::Destroy(ItemKey::Elements(elements)) => {
            write_elements(f, elements, sets)
        }
        Operation::Delete(_) | Operation::Destroy(_) | Operation::Flush(_) => Ok(()),
    }
}

/// Lines between braces, on one line.
fn write_block(f: &mut fmt::Formatter<'_>, lines: &[String]) -> fmt::Result {
    match lines {
        [] => Ok(()),
        lines => write!(f, " {{ {}; }}", lines.join("; ")),
    }
}

fn write_rule(f: &mut fmt::Formatter<'_>, rule: &Rule, sets: &[SetContents]) -> fmt::Result {
    if let Some(position) = rule.position {
        write!(f, " handle {position}")?;
    }
    write!(
        f,
        " {}",
        of_table(sets, &rule.chain.table, |sets| sets.rule(rule))
    )
}

/// With the sets of one table only: names are those of a table.
fn of_table<T>(sets: &[SetContents], table: &TableKey, value: impl FnOnce(Context<'_>) -> T) -> T {
    if sets.iter().all(|contents| contents.set.key.table == *table) {
        return value(Context {
            sets,
            ..Context::default()
        });
    }
    let of_table = sets.iter().filter(|contents| contents.set.key.table == *table);
    let of_table: Vec<SetContents> = of_table.cloned().collect();
    value(Context {
        sets: &of_table,
        ..Context::default()
    })
}

fn write_elements(f: &mut fmt::Formatter<'_>, changed: &Elements, sets: &[SetContents]) -> fmt::Result {
    let contents = sets.iter().find(|contents| contents.set.key == changed.set);
    let texts = match contents {
        Some(contents) => elements(&contents.set, &changed.elements, &Context::default(), None),
        None => {
            let untyped = Set::new(changed.set.clone(), &[]);
            let texts = changed.elements.iter();
            let text = |element: &Element| {
                element.key.to_string() + &attributes(&untyped, element, &Context::default())
            };
            texts.map(text).collect()
        }
    };
    write!(f, " {{ {} }}", texts.join(", "))
}

/// The line of a base chain.
struct Base<'a>(TableFamily, &'a BaseChain);

impl fmt::Display for Base<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_base(f, self.0, self.1)
    }
}
