//! Options of a Service, from annotations with the prefix `kernlink.io/`.
//!
//! | annotation | value |
//! |---|---|
//! | `weights` | the weights of endpoints: `zone=NAME:WEIGHT` and `node=NAME:WEIGHT`, separated by commas; 0 to 65535 |
//! | `drain-timeout` | the longest time that a removed endpoint keeps its connections, in whole seconds: `30s`, `5m`; `0`: it loses them at once; `none`: until they have ended |
//! | `affinity-mask` | the prefix length of a client's address for session affinity: IPv4, then IPv6: `24,64` |
//!
//! The annotations of a data path ([`DATA_PATH_ANNOTATIONS`]) are copied to [`Options::data_path`] and not interpreted here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kernlink_base::Family;

pub use super::annotation::{
    ANNOTATION_PREFIX, DATA_PATH_ANNOTATIONS, annotation_field, is_known_annotation, known_annotations,
};
use super::annotation_policy::AnnotationPolicy;
use crate::duration::{GoDuration, parse_go_duration};
use crate::escape::{MAX_TEXT, excerpt, excerpt_of};
use crate::event::Reason;
use crate::source::{Service, SessionAffinity};

/// The greatest [`Options::drain_timeout`], 2 147 483 seconds or about 24 days: the longest timeout of an entry in a set of the kernel.
pub const MAX_DRAIN_TIMEOUT: Duration = Duration::from_secs(2_147_483);

/// Whether a value is valid for [`Options::drain_timeout`].
#[must_use]
pub fn is_drain_timeout(timeout: Duration) -> bool {
    timeout.subsec_nanos() == 0 && timeout <= MAX_DRAIN_TIMEOUT
}

/// Options of a Service beyond its Kubernetes fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The weights of endpoints for new connections.
    pub weights: Weights,
    /// The longest time that a removed endpoint keeps its connections: 0, or whole seconds up to [`MAX_DRAIN_TIMEOUT`]. 0: it loses them
    /// at once. `None`, the default: it keeps them until they have ended.
    pub drain_timeout: Option<Duration>,
    /// The part of an address that identifies a client for session affinity.
    pub affinity_mask: AffinityMask,
    /// Annotations of data paths, by name without the prefix, as written. Empty in [`Config::defaults`](crate::Config::defaults).
    pub data_path: BTreeMap<Box<str>, Box<str>>,
}

/// The weights of endpoints by zone and node. Other endpoints have weight 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// By zone.
    pub zones: BTreeMap<Arc<str>, u16>,
    /// By node; takes precedence over the zone.
    pub nodes: BTreeMap<Arc<str>, u16>,
}

impl Weights {
    /// The weight of an endpoint on this node in this zone.
    #[must_use]
    pub fn of(&self, node: Option<&str>, zone: Option<&str>) -> u16 {
        let of_node = node.and_then(|node| self.nodes.get(node));
        let of_zone = || zone.and_then(|zone| self.zones.get(zone));
        of_node.or_else(of_zone).copied().unwrap_or(1)
    }

    /// Whether a weight is greater than 1, so that endpoints with connections may have different weights.
    #[must_use]
    pub fn has_weight_above_one(&self) -> bool {
        self.zones
            .values()
            .chain(self.nodes.values())
            .any(|weight| *weight > 1)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut weights = Weights::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let parts = part
                .split_once('=')
                .and_then(|(place, rest)| Some((place, rest.rsplit_once(':')?)));
            let Some((place, (name, weight))) = parts else {
                let part = excerpt(part);
                return Err(format!("{part:?} is not zone=NAME:WEIGHT or node=NAME:WEIGHT"));
            };
            let map = match place.trim() {
                "zone" => &mut weights.zones,
                "node" => &mut weights.nodes,
                other => return Err(format!("{:?} is neither zone nor node", excerpt(other))),
            };
            let weight = weight
                .trim()
                .parse()
                .map_err(|_| format!("{:?} is not a weight from 0 to 65535", excerpt(weight)))?;
            let name = name.trim();
            if name.is_empty() {
                return Err(format!("{:?} has an empty name", excerpt(part)));
            }
            if map.insert(Arc::from(name), weight).is_some() {
                return Err(format!("{place} {:?} occurs more than once", excerpt(name)));
            }
        }
        Ok(weights)
    }
}

/// The prefix lengths of addresses that identify a client. Default: the whole address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityMask {
    /// Of an IPv4 address, 1 to 32.
    pub v4: u8,
    /// Of an IPv6 address, 1 to 128.
    pub v6: u8,
}

impl AffinityMask {
    /// The prefix length in a family.
    #[must_use]
    pub fn of(self, family: Family) -> u8 {
        match family {
            Family::Ipv4 => self.v4,
            Family::Ipv6 => self.v6,
        }
    }

    /// Parses `24` or `24,64`.
    fn parse(text: &str) -> Result<Self, String> {
        let (v4, v6) = text
            .split_once(',')
            .map_or((text, None), |(v4, v6)| (v4, Some(v6)));
        let length = |text: &str, most: u8| match text.trim().parse() {
            Ok(length) if (1..=most).contains(&length) => Ok(length),
            _ => Err(format!(
                "{:?} is not a prefix length from 1 to {most}",
                excerpt(text)
            )),
        };
        Ok(Self {
            v4: length(v4, 32)?,
            v6: v6.map_or(Ok(128), |v6| length(v6, 128))?,
        })
    }
}

impl Default for AffinityMask {
    /// 32 and 128.
    fn default() -> Self {
        Self { v4: 32, v6: 128 }
    }
}

/// Applies the annotations of a Service to the defaults. An annotation that is invalid or not permitted is reported and has no effect. If
/// none is permitted, unknown ones are not reported.
pub(crate) fn options(
    service: &Service,
    defaults: &Arc<Options>,
    policy: &AnnotationPolicy,
    mut report: impl FnMut(Reason),
) -> Arc<Options> {
    if !service
        .annotations
        .keys()
        .any(|key| key.starts_with(ANNOTATION_PREFIX))
    {
        return Arc::clone(defaults);
    }
    let namespace = &*service.name.namespace;
    let mut options = Options::clone(defaults);
    let mut has_affinity_mask = false;
    for (name, value) in &service.annotations {
        let Some(name) = name.strip_prefix(ANNOTATION_PREFIX) else {
            continue;
        };
        if !is_known_annotation(name) {
            if policy.permits_any(namespace) {
                let name = excerpt(name).into_owned();
                report(Reason::UnknownAnnotation { name });
            }
            continue;
        }
        if let Some(refusal) = policy.refusal(namespace, name) {
            report(refusal);
            continue;
        }
        match set(&mut options, name, value.trim()) {
            Ok(()) => has_affinity_mask |= name == "affinity-mask",
            Err(problem) => {
                let problem = format!("{}; ignored", excerpt_of(&problem, 3 * MAX_TEXT));
                report(Reason::invalid(annotation_field(name), value, &problem));
            }
        }
    }
    if has_affinity_mask && service.session_affinity == SessionAffinity::None {
        report(Reason::OptionWithoutEffect {
            option: format!("{ANNOTATION_PREFIX}affinity-mask"),
            why: "the Service has no session affinity".to_owned(),
        });
    }
    Arc::new(options)
}

fn set(options: &mut Options, name: &str, value: &str) -> Result<(), String> {
    match name {
        "weights" => options.weights = Weights::parse(value)?,
        "drain-timeout" => options.drain_timeout = drain_timeout(value)?,
        "affinity-mask" => options.affinity_mask = AffinityMask::parse(value)?,
        _ => _ = options.data_path.insert(name.into(), value.into()),
    }
    Ok(())
}

fn drain_timeout(value: &str) -> Result<Option<Duration>, String> {
    if value == "none" {
        return Ok(None);
    }
    match parse_go_duration(value) {
        Some(GoDuration::NonNegative(timeout)) if is_drain_timeout(timeout) => Ok(Some(timeout)),
        Some(GoDuration::NonNegative(_)) => Err("must be 0 or whole seconds from 1s to 2147483s".to_owned()),
        Some(GoDuration::Negative) => Err("must not be negative".to_owned()),
        None => Err("not a duration such as 30s or 5m, and not none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::annotation::ANNOTATIONS;
    use super::*;
    use crate::config::Config;
    use crate::event;
    use crate::model::Model;
    use crate::source::{Change, ObjectChange, ObjectName, Port, SourceId};

    fn read(annotations: &[(&str, &str)]) -> (Options, Vec<String>) {
        read_with(annotations, &AnnotationPolicy::default())
    }

    fn read_with(annotations: &[(&str, &str)], policy: &AnnotationPolicy) -> (Options, Vec<String>) {
        let mut service = Service::new(ObjectName::new("shop", "web")).with_port(Port::new("http", 80));
        for (name, value) in annotations {
            service
                .annotations
                .insert(format!("{ANNOTATION_PREFIX}{name}"), (*value).to_owned());
        }
        let mut reported = Vec::new();
        let options = options(&service, &Arc::default(), policy, |reason| {
            reported.push(reason.to_string());
        });
        (Options::clone(&options), reported)
    }

    #[test]
    fn the_weight_of_a_node_takes_precedence_over_that_of_its_zone() {
        let (options, reported) = read(&[("weights", "zone=a:3, node=n1:0"), ("scheduler", "wrr")]);
        assert_eq!(reported, [""; 0]);
        assert_eq!(options.weights.of(Some("n1"), Some("a")), 0);
        assert_eq!(options.weights.of(Some("n2"), Some("a")), 3);
        assert_eq!(options.weights.of(None, Some("b")), 1);
        assert_eq!(options.data_path.get("scheduler").map(AsRef::as_ref), Some("wrr"));
    }

    #[test]
    fn an_invalid_annotation_is_reported_and_has_no_effect() {
        for (name, value, problem) in [
            (
                "weights",
                "zone=a",
                "\"zone=a\" is not zone=NAME:WEIGHT or node=NAME:WEIGHT",
            ),
            (
                "weights",
                "zone=a:65536",
                "\"65536\" is not a weight from 0 to 65535",
            ),
            ("weights", "rack=a:1", "\"rack\" is neither zone nor node"),
            ("weights", "zone=a:1,zone=a:2", "zone \"a\" occurs more than once"),
            ("drain-timeout", "-1s", "must not be negative"),
            (
                "drain-timeout",
                "soon",
                "not a duration such as 30s or 5m, and not none",
            ),
            (
                "drain-timeout",
                "1.5s",
                "must be 0 or whole seconds from 1s to 2147483s",
            ),
            (
                "drain-timeout",
                "2147484s",
                "must be 0 or whole seconds from 1s to 2147483s",
            ),
            (
                "affinity-mask",
                "33",
                "\"33\" is not a prefix length from 1 to 32",
            ),
            (
                "affinity-mask",
                "24,129",
                "\"129\" is not a prefix length from 1 to 128",
            ),
        ] {
            let (options, reported) = read(&[(name, value)]);
            let field = format!("metadata.annotations[kernlink.io/{name}]");
            assert_eq!(
                reported,
                [format!("{field}: invalid value {value:?}: {problem}; ignored")]
            );
            assert_eq!(options, Options::default());
        }
    }

    #[test]
    fn an_event_about_an_annotation_has_only_the_beginning_of_a_long_value() {
        let long = "zone=".to_owned() + &"ä".repeat(200_000);
        let values = ["", "x:1", ":x", ":1,zone=y:1", "=:1"].map(|end| long.clone() + end);
        for name in ANNOTATIONS {
            for value in &values {
                let (_, reported) = read(&[(name, value)]);
                let longest = reported.iter().map(String::len).max();
                assert!(
                    longest.is_none_or(|length| length < 6 * MAX_TEXT),
                    "{name}: {longest:?}"
                );
            }
        }
        // The second of two equal long names.
        let twice = format!("{long}:1,{long}:2");
        let (_, reported) = read(&[("weights", &twice)]);
        assert!(reported[0].contains("occurs more than once") && reported[0].len() < 6 * MAX_TEXT);
    }

    #[test]
    fn a_drain_timeout_is_a_number_of_seconds_or_none() {
        let timeout = |value| {
            let mut options = Options {
                drain_timeout: Some(Duration::from_secs(7)),
                ..Options::default()
            };
            set(&mut options, "drain-timeout", value).map(|()| options.drain_timeout)
        };
        assert_eq!(timeout("0"), Ok(Some(Duration::ZERO)));
        assert_eq!(timeout("1m30s"), Ok(Some(Duration::from_secs(90))));
        assert_eq!(timeout("2147483s"), Ok(Some(MAX_DRAIN_TIMEOUT)));
        assert_eq!(timeout("none"), Ok(None));
    }

    #[test]
    fn an_annotation_that_is_not_permitted_is_reported_once_and_has_no_effect() {
        let given = [
            ("drain-timeout", "30s"),
            ("scheduler", "wrr"),
            ("weights", "zone=a:3"),
            ("unknown", "x"),
        ];
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let policy = AnnotationPolicy {
            names: names(&["weights"]),
            namespaces: names(&["shop"]),
        };
        let (options, reported) = read_with(&given, &policy);
        assert_eq!(options.weights.of(None, Some("a")), 3);
        assert_eq!((options.drain_timeout, options.data_path.len()), (None, 0));
        let text = |name: &str, why: &str| {
            format!(
                "metadata.annotations[kernlink.io/{name}]: not permitted {why} of the configuration; ignored"
            )
        };
        assert_eq!(
            reported[..2],
            ["drain-timeout", "scheduler"].map(|name| text(name, "by kernlink.serviceAnnotations"))
        );
        assert!(reported[2].contains("unknown annotation"), "{reported:?}");

        let policy = AnnotationPolicy {
            names: None,
            namespaces: names(&["other"]),
        };
        let (options, reported) = read_with(&given, &policy);
        assert_eq!(options, Options::default());
        assert_eq!(
            reported,
            ["drain-timeout", "scheduler", "weights"]
                .map(|name| text(name, "in namespace shop by kernlink.serviceAnnotationNamespaces"))
        );
        assert_eq!(
            read_with(&given, &AnnotationPolicy::nothing()).0,
            Options::default()
        );
    }

    #[test]
    fn an_unknown_annotation_is_reported() {
        let (options, reported) = read(&[("sheduler", "rr")]);
        assert_eq!(
            reported,
            [
                "metadata.annotations[kernlink.io/sheduler]: unknown annotation; known: affinity-mask, \
              drain-timeout, forwarding-method, one-packet, scheduler, scheduler-flags, weights; ignored"
            ]
        );
        assert_eq!(options, Options::default());
    }

    #[test]
    fn many_unknown_annotations_and_a_long_value_are_a_few_short_events() {
        let mut model = Model::new(Config::new("n1"));
        let service = |round: u32| {
            let mut service = Service::new(ObjectName::new("shop", "web"))
                .with_cluster_ip("10.96.0.1")
                .with_port(Port::new("http", 80));
            for number in 0..14_000 {
                let name = format!("{ANNOTATION_PREFIX}x{round}-{number}");
                service.annotations.insert(name, String::new());
            }
            let long = "\u{1}".repeat(258_000 + round as usize);
            for name in ["weights", "drain-timeout", "affinity-mask"] {
                service
                    .annotations
                    .insert(format!("{ANNOTATION_PREFIX}{name}"), long.clone());
            }
            service
        };
        for round in 0..2 {
            let change = Change::Services(ObjectChange::Upsert(service(round)));
            let events = model.change(SourceId(0), change);
            assert_eq!(
                events.len(),
                event::MAX_EVENTS + usize::from(round == 0),
                "the number of others is the same"
            );
            let text: Vec<String> = events.iter().map(ToString::to_string).collect();
            assert!(text.iter().all(|line| line.len() < 4_000), "{text:#?}");
            if round == 0 {
                let last = "Service shop/web: 13993 more events about this object";
                assert_eq!(text.last().map(String::as_str), Some(last));
            }
            let all = model.object_events();
            assert_eq!(all.len(), event::MAX_EVENTS + 1);
        }
    }

    #[test]
    fn an_affinity_mask_without_session_affinity_has_no_effect() {
        assert_eq!(
            read(&[("affinity-mask", "24")]).1,
            ["kernlink.io/affinity-mask has no effect: the Service has no session affinity"]
        );
    }
}
