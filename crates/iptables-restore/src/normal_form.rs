//! The form in which equal meaning is equal value: what `iptables-save` prints.

use crate::family::Family;
use crate::matches::Match;
use crate::rule::Rule;

impl Rule {
    /// The rule as `iptables-save` would print it after a restore.
    ///
    /// - Addresses with their mask, in the shortest form, bits outside it cleared; no mask of every address.
    /// - `-s`, `-d`, `-i`, `-o`, `-p`, `-f` first and in this order, then the matches in the order given.
    /// - Marks set by `--set-xmark value/mask`; the mask of a test left out if it is all bits.
    /// - Lists of states in the tools' order; rates in the longest unit; defaults left out or written out,
    ///   as the tools do it for the match at hand.
    ///
    /// Verbatim parts are compared by their words. Source of each: `extensions/` and `print_rule` of
    /// iptables 1.8.9, checked against both back ends.
    pub fn normal_form(&self, family: Family) -> Rule {
        let mut matches: Vec<Match> = self
            .matches
            .iter()
            .filter_map(|test| test.normal_form(family))
            .collect();
        // Stable, so the matches with `-m` keep their order.
        matches.sort_by_key(place);
        Rule {
            matches,
            target: self.target.as_ref().map(|target| target.normal_form(family)),
        }
    }
}

fn place(test: &Match) -> u8 {
    match test {
        Match::Source(_) => 0,
        Match::Destination(_) => 1,
        Match::InInterface(_) => 2,
        Match::OutInterface(_) => 3,
        Match::Protocol(_) => 4,
        Match::Fragment(_) => 5,
        _ => 6,
    }
}
