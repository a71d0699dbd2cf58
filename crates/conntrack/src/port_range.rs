//! Ranges of ports.

use std::fmt;
use std::ops::RangeInclusive;

/// An inclusive range of ports, converted from a `u16` or from a range `first..=last`. `Display` is `53` or `1000-2000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port. A range whose last port is less than the first is invalid.
    pub last: u16,
}

impl PortRange {
    /// Whether a port is in the range.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// The port of a range with one port.
    pub(crate) fn single(&self) -> Option<u16> {
        (self.first == self.last).then_some(self.first)
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        PortRange {
            first: port,
            last: port,
        }
    }
}

impl From<RangeInclusive<u16>> for PortRange {
    fn from(range: RangeInclusive<u16>) -> Self {
        let (first, last) = range.into_inner();
        PortRange { first, last }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.single() {
            Some(port) => port.fmt(f),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}
