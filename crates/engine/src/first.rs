//! Which part of the first changes is compiled and executed before the rest.

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

/// Undoes [`split`], apart from the order of service ports and Services.
pub(crate) fn join(changes: &mut Changes, first: Changes) {
    changes.ports.extend(first.ports);
    changes.services.extend(first.services);
    changes.frontends.extend(first.frontends);
    changes.node |= first.node;
}

/// The families of the service ports in the first part, and the others.
pub(crate) fn families(services: &Services, first: &Changes) -> (Vec<Family>, Vec<Family>) {
    let ports = first.ports.iter().filter_map(|id| services.port(*id));
    let families: HashSet<Family> = ports.map(|port| port.key.family).collect();
    Family::ALL
        .into_iter()
        .partition(|family| families.contains(family))
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
        join(&mut rest, first);
        rest.ports.sort_unstable();
        rest.services.sort_unstable();
        let mut whole = whole;
        whole.ports.sort_unstable();
        whole.services.sort_unstable();
        assert_eq!(rest, whole);
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
