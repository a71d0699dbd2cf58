//! Which part of the first changes a sync of its own compiles and executes before the rest.

use std::collections::HashSet;

use foldhash::quality::RandomState;
use kernlink_services::{Changes, Family, FrontendKey, ObjectName, ServicePortId, Services};

/// Moves what concerns some Services out of `changes`, with the facts of the node. `None` if the changes contain no port of these
/// Services, or nothing else: there is nothing to do first then, and `changes` is not modified.
pub(crate) fn split(services: &Services, names: &[ObjectName], changes: &mut Changes) -> Option<Changes> {
    let ports: HashSet<ServicePortId, RandomState> = names
        .iter()
        .flat_map(|name| services.ports_of(name))
        .map(|(id, _)| id)
        .collect();
    let is_first = |id: &ServicePortId| ports.contains(id);
    if !changes.ports.iter().any(is_first) || changes.ports.iter().all(is_first) {
        return None;
    }
    let mut first = Changes::default();
    (first.ports, changes.ports) = std::mem::take(&mut changes.ports).into_iter().partition(is_first);
    (first.services, changes.services) = std::mem::take(&mut changes.services)
        .into_iter()
        .partition(|name| names.contains(name));
    for id in &first.ports {
        let keys = services.owned_frontends(*id).map(FrontendKey::of);
        first
            .frontends
            .extend(keys.filter(|key| changes.frontends.remove(key)));
    }
    // The rules of both parts depend on them.
    first.node = std::mem::take(&mut changes.node);
    Some(first)
}

/// Changes, and those after them.
pub(crate) fn join(mut changes: Changes, after: Changes) -> Changes {
    let known: HashSet<ServicePortId, RandomState> = changes.ports.iter().copied().collect();
    let new = after.ports.into_iter().filter(|id| !known.contains(id));
    changes.ports.extend(new);
    changes.services.extend(after.services);
    changes.frontends.extend(after.frontends);
    changes.health_checks.extend(after.health_checks);
    changes.node |= after.node;
    changes
}

/// The families of the service ports in changes.
pub(crate) fn families(services: &Services, changes: &Changes) -> Vec<Family> {
    let ports = changes.ports.iter().filter_map(|id| services.port(*id));
    let families: HashSet<Family> = ports.map(|port| port.key.family).collect();
    families.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use kernlink_services::{Change, Config, Kind, ObjectChange, Port, Service, SourceId};

    use super::*;

    /// The Services with these names in namespace `ns`, and the first changes.
    fn changed(names: &[&str]) -> (Services, Changes) {
        let mut services = Services::new(Config::new("node-a"));
        for (last, name) in (1_u8..).zip(names) {
            let service = Service::new(ObjectName::new("ns", *name))
                .with_cluster_ip(format!("10.96.0.{last}"))
                .with_port(Port::new("http", 80))
                .with_port(Port::new("https", 443));
            services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
        }
        services.change(SourceId(0), Change::synced(Kind::Service));
        services.update();
        let changes = services.take_changes();
        (services, changes)
    }

    #[test]
    fn each_change_is_in_one_of_the_two_parts() {
        let (services, whole) = changed(&["a", "b", "c"]);
        let mut rest = whole.clone();
        let first = split(&services, &[ObjectName::new("ns", "b")], &mut rest).unwrap();
        assert_eq!((first.ports.len(), first.frontends.len()), (2, 2));
        assert!(
            first
                .frontends
                .iter()
                .all(|key| key.address.to_string() == "10.96.0.2")
        );
        assert_eq!(first.services, [ObjectName::new("ns", "b")]);
        assert!(first.node && !rest.node);
        assert_eq!(first.ports.len() + rest.ports.len(), whole.ports.len());
        assert_eq!(first.services.len() + rest.services.len(), whole.services.len());
        assert!(first.frontends.is_disjoint(&rest.frontends));
        assert_eq!(
            first.frontends.len() + rest.frontends.len(),
            whole.frontends.len()
        );
        assert!(
            whole
                .ports
                .iter()
                .all(|id| first.ports.contains(id) != rest.ports.contains(id))
        );
        let mut rest = join(first, rest);
        rest.ports.sort_unstable();
        rest.services.sort_unstable();
        let mut whole = whole;
        whole.ports.sort_unstable();
        whole.services.sort_unstable();
        assert_eq!(rest, whole);
    }

    #[test]
    fn a_port_that_changed_before_and_after_is_joined_once() {
        let (_, whole) = changed(&["a", "b"]);
        let joined = join(whole.clone(), whole.clone());
        assert_eq!((joined.ports, joined.frontends), (whole.ports, whole.frontends));
        assert_eq!(joined.node, whole.node);
    }

    #[test]
    fn changes_that_have_only_one_part_are_not_split() {
        let (services, whole) = changed(&["a", "b"]);
        for names in [&["c"][..], &["a", "b"], &[]] {
            let names: Vec<ObjectName> = names.iter().map(|name| ObjectName::new("ns", *name)).collect();
            let mut rest = whole.clone();
            assert_eq!(split(&services, &names, &mut rest), None);
            assert_eq!(rest, whole);
        }
    }
}
