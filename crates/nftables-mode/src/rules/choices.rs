//! The chains that choose an endpoint.

use super::builder::Builder;
use crate::class;
use crate::layout::SetName;

/// The maps that a packet to a frontend uses: those of the frontend, or those for traffic from pods and from the node to a frontend with policy
/// `Local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    Normal,
    Short,
}

impl Variant {
    pub(super) const ALL: [Self; 2] = [Variant::Normal, Variant::Short];

    pub(super) fn prefix(self) -> &'static str {
        match self {
            Variant::Normal => "",
            Variant::Short => "short-",
        }
    }

    pub(super) fn classes(self) -> SetName {
        match self {
            Variant::Normal => SetName::Frontends,
            Variant::Short => SetName::ShortCircuits,
        }
    }

    pub(super) fn endpoints(self) -> SetName {
        match self {
            Variant::Normal => SetName::Endpoints,
            Variant::Short => SetName::ShortEndpoints,
        }
    }

    pub(super) fn affinity_endpoints(self) -> SetName {
        match self {
            Variant::Normal => SetName::AffinityEndpoints,
            Variant::Short => SetName::ShortAffinityEndpoints,
        }
    }

    pub(super) fn members(self) -> SetName {
        match self {
            Variant::Normal => SetName::AffinityMembers,
            Variant::Short => SetName::ShortAffinityMembers,
        }
    }
}

impl Builder<'_> {
    /// The chains that choose an endpoint, by class, and those that lead to them.
    pub(super) fn choices(&mut self) {
        let value = self.after_key();
        for variant in Variant::ALL {
            let prefix = variant.prefix();
            for bits in class::all() {
                let attempt = format!("{prefix}try-{bits}");
                self.chain(attempt.clone());
                let mut rule = self.key();
                rule.push(Self::random(value, bits));
                rule.push(Self::value_of(variant.endpoints(), 0, value + 1));
                rule.push(self.translate(value + 1));
                self.rule(attempt.clone(), rule);
                let balance = format!("{prefix}balance-{bits}");
                self.chain(balance.clone());
                for _ in 0..class::tries(bits, class::TRIES) {
                    self.rule(balance.clone(), vec![Self::jump(attempt.clone())]);
                }
                if let Some(fewer) = bits.checked_sub(1) {
                    self.rule(balance.clone(), vec![Self::jump(format!("{prefix}try-{fewer}"))]);
                    // A packet may have met the class before a change, and the endpoints after it: there is an endpoint with the index 0.
                    self.rule(balance.clone(), vec![Self::goto(format!("{prefix}try-0"))]);
                }
            }
            for bits in class::all_with_affinity() {
                self.chain(format!("{prefix}affinity-{bits}"));
            }
            let sizes = format!("{prefix}sizes");
            let mut dispatch = Vec::new();
            for (name, end, classes) in class::GROUPS {
                let group = format!("{prefix}{name}");
                self.chain(group.clone());
                let last = *classes.end();
                for bits in classes {
                    let mut rule = if bits == last {
                        Vec::new()
                    } else {
                        self.is_less(variant.classes(), class::number(bits) + 1)
                    };
                    rule.push(Self::goto(format!("{prefix}balance-{bits}")));
                    self.rule(group.clone(), rule);
                }
                let end = if end > class::MOST_BITS {
                    class::AFFINITY
                } else {
                    class::number(end)
                };
                let mut rule = self.is_less(variant.classes(), end);
                rule.push(Self::goto(group));
                dispatch.push(rule);
            }
            for bits in class::all_with_affinity() {
                let mut rule = if bits == class::MOST_BITS {
                    Vec::new()
                } else {
                    self.is_less(variant.classes(), class::AFFINITY + class::number(bits) + 1)
                };
                rule.push(Self::goto(format!("{prefix}affinity-{bits}")));
                dispatch.push(rule);
            }
            self.chain(sizes.clone());
            for rule in dispatch {
                self.rule(sizes.clone(), rule);
            }
        }
    }
}
