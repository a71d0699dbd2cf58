//! The networks that cluster IPs are allocated from, as elements of a set with intervals.

use std::collections::BTreeSet;

use ipnet::IpNet;
use kernlink_nftables::{Element, TableKey, Value};
use kernlink_services::Family;

use crate::item::Item;
use crate::layout::SetName;

/// An interval of the set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Interval {
    /// The first address. `None`: it is not known what the end belongs to.
    first: Option<Value>,
    /// The first address after it. `None`: there is none.
    end: Option<Value>,
}

impl Interval {
    pub(crate) fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// The elements of an interval: one for each end.
    pub(crate) fn items(&self) -> impl Iterator<Item = Item> {
        let item = |key: &Value, is_end| Item {
            is_end,
            ..Item::new(SetName::ServiceCidrs, key.clone())
        };
        let first = self.first.as_ref().map(|key| item(key, false));
        first
            .into_iter()
            .chain(self.end.as_ref().map(|key| item(key, true)))
    }

    /// The intervals of the elements of the set.
    pub(crate) fn of_elements<'a>(elements: impl IntoIterator<Item = &'a Element>) -> BTreeSet<Self> {
        let items = elements.into_iter();
        Self::read(items.map(|element| Item::read(SetName::ServiceCidrs, element)))
    }

    /// The intervals of elements as they were read.
    fn read(items: impl IntoIterator<Item = Item>) -> BTreeSet<Self> {
        let boundaries = items.into_iter().map(|item| (item.key, !item.is_end));
        // An interval that begins where another one ends is after that.
        let sorted: BTreeSet<(Value, bool)> = boundaries.collect();
        let mut intervals = BTreeSet::new();
        let mut open: Option<Value> = None;
        for (key, is_first) in sorted {
            if !is_first {
                intervals.insert(Self {
                    first: open.take(),
                    end: Some(key),
                });
            } else if let Some(first) = open.replace(key) {
                intervals.insert(Self {
                    first: Some(first),
                    end: None,
                });
            }
        }
        intervals.extend(open.map(|first| Self {
            first: Some(first),
            end: None,
        }));
        intervals
    }
}

/// The intervals of these networks that are of a family. A network that another one contains has none: intervals must not overlap. Those next to
/// each other are not joined, so that a change of one does not write the other.
pub(crate) fn intervals(networks: &[IpNet], family: Family, table: &TableKey) -> BTreeSet<Interval> {
    let set = SetName::ServiceCidrs.set(table, family);
    let of_family: BTreeSet<IpNet> = networks
        .iter()
        .filter(|net| Family::of(net.addr()) == family)
        .map(IpNet::trunc)
        .collect();
    let is_inner = |net: &IpNet| of_family.iter().any(|other| other != net && other.contains(net));
    let outer = of_family.iter().filter(|net| !is_inner(net));
    let elements = outer.flat_map(|net| {
        let [first, last] = [net.network(), net.broadcast()].map(Value::from);
        set.interval(first, last)
    });
    let elements: Vec<Element> = elements.collect();
    Interval::of_elements(&elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Slot;

    /// The intervals as `first-end`, in hexadecimal digits, without an end if there is none.
    fn of(networks: &[&str], family: Family) -> String {
        let networks: Vec<IpNet> = networks.iter().map(|net| net.parse().unwrap()).collect();
        text(intervals(&networks, family, &Slot::First.table(family)))
    }

    fn text(intervals: BTreeSet<Interval>) -> String {
        let hex = |value: Option<Value>| {
            value.map_or_else(String::new, |value| {
                value.to_string().trim_start_matches("0x").to_owned()
            })
        };
        let texts = intervals
            .into_iter()
            .map(|interval| hex(interval.first) + "-" + &hex(interval.end));
        texts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_network_is_an_interval_of_its_family_and_one_in_another_network_is_none() {
        let networks = [
            "10.96.0.7/12",
            "10.100.0.0/16",
            "10.96.0.0/12",
            "fd00:10:96::/112",
            "10.0.0.0/24",
        ];
        assert_eq!(of(&networks, Family::Ipv4), "0a000000-0a000100 0a600000-0a700000");
        assert_eq!(
            of(&networks, Family::Ipv6),
            "fd000010009600000000000000000000-fd000010009600000000000000010000"
        );
        assert_eq!(of(&[], Family::Ipv4), "");
    }

    #[test]
    fn networks_next_to_each_other_are_two_intervals_and_the_last_one_may_have_no_end() {
        assert_eq!(
            of(&["10.0.2.0/24", "10.0.1.0/24"], Family::Ipv4),
            "0a000100-0a000200 0a000200-0a000300"
        );
        assert_eq!(of(&["255.255.255.0/24"], Family::Ipv4), "ffffff00-");
    }

    #[test]
    fn elements_of_other_programs_are_intervals_too() {
        let item = |last: u8, is_end| Item {
            is_end,
            ..Item::new(SetName::ServiceCidrs, Value::new(&[10, 0, 0, last]))
        };
        let read = |items: &[Item]| text(Interval::read(items.iter().cloned()));
        // `nft` adds an end before the first interval.
        assert_eq!(
            read(&[item(9, true), item(0, true), item(1, false)]),
            "-0a000000 0a000001-0a000009"
        );
        assert_eq!(read(&[item(1, false), item(2, false)]), "0a000001- 0a000002-");
        assert_eq!(
            Interval::read([item(1, false), item(9, true)])
                .iter()
                .flat_map(Interval::items)
                .collect::<Vec<_>>(),
            [item(1, false), item(9, true)]
        );
    }
}
