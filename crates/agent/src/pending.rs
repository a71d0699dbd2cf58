//! Changes of a source that the proxier has not received: at most one for each object, however long it takes.

use std::collections::BTreeMap;

use kernlink_services::{Change, EndpointSlice, Node, ObjectChange, ObjectName, Service};

/// Changes in which later ones of an object have replaced earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    nodes: Objects<Node>,
}

/// Changes of the objects of one kind.
#[derive(Debug)]
struct Objects<T> {
    /// By name; `None` if the object was deleted.
    objects: BTreeMap<ObjectName, Option<T>>,
    /// Whether the source has no other objects.
    is_all: bool,
    is_synced: bool,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            is_all: false,
            is_synced: false,
        }
    }
}

impl Pending {
    /// Adds changes in their order.
    pub(crate) fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            match change {
                Change::Services(change) => self.services.add(change, |object| &object.name),
                Change::EndpointSlices(change) => self.slices.add(change, |object| &object.name),
                Change::Nodes(change) => self.nodes.add(change, |object| &object.name),
            }
        }
    }

    /// The changes since the last call.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        let Self {
            services,
            slices,
            nodes,
        } = std::mem::take(self);
        let services = services.into_changes().map(Change::Services);
        let slices = slices.into_changes().map(Change::EndpointSlices);
        let nodes = nodes.into_changes().map(Change::Nodes);
        services.chain(slices).chain(nodes).collect()
    }
}

impl<T> Objects<T> {
    fn add(&mut self, change: ObjectChange<T>, name: impl Fn(&T) -> &ObjectName) {
        match change {
            ObjectChange::Upsert(object) => _ = self.objects.insert(name(&object).clone(), Some(object)),
            ObjectChange::Delete(name) if self.is_all => _ = self.objects.remove(&name),
            ObjectChange::Delete(name) => _ = self.objects.insert(name, None),
            ObjectChange::ReplaceAll(objects) => {
                self.is_all = true;
                let objects = objects.into_iter();
                self.objects = objects
                    .map(|object| (name(&object).clone(), Some(object)))
                    .collect();
            }
            ObjectChange::Synced => self.is_synced = true,
        }
    }

    fn into_changes(self) -> impl Iterator<Item = ObjectChange<T>> {
        let is_synced = self.is_synced.then_some(ObjectChange::Synced);
        let (mut all, mut single) = (None, None);
        if self.is_all {
            all = Some(ObjectChange::ReplaceAll(
                self.objects.into_values().flatten().collect(),
            ));
        } else {
            single = Some(self.objects.into_iter().map(|(name, object)| match object {
                Some(object) => ObjectChange::Upsert(object),
                None => ObjectChange::Delete(name),
            }));
        }
        all.into_iter()
            .chain(single.into_iter().flatten())
            .chain(is_synced)
    }
}

#[cfg(test)]
mod tests {
    use kernlink_services::Kind;

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("ns", name)
    }

    fn upsert(text: &str, address: &str) -> Change {
        let service = Service::new(name(text)).with_cluster_ip(address);
        Change::Services(ObjectChange::Upsert(service))
    }

    fn delete(text: &str) -> Change {
        Change::Services(ObjectChange::Delete(name(text)))
    }

    #[test]
    fn the_last_change_of_each_object_remains() {
        let mut pending = Pending::default();
        for round in 0..1_000 {
            pending.extend([
                upsert("a", &format!("10.96.{}.1", round % 250)),
                upsert("b", "10.96.0.2"),
            ]);
            pending.extend([delete("b")]);
        }
        pending.extend([Change::synced(Kind::Node), Change::synced(Kind::Node)]);
        let taken = pending.take();
        assert_eq!(
            taken,
            [
                upsert("a", "10.96.249.1"),
                delete("b"),
                Change::synced(Kind::Node)
            ]
        );
        assert!(pending.take().is_empty());
    }

    #[test]
    fn a_list_replaces_all_earlier_changes() {
        let mut pending = Pending::default();
        pending.extend([upsert("a", "10.96.0.1"), delete("b")]);
        let list = vec![Service::new(name("c")), Service::new(name("d"))];
        pending.extend([
            Change::Services(ObjectChange::ReplaceAll(list)),
            delete("c"),
            upsert("e", "10.96.0.5"),
        ]);
        let taken = pending.take();
        let [Change::Services(ObjectChange::ReplaceAll(services))] = taken.as_slice() else {
            panic!("not one list");
        };
        let names: Vec<String> = services.iter().map(|service| service.name.to_string()).collect();
        assert_eq!(names, ["ns/d", "ns/e"]);
    }
}
