//! The options of IPVS mode. A Service sets them by annotations with the prefix `kernlink.io/`, the configuration sets them for all
//! Services; an annotation takes precedence.
//!
//! | annotation | value |
//! |---|---|
//! | `scheduler` | a scheduler of the kernel: `rr`, `wrr`, `lc`, `sh`, `mh`, …, see [`Config::service_schedulers`](super::Config::service_schedulers) |
//! | `scheduler-flags` | flags of `ipvsadm -b`, separated by commas: `sh-fallback,sh-port` |
//! | `one-packet` | `true`: schedule every UDP packet separately |
//! | `forwarding-method` | `masquerade`; `direct` or `tunnel` for external and load-balancer IPs, see [`Forwarding`] |

use std::sync::Arc;
use std::time::Duration;

use kernlink_ipvs::{Scheduler, SchedulerFlags};
use kernlink_services::escape::{MAX_TEXT, excerpt, excerpt_of};
use kernlink_services::model::options::{ANNOTATION_PREFIX as PREFIX, annotation_field};
use kernlink_services::{Config, Options, Protocol, Reason, Service, ServiceType};

use super::drain::refuses_at_weight_0;
use super::forwarding::Forwarding;
use super::schedulers::Schedulers;

/// The options of a Service in IPVS mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsOptions {
    /// How connections are distributed over the endpoints. Default: `rr`.
    pub scheduler: Scheduler,
    /// The flags of the scheduler. `None`: `mh` also hashes the source port (`mh-port`), as in kube-proxy; all others have no flag.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// Whether every UDP packet is scheduled separately. Default: false.
    pub one_packet: bool,
    /// How packets to external and load-balancer IPs are forwarded; packets to other frontends are masqueraded. Default: masquerading.
    pub forwarding: Forwarding,
}

impl Default for IpvsOptions {
    /// kube-proxy's values.
    fn default() -> Self {
        Self {
            scheduler: Scheduler::RR,
            scheduler_flags: None,
            one_packet: false,
            forwarding: Forwarding::Masquerade,
        }
    }
}

impl IpvsOptions {
    /// The options with `rr` in place of an unknown scheduler.
    pub(crate) fn usable(&self) -> Self {
        let mut usable = self.clone();
        if known_scheduler(self.scheduler.as_str()).is_err() {
            usable.scheduler = Scheduler::RR;
            usable.scheduler_flags = None;
        }
        usable
    }
}

/// The defaults, changed by the annotations of a Service. An annotation that is invalid or not permitted is ignored; [`events`] reports it.
pub(crate) fn options(
    annotations: &Options,
    defaults: &Arc<IpvsOptions>,
    schedulers: &Schedulers,
) -> Arc<IpvsOptions> {
    if annotations.data_path.is_empty() {
        return Arc::clone(defaults);
    }
    Arc::new(read(annotations, defaults, schedulers, |_| ()).0)
}

/// The defaults, changed by annotations, and which annotations were given.
fn read(
    annotations: &Options,
    defaults: &IpvsOptions,
    schedulers: &Schedulers,
    mut report: impl FnMut(Reason),
) -> (IpvsOptions, Given) {
    let mut options = defaults.clone();
    let mut given = Given::default();
    for (name, value) in &annotations.data_path {
        if let Err(problem) = take(&mut options, &mut given, name, value) {
            let problem = format!("{}; ignored", excerpt_of(&problem, 3 * MAX_TEXT));
            report(Reason::invalid(annotation_field(name), value, &problem));
        }
    }
    if given.scheduler
        && let Some(refusal) = schedulers.refusal(options.scheduler)
    {
        report(refusal);
        options.scheduler = defaults.scheduler;
        given.scheduler = false;
    }
    // The flags of the default scheduler have another meaning for this one.
    if given.scheduler && !given.flags {
        options.scheduler_flags = None;
    }
    (options, given)
}

/// Events about the annotations of a Service. Those that `config` does not permit are not in `annotations`.
pub(crate) fn events(
    service: &Service,
    annotations: &Options,
    defaults: &IpvsOptions,
    schedulers: &Schedulers,
    config: &Config,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let (options, given) = read(annotations, defaults, schedulers, |reason| reasons.push(reason));
    let is_given = |name: &str| {
        service.annotations.contains_key(&format!("{PREFIX}{name}"))
            && config.annotations.permits(&service.name.namespace, name)
    };
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
            reasons.push(without_effect(
                "scheduler-flags",
                format!("scheduler {scheduler} has no flags"),
            ));
        } else if let Some(word) = given.foreign_flag(scheduler) {
            reasons.push(without_effect(
                "scheduler-flags",
                format!("{word} is not a flag of scheduler {scheduler}"),
            ));
        }
    }
    let has_limit = is_given("drain-timeout") && annotations.drain_timeout != Some(Duration::ZERO);
    let flags = options.scheduler_flags.unwrap_or_default();
    if has_limit && !service.ports.iter().any(|port| port.protocol == Protocol::Tcp) {
        reasons.push(without_effect(
            "drain-timeout",
            "the Service has no TCP port".to_owned(),
        ));
    } else if has_limit && refuses_at_weight_0(scheduler, flags) {
        reasons.push(without_effect(
            "drain-timeout",
            format!(
                "scheduler {scheduler} refuses connections while a real server drains, so removed endpoints are deleted at once"
            ),
        ));
    }
    if is_given("weights")
        && annotations.weights.has_weight_above_one()
        && IGNORE_WEIGHTS.contains(&scheduler)
    {
        reasons.push(without_effect(
            "weights",
            format!("scheduler {scheduler} ignores weights other than 0"),
        ));
    }
    if given.one_packet && options.one_packet {
        if service.ports.iter().any(|port| port.protocol == Protocol::Udp) {
            let replies = if options.forwarding.keeps_addresses() {
                "replies to masqueraded packets"
            } else {
                "replies"
            };
            let consequence = format!(
                "the source address of {replies} stays that of the pod; use it only for traffic without replies"
            );
            reasons.push(caveat("one-packet", consequence));
        } else {
            reasons.push(without_effect(
                "one-packet",
                "the Service has no UDP port".to_owned(),
            ));
        }
    }
    if given.forwarding && options.forwarding.keeps_addresses() {
        let has_external_ips = !service.external_ips.is_empty() && !config.ignore_external_ips;
        if !has_external_ips && service.service_type != ServiceType::LoadBalancer {
            reasons.push(without_effect(
                "forwarding-method",
                "the Service has no external or load-balancer IP".to_owned(),
            ));
        } else {
            reasons.push(caveat("forwarding-method", ENDPOINTS_MUST.to_owned()));
        }
    }
    reasons
}

/// What endpoints need where packets are not masqueraded.
const ENDPOINTS_MUST: &str = "every endpoint must have the virtual IPs on one of its own links, and its replies must not pass a node \
                              that serves these IPs";

/// Schedulers that treat all weights but 0 alike.
const IGNORE_WEIGHTS: [Scheduler; 3] = [Scheduler::RR, Scheduler::LC, Scheduler::DH];

/// The annotations that a Service has.
#[derive(Default)]
struct Given {
    scheduler: bool,
    flags: bool,
    /// The flags as given.
    flag_words: Vec<&'static str>,
    one_packet: bool,
    forwarding: bool,
}

impl Given {
    /// The first flag with the name of another scheduler.
    fn foreign_flag(&self, scheduler: Scheduler) -> Option<&'static str> {
        let foreign =
            |word: &&&'static str| !word.starts_with("flag-") && !word.starts_with(scheduler.as_str());
        self.flag_words.iter().find(foreign).copied()
    }
}

fn take(options: &mut IpvsOptions, given: &mut Given, name: &str, value: &str) -> Result<(), String> {
    match name {
        "scheduler" => {
            options.scheduler = known_scheduler(value)?;
            given.scheduler = true;
        }
        "scheduler-flags" => {
            options.scheduler_flags = Some(scheduler_flags(value, &mut given.flag_words)?);
            given.flags = true;
        }
        "one-packet" => {
            options.one_packet = match value {
                "true" => true,
                "false" => false,
                _ => return Err("must be \"true\" or \"false\"".to_owned()),
            };
            given.one_packet = true;
        }
        "forwarding-method" => {
            options.forwarding = value.parse().map_err(|error| format!("{error}"))?;
            given.forwarding = true;
        }
        // An annotation of another data path.
        _ => {}
    }
    Ok(())
}

/// The scheduler with a name. The kernel would refuse every virtual server with an unknown one.
pub(crate) fn known_scheduler(name: &str) -> Result<Scheduler, String> {
    let mut known = Scheduler::KNOWN.iter().copied();
    known.find(|scheduler| scheduler.as_str() == name).ok_or_else(|| {
        let names: Vec<String> = Scheduler::KNOWN.iter().map(ToString::to_string).collect();
        format!("unknown scheduler; known: {}", names.join(", "))
    })
}

/// The flags of `ipvsadm -b`.
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
            let known: Vec<&str> = FLAG_WORDS.iter().map(|(known, _)| *known).collect();
            let word = excerpt(word);
            return Err(format!("unknown flag {word:?}; known: {}", known.join(", ")));
        };
        words.push(known);
        flags |= *flag;
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use kernlink_services::{ObjectName, Port};

    use super::*;

    fn annotations(annotations: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        for (name, value) in annotations {
            options.data_path.insert((*name).into(), (*value).into());
        }
        options
    }

    fn web() -> Service {
        Service::new(ObjectName::new("shop", "web")).with_port(Port::new("http", 80))
    }

    fn all_events(service: &Service, annotations: &Options) -> Vec<Reason> {
        let (defaults, schedulers) = (IpvsOptions::default(), Schedulers::default());
        events(service, annotations, &defaults, &schedulers, &Config::new("n"))
    }

    fn reported(given: &[(&str, &str)]) -> Vec<String> {
        let events = all_events(&web(), &annotations(given));
        events.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_annotations_are_reported_and_ignored() {
        for (name, value, problem) in [
            (
                "scheduler-flags",
                "sh-port,x",
                "unknown flag \"x\"; known: flag-1, flag-2, flag-3, sh-fallback, sh-port, mh-fallback, mh-port",
            ),
            ("one-packet", "yes", "must be \"true\" or \"false\""),
            (
                "forwarding-method",
                "nat",
                "unknown forwarding method; known: masquerade, direct, tunnel",
            ),
        ] {
            let field = format!("metadata.annotations[kernlink.io/{name}]");
            assert_eq!(
                reported(&[(name, value)]),
                [format!("{field}: invalid value {value:?}: {problem}; ignored")]
            );
            let defaults = Arc::new(IpvsOptions::default());
            let given = annotations(&[(name, value)]);
            assert_eq!(options(&given, &defaults, &Schedulers::default()), defaults);
        }
        for name in ["zz", "none", "RR", "a-name-that-is-too-long", "", "r\nr"] {
            assert_eq!(
                reported(&[("scheduler", name)]),
                [format!(
                    "metadata.annotations[kernlink.io/scheduler]: invalid value {name:?}: unknown scheduler; known: dh, fo, lblc, lblcr, lc, \
                     mh, nq, ovf, rr, sed, sh, twos, wlc, wrr; ignored"
                )]
            );
        }
    }

    #[test]
    fn an_event_about_an_annotation_has_only_the_beginning_of_a_long_value() {
        let long = "x".repeat(200_000);
        for name in ["scheduler", "scheduler-flags", "one-packet", "forwarding-method"] {
            let reported = reported(&[(name, &long)]);
            assert!(reported.len() == 1 && reported[0].len() < 6 * MAX_TEXT, "{name}");
        }
    }

    #[test]
    fn options_without_effect_are_reported() {
        let reported = |given: &[(&str, &str)]| reported(given).join("; ");
        assert_eq!(
            reported(&[("scheduler-flags", "sh-port")]),
            "kernlink.io/scheduler-flags has no effect: scheduler rr has no flags"
        );
        assert_eq!(
            reported(&[("scheduler-flags", "mh-port"), ("scheduler", "sh")]),
            "kernlink.io/scheduler-flags has no effect: mh-port is not a flag of scheduler sh"
        );
        assert_eq!(
            reported(&[("scheduler-flags", "sh-port,sh-fallback"), ("scheduler", "sh")]),
            ""
        );
        assert_eq!(
            reported(&[("one-packet", "true")]),
            "kernlink.io/one-packet has no effect: the Service has no UDP port"
        );
        assert_eq!(
            reported(&[("forwarding-method", "tunnel")]),
            "kernlink.io/forwarding-method has no effect: the Service has no external or load-balancer IP"
        );
        assert_eq!(reported(&[("forwarding-method", "masquerade")]), "");
    }

    #[test]
    fn a_drain_timeout_has_no_effect_where_real_servers_are_deleted_at_once() {
        let reported = |given: &[(&str, &str)], port: Port, timeout: u64| {
            let mut service = Service::new(ObjectName::new("shop", "web")).with_port(port);
            let text = format!("{timeout}s");
            service.annotations.insert(format!("{PREFIX}drain-timeout"), text);
            let mut options = annotations(given);
            options.drain_timeout = Some(Duration::from_secs(timeout));
            let reasons = all_events(&service, &options);
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut udp = Port::new("dns", 53);
        udp.protocol = Protocol::Udp;
        let web = || Port::new("http", 80);
        assert_eq!(
            reported(&[], udp, 30),
            ["kernlink.io/drain-timeout has no effect: the Service has no TCP port"]
        );
        assert_eq!(
            reported(&[("scheduler", "mh")], web(), 30),
            [
                "kernlink.io/drain-timeout has no effect: scheduler mh refuses connections while a real server drains, so removed endpoints \
              are deleted at once"
            ]
        );
        let with_fallback = [("scheduler", "mh"), ("scheduler-flags", "mh-fallback")];
        assert_eq!(reported(&with_fallback, web(), 30), [""; 0]);
        assert_eq!(reported(&[("scheduler", "sh")], web(), 0), [""; 0]);
        assert_eq!(reported(&[], web(), 30), [""; 0]);
    }

    #[test]
    fn weights_have_no_effect_on_a_scheduler_that_ignores_them() {
        let mut service = web();
        service
            .annotations
            .insert(format!("{PREFIX}weights"), "zone=a:3".to_owned());
        let mut options = Options::default();
        options.weights.zones.insert("a".into(), 3);
        let reasons = all_events(&service, &options);
        assert_eq!(
            reasons.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["kernlink.io/weights has no effect: scheduler rr ignores weights other than 0"]
        );
    }

    #[test]
    fn a_service_can_request_masquerading_where_the_default_is_another_method() {
        let defaults = Arc::new(IpvsOptions {
            forwarding: Forwarding::Direct,
            ..IpvsOptions::default()
        });
        let read = |given: &[(&str, &str)]| {
            options(&annotations(given), &defaults, &Schedulers::default()).forwarding
        };
        assert_eq!(read(&[]), Forwarding::Direct);
        assert_eq!(
            read(&[("forwarding-method", "masquerade")]),
            Forwarding::Masquerade
        );
        assert_eq!(read(&[("forwarding-method", "nat")]), Forwarding::Direct);
    }

    #[test]
    fn the_default_flags_apply_to_the_default_scheduler_only() {
        let defaults = Arc::new(IpvsOptions {
            scheduler: Scheduler::SH,
            scheduler_flags: Some(SchedulerFlags::PORT),
            ..IpvsOptions::default()
        });
        let schedulers = Schedulers::default();
        assert_eq!(options(&Options::default(), &defaults, &schedulers), defaults);
        let given = annotations(&[("scheduler", "rr")]);
        assert_eq!(options(&given, &defaults, &schedulers).scheduler_flags, None);
    }
}
