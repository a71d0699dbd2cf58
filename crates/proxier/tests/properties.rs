//! What holds for every world: random Services, slices, nodes and addresses, in any order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernlink_ipset::Entry;
use kernlink_ipvs::{ForwardingMethod, VirtualServerKey};
use kernlink_proxier::config::Config;
use kernlink_proxier::desired::{Changes, DesiredState, SetId};
use kernlink_proxier::family::Family;
use kernlink_proxier::model::Model;
use kernlink_proxier::source::{
    Change, EndpointSlice, Kind, Node, ObjectChange, ObjectName, Port, Service, SourceId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::worlds::{Step, node, service, slice, step};
use support::{events, interface_addresses, listings};

/// Everything that a desired state says.
fn everything(model: &Model, desired: &DesiredState) -> String {
    let mut text = String::new();
    for (name, listing) in listings(desired).files() {
        text += &format!("# {name}\n{listing}");
    }
    for event in events(model, desired) {
        text += &format!("{event}\n");
    }
    for family in Family::ALL {
        for server in desired.virtual_servers(family) {
            text += &format!("{} {}\n", server.virtual_server.key, server.owner);
        }
        for check in desired.health_checks(family) {
            text += &format!("{family} {check:?}\n");
        }
    }
    text
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

/// What a planner would know that looks only at the keys it is told of.
#[derive(Debug, Default, PartialEq)]
struct Shadow {
    servers: BTreeMap<VirtualServerKey, String>,
    addresses: BTreeSet<IpAddr>,
    entries: BTreeSet<(Family, SetId, Entry)>,
    rules: BTreeMap<Family, String>,
    health_checks: BTreeMap<(Family, u16), String>,
}

impl Shadow {
    fn of(desired: &DesiredState) -> Self {
        let mut shadow = Shadow::default();
        for family in Family::ALL {
            let servers = desired.virtual_servers(family);
            shadow.servers.extend(servers.map(|s| {
                (
                    s.virtual_server.key,
                    format!("{:?}{:?}", s.virtual_server, s.real_servers),
                )
            }));
            shadow.addresses.extend(desired.addresses(family));
            for set in desired.sets(family) {
                shadow
                    .entries
                    .extend(set.entries().map(|entry| (family, set.id, entry.clone())));
            }
            shadow.rules.insert(family, desired.rules(family).to_string());
            let checks = desired.health_checks(family);
            shadow
                .health_checks
                .extend(checks.map(|check| ((family, check.port.get()), format!("{check:?}"))));
        }
        shadow
    }

    fn catch_up(&mut self, desired: &DesiredState, changes: Changes) {
        let now = Shadow::of(desired);
        let keys = match changes {
            Changes::Keys(keys) => keys,
            _ => {
                *self = now;
                return;
            }
        };
        for key in keys.virtual_servers {
            let wanted = desired.virtual_server(&key);
            match wanted.map(|s| format!("{:?}{:?}", s.virtual_server, s.real_servers)) {
                Some(server) => self.servers.insert(key, server),
                None => self.servers.remove(&key),
            };
        }
        for address in keys.addresses {
            if desired.has_address(address) {
                self.addresses.insert(address)
            } else {
                self.addresses.remove(&address)
            };
        }
        for (family, set, entry) in keys.entries {
            let wanted = desired.set(set, family).contains(&entry);
            let key = (family, set, entry);
            if wanted {
                self.entries.insert(key)
            } else {
                self.entries.remove(&key)
            };
        }
        for family in keys.rules {
            self.rules.insert(family, desired.rules(family).to_string());
        }
        for key in keys.health_checks {
            match now.health_checks.get(&key) {
                Some(check) => self.health_checks.insert(key, check.clone()),
                None => self.health_checks.remove(&key),
            };
        }
    }
}

/// Runs steps on a model and a desired state that is folded as it goes.
fn run(steps: &[Step], mut after_fold: impl FnMut(&mut DesiredState)) -> (Model, DesiredState) {
    let mut model = Model::new(config());
    let mut desired = DesiredState::new(&model);
    for step in steps {
        match step {
            Step::Change(source, change) => {
                model.change(SourceId(*source), change.clone());
            }
            Step::Addresses(addresses) => model.set_interface_addresses(interface_addresses(addresses)),
            Step::Fold => {
                let touched = model.take_touched();
                desired.fold(&model, &touched);
                after_fold(&mut desired);
            }
        }
    }
    let touched = model.take_touched();
    desired.fold(&model, &touched);
    after_fold(&mut desired);
    (model, desired)
}

/// Each object once, the first of its name, then the addresses of the node.
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

/// Steps in an order that the keys give, with folds between them where a bit is set.
fn shuffled(steps: Vec<Step>, keys: &[u64], folds: u64) -> Vec<Step> {
    let mut keyed: Vec<(u64, Step)> = steps
        .into_iter()
        .enumerate()
        // Another key for each step, also where there are more steps than keys.
        .map(|(n, step)| (keys[n % keys.len()].rotate_left(u32::try_from(n).unwrap()), step))
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    let steps = keyed.into_iter().enumerate();
    steps
        .flat_map(|(n, (_, step))| {
            let fold = (folds >> (n % 64) & 1 == 1).then_some(Step::Fold);
            [Some(step), fold].into_iter().flatten()
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_fold_equals_a_rebuild(steps in vec(step(), 1..40)) {
        let (model, folded) = run(&steps, |_| ());
        let mut whole = model.clone();
        // Everything is touched when the configuration changes, and changes back.
        let mut other = config();
        other.masquerade_all = true;
        whole.set_config(other);
        whole.set_config(config());
        let mut rebuilt = DesiredState::new(&whole);
        let touched = whole.take_touched();
        rebuilt.fold(&whole, &touched);
        prop_assert_eq!(everything(&model, &folded), everything(&whole, &rebuilt));
    }

    #[test]
    fn a_model_filled_at_once_is_the_same(steps in vec(step(), 1..40)) {
        let (model, folded) = run(&steps, |_| ());
        let all: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Fold)).collect();
        let (other, at_once) = run(&all, |_| ());
        prop_assert_eq!(everything(&model, &folded), everything(&other, &at_once));
    }

    #[test]
    fn the_order_of_arrival_never_matters(
        services in vec(service(), 1..5),
        slices in vec(slice(), 0..4),
        nodes in vec(node(), 0..3),
        keys in vec(any::<u64>(), 16),
        folds in any::<u64>(),
    ) {
        let steps = arrivals(&services, &slices, &nodes);
        let (model, one) = run(&steps, |_| ());
        let (other, two) = run(&shuffled(steps, &keys, folds), |_| ());
        prop_assert_eq!(everything(&model, &one), everything(&other, &two));
    }

    #[test]
    fn what_was_there_before_never_matters(
        before in vec(step(), 1..30),
        services in vec(service(), 1..5),
        slices in vec(slice(), 0..4),
        nodes in vec(node(), 0..3),
        keys in vec(any::<u64>(), 16),
        folds in any::<u64>(),
    ) {
        let steps = arrivals(&services, &slices, &nodes);
        let (model, fresh) = run(&steps, |_| ());
        // Another world, with conflicts of its own, goes away in some order while this one comes.
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
        let mut all = before;
        all.push(Step::Fold);
        all.extend(shuffled(steps.into_iter().chain(gone).collect(), &keys, folds));
        let (other, later) = run(&all, |_| ());
        prop_assert_eq!(everything(&model, &fresh), everything(&other, &later));
    }

    #[test]
    fn the_changed_keys_are_all_that_changed(steps in vec(step(), 1..40)) {
        let mut shadow = Shadow::default();
        let mut failed = Ok(());
        run(&steps, |desired| {
            let changes = desired.take_changes();
            shadow.catch_up(desired, changes);
            if shadow != Shadow::of(desired) && failed.is_ok() {
                failed = Err(format!("{shadow:#?}\nis not\n{:#?}", Shadow::of(desired)));
            }
        });
        prop_assert!(failed.is_ok(), "{}", failed.unwrap_err());
    }

    #[test]
    fn deleting_everything_leaves_nothing(steps in vec(step(), 1..30)) {
        let mut steps = steps;
        for source in 0..2 {
            steps.push(Step::Change(source, Change::Services(ObjectChange::ReplaceAll(Vec::new()))));
        }
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            prop_assert_eq!(desired.virtual_servers(family).count(), 0);
            prop_assert_eq!(desired.addresses(family).count(), 0);
            prop_assert_eq!(desired.health_checks(family).count(), 0);
            prop_assert_eq!(desired.blocked(family).count(), 0);
            for set in desired.sets(family) {
                prop_assert!(set.is_empty(), "{}", set.definition);
            }
        }
    }

    #[test]
    fn entries_are_as_the_kernel_lists_them(steps in vec(step(), 1..40)) {
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            for set in desired.sets(family) {
                for entry in set.entries() {
                    let again = Entry::parse(&entry.to_string(), set.definition.set_type, set.definition.family);
                    prop_assert_eq!(again.as_ref(), Ok(entry));
                }
            }
        }
    }

    #[test]
    fn what_keeps_its_addresses_is_alike_throughout_and_never_marked(steps in vec(step(), 1..40)) {
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            for server in desired.virtual_servers(family) {
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
                    for marked in [SetId::ClusterIp, SetId::ExternalIp] {
                        prop_assert!(!desired.set(marked, family).contains(entry), "{key}: {set} {entry}");
                    }
                }
            }
        }
    }

    #[test]
    fn frontends_have_a_virtual_server_and_entries_or_neither(steps in vec(step(), 1..40)) {
        let (model, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            // As entries of address, protocol and port.
            let servers: BTreeSet<String> = desired
                .virtual_servers(family)
                .map(|server| {
                    let key = server.virtual_server.key;
                    let protocol = key.protocol().unwrap().to_string().to_lowercase();
                    format!("{},{protocol}:{}", key.address().unwrap(), key.port().unwrap())
                })
                .collect();
            let entries = |ids: &[SetId]| -> BTreeSet<String> {
                ids.iter().flat_map(|id| desired.set(*id, family).entries().map(ToString::to_string).collect::<Vec<_>>()).collect()
            };
            // With an address in the entry.
            let virtual_ips = entries(&[
                SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal, SetId::LoadBalancer,
            ]);
            let sctp = entries(&[SetId::NodePortSctp]);
            for entry in virtual_ips.union(&sctp) {
                prop_assert!(servers.contains(entry), "{entry} has no virtual server");
            }
            // With a port alone: it is served at an address of the node, at least at one that no other Service has.
            let node: Vec<String> =
                model.this_node().node_port_addresses(family).iter().map(ToString::to_string).collect();
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
            // Sets that say more of what is in others.
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
            // What may pass the firewall, and who must not: only where there is one, and there somebody.
            let firewall = entries(&[SetId::LoadBalancerFirewall]);
            let without_source = |entry: String| entry.rsplit_once(',').unwrap().0.to_owned();
            let ranges: BTreeSet<String> =
                entries(&[SetId::LoadBalancerSourceCidr]).into_iter().map(without_source).collect();
            prop_assert_eq!(&ranges, &firewall);
            let itself: BTreeSet<String> =
                entries(&[SetId::LoadBalancerSourceIp]).into_iter().map(without_source).collect();
            let blocked: BTreeSet<String> = desired
                .blocked(family)
                .map(|b| format!("{},{}:{}", b.address, b.protocol.to_string().to_lowercase(), b.port))
                .collect();
            prop_assert!(itself.is_disjoint(&blocked), "{itself:?} {blocked:?}");
            prop_assert_eq!(&itself | &blocked, firewall);
            // An address is bound because something is served there.
            let bound: BTreeSet<String> = desired.addresses(family).map(|a| a.to_string()).collect();
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

#[test]
fn nothing_is_ready_before_every_source_has_said_all() {
    let mut model = Model::new(config());
    assert!(!model.is_ready());
    model.change(SourceId(0), Change::complete(Kind::Service));
    assert!(!model.is_ready());
    model.change(SourceId(0), Change::complete(Kind::EndpointSlice));
    assert!(model.is_ready());
    model.expect(SourceId(7), Kind::EndpointSlice);
    assert!(!model.is_ready());
    model.change(SourceId(7), Change::complete(Kind::EndpointSlice));
    assert!(model.is_ready());
    model.change(SourceId(8), Change::Nodes(ObjectChange::Upsert(Node::new("n"))));
    assert!(!model.is_ready());
}

#[test]
fn a_lower_source_wins_and_both_are_named() {
    let mut model = Model::new(config());
    let service = |address: &str| {
        let service = Service::new(ObjectName::new("ns", "s"))
            .with_cluster_ip(address)
            .with_port(Port::new("", 80));
        Change::Services(ObjectChange::Upsert(service))
    };
    assert_eq!(model.change(SourceId(2), service("10.96.0.2")), []);
    let said = model.change(SourceId(1), service("10.96.0.1"));
    assert_eq!(
        said[0].to_string(),
        "Service ns/s: source 2 has it as well as source 1, whose object counts"
    );
    let address = |model: &Model| {
        let exposures: Vec<_> = model.exposures(&ObjectName::new("ns", "s")).collect();
        exposures[0].frontends[0].address.to_string()
    };
    assert_eq!(address(&model), "10.96.0.1");
    model.change(
        SourceId(1),
        Change::Services(ObjectChange::Delete(ObjectName::new("ns", "s"))),
    );
    assert_eq!(address(&model), "10.96.0.2");
}
