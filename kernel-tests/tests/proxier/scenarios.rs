//! The scenarios of the proxier, each on its own node: the standard tools list the state that the file expects.
//!
//! All scenarios run if the processor is real or `KERNLINK_ALL_SCENARIOS` is set. On an emulated machine that takes many minutes; there a
//! selection runs that contains every form of line. Programs start slowly there, so few are started: links are made by netlink; of equal
//! rules of a family only the first are written to the kernel; of equal tables the tools list the first, and kernlink's crates the others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use kernlink_dummylink::{Client, DummyLink, DummyLinks, LinkAddress, LinkName, Selection};
use kernlink_iptables_restore::{Error, Fake, Family, Iptables, Operation, Restore, Ruleset, Save};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;
use kernlink_proxier::ipvs_mode::{Config, Kernel, KernelRelease, Listings, Proxier, State as DesiredState};
use kernlink_services::SourceId;

use crate::scenario::{Scenario, sections};
use crate::support::{State, assert_same, chains, feed, jump, load_sets, sorted, sync, without_sizes};

#[test]
fn scenarios_are_in_the_kernel_as_expected() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proxier/tests/scenarios/desired");
    let mut scenarios = Scenario::all(&folder);
    scenarios.retain(|scenario| !scenario.is_of_another_host());
    assert!(scenarios.len() > 100, "{} scenarios", scenarios.len());
    if is_emulated() && std::env::var_os("KERNLINK_ALL_SCENARIOS").is_none() {
        scenarios = with_every_form(scenarios);
    }
    let mut reference = Reference::new();
    for scenario in &scenarios {
        NetNs::bare().run(|| on_a_node(scenario, &mut reference));
    }
}

/// Whether the processor is QEMU's emulation.
fn is_emulated() -> bool {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    processors.contains("QEMU TCG CPU")
}

/// A small number of scenarios that contain every form of line in any of them: virtual and real servers, entries, rules, sysctls and
/// changes, without regard to addresses and ports. A scenario with a form that no other has is always included.
fn with_every_form(scenarios: Vec<Scenario>) -> Vec<Scenario> {
    let mut left: Vec<(Scenario, BTreeSet<String>)> = scenarios
        .into_iter()
        .map(|scenario| {
            let forms = forms(&scenario);
            (scenario, forms)
        })
        .collect();
    let mut chosen = Vec::new();
    while let Some(most) = (0..left.len()).max_by_key(|n| left[*n].1.len()) {
        let (scenario, forms) = left.remove(most);
        if forms.is_empty() {
            break;
        }
        for (_, others) in &mut left {
            others.retain(|form| !forms.contains(form));
        }
        chosen.push(scenario);
    }
    chosen
}

fn forms(scenario: &Scenario) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    scenario.run(&config(scenario), |stage, desired, _| {
        let listings = desired.state.listings(scenario.kernel(), 1);
        for (_, listing) in listings.files() {
            forms.extend(listing.lines().map(form));
        }
        let links = scenario.links(stage).unwrap_or_default();
        forms.extend(
            links
                .into_iter()
                .map(|(link, _)| format!("stage {} {link}", stage.min(1))),
        );
    });
    forms
}

/// A line without its addresses, networks and numbers.
fn form(line: &str) -> String {
    let words = line.split([' ', ',']).map(|word| {
        let (word, port) = match word.rsplit_once(':') {
            Some((word, port)) if port.parse::<u16>().is_ok() && !word.ends_with(':') => (word, ":N"),
            _ => (word, ""),
        };
        let address = word.split('/').next().unwrap_or_default();
        match address.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => format!("IPv4{port}"),
            Ok(IpAddr::V6(_)) => format!("IPv6{port}"),
            Err(_) if word.parse::<u64>().is_ok_and(|number| number > 0) => "N".to_owned(),
            Err(_) => format!("{word}{port}"),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// The configuration without the limits of connection tracking, which all namespaces share. Removed endpoints are deleted at once, so that
/// one sync reaches the desired state.
fn config(scenario: &Scenario) -> Config {
    let mut config = scenario.config();
    config.services.defaults.drain_timeout = Some(Duration::ZERO);
    config.conntrack.max_per_core = 0;
    config
}

fn on_a_node(scenario: &Scenario, reference: &mut Reference) {
    let release: KernelRelease = tools::sysctl("kernel.osrelease").parse().unwrap();
    let mut desired_at: Vec<Listings> = Vec::new();
    scenario.run(&config(scenario), |_, desired, _| {
        desired_at.push(desired.state.listings(release, 1));
    });
    let mut kernel = Kernel::open().unwrap();
    let unseen = reference.unseen(&desired_at);
    kernel.rules = Box::new(SomeRules {
        kernel: kernlink_iptables_restore::Client::new(),
        memory: Fake::new(),
        in_kernel: unseen.clone(),
    });
    let mut proxier = Proxier::new(&config(scenario), kernel).unwrap();
    let mut links = Links::default();
    for (stage, desired) in desired_at.iter().enumerate() {
        let what = format!("{}, stage {stage}: {}", scenario.name, scenario.why);
        // The file equals the desired state; below, the kernel is compared with the desired state.
        for (section, listed) in sections(desired, &reference.bare) {
            if ["ipvs", "entries", "addresses", "rules"].contains(&section) {
                let expected = scenario.stages[stage].expected(section).unwrap_or_default();
                assert_eq!(expected, listed, "{what}: {section}");
            }
        }
        if let Some(addresses) = scenario.links(stage) {
            links.replace(&addresses);
            proxier.resync();
        }
        for change in scenario.changes(stage).0 {
            proxier.change(SourceId(0), change);
        }
        sync(&mut proxier);
        for table in [Table::Ipvs, Table::Ipset, Table::Addresses] {
            let actual = if reference.tables.insert((table, table.of(desired))) {
                table.by_tool()
            } else {
                table.by_crate(proxier.kernel_mut())
            };
            assert_eq!(actual, sorted(&table.of(desired)), "{what}: {table:?}");
        }
        for line in desired.sysctl.lines() {
            let (name, value) = line.split_once(" = ").unwrap();
            assert_eq!(tools::sysctl(name), value, "{what}: {name}");
        }
        if !desired.timeouts.is_empty() {
            // 0 keeps the kernel's value.
            let listed = tools::must("ipvsadm", &["--list", "--timeout"]);
            let times = listed.split_once(':').unwrap().1.split_whitespace();
            for (actual, desired) in times.zip(desired.timeouts.split_whitespace()) {
                assert!(desired == "0" || actual == desired, "{what}: {listed}");
            }
        }
        for family in &unseen {
            reference.check(*family, desired, &what);
        }
    }
}

/// The kernel's tables other than rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Table {
    Ipvs,
    Ipset,
    Addresses,
}

impl Table {
    fn of(self, desired: &Listings) -> String {
        match self {
            Table::Ipvs => desired.ipvs.clone(),
            Table::Ipset => desired.sets(),
            Table::Addresses => desired.addresses.clone(),
        }
    }

    /// As `ipvsadm -Sn`, `ipset save` or `ip address` lists it.
    fn by_tool(self) -> Vec<String> {
        match self {
            Table::Ipvs => sorted(&tools::ipvsadm_save()),
            Table::Ipset => without_sizes(&tools::ipset_save()),
            Table::Addresses => {
                let shown = tools::must("ip", &["-o", "address", "show", "dev", "kube-ipvs0"]);
                let addresses = shown.lines().filter_map(|line| line.split_whitespace().nth(3));
                let mut addresses: Vec<String> = addresses.map(str::to_owned).collect();
                addresses.sort();
                addresses
            }
        }
    }

    /// As kernlink's crate lists it.
    fn by_crate(self, kernel: &mut Kernel) -> Vec<String> {
        let mut lines = String::new();
        match self {
            Table::Ipvs => {
                for (server, real_servers) in kernel.ipvs.list_all().unwrap() {
                    lines += &format!("{server}\n");
                    let key = server.key;
                    let real_servers = real_servers.iter();
                    lines.extend(real_servers.map(|real| format!("-a {key} {real}\n")));
                }
            }
            Table::Ipset => {
                for set in kernel.sets.list().unwrap() {
                    lines += &format!("create {}\n", set.header.set);
                    let (name, entries) = (set.header.set.name, set.entries.iter());
                    lines.extend(entries.map(|entry| format!("add {name} {entry}\n")));
                }
                return without_sizes(&lines);
            }
            Table::Addresses => {
                let link = LinkName::new("kube-ipvs0").unwrap();
                for address in kernel.links.list(Selection::On(link)).unwrap() {
                    lines += &format!("{}\n", address.address.key);
                }
            }
        }
        sorted(&lines)
    }
}

/// The links of a node without loopback; each is a dummy device.
#[derive(Default)]
struct Links(BTreeSet<LinkName>);

impl Links {
    fn replace(&mut self, addresses: &[(String, IpAddr)]) {
        let mut client = Client::open().unwrap();
        for link in std::mem::take(&mut self.0) {
            client.delete_link(&link).unwrap();
        }
        for (link, address) in addresses {
            let name = LinkName::new(link).unwrap();
            if link != "lo" {
                if link != "kube-ipvs0" {
                    self.0.insert(name);
                }
                client.ensure_link(&DummyLink::new(name)).unwrap();
                client
                    .ensure(&name, &LinkAddress::host(*address).unwrap())
                    .unwrap();
            } else if ![
                IpAddr::from([127, 0, 0, 1]),
                IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
            ]
            .contains(address)
            {
                // Loopback is not a dummy device.
                tools::ip(&["address", "add", &format!("{address}/32"), "dev", "lo"]);
            }
        }
    }
}

/// The rules of some families in the kernel, and those of the others in memory.
struct SomeRules {
    kernel: kernlink_iptables_restore::Client,
    memory: Fake,
    in_kernel: BTreeSet<Family>,
}

impl SomeRules {
    fn of(&mut self, family: Family) -> &mut dyn Iptables {
        if self.in_kernel.contains(&family) {
            &mut self.kernel
        } else {
            &mut self.memory
        }
    }
}

impl Iptables for SomeRules {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| self.of(operation.family()).execute_one(operation.clone());
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        self.of(request.family).save(request)
    }

    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        self.of(restore.family).test(restore)
    }
}

/// A namespace in which the standard tools load desired rules, and list them in their own form.
struct Reference {
    namespace: NetNs,
    bare: Listings,
    /// The tables that were listed by the standard tools.
    tables: BTreeSet<(Table, String)>,
    /// The rules that were compared, by family, as the standard tools list them.
    rules: BTreeMap<(Family, String), State>,
}

/// Each family with its tool.
const FAMILIES: [(Family, &str); 2] = [(Family::Ipv4, "iptables"), (Family::Ipv6, "ip6tables")];

fn rules_of(family: Family, desired: &Listings) -> &str {
    match family {
        Family::Ipv4 => &desired.iptables,
        Family::Ipv6 => &desired.ip6tables,
    }
}

impl Reference {
    fn new() -> Self {
        let bare = DesiredState::new(&Scenario::parse("", "").config());
        let bare = bare.listings(KernelRelease::default(), 1);
        let namespace = NetNs::bare();
        namespace.run(|| load_sets(&bare.ipset));
        Self {
            namespace,
            bare,
            tables: BTreeSet::new(),
            rules: BTreeMap::new(),
        }
    }

    /// The families with rules that were not compared yet.
    fn unseen(&self, desired: &[Listings]) -> BTreeSet<Family> {
        let is_new = |family: Family| {
            let mut rules = desired.iter().map(|desired| rules_of(family, desired).to_owned());
            rules.any(|rules| !self.rules.contains_key(&(family, rules)))
        };
        let families = FAMILIES.into_iter().map(|(family, _)| family);
        families.filter(|family| is_new(*family)).collect()
    }

    /// Compares the rules of the calling thread's namespace with the desired ones.
    fn check(&mut self, family: Family, desired: &Listings, what: &str) {
        let (_, program) = FAMILIES.into_iter().find(|(of, _)| *of == family).unwrap();
        let save = format!("{program}-save");
        let actual = chains(program, &tools::must(&save, &[]));
        let rules = rules_of(family, desired).to_owned();
        let namespace = &self.namespace;
        let elsewhere = self.rules.entry((family, rules.clone())).or_insert_with(|| {
            namespace.run(|| {
                feed(
                    &format!("{program}-restore"),
                    &[],
                    &with_jumps(program, &rules, &desired.jumps),
                );
                chains(program, &tools::must(&save, &[]))
            })
        });
        assert_same(&actual, elsewhere, &format!("{what}: {save}"));
    }
}

/// The input of a restore that replaces all rules by these rules and jumps.
fn with_jumps(program: &str, rules: &str, jumps: &str) -> String {
    let mut input = String::new();
    let mut table = "";
    for line in rules.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if line == "COMMIT" {
            let jumps = jumps.lines().filter_map(|line| jump(program, table, line));
            input.extend(jumps);
        }
        input += &format!("{line}\n");
    }
    input
}
