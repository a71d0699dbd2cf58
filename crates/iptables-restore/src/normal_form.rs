//! The normal form of rules: rules with equal meaning are equal values.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};

use kernlink_base::Family;

use crate::matches::Match;
use crate::rule::Rule;
use crate::targets::Target;

impl Rule {
    /// The rule as `iptables-save` would print it after a restore.
    ///
    /// - Networks with a mask in the shortest form and the bits outside it cleared; tests of all addresses left out.
    /// - `-s`, `-d`, `-i`, `-o`, `-p`, `-f` first and in this order, then the matches in the order given.
    /// - Marks set by `--set-xmark value/mask`; a mask of all bits left out of tests.
    /// - States in the order of the tools; rates in the longest unit; defaults left out or written out, as the tools do for each
    ///   match.
    ///
    /// Verbatim matches and targets are unchanged. Source: `extensions/` and `print_rule` of
    /// iptables 1.8.9, checked against both variants.
    #[must_use]
    pub fn normal_form(&self, family: Family) -> Rule {
        let (matches, target) = self.normal_parts(family);
        Rule {
            matches: matches.into_iter().map(Cow::into_owned).collect(),
            target: target.map(Cow::into_owned),
        }
    }

    /// Hashes the [normal form](Self::normal_form), as its [`Hash`] does, without making it.
    pub fn hash_normal_form<H: Hasher>(&self, family: Family, state: &mut H) {
        self.normal_parts(family).hash(state);
    }

    /// The matches and the target of the normal form.
    pub(crate) fn normal_parts(&self, family: Family) -> (Vec<Cow<'_, Match>>, Option<Cow<'_, Target>>) {
        let matches = self.matches.iter();
        let mut matches: Vec<Cow<'_, Match>> = matches.filter_map(|test| test.normal_form(family)).collect();
        // Stable, so the matches with `-m` keep their order.
        matches.sort_by_key(|test| order(test));
        let target = self.target.as_ref();
        (matches, target.map(|target| target.normal_form(family)))
    }
}

fn order(test: &Match) -> u8 {
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
