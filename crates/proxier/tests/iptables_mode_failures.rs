//! iptables mode on the fake kernel: what is refused, unreadable or damaged affects nothing else, and restrictions are in place before what
//! they restrict.
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

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{
    Chain, ChainName, Edit, Error as RulesError, Fake, Iptables, Operation as RulesOperation, Restore,
    Ruleset, Save, Table,
};
use kernlink_proxier::Outcome;
use kernlink_proxier::host::{FakeSysctls, Sysctl, SysctlError, SysctlErrorCause, Sysctls};
use kernlink_proxier::iptables_mode::{Key, Operation, Phase, Proxier, Synced};
use kernlink_services::{Change, Family, ObjectChange, ObjectName, Port, Service};

use crate::iptables_node::{
    FOREIGN, SOURCE, change_endpoints, config, deliver, deliver_numbered, filled, kernel, proxier_on, saved,
    service, slice, sync,
};
use crate::refusing_tables::{Behaviour, Rules, faulty_kernel};

const ROUTE_LOCALNET: &str = "net.ipv4.conf.all.route_localnet";
const BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

fn failed(synced: &Synced) -> Vec<Key> {
    let steps = synced.plan.steps().zip(synced.report.outcomes());
    steps
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
        .map(|((_, step), _)| step.key.clone())
        .collect()
}

fn service_key(number: u8) -> Key {
    Key::Service(Family::Ipv4, ObjectName::new("ns", format!("s{number}")))
}

fn ipv4(proxier: &mut Proxier) -> String {
    saved(proxier, Family::Ipv4).to_string()
}

#[test]
fn the_retry_of_a_refused_service_neither_reads_the_tables_nor_retries_others() {
    let (kernel, behaviour) = faulty_kernel(FOREIGN);
    behaviour.lock().unwrap().refused = ["10.244.3.1", "10.244.5.1"].map(String::from).into();
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 9, &[1]);
    let start = Instant::now();
    let synced = proxier.sync(start).unwrap();
    assert_eq!(failed(&synced), [service_key(3), service_key(5)], "{synced}");
    let saves = behaviour.lock().unwrap().saves;
    // Each falls due at its own time.
    let mut retried = Vec::new();
    let mut next = synced.next;
    while retried.len() < 2 {
        let synced = proxier.sync(next.unwrap()).unwrap();
        let steps: Vec<Key> = synced.plan.steps().map(|(_, step)| step.key.clone()).collect();
        assert_eq!(steps.len(), 1, "{}", synced.plan);
        retried.extend(steps);
        next = synced.next;
    }
    retried.sort();
    assert_eq!(retried, [service_key(3), service_key(5)]);
    assert_eq!(behaviour.lock().unwrap().saves, saves);
}

#[test]
fn a_rule_that_another_program_removed_does_not_keep_its_service_from_being_written() {
    let mut proxier = proxier_on(kernel());
    let mut external = service(1);
    external.external_ips = vec!["203.0.113.1".to_owned()];
    deliver(&mut proxier, vec![external], vec![slice(1, &[1])]);
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    let text = ipv4(&mut proxier);
    let mut rules = text
        .lines()
        .filter_map(|line| line.strip_prefix("-A KUBE-SERVICES "));
    let rule = rules.find(|rule| rule.contains("external IP")).unwrap();
    let delete = Edit::delete("KUBE-SERVICES".parse().unwrap(), rule.parse().unwrap());
    let remove = Restore::new(Family::Ipv4).with(Table::Nat, delete);
    proxier.kernel_mut().rules.restore(&remove).unwrap();
    // The Service loses the external IP, and has another endpoint.
    deliver(&mut proxier, vec![service(1)], vec![slice(1, &[2])]);
    let synced = proxier.sync(now).unwrap();
    assert!(failed(&synced).contains(&service_key(1)), "{synced}");
    let listings = proxier.cost().listings;
    let mut next = synced.next;
    for _ in 0..20 {
        let Some(at) = next else { break };
        next = proxier.sync(at).unwrap().next;
    }
    assert_eq!(proxier.failing().count(), 0, "retries alone bring it in place");
    assert_eq!(proxier.cost().listings, listings);
    let text = ipv4(&mut proxier);
    assert!(
        text.contains("10.244.1.2:8080") && !text.contains("10.244.1.1:8080"),
        "{text}"
    );
}

#[test]
fn a_frontend_is_served_by_its_previous_owner_until_the_rules_of_the_new_one_are_written() {
    for is_deleted in [true, false] {
        let (kernel, behaviour) = faulty_kernel(FOREIGN);
        let mut proxier = proxier_on(kernel);
        let external = |number: u16| {
            let mut service = service(number);
            service.external_ips = vec!["203.0.113.1".to_owned()];
            service
        };
        let slices = || (1..=2).map(|number| slice(number, &[1])).collect();
        deliver(&mut proxier, vec![external(1), service(2)], slices());
        let now = Instant::now();
        assert!(proxier.sync(now).unwrap().is_success());
        // The external IP passes to the other Service, whose rules are refused.
        behaviour.lock().unwrap().refused = vec!["ns/s2:web external IP".to_owned()];
        let services = if is_deleted {
            vec![external(2)]
        } else {
            vec![service(1), external(2)]
        };
        deliver(&mut proxier, services, slices());
        let synced = proxier.sync(now).unwrap();
        assert_eq!(failed(&synced), [service_key(2)], "{synced}");
        let rules = ipv4(&mut proxier);
        assert!(rules.contains("ns/s1:web external IP"), "{rules}");
        assert!(rules.contains("--to-destination 10.244.1.1:8080"), "{rules}");
        // Only what another Service needs is kept.
        assert_eq!(rules.contains("ns/s1:web cluster IP"), !is_deleted, "{rules}");
        behaviour.lock().unwrap().refused.clear();
        let mut next = synced.next;
        while let Some(time) = next {
            next = proxier.sync(time).unwrap().next;
        }
        let rules = ipv4(&mut proxier);
        assert!(!rules.contains("ns/s1:web external IP"), "{rules}");
        assert!(rules.contains("ns/s2:web external IP"), "{rules}");
        assert_eq!(rules.contains("ns/s1"), !is_deleted, "{rules}");
        // As a process that wrote them from the beginning.
        proxier.resync();
        let synced = proxier.sync(now + Duration::from_secs(3_600)).unwrap();
        assert!(synced.plan.is_empty(), "{}", synced.plan);
    }
}

#[test]
fn many_refused_services_neither_delay_the_others_nor_cost_a_run_of_the_tool_each() {
    // A kernel without the target REJECT, and Services without endpoints.
    let (kernel, behaviour) = faulty_kernel(FOREIGN);
    behaviour.lock().unwrap().refused = vec!["REJECT".to_owned()];
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 3, &[1]);
    for number in 0..1_000_u16 {
        let service = Service::new(ObjectName::new("empty", format!("s{number}")))
            .with_cluster_ip(format!("10.97.{}.{}", number / 250, number % 250 + 1))
            .with_port(Port::new("web", 80));
        proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service)));
    }
    let start = Instant::now();
    let synced = proxier.sync(start).unwrap();
    assert_eq!(synced.counts().failed, 1_000);
    let ipv4_restores = |behaviour: &Behaviour| {
        let restores = behaviour.restores.iter();
        restores.filter(|restore| restore.family == Family::Ipv4).count()
    };
    assert!(ipv4_restores(&behaviour.lock().unwrap()) < 40);
    let text = ipv4(&mut proxier);
    assert!(
        text.contains("10.244.0.1") && text.contains("10.244.2.1"),
        "{text}"
    );
    // All are written after the kernel has it.
    behaviour.lock().unwrap().refused.clear();
    let synced = proxier.sync(start + Duration::from_secs(600)).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(ipv4(&mut proxier).matches("REJECT").count(), 1_000);
}

#[test]
fn one_foreign_jump_does_not_keep_the_chains_of_other_former_services() {
    let mut before = filled(6);
    let text = ipv4(&mut before);
    let chain = |service: u8| {
        let rule = text.lines().find(|line| {
            line.starts_with("-A KUBE-SERVICES") && line.contains(&format!("\"ns/s{service}:web"))
        });
        let name = rule.unwrap().rsplit_once(' ').unwrap().1;
        name.to_owned()
    };
    let used = chain(1);
    let others = [2, 3, 4, 5].map(chain);
    let text = text.replacen(
        "-A CNI-HOSTPORT",
        &format!("-A CNI-HOSTPORT -j {used}\n-A CNI-HOSTPORT"),
        1,
    );
    // A process that serves only one of the Services follows.
    let (kernel, behaviour) = faulty_kernel(&text);
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    let start = Instant::now();
    let synced = proxier.sync(start).unwrap();
    let name: ChainName = used.parse().unwrap();
    assert_eq!(failed(&synced), [Key::Chain(Family::Ipv4, name)], "{synced}");
    let text = ipv4(&mut proxier);
    for gone in others.iter().map(String::as_str).chain(["ns/s1", "10.244.1."]) {
        assert!(!text.contains(gone), "{gone} in\n{text}");
    }
    assert!(text.contains(&format!("-A CNI-HOSTPORT -j {used}")), "{text}");
    // After the foreign jump is gone, the retry deletes the chain.
    let delete = Restore::new(Family::Ipv4).with(
        Table::Nat,
        Edit::delete(
            "CNI-HOSTPORT".parse().unwrap(),
            format!("-j {used}").parse().unwrap(),
        ),
    );
    proxier.kernel_mut().rules.restore(&delete).unwrap();
    behaviour.lock().unwrap().restores.clear();
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert!(!ipv4(&mut proxier).contains(&used));
    assert_eq!(synced.plan.len(), 1);
}

#[test]
fn a_service_is_withdrawn_although_a_foreign_rule_jumps_to_its_chain() {
    let mut proxier = filled(3);
    let text = ipv4(&mut proxier);
    let rule = text
        .lines()
        .find(|line| line.starts_with("-A KUBE-SERVICES") && line.contains("ns/s1"));
    let used = rule.unwrap().rsplit_once(' ').unwrap().1.to_owned();
    let add = Restore::new(Family::Ipv4).with(
        Table::Nat,
        Edit::append(
            "CNI-HOSTPORT".parse().unwrap(),
            format!("-j {used}").parse().unwrap(),
        ),
    );
    proxier.kernel_mut().rules.restore(&add).unwrap();
    let name = ObjectName::new("ns", "s1");
    proxier.change(SOURCE, Change::Services(ObjectChange::Delete(name)));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(failed(&synced).len(), 1, "{synced}");
    let text = ipv4(&mut proxier);
    assert!(!text.contains("ns/s1") && !text.contains("10.244.1."), "{text}");
    assert!(text.contains("ns/s2"));
}

/// The phase and position of the step for a sysctl, and those of the fixed chains.
fn positions(synced: &Synced, name: &str) -> (Option<usize>, Option<usize>) {
    let position = |key: &Key| {
        let mut steps = synced.plan.steps();
        steps.find(|(_, step)| step.key == *key).map(|(id, _)| id.index())
    };
    (
        position(&Key::Sysctl(name.into())),
        position(&Key::Fixed(Family::Ipv4)),
    )
}

#[test]
fn loopback_addresses_are_routed_only_after_the_rule_that_protects_them() {
    let (kernel, behaviour) = faulty_kernel(FOREIGN);
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    let plan = proxier.plan(Instant::now()).unwrap();
    let phase = plan
        .phases()
        .iter()
        .find(|phase| phase.kind == Phase::RouteLocalnet)
        .unwrap();
    assert_eq!(phase.steps.len(), 1);
    assert_eq!(phase.steps[0].needs.len(), 1, "{plan}");
    // Refused: the sysctl is not written.
    behaviour.lock().unwrap().refused = vec!["block incoming localnet connections".to_owned()];
    let start = Instant::now();
    let synced = proxier.sync(start).unwrap();
    assert_eq!(failed(&synced), [Key::Fixed(Family::Ipv4)], "{synced}");
    let read = |proxier: &mut Proxier| proxier.kernel_mut().sysctls.read(ROUTE_LOCALNET).unwrap();
    assert_eq!(read(&mut proxier).as_deref(), Some("0"));
    behaviour.lock().unwrap().refused.clear();
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let (sysctl, fixed) = positions(&synced, ROUTE_LOCALNET);
    assert!(fixed.unwrap() < sysctl.unwrap(), "{}", synced.plan);
    assert_eq!(read(&mut proxier).as_deref(), Some("1"));
}

#[test]
fn rules_of_the_kubelet_stay_in_a_table_that_cannot_be_read() {
    let mut kernel = kernel();
    let mut fake = Fake::new();
    fake.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    fake.set_unreadable(Family::Ipv4, Table::Filter);
    kernel.rules = Box::new(fake.clone());
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let ensured = synced.plan.steps().any(|(_, step)| {
        matches!(&step.operation, Operation::EnsureChain(ensure) if ensure.family == Family::Ipv4)
    });
    assert!(ensured, "{}", synced.plan);
    let flushes = synced.plan.steps().any(|(_, step)| match &step.operation {
        Operation::Write(write) => {
            write.family() == Family::Ipv4
                && write.restore().tables().any(|(_, edits)| {
                    edits.iter().any(|edit| {
                        matches!(edit, Edit::Declare { .. }) && edit.chain().as_str() == "KUBE-FIREWALL"
                    })
                })
        }
        _ => false,
    });
    assert!(!flushes, "{}", synced.plan);
    let (sysctl, _) = positions(&synced, ROUTE_LOCALNET);
    let jump = synced
        .plan
        .steps()
        .filter(|(_, step)| matches!(step.key, Key::Jump(..)))
        .last();
    assert!(jump.unwrap().0.index() < sysctl.unwrap(), "{}", synced.plan);
}

/// Tables of IPv4 that cannot be printed as a whole: another program has such a rule in a built-in chain. The other chains can.
#[derive(Clone)]
struct Incompatible(Arc<Mutex<Fake>>);

impl Iptables for Incompatible {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        self.0.lock().unwrap().execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        self.0.lock().unwrap().save(request)
    }

    fn list_chain(
        &mut self,
        family: Family,
        table: Table,
        chain: &ChainName,
    ) -> Result<Option<Chain>, RulesError> {
        let mut fake = self.0.lock().unwrap();
        if family == Family::Ipv6 || table.is_builtin(chain) {
            return fake.list_chain(family, table, chain);
        }
        Ok(fake.ruleset(family).chain(table, chain).cloned())
    }
}

#[test]
fn flushed_chains_of_a_table_that_cannot_be_read_are_written_again() {
    let mut fake = Fake::new();
    fake.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    fake.set_unreadable(Family::Ipv4, Table::Nat);
    let tables = Incompatible(Arc::new(Mutex::new(fake)));
    let mut kernel = kernel();
    kernel.rules = Box::new(tables.clone());
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 3, &[1]);
    assert!(sync(&mut proxier).is_success());
    let nat = || {
        let fake = tables.0.lock().unwrap();
        let ruleset = fake.ruleset(Family::Ipv4);
        ruleset.table(Table::Nat).cloned().unwrap()
    };
    let before = nat();
    type Finds = fn(&mut Proxier);
    let recheck: Finds = |proxier| assert!(proxier.recheck([Key::Fixed(Family::Ipv4)]));
    let resync: Finds = Proxier::resync;
    for (chain, finds) in [
        ("KUBE-POSTROUTING", recheck),
        ("KUBE-POSTROUTING", resync),
        ("KUBE-SERVICES", resync),
    ] {
        let chain = chain.parse().unwrap();
        let flush = Restore::new(Family::Ipv4).with(Table::Nat, Edit::Flush { chain });
        tables.0.lock().unwrap().restore(&flush).unwrap();
        assert_ne!(nat(), before);
        finds(&mut proxier);
        let synced = sync(&mut proxier);
        assert!(synced.is_success(), "{synced}");
        assert_eq!(nat(), before);
        // What is as it was written is not written again.
        proxier.resync();
        let synced = sync(&mut proxier);
        let writes = synced.plan.steps();
        let mut writes = writes.filter(|(_, step)| matches!(step.operation, Operation::Write(_)));
        assert!(writes.next().is_none(), "{}", synced.plan);
    }
}

/// Sysctls of which one cannot be written.
struct ReadOnly {
    fake: FakeSysctls,
    name: &'static str,
    /// Whether it cannot be read either.
    is_unreadable: Arc<AtomicBool>,
}

impl ReadOnly {
    fn error(&self, verb: &'static str) -> SysctlError {
        SysctlError {
            verb,
            name: self.name.into(),
            cause: SysctlErrorCause::File(kernlink_netlink::Errno::EACCES),
        }
    }
}

impl Sysctls for ReadOnly {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        let execute = |sysctl: &Sysctl| {
            if *sysctl.name == *self.name {
                return Err(self.error("write"));
            }
            self.fake.execute(std::slice::from_ref(sysctl)).remove(0)
        };
        sysctls.iter().map(execute).collect()
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        if name == self.name && self.is_unreadable.load(Ordering::Relaxed) {
            return Err(self.error("read"));
        }
        self.fake.read(name)
    }
}

fn drops_invalid(proxier: &mut Proxier) -> bool {
    ipv4(proxier).contains("--ctstate INVALID")
}

#[test]
fn invalid_packets_are_dropped_unless_the_kernel_is_liberal() {
    // Set by another program, without the configuration.
    let mut kernel = kernel();
    kernel.sysctls.execute(&[Sysctl::new(BE_LIBERAL, "1")]);
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    sync(&mut proxier);
    assert!(!drops_invalid(&mut proxier));
    // It is reset later.
    proxier
        .kernel_mut()
        .sysctls
        .execute(&[Sysctl::new(BE_LIBERAL, "0")]);
    proxier.resync();
    sync(&mut proxier);
    assert!(drops_invalid(&mut proxier));
    // The configuration requests it: the rule stays until the sysctl is written.
    let mut liberal = config();
    liberal.conntrack.tcp_be_liberal = true;
    proxier.set_config(&liberal).unwrap();
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success());
    assert_eq!(synced.next, Some(now));
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success());
    assert_eq!(synced.next, None);
    assert!(!drops_invalid(&mut proxier));
}

#[test]
fn invalid_packets_are_dropped_while_the_sysctl_cannot_be_written() {
    let mut kernel = kernel();
    kernel.sysctls = Box::new(ReadOnly {
        fake: FakeSysctls::default(),
        name: BE_LIBERAL,
        is_unreadable: Arc::default(),
    });
    let mut liberal = config();
    liberal.conntrack.tcp_be_liberal = true;
    let mut proxier = Proxier::new(&liberal, kernel).unwrap();
    deliver_numbered(&mut proxier, 1, &[1]);
    let now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(failed(&synced), [Key::Sysctl(BE_LIBERAL.into())]);
    assert!(drops_invalid(&mut proxier));
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!(failed(&synced), [Key::Sysctl(BE_LIBERAL.into())]);
    assert!(drops_invalid(&mut proxier));
}

#[test]
fn invalid_packets_are_not_dropped_while_the_sysctl_that_permits_them_cannot_be_read() {
    let mut fake = FakeSysctls::default();
    fake.execute(&[Sysctl::new(BE_LIBERAL, "1")]);
    let is_unreadable = Arc::new(AtomicBool::new(false));
    let mut kernel = kernel();
    kernel.sysctls = Box::new(ReadOnly {
        fake,
        name: BE_LIBERAL,
        is_unreadable: Arc::clone(&is_unreadable),
    });
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    sync(&mut proxier);
    assert!(!drops_invalid(&mut proxier));
    is_unreadable.store(true, Ordering::Relaxed);
    proxier.resync();
    sync(&mut proxier);
    assert!(!drops_invalid(&mut proxier));
}

#[test]
fn tables_that_could_not_be_read_once_are_read_again_without_a_change() {
    let (kernel, behaviour) = faulty_kernel(FOREIGN);
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    sync(&mut proxier);
    let now = Instant::now();
    behaviour.lock().unwrap().is_unreadable = true;
    proxier.resync();
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.plan.to_string(), "");
    assert_eq!(synced.unread, 2, "the tables of both families");
    let next = synced.next.unwrap();
    behaviour.lock().unwrap().is_unreadable = false;
    let listings = proxier.cost().listings;
    let synced = proxier.sync(next).unwrap();
    assert_eq!(proxier.cost().listings, listings + 1);
    assert!(synced.is_success(), "{synced}");
    assert_eq!((synced.unread, synced.next), (0, None));
}

#[test]
fn an_object_that_cannot_be_read_before_its_retry_is_reported() {
    let mut kernel = kernel();
    let is_unreadable = Arc::new(AtomicBool::new(false));
    kernel.sysctls = Box::new(ReadOnly {
        fake: FakeSysctls::default(),
        name: ROUTE_LOCALNET,
        is_unreadable: Arc::clone(&is_unreadable),
    });
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 1, &[1]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(failed(&synced), [Key::Sysctl(ROUTE_LOCALNET.into())]);
    is_unreadable.store(true, Ordering::Relaxed);
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    let events = synced.events.iter().map(ToString::to_string);
    let text = "host: cannot read sysctl net.ipv4.conf.all.route_localnet";
    assert_eq!(
        events.filter(|event| event.starts_with(text)).count(),
        1,
        "{:?}",
        synced.events
    );
}

#[test]
fn a_recheck_finds_removed_jumps_and_repairs_everything_at_once() {
    let (kernel, behaviour) = faulty_kernel(FOREIGN);
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 4, &[1]);
    let now = Instant::now();
    sync(&mut proxier);
    let before = ipv4(&mut proxier);
    let listings = proxier.cost().listings;
    // Intact: nothing is repaired, and no listing follows.
    assert!(proxier.recheck([Key::Fixed(Family::Ipv4), Key::Fixed(Family::Ipv6)]));
    let synced = sync(&mut proxier);
    assert!(synced.plan.is_empty() && synced.next.is_none());
    assert_eq!(proxier.cost().listings, listings);
    // `iptables -t nat -F`, and then the foreign rules again.
    let flushed: String = before
        .lines()
        .filter(|line| !(line.starts_with("-A") && line.contains("KUBE-")) || line.contains("of the kubelet"))
        .map(|line| format!("{line}\n"))
        .collect();
    let mut fake = Fake::new();
    fake.set_ruleset(Family::Ipv4, flushed.parse().unwrap());
    let ipv6 = saved(&mut proxier, Family::Ipv6);
    fake.set_ruleset(Family::Ipv6, ipv6);
    proxier.kernel_mut().rules = Box::new(Rules { fake, behaviour });
    assert!(proxier.recheck([Key::Fixed(Family::Ipv4)]));
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(synced.next, Some(now));
    let after = saved(&mut proxier, Family::Ipv4);
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&after.to_string()), lines(&before));
    assert!(sync(&mut proxier).plan.is_empty());
    assert_eq!(proxier.cost().listings, listings + 1);
}

#[test]
fn rules_that_another_program_removes_again_and_again_are_repaired_less_often() {
    let mut proxier = filled(2);
    let mut now = Instant::now();
    for round in 1..=3 {
        now += Duration::from_secs(30);
        let flush = Restore::new(Family::Ipv4).with(
            Table::Nat,
            Edit::Flush {
                chain: "PREROUTING".parse().unwrap(),
            },
        );
        proxier.kernel_mut().rules.restore(&flush).unwrap();
        proxier.resync();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success());
        let is_reported = synced
            .events
            .iter()
            .any(|event| event.to_string().contains("another program"));
        assert_eq!(is_reported, round == 3, "{round}: {:?}", synced.events);
        assert_eq!(synced.no_listing_before.is_some(), round == 3);
    }
}

#[test]
fn nothing_is_rechecked_before_the_first_listing() {
    let mut proxier = proxier_on(kernel());
    assert!(!proxier.recheck([Key::Fixed(Family::Ipv4)]));
    deliver_numbered(&mut proxier, 1, &[1]);
    sync(&mut proxier);
    change_endpoints(&mut proxier, 0, &[2]);
    proxier.recheck_addresses();
    assert!(sync(&mut proxier).is_success());
}
