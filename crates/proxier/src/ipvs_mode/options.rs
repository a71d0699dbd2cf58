//! What a Service may ask for beyond Kubernetes, by annotations with the prefix `kernlink.io/`. The same can be set for all
//! Services in the configuration; an annotation wins.
//!
//! | annotation | value |
//! |---|---|
//! | `scheduler` | a scheduler of the kernel: `rr`, `wrr`, `lc`, `sh`, `mh`, … |
//! | `scheduler-flags` | words of `ipvsadm -b`, separated by commas: `sh-fallback,sh-port` |
//! | `weights` | `zone=NAME:WEIGHT` and `node=NAME:WEIGHT`, separated by commas; 0 to 65535 |
//! | `one-packet` | `true`: balance every UDP packet by itself |
//! | `drain-timeout` | how long a leaving endpoint keeps its connections at most: `30s`, `5m` |
//! | `affinity-mask` | how many bits of an address are one client: IPv4, then IPv6: `24,64` |
//! | `forwarding-method` | `masquerade`; `direct` or `tunnel` for external and load-balancer IPs, see [`Forwarding`] |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kernlink_ipvs::{Scheduler, SchedulerFlags};

use crate::duration::{GoDuration, go_duration};
use crate::event::Reason;
use crate::family::Family;
use crate::source::{Protocol, Service, ServiceType, SessionAffinity};

use super::forwarding::Forwarding;

/// What a Service asks for beyond Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How connections are spread over the endpoints.
    pub scheduler: Scheduler,
    /// What the scheduler is told; `None` leaves it to kernlink: `mh` hashes the source port too, as with kube-proxy.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// How large a share of new connections endpoints take.
    pub weights: Weights,
    /// Whether every UDP packet is balanced by itself.
    pub one_packet: bool,
    /// How long a leaving endpoint keeps its connections at most; `None` leaves it to whoever drains.
    pub drain_timeout: Option<Duration>,
    /// How much of a client's address counts as the client for session affinity.
    pub affinity_mask: AffinityMask,
    /// How packets to external and load-balancer IPs get to the endpoints; all others are masqueraded.
    pub forwarding: Forwarding,
}

impl Default for Options {
    /// As kube-proxy has it.
    fn default() -> Self {
        Self {
            scheduler: Scheduler::RR,
            scheduler_flags: None,
            weights: Weights::default(),
            one_packet: false,
            drain_timeout: None,
            affinity_mask: AffinityMask::default(),
            forwarding: Forwarding::Masquerade,
        }
    }
}

/// The weights of endpoints by where they are. An endpoint that is at none of these places weighs 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// By zone.
    pub zones: BTreeMap<Arc<str>, u16>,
    /// By node; beats the zone.
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

    /// Whether endpoints that take connections take unequal shares.
    fn are_unequal(&self) -> bool {
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
                return Err(format!("{part:?} is not zone=NAME:WEIGHT or node=NAME:WEIGHT"));
            };
            let map = match place.trim() {
                "zone" => &mut weights.zones,
                "node" => &mut weights.nodes,
                other => return Err(format!("{other:?} is neither zone nor node")),
            };
            let weight = weight
                .trim()
                .parse()
                .map_err(|_| format!("{weight:?} is not a weight from 0 to 65535"))?;
            let name = name.trim();
            if name.is_empty() {
                return Err(format!("{part:?} names nothing"));
            }
            if map.insert(Arc::from(name), weight).is_some() {
                return Err(format!("{place} {name} is named twice"));
            }
        }
        Ok(weights)
    }
}

/// Prefix lengths of what counts as one client.
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
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// Reads `24` or `24,64`.
    fn parse(text: &str) -> Result<Self, String> {
        let (v4, v6) = text
            .split_once(',')
            .map_or((text, None), |(v4, v6)| (v4, Some(v6)));
        let length = |text: &str, most: u8| match text.trim().parse() {
            Ok(length) if (1..=most).contains(&length) => Ok(length),
            _ => Err(format!("{text:?} is not a prefix length from 1 to {most}")),
        };
        Ok(Self {
            v4: length(v4, 32)?,
            v6: v6.map_or(Ok(128), |v6| length(v6, 128))?,
        })
    }
}

impl Default for AffinityMask {
    /// Each address is a client.
    fn default() -> Self {
        Self { v4: 32, v6: 128 }
    }
}

/// The prefix of all annotations that are read here.
const PREFIX: &str = "kernlink.io/";

/// Reads a Service's annotations on top of the defaults. What cannot be used is said, and the default stays.
pub(crate) fn options(
    service: &Service,
    defaults: &Arc<Options>,
    mut say: impl FnMut(Reason),
) -> Arc<Options> {
    if !service.annotations.keys().any(|key| key.starts_with(PREFIX)) {
        return Arc::clone(defaults);
    }
    let mut options = Options::clone(defaults);
    let ours = || {
        service
            .annotations
            .iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)))
    };
    let mut given = Given::default();
    for (name, value) in ours() {
        if let Err(problem) = take(&mut options, &mut given, name, value.trim()) {
            let field = format!("metadata.annotations[{PREFIX}{name}]");
            say(Reason::Invalid {
                field,
                value: value.clone(),
                problem: format!("{problem}; left out"),
            });
        }
    }
    // Flags of another scheduler would mean something else to this one.
    if given.scheduler && !given.flags {
        options.scheduler_flags = None;
    }
    let without_effect = |name: &str, why: String| Reason::OptionWithoutEffect {
        option: format!("{PREFIX}{name}"),
        why,
    };
    let caveat = |name: &str, consequence: String| Reason::OptionCaveat {
        option: format!("{PREFIX}{name}"),
        consequence,
    };
    let scheduler = options.scheduler;
    if given.flags {
        if ![Scheduler::SH, Scheduler::MH].contains(&scheduler) {
            say(without_effect(
                "scheduler-flags",
                format!("scheduler {scheduler} has no flags"),
            ));
        } else if let Some(word) = given.foreign_flag(scheduler) {
            say(without_effect(
                "scheduler-flags",
                format!("{word} is no flag of scheduler {scheduler}"),
            ));
        }
    }
    if given.weights && options.weights.are_unequal() && IGNORE_WEIGHTS.contains(&scheduler) {
        say(without_effect(
            "weights",
            format!("scheduler {scheduler} knows no weight but 0"),
        ));
    }
    if given.affinity_mask && service.session_affinity == SessionAffinity::None {
        say(without_effect(
            "affinity-mask",
            "the Service has no session affinity".to_owned(),
        ));
    }
    if given.one_packet && options.one_packet {
        if service.ports.iter().any(|port| port.protocol == Protocol::Udp) {
            let answers = if options.forwarding.keeps_addresses() {
                "answers to masqueraded traffic"
            } else {
                "answers"
            };
            let consequence =
                format!("{answers} would keep the pod's address, so it is only for traffic without answers");
            say(caveat("one-packet", consequence));
        } else {
            say(without_effect(
                "one-packet",
                "the Service has no UDP port".to_owned(),
            ));
        }
    }
    if given.forwarding && options.forwarding.keeps_addresses() {
        if service.external_ips.is_empty() && service.service_type != ServiceType::LoadBalancer {
            say(without_effect(
                "forwarding-method",
                "the Service has no external or load-balancer IP".to_owned(),
            ));
        } else {
            say(caveat("forwarding-method", SERVERS_MUST.to_owned()));
        }
    }
    Arc::new(options)
}

/// What endpoints have to do for themselves where nothing is masqueraded.
const SERVERS_MUST: &str = "endpoints must have the virtual IPs on a link of their own, and answer by a way that passes no node \
                            that serves them";

/// Schedulers for which every endpoint with a weight counts the same.
const IGNORE_WEIGHTS: [Scheduler; 3] = [Scheduler::RR, Scheduler::LC, Scheduler::DH];

/// Which annotations a Service has.
#[derive(Default)]
struct Given {
    scheduler: bool,
    flags: bool,
    /// The scheduler's name with which flags began, if all the same.
    flag_words: Vec<&'static str>,
    weights: bool,
    one_packet: bool,
    affinity_mask: bool,
    forwarding: bool,
}

impl Given {
    /// A flag that is spelled for another scheduler.
    fn foreign_flag(&self, scheduler: Scheduler) -> Option<&'static str> {
        let own = |word: &&&'static str| !word.starts_with("flag-") && !word.starts_with(scheduler.as_str());
        self.flag_words.iter().find(own).copied()
    }
}

fn take(options: &mut Options, given: &mut Given, name: &str, value: &str) -> Result<(), String> {
    match name {
        "scheduler" => {
            options.scheduler = known_scheduler(value)?;
            given.scheduler = true;
        }
        "scheduler-flags" => {
            options.scheduler_flags = Some(scheduler_flags(value, &mut given.flag_words)?);
            given.flags = true;
        }
        "weights" => {
            options.weights = Weights::parse(value)?;
            given.weights = true;
        }
        "one-packet" => {
            options.one_packet = match value {
                "true" => true,
                "false" => false,
                _ => return Err("must be \"true\" or \"false\"".to_owned()),
            };
            given.one_packet = true;
        }
        "drain-timeout" => match go_duration(value) {
            Some(GoDuration::Positive(timeout)) => options.drain_timeout = Some(timeout),
            Some(GoDuration::Negative) => return Err("must not be negative".to_owned()),
            None => return Err("is not a duration such as 30s or 5m".to_owned()),
        },
        "affinity-mask" => {
            options.affinity_mask = AffinityMask::parse(value)?;
            given.affinity_mask = true;
        }
        "forwarding-method" => {
            options.forwarding = value.parse().map_err(|error| format!("{error}"))?;
            given.forwarding = true;
        }
        _ => return Err("is no annotation of kernlink".to_owned()),
    }
    Ok(())
}

/// Reads the name of a scheduler. One that no kernel has would fail every virtual server on every sync.
pub(crate) fn known_scheduler(name: &str) -> Result<Scheduler, String> {
    let mut known = Scheduler::KNOWN.into_iter();
    known.find(|scheduler| scheduler.as_str() == name).ok_or_else(|| {
        let names: Vec<String> = Scheduler::KNOWN.iter().map(ToString::to_string).collect();
        format!("no kernel has this scheduler, but {}", names.join(", "))
    })
}

/// The words of `ipvsadm -b`.
const FLAG_WORDS: [(&str, SchedulerFlags); 7] = [
    ("flag-1", SchedulerFlags::FALLBACK),
    ("flag-2", SchedulerFlags::PORT),
    ("flag-3", SchedulerFlags::THIRD),
    ("sh-fallback", SchedulerFlags::FALLBACK),
    ("sh-port", SchedulerFlags::PORT),
    ("mh-fallback", SchedulerFlags::FALLBACK),
    ("mh-port", SchedulerFlags::PORT),
];

fn scheduler_flags(text: &str, words: &mut Vec<&'static str>) -> Result<SchedulerFlags, String> {
    let mut flags = SchedulerFlags::empty();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let Some((known, flag)) = FLAG_WORDS.iter().find(|(known, _)| *known == word) else {
            return Err(format!("{word:?} is not a flag of ipvsadm -b"));
        };
        words.push(known);
        flags |= *flag;
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{ObjectName, Port};

    fn read(annotations: &[(&str, &str)]) -> (Options, Vec<String>) {
        let mut service = Service::new(ObjectName::new("shop", "web")).with_port(Port::new("http", 80));
        for (name, value) in annotations {
            service
                .annotations
                .insert(format!("{PREFIX}{name}"), (*value).to_owned());
        }
        let mut said = Vec::new();
        let options = options(&service, &Arc::default(), |reason| said.push(reason.to_string()));
        (Options::clone(&options), said)
    }

    #[test]
    fn a_node_beats_its_zone() {
        let (options, said) = read(&[("weights", "zone=a:3, node=n1:0"), ("scheduler", "wrr")]);
        assert_eq!(said, [""; 0]);
        assert_eq!(options.weights.of(Some("n1"), Some("a")), 0);
        assert_eq!(options.weights.of(Some("n2"), Some("a")), 3);
        assert_eq!(options.weights.of(None, Some("b")), 1);
        assert_eq!(options.scheduler, Scheduler::WRR);
    }

    #[test]
    fn what_is_wrong_is_said_and_left_out() {
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
            ("weights", "zone=a:1,zone=a:2", "zone a is named twice"),
            (
                "scheduler-flags",
                "sh-port,x",
                "\"x\" is not a flag of ipvsadm -b",
            ),
            ("one-packet", "yes", "must be \"true\" or \"false\""),
            ("drain-timeout", "-1s", "must not be negative"),
            ("drain-timeout", "soon", "is not a duration such as 30s or 5m"),
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
            ("forwarding-method", "nat", "must be masquerade, direct or tunnel"),
            ("sheduler", "rr", "is no annotation of kernlink"),
        ] {
            let (options, said) = read(&[(name, value)]);
            let field = format!("metadata.annotations[kernlink.io/{name}]");
            assert_eq!(said, [format!("{field}: {value:?}: {problem}; left out")]);
            assert_eq!(options, Options::default());
        }
        for name in ["zz", "none", "RR", "a-name-that-is-too-long", "", "r\nr"] {
            let (options, said) = read(&[("scheduler", name)]);
            assert_eq!(options, Options::default());
            assert_eq!(
                said,
                [format!(
                    "metadata.annotations[kernlink.io/scheduler]: {name:?}: no kernel has this scheduler, but dh, fo, lblc, \
                     lblcr, lc, mh, nq, ovf, rr, sed, sh, twos, wlc, wrr; left out"
                )]
            );
        }
    }

    #[test]
    fn options_without_effect_are_said() {
        let said = |annotations: &[(&str, &str)]| read(annotations).1.join("; ");
        assert_eq!(
            said(&[("weights", "zone=a:3")]),
            "kernlink.io/weights: has no effect: scheduler rr knows no weight but 0"
        );
        assert_eq!(said(&[("weights", "zone=a:0")]), "");
        assert_eq!(
            said(&[("scheduler-flags", "sh-port")]),
            "kernlink.io/scheduler-flags: has no effect: scheduler rr has no flags"
        );
        assert_eq!(
            said(&[("scheduler-flags", "mh-port"), ("scheduler", "sh")]),
            "kernlink.io/scheduler-flags: has no effect: mh-port is no flag of scheduler sh"
        );
        assert_eq!(
            said(&[("scheduler-flags", "sh-port,sh-fallback"), ("scheduler", "sh")]),
            ""
        );
        assert_eq!(
            said(&[("one-packet", "true")]),
            "kernlink.io/one-packet: has no effect: the Service has no UDP port"
        );
        assert_eq!(
            said(&[("affinity-mask", "24")]),
            "kernlink.io/affinity-mask: has no effect: the Service has no session affinity"
        );
        assert_eq!(
            said(&[("forwarding-method", "tunnel")]),
            "kernlink.io/forwarding-method: has no effect: the Service has no external or load-balancer IP"
        );
        assert_eq!(said(&[("forwarding-method", "masquerade")]), "");
    }

    #[test]
    fn a_service_may_ask_for_masquerading_where_the_default_is_another() {
        let defaults = Arc::new(Options {
            forwarding: Forwarding::Direct,
            ..Options::default()
        });
        let mut service = Service::new(ObjectName::new("shop", "web"));
        assert_eq!(
            options(&service, &defaults, |_| ()).forwarding,
            Forwarding::Direct
        );
        let annotation = "kernlink.io/forwarding-method".to_owned();
        service
            .annotations
            .insert(annotation.clone(), "masquerade".to_owned());
        let mut said = Vec::new();
        let read = options(&service, &defaults, |reason| said.push(reason));
        assert_eq!((read.forwarding, said.len()), (Forwarding::Masquerade, 0));
        service.annotations.insert(annotation, "nat".to_owned());
        assert_eq!(
            options(&service, &defaults, |_| ()).forwarding,
            Forwarding::Direct
        );
    }

    #[test]
    fn flags_of_the_default_scheduler_stay_with_it() {
        let defaults = Arc::new(Options {
            scheduler: Scheduler::SH,
            scheduler_flags: Some(SchedulerFlags::PORT),
            ..Options::default()
        });
        let mut service = Service::new(ObjectName::new("shop", "web"));
        assert_eq!(options(&service, &defaults, |_| ()), defaults);
        service
            .annotations
            .insert("kernlink.io/scheduler".to_owned(), "rr".to_owned());
        assert_eq!(options(&service, &defaults, |_| ()).scheduler_flags, None);
    }
}
