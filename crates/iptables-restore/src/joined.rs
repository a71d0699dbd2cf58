//! Several inputs of `iptables-restore` as one, without a copy of their edits.

use kernlink_base::Family;

use crate::error::Error;
use crate::restore::{Edit, Restore, check_lines, render_section};
use crate::style::Style;
use crate::table::Table;

/// The bytes of a usual line: declarations are shorter, rules longer.
const USUAL_LINE: usize = 96;

/// The edits of one or more inputs of a family as one input in mode [`RestoreMode::Keep`](crate::RestoreMode::Keep).
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
        for (table, edits) in &self.edits {
            restore.table_mut(*table).extend_from_slice(edits);
        }
        restore
    }

    /// The text of the input, as [`Restore::render_checked`].
    pub(crate) fn render_checked(&self, style: Style) -> Result<String, Error> {
        let edits: usize = self.edits.iter().map(|(_, edits)| edits.len()).sum();
        let mut out = String::with_capacity(edits.saturating_mul(USUAL_LINE));
        for of_table in self.edits.chunk_by(|(a, _), (b, _)| a == b) {
            let Some((table, _)) = of_table.first() else {
                continue;
            };
            let edits = || of_table.iter().flat_map(|(_, edits)| *edits);
            for edit in edits() {
                edit.check(*table)?;
            }
            render_section(&mut out, *table, edits(), style);
        }
        check_lines(&out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainName;
    use crate::rule::Rule;

    #[test]
    fn joined_inputs_render_as_one_input_table_by_table() {
        let chain: ChainName = "A".parse().unwrap();
        let append = |rule: &str| Edit::append(chain, rule.parse::<Rule>().unwrap());
        let first = [Edit::declare(chain), append("-j ACCEPT")];
        let (second, third) = ([append("-j RETURN")], [append("-j DROP")]);
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
