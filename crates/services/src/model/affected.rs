//! The Services that changes affected, until the next update.

use crate::name_map::NameSet;
use crate::source::ObjectName;

/// The number of names that are kept in any case.
const MIN_LIMIT: usize = 1_024;

/// The names of the Services that changes affected, in the order of the changes.
#[derive(Clone, Debug, Default)]
pub(super) struct AffectedServices {
    /// A Service may occur more than once.
    names: Vec<ObjectName>,
    /// Twice the number of names when repetitions were last removed.
    limit: usize,
}

impl AffectedServices {
    pub(super) fn push(&mut self, name: ObjectName) {
        self.names.push(name);
    }

    pub(super) fn extend(&mut self, names: impl IntoIterator<Item = ObjectName>) {
        self.names.extend(names);
    }

    /// Removes repetitions if there are more than twice as many names as Services. So their number does not grow with the number of changes
    /// if there is no update for a long time, and the first full lists cost nothing here.
    pub(super) fn limit(&mut self, services: usize) {
        if self.names.len() > self.limit.max(2 * services).max(MIN_LIMIT) {
            remove_repetitions(&mut self.names);
            self.limit = 2 * self.names.len();
        }
    }

    /// The names since the last call, each once.
    pub(super) fn take(&mut self) -> Vec<ObjectName> {
        let Self { mut names, .. } = std::mem::take(self);
        if names.len() > 1 {
            remove_repetitions(&mut names);
        }
        names
    }
}

/// Keeps the first occurrence of each name. The order of the changes is kept: it is the order in memory, which makes the first update faster.
fn remove_repetitions(names: &mut Vec<ObjectName>) {
    let mut seen: NameSet<&ObjectName> = NameSet::default();
    seen.reserve(names.len());
    let first: Vec<bool> = names.iter().map(|name| seen.insert(name)).collect();
    let mut first = first.into_iter();
    names.retain(|_| first.next() == Some(true));
}

#[cfg(test)]
mod tests {
    use kernlink_base::Family;

    use super::*;
    use crate::config::Config;
    use crate::model::{InterfaceAddress, Model};
    use crate::source::{Change, EndpointSlice, Node, ObjectChange, Port, Service, ServiceType, SourceId};

    fn service(name: &str, version: u16) -> Change {
        let mut service = Service::new(ObjectName::new("ns", name))
            .with_cluster_ip("10.96.0.1")
            .with_port(Port::new("", 1 + version).with_node_port(30_000));
        service.service_type = ServiceType::NodePort;
        service.external_ips = vec!["192.0.2.7".to_owned()];
        Change::Services(ObjectChange::Upsert(service))
    }

    /// The kernel may be unreadable for hours, and every change is delivered.
    #[test]
    fn changes_without_an_update_are_bounded_by_the_services_that_they_affect() {
        let mut model = Model::new(Config::new("node-a"));
        let names = ["b", "a", "c"];
        for version in 0..5_000_u16 {
            for name in names {
                model.change(SourceId(0), service(name, version));
            }
            let slice = ObjectName::new("ns", "a-1");
            let change = if version % 2 == 0 {
                ObjectChange::Upsert(EndpointSlice::new(slice, "a", Family::Ipv4))
            } else {
                ObjectChange::Delete(slice)
            };
            model.change(SourceId(0), Change::EndpointSlices(change));
            let [high, low] = version.to_be_bytes();
            let address = [192, 0, high, low].into();
            model.set_interface_addresses(vec![InterfaceAddress::new("eth0", address)]);
            let other = Node::new("node-b").with_internal_address([192, 0, 2, 7].into());
            let other = Change::Nodes(ObjectChange::Upsert(other));
            model.change(SourceId(1), other);
            model.remove_source(SourceId(1));
            let mut config = Config::new("node-a");
            config.ignore_external_ips = version % 2 == 0;
            model.set_config(config);
            assert!(model.affected.names.len() <= MIN_LIMIT, "version {version}");
        }
        assert_eq!(
            model.take_affected().services,
            names.map(|name| ObjectName::new("ns", name))
        );
        assert_eq!(model.take_affected().services, []);
    }

    #[test]
    fn no_affected_service_is_lost_and_their_order_is_that_of_the_changes() {
        let mut affected = AffectedServices::default();
        let name = |number| ObjectName::new("ns", format!("s{number}"));
        // Of 100 Services, because the others were deleted.
        for number in 0..10_000 {
            affected.extend([name(number), name(number / 2)]);
            affected.limit(100);
            assert!(affected.names.len() <= (2 * (number + 1)).max(MIN_LIMIT));
        }
        assert_eq!(affected.take(), (0..10_000).map(name).collect::<Vec<_>>());
    }
}
