//! Allocates listening ports. No sockets: whether a port is free on the node is known only when it is bound.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// How long a port that could not be bound is left out.
pub const BUSY_MEMORY: Duration = Duration::from_secs(60);

/// The ports from which listening ports are chosen, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// A range. `None` if `first` is 0 or above `last`.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first != 0 && first <= last).then_some(Self { first, last })
    }

    /// The lowest port.
    #[must_use]
    pub fn first(&self) -> u16 {
        self.first
    }

    /// The highest port.
    #[must_use]
    pub fn last(&self) -> u16 {
        self.last
    }

    /// The number of ports; at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a range is never empty")]
    pub fn len(&self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// Whether the port is in the range.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl Default for PortRange {
    /// 20000 to 29999: below Kubernetes' default range of node ports and Linux' default range of local ports of outgoing connections.
    fn default() -> Self {
        Self {
            first: 20_000,
            last: 29_999,
        }
    }
}

impl fmt::Display for PortRange {
    /// `20000-29999`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The text is not a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid port range `{0}`; valid: PORT, FIRST-LAST or FIRST+OFFSET, with ports from 1 to 65535")]
pub struct ParsePortRangeError(String);

impl FromStr for PortRange {
    type Err = ParsePortRangeError;

    /// `PORT`, `FIRST-LAST`, or `FIRST+OFFSET`, which ends at the port `FIRST` plus `OFFSET`, as kube-proxy's `portRange`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParsePortRangeError(text.to_owned());
        let port = |text: &str| {
            let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>()
                .ok()
                .filter(|_| is_decimal)
                .ok_or_else(invalid)
        };
        let (first, last) = if let Some((first, last)) = text.split_once('-') {
            (port(first)?, port(last)?)
        } else if let Some((first, offset)) = text.split_once('+') {
            let first = port(first)?;
            (first, first.checked_add(port(offset)?).ok_or_else(invalid)?)
        } else {
            (port(text)?, port(text)?)
        };
        Self::new(first, last).ok_or_else(invalid)
    }
}

/// Which ports of a range are in use. Allocation goes round the range, so a released port comes back as late as possible.
#[derive(Clone, Debug)]
pub struct PortAllocator {
    range: PortRange,
    used: BTreeSet<u16>,
    /// Ports that another program uses, until when they are left out.
    busy: BTreeMap<u16, Instant>,
    /// The offset in the range at which the next search begins.
    next: usize,
}

impl PortAllocator {
    /// All ports of the range are free. The seed decides with which one allocation begins.
    #[must_use]
    pub fn new(range: PortRange, seed: u64) -> Self {
        let len = u64::try_from(range.len()).unwrap_or(1);
        Self {
            range,
            used: BTreeSet::new(),
            busy: BTreeMap::new(),
            next: usize::try_from(seed % len).unwrap_or(0),
        }
    }

    /// The range.
    #[must_use]
    pub fn range(&self) -> PortRange {
        self.range
    }

    /// Takes a free port. `None`: all are used or busy.
    pub fn allocate(&mut self, now: Instant) -> Option<u16> {
        self.busy.retain(|_, until| *until > now);
        let len = self.range.len();
        for step in 0..len {
            let offset = (self.next + step) % len;
            let port = self.range.first + u16::try_from(offset).unwrap_or(0);
            if !self.busy.contains_key(&port) && self.used.insert(port) {
                self.next = (offset + 1) % len;
                return Some(port);
            }
        }
        None
    }

    /// Takes this port. False if it is used or outside the range.
    pub fn reserve(&mut self, port: u16) -> bool {
        self.range.contains(port) && self.used.insert(port)
    }

    /// Makes a port free again. One that is not used stays free.
    pub fn release(&mut self, port: u16) {
        self.used.remove(&port);
    }

    /// Makes a port free that could not be bound, and leaves it out for [`BUSY_MEMORY`].
    pub fn release_busy(&mut self, port: u16, now: Instant) {
        self.used.remove(&port);
        if let Some(until) = now.checked_add(BUSY_MEMORY) {
            self.busy.insert(port, until);
        }
    }

    /// The number of used ports.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(text: &str) -> PortRange {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_have_the_three_forms_of_kube_proxy() {
        assert_eq!(range("2-7").to_string(), "2-7");
        assert_eq!(range("300").to_string(), "300-300");
        assert_eq!(range("300+10").to_string(), "300-310");
        for text in [
            "", "0", "0-0", "0-100", "7-2", "70000", "1-70000", "65535+1", "a", "1-", "+5", "1-+5", "-1",
        ] {
            let error = text.parse::<PortRange>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("invalid port range `{text}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn every_port_is_allocated_once_and_then_none() {
        let now = Instant::now();
        let mut ports = PortAllocator::new(range("1000-1099"), 42);
        let allocated: BTreeSet<u16> = (0..100).map(|_| ports.allocate(now).unwrap()).collect();
        assert_eq!(allocated, (1000..=1099).collect());
        assert_eq!(ports.allocate(now), None);
        ports.release(1050);
        assert_eq!(ports.allocate(now), Some(1050));
        assert_eq!(ports.allocate(now), None);
    }

    #[test]
    fn allocation_begins_at_a_port_that_depends_on_the_seed() {
        let now = Instant::now();
        let first = |seed| PortAllocator::new(range("1000-1099"), seed).allocate(now);
        assert_eq!(first(0), Some(1000));
        assert_eq!(first(142), Some(1042));
    }

    #[test]
    fn a_released_port_comes_back_after_all_others() {
        let now = Instant::now();
        let mut ports = PortAllocator::new(range("1000-1002"), 0);
        let first = ports.allocate(now).unwrap();
        ports.release(first);
        assert_eq!(
            [ports.allocate(now), ports.allocate(now), ports.allocate(now)],
            [Some(1001), Some(1002), Some(1000)]
        );
    }

    #[test]
    fn a_busy_port_is_left_out_for_a_time_and_is_never_lost() {
        let now = Instant::now();
        let mut ports = PortAllocator::new(range("1000"), 0);
        assert_eq!(ports.allocate(now), Some(1000));
        ports.release_busy(1000, now);
        assert_eq!(ports.allocate(now), None);
        assert_eq!(ports.used(), 0);
        assert_eq!(ports.allocate(now + BUSY_MEMORY), Some(1000));
    }

    #[test]
    fn a_port_can_be_reserved_if_it_is_free_and_in_the_range() {
        let mut ports = PortAllocator::new(range("1000-1001"), 0);
        assert!(ports.reserve(1000));
        assert!(!ports.reserve(1000));
        assert!(!ports.reserve(999));
        assert_eq!(ports.allocate(Instant::now()), Some(1001));
    }

    proptest! {
        #[test]
        fn ports_never_leak(steps in prop::collection::vec((0u8..4, 0usize..8), 0..200), seed: u64) {
            let mut now = Instant::now();
            let mut ports = PortAllocator::new(range("1000-1007"), seed);
            let mut held: Vec<u16> = Vec::new();
            for (what, index) in steps {
                now += Duration::from_secs(7);
                match (what, held.len()) {
                    (0 | 1, _) => held.extend(ports.allocate(now)),
                    (2, 1..) => ports.release(held.swap_remove(index % held.len())),
                    (3, 1..) => ports.release_busy(held.swap_remove(index % held.len()), now),
                    _ => {}
                }
                prop_assert_eq!(ports.used(), held.len());
            }
            held.into_iter().for_each(|port| ports.release(port));
            now += BUSY_MEMORY;
            let all: BTreeSet<u16> = std::iter::from_fn(|| ports.allocate(now)).collect();
            prop_assert_eq!(all.len(), 8);
        }
    }
}
