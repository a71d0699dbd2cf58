//! Plans on random clusters, executed on the fake kernel: the desired state is reached, once, in an order that works, and nothing
//! foreign is touched.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use kernlink_dummylink::{DummyLink, LinkAddress, LinkName};
use kernlink_ipset::{Entry, Operation as SetOperation, Set, SetName, SetType};
use kernlink_iptables_restore::{Family as TablesFamily, Save};
use kernlink_ipvs::{
    Family as IpvsFamily, Operation as IpvsOperation, Scheduler, VirtualServer, VirtualServerKey,
};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Operation, Phase, Proxier, SyncError};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    ServiceType, SourceId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::clusters::{Step, step};

fn now() -> Instant {
    Instant::now()
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

/// A host with an address, a foreign virtual server by address and one by mark, a foreign set and a foreign chain.
fn host() -> Kernel {
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let addresses = ["192.0.2.1", "203.0.113.2"].map(|a| LinkAddress::host(a.parse().unwrap()).unwrap());
    kernel.links = Box::new(kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses));
    for key in foreign_servers() {
        let server = VirtualServer::new(key, Scheduler::WLC);
        kernel
            .execute(&Operation::Ipvs(IpvsOperation::AddVirtualServer(server)))
            .unwrap();
    }
    let set = Set::new(SetName::new("blocked").unwrap(), SetType::HashIp);
    let entry = Entry::ip("198.51.100.99".parse().unwrap());
    kernel
        .execute(&Operation::Set(SetOperation::create(set.clone())))
        .unwrap();
    kernel
        .execute(&Operation::Set(SetOperation::add(set.name, entry)))
        .unwrap();
    let mut rules = kernlink_iptables_restore::Fake::new();
    let text = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:mine - [0:0]\n\
                -A INPUT -s 198.51.100.0/24 -j mine\n-A mine -j DROP\nCOMMIT\n";
    for family in TablesFamily::ALL {
        let text = if family == TablesFamily::Ipv6 {
            text.replace("198.51.100.0/24", "2001:db8:7::/48")
        } else {
            text.to_owned()
        };
        rules.set_ruleset(family, text.parse().unwrap());
    }
    kernel.rules = Box::new(rules);
    kernel
}

fn foreign_servers() -> [VirtualServerKey; 3] {
    let address: std::net::IpAddr = "198.51.100.1".parse().unwrap();
    [
        VirtualServerKey::tcp(address, 80),
        // On an address of this node, but with no node port of ours.
        VirtualServerKey::udp("192.0.2.1".parse::<std::net::IpAddr>().unwrap(), 5060),
        VirtualServerKey::mark(IpvsFamily::Ipv4, NonZeroU32::new(7).unwrap()),
    ]
}

/// Virtual servers, sets and addresses that the proxier desires, as text.
fn owned_state(proxier: &Proxier) -> Vec<String> {
    let listings = proxier.state().listings(Default::default(), 1);
    let mut lines: Vec<String> = [&listings.ipvs, &listings.ipset]
        .into_iter()
        .flat_map(|text| text.lines().map(str::to_owned))
        .collect();
    lines.extend(
        listings
            .addresses
            .lines()
            .map(|line| format!("kube-ipvs0 {line}")),
    );
    lines.sort();
    lines
}

/// What the kernel holds, as text. The order of chains means nothing.
fn state(kernel: &mut Kernel) -> String {
    let mut lines = listed(kernel);
    for family in TablesFamily::ALL {
        let rules = kernel.rules.save(&Save::all(family)).unwrap();
        for (table, rules) in rules.tables() {
            let mut chains: Vec<_> = rules.chains().collect();
            chains.sort_by_key(|(name, _)| name.to_string());
            for (name, chain) in chains {
                lines.push(format!("{family:?} {table:?} {name}"));
                lines.extend(chain.rules().map(|rule| format!("    {rule}")));
            }
        }
    }
    lines.join("\n")
}

/// Virtual servers, sets and addresses of the kernel, as text.
fn listed(kernel: &mut Kernel) -> Vec<String> {
    let mut lines = Vec::new();
    for (server, real_servers) in kernel.ipvs.list_all().unwrap() {
        lines.push(server.to_string());
        lines.extend(
            real_servers
                .iter()
                .map(|real| format!("-a {} {real}", server.key)),
        );
    }
    for set in kernel.sets.list().unwrap() {
        let mut definition = set.header.set.clone();
        definition.options.hashsize = None;
        definition.options.maxelem = None;
        definition.options.bucketsize = None;
        definition.options.initval = None;
        lines.push(format!("create {definition}"));
        lines.extend(
            set.entries
                .iter()
                .map(|entry| format!("add {} {entry}", set.header.set.name)),
        );
    }
    for address in kernel.links.list(kernlink_dummylink::Selection::All).unwrap() {
        lines.push(format!("{} {}", address.link, address.address.key));
    }
    lines.sort();
    lines
}

/// A kernel of which so many operations of every hundred fail, chosen by a seed, until it is told to stop.
mod flaky {
    use std::sync::{Arc, Mutex};

    use kernlink_dummylink as link;
    use kernlink_ipset as set;
    use kernlink_iptables_restore as rules;
    use kernlink_ipvs as ipvs;
    use kernlink_proxier::ipvs_mode::Kernel;

    /// Decides which operations fail.
    #[derive(Debug)]
    pub(crate) struct Dice {
        pub(crate) percent: u64,
        pub(crate) seed: u64,
    }

    impl Dice {
        fn fails(&mut self) -> bool {
            // xorshift64
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            self.seed % 100 < self.percent
        }
    }

    pub(crate) type Shared = Arc<Mutex<Dice>>;

    struct Flaky<T> {
        inner: T,
        dice: Shared,
    }

    impl<T> Flaky<T> {
        /// Executes each operation by itself unless it fails.
        fn each<O, E>(
            &mut self,
            operations: &[O],
            error: impl Fn() -> E,
            execute: impl Fn(&mut T, &[O]) -> Vec<Result<(), E>>,
        ) -> Vec<Result<(), E>> {
            let operations = operations.iter();
            let each = |operation| {
                if self.dice.lock().unwrap().fails() {
                    return Err(error());
                }
                execute(&mut self.inner, std::slice::from_ref(operation))
                    .pop()
                    .unwrap()
            };
            operations.map(each).collect()
        }
    }

    pub(crate) fn kernel(kernel: Kernel, dice: &Shared) -> Kernel {
        let dice = || Arc::clone(dice);
        Kernel {
            ipvs: Box::new(Flaky {
                inner: kernel.ipvs,
                dice: dice(),
            }),
            sets: Box::new(Flaky {
                inner: kernel.sets,
                dice: dice(),
            }),
            rules: Box::new(Flaky {
                inner: kernel.rules,
                dice: dice(),
            }),
            links: Box::new(Flaky {
                inner: kernel.links,
                dice: dice(),
            }),
            sysctls: kernel.sysctls,
        }
    }

    impl ipvs::Ipvs for Flaky<Box<dyn ipvs::Ipvs>> {
        fn execute(&mut self, operations: &[ipvs::Operation]) -> Vec<Result<(), ipvs::Error>> {
            self.each(
                operations,
                || ipvs::Error::OutcomeMissing,
                |ipvs, one| ipvs.execute(one),
            )
        }
        fn list_virtual_servers(&mut self) -> Result<Vec<ipvs::VirtualServerStatus>, ipvs::Error> {
            self.inner.list_virtual_servers()
        }
        fn list_real_servers(
            &mut self,
            key: &ipvs::VirtualServerKey,
        ) -> Result<Vec<ipvs::RealServerStatus>, ipvs::Error> {
            self.inner.list_real_servers(key)
        }
        fn timeouts(&mut self) -> Result<ipvs::Timeouts, ipvs::Error> {
            self.inner.timeouts()
        }
    }

    impl rules::Iptables for Flaky<Box<dyn rules::Iptables>> {
        fn execute(&mut self, operations: &[rules::Operation]) -> Vec<Result<(), rules::Error>> {
            let error = || rules::Error::Unexpected {
                tool: "iptables".into(),
                text: "failed by chance".into(),
            };
            self.each(operations, error, |rules, one| rules.execute(one))
        }
        fn save(&mut self, request: &rules::Save) -> Result<rules::Ruleset, rules::Error> {
            self.inner.save(request)
        }
        fn test(&mut self, restore: &rules::Restore) -> Result<(), rules::Error> {
            self.inner.test(restore)
        }
    }

    impl link::DummyLinks for Flaky<Box<dyn link::DummyLinks>> {
        fn execute(&mut self, operations: &[link::Operation]) -> Vec<Result<(), link::Error>> {
            let error = || link::Error::LinkMissing {
                operation: "failed by chance".into(),
                link: link::LinkName::new("none").unwrap(),
            };
            self.each(operations, error, |links, one| links.execute(one))
        }
        fn links(&mut self) -> Result<Vec<link::Link>, link::Error> {
            self.inner.links()
        }
        fn link(&mut self, name: &link::LinkName) -> Result<Option<link::Link>, link::Error> {
            self.inner.link(name)
        }
        fn list(&mut self, selection: link::Selection) -> Result<Vec<link::HostAddress>, link::Error> {
            self.inner.list(selection)
        }
        fn routes(&mut self, link: &link::LinkName) -> Result<Vec<link::LocalRoute>, link::Error> {
            self.inner.routes(link)
        }
    }

    impl set::IpSets for Flaky<Box<dyn set::IpSets>> {
        fn execute(&mut self, operations: &[set::Operation]) -> Vec<Result<(), set::Error>> {
            self.each(
                operations,
                || set::Error::NotAttempted,
                |sets, one| sets.execute(one),
            )
        }
        fn execute_until_failure(&mut self, operations: &[set::Operation]) -> Vec<Result<(), set::Error>> {
            self.inner.execute_until_failure(operations)
        }
        fn list_set(&mut self, name: &set::SetName) -> Result<set::SetContents, set::Error> {
            self.inner.list_set(name)
        }
        fn headers(&mut self) -> Result<Vec<set::SetHeader>, set::Error> {
            self.inner.headers()
        }
    }
}

fn take_in(proxier: &mut Proxier, steps: &[Step]) {
    for step in steps {
        if let Step::Change(source, change) = step {
            proxier.change(SourceId(*source), change.clone());
        }
    }
    for source in [0, 1] {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            proxier.change(SourceId(source), Change::synced(kind));
        }
    }
}

/// The number of rules that look up each set.
fn rules_by_set(kernel: &mut Kernel) -> BTreeMap<String, usize> {
    let mut sets = BTreeMap::new();
    for family in TablesFamily::ALL {
        let rules = kernel.rules.save(&Save::all(family)).unwrap().to_string();
        for rest in rules.split("--match-set ").skip(1) {
            let name = rest.split(' ').next().unwrap_or_default();
            *sets.entry(name.to_owned()).or_default() += 1;
        }
    }
    sets
}

/// Brings the kernel to what the steps say and returns them.
fn synced(kernel: Kernel, steps: &[Step]) -> Kernel {
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    take_in(&mut proxier, steps);
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    proxier.into_kernel()
}

/// The same without saying anything about success.
fn proxier(kernel: Kernel, steps: &[Step]) -> Proxier {
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    take_in(&mut proxier, steps);
    proxier
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_step_succeeds_and_the_kernel_holds_what_is_desired(
        before in vec(step(), 0..25),
        after in vec(step(), 0..25),
    ) {
        let kernel = synced(host(), &before);
        let mut proxier = proxier(kernel, &[before, after].concat());
        let synced = proxier.sync(now()).unwrap();
        prop_assert!(synced.is_success(), "{}", synced);
        // Read back: the kernel holds the desired state, and what is foreign.
        let bare = state(&mut host());
        let foreign: BTreeSet<&str> = bare.lines().filter(|line| !line.starts_with(' ') && !line.starts_with("Ipv")).collect();
        let desired = owned_state(&proxier);
        let observed = listed(proxier.kernel_mut());
        let owned: Vec<&String> = observed.iter().filter(|line| !foreign.contains(line.as_str())).collect();
        prop_assert_eq!(owned, desired.iter().collect::<Vec<_>>());
        proxier.resync();
        let plan = proxier.plan(now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
    }

    #[test]
    fn a_second_sync_does_nothing_nor_does_a_new_process(steps in vec(step(), 0..30)) {
        let mut proxier = proxier(host(), &steps);
        proxier.sync(now()).unwrap();
        prop_assert!(proxier.sync(now()).unwrap().plan.is_empty());
        let kernel = proxier.into_kernel();
        let mut restarted = self::proxier(kernel, &steps);
        let plan = restarted.plan(now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
    }

    #[test]
    fn what_is_known_from_outcomes_is_what_the_kernel_says(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
    ) {
        // The same sync once with what was noted and once with what is read anew.
        let mut noting = proxier(host(), &before);
        noting.sync(now()).unwrap();
        let mut looking = proxier(host(), &before);
        looking.sync(now()).unwrap();
        take_in(&mut noting, &after);
        take_in(&mut looking, &after);
        looking.resync();
        let (noted, read) = (noting.plan(now()).unwrap(), looking.plan(now()).unwrap());
        prop_assert_eq!(noted.to_string(), read.to_string());
    }

    #[test]
    fn random_failures_end_in_the_desired_state_once_they_stop(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
        seed in 1..u64::MAX,
        percent in 1..60_u64,
    ) {
        let whole = [before.clone(), after].concat();
        let undisturbed = state(&mut synced(synced(host(), &before), &whole));
        let dice = std::sync::Arc::new(std::sync::Mutex::new(flaky::Dice { percent, seed }));
        let mut proxier = self::proxier(flaky::kernel(host(), &dice), &before);
        let mut at = now();
        let mut listings = 0;
        for round in 0..400 {
            if round == 3 {
                take_in(&mut proxier, &whole);
            }
            if round == 8 {
                dice.lock().unwrap().percent = 0;
                // What failed for good reasons of its own may be tried with everything else.
                listings = proxier.cost().listings;
            }
            let synced = proxier.sync(at).unwrap();
            prop_assert!(round < 9 || synced.counts().failed == 0, "{}", synced);
            match synced.next {
                Some(next) => at = next,
                None if round > 8 => break,
                None => {}
            }
        }
        prop_assert!(proxier.sync(at).unwrap().is_success());
        // Without another listing of the kernel.
        prop_assert_eq!(proxier.cost().listings, listings);
        let mut kernel = proxier.into_kernel();
        prop_assert_eq!(state(&mut kernel), undisturbed);
    }

    #[test]
    fn what_is_foreign_stays_and_what_was_ours_goes(steps in vec(step(), 0..30)) {
        let bare = state(&mut synced(host(), &[]));
        let kernel = synced(host(), &steps);
        let mut emptied = synced(kernel, &[]);
        prop_assert_eq!(state(&mut emptied), bare);
        let mut untouched = host();
        let foreign = |line: &&str| {
            ["198.51.100", "blocked", "192.0.2.1:5060", "-f 7", "eth0", "mine"].iter().any(|part| line.contains(part))
        };
        let bare = state(&mut emptied);
        let host = state(&mut untouched);
        prop_assert_eq!(bare.lines().filter(foreign).collect::<Vec<_>>(), host.lines().filter(foreign).collect::<Vec<_>>());
    }

    #[test]
    fn a_process_that_dies_at_any_step_leaves_what_the_next_one_brings_to_its_end(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let whole = [before.clone(), after].concat();
        let undisturbed = state(&mut synced(synced(host(), &before), &whole));
        let mut dying = proxier(synced(host(), &before), &whole);
        let plan = dying.plan(now()).unwrap();
        let mut kernel = dying.into_kernel();
        for (_, step) in plan.steps().take(at.index(plan.len() + 1)) {
            kernel.execute(&step.operation).unwrap();
        }
        prop_assert_eq!(state(&mut synced(kernel, &whole)), undisturbed);
    }

    #[test]
    fn a_process_that_dies_and_comes_back_to_an_empty_world_leaves_nothing_of_its_own(
        steps in vec(step(), 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let bare = state(&mut synced(host(), &[]));
        let mut dying = proxier(host(), &steps);
        let plan = dying.plan(now()).unwrap();
        let mut kernel = dying.into_kernel();
        for (_, step) in plan.steps().take(at.index(plan.len() + 1)) {
            kernel.execute(&step.operation).unwrap();
        }
        prop_assert_eq!(state(&mut synced(kernel, &[])), bare);
    }

    #[test]
    fn the_rules_of_a_set_stay_as_long_as_it_has_entries(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
    ) {
        let kernel = synced(host(), &before);
        let mut proxier = proxier(kernel, &[before, after].concat());
        let plan = proxier.plan(now()).unwrap();
        let mut kernel = proxier.into_kernel();
        let rules_before = rules_by_set(&mut kernel);
        for (_, step) in plan.steps() {
            kernel.execute(&step.operation).unwrap();
            if !matches!(step.operation, Operation::Rules(_)) {
                continue;
            }
            let rules = rules_by_set(&mut kernel);
            for contents in kernel.sets.list().unwrap().iter().filter(|set| !set.entries.is_empty()) {
                let name = contents.header.set.name.to_string();
                prop_assert!(rules.get(&name) >= rules_before.get(&name), "{}: {}\n{}", name, step.operation, plan);
            }
        }
    }

    #[test]
    fn steps_need_only_earlier_steps(before in vec(step(), 0..20), after in vec(step(), 0..20)) {
        let kernel = synced(host(), &before);
        let mut proxier = proxier(kernel, &[before, after].concat());
        let plan = proxier.plan(now()).unwrap();
        let phase_of: Vec<Phase> =
            plan.phases().iter().flat_map(|phase| vec![phase.kind; phase.steps.len()]).collect();
        for (id, step) in plan.steps() {
            for need in step.needs.iter().chain(&step.needs_any) {
                let (of, own) = (phase_of[need.index()], phase_of[id.index()]);
                // Lifting a restriction comes before the list of those it let in, in one phase.
                let within = [Phase::AddEntries, Phase::Rules, Phase::RemoveEntries];
                prop_assert!(of < own || (of == own && within.contains(&own) && *need < id), "{} {}", step.operation, own);
            }
        }
        prop_assert_eq!(phase_of.len(), plan.len());
    }
}

fn service(name: &str, address: &str) -> Change {
    let service = Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(address)
        .with_port(Port::new("web", 80));
    Change::Services(ObjectChange::Upsert(service))
}

#[test]
fn nothing_is_planned_before_the_first_full_lists() {
    let mut proxier = Proxier::new(config(), host()).unwrap();
    assert!(matches!(proxier.plan(now()), Err(SyncError::NotSynced(_))));
    proxier.change(SourceId(0), service("a", "10.96.0.1"));
    proxier.change(SourceId(0), Change::synced(Kind::Service));
    assert!(matches!(proxier.sync(now()), Err(SyncError::NotSynced(_))));
    proxier.change(SourceId(0), Change::synced(Kind::EndpointSlice));
    assert!(proxier.sync(now()).unwrap().is_success());
}

/// Nothing in the kernel says any more that it is ours.
#[test]
fn node_ports_leave_an_address_that_leaves_the_node() {
    let mut node_port = Service::new(ObjectName::new("ns", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("web", 80).with_node_port(30_080));
    node_port.service_type = ServiceType::NodePort;
    let mut proxier = proxier(host(), &[]);
    let address: std::net::IpAddr = "203.0.113.50".parse().unwrap();
    let link = LinkName::new("other").unwrap();
    let links = &mut proxier.kernel_mut().links;
    links.add_link(&DummyLink::new(link)).unwrap();
    links.add(&link, &LinkAddress::host(address).unwrap()).unwrap();
    let change = Change::Services(ObjectChange::Upsert(node_port));
    proxier.change(SourceId(0), change);
    assert!(proxier.sync(now()).unwrap().is_success());
    let served = |proxier: &mut Proxier| -> Vec<VirtualServerKey> {
        let listed = proxier.kernel_mut().ipvs.list_all().unwrap();
        listed.into_iter().map(|(server, _)| server.key).collect()
    };
    let of_node = VirtualServerKey::tcp(address, 30_080);
    // Somebody else's, where a node port of ours could be but never was.
    let foreign = VirtualServerKey::tcp("198.51.100.1".parse::<std::net::IpAddr>().unwrap(), 30_080);
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(foreign, Scheduler::WLC));
    proxier.kernel_mut().execute(&Operation::Ipvs(add)).unwrap();
    assert!(served(&mut proxier).contains(&of_node));

    proxier.kernel_mut().links.delete_link(&link).unwrap();
    proxier.resync();
    assert!(proxier.sync(now()).unwrap().is_success());
    let left = served(&mut proxier);
    assert!(!left.contains(&of_node), "{left:?}");
    for foreign in foreign_servers().into_iter().chain([foreign]) {
        assert!(left.contains(&foreign), "{left:?}");
    }
    // A virtual server that somebody puts there later is not ours.
    proxier.resync();
    assert!(proxier.sync(now()).unwrap().plan.is_empty());
    let add = IpvsOperation::AddVirtualServer(VirtualServer::new(of_node, Scheduler::WLC));
    proxier.kernel_mut().execute(&Operation::Ipvs(add)).unwrap();
    proxier.resync();
    assert!(proxier.sync(now()).unwrap().plan.is_empty());
}

#[test]
fn every_setting_of_the_configuration_is_written_once() {
    // Unlike in the other tests, with the limits of tracked connections and the IPVS timeouts.
    let mut config = Config::new("node-a");
    config.strict_arp = true;
    config.ipvs_timeouts.udp = std::time::Duration::from_secs(77);
    let mut proxier = Proxier::new(config, host()).unwrap();
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let plan = synced.plan.to_string();
    for line in [
        "sysctl -w net.ipv4.conf.all.arp_announce=2",
        "sysctl -w net.netfilter.nf_conntrack_tcp_timeout_established=86400",
        "> /sys/module/nf_conntrack/parameters/hashsize",
        "ipvsadm --set 0 0 77",
    ] {
        assert!(plan.contains(line), "{line} is not in\n{plan}");
    }
    assert!(proxier.sync(now()).unwrap().plan.is_empty());
    proxier.resync();
    assert!(proxier.sync(now()).unwrap().plan.is_empty());
}

#[test]
fn a_set_of_another_make_holds_back_its_family_and_not_the_other() {
    let mut kernel = host();
    let set = Set::new(SetName::new("KUBE-6-CLUSTER-IP").unwrap(), SetType::HashIp)
        .with_family(kernlink_ipset::Family::Inet6);
    kernel
        .execute(&Operation::Set(SetOperation::create(set)))
        .unwrap();
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    proxier.change(SourceId(0), service("four", "10.96.0.1"));
    proxier.change(SourceId(0), service("six", "fd00::1"));
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    let synced = proxier.sync(now()).unwrap();
    let counts = synced.counts();
    assert_eq!(counts.failed, 1, "{synced}");
    // Its entry, the rules of the family, the virtual server and the address.
    assert_eq!(counts.skipped, 4, "{synced}");
    assert!(
        synced
            .to_string()
            .contains("failed: ipset create KUBE-6-CLUSTER-IP"),
        "{synced}"
    );
    let servers = proxier.kernel_mut().ipvs.list_all().unwrap();
    assert!(
        servers
            .iter()
            .any(|(server, _)| server.to_string() == "-A -t 10.96.0.1:80 -s rr")
    );
    // The set out of the way, the next sync does the rest and no more.
    let set = SetName::new("KUBE-6-CLUSTER-IP").unwrap();
    proxier
        .kernel_mut()
        .execute(&Operation::Set(SetOperation::destroy(set)))
        .unwrap();
    let due = synced.next.unwrap();
    let synced = proxier.sync(due).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(synced.plan.len(), 5, "{}", synced.plan);
    assert!(proxier.sync(now()).unwrap().plan.is_empty());
}

#[test]
fn one_service_that_the_kernel_refuses_holds_back_only_itself() {
    let mut kernel = host();
    let refused: VirtualServerKey =
        VirtualServerKey::tcp("10.96.0.2".parse::<std::net::IpAddr>().unwrap(), 80);
    let mut ipvs = kernlink_ipvs::Fake::new();
    let operation = IpvsOperation::AddVirtualServer(VirtualServer::new(refused, Scheduler::RR));
    ipvs.refuse(operation, kernlink_netlink::Errno::ENOMEM);
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    for (name, address) in [("a", "10.96.0.1"), ("b", "10.96.0.2"), ("c", "10.96.0.3")] {
        proxier.change(SourceId(0), service(name, address));
    }
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    let synced = proxier.sync(now()).unwrap();
    let counts = synced.counts();
    assert_eq!((counts.failed, counts.skipped), (1, 1), "{synced}");
    let text = synced.to_string();
    assert!(
        text.contains("failed: ipvsadm -A -t 10.96.0.2:80 -s rr (Service ns/b)"),
        "{text}"
    );
    // The number of a step is that of the printed plan.
    let number = text.split_once(": step ").unwrap().1.split(' ').next().unwrap();
    let plan = synced.plan.to_string();
    assert!(
        plan.contains(&format!("[{number}] ipvsadm -A -t 10.96.0.2:80 -s rr\n")),
        "{plan}\n{text}"
    );
    assert_eq!(proxier.kernel_mut().ipvs.list_virtual_servers().unwrap().len(), 2);
}

#[test]
fn a_scheduler_that_the_running_kernel_lacks_fails_by_name_and_holds_back_only_its_service() {
    let with_scheduler = |scheduler: &str| {
        let mut service = Service::new(ObjectName::new("ns", "b"))
            .with_cluster_ip("10.96.0.2")
            .with_port(Port::new("", 80));
        let annotation = "kernlink.io/scheduler".to_owned();
        service.annotations.insert(annotation, scheduler.to_owned());
        Change::Services(ObjectChange::Upsert(service))
    };
    let slice = EndpointSlice::new(ObjectName::new("ns", "b-1"), "b", Family::Ipv4)
        .with_port(EndpointPort::new("", 8080))
        .with_endpoint(Endpoint::new([10, 244, 1, 1].into()));
    let mut kernel = host();
    kernel.ipvs = Box::new(kernlink_ipvs::Fake::new().with_schedulers([Scheduler::RR]));
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    let change = |proxier: &mut Proxier, change| proxier.change(SourceId(0), change);
    change(&mut proxier, service("a", "10.96.0.1"));
    change(&mut proxier, service("c", "10.96.0.3"));
    change(&mut proxier, Change::EndpointSlices(ObjectChange::Upsert(slice)));
    assert_eq!(change(&mut proxier, with_scheduler("twos")), []);
    for kind in [Kind::Service, Kind::EndpointSlice] {
        change(&mut proxier, Change::synced(kind));
    }
    let others = |proxier: &mut Proxier| {
        let servers = proxier.kernel_mut().ipvs.list_virtual_servers().unwrap();
        servers
            .iter()
            .map(|server| server.server.key.to_string())
            .collect::<Vec<_>>()
    };
    let mut at = now();
    for _ in 0..2 {
        let synced = proxier.sync(at).unwrap();
        // The virtual server failed; its real server and its address wait for it.
        let counts = synced.counts();
        assert_eq!((counts.failed, counts.skipped), (1, 2), "{synced}");
        let text = synced.to_string();
        assert!(
            text.contains("failed: ipvsadm -A -t 10.96.0.2:80 -s twos"),
            "{text}"
        );
        assert!(text.contains("scheduler twos"), "{text}");
        assert_eq!(others(&mut proxier), ["-t 10.96.0.1:80", "-t 10.96.0.3:80"]);
        // Until its time has come nothing is tried.
        at = synced.next.unwrap();
        let idle = proxier.sync(at - std::time::Duration::from_millis(1)).unwrap();
        assert!(
            idle.plan.is_empty() && !idle.is_success() && idle.next == Some(at),
            "{idle}"
        );
    }
    // One that no kernel has is reported, and the default is used.
    assert_eq!(change(&mut proxier, with_scheduler("zz")), []);
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let text = synced
        .events
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ");
    assert!(
        text.starts_with(
            "Service ns/b: metadata.annotations[kernlink.io/scheduler]: invalid value \"zz\": no kernel has"
        ),
        "{text}"
    );
    assert_eq!(others(&mut proxier).len(), 3);
    // A virtual server that is there keeps its scheduler, and with it its clients.
    change(&mut proxier, with_scheduler("sed"));
    let synced = proxier.sync(now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 0),
        "{synced}"
    );
    assert_eq!(others(&mut proxier).len(), 3);
}

#[test]
fn a_configured_scheduler_that_no_kernel_has_is_said_once_and_replaced() {
    let mut config = config();
    config.defaults.scheduler = Scheduler::new("zz").unwrap();
    let mut proxier = Proxier::new(config, host()).unwrap();
    proxier.change(SourceId(0), service("a", "10.96.0.1"));
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let said: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "configuration: scheduler: invalid value \"zz\": no kernel has this scheduler, but dh, fo, lblc, lblcr, lc, mh, nq, ovf, rr, sed, \
          sh, twos, wlc, wrr; rr is used"
        ]
    );
    proxier.change(SourceId(0), service("b", "10.96.0.2"));
    assert_eq!(proxier.sync(now()).unwrap().events, []);
}

#[test]
fn a_link_of_another_kind_with_our_name_is_an_error_and_stays() {
    let mut kernel = host();
    let name = LinkName::new("kube-ipvs0").unwrap();
    kernel.links = Box::new(kernlink_dummylink::Fake::new().with_link(name, Some("veth"), &[]));
    let mut proxier = proxier(kernel, &[]);
    let error = proxier.sync(now()).unwrap_err();
    assert!(matches!(error, SyncError::Observe(_)), "{error:?}");
    let link = proxier.kernel_mut().links.link(&name).unwrap().unwrap();
    assert_eq!(link.kind.as_deref(), Some("veth"));
}

#[test]
fn what_failed_and_is_not_wanted_any_more_is_not_waited_for() {
    let slice = |last: u8| {
        let slice = EndpointSlice::new(ObjectName::new("ns", "a-1"), "a", Family::Ipv4)
            .with_port(EndpointPort::new("web", 8080))
            .with_endpoint(Endpoint::new([10, 244, 1, last].into()));
        Change::EndpointSlices(ObjectChange::Upsert(slice))
    };
    let mut kernel = host();
    let address: std::net::IpAddr = "10.96.0.1".parse().unwrap();
    let operation = IpvsOperation::AddRealServer {
        virtual_server: VirtualServerKey::tcp(address, 80),
        real_server: kernlink_ipvs::RealServer::new(
            "10.244.1.255:8080".parse::<std::net::SocketAddr>().unwrap(),
        ),
    };
    let mut ipvs = kernlink_ipvs::Fake::new();
    ipvs.refuse(operation, kernlink_netlink::Errno::EINVAL);
    kernel.ipvs = Box::new(ipvs);
    let mut proxier = Proxier::new(config(), kernel).unwrap();
    proxier.change(SourceId(0), service("a", "10.96.0.1"));
    proxier.change(SourceId(0), slice(255));
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    let at = now();
    let synced = proxier.sync(at).unwrap();
    assert_eq!((synced.counts().failed, synced.waiting), (1, 1), "{synced}");
    // Another endpoint takes its place before the next attempt.
    proxier.change(SourceId(0), slice(1));
    let synced = proxier.sync(at).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!((synced.waiting, synced.next), (0, None));
}

#[test]
fn a_retry_that_fell_due_stays_due_when_the_time_goes_back() {
    let at = now();
    for is_planned in [true, false] {
        let key = VirtualServerKey::tcp("10.96.0.1".parse::<std::net::IpAddr>().unwrap(), 80);
        let operation = IpvsOperation::AddVirtualServer(VirtualServer::new(key, Scheduler::RR));
        let mut kernel = host();
        let mut ipvs = kernlink_ipvs::Fake::new();
        ipvs.refuse(operation, kernlink_netlink::Errno::EINVAL);
        kernel.ipvs = Box::new(ipvs);
        let mut proxier = Proxier::new(config(), kernel).unwrap();
        proxier.change(SourceId(0), service("a", "10.96.0.1"));
        for kind in [Kind::Service, Kind::EndpointSlice] {
            proxier.change(SourceId(0), Change::synced(kind));
        }
        let synced = proxier.sync(at).unwrap();
        assert_eq!((synced.counts().failed, synced.waiting), (1, 1), "{synced}");
        let late = at + Duration::from_secs(3600);
        if is_planned {
            assert!(!proxier.plan(late).unwrap().is_empty());
        } else {
            assert_eq!(proxier.sync(late).unwrap().counts().failed, 1);
        }
        let synced = proxier.sync(at).unwrap();
        assert_eq!(synced.counts().failed, usize::from(is_planned), "{synced}");
        assert_eq!(synced.waiting, 1);
        assert!(synced.next.is_some(), "it is tried again");
    }
}
