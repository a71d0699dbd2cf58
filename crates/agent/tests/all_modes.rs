//! Either mode by configuration, on the fake kernel: the same plans as those of the mode's own proxier, and changes of the mode.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "../../proxier/tests/support/faulty.rs"]
mod faulty;
#[path = "../../proxier/tests/support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use kernlink_agent::all_modes::{Active, AllModes, Config, Kernel, Key, Mode, Proxier, Totals};
use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_proxier::ipvs_mode::KernelRelease;
use kernlink_proxier::kubernetes::kube_proxy_config::read;
use kernlink_proxier::metrics::Metrics;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::schedule::Intervals;
use kernlink_proxier::{Backoff, DataPath, Runner, Schedule, iptables_mode, ipvs_mode};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    SourceId,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::faulty::Faults;
use crate::support::clusters::{Step, apply, step};

const SOURCE: SourceId = SourceId(0);

fn links() -> Box<kernlink_dummylink::Fake> {
    let eth0 = LinkName::new("eth0").unwrap();
    let addresses =
        ["192.0.2.1", "2001:db8::1"].map(|text| LinkAddress::host(text.parse().unwrap()).unwrap());
    Box::new(kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses))
}

fn ipvs_kernel() -> ipvs_mode::Kernel {
    let mut kernel = ipvs_mode::Kernel::fake();
    kernel.links = links();
    kernel
}

fn iptables_kernel() -> iptables_mode::Kernel {
    let mut kernel = iptables_mode::Kernel::fake();
    kernel.links = links();
    kernel
}

fn kernel() -> Kernel {
    Kernel::new()
        .with_ipvs(ipvs_kernel())
        .with_iptables(iptables_kernel())
}

/// The configuration of `node-a`, without limits of tracked connections.
fn config(mode: Mode) -> Config {
    let mut config = Config::new(mode, "node-a");
    match &mut config {
        Config::Ipvs(config) => config.conntrack.max_per_core = 0,
        Config::Iptables(config) => config.conntrack.max_per_core = 0,
        Config::Userspace(_) => unreachable!("no test of this file is about userspace mode"),
    }
    config
}

/// The modes of these tests.
const MODES: [Mode; 2] = [Mode::Iptables, Mode::Ipvs];

fn other(mode: Mode) -> Mode {
    if mode == Mode::Ipvs {
        Mode::Iptables
    } else {
        Mode::Ipvs
    }
}

/// The lines of the desired state. Rules of several ports of a Service may be in any order.
fn sorted_listings(proxier: &Proxier) -> Vec<String> {
    let listings = proxier.state().listings(KernelRelease::new(6, 1), 1).unwrap();
    let mut lines = Vec::new();
    for (file, text) in listings.files() {
        lines.extend(text.lines().map(|line| format!("{file}: {line}")));
    }
    lines.sort();
    lines
}

/// Two proxiers of one mode get the same changes. For a while, operations that contain a text are refused, or their replies are lost.
fn assert_same_syncs<M: DataPath>(
    mut own: kernlink_proxier::Proxier<M>,
    mut any: Proxier,
    faults: &[Faults],
    refused: (&str, bool),
    changes: &[Vec<Step>],
) {
    let backoff = Backoff {
        initial: Duration::from_secs(10),
        max: Duration::from_secs(10),
    };
    own.set_backoff(backoff);
    any.set_backoff(backoff);
    let start = Instant::now();
    for (round, steps) in (0..).zip(changes) {
        for faults in faults {
            match (round, refused) {
                (0, (command, true)) => faults.refuse(command),
                (0, (command, false)) => faults.lose_reply(command),
                _ => {}
            }
            if round == 2 {
                faults.end();
            }
        }
        apply(&mut own, steps);
        apply(&mut any, steps);
        // In the second round no retry is due, in the third one all are.
        let now = start + Duration::from_secs([0, 1, 30, 31][round.min(3)]);
        let of_own = own.sync(now).unwrap();
        let of_any = any.sync(now).unwrap();
        assert_eq!(of_own.plan.to_string(), of_any.plan.to_string());
        assert_eq!(of_own.to_string(), of_any.to_string());
        assert_eq!(of_own.waiting, of_any.waiting);
        assert_eq!(of_own.events, of_any.events);
        assert_eq!(of_own.draining, of_any.draining);
        assert_eq!(own.cost(), any.cost());
        let waiting = |keys: Vec<String>| {
            let mut keys = keys;
            keys.sort();
            keys
        };
        assert_eq!(
            waiting(own.waiting().map(ToString::to_string).collect()),
            waiting(any.waiting().map(ToString::to_string).collect())
        );
    }
    own.resync();
    any.resync();
    let now = start + Duration::from_secs(60);
    assert_eq!(
        own.plan(now).unwrap().to_string(),
        any.plan(now).unwrap().to_string()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn ipvs_mode_plans_the_same_as_its_own_proxier(
        changes in vec(vec(step(), 0..12), 4..5),
        refused in prop::sample::select(&["-A -t", "-a -t", "KUBE-CLUSTER-IP", "address replace", "none"][..]),
        is_refused: bool,
    ) {
        let (own_kernel, own_faults) = Faults::of_kernel(ipvs_kernel());
        let (any_kernel, any_faults) = Faults::of_kernel(ipvs_kernel());
        let Config::Ipvs(own) = config(Mode::Ipvs) else { unreachable!() };
        let own = ipvs_mode::Proxier::new(&own, own_kernel).unwrap();
        let any = Kernel::new().with_ipvs(any_kernel).with_iptables(iptables_kernel());
        let any = Proxier::new(&config(Mode::Ipvs), any).unwrap();
        assert_same_syncs(own, any, &[own_faults, any_faults], (refused, is_refused), &changes);
    }

    #[test]
    fn iptables_mode_plans_the_same_as_its_own_proxier(
        changes in vec(vec(step(), 0..12), 4..5),
        refused in prop::sample::select(&["10.96.0.1", "KUBE-SEP", "none"][..]),
        is_refused: bool,
    ) {
        let faults = [Faults::default(), Faults::default()];
        let kernel = |faults: &Faults| {
            let mut kernel = iptables_kernel();
            kernel.rules = faults.tables(kernel.rules);
            kernel
        };
        let Config::Iptables(own) = config(Mode::Iptables) else { unreachable!() };
        let own = iptables_mode::Proxier::new(&own, kernel(&faults[0])).unwrap();
        let any = Kernel::new().with_iptables(kernel(&faults[1]));
        let any = Proxier::new(&config(Mode::Iptables), any).unwrap();
        assert_same_syncs(own, any, &faults, (refused, is_refused), &changes);
    }

    #[test]
    fn after_each_change_of_the_mode_all_services_are_in_the_desired_state(
        before in vec(step(), 0..15),
        between in vec(step(), 0..15),
        after in vec(step(), 0..15),
        first in prop::sample::select(&MODES[..]),
    ) {
        let mut proxier = Proxier::new(&config(first), kernel()).unwrap();
        let mut all: Vec<Step> = Vec::new();
        let mut mode = first;
        for steps in [before, between, after] {
            apply(&mut proxier, &steps);
            all.extend(steps);
            let synced = proxier.sync(Instant::now()).unwrap();
            prop_assert!(synced.is_success(), "{}", synced);
            // The same as a process that starts in this mode with all objects.
            let mut fresh = Proxier::new(&config(mode), kernel()).unwrap();
            apply(&mut fresh, &all);
            fresh.sync(Instant::now()).unwrap();
            prop_assert_eq!(sorted_listings(&proxier), sorted_listings(&fresh));
            prop_assert_eq!(proxier.state().mode(), mode);
            proxier.resync();
            let plan = proxier.plan(Instant::now()).unwrap();
            // A draining real server is deleted when its connections were counted, and what IPVS mode left after iptables mode works.
            prop_assert!(plan.is_empty() || synced.next.is_some(), "{}", plan);
            mode = other(mode);
            proxier.set_config(&config(mode)).unwrap();
        }
    }
}

fn service(number: u8) -> Service {
    Service::new(ObjectName::new("ns", format!("s{number}")))
        .with_cluster_ip(format!("10.96.0.{number}"))
        .with_port(Port::new("web", 80))
}

fn slice(number: u8, endpoints: &[u8]) -> EndpointSlice {
    let slice = EndpointSlice::new(
        ObjectName::new("ns", format!("s{number}-x")),
        format!("s{number}"),
        Family::Ipv4,
    );
    let slice = slice.with_port(EndpointPort::new("web", 8080));
    endpoints.iter().fold(slice, |slice, last| {
        slice.with_endpoint(Endpoint::new([10, 244, number, *last].into()))
    })
}

fn changes() -> Vec<Change> {
    vec![
        Change::Services(ObjectChange::ReplaceAll(vec![service(1), service(2)])),
        Change::EndpointSlices(ObjectChange::ReplaceAll(vec![slice(1, &[1, 2]), slice(2, &[1])])),
        Change::synced(Kind::Service),
        Change::synced(Kind::EndpointSlice),
    ]
}

#[test]
fn a_failed_operation_is_not_retried_in_the_other_mode() {
    let (ipvs, faults) = Faults::of_kernel(ipvs_kernel());
    let kernel = Kernel::new().with_ipvs(ipvs).with_iptables(iptables_kernel());
    let mut proxier = Proxier::new(&config(Mode::Ipvs), kernel).unwrap();
    for change in changes() {
        proxier.change(SOURCE, change);
    }
    faults.lose_reply("-A -t");
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.waiting > 0, "{synced}");
    proxier.set_config(&config(Mode::Iptables)).unwrap();
    faults.take_executed();
    let synced = proxier.sync(now + Duration::from_millis(1)).unwrap();
    assert_eq!(synced.counts().done, synced.plan.len(), "{synced}");
    // Those with an unknown outcome are forgotten when they fall due.
    assert_eq!(synced.waiting, 2);
    // Then what IPVS mode left is removed.
    let mut at = now + Duration::from_secs(2);
    for _ in 0..20 {
        let synced = proxier.sync(at).unwrap();
        assert_eq!(synced.counts().done, synced.plan.len(), "{synced}");
        assert_eq!(synced.waiting, 0);
        match synced.next {
            Some(next) => at = next.max(at),
            None => break,
        }
    }
    let executed = faults.take_executed();
    assert!(
        executed.iter().all(|command| !command.contains("-A -t")),
        "{executed:?}"
    );
    assert!(proxier.plan(at).unwrap().is_empty());
    // Objects of the other mode are not read again, either.
    let address: std::net::IpAddr = [10, 96, 0, 1].into();
    let key = kernlink_ipvs::VirtualServerKey::tcp(address, 80);
    assert!(!proxier.recheck([Key::Ipvs(ipvs_mode::Key::VirtualServer(key))]));
}

#[test]
fn a_runner_syncs_in_either_mode_and_reports_the_same_status() {
    for mode in MODES {
        let proxier = Proxier::new(&config(mode), kernel()).unwrap();
        let (sender, notices) = mpsc::channel();
        let intervals = Intervals {
            min: Duration::ZERO,
            max: Duration::ZERO,
        };
        let runner: Runner<AllModes> = Runner::start(proxier, Schedule::new(intervals), move |notice| {
            let _ = sender.send(notice);
        })
        .unwrap();
        runner.change_all(SOURCE, changes());
        let synced = || loop {
            match notices.recv_timeout(Duration::from_secs(60)).unwrap() {
                Notice::Synced(synced) if !synced.plan.is_empty() => break synced,
                Notice::Failed(error) => panic!("{error}"),
                _ => {}
            }
        };
        assert!(synced().is_success());
        runner.set_config(config(other(mode)));
        assert!(synced().is_success());
        let status = runner.status();
        assert_eq!(status.services, 2);
        for (_, family) in status.served() {
            assert!(family.updated.is_some() && family.pending.is_none());
        }
        let health = status.health(Duration::from_secs(30));
        assert!(health.is_healthy(Instant::now()));
        let page = Metrics::new().unwrap().encode(&status).unwrap();
        assert!(page.contains("kubeproxy_sync_proxy_rules_duration_seconds_count"));
        match (other(mode), &status.totals) {
            (Mode::Ipvs, Totals::Ipvs(totals)) => {
                assert_eq!(totals.family(Family::Ipv4).virtual_servers, 2);
                assert!(
                    page.contains("\nkernlink_virtual_servers{ip_family=\"IPv4\"} 2\n"),
                    "{page}"
                );
            }
            (Mode::Iptables, Totals::Iptables(totals)) => {
                // Two chains of service ports and three of endpoints.
                assert_eq!(totals.family(Family::Ipv4).chains, 5);
                assert!(!page.contains("kernlink_virtual_servers"), "{page}");
            }
            (mode, totals) => panic!("{mode}: {totals:?}"),
        }
        let proxier = runner.stop().unwrap();
        match (other(mode), proxier.state().active()) {
            (Mode::Ipvs, Active::Ipvs(_)) | (Mode::Iptables, Active::Iptables(_)) => {}
            (mode, state) => panic!("{mode}: {state:?}"),
        }
    }
}

#[test]
fn the_mode_in_the_file_of_kube_proxy_is_used() {
    let of = |mode: &str| {
        let text = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: node-a\n{mode}\n\
             ipvs: {{syncPeriod: 20s}}\niptables: {{syncPeriod: 40s, localhostNodePorts: false}}\n"
        );
        Config::from_kube_proxy(&read("config", &text).unwrap())
    };
    for (text, mode, seconds) in [
        ("", Mode::Iptables, 40),
        ("mode: \"\"", Mode::Iptables, 40),
        ("mode: iptables", Mode::Iptables, 40),
        ("mode: ipvs", Mode::Ipvs, 20),
    ] {
        let config = of(text).unwrap();
        assert_eq!((config.mode(), config.sync_period().as_secs()), (mode, seconds));
        assert_eq!(&*config.services().node_name, "node-a");
        if let Config::Iptables(config) = config {
            assert!(!config.loopback_node_ports);
        }
    }
    assert_eq!(
        of("mode: nftables").unwrap_err().to_string(),
        "invalid configuration: mode: \"nftables\" is not supported; supported: iptables, ipvs, userspace, or empty, which means iptables"
    );
}
