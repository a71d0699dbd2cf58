//! Which objects were delivered, and what a new list changes.

use std::collections::HashSet;

use kernlink_kubernetes::watch::Item;
use kernlink_services::{Change, EndpointSlice, Kind, Node, ObjectChange, ObjectName, Service};

/// The names of the objects of a kind that were delivered.
#[derive(Debug)]
pub(super) struct Known {
    kind: Kind,
    names: HashSet<ObjectName>,
    is_synced: bool,
}

/// A list that is being read.
#[derive(Debug, Default)]
pub(super) struct List {
    changes: Vec<Change>,
    /// The names of all objects of the list, also of invalid ones.
    names: HashSet<ObjectName>,
    /// The names of those that are invalid.
    invalid: HashSet<ObjectName>,
    /// Whether the list has an object whose name is not known.
    has_unnamed: bool,
}

impl List {
    /// Adds an object.
    pub(super) fn add(&mut self, item: Item) {
        let Some(name) = item.name else {
            self.has_unnamed = true;
            return;
        };
        let is_deleted = item.change.as_ref().is_some_and(is_deletion);
        match item.change {
            Some(change) => {
                self.invalid.remove(&name);
                self.changes.push(change);
            }
            // It was valid earlier in a streamed list, and is delivered so.
            None if self.names.contains(&name) => {}
            None => _ = self.invalid.insert(name.clone()),
        }
        if is_deleted {
            self.names.remove(&name);
        } else {
            self.names.insert(name);
        }
    }
}

impl Known {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            names: HashSet::new(),
            is_synced: false,
        }
    }

    /// The change of an event. `None` if its object is invalid: it stays as it was.
    pub(super) fn apply(&mut self, item: Item) -> Option<Change> {
        let (name, change) = (item.name?, item.change?);
        if is_deletion(&change) {
            self.names.remove(&name);
        } else {
            self.names.insert(name);
        }
        Some(change)
    }

    /// The changes of a complete list: its objects, the deletion of those that are not in it, and after the first one `Synced`. An
    /// invalid object stays as it was. If the name of one is not known, nothing is deleted.
    pub(super) fn replace(&mut self, list: List) -> Vec<Change> {
        let mut changes = list.changes;
        let mut names = list.names;
        names.retain(|name| !list.invalid.contains(name) || self.names.contains(name));
        if list.has_unnamed {
            names.extend(self.names.drain());
        }
        let vanished = self.names.difference(&names);
        changes.extend(vanished.map(|name| deletion(self.kind, name.clone())));
        self.names = names;
        if !std::mem::replace(&mut self.is_synced, true) {
            changes.push(Change::synced(self.kind));
        }
        changes
    }
}

fn deletion(kind: Kind, name: ObjectName) -> Change {
    match kind {
        Kind::Service => Change::Services(ObjectChange::Delete(name)),
        Kind::EndpointSlice => Change::EndpointSlices(ObjectChange::Delete(name)),
        Kind::Node => Change::Nodes(ObjectChange::Delete(name)),
    }
}

fn is_deletion(change: &Change) -> bool {
    matches!(
        change,
        Change::Services(ObjectChange::<Service>::Delete(_))
            | Change::EndpointSlices(ObjectChange::<EndpointSlice>::Delete(_))
            | Change::Nodes(ObjectChange::<Node>::Delete(_))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(name: &str, change: Option<Change>) -> Item {
        Item {
            name: Some(ObjectName::new("", name)),
            change,
            errors: Vec::new(),
        }
    }

    fn upsert(name: &str) -> Change {
        Change::Nodes(ObjectChange::Upsert(Node::new(name)))
    }

    fn delete(name: &str) -> Change {
        deletion(Kind::Node, ObjectName::new("", name))
    }

    fn list(valid: &[&str], invalid: &[&str]) -> List {
        let mut list = List::default();
        for name in valid {
            list.add(item(name, Some(upsert(name))));
        }
        for name in invalid {
            list.add(item(name, None));
        }
        list
    }

    #[test]
    fn the_first_list_is_followed_by_synced() {
        let mut known = Known::new(Kind::Node);
        let synced = Change::synced(Kind::Node);
        assert_eq!(known.replace(list(&["a"], &[])), [upsert("a"), synced.clone()]);
        assert_eq!(known.replace(list(&["a"], &[])), [upsert("a")]);
        assert_eq!(Known::new(Kind::Node).replace(List::default()), [synced]);
    }

    #[test]
    fn what_is_not_in_a_later_list_is_deleted() {
        let mut known = Known::new(Kind::Node);
        known.replace(list(&["a", "b"], &[]));
        known.apply(item("c", Some(upsert("c"))));
        known.apply(item("a", Some(delete("a"))));
        let mut changes = known.replace(list(&["b"], &[]));
        assert_eq!(changes.split_off(1), [delete("c")]);
        assert_eq!(known.replace(list(&[], &[])), [delete("b")]);
    }

    #[test]
    fn an_object_that_is_valid_at_times_during_a_streamed_list_is_known() {
        let valid = || item("a", Some(upsert("a")));
        let invalid = || item("a", None);
        for items in [[valid(), invalid()], [invalid(), valid()]] {
            let mut streamed = List::default();
            items.into_iter().for_each(|item| streamed.add(item));
            let mut known = Known::new(Kind::Node);
            assert_eq!(known.replace(streamed), [upsert("a"), Change::synced(Kind::Node)]);
            assert_eq!(known.replace(List::default()), [delete("a")]);
        }
    }

    #[test]
    fn an_invalid_object_stays_as_it_was() {
        let mut known = Known::new(Kind::Node);
        known.replace(list(&["a", "b"], &[]));
        assert_eq!(known.apply(item("a", None)), None);
        assert_eq!(known.replace(list(&["b"], &["a", "new"])), [upsert("b")]);
        assert_eq!(
            known.replace(list(&["b"], &[])).len(),
            2,
            "a is deleted, new was never known"
        );
        let mut unnamed = list(&["c"], &[]);
        unnamed.add(Item {
            name: None,
            change: None,
            errors: Vec::new(),
        });
        assert_eq!(known.replace(unnamed), [upsert("c")], "it may be b");
        assert_eq!(known.replace(list(&["c"], &[])).len(), 2, "b is deleted");
    }
}
