//! What Services may request: schedulers, annotations and external IPs that the configuration or the kernel's modules do not permit.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
mod node;
#[path = "support/shared_ipvs.rs"]
mod shared_ipvs;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kernlink_ipvs::{Fake, Ipvs, Scheduler, VirtualServer};
use kernlink_proxier::iptables_mode;
use kernlink_proxier::ipvs_mode::{Config, Proxier, Synced};
use kernlink_services::{AnnotationPolicy, Change, ObjectChange, Service};

use crate::node::{SOURCE, bound, config, endpoints, kernel, proxier, service, upsert, virtual_servers};
use crate::shared_ipvs::SharedIpvs;

const DANGEROUS: [Scheduler; 2] = [Scheduler::LBLC, Scheduler::LBLCR];

/// The table of a kernel that has not loaded the two modules, for a process that cannot load them.
fn not_loaded() -> SharedIpvs {
    SharedIpvs::new(Fake::new().with_schedulers_not_loaded(DANGEROUS))
}

/// A process on the node with this table.
fn start(config: Config, ipvs: &SharedIpvs) -> Proxier {
    let mut kernel = kernel();
    kernel.ipvs = Box::new(ipvs.clone());
    proxier(config, kernel)
}

fn annotated(name: &str, cluster_ip: &str, annotations: &[(&str, &str)]) -> Service {
    let mut service = service(name, cluster_ip);
    for (name, value) in annotations {
        let key = format!("kernlink.io/{name}");
        service.annotations.insert(key, (*value).to_owned());
    }
    service
}

fn schedulers(ipvs: &SharedIpvs) -> Vec<String> {
    let servers = ipvs.fake().list_virtual_servers().unwrap();
    let text = |server: &VirtualServer| format!("{} {}", server.key, server.scheduler);
    servers.iter().map(|status| text(&status.server)).collect()
}

fn events(synced: &Synced) -> Vec<String> {
    synced.events.iter().map(ToString::to_string).collect()
}

fn not_loaded_event(service: &str, scheduler: &str) -> String {
    format!(
        "Service ns/{service}: metadata.annotations[kernlink.io/scheduler]: \"{scheduler}\" is not permitted: its module \
         ip_vs_{scheduler} is not loaded, and the kernel could block if it loaded the module for a Service; load it at the start of the node \
         (/etc/modules-load.d), or name the scheduler in kernlink.serviceSchedulers; ignored"
    )
}

#[test]
fn a_service_gets_the_default_scheduler_if_the_kernel_could_block_while_it_loads_the_one_that_it_requests() {
    let ipvs = not_loaded();
    let mut proxier = start(config(), &ipvs);
    upsert(
        &mut proxier,
        annotated("a", "10.96.0.1", &[("scheduler", "lblc")]),
    );
    upsert(
        &mut proxier,
        annotated("b", "10.96.0.2", &[("scheduler", "lblcr")]),
    );
    upsert(&mut proxier, annotated("c", "10.96.0.3", &[("scheduler", "sh")]));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(
        schedulers(&ipvs),
        ["-t 10.96.0.1:80 rr", "-t 10.96.0.2:80 rr", "-t 10.96.0.3:80 sh"]
    );
    assert_eq!(
        events(&synced),
        [not_loaded_event("a", "lblc"), not_loaded_event("b", "lblcr")]
    );

    // Reported once, also when something else of the Service changes.
    proxier.resync();
    assert_eq!(events(&proxier.sync(Instant::now()).unwrap()), [""; 0]);
    endpoints(&mut proxier, "a", &[1, 2]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success() && synced.events.is_empty(), "{synced}");
}

#[test]
fn a_service_gets_the_scheduler_that_it_requests_after_the_module_was_loaded() {
    let ipvs = not_loaded();
    let mut proxier = start(config(), &ipvs);
    upsert(
        &mut proxier,
        annotated("a", "10.96.0.1", &[("scheduler", "lblc")]),
    );
    upsert(&mut proxier, service("b", "10.96.0.2"));
    proxier.sync(Instant::now()).unwrap();
    assert_eq!(schedulers(&ipvs), ["-t 10.96.0.1:80 rr", "-t 10.96.0.2:80 rr"]);

    ipvs.fake().load_scheduler(Scheduler::LBLC);
    // As every `sync_period`.
    proxier.resync();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success() && synced.events.is_empty(), "{synced}");
    assert_eq!(schedulers(&ipvs), ["-t 10.96.0.1:80 lblc", "-t 10.96.0.2:80 rr"]);

    // A restart keeps it: the kernel has the module.
    let mut kernel = proxier.into_kernel();
    kernel.ipvs = Box::new(ipvs.clone());
    let mut next = node::proxier(config(), kernel);
    upsert(&mut next, annotated("a", "10.96.0.1", &[("scheduler", "lblc")]));
    upsert(&mut next, service("b", "10.96.0.2"));
    let synced = next.sync(Instant::now()).unwrap();
    assert!(
        synced.plan.is_empty() && synced.events.is_empty(),
        "{synced}\n{}",
        synced.plan
    );
}

#[test]
fn a_scheduler_that_the_configuration_names_is_used_although_its_module_is_not_loaded() {
    let named: [fn(&mut Config); 2] = [
        |config| config.defaults.scheduler = Scheduler::LBLC,
        |config| config.service_schedulers = Some(vec![Scheduler::LBLC, Scheduler::SH]),
    ];
    for name in named {
        let ipvs = not_loaded();
        let mut with_name = config();
        name(&mut with_name);
        let default = with_name.defaults.scheduler;
        let mut proxier = start(with_name, &ipvs);
        upsert(
            &mut proxier,
            annotated("a", "10.96.0.1", &[("scheduler", "lblc")]),
        );
        upsert(
            &mut proxier,
            annotated("b", "10.96.0.2", &[("scheduler", "lblcr")]),
        );
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        // The other one is not named.
        assert_eq!(
            schedulers(&ipvs),
            [
                "-t 10.96.0.1:80 lblc".to_owned(),
                format!("-t 10.96.0.2:80 {default}")
            ]
        );
        let about = |text: &str| {
            let events = events(&synced);
            events.iter().filter(|event| event.contains(text)).count()
        };
        assert_eq!(about("Service ns/b: "), 1, "{:?}", synced.events);
        let text = "host: the configuration names scheduler lblc, and its module ip_vs_lblc is not loaded: ";
        assert_eq!((about(text), synced.events.len()), (1, 2), "{:?}", synced.events);

        // What the configuration no longer names is withdrawn from Services that exist.
        proxier.set_config(&config()).unwrap();
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(schedulers(&ipvs), ["-t 10.96.0.1:80 rr", "-t 10.96.0.2:80 rr"]);
        assert!(
            events(&synced).contains(&not_loaded_event("a", "lblc")),
            "{:?}",
            synced.events
        );
    }
}

#[test]
fn a_scheduler_that_is_not_among_those_that_services_may_request_is_replaced_by_the_default() {
    let ipvs = SharedIpvs::default();
    let mut config = config();
    config.defaults.scheduler = Scheduler::WRR;
    config.service_schedulers = Some(vec![Scheduler::LC]);
    let mut proxier = start(config, &ipvs);
    let requests = [
        ("a", "10.96.0.1", "lc"),
        ("b", "10.96.0.2", "wrr"),
        ("c", "10.96.0.3", "lblc"),
    ];
    for (name, address, scheduler) in requests {
        upsert(
            &mut proxier,
            annotated(name, address, &[("scheduler", scheduler)]),
        );
    }
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        schedulers(&ipvs),
        ["-t 10.96.0.1:80 lc", "-t 10.96.0.2:80 wrr", "-t 10.96.0.3:80 wrr"]
    );
    assert_eq!(
        events(&synced),
        [
            "Service ns/c: metadata.annotations[kernlink.io/scheduler]: \"lblc\" is not permitted by kernlink.serviceSchedulers of the \
             configuration; permitted: lc, wrr; ignored"
        ]
    );
}

#[test]
fn an_unknown_name_among_the_permitted_schedulers_or_annotations_is_an_error() {
    let mut with_names = config();
    with_names.service_schedulers = Some(vec![Scheduler::LC, Scheduler::new("ftp").unwrap()]);
    with_names.services.annotations.names = Some(["shceduler".to_owned()].into());
    let error = Proxier::new(&with_names, kernel()).unwrap_err().to_string();
    assert!(
        error.contains("service_schedulers: \"ftp\": unknown scheduler; known: dh,"),
        "{error}"
    );
    let expected = "services.annotations.names: \"shceduler\" is not an annotation; valid: affinity-mask,";
    assert!(error.contains(expected), "{error}");
    let mut config = iptables_mode::Config::new("n");
    config.services.annotations.names = Some(["shceduler".to_owned()].into());
    assert!(config.validate().unwrap_err().to_string().contains(expected));
}

/// The table of a process that seems to be able to load the modules, until it tries. It does not remember.
struct Optimist(SharedIpvs);

impl Ipvs for Optimist {
    fn execute(&mut self, operations: &[kernlink_ipvs::Operation]) -> Vec<Result<(), kernlink_ipvs::Error>> {
        self.0.execute(operations)
    }

    fn list_virtual_servers(
        &mut self,
    ) -> Result<Vec<kernlink_ipvs::VirtualServerStatus>, kernlink_ipvs::Error> {
        self.0.list_virtual_servers()
    }

    fn list_real_servers(
        &mut self,
        server: &kernlink_ipvs::VirtualServerKey,
    ) -> Result<Vec<kernlink_ipvs::RealServerStatus>, kernlink_ipvs::Error> {
        self.0.list_real_servers(server)
    }

    fn timeouts(&mut self) -> Result<kernlink_ipvs::Timeouts, kernlink_ipvs::Error> {
        self.0.timeouts()
    }
}

#[test]
fn a_service_gets_the_default_scheduler_at_once_if_the_module_cannot_be_loaded_after_all() {
    let ipvs = not_loaded();
    let mut kernel = kernel();
    kernel.ipvs = Box::new(Optimist(ipvs.clone()));
    let mut proxier = proxier(config(), kernel);
    upsert(&mut proxier, service("b", "10.96.0.2"));
    upsert(
        &mut proxier,
        annotated("a", "10.96.0.1", &[("scheduler", "lblc")]),
    );
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!((synced.counts().failed, synced.next), (1, Some(now)), "{synced}");
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert!(
        events(&synced).contains(&not_loaded_event("a", "lblc")),
        "{:?}",
        synced.events
    );
    assert_eq!(schedulers(&ipvs), ["-t 10.96.0.1:80 rr", "-t 10.96.0.2:80 rr"]);
    // It is not tried again.
    assert_eq!(synced.next, None);
    proxier.resync();
    let synced = proxier.sync(now + Duration::from_secs(600)).unwrap();
    assert!(synced.plan.is_empty() && synced.events.is_empty(), "{synced}");
}

#[test]
fn annotations_that_the_configuration_does_not_permit_have_no_effect_and_one_event_each() {
    let given = [
        ("scheduler", "sh"),
        ("one-packet", "true"),
        ("drain-timeout", "30s"),
        ("weights", "zone=a:2"),
    ];
    let set = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    let cases = [
        // The permitted annotations and namespaces, the scheduler in effect, the number of events that name a restriction.
        (AnnotationPolicy::default(), "sh", 0),
        (AnnotationPolicy::nothing(), "rr", 4),
        (
            AnnotationPolicy {
                names: Some(set(&["scheduler"])),
                namespaces: None,
            },
            "sh",
            3,
        ),
        (
            AnnotationPolicy {
                names: None,
                namespaces: Some(set(&["kube-system"])),
            },
            "rr",
            4,
        ),
        (
            AnnotationPolicy {
                names: Some(set(&["scheduler"])),
                namespaces: Some(set(&["ns"])),
            },
            "sh",
            3,
        ),
    ];
    for (policy, scheduler, refused) in cases {
        let ipvs = SharedIpvs::default();
        let mut config = config();
        config.services.annotations = policy.clone();
        let mut proxier = start(config, &ipvs);
        // Events about single objects are returned at once.
        let service = annotated("a", "10.96.0.1", &given);
        let mut reported: Vec<String> = proxier
            .change(SOURCE, Change::Services(ObjectChange::Upsert(service)))
            .iter()
            .map(ToString::to_string)
            .collect();
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        reported.extend(events(&synced));
        assert_eq!(
            schedulers(&ipvs),
            [format!("-t 10.96.0.1:80 {scheduler}")],
            "{policy:?}"
        );
        for (name, _) in given {
            let about: Vec<&String> = reported.iter().filter(|event| event.contains(name)).collect();
            let is_permitted = policy.permits("ns", name);
            let is_refused = about.iter().any(|event| event.contains("not permitted"));
            assert_eq!(is_refused, !is_permitted, "{policy:?}: {reported:?}");
            // An annotation without effect is not said to have none for another reason too.
            assert!(is_permitted || about.len() == 1, "{policy:?}: {reported:?}");
        }
        let number = reported.iter().filter(|event| event.contains("not permitted"));
        assert_eq!(number.count(), refused, "{reported:?}");
    }
}

#[test]
fn external_ips_that_the_configuration_ignores_are_not_served() {
    let mut with_ips = service("a", "10.96.0.1");
    with_ips.external_ips = vec!["203.0.113.7".to_owned(), "203.0.113.8".to_owned()];
    let with_ips = {
        let key = "kernlink.io/forwarding-method".to_owned();
        with_ips.annotations.insert(key, "tunnel".to_owned());
        with_ips
    };
    let mut proxier = proxier(config(), kernel());
    upsert(&mut proxier, with_ips.clone());
    proxier.sync(Instant::now()).unwrap();
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
    assert_eq!(bound(proxier.kernel_mut()).len(), 3);

    // A process with the other configuration, as after a restart.
    let mut ignoring = config();
    ignoring.services.ignore_external_ips = true;
    let mut next = node::proxier(ignoring, proxier.into_kernel());
    let mut events: Vec<String> = next
        .change(SOURCE, Change::Services(ObjectChange::Upsert(with_ips)))
        .iter()
        .map(ToString::to_string)
        .collect();
    let synced = next.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(virtual_servers(next.kernel_mut()), ["-t 10.96.0.1:80"]);
    assert_eq!(bound(next.kernel_mut()), ["10.96.0.1/32"]);
    events.extend(self::events(&synced));
    assert_eq!(
        events,
        [
            "Service ns/a: spec.externalIPs: not permitted by kernlink.ignoreExternalIPs of the configuration; ignored",
            "Service ns/a: kernlink.io/forwarding-method has no effect: the Service has no external or load-balancer IP",
        ]
    );
}

#[test]
fn a_running_proxier_reports_what_a_new_configuration_does_not_permit() {
    let mut proxier = proxier(config(), kernel());
    let mut with_ips = annotated("a", "10.96.0.1", &[("scheduler", "sh")]);
    with_ips.external_ips = vec!["203.0.113.7".to_owned()];
    upsert(&mut proxier, with_ips);
    assert_eq!(events(&proxier.sync(Instant::now()).unwrap()), [""; 0]);
    let mut restricted = config();
    restricted.services.annotations = AnnotationPolicy::nothing();
    restricted.services.ignore_external_ips = true;
    let mut withdrawn = config();
    withdrawn.services.annotations.namespaces = Some(BTreeSet::new());
    for config in [&withdrawn, &restricted, &restricted] {
        proxier.set_config(config).unwrap();
    }
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        events(&synced),
        [
            "Service ns/a: metadata.annotations[kernlink.io/scheduler]: not permitted by kernlink.serviceAnnotations of the configuration; \
             ignored",
            "Service ns/a: spec.externalIPs: not permitted by kernlink.ignoreExternalIPs of the configuration; ignored",
        ]
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.1:80"]);
    proxier.set_config(&restricted).unwrap();
    assert_eq!(events(&proxier.sync(Instant::now()).unwrap()), [""; 0]);
}

#[test]
fn iptables_mode_does_not_serve_external_ips_that_the_configuration_ignores() {
    for ignores in [false, true] {
        let mut config = iptables_mode::Config::new("node-a");
        config.services.ignore_external_ips = ignores;
        let mut proxier = iptables_mode::Proxier::new(&config, iptables_mode::Kernel::fake()).unwrap();
        let mut with_ips = service("a", "10.96.0.1");
        with_ips.external_ips = vec!["203.0.113.7".to_owned()];
        let change = Change::Services(ObjectChange::Upsert(with_ips));
        let events = proxier.change(SOURCE, change);
        assert_eq!(events.len(), usize::from(ignores), "{events:?}");
        proxier.change(SOURCE, Change::Services(ObjectChange::Synced));
        proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Synced));
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        let plan = synced.plan.to_string();
        assert!(plan.contains("10.96.0.1"), "{plan}");
        assert_eq!(plan.contains("203.0.113.7"), !ignores, "{plan}");
    }
}
