//! Several inputs of `iptables-restore` as one, without a copy of their edits.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroUsize;

use kernlink_base::{Family, parallel};

use crate::chain::ChainName;
use crate::error::Error;
use crate::restore::{END_OF_SECTION, Edit, Restore, begin_section, check_lines};
use crate::style::Style;
use crate::table::Table;
use crate::wire::render::render_edit;

/// The fewest edits that are rendered by a thread of their own; it takes longer to start one than to render fewer.
const FEWEST_EDITS: usize = 2_000;
/// The number of groups of [`FEWEST_EDITS`] edits whose text is rendered before it is moved to the end of the input.
const GROUPS_AT_ONCE: usize = 16;

/// More bytes than the declaration of a chain has.
const USUAL_DECLARATION: usize = 48;

/// Edits that are made when they are rendered, so that they are not in memory before.
pub trait EditSource: fmt::Debug + Sync {
    /// The number of edits of a table.
    fn count(&self, table: Table) -> usize;

    /// The edits of a table, in order. Each call returns the same ones.
    fn edits(&self, table: Table) -> Vec<Edit>;
}

/// The edits of one or more inputs of a family as one input in mode [`RestoreMode::Keep`](crate::RestoreMode::Keep).
///
/// Declarations of chains are the first lines of their table, in descending order of the names, except those that follow another edit of
/// the same chain; all other edits keep their order. The result is the same, and large inputs take less time: `iptables-restore` 1.8.9 keeps
/// the chains of a table in a sorted list, and looks for the place of a new one from the first.
#[derive(Clone, Debug)]
pub struct Joined<'a> {
    family: Family,
    /// Those of a table are next to each other.
    parts: Vec<(Table, Part<'a>)>,
}

/// Edits of one table.
#[derive(Clone, Copy, Debug)]
enum Part<'a> {
    Edits(&'a [Edit]),
    Source(&'a dyn EditSource),
}

impl<'a> Part<'a> {
    fn count(self, table: Table) -> usize {
        match self {
            Part::Edits(edits) => edits.len(),
            Part::Source(source) => source.count(table),
        }
    }

    fn edits(self, table: Table) -> Cow<'a, [Edit]> {
        match self {
            Part::Edits(edits) => Cow::Borrowed(edits),
            Part::Source(source) => Cow::Owned(source.edits(table)),
        }
    }
}

impl<'a> Joined<'a> {
    /// An input without edits.
    #[must_use]
    pub fn new(family: Family) -> Self {
        Self {
            family,
            parts: Vec::new(),
        }
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Appends edits of a table. A new table is the last one.
    pub fn push(&mut self, table: Table, edits: &'a [Edit]) {
        self.push_part(table, Part::Edits(edits));
    }

    /// Appends the edits of a table that a source makes. A new table is the last one.
    pub fn push_source(&mut self, table: Table, source: &'a dyn EditSource) {
        self.push_part(table, Part::Source(source));
    }

    fn push_part(&mut self, table: Table, part: Part<'a>) {
        if part.count(table) == 0 {
            return;
        }
        let last = self.parts.iter().rposition(|(of, _)| *of == table);
        let position = last.map_or(self.parts.len(), |last| last + 1);
        self.parts.insert(position, (table, part));
    }

    /// Whether it has no edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The same as one input, with copies of the edits.
    #[must_use]
    pub fn to_restore(&self) -> Restore {
        let mut restore = Restore::new(self.family);
        for (table, parts) in self.tables() {
            let edits = edits(table, parts);
            let ordered = declared_first(edits.iter().flat_map(|edits| edits.iter()));
            restore.table_mut(table).extend(ordered.into_iter().cloned());
        }
        restore
    }

    /// The tables with their parts, in the order of the lines.
    fn tables(&self) -> impl Iterator<Item = (Table, &[(Table, Part<'a>)])> {
        let tables = self.parts.chunk_by(|(a, _), (b, _)| a == b);
        tables.filter_map(|parts| Some((parts.first()?.0, parts)))
    }

    /// The text of the input, as [`Restore::render_checked`].
    pub(crate) fn render_checked(&self, style: Style) -> Result<String, Error> {
        let mut out = String::new();
        for (table, parts) in self.tables() {
            begin_section(&mut out, table);
            let start = out.len();
            if !render_in_groups(&mut out, table, parts, style)? {
                // A declaration stays at its place.
                out.truncate(start);
                let edits = edits(table, parts);
                for edit in declared_first(edits.iter().flat_map(|edits| edits.iter())) {
                    render(&mut out, table, edit, style)?;
                }
                check_lines(out.get(start..).unwrap_or_default())?;
            }
            out.push_str(END_OF_SECTION);
        }
        Ok(out)
    }
}

/// The number of edits of these parts of a table.
fn count(table: Table, parts: &[(Table, Part<'_>)]) -> usize {
    parts.iter().map(|(_, part)| part.count(table)).sum()
}

/// The edits of these parts of a table.
fn edits<'a>(table: Table, parts: &[(Table, Part<'a>)]) -> Vec<Cow<'a, [Edit]>> {
    parts.iter().map(|(_, part)| part.edits(table)).collect()
}

/// Consecutive edits of a table as text.
#[derive(Default)]
struct Group {
    /// The declarations of chains that no edit before them changes, without policies and counters if `None`.
    declared: Vec<(ChainName, Option<Box<Edit>>)>,
    /// The lines of the other edits.
    text: String,
    /// The hashes of the names of the chains that these change.
    edited: HashSet<u64>,
    /// Whether a chain is declared after an edit of it.
    is_ordered: bool,
}

/// Appends the text of the edits of a table, with all declarations first. Returns false if a chain may be declared after an edit of it; then the
/// text is not complete.
fn render_in_groups(
    out: &mut String,
    table: Table,
    parts: &[(Table, Part<'_>)],
    style: Style,
) -> Result<bool, Error> {
    let hasher = RandomState::new();
    let start = out.len();
    let mut declared = Vec::new();
    let mut edited: HashSet<u64> = HashSet::new();
    let total = count(table, parts);
    let groups: Vec<&[(Table, Part<'_>)]> = grouped(table, parts);
    let mut rendered = 0;
    for groups in groups.chunks(GROUPS_AT_ONCE) {
        let texts = parallel::map(groups.to_vec(), NonZeroUsize::MIN, |parts| {
            render_group(table, parts, style, &hasher)
        });
        for (group, parts) in texts.into_iter().zip(groups) {
            let group = group?;
            let is_edited = |(chain, _): &(ChainName, _)| edited.contains(&hasher.hash_one(chain));
            if group.is_ordered || group.declared.iter().any(is_edited) {
                return Ok(false);
            }
            let declarations = group.declared.len() * USUAL_DECLARATION;
            declared.extend(group.declared);
            edited.extend(group.edited);
            if rendered == 0 {
                let of_group = count(table, parts);
                // All groups are like the first one: the text is not copied when it grows.
                let of_text = group.text.len() + declarations;
                let all = (of_text + of_text / 16).saturating_mul(total);
                out.reserve(all / of_group.max(1));
            }
            rendered += 1;
            out.push_str(&group.text);
        }
    }
    declared.sort_by_key(|(chain, _)| Reverse(*chain));
    let mut first = String::new();
    for (chain, edit) in declared {
        match edit {
            Some(edit) => render(&mut first, table, &edit, style)?,
            None => render(&mut first, table, &Edit::declare(chain), style)?,
        }
    }
    check_lines(&first)?;
    out.insert_str(start, &first);
    Ok(true)
}

/// Consecutive parts of a table, of at least [`FEWEST_EDITS`] edits except the last.
fn grouped<'p, 'a>(table: Table, mut parts: &'p [(Table, Part<'a>)]) -> Vec<&'p [(Table, Part<'a>)]> {
    let mut groups = Vec::new();
    while !parts.is_empty() {
        let mut edits = 0;
        let enough = parts.iter().position(|(_, part)| {
            edits += part.count(table);
            edits >= FEWEST_EDITS
        });
        let (group, rest) = parts.split_at(enough.map_or(parts.len(), |last| last + 1));
        groups.push(group);
        parts = rest;
    }
    groups
}

fn render_group(
    table: Table,
    parts: &[(Table, Part<'_>)],
    style: Style,
    hasher: &RandomState,
) -> Result<Group, Error> {
    let mut group = Group::default();
    // Rules of a chain usually follow each other.
    let mut last = None;
    for (_, part) in parts {
        for edit in part.edits(table).iter() {
            let chain = *edit.chain();
            if let Edit::Declare { .. } = edit {
                let is_edited = group.edited.contains(&hasher.hash_one(chain));
                group.is_ordered |= is_edited;
                edit.check(table)?;
                let is_plain = *edit == Edit::declare(chain);
                group
                    .declared
                    .push((chain, (!is_plain).then(|| Box::new(edit.clone()))));
                continue;
            }
            if last.replace(chain) != Some(chain) {
                group.edited.insert(hasher.hash_one(chain));
            }
            render(&mut group.text, table, edit, style)?;
        }
    }
    check_lines(&group.text)?;
    Ok(group)
}

/// Appends the line of an edit.
fn render(out: &mut String, table: Table, edit: &Edit, style: Style) -> Result<(), Error> {
    edit.check(table)?;
    render_edit(out, edit, style);
    Ok(())
}

/// The edits of a table in the order of their lines.
fn declared_first<'a>(edits: impl Iterator<Item = &'a Edit>) -> Vec<&'a Edit> {
    let (mut declarations, mut others) = (Vec::new(), Vec::new());
    let mut edited: HashSet<ChainName> = HashSet::new();
    // Rules of a chain usually follow each other.
    let mut last = None;
    for edit in edits {
        let chain = *edit.chain();
        if matches!(edit, Edit::Declare { .. }) && !edited.contains(&chain) {
            declarations.push((chain, edit));
            continue;
        }
        if last.replace(chain) != Some(chain) {
            edited.insert(chain);
        }
        others.push(edit);
    }
    declarations.sort_by_key(|(chain, _)| Reverse(*chain));
    let mut ordered = Vec::with_capacity(declarations.len() + others.len());
    ordered.extend(declarations.into_iter().map(|(_, edit)| edit));
    ordered.append(&mut others);
    ordered
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::apply::{apply, empty_table};
    use crate::rule::Rule;
    use crate::ruleset::Ruleset;

    fn chain(name: &str) -> ChainName {
        name.parse().unwrap()
    }

    fn append(name: &str, rule: &str) -> Edit {
        Edit::append(chain(name), rule.parse::<Rule>().unwrap())
    }

    #[test]
    fn joined_inputs_render_as_one_input_table_by_table() {
        let first = [Edit::declare(chain("A")), append("A", "-j ACCEPT")];
        let (second, third) = ([append("A", "-j RETURN")], [append("A", "-j DROP")]);
        let mut joined = Joined::new(Family::Ipv6);
        assert!(joined.is_empty());
        joined.push(Table::Nat, &[]);
        joined.push(Table::Filter, &first);
        joined.push(Table::Nat, &second);
        joined.push(Table::Filter, &third);
        let restore = joined.to_restore();
        assert_eq!(restore.family, Family::Ipv6);
        let text = joined.render_checked(Style::RESTORE).unwrap();
        assert_eq!(text, restore.render(Style::RESTORE));
        assert_eq!(
            text,
            "*filter\n:A - [0:0]\n-A A -j ACCEPT\n-A A -j DROP\nCOMMIT\n*nat\n-A A -j RETURN\nCOMMIT\n"
        );
    }

    #[test]
    fn a_large_input_is_rendered_in_the_order_of_its_edits() {
        let rules = (0..2 * FEWEST_EDITS + 1).map(|number| append("A", &format!("-j C{number}")));
        let mut rules: Vec<Edit> = rules.collect();
        let chains = (0..FEWEST_EDITS).map(|number| Edit::declare(chain(&format!("C{number}"))));
        let chains: Vec<Edit> = chains.collect();
        let mut joined = Joined::new(Family::Ipv4);
        joined.push(Table::Nat, &rules);
        joined.push(Table::Nat, &chains);
        assert_eq!(
            joined.render_checked(Style::RESTORE).unwrap(),
            joined.to_restore().render(Style::RESTORE)
        );
        // The parts are checked.
        let long = format!("-m comment --comment {} -j DROP", "x".repeat(Restore::LINE_LIMIT));
        rules.push(append("A", &long));
        let mut joined = Joined::new(Family::Ipv4);
        joined.push(Table::Nat, &rules);
        assert!(joined.render_checked(Style::RESTORE).is_err());
    }

    #[test]
    fn declarations_come_first_in_descending_order_unless_they_would_empty_a_chain_that_is_filled_before() {
        let first = [
            Edit::declare(chain("B")),
            append("B", "-j C"),
            append("A", "-j B"),
        ];
        let second = [
            Edit::declare(chain("C")),
            Edit::declare(chain("A")),
            append("A", "-j C"),
        ];
        let mut joined = Joined::new(Family::Ipv4);
        joined.push(Table::Nat, &first);
        joined.push(Table::Nat, &second);
        assert_eq!(
            joined.render_checked(Style::RESTORE).unwrap(),
            "*nat\n:C - [0:0]\n:B - [0:0]\n-A B -j C\n-A A -j B\n:A - [0:0]\n-A A -j C\nCOMMIT\n"
        );
    }

    /// Edits that are made for each call.
    #[derive(Debug)]
    struct Made(Vec<Edit>);

    impl EditSource for Made {
        fn count(&self, table: Table) -> usize {
            self.edits(table).len()
        }

        fn edits(&self, table: Table) -> Vec<Edit> {
            if table == Table::Nat {
                self.0.clone()
            } else {
                Vec::new()
            }
        }
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let names = || prop::sample::select(vec!["A", "B", "C"]);
        let rules = vec!["-j ACCEPT", "-j DROP", "-j B", "-j C"];
        (0..7, names(), prop::sample::select(rules)).prop_map(|(kind, name, rule)| {
            let chain = chain(name);
            let rule: Rule = rule.parse().unwrap();
            match kind {
                0 | 1 => Edit::declare(chain),
                2 => Edit::append(chain, rule),
                3 => Edit::insert(chain, rule),
                4 => Edit::delete(chain, rule),
                5 => Edit::Flush { chain },
                _ => Edit::delete_chain(chain),
            }
        })
    }

    proptest! {
        #[test]
        fn joined_inputs_have_the_effect_of_their_edits_in_order(
            inputs in prop::collection::vec(prop::collection::vec(edit(), 1..4), 1..4),
            present in prop::collection::vec(edit(), 0..6),
        ) {
            let mut before = Ruleset::new();
            *before.table_mut(Table::Nat) = empty_table(Table::Nat);
            for edit in present {
                // Those that are refused change nothing.
                let _ = apply(&mut before, &Restore::new(Family::Ipv4).with(Table::Nat, edit), None);
            }
            let mut expected = before.clone();
            let mut accepted = inputs;
            for edits in &mut accepted {
                edits.retain(|edit| {
                    let one = Restore::new(Family::Ipv4).with(Table::Nat, edit.clone());
                    apply(&mut expected, &one, None).is_ok()
                });
            }
            let mut joined = Joined::new(Family::Ipv4);
            let made: Vec<Made> = accepted.iter().cloned().map(Made).collect();
            let mut from_sources = Joined::new(Family::Ipv4);
            for (edits, made) in accepted.iter().zip(&made) {
                joined.push(Table::Nat, edits);
                from_sources.push_source(Table::Nat, made);
                from_sources.push_source(Table::Filter, made);
            }
            let text = joined.render_checked(Style::RESTORE).unwrap();
            prop_assert_eq!(&text, &joined.to_restore().render(Style::RESTORE));
            prop_assert_eq!(&text, &from_sources.render_checked(Style::RESTORE).unwrap());
            let mut actual = before;
            prop_assert_eq!(apply(&mut actual, &joined.to_restore(), None), Ok(()));
            prop_assert_eq!(actual, expected);
        }
    }

    #[test]
    fn an_edit_that_the_tools_would_parse_otherwise_is_refused() {
        let chain: ChainName = "A".parse().unwrap();
        let rule = format!("-m comment --comment {} -j DROP", "x".repeat(Restore::LINE_LIMIT));
        let long = [Edit::append(chain, rule.parse::<Rule>().unwrap())];
        let mut joined = Joined::new(Family::Ipv4);
        joined.push(Table::Filter, &long);
        let error = joined.render_checked(Style::RESTORE).unwrap_err();
        assert_eq!(
            error,
            joined.to_restore().render_checked(Style::RESTORE).unwrap_err()
        );
    }
}
