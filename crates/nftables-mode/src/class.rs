//! How an endpoint is chosen: classes of frontends by their number of endpoints.
//!
//! The endpoints of a frontend have the indices 0 to n - 1. Its class is the smallest b with n <= 2^b. A rule chooses a random index below
//! 2^b; if no endpoint has it, the next rule tries again. After these the index is below 2^(b - 1), where an endpoint has every index. So all rules
//! exist from the beginning, an added or removed endpoint does not change the frontend unless its number crosses a power of two, and a packet
//! that chose an index just before it was removed tries again.
//!
//! Before Linux 6.17 (commit b2f742c846ca), a lookup of a key that a transaction replaces at the same moment may find neither the old element nor the
//! new one. So an endpoint with the index 0 is tried twice too, and so are the first lookups of a packet (`rules/hooks.rs`). One that begins after the
//! miss finds the new element.

use kernlink_nftables::Value;

/// The greatest class: a frontend has at most 2^14 endpoints.
pub(crate) const MOST_BITS: u32 = 14;

/// The most endpoints that a frontend is balanced over.
pub(crate) const MOST_ENDPOINTS: usize = 1 << MOST_BITS;

/// How often a random index is chosen before the last try.
pub(crate) const TRIES: usize = 8;

/// How often the only index of the class 0 is tried.
const TRIES_OF_ONE: usize = 2;

/// How often an index of a class is chosen before the last try, if it is `several` in classes with more than one index.
pub(crate) fn tries(bits: u32, several: usize) -> usize {
    if bits == 0 { TRIES_OF_ONE } else { several }
}

/// The classes with session affinity are multiples of this: fewer rules, more tries.
pub(crate) const AFFINITY_STEP: u32 = 2;

/// How often a random index is chosen with session affinity before the last try.
pub(crate) const AFFINITY_TRIES: usize = 16;

/// What is added to the number of a class for frontends with session affinity.
pub(crate) const AFFINITY: u16 = 32;

/// The class of a frontend with so many endpoints, which are at least one.
pub(crate) fn bits(endpoints: usize) -> u32 {
    endpoints
        .max(1)
        .next_power_of_two()
        .trailing_zeros()
        .min(MOST_BITS)
}

/// The class of a frontend with session affinity and so many endpoints.
pub(crate) fn affinity_bits(endpoints: usize) -> u32 {
    bits(endpoints).next_multiple_of(AFFINITY_STEP).min(MOST_BITS)
}

/// The number of a class. 0 is none.
pub(crate) fn number(bits: u32) -> u16 {
    u16::try_from(bits).unwrap_or_default() + 1
}

/// The number of the class of a frontend with so many endpoints, as the value of the frontend.
pub(crate) fn class(endpoints: usize, has_affinity: bool) -> u16 {
    if has_affinity {
        AFFINITY + number(affinity_bits(endpoints))
    } else {
        number(bits(endpoints))
    }
}

/// The most endpoints of a frontend with this value.
pub(crate) fn most_endpoints(value: &Value) -> usize {
    let number = <[u8; 2]>::try_from(value.as_bytes()).map_or(0, u16::from_be_bytes);
    let number = if number > AFFINITY {
        number - AFFINITY
    } else {
        number
    };
    match number.checked_sub(1) {
        Some(bits) => 1 << u32::from(bits).min(MOST_BITS),
        None => 0,
    }
}

/// All classes without session affinity.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    0..=MOST_BITS
}

/// All classes with session affinity.
pub(crate) fn all_with_affinity() -> impl Iterator<Item = u32> {
    (0..=MOST_BITS).step_by(AFFINITY_STEP as usize)
}

/// The chains that lead to a class: name, the first class that is not in it, and its classes. Most Services have few endpoints, for which
/// two or three comparisons are enough.
pub(crate) const GROUPS: [(&str, u32, std::ops::RangeInclusive<u32>); 4] = [
    ("sizes-4", 3, 0..=2),
    ("sizes-16", 5, 3..=4),
    ("sizes-128", 8, 5..=7),
    ("sizes-more", MOST_BITS + 1, 8..=MOST_BITS),
];

/// What happens to a packet to a frontend before an endpoint is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Cluster IP: traffic that does not come from pods of this node is masqueraded.
    Internal,
    /// Another frontend with policy `Cluster`: all traffic is masqueraded.
    External,
    /// Another frontend with policy `Local`: traffic from pods and from the node takes the endpoints of the whole cluster.
    Local,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probability of each index with n endpoints, as the rules choose it.
    fn shares(endpoints: usize, bits: u32, step: u32, tries: usize) -> Vec<f64> {
        let size = f64::from(1_u32 << bits);
        let miss = 1.0 - endpoints as f64 / size;
        let hit = (0..tries)
            .map(|attempt| miss.powi(attempt as i32) / size)
            .sum::<f64>();
        let last = if bits == 0 { 0 } else { bits.saturating_sub(step) };
        let below = 1_usize << last;
        assert!(below <= endpoints, "the last try finds an endpoint");
        let rest = miss.powi(tries as i32) / below as f64;
        (0..endpoints)
            .map(|index| hit + if index < below { rest } else { 0.0 })
            .collect()
    }

    /// The expected excess of chi-squared over its mean with so many connections, and the greatest relative deviation.
    fn deviation(shares: &[f64], connections: f64) -> (f64, f64) {
        let even = 1.0 / shares.len() as f64;
        let excess = shares
            .iter()
            .map(|share| (share - even).powi(2) / even)
            .sum::<f64>()
            * connections;
        let greatest = shares
            .iter()
            .map(|share| (share / even - 1.0).abs())
            .fold(0.0, f64::max);
        (excess, greatest)
    }

    #[test]
    fn a_class_is_the_smallest_power_of_two_that_has_an_index_for_each_endpoint() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 257].map(bits), [0, 1, 2, 2, 3, 3, 4, 9]);
        assert_eq!([1, 2, 3, 4, 5, 16, 17].map(affinity_bits), [0, 2, 2, 2, 4, 4, 6]);
        assert_eq!(bits(MOST_ENDPOINTS), MOST_BITS);
        for (endpoints, most) in [(1, 1), (3, 4), (300, 512)] {
            assert_eq!(most_endpoints(&Value::port(class(endpoints, false))), most);
        }
        assert_eq!(most_endpoints(&Value::port(class(3, true))), 4);
        assert_eq!(most_endpoints(&Value::port(0)), 0);
        assert_eq!(affinity_bits(MOST_ENDPOINTS), MOST_BITS);
        assert_eq!(
            [class(1, false), class(10, false), class(1, true), class(10, true)],
            [1, 5, 33, 37]
        );
    }

    #[test]
    fn every_class_is_in_one_group() {
        let mut first = 0;
        for (_, end, classes) in GROUPS {
            assert_eq!((*classes.start(), *classes.end() + 1), (first, end));
            first = end;
        }
        assert_eq!(first, MOST_BITS + 1);
        assert!(number(MOST_BITS) < AFFINITY);
    }

    #[test]
    fn connections_are_balanced_evenly_over_1_to_257_endpoints() {
        for endpoints in 1..=257 {
            let shares = shares(endpoints, bits(endpoints), 1, TRIES);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{endpoints}");
            let (excess, greatest) = deviation(&shares, 100_000.0);
            // The 99.9 % bound of chi-squared is more than 3 standard deviations above its mean, so at least 4 times the root of 2.
            assert!(
                excess < 1.0,
                "{endpoints} endpoints: chi-squared is {excess} above that of an even choice"
            );
            assert!(greatest < 0.004, "{endpoints} endpoints: {greatest}");
        }
    }

    #[test]
    fn new_clients_with_session_affinity_are_balanced_evenly_too() {
        for endpoints in 1..=257 {
            let bits = affinity_bits(endpoints);
            let shares = shares(endpoints, bits, AFFINITY_STEP, AFFINITY_TRIES);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{endpoints}");
            let (excess, greatest) = deviation(&shares, 100_000.0);
            assert!(excess < 32.0, "{endpoints} endpoints: {excess}");
            assert!(greatest < 0.03, "{endpoints} endpoints: {greatest}");
        }
    }
}
