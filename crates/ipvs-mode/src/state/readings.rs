//! What the listings could not read, and which sets the kernel does not accept.
//!
//! An error while listing is never taken for an absent object. What was read before keeps its recorded values, and changes go on. As
//! long as the addresses of a node, or the sets that decide about ownership, were never read, nothing in the family is changed: an
//! object that seems not to be desired, or to be foreign, may be neither.

use std::collections::BTreeSet;
use std::time::Instant;

use kernlink_base::Backoff;
use kernlink_ipvs::VirtualServerKey;
use kernlink_services::Family;

use super::State;
use crate::error::Error;
use crate::ownership::FRONTEND_SETS;
use crate::sets::{SetId, is_usable};

/// The outcome of the listings.
#[derive(Clone, Debug)]
pub(crate) struct Readings {
    /// Whether links and addresses were read since the start.
    pub(crate) has_links: bool,
    /// The sets that were never read since the start: at first all.
    unread_sets: BTreeSet<(Family, SetId)>,
    /// Whether the kernel does not support ipset: there are no sets then.
    pub(crate) is_ipset_missing: bool,
    /// The sets that could not be created, or exist with other parameters. Rules do not read them.
    pub(crate) unusable_sets: BTreeSet<(Family, SetId)>,
    /// Whether a set became usable, or was found to be unusable, or an extension to be missing, since the last listing. Everything is
    /// planned again then, because the rules differ, and what needs the rules waits for them.
    pub(crate) has_changed_support: bool,
    /// By family: whether it was not known which virtual servers are owned when they were listed last.
    pub(crate) had_undecided_servers: [bool; 2],
    /// The kinds that could not be read last.
    pub(crate) failed: BTreeSet<Part>,
    /// The first error of the listing in progress.
    pub(crate) error: Option<Error>,
    /// Listings in a row that failed in part.
    failures: u32,
    /// When the whole kernel is read again.
    retry_at: Option<Instant>,
}

/// A part of a listing that may fail alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Links,
    Sets,
}

impl Default for Readings {
    fn default() -> Self {
        let of_family = |family| SetId::ALL.iter().copied().map(move |set| (family, set));
        Self {
            has_links: false,
            unread_sets: Family::ALL.into_iter().flat_map(of_family).collect(),
            is_ipset_missing: false,
            unusable_sets: BTreeSet::new(),
            has_changed_support: false,
            had_undecided_servers: [true; 2],
            failed: BTreeSet::new(),
            error: None,
            failures: 0,
            retry_at: None,
        }
    }
}

impl Readings {
    /// A listing begins.
    pub(crate) fn begin(&mut self) {
        self.failed.clear();
        self.error = None;
        self.has_changed_support = false;
    }

    /// Records that a part could not be read. The whole kernel is read again after a delay.
    pub(crate) fn fail(&mut self, part: Part, now: Option<Instant>) {
        if self.failed.is_empty() {
            self.failures = self.failures.saturating_add(1);
        }
        self.failed.insert(part);
        let delay = Backoff::default().delay(self.failures, u64::MAX);
        self.retry_at = now.and_then(|now| now.checked_add(delay));
    }

    /// Ends a listing.
    pub(crate) fn end(&mut self) {
        if self.failed.is_empty() {
            self.failures = 0;
            self.retry_at = None;
        }
    }

    /// Records that a set was read, or that it does not exist.
    pub(crate) fn set_read(&mut self, key: (Family, SetId)) {
        self.unread_sets.remove(&key);
    }

    /// When the whole kernel is read again because a part of it could not be read.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    fn is_unread(&self, family: Family, set: SetId) -> bool {
        self.unread_sets.contains(&(family, set))
    }
}

impl State {
    /// Whether the objects of a family may be changed: it is known which Services have node ports here, and which virtual servers are owned.
    pub(crate) fn is_ownership_known(&self, family: Family) -> bool {
        let readings = &self.readings;
        if !readings.has_links || readings.is_unread(family, SetId::Ledger) {
            return false;
        }
        let ledger = &self.entries[family.index()][SetId::Ledger.index()];
        let mut deciding = FRONTEND_SETS
            .iter()
            .chain(&[SetId::NodePortTcp, SetId::NodePortUdp]);
        ledger.iter_observed().len() > 0 || !deciding.any(|set| readings.is_unread(family, *set))
    }

    /// Whether it is known if a virtual server is owned. Those of firewall marks never are.
    pub(crate) fn is_server_decided(&self, key: &VirtualServerKey) -> bool {
        let address = key.address();
        address.is_none_or(|address| self.is_ownership_known(Family::of(address)))
    }

    /// Whether a set and its entries may be changed.
    pub(crate) fn is_set_known(&self, family: Family, set: SetId) -> bool {
        !self.readings.is_ipset_missing && !self.readings.is_unread(family, set)
    }

    /// Whether the rules of a family may be changed: rules of a set are kept while it has entries. Without ipset no address is bound, so
    /// none are needed.
    pub(crate) fn are_rule_sets_known(&self, family: Family) -> bool {
        let mut sets = SetId::KUBE_PROXY.iter().copied();
        self.is_ownership_known(family)
            && !self.readings.is_ipset_missing
            && !sets.any(|set| self.readings.is_unread(family, set))
    }

    /// Whether rules can look up a set: it exists, or will be created before them.
    pub(crate) fn is_usable(&self, family: Family, set: SetId) -> bool {
        !self.readings.unusable_sets.contains(&(family, set))
    }

    /// Records that a set could not be created.
    pub(crate) fn refuse_set(&mut self, key: (Family, SetId)) {
        self.readings.has_changed_support |= self.readings.unusable_sets.insert(key);
    }

    /// Records that a set could not be replaced. One that only was too small is used as it is.
    pub(crate) fn refuse_set_unless_usable(&mut self, key: (Family, SetId)) {
        let pair = self.sets.observed(&key).zip(self.sets.desired(&key));
        if !pair.is_some_and(|(observed, desired)| is_usable(observed, desired)) {
            self.refuse_set(key);
        }
    }

    /// Records that a set was created.
    pub(crate) fn accept_set(&mut self, key: (Family, SetId)) {
        self.readings.set_read(key);
        self.readings.has_changed_support |= self.readings.unusable_sets.remove(&key);
    }

    /// Finds the sets that another program made usable: they exist with the desired parameters.
    pub(crate) fn find_usable_sets(&mut self) {
        let sets = &self.sets;
        let found = self.readings.unusable_sets.extract_if(.., |key| {
            let pair = sets.observed(key).zip(sets.desired(key));
            pair.is_some_and(|(observed, desired)| is_usable(observed, desired))
        });
        for (family, _) in found.collect::<Vec<_>>() {
            self.set_rules_dirty(family);
        }
    }
}
