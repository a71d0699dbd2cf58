//! The desired rules of a key, and those that the kernel has.

use crate::data_path::chains::PortalChain;
use crate::proxy::ListenerKey;

/// A rule in a portal chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::data_path) struct ChainRule {
    pub(in crate::data_path) chain: PortalChain,
    /// Its normal form, as `iptables-save` prints it.
    pub(in crate::data_path) text: Box<str>,
}

/// The desired rules of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::data_path) struct DesiredRules {
    /// The listening port that must be open.
    pub(in crate::data_path) listener: ListenerKey,
    /// The claim of the port that they take traffic from.
    pub(in crate::data_path) claim: Option<ListenerKey>,
    /// The position of the key among those of the portal.
    pub(in crate::data_path) position: usize,
    /// In the order of their chains.
    pub(in crate::data_path) rules: Vec<ChainRule>,
    /// Whether they capture all traffic to the address, also that of programs of the node and of bridged pods to an external IP.
    pub(in crate::data_path) captures_all: bool,
}

/// The rules of a key in the kernel, each with the number of copies. Sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::data_path) struct PresentRules(Vec<(ChainRule, usize)>);

impl PresentRules {
    /// Adds a copy of a rule.
    pub(in crate::data_path) fn add(&mut self, rule: ChainRule) {
        match self.0.binary_search_by(|(present, _)| present.cmp(&rule)) {
            Ok(position) => {
                if let Some((_, copies)) = self.0.get_mut(position) {
                    *copies += 1;
                }
            }
            Err(position) => self.0.insert(position, (rule, 1)),
        }
    }

    /// The number of copies of a rule.
    pub(in crate::data_path) fn copies(&self, rule: &ChainRule) -> usize {
        let found = self.0.iter().find(|(present, _)| present == rule);
        found.map_or(0, |(_, copies)| *copies)
    }

    /// The rules with the number of their copies.
    pub(in crate::data_path) fn iter(&self) -> impl Iterator<Item = (&ChainRule, usize)> {
        self.0.iter().map(|(rule, copies)| (rule, *copies))
    }

    pub(in crate::data_path) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that remain after chains were emptied.
    pub(in crate::data_path) fn without<'a>(
        &self,
        chains: impl IntoIterator<Item = &'a PortalChain> + Clone,
    ) -> Self {
        let is_kept = |rule: &ChainRule| !chains.clone().into_iter().any(|chain| *chain == rule.chain);
        let kept = self.0.iter().filter(|(rule, _)| is_kept(rule));
        Self(kept.cloned().collect())
    }
}

impl FromIterator<ChainRule> for PresentRules {
    fn from_iter<I: IntoIterator<Item = ChainRule>>(rules: I) -> Self {
        let mut present = Self::default();
        rules.into_iter().for_each(|rule| present.add(rule));
        present
    }
}

impl DesiredRules {
    /// The rules after they were written.
    pub(in crate::data_path) fn written(&self) -> PresentRules {
        self.rules.iter().cloned().collect()
    }
}
