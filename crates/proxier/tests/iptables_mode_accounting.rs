//! iptables mode on the fake kernel: accounting objects, and kernels and tools without them.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;
#[path = "support/refusing_tables.rs"]
mod refusing_tables;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kernlink_iptables_restore::Fake;
use kernlink_netlink::{Errno, Error, Refusal};
use kernlink_proxier::iptables_mode::accounting::Accounting;
use kernlink_proxier::iptables_mode::{Kernel, Phase, Proxier, Synced};
use kernlink_services::{Family, Reason, ServiceType};

use crate::iptables_node::{deliver, kernel, proxier_on, saved, service, slice, sync};
use crate::refusing_tables::kernel_with;

/// Accounting objects, and the errors of reading and of creating them.
#[derive(Clone, Default)]
struct Objects {
    existing: Arc<Mutex<BTreeMap<Box<str>, u64>>>,
    unreadable: Option<Errno>,
    uncreatable: Option<Errno>,
}

impl Accounting for Objects {
    fn ensure(&mut self, name: &str) -> Result<(), Error> {
        if let Some(errno) = self.uncreatable {
            return Err(Error::Refused(Refusal::new(errno)));
        }
        self.existing.lock().unwrap().entry(name.into()).or_default();
        Ok(())
    }

    fn packets(&mut self, name: &str) -> Result<Option<u64>, Error> {
        match self.unreadable {
            Some(errno) => Err(Error::Refused(Refusal::new(errno))),
            None => Ok(self.existing.lock().unwrap().get(name).copied()),
        }
    }
}

/// A proxier with a Service that has a node port.
fn proxier(objects: &Objects, kernel: Kernel) -> Proxier {
    let accounting = Box::new(objects.clone());
    let mut proxier = proxier_on(Kernel { accounting, ..kernel });
    let mut service = service(1);
    service.service_type = ServiceType::NodePort;
    service.ports[0].node_port = 30080;
    deliver(&mut proxier, vec![service], vec![slice(1, &[1])]);
    proxier
}

/// The number of rules that name an accounting object.
fn counted(proxier: &mut Proxier) -> usize {
    let rules = Family::ALL.map(|family| saved(proxier, family).to_string());
    rules.concat().matches("-m nfacct").count()
}

/// The codes of the events.
fn codes(synced: &Synced) -> Vec<&'static str> {
    let codes = synced.events.iter().map(|event| match event.reason {
        Reason::DataPath { code, .. } => code,
        _ => panic!("{event}"),
    });
    codes.collect()
}

fn assert_settled(proxier: &mut Proxier) {
    proxier.resync();
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.is_empty(), "{plan}");
}

#[test]
fn objects_are_created_by_a_sync_and_not_by_a_plan() {
    let objects = Objects::default();
    let mut proxier = proxier(&objects, kernel());
    let plan = proxier.plan(Instant::now()).unwrap();
    assert_eq!(plan.phases()[1].kind, Phase::Accounting, "{plan}");
    assert!(
        plan.to_string()
            .contains("nfacct add ct_state_invalid_dropped_pkts"),
        "{plan}"
    );
    assert!(objects.existing.lock().unwrap().is_empty());
    sync(&mut proxier);
    let existing: Vec<Box<str>> = objects.existing.lock().unwrap().keys().cloned().collect();
    let expected = ["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"];
    assert_eq!(existing, expected.map(Box::from));
    // The rule for invalid packets in both families, and that of the node port.
    assert_eq!(counted(&mut proxier), 3);
    assert_settled(&mut proxier);
}

#[test]
fn an_object_that_another_program_deleted_is_created_again_with_its_number_at_zero() {
    let objects = Objects::default();
    let mut proxier = proxier(&objects, kernel());
    sync(&mut proxier);
    objects.existing.lock().unwrap().clear();
    proxier.resync();
    let synced = sync(&mut proxier);
    assert_eq!(synced.counts().done, 2, "{}", synced.plan);
    assert_eq!(objects.existing.lock().unwrap().len(), 2);
}

#[test]
fn without_such_objects_in_the_kernel_rules_have_no_counters_and_there_is_no_event() {
    for errno in [Errno::EINVAL, Errno::EOPNOTSUPP] {
        let objects = Objects {
            unreadable: Some(errno),
            ..Objects::default()
        };
        let mut proxier = proxier(&objects, kernel());
        let synced = sync(&mut proxier);
        assert_eq!(synced.events, []);
        assert_eq!(counted(&mut proxier), 0);
        assert_settled(&mut proxier);
    }
}

#[test]
fn if_objects_cannot_be_read_rules_have_no_counters_and_an_event_names_the_cause() {
    let objects = Objects {
        unreadable: Some(Errno::EPERM),
        ..Objects::default()
    };
    let mut proxier = proxier(&objects, kernel());
    let synced = sync(&mut proxier);
    assert_eq!(codes(&synced), ["AccountingUnavailable"]);
    let text = synced.events[0].to_string();
    assert!(
        text.contains("accounting objects (nfacct) cannot be read"),
        "{text}"
    );
    assert_eq!(counted(&mut proxier), 0);
    assert_settled(&mut proxier);
}

#[test]
fn rules_keep_their_counters_while_objects_cannot_be_read() {
    let objects = Objects::default();
    let mut proxier = proxier(&objects, kernel());
    sync(&mut proxier);
    let with_counters = counted(&mut proxier);
    assert_ne!(with_counters, 0);
    proxier.kernel_mut().accounting = Box::new(Objects {
        unreadable: Some(Errno::ENOBUFS),
        ..objects
    });
    proxier.resync();
    let synced = sync(&mut proxier);
    assert_eq!(synced.plan.to_string(), "");
    assert_eq!(codes(&synced), ["AccountingUnavailable"]);
    assert_eq!(counted(&mut proxier), with_counters);
}

#[test]
fn if_a_rule_with_an_object_is_refused_all_rules_are_written_without() {
    // A tool or a kernel without the match, and an object that cannot be created.
    for uncreatable in [None, Some(Errno::ENOMEM)] {
        let objects = Objects {
            uncreatable,
            ..Objects::default()
        };
        let (kernel, behaviour) = kernel_with(Fake::new());
        behaviour.lock().unwrap().refused = vec!["-m nfacct".to_owned()];
        let mut proxier = proxier(&objects, kernel);
        let now = Instant::now();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.counts().failed > 0, "{synced}");
        assert_eq!(synced.next, Some(now), "the next sync is due at once");
        let synced = proxier.sync(now).unwrap();
        assert_eq!(synced.counts().failed, 0, "{synced}");
        // The failures of the first sync are solved by that.
        let codes: BTreeSet<&str> = codes(&synced).into_iter().collect();
        assert_eq!(codes, ["AccountingUnavailable", "Solved"].into());
        assert_eq!(counted(&mut proxier), 0);
        let rules = saved(&mut proxier, Family::Ipv4).to_string();
        assert!(rules.contains("--dport 30080"), "{rules}");
        assert!(
            rules.contains("-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP"),
            "{rules}"
        );
        assert_settled(&mut proxier);
    }
}
