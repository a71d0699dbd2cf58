//! iptables mode on a host that lacks a match or target of iptables: what can do without it does, and only what needs it is refused.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;
#[path = "support/lacking_tables.rs"]
mod lacking_tables;

use std::time::{Duration, Instant};

use kernlink_iptables_restore::{Fake, Operation};
use kernlink_proxier::iptables_mode::{Proxier, Synced};
use kernlink_services::Family;

use crate::iptables_node::{change_endpoints, config, deliver, kernel, proxier_on, saved, service, slice};
use crate::lacking_tables::Lacking;

const REJECT: (&str, &str) = ("REJECT", "-j REJECT");

/// A proxier on a host that lacks an extension, with a Service without endpoints, one with one endpoint and one with two.
fn lacking(missing: (&'static str, &'static str)) -> Proxier {
    let mut kernel = kernel();
    kernel.rules = Box::new(Lacking {
        tables: Fake::new(),
        missing: vec![missing],
    });
    let mut proxier = proxier_on(kernel);
    let slices = vec![slice(1, &[1]), slice(2, &[1, 2])];
    deliver(&mut proxier, (0..3).map(service).collect(), slices);
    proxier
}

fn rules(proxier: &mut Proxier) -> String {
    saved(proxier, Family::Ipv4).to_string()
}

fn events(synced: &Synced, text: &str) -> Vec<String> {
    let events = synced.events.iter().map(ToString::to_string);
    events.filter(|event| event.contains(text)).collect()
}

const WITHOUT: &str = "IPv4 rules do without the iptables extension REJECT,";

#[test]
fn without_reject_clients_of_services_without_endpoints_are_dropped() {
    let mut proxier = lacking(REJECT);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(synced.next, Some(now), "the next attempt is at once");
    let text = rules(&mut proxier);
    for address in ["10.96.0.1/32", "10.96.0.2/32"] {
        assert!(text.contains(&format!("-d {address} -p tcp")), "{text}");
    }
    let mut reported = events(&synced, WITHOUT);
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    reported.extend(events(&synced, WITHOUT));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("modprobe ipt_REJECT"), "{reported:?}");
    let text = rules(&mut proxier);
    let dropped = "-A KUBE-SERVICES -d 10.96.0.0/32 -p tcp -m comment --comment \"ns/s0:web has no endpoints\" -m tcp --dport 80 -j DROP";
    assert!(text.contains(dropped), "{text}");
    // A Service that loses its endpoints later.
    change_endpoints(&mut proxier, 1, &[]);
    assert!(proxier.sync(now).unwrap().is_success());
    assert!(rules(&mut proxier).contains("ns/s1:web has no endpoints\" -m tcp --dport 80 -j DROP"));
    // It is neither reported nor tried again.
    proxier.resync();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(synced.events, []);
    assert_eq!(synced.next, None);
}

#[test]
fn after_a_change_of_the_configuration_reject_is_tried_again() {
    let mut proxier = lacking(REJECT);
    let now = Instant::now();
    proxier.sync(now).unwrap();
    assert!(proxier.sync(now).unwrap().is_success());
    // The module is loaded.
    let mut present = Fake::new();
    for family in Family::ALL {
        let restore = saved(&mut proxier, family).to_restore(family);
        assert_eq!(
            kernlink_iptables_restore::Iptables::execute(&mut present, &[Operation::from(restore)]),
            [Ok(())]
        );
    }
    proxier.kernel_mut().rules = Box::new(present);
    let mut changed = config();
    changed.masquerade_all = true;
    proxier.set_config(&changed).unwrap();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    let solved = events(&synced, "solved");
    assert!(
        solved.len() == 1 && solved[0].contains(WITHOUT),
        "{:?}",
        synced.events
    );
    let text = rules(&mut proxier);
    assert!(
        text.contains("has no endpoints\" -m tcp --dport 80 -j REJECT"),
        "{text}"
    );
    assert!(
        !text.contains("has no endpoints\" -m tcp --dport 80 -j DROP"),
        "{text}"
    );
}

#[test]
fn services_that_need_a_missing_extension_are_refused_and_others_are_served() {
    let mut proxier = lacking(("statistic", "-m statistic"));
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    let failed = events(&synced, "Extension statistic");
    assert_eq!(failed.len(), 1, "{:?}", synced.events);
    assert!(failed[0].contains("ns/s2"), "{failed:?}");
    let text = rules(&mut proxier);
    assert!(
        text.contains("ns/s0:web has no endpoints\" -m tcp --dport 80 -j REJECT"),
        "{text}"
    );
    assert!(text.contains("--to-destination 10.244.1.1:8080"), "{text}");
    assert!(!text.contains("-d 10.96.0.2/32"), "{text}");
    // With one endpoint it needs none.
    change_endpoints(&mut proxier, 2, &[1]);
    let synced = proxier.sync(now + Duration::from_secs(1)).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert!(rules(&mut proxier).contains("-d 10.96.0.2/32"));
}

#[test]
fn without_a_match_of_the_fixed_chains_nothing_is_written_and_an_event_of_each_family_names_it() {
    let mut proxier = lacking(("conntrack", "-m conntrack"));
    let before = rules(&mut proxier);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.counts().failed > 0, "{synced}");
    assert_eq!(rules(&mut proxier), before);
    let reported = events(&synced, "Extension conntrack");
    assert_eq!(reported.len(), Family::ALL.len(), "{:?}", synced.events);
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(events(&synced, "conntrack").is_empty(), "{:?}", synced.events);
    assert_eq!(rules(&mut proxier), before);
}
