//! Several inputs of `iptables-restore` as one, without a copy of their edits.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::num::NonZeroUsize;

use kernlink_base::{Family, parallel};

use crate::chain::ChainName;
use crate::error::Error;
use crate::restore::{END_OF_SECTION, Edit, Restore, begin_section, check_lines};
use crate::style::Style;
use crate::table::Table;
use crate::wire::render::render_edit;

/// The bytes of a usual line: declarations are shorter, rules longer.
const USUAL_LINE: usize = 96;

/// The fewest edits that are rendered by a thread of their own; it takes longer to start one than to render fewer.
const FEWEST_EDITS: NonZeroUsize = NonZeroUsize::new(2_000).unwrap();

/// The edits of one or more inputs of a family as one input in mode [`RestoreMode::Keep`](crate::RestoreMode::Keep).
///
/// Declarations of chains are the first lines of their table, in descending order of the names, except those that follow another edit of
/// the same chain; all other edits keep their order. The result is the same, and large inputs take less time: `iptables-restore` 1.8.9 keeps
/// the chains of a table in a sorted list, and looks for the place of a new one from the first.
#[derive(Clone, Debug)]
pub struct Joined<'a> {
    family: Family,
    /// Those of a table are next to each other.
    edits: Vec<(Table, &'a [Edit])>,
}

impl<'a> Joined<'a> {
    /// An input without edits.
    #[must_use]
    pub fn new(family: Family) -> Self {
        Self {
            family,
            edits: Vec::new(),
        }
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Appends edits of a table. A new table is the last one.
    pub fn push(&mut self, table: Table, edits: &'a [Edit]) {
        if edits.is_empty() {
            return;
        }
        let last = self.edits.iter().rposition(|(of, _)| *of == table);
        let position = last.map_or(self.edits.len(), |last| last + 1);
        self.edits.insert(position, (table, edits));
    }

    /// Whether it has no edit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The same as one input, with copies of the edits.
    #[must_use]
    pub fn to_restore(&self) -> Restore {
        let mut restore = Restore::new(self.family);
        for (table, edits) in self.tables() {
            restore.table_mut(table).extend(edits.into_iter().cloned());
        }
        restore
    }

    /// The tables with their edits, both in the order of the lines.
    fn tables(&self) -> impl Iterator<Item = (Table, Vec<&'a Edit>)> {
        let tables = self.edits.chunk_by(|(a, _), (b, _)| a == b);
        tables.filter_map(|of_table| {
            let (table, _) = of_table.first()?;
            let edits = of_table.iter().flat_map(|(_, edits)| *edits);
            Some((*table, declared_first(edits)))
        })
    }

    /// The text of the input, as [`Restore::render_checked`].
    pub(crate) fn render_checked(&self, style: Style) -> Result<String, Error> {
        let edits: usize = self.edits.iter().map(|(_, edits)| edits.len()).sum();
        let mut out = String::with_capacity(edits.saturating_mul(USUAL_LINE));
        for (table, edits) in self.tables() {
            begin_section(&mut out, table);
            let size = parallel::part_size(edits.len(), FEWEST_EDITS);
            let mut parts: Vec<(String, &[&Edit])> =
                edits.chunks(size).map(|part| (String::new(), part)).collect();
            // The first part is rendered in its place; the others are moved there.
            if let Some((text, _)) = parts.first_mut() {
                std::mem::swap(text, &mut out);
            }
            let rendered = parallel::all_at_once(parts, |(mut text, part)| {
                text.reserve(part.len().saturating_mul(USUAL_LINE));
                render_edits(&mut text, table, part, style).map(|()| text)
            });
            for text in rendered {
                let text = text?;
                if out.is_empty() {
                    out = text;
                } else {
                    out.push_str(&text);
                }
            }
            out.push_str(END_OF_SECTION);
        }
        Ok(out)
    }
}

/// Appends the text of some edits of a table, checked as by [`Restore::render_checked`].
fn render_edits(out: &mut String, table: Table, edits: &[&Edit], style: Style) -> Result<(), Error> {
    let before = out.len();
    for edit in edits {
        edit.check(table)?;
        render_edit(out, edit, style);
    }
    check_lines(out.get(before..).unwrap_or_default())
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
        let rules = (0..2 * FEWEST_EDITS.get() + 1).map(|number| append("A", &format!("-j C{number}")));
        let mut rules: Vec<Edit> = rules.collect();
        let chains = (0..FEWEST_EDITS.get()).map(|number| Edit::declare(chain(&format!("C{number}"))));
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
            for edits in &accepted {
                joined.push(Table::Nat, edits);
            }
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
