//! Properties of the desired state: random Services, slices, nodes and addresses, in any order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use kernlink_ipset::Entry;
use kernlink_ipvs::ForwardingMethod;
use kernlink_proxier::DataPath;
use kernlink_proxier::ipvs_mode::{Config, FamilyTotals, SetId};
use kernlink_services::{
    Change, Changes, EndpointSlice, Family, FrontendKey, FrontendKind, Kind, Node, ObjectChange, ObjectName,
    Service, TrafficPolicy,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::clusters::{Step, node, service, slice, step};
use crate::support::{Desired, events, interface_addresses, listings};

/// Everything in a desired state, as text.
fn everything(desired: &Desired) -> String {
    let mut text = String::new();
    for (name, listing) in listings(desired).files() {
        text += &format!("# {name}\n{listing}");
    }
    for event in events(desired) {
        text += &format!("{event}\n");
    }
    for family in Family::ALL {
        for server in desired.state.virtual_servers(family) {
            text += &format!("{} {}\n", server.virtual_server.key, server.subject);
        }
        for check in desired.services.health_checks(family) {
            text += &format!("{family} {check:?}\n");
        }
    }
    text
}

/// The lines in which two desired states differ.
fn differences(one: &Desired, other: &Desired) -> String {
    support::difference(
        "",
        &support::lines(&everything(one)),
        &support::lines(&everything(other)),
    )
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

/// A copy of the Services that is updated with the changed keys only, as an embedder does it.
#[derive(Debug, Default, PartialEq)]
struct Shadow {
    frontends: BTreeMap<FrontendKey, String>,
    ports: BTreeMap<usize, String>,
    health_checks: BTreeMap<(Family, u16), String>,
}

impl Shadow {
    fn of(desired: &Desired) -> Self {
        let services = &desired.services;
        let mut shadow = Shadow::default();
        for frontend in services.frontends() {
            shadow
                .frontends
                .insert(frontend.key, Self::frontend(desired, &frontend.key).unwrap());
        }
        for (id, _) in services.ports() {
            shadow.ports.insert(id.index(), Self::port(desired, id).unwrap());
        }
        for family in Family::ALL {
            for check in services.health_checks(family) {
                shadow
                    .health_checks
                    .insert((family, check.port.get()), format!("{check:?}"));
            }
        }
        shadow
    }

    fn frontend(desired: &Desired, key: &FrontendKey) -> Option<String> {
        let frontend = desired.services.frontend(key)?;
        let owner = frontend.owner;
        let frontends: Vec<_> = frontend.frontends().collect();
        Some(format!(
            "{} {:?} {frontends:?} {:?}",
            owner.key, owner.endpoints, owner.options
        ))
    }

    fn port(desired: &Desired, id: kernlink_services::ServicePortId) -> Option<String> {
        let port = desired.services.port(id)?;
        let owned: Vec<_> = desired.services.owned_frontends(id).collect();
        Some(format!("{port:?} {owned:?}"))
    }

    fn catch_up(&mut self, desired: &Desired, changes: &Changes) {
        fn set<K: Ord>(map: &mut BTreeMap<K, String>, key: K, value: Option<String>) {
            match value {
                Some(value) => _ = map.insert(key, value),
                None => _ = map.remove(&key),
            }
        }
        for key in &changes.frontends {
            set(&mut self.frontends, *key, Self::frontend(desired, key));
        }
        for id in &changes.ports {
            set(&mut self.ports, id.index(), Self::port(desired, *id));
        }
        let mut now = Shadow::of(desired).health_checks;
        for key in &changes.health_checks {
            set(&mut self.health_checks, *key, now.remove(key));
        }
    }
}

/// Applies steps to Services and a desired state. Calls `after_update` after each update.
fn run(steps: &[Step], mut after_update: impl FnMut(&Desired, &Changes)) -> Desired {
    let mut desired = Desired::new(&config());
    let mut update = |desired: &mut Desired| {
        let (changes, _) = desired.update();
        after_update(desired, &changes);
    };
    for step in steps {
        match step {
            Step::Change(source, change) => _ = desired.change(*source, change.clone()),
            Step::Addresses(addresses) => desired.set_interface_addresses(interface_addresses(addresses)),
            Step::Update => update(&mut desired),
        }
    }
    update(&mut desired);
    desired
}

/// Each object once, the first one of its name, then the addresses of the node.
fn arrivals(services: &[Service], slices: &[EndpointSlice], nodes: &[Node]) -> Vec<Step> {
    let mut seen = BTreeSet::new();
    let mut first = |kind: Kind, name: &ObjectName| seen.insert((kind, name.clone()));
    let mut changes: Vec<Change> = Vec::new();
    for object in services.iter().filter(|o| first(Kind::Service, &o.name)) {
        changes.push(Change::Services(ObjectChange::Upsert(object.clone())));
    }
    for object in slices.iter().filter(|o| first(Kind::EndpointSlice, &o.name)) {
        changes.push(Change::EndpointSlices(ObjectChange::Upsert(object.clone())));
    }
    for object in nodes.iter().filter(|o| first(Kind::Node, &o.name)) {
        changes.push(Change::Nodes(ObjectChange::Upsert(object.clone())));
    }
    let steps = changes.into_iter().map(|change| Step::Change(0, change));
    let addresses = Step::Addresses("eth0=192.0.2.1,eth1=203.0.113.2");
    steps.chain([addresses]).collect()
}

/// The steps in the order of `keys`, with an update after each step whose bit in `updates` is set.
fn shuffled(steps: Vec<Step>, keys: &[u64], updates: u64) -> Vec<Step> {
    let mut keyed: Vec<(u64, Step)> = steps
        .into_iter()
        .enumerate()
        // Every step has a different key, also if there are more steps than keys.
        .map(|(n, step)| (keys[n % keys.len()].rotate_left(u32::try_from(n).unwrap()), step))
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    let steps = keyed.into_iter().enumerate();
    steps
        .flat_map(|(n, (_, step))| {
            let update = (updates >> (n % 64) & 1 == 1).then_some(Step::Update);
            [Some(step), update].into_iter().flatten()
        })
        .collect()
}

/// The numbers of a family, counted anew.
fn counted(desired: &Desired, family: Family) -> FamilyTotals {
    let (services, state) = (&desired.services, &desired.state);
    let mut totals = FamilyTotals::default();
    let mut without_local: [BTreeSet<&ObjectName>; 2] = Default::default();
    for (_, port) in services.ports().filter(|(_, port)| port.key.family == family) {
        let endpoints = port.endpoints.cluster.iter().chain(&port.endpoints.local);
        let endpoints: BTreeSet<_> = endpoints
            .map(|endpoint| (endpoint.address, endpoint.port))
            .collect();
        totals.service_ports += 1;
        totals.endpoints += endpoints.len();
        let is_without_local = port.endpoints.has_any && port.endpoints.local.is_empty();
        for frontend in port.frontends.iter().filter(|_| is_without_local) {
            if frontend.policy == TrafficPolicy::Local {
                let is_external = frontend.kind != FrontendKind::ClusterIp;
                without_local[usize::from(is_external)].insert(&port.key.name.service);
            }
        }
    }
    for server in state.virtual_servers(family) {
        totals.virtual_servers += 1;
        totals.real_servers += server.real_servers.len();
    }
    totals.addresses = state.addresses(family).count();
    for &set in SetId::ALL {
        totals.entries[set.index()] = state.entries(set, family).len();
    }
    [totals.no_local_internal, totals.no_local_external] = without_local.map(|names| names.len());
    totals
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn an_updated_state_equals_a_rebuilt_one(steps in vec(step(), 1..40)) {
        let updated = run(&steps, |_, _| ());
        // The same Services, all compiled again.
        let mut rebuilt = updated.clone();
        let mut other = config();
        other.services.service_proxy_name = Some("another".to_owned());
        rebuilt.set_config(&other);
        rebuilt.update();
        rebuilt.set_config(&config());
        rebuilt.update();
        prop_assert_eq!(differences(&updated, &rebuilt), "");
    }

    #[test]
    fn the_numbers_of_objects_equal_those_counted_anew(steps in vec(step(), 1..40)) {
        run(&steps, |desired, _| {
            for family in Family::ALL {
                assert_eq!(*desired.state.totals().family(family), counted(desired, family));
            }
        });
    }

    #[test]
    fn many_small_updates_equal_one_large_update(steps in vec(step(), 1..40)) {
        let updated = run(&steps, |_, _| ());
        let all: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Update)).collect();
        let at_once = run(&all, |_, _| ());
        prop_assert_eq!(differences(&updated, &at_once), "");
    }

    #[test]
    fn the_state_does_not_depend_on_the_order_of_arrival(
        services in vec(service(), 1..5),
        slices in vec(slice(), 0..4),
        nodes in vec(node(), 0..3),
        keys in vec(any::<u64>(), 16),
        updates in any::<u64>(),
    ) {
        let steps = arrivals(&services, &slices, &nodes);
        let one = run(&steps, |_, _| ());
        let two = run(&shuffled(steps, &keys, updates), |_, _| ());
        prop_assert_eq!(differences(&one, &two), "");
    }

    #[test]
    fn the_state_does_not_depend_on_deleted_objects(
        before in vec(step(), 1..30),
        services in vec(service(), 1..5),
        slices in vec(slice(), 0..4),
        nodes in vec(node(), 0..3),
        keys in vec(any::<u64>(), 16),
        updates in any::<u64>(),
    ) {
        let steps = arrivals(&services, &slices, &nodes);
        let fresh = run(&steps, |_, _| ());
        // Another cluster, with its own conflicts, is deleted in random order while this one is added.
        let mut kept: BTreeSet<(Kind, ObjectName)> = BTreeSet::new();
        kept.extend(services.iter().map(|o| (Kind::Service, o.name.clone())));
        kept.extend(slices.iter().map(|o| (Kind::EndpointSlice, o.name.clone())));
        kept.extend(nodes.iter().map(|o| (Kind::Node, o.name.clone())));
        let mut names: Vec<(Kind, ObjectName)> = Vec::new();
        for number in 0..5 {
            names.push((Kind::Service, ObjectName::new("ns", format!("s{number}"))));
            names.push((Kind::EndpointSlice, ObjectName::new("ns", format!("e{number}"))));
        }
        names.extend(["node-a", "node-b", "node-c"].map(|name| (Kind::Node, ObjectName::new("", name))));
        let mut gone: Vec<Step> = Vec::new();
        for (kind, name) in names {
            let delete = |source| Step::Change(source, match kind {
                Kind::Service => Change::Services(ObjectChange::Delete(name.clone())),
                Kind::EndpointSlice => Change::EndpointSlices(ObjectChange::Delete(name.clone())),
                Kind::Node => Change::Nodes(ObjectChange::Delete(name.clone())),
            });
            gone.push(delete(1));
            if !kept.contains(&(kind, name.clone())) {
                gone.push(delete(0));
            }
        }
        // The facts of this node's own Node stay in use when it is deleted.
        let is_own_node = |step: &Step| format!("{step:?}").contains("node-a") && matches!(step, Step::Change(_, Change::Nodes(_)));
        let mut all: Vec<Step> = before.into_iter().filter(|step| !is_own_node(step)).collect();
        all.push(Step::Update);
        all.extend(shuffled(steps.into_iter().chain(gone).collect(), &keys, updates));
        let later = run(&all, |_, _| ());
        prop_assert_eq!(differences(&fresh, &later), "");
    }

    #[test]
    fn every_change_is_in_the_changed_keys(steps in vec(step(), 1..40)) {
        let mut shadow = Shadow::default();
        let mut result = Ok(());
        run(&steps, |desired, changes| {
            shadow.catch_up(desired, changes);
            if shadow != Shadow::of(desired) && result.is_ok() {
                result = Err(format!("{shadow:#?}\nis not\n{:#?}", Shadow::of(desired)));
            }
        });
        prop_assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn deleting_everything_leaves_nothing(steps in vec(step(), 1..30)) {
        let mut steps = steps;
        for source in 0..2 {
            steps.push(Step::Change(source, Change::Services(ObjectChange::ReplaceAll(Vec::new()))));
        }
        let desired = run(&steps, |_, _| ());
        for family in Family::ALL {
            prop_assert_eq!(desired.state.virtual_servers(family).count(), 0);
            prop_assert_eq!(desired.state.addresses(family).count(), 0);
            prop_assert_eq!(desired.services.health_checks(family).len(), 0);
            prop_assert_eq!(desired.state.denied_to_node(family).count(), 0);
            for &set in SetId::ALL {
                prop_assert_eq!(desired.state.entries(set, family).len(), 0, "{}", set);
            }
        }
    }

    #[test]
    fn entries_are_as_the_kernel_lists_them(steps in vec(step(), 1..40)) {
        let desired = run(&steps, |_, _| ());
        for family in Family::ALL {
            for &set in SetId::ALL {
                let definition = set.definition(family);
                for entry in desired.state.entries(set, family) {
                    let again = Entry::parse(&entry.to_string(), definition.set_type, definition.family);
                    prop_assert_eq!(again.as_ref(), Ok(entry));
                }
            }
        }
    }

    #[test]
    fn frontends_that_are_not_masqueraded_have_one_method_and_no_entry_that_masquerades(steps in vec(step(), 1..40)) {
        let desired = run(&steps, |_, _| ());
        for family in Family::ALL {
            for server in desired.state.virtual_servers(family) {
                let key = server.virtual_server.key;
                let method = server.real_servers.first().map_or(ForwardingMethod::Masquerade, |first| first.forwarding);
                prop_assert!(server.real_servers.iter().all(|real| real.forwarding == method), "{key}");
                if method == ForwardingMethod::Masquerade {
                    continue;
                }
                prop_assert!(server.real_servers.iter().all(|real| Some(real.key.port) == key.port()), "{key}");
                let sets: BTreeSet<SetId> = server.entries.iter().map(|(set, _)| *set).collect();
                prop_assert!(!sets.contains(&SetId::ClusterIp) && !sets.contains(&SetId::ExternalIp), "{key}: {sets:?}");
                prop_assert!(sets.contains(&SetId::LoadBalancer) == sets.contains(&SetId::LoadBalancerLocal), "{key}: {sets:?}");
                for (set, entry) in server.entries.iter().filter(|(set, _)| *set != SetId::IpvsIps) {
                    for set_with_mark in [SetId::ClusterIp, SetId::ExternalIp] {
                        prop_assert!(!desired.state.has_entry(set_with_mark, family, entry), "{key}: {set} {entry}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_virtual_server_has_entries_and_every_entry_a_virtual_server(steps in vec(step(), 1..40)) {
        let desired = run(&steps, |_, _| ());
        for family in Family::ALL {
            // In the form of entries: address, protocol and port.
            let servers: BTreeSet<String> = desired.state
                .virtual_servers(family)
                .map(|server| {
                    let key = server.virtual_server.key;
                    let protocol = key.protocol().unwrap().to_string().to_lowercase();
                    format!("{},{protocol}:{}", key.address().unwrap(), key.port().unwrap())
                })
                .collect();
            let entries = |ids: &[SetId]| -> BTreeSet<String> {
                ids.iter().flat_map(|id| desired.state.entries(*id, family).map(ToString::to_string).collect::<Vec<_>>()).collect()
            };
            // Entries with an address.
            let virtual_ips = entries(&[
                SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal, SetId::LoadBalancer,
            ]);
            let sctp = entries(&[SetId::NodePortSctp]);
            for entry in virtual_ips.union(&sctp) {
                prop_assert!(servers.contains(entry), "{entry} has no virtual server");
            }
            // Entries with a port only: the port is served at one or more addresses of the node, unless another Service owns the
            // frontend there.
            let node: Vec<String> =
                desired.services.node_facts().node_port_addresses(family).iter().map(ToString::to_string).collect();
            let mut node_ports = sctp;
            for (set, protocol) in [(SetId::NodePortTcp, "tcp"), (SetId::NodePortUdp, "udp")] {
                for port in entries(&[set]) {
                    let at_node: Vec<String> = node.iter().map(|ip| format!("{ip},{protocol}:{port}")).collect();
                    prop_assert!(at_node.iter().any(|key| servers.contains(key)), "{port} has no virtual server");
                    node_ports.extend(at_node);
                }
            }
            for server in &servers {
                prop_assert!(virtual_ips.contains(server) || node_ports.contains(server), "{server} has no entry");
            }
            // Sets that are subsets of others.
            for (more, of) in [
                (SetId::LoadBalancerLocal, SetId::LoadBalancer),
                (SetId::LoadBalancerFirewall, SetId::LoadBalancer),
                (SetId::NodePortLocalTcp, SetId::NodePortTcp),
                (SetId::NodePortLocalUdp, SetId::NodePortUdp),
                (SetId::NodePortLocalSctp, SetId::NodePortSctp),
            ] {
                let (more, of) = (entries(&[more]), entries(&[of]));
                prop_assert!(more.is_subset(&of), "{more:?} {of:?}");
            }
            // Allow-lists exist exactly for restricted frontends, and the node is either allowed or denied.
            let firewall = entries(&[SetId::LoadBalancerFirewall]);
            let without_source = |entry: String| entry.rsplit_once(',').unwrap().0.to_owned();
            let ranges: BTreeSet<String> =
                entries(&[SetId::LoadBalancerSourceCidr]).into_iter().map(without_source).collect();
            prop_assert_eq!(&ranges, &firewall);
            let itself: BTreeSet<String> =
                entries(&[SetId::LoadBalancerSourceIp]).into_iter().map(without_source).collect();
            let denied: BTreeSet<String> = desired.state
                .denied_to_node(family)
                .map(|b| format!("{},{}:{}", b.address, b.protocol.to_string().to_lowercase(), b.port))
                .collect();
            prop_assert!(itself.is_disjoint(&denied), "{itself:?} {denied:?}");
            prop_assert_eq!(&itself | &denied, firewall);
            // The ledger has the virtual servers.
            prop_assert_eq!(&entries(&[SetId::Ledger]), &servers);
            // Only served addresses are bound.
            let bound: BTreeSet<String> = desired.state.addresses(family).map(|a| a.to_string()).collect();
            prop_assert_eq!(&bound, &entries(&[SetId::IpvsIps]));
            let on_links = ["192.0.2.1", "203.0.113.1", "203.0.113.2", "2001:db8::9"];
            let of_address = |entry: &String| entry.split_once(',').unwrap().0.to_owned();
            let served: BTreeSet<String> = virtual_ips.iter().map(of_address).collect();
            prop_assert!(bound.is_subset(&served), "{bound:?} {served:?}");
            for address in served.difference(&bound) {
                prop_assert!(on_links.contains(&address.as_str()), "{address} is not bound");
            }
        }
    }
}
