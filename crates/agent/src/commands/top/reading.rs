//! What one reading of the kernel found. What is not known is `None`, never 0.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::targets::Target;
use crate::query::documents::VERSION;

/// What was counted of a Service or an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) active: Option<u64>,
    pub(super) inactive: Option<u64>,
    /// Bytes from clients, and bytes to clients, since the reading before.
    pub(super) bytes: [Option<u64>; 2],
}

/// Bytes of both directions, which are known together.
pub(super) fn directions(bytes: Option<[u64; 2]>) -> [Option<u64>; 2] {
    bytes.map_or([None; 2], |bytes| bytes.map(Some))
}

impl Counted {
    /// Nothing is known.
    pub(super) const UNKNOWN: Self = Self {
        active: None,
        inactive: None,
        bytes: [None; 2],
    };
    /// Nothing is there.
    pub(super) const NONE: Self = Self {
        active: Some(0),
        inactive: Some(0),
        bytes: [Some(0); 2],
    };

    /// The sum. What is not known of one part is not known of the sum.
    pub(super) fn add(&mut self, other: Self) {
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        self.active = sum(self.active, other.active);
        self.inactive = sum(self.inactive, other.inactive);
        for (bytes, more) in self.bytes.iter_mut().zip(other.bytes) {
            *bytes = sum(*bytes, more);
        }
    }

    /// All connections.
    pub(super) fn connections(self) -> Option<u64> {
        Some(self.active?.saturating_add(self.inactive?))
    }
}

/// What was counted of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountedTarget {
    pub(super) total: Counted,
    pub(super) endpoints: BTreeMap<SocketAddr, Counted>,
}

impl CountedTarget {
    /// Endpoints without connections are known to have none.
    pub(super) fn none(target: &Target) -> Self {
        let endpoints = target.endpoints.iter().map(|endpoint| (*endpoint, Counted::NONE));
        Self {
            total: Counted::NONE,
            endpoints: endpoints.collect(),
        }
    }

    pub(super) fn unknown(target: &Target) -> Self {
        let endpoints = target
            .endpoints
            .iter()
            .map(|endpoint| (*endpoint, Counted::UNKNOWN));
        Self {
            total: Counted::UNKNOWN,
            endpoints: endpoints.collect(),
        }
    }

    /// Adds what was counted of an endpoint.
    pub(super) fn add(&mut self, endpoint: SocketAddr, counted: Counted) {
        self.total.add(counted);
        self.endpoints
            .entry(endpoint)
            .or_insert(Counted::NONE)
            .add(counted);
    }

    /// Bytes are not known of it, nor of any endpoint.
    pub(super) fn forget_bytes(&mut self) {
        self.total.bytes = [None; 2];
        self.endpoints
            .values_mut()
            .for_each(|counted| counted.bytes = [None; 2]);
    }
}

/// A reading, for programs. `docs/agent-reference.md` describes it: fields are added, and never renamed or removed, as long as `version` is the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Reading {
    pub(super) version: u32,
    /// The mode of the agent. `None`: no agent was asked.
    pub(super) mode: Option<String>,
    /// `conntrack` or `ipvs`.
    pub(super) source: &'static str,
    /// The time since the reading before, in which bytes were counted. `None`: it is the first one.
    pub(super) seconds: Option<f64>,
    /// Why something is not known.
    pub(super) notes: Vec<String>,
    pub(super) services: Vec<ServiceRow>,
}

/// A service port, or a virtual server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceRow {
    pub(super) service: String,
    pub(super) frontends: Vec<String>,
    #[serde(flatten)]
    pub(super) numbers: Numbers,
    pub(super) endpoints: Vec<EndpointRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EndpointRow {
    pub(super) endpoint: String,
    #[serde(flatten)]
    pub(super) numbers: Numbers,
}

/// The numbers of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Numbers {
    pub(super) connections: Option<u64>,
    pub(super) active: Option<u64>,
    pub(super) inactive: Option<u64>,
    pub(super) bytes_in_per_second: Option<f64>,
    pub(super) bytes_out_per_second: Option<f64>,
}

impl Numbers {
    pub(super) fn new(counted: Counted, elapsed: Option<Duration>) -> Self {
        let rate = |direction: usize| {
            let seconds = elapsed?.as_secs_f64();
            let bytes = counted.bytes[direction]? as f64;
            // Two readings are at least a second apart.
            (seconds > 0.0).then(|| (bytes / seconds).round())
        };
        Self {
            connections: counted.connections(),
            active: counted.active,
            inactive: counted.inactive,
            bytes_in_per_second: rate(0),
            bytes_out_per_second: rate(1),
        }
    }
}

impl Reading {
    pub(super) fn new(
        mode: Option<&str>,
        source: &'static str,
        elapsed: Option<Duration>,
        counted: impl IntoIterator<Item = (Target, CountedTarget)>,
    ) -> Self {
        let rows = counted.into_iter().map(|(target, counted)| ServiceRow {
            service: target.name,
            frontends: target.frontends.iter().map(ToString::to_string).collect(),
            numbers: Numbers::new(counted.total, elapsed),
            endpoints: counted
                .endpoints
                .iter()
                .map(|(endpoint, counted)| EndpointRow {
                    endpoint: endpoint.to_string(),
                    numbers: Numbers::new(*counted, elapsed),
                })
                .collect(),
        });
        Self {
            version: VERSION,
            mode: mode.map(str::to_owned),
            source,
            seconds: elapsed.map(|elapsed| elapsed.as_secs_f64()),
            notes: Vec::new(),
            services: rows.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_of_a_part_is_not_known_of_the_sum() {
        let mut sum = Counted::NONE;
        let known = Counted {
            active: Some(2),
            inactive: Some(1),
            bytes: [Some(10), Some(20)],
        };
        sum.add(known);
        assert_eq!(sum.connections(), Some(3));
        sum.add(Counted {
            bytes: [None, Some(1)],
            ..known
        });
        assert_eq!((sum.active, sum.bytes), (Some(4), [None, Some(21)]));
        let numbers = Numbers::new(sum, Some(Duration::from_secs(2)));
        assert_eq!(
            (numbers.connections, numbers.bytes_in_per_second),
            (Some(6), None)
        );
        let rates = Numbers::new(known, Some(Duration::from_secs(2)));
        assert_eq!(
            (rates.bytes_in_per_second, rates.bytes_out_per_second),
            (Some(5.0), Some(10.0))
        );
        assert_eq!(Numbers::new(known, None).bytes_in_per_second, None);
        assert_eq!(Numbers::new(Counted::UNKNOWN, None), Numbers::default());
    }
}
