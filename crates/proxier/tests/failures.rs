//! Failures that persist are reported once, and once more when they are solved; sysctls that cannot be written stop only what would not
//! work without them.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/node.rs"]
mod node;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{ChainName, Edit, Error as RulesError, Refused, RefusedKind, Rule, Table};
use kernlink_netlink::Errno;
use kernlink_proxier::ipvs_mode::error::{SysctlError, SysctlErrorCause};
use kernlink_proxier::ipvs_mode::kernel::Sysctls;
use kernlink_proxier::ipvs_mode::{Proxier, Synced, Sysctl};
use kernlink_services::Family;

use crate::faulty::Faults;
use crate::node::{
    ONE, bound, config, delete, endpoints, ipv4_config, kernel, key, proxier, real_servers, service, upsert,
    virtual_servers, with_services,
};

fn texts(synced: &Synced) -> Vec<String> {
    synced.events.iter().map(ToString::to_string).collect()
}

#[test]
fn many_operations_that_fail_for_one_reason_are_one_event_and_one_when_it_is_solved() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-A -t 10.96.0");
    let mut proxier = proxier(ipv4_config(), kernel);
    for last in 1..=100 {
        upsert(
            &mut proxier,
            service(&format!("s{last}"), &format!("10.96.0.{last}")),
        );
    }
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.counts().failed, 100);
    assert_eq!(
        texts(&synced),
        [
            "Service ns/s1: ipvsadm -A -t 10.96.0.1:80 -s rr failed: cannot -A -t 10.96.0.1:80 -s rr: refused by the test; 99 more \
             operations, also of other Services, failed for the same reason; it is tried again"
        ]
    );
    // Each of them is retried at its own time, and one more Service fails for the same reason.
    upsert(&mut proxier, service("more", "10.96.0.200"));
    let mut at = now;
    let mut failed = 0;
    for _ in 0..150 {
        let synced = proxier.sync(at).unwrap();
        failed += synced.counts().failed;
        assert_eq!(synced.events, []);
        at = synced.next.unwrap();
    }
    assert!(failed >= 150, "{failed}");
    faults.end();
    let mut solved = Vec::new();
    while proxier.waiting().next().is_some() {
        let synced = proxier.sync(at).unwrap();
        solved.extend(texts(&synced));
        at = synced.next.unwrap_or(at);
    }
    assert_eq!(solved.len(), 1, "{solved:?}");
    assert!(
        solved[0].starts_with(
            "Service ns/s1: solved, or no longer needed: ipvsadm -A -t 10.96.0.1:80 -s rr failed"
        ),
        "{solved:?}"
    );
}

#[test]
fn a_failure_of_one_service_is_an_event_about_it_and_ends_with_the_service() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    faults.refuse("-a -t 10.96.0.1:80");
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1, 2]);
    let now = Instant::now();
    let reported = texts(&proxier.sync(now).unwrap());
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].starts_with("Service ns/web: ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080"),
        "{reported:?}"
    );
    delete(&mut proxier, "web");
    let solved = texts(&proxier.sync(now).unwrap());
    assert_eq!(solved.len(), 1, "{solved:?}");
    assert!(
        solved[0].starts_with("Service ns/web: solved, or no longer needed"),
        "{solved:?}"
    );
}

/// Sysctls of a read-only file system, until it is writable. Those without a value do not exist.
#[derive(Clone, Default)]
struct ReadOnly(Arc<Mutex<(bool, BTreeMap<String, String>)>>);

impl ReadOnly {
    /// The values that IPVS mode needs, except these.
    fn except(names: &[(&str, Option<&str>)]) -> Self {
        let mut values: BTreeMap<String, String> = kernlink_proxier::ipvs_mode::sysctls::sysctls(
            &config(),
            kernlink_proxier::ipvs_mode::KernelRelease::new(6, 1),
            1,
        )
        .into_iter()
        .map(|sysctl| (sysctl.name.to_string(), sysctl.value.to_string()))
        .collect();
        values.insert("kernel.osrelease".to_owned(), "6.1.0".to_owned());
        for (name, value) in names {
            match value {
                Some(value) => values.insert((*name).to_owned(), (*value).to_owned()),
                None => values.remove(*name),
            };
        }
        Self(Arc::new(Mutex::new((false, values))))
    }

    fn make_writable(&self) {
        self.0.lock().unwrap().0 = true;
    }
}

impl Sysctls for ReadOnly {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        let mut state = self.0.lock().unwrap();
        let write = |sysctl: &Sysctl| {
            let errno = match (state.0, state.1.contains_key(&*sysctl.name)) {
                (true, _) => {
                    state.1.insert(sysctl.name.to_string(), sysctl.value.to_string());
                    return Ok(());
                }
                (false, true) => Errno(30),
                (false, false) => Errno::ENOENT,
            };
            Err(SysctlError {
                verb: "write",
                name: sysctl.name.clone(),
                cause: SysctlErrorCause::File(errno),
            })
        };
        sysctls.iter().map(write).collect()
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        Ok(self.0.lock().unwrap().1.get(name).cloned())
    }
}

fn with_sysctls(sysctls: &ReadOnly, mut kernel: kernlink_proxier::ipvs_mode::Kernel) -> Proxier {
    kernel.sysctls = Box::new(sysctls.clone());
    proxier(config(), kernel)
}

#[test]
fn sysctls_that_cannot_be_written_and_have_their_values_are_no_failure() {
    let mut proxier = with_sysctls(&ReadOnly::except(&[]), kernel());
    upsert(&mut proxier, service("web", "10.96.0.1"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success() && synced.events.is_empty(), "{synced}");
    assert_eq!(bound(proxier.kernel_mut()).len(), 1);
}

#[test]
fn a_sysctl_that_makes_something_worse_is_reported_once_and_everything_is_served() {
    for (name, value, error) in [
        ("net.ipv4.vs.expire_nodest_conn", Some("0"), "EROFS"),
        ("net.ipv4.vs.expire_quiescent_template", None, "ENOENT"),
    ] {
        let mut proxier = with_sysctls(&ReadOnly::except(&[(name, value)]), kernel());
        upsert(&mut proxier, service("web", "10.96.0.1"));
        let synced = proxier.sync(Instant::now()).unwrap();
        let texts = texts(&synced);
        assert_eq!(
            (texts.len(), synced.counts().failed, synced.counts().skipped),
            (1, 1, 0),
            "{synced}"
        );
        assert!(texts[0].contains(name) && texts[0].contains(error), "{texts:?}");
        assert_eq!(bound(proxier.kernel_mut()).len(), 1);
        let again = proxier.sync(synced.next.unwrap()).unwrap();
        assert_eq!((again.events.len(), again.counts().failed), (0, 1));
    }
}

#[test]
fn a_sysctl_without_which_traffic_does_not_work_delays_new_frontends_and_not_endpoints() {
    for (name, value, waits) in [
        ("net.ipv4.vs.conntrack", Some("0"), [true, true]),
        ("net.ipv4.vs.conntrack", None, [true, true]),
        ("net.ipv4.ip_forward", Some("0"), [true, false]),
    ] {
        // A Service that an earlier process programmed.
        let mut before = proxier(config(), kernel());
        upsert(&mut before, service("old", "10.96.0.1"));
        endpoints(&mut before, "old", &[1]);
        assert!(before.sync(Instant::now()).unwrap().is_success());
        let sysctls = ReadOnly::except(&[(name, value)]);
        let mut proxier = with_sysctls(&sysctls, before.into_kernel());
        upsert(&mut proxier, service("old", "10.96.0.1"));
        endpoints(&mut proxier, "old", &[1, 2]);
        upsert(&mut proxier, service("four", "10.96.0.2"));
        upsert(&mut proxier, service("six", "fd00::2"));
        let now = Instant::now();
        let synced = proxier.sync(now).unwrap();
        let texts = texts(&synced);
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(
            texts[0].contains(name) && texts[0].contains("frontends are not served"),
            "{texts:?}"
        );
        assert_eq!(real_servers(proxier.kernel_mut(), &key("10.96.0.1", 80)).len(), 2);
        for (family, server, address) in [
            (Family::Ipv4, "-t 10.96.0.2:80", "10.96.0.2/32"),
            (Family::Ipv6, "-t [fd00::2]:80", "fd00::2/128"),
        ] {
            let waits = waits[family.index()];
            let servers = virtual_servers(proxier.kernel_mut());
            assert_eq!(
                servers.contains(&server.to_owned()),
                !waits,
                "{name}: {servers:?}"
            );
            assert_eq!(
                bound(proxier.kernel_mut()).contains(&address.to_owned()),
                !waits,
                "{name}"
            );
        }
        // Later Services wait too, and nothing is reported again.
        upsert(&mut proxier, service("later", "10.96.0.3"));
        let again = proxier.sync(synced.next.unwrap()).unwrap();
        assert_eq!(again.events, [], "{again}");
        assert!(!bound(proxier.kernel_mut()).contains(&"10.96.0.3/32".to_owned()));
        sysctls.make_writable();
        let solved = proxier.sync(now + Duration::from_secs(600)).unwrap();
        assert!(solved.is_success(), "{solved}");
        assert_eq!(self::texts(&solved).len(), 1);
        assert_eq!(bound(proxier.kernel_mut()).len(), 4);
    }
}

#[test]
fn the_event_about_a_refused_restore_names_the_refused_rule() {
    let rule = Rule::new().jump(ChainName::new("KUBE-MARK-MASQ").unwrap());
    let edit = Edit::append(ChainName::new("KUBE-SERVICES").unwrap(), rule);
    let error = RulesError::Refused {
        tool: "iptables-restore".into(),
        refused: Box::new(Refused::Edit {
            table: Table::Nat,
            edit,
        }),
        kind: RefusedKind::Other,
        text: "line 3 failed".into(),
        status: Some(1),
        applied: Vec::new(),
    };
    let mut tables = kernlink_iptables_restore::Fake::new();
    tables.fail_next(error);
    let mut kernel = kernel();
    kernel.rules = Box::new(tables);
    let synced = with_services(kernel, &[ONE]).sync(Instant::now()).unwrap();
    let texts = texts(&synced);
    let expected = "host: iptables-restore --noflush --counters failed: iptables-restore refused \
                    \"-A KUBE-SERVICES -j KUBE-MARK-MASQ\" in table nat: line 3 failed";
    assert!(texts.iter().any(|text| text.starts_with(expected)), "{texts:?}");
}
