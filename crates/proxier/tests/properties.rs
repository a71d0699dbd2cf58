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
        order in any::<prop::sample::Index>(),
        folds in any::<u64>(),
    ) {
        let upserts = |services: &[Service], slices: &[EndpointSlice], nodes: &[Node]| -> Vec<Step> {
            let unique = |names: Vec<ObjectName>| names.into_iter().collect::<BTreeSet<_>>();
            let mut left = unique(services.iter().map(|s| s.name.clone()).collect());
            let mut steps: Vec<Step> = Vec::new();
            steps.extend(services.iter().filter(|s| left.remove(&s.name)).map(|s| Step::Change(0, Change::Services(ObjectChange::Upsert(s.clone())))));
            let mut left = unique(slices.iter().map(|s| s.name.clone()).collect());
            steps.extend(slices.iter().filter(|s| left.remove(&s.name)).map(|s| Step::Change(0, Change::EndpointSlices(ObjectChange::Upsert(s.clone())))));
            let mut left = unique(nodes.iter().map(|s| s.name.clone()).collect());
            steps.extend(nodes.iter().filter(|s| left.remove(&s.name)).map(|s| Step::Change(0, Change::Nodes(ObjectChange::Upsert(s.clone())))));
            steps.push(Step::Addresses("eth0=192.0.2.1,eth1=203.0.113.2"));
            steps
        };
        let steps = upserts(&services, &slices, &nodes);
        let mut rotated = steps.clone();
        rotated.rotate_left(order.index(steps.len()));
        rotated.reverse();
        let rotated: Vec<Step> = rotated
            .into_iter()
            .enumerate()
            .flat_map(|(n, step)| if folds >> (n % 64) & 1 == 1 { vec![step, Step::Fold] } else { vec![step] })
            .collect();
        let (model, one) = run(&steps, |_| ());
        let (other, two) = run(&rotated, |_| ());
        prop_assert_eq!(everything(&model, &one), everything(&other, &two));
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
            prop_assert_eq!(desired.addresses(family).len(), 0);
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
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
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
            let exact = entries(&[
                SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal, SetId::LoadBalancer,
                SetId::LoadBalancerLocal, SetId::LoadBalancerFirewall, SetId::NodePortSctp, SetId::NodePortLocalSctp,
            ]);
            for entry in &exact {
                prop_assert!(servers.contains(entry), "{entry} has no virtual server");
            }
            // With a port alone.
            let tcp = entries(&[SetId::NodePortTcp, SetId::NodePortLocalTcp]);
            let udp = entries(&[SetId::NodePortUdp, SetId::NodePortLocalUdp]);
            for (ports, protocol) in [(&tcp, "tcp"), (&udp, "udp")] {
                for port in ports {
                    let ending = format!(",{protocol}:{port}");
                    prop_assert!(servers.iter().any(|server| server.ends_with(&ending)), "{port} has no virtual server");
                }
            }
            for server in &servers {
                let (_, rest) = server.split_once(',').unwrap();
                let (protocol, port) = rest.split_once(':').unwrap();
                let by_port = match protocol { "tcp" => &tcp, "udp" => &udp, _ => &exact };
                prop_assert!(exact.contains(server) || by_port.contains(port), "{server} has no entry");
            }
            let bound: BTreeSet<String> = desired.addresses(family).map(|a| a.to_string()).collect();
            prop_assert_eq!(&bound, &entries(&[SetId::IpvsIps]));
            for address in &bound {
                let beginning = format!("{address},");
                prop_assert!(servers.iter().any(|server| server.starts_with(&beginning)));
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
