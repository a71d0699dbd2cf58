//! Filters of flows.

use std::fmt;

use ipnet::IpNet;
use kernlink_base::{Family, Protocol};

use crate::error::InvalidOperation;
use crate::flow::{Flow, Labels};
use crate::notation::{ProtocolName, family_name};
use crate::port_range::PortRange;
use crate::status::Status;
use crate::tuple_filter::TupleFilter;

/// Conditions on flows. A flow matches if it fulfils every condition that is set. `None` is no condition, 0 is a value: zone 0 is the default zone, mark
/// 0 that of a flow without a mark. The fields are all conditions: none compares the state of TCP, timeouts, counters or helpers.
///
/// [`Client`](crate::Client) leaves the conditions that the kernel supports to the kernel, and compares every listed flow with the
/// filter again. `Display` prints the options of `conntrack -L` and `-D`; conditions without an option have names of the same
/// style.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Filter {
    /// Family of the addresses (`-f`).
    pub family: Option<Family>,
    /// Transport protocol (`-p`).
    pub protocol: Option<Protocol>,
    /// Conditions on the original tuple.
    pub original: TupleFilter,
    /// Conditions on the reply tuple.
    pub reply: TupleFilter,
    /// Conditions that the original or the reply tuple fulfils, the same tuple all of them. Not compared in the kernel.
    pub either: TupleFilter,
    /// Mark (`-m`).
    pub mark: Option<MarkFilter>,
    /// Id of the zone (`-w`), in any direction. Flows are in zone 0 by default.
    pub zone: Option<u16>,
    /// Status (`-u`).
    pub status: Option<StatusFilter>,
    /// Labels (`-l`). Not compared in the kernel.
    pub labels: Option<LabelFilter>,
}

/// A condition on the mark: `mark & mask == value`. A value with bits outside the mask never matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkFilter {
    /// Required bits.
    pub value: u32,
    /// Compared bits.
    pub mask: u32,
}

/// A condition on the status: `status & mask == set`. A `set` with bits outside the mask never matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StatusFilter {
    /// Required bits.
    pub set: Status,
    /// Compared bits.
    pub mask: Status,
}

/// A condition on the labels: `labels & mask == set`. A `set` with labels outside the mask never matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LabelFilter {
    /// Required labels.
    pub set: Labels,
    /// Compared labels.
    pub mask: Labels,
}

impl Filter {
    /// A filter without a condition: every flow matches.
    #[must_use]
    pub fn new() -> Self {
        Filter::default()
    }

    /// Requires the family of the addresses (`-f`).
    #[must_use]
    pub fn with_family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }

    /// Requires the protocol (`-p`).
    #[must_use]
    pub fn with_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = Some(protocol);
        self
    }

    /// Requires an original source address in this network (`-s`).
    #[must_use]
    pub fn with_source(mut self, network: impl Into<IpNet>) -> Self {
        self.original.source = Some(network.into());
        self
    }

    /// Requires an original destination address in this network (`-d`), before address translation.
    #[must_use]
    pub fn with_destination(mut self, network: impl Into<IpNet>) -> Self {
        self.original.destination = Some(network.into());
        self
    }

    /// Requires an original source port (`--sport`), or one of a range.
    #[must_use]
    pub fn with_source_port(mut self, port: impl Into<PortRange>) -> Self {
        self.original.source_port = Some(port.into());
        self
    }

    /// Requires an original destination port (`--dport`), or one of a range.
    #[must_use]
    pub fn with_destination_port(mut self, port: impl Into<PortRange>) -> Self {
        self.original.destination_port = Some(port.into());
        self
    }

    /// Requires a reply source address in this network (`-r`): the peer after address translation.
    #[must_use]
    pub fn with_reply_source(mut self, network: impl Into<IpNet>) -> Self {
        self.reply.source = Some(network.into());
        self
    }

    /// Requires a reply destination address in this network (`-q`).
    #[must_use]
    pub fn with_reply_destination(mut self, network: impl Into<IpNet>) -> Self {
        self.reply.destination = Some(network.into());
        self
    }

    /// Requires a reply source port (`--reply-port-src`), or one of a range.
    #[must_use]
    pub fn with_reply_source_port(mut self, port: impl Into<PortRange>) -> Self {
        self.reply.source_port = Some(port.into());
        self
    }

    /// Requires a reply destination port (`--reply-port-dst`), or one of a range.
    #[must_use]
    pub fn with_reply_destination_port(mut self, port: impl Into<PortRange>) -> Self {
        self.reply.destination_port = Some(port.into());
        self
    }

    /// Requires that the original or the reply tuple fulfils all these conditions.
    #[must_use]
    pub fn with_either(mut self, tuple: TupleFilter) -> Self {
        self.either = tuple;
        self
    }

    /// Requires this mark (`-m`). 0 requires a flow without a mark.
    #[must_use]
    pub fn with_mark(self, mark: u32) -> Self {
        self.with_masked_mark(mark, u32::MAX)
    }

    /// Requires `mark & mask == value`. With a mask of 0 every flow matches if the value is 0, and none otherwise.
    #[must_use]
    pub fn with_masked_mark(mut self, value: u32, mask: u32) -> Self {
        self.mark = Some(MarkFilter { value, mask });
        self
    }

    /// Requires the zone id (`-w`). 0 is the default zone, not any zone.
    #[must_use]
    pub fn with_zone(mut self, zone: u16) -> Self {
        self.zone = Some(zone);
        self
    }

    /// Requires that all these status bits are set (`-u`).
    #[must_use]
    pub fn with_status(self, status: Status) -> Self {
        self.with_masked_status(status, status)
    }

    /// Requires `status & mask == set`.
    #[must_use]
    pub fn with_masked_status(mut self, set: Status, mask: Status) -> Self {
        self.status = Some(StatusFilter { set, mask });
        self
    }

    /// Requires that all these labels are set (`-l`).
    #[must_use]
    pub fn with_labels(self, labels: Labels) -> Self {
        self.with_masked_labels(labels, labels)
    }

    /// Requires `labels & mask == set`.
    #[must_use]
    pub fn with_masked_labels(mut self, set: Labels, mask: Labels) -> Self {
        self.labels = Some(LabelFilter { set, mask });
        self
    }

    /// Whether no condition is set, so that every flow matches.
    #[must_use]
    pub fn is_unconditional(&self) -> bool {
        let any_status = StatusFilter {
            set: Status::empty(),
            mask: Status::empty(),
        };
        let any_mark = MarkFilter { value: 0, mask: 0 };
        let any_labels = LabelFilter {
            set: Labels(0),
            mask: Labels(0),
        };
        self.family.is_none()
            && self.protocol.is_none()
            && [&self.original, &self.reply, &self.either]
                .into_iter()
                .all(|tuple| *tuple == TupleFilter::default())
            && self.labels.is_none_or(|labels| labels == any_labels)
            && self.mark.is_none_or(|mark| mark == any_mark)
            && self.zone.is_none()
            && self.status.is_none_or(|status| status == any_status)
    }

    /// Whether a flow fulfils every condition.
    #[must_use]
    pub fn matches(&self, flow: &Flow) -> bool {
        self.family.is_none_or(|family| flow.family() == family)
            && self.protocol.is_none_or(|protocol| flow.protocol() == protocol)
            && self.zone.is_none_or(|zone| flow.zone.id == zone)
            && self.mark.is_none_or(|mark| flow.mark & mark.mask == mark.value)
            && self
                .status
                .is_none_or(|status| flow.status & status.mask == status.set)
            && self.original.matches(&flow.original)
            && self.reply.matches(&flow.reply)
            && (self.either.matches(&flow.original) || self.either.matches(&flow.reply))
            && self
                .labels
                .is_none_or(|LabelFilter { set, mask }| flow.labels.unwrap_or_default().0 & mask.0 == set.0)
    }

    /// The only family that can match: the condition on the family, or the family of the networks.
    pub(crate) fn implied_family(&self) -> Option<Family> {
        self.family.or_else(|| {
            [
                self.original.source,
                self.original.destination,
                self.reply.source,
                self.reply.destination,
                self.either.source,
                self.either.destination,
            ]
            .into_iter()
            .flatten()
            .next()
            .map(|network| Family::of(network.addr()))
        })
    }

    /// Returns an error for an empty port range, or for conditions of different families.
    pub(crate) fn check(&self) -> Result<(), InvalidOperation> {
        for (field, ports) in [
            ("original source port", self.original.source_port),
            ("original destination port", self.original.destination_port),
            ("reply source port", self.reply.source_port),
            ("reply destination port", self.reply.destination_port),
            ("either source port", self.either.source_port),
            ("either destination port", self.either.destination_port),
        ] {
            if let Some(ports) = ports
                && ports.first > ports.last
            {
                return Err(InvalidOperation::EmptyPortRange { field, ports });
            }
        }
        let Some(family) = self.implied_family() else {
            return Ok(());
        };
        for (field, network) in [
            ("original source", self.original.source),
            ("original destination", self.original.destination),
            ("reply source", self.reply.source),
            ("reply destination", self.reply.destination),
            ("either source", self.either.source),
            ("either destination", self.either.destination),
        ] {
            if network.is_some_and(|network| Family::of(network.addr()) != family) {
                return Err(InvalidOperation::FilterFamilyMismatch { field, family });
            }
        }
        Ok(())
    }

    /// The conditions that all filters have in common. Every flow that matches one of the filters fulfils them. `None` for an empty
    /// list.
    pub(crate) fn common(filters: &[Filter]) -> Option<Filter> {
        let with_family = |filter: &Filter| Filter {
            family: filter.implied_family(),
            ..filter.clone()
        };
        filters.iter().map(with_family).reduce(|one, other| {
            fn same<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<T> {
                one.filter(|one| other.as_ref() == Some(one))
            }
            Filter {
                family: same(one.family, other.family),
                protocol: same(one.protocol, other.protocol),
                original: one.original.common(other.original),
                reply: one.reply.common(other.reply),
                // Only if they are equal: a part of the conditions may be fulfilled by the other tuple.
                either: if one.either == other.either {
                    one.either
                } else {
                    TupleFilter::default()
                },
                mark: same(one.mark, other.mark),
                zone: same(one.zone, other.zone),
                status: same(one.status, other.status),
                labels: same(one.labels, other.labels),
            }
        })
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Options<'f, 'a> {
            f: &'f mut fmt::Formatter<'a>,
            separator: &'static str,
        }
        impl Options<'_, '_> {
            fn option<T: fmt::Display>(&mut self, name: &str, value: Option<T>) -> fmt::Result {
                let Some(value) = value else { return Ok(()) };
                write!(self.f, "{}{name} {value}", self.separator)?;
                self.separator = " ";
                Ok(())
            }
        }
        fn network(network: &Option<IpNet>) -> Option<String> {
            network.as_ref().map(|network| {
                if network.prefix_len() == network.max_prefix_len() {
                    network.addr().to_string()
                } else {
                    network.to_string()
                }
            })
        }
        let mut options = Options { f, separator: "" };
        options.option("-f", self.family.map(family_name))?;
        options.option("-p", self.protocol.map(ProtocolName))?;
        options.option("-s", network(&self.original.source))?;
        options.option("-d", network(&self.original.destination))?;
        options.option("--sport", self.original.source_port)?;
        options.option("--dport", self.original.destination_port)?;
        options.option("--icmp-type", self.original.icmp_type)?;
        options.option("--icmp-code", self.original.icmp_code)?;
        options.option("--icmp-id", self.original.icmp_identifier)?;
        options.option("-r", network(&self.reply.source))?;
        options.option("-q", network(&self.reply.destination))?;
        options.option("--reply-port-src", self.reply.source_port)?;
        options.option("--reply-port-dst", self.reply.destination_port)?;
        options.option("--reply-icmp-type", self.reply.icmp_type)?;
        options.option("--reply-icmp-code", self.reply.icmp_code)?;
        options.option("--reply-icmp-id", self.reply.icmp_identifier)?;
        options.option("--either-src", network(&self.either.source))?;
        options.option("--either-dst", network(&self.either.destination))?;
        options.option("--either-port-src", self.either.source_port)?;
        options.option("--either-port-dst", self.either.destination_port)?;
        options.option("--either-icmp-type", self.either.icmp_type)?;
        options.option("--either-icmp-code", self.either.icmp_code)?;
        options.option("--either-icmp-id", self.either.icmp_identifier)?;
        options.option(
            "-l",
            self.labels.map(|LabelFilter { set, mask }| {
                let numbers = (0..128).filter(|label| mask.contains(*label) || set.contains(*label));
                let words: Vec<_> = numbers
                    .map(|label| match (set.contains(label), mask.contains(label)) {
                        (true, true) => label.to_string(),
                        (false, _) => format!("!{label}"),
                        (true, false) => format!("impossible:{label}"),
                    })
                    .collect();
                words.join(",")
            }),
        )?;
        options.option(
            "-m",
            self.mark.map(|MarkFilter { value, mask }| match mask {
                u32::MAX => value.to_string(),
                _ => format!("{value:#x}/{mask:#x}"),
            }),
        )?;
        options.option("-w", self.zone)?;
        options.option(
            "-u",
            self.status.map(|StatusFilter { set, mask }| {
                let unset = mask - set;
                let impossible = set - mask;
                let mut text = (set & mask).to_string();
                for (prefix, bits) in [("!", unset), ("impossible:", impossible)] {
                    if !bits.is_empty() {
                        let separator = if text.is_empty() { "" } else { "," };
                        text = format!("{text}{separator}{prefix}{bits}");
                    }
                }
                text
            }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_prints_as_options_of_the_tool() {
        let filter = Filter::new()
            .with_family(Family::Ipv4)
            .with_protocol(Protocol::UDP)
            .with_destination("10.96.0.10/32".parse::<IpNet>().unwrap())
            .with_destination_port(53)
            .with_reply_source("10.244.0.0/16".parse::<IpNet>().unwrap())
            .with_masked_mark(0x4000, 0xf000)
            .with_zone(7)
            .with_masked_status(Status::ASSURED, Status::ASSURED | Status::DST_NAT);
        assert_eq!(
            filter.to_string(),
            "-f ipv4 -p udp -d 10.96.0.10 --dport 53 -r 10.244.0.0/16 -m 0x4000/0xf000 -w 7 -u ASSURED,!DST_NAT"
        );
        assert_eq!(Filter::new().to_string(), "");
    }

    #[test]
    fn conditions_without_an_option_are_printed() {
        let filter = Filter::new()
            .with_destination_port(1000..=2000)
            .with_either(TupleFilter::new().with_source("10.0.0.1/32".parse::<IpNet>().unwrap()))
            .with_masked_labels(Labels(0b1001), Labels(0b1011));
        assert_eq!(
            filter.to_string(),
            "--dport 1000-2000 --either-src 10.0.0.1 -l 0,!1,3"
        );
        let empty = std::ops::RangeInclusive::new(2, 1);
        assert_eq!(
            Filter::new()
                .with_source_port(empty)
                .check()
                .unwrap_err()
                .to_string(),
            "filter, original source port: empty port range 2-1"
        );
    }

    #[test]
    fn a_condition_that_every_flow_fulfils_is_no_condition() {
        assert!(Filter::new().is_unconditional());
        assert!(Filter::new().with_masked_mark(0, 0).is_unconditional());
        assert!(Filter::new().with_status(Status::empty()).is_unconditional());
        assert!(!Filter::new().with_zone(0).is_unconditional());
        assert!(!Filter::new().with_masked_mark(1, 0).is_unconditional());
        assert!(Filter::new().with_labels(Labels(0)).is_unconditional());
        assert!(!Filter::new().with_labels(Labels(1)).is_unconditional());
        let either = TupleFilter::new().with_source_port(1);
        assert!(!Filter::new().with_either(either).is_unconditional());
    }

    #[test]
    fn conditions_of_different_families_are_invalid() {
        let filter = Filter::new()
            .with_family(Family::Ipv4)
            .with_reply_source("fd00::/8".parse::<IpNet>().unwrap());
        assert_eq!(
            filter.check().unwrap_err().to_string(),
            "filter: reply source is not an IPv4 network; all conditions must have one family"
        );
    }
}
