//! IPVS mode on a host that lacks a match or target of iptables: the rules of the family are written without it, and nothing opens meanwhile.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/lacking_tables.rs"]
mod lacking_tables;
#[path = "support/node.rs"]
mod node;

use std::time::Instant;

use kernlink_iptables_restore::{Fake, Iptables, Operation, Save, Table};
use kernlink_proxier::ipvs_mode::{Proxier, Synced};
use kernlink_services::Family;

use crate::lacking_tables::Lacking;
use crate::node::{
    bound, config, kernel, load_balancer, position, proxier, service, upsert, virtual_servers,
};

const PHYSDEV: (&str, &str) = ("physdev", "-m physdev");
const IPVS: (&str, &str) = ("ipvs", "-m ipvs");
const REJECT: (&str, &str) = ("REJECT", "-j REJECT");

/// A proxier on a host that lacks extensions, with a Service that needs all of them.
fn lacking(missing: &[(&'static str, &'static str)]) -> Proxier {
    let mut kernel = kernel();
    kernel.rules = Box::new(Lacking {
        tables: Fake::new(),
        missing: missing.to_vec(),
    });
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, load_balancer(&["198.18.0.0/15"]));
    let mut external = service("external", "10.96.0.2");
    external.external_ips = vec!["203.0.113.2".to_owned()];
    upsert(&mut proxier, external);
    proxier
}

fn rules(proxier: &mut Proxier) -> String {
    let mut text = String::new();
    for table in [Table::Nat, Table::Filter] {
        let saved = proxier.kernel_mut().rules.save(&Save::table(Family::Ipv4, table));
        text += &saved.unwrap().to_string();
    }
    text
}

fn events(synced: &Synced, text: &str) -> Vec<String> {
    let events = synced.events.iter().map(ToString::to_string);
    events.filter(|event| event.contains(text)).collect()
}

#[test]
fn rules_do_without_a_missing_extension_and_everything_is_served() {
    let all = [PHYSDEV, IPVS, REJECT];
    let cases = [&all[..1], &all[1..2], &all[2..], &all];
    for missing in cases {
        let mut proxier = lacking(missing);
        let now = Instant::now();
        let mut reported = Vec::new();
        // Each refusal names one. Until the rules are in place nothing is open, and the next attempt is at once.
        for _ in missing {
            let synced = proxier.sync(now).unwrap();
            assert!(!synced.is_success(), "{missing:?}");
            reported.extend(events(&synced, "IPv4 rules do without"));
            assert_eq!(synced.next, Some(now), "{missing:?}");
            assert_eq!(bound(proxier.kernel_mut()), [""; 0]);
            assert!(!virtual_servers(proxier.kernel_mut()).contains(&"-t 203.0.113.1:80".to_owned()));
        }
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success(), "{missing:?}: {synced}");
        reported.extend(events(&synced, "IPv4 rules do without"));
        assert_eq!(bound(proxier.kernel_mut()).len(), 4);
        for (name, option) in all {
            let is_missing = missing.contains(&(name, option));
            let of_extension = format!("the iptables extension {name},");
            let count = reported
                .iter()
                .filter(|event| event.contains(&of_extension))
                .count();
            assert_eq!(count, usize::from(is_missing), "{reported:?}");
            assert_ne!(rules(&mut proxier).contains(option), is_missing, "{missing:?}");
        }
        // No process of this node reaches the load balancer that does not admit it.
        let denied = if missing.contains(&IPVS) {
            "-s 203.0.113.1/32 -m conntrack --ctproto 6 --ctorigdst 203.0.113.1 --ctorigdstport 80 -j DROP"
        } else {
            "-s 203.0.113.1/32 -m ipvs --vproto 6 --vaddr 203.0.113.1 --vport 80 -j DROP"
        };
        assert!(rules(&mut proxier).contains(denied), "{}", rules(&mut proxier));
        assert!(
            position(&synced.plan, "-A KUBE-IPVS-OUT-FILTER -s 203.0.113.1")
                < position(&synced.plan, "ipvsadm -A -t 203.0.113.1:80")
        );
        // It is neither reported nor tried again.
        proxier.resync();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success() && synced.plan.is_empty(), "{}", synced.plan);
        assert_eq!(synced.events, [], "{missing:?}");
    }
}

#[test]
fn after_a_change_of_the_configuration_a_missing_extension_is_tried_again() {
    let mut proxier = lacking(&[PHYSDEV]);
    let now = Instant::now();
    proxier.sync(now).unwrap();
    assert!(proxier.sync(now).unwrap().is_success());
    // The module is loaded.
    let mut present = Fake::new();
    for table in [Table::Nat, Table::Filter] {
        let saved = proxier
            .kernel_mut()
            .rules
            .save(&Save::table(Family::Ipv4, table))
            .unwrap();
        let outcome = present.execute(&[Operation::from(saved.to_restore(Family::Ipv4))]);
        outcome.into_iter().for_each(Result::unwrap);
    }
    proxier.kernel_mut().rules = Box::new(present);
    let mut changed = config();
    changed.masquerade_all = true;
    proxier.set_config(&changed).unwrap();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(events(&synced, "solved").len(), 1, "{:?}", synced.events);
    assert!(rules(&mut proxier).contains(PHYSDEV.1));
}
