//! Changes of a source that the proxier has not received: at most one for each object, however long it takes.

use std::mem;

use kernlink_services::{Change, MergedChanges, SourceId};

/// Changes of one source, in which later ones of an object have replaced earlier ones.
#[derive(Debug, Default)]
pub(crate) struct Pending(MergedChanges);

impl Pending {
    /// The only source of these changes. Its number has no meaning outside.
    const SOURCE: SourceId = SourceId(0);

    /// Adds changes in their order.
    pub(crate) fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes
            .into_iter()
            .for_each(|change| self.0.add(Self::SOURCE, change));
    }

    /// Whether there is no change.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes since the last call.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        let changes = mem::take(&mut self.0).into_changes();
        changes.map(|(_, change)| change).collect()
    }
}

#[cfg(test)]
mod tests {
    use kernlink_services::{Kind, ObjectChange, ObjectName, Service};

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("ns", name)
    }

    fn upsert(text: &str, address: &str) -> Change {
        let service = Service::new(name(text)).with_cluster_ip(address);
        Change::Services(ObjectChange::Upsert(service))
    }

    #[test]
    fn the_last_change_of_each_object_remains() {
        let mut pending = Pending::default();
        let delete = || Change::Services(ObjectChange::Delete(name("b")));
        for round in 0..1_000 {
            pending.extend([
                upsert("a", &format!("10.96.{}.1", round % 250)),
                upsert("b", "10.96.0.2"),
            ]);
            pending.extend([delete()]);
        }
        pending.extend([Change::synced(Kind::Node), Change::synced(Kind::Node)]);
        let expected = [upsert("a", "10.96.249.1"), delete(), Change::synced(Kind::Node)];
        assert!(!pending.is_empty());
        assert_eq!(pending.take(), expected);
        assert!(pending.is_empty() && pending.take().is_empty());
    }
}
