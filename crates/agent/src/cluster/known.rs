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

/// A list that is being read. The objects of the first one are delivered together, when it is complete: an attempt that fails leaves nothing. Those
/// of a later one are delivered as they arrive, so that there is no second set of all objects; what is no longer in it is known only at its
/// end.
#[derive(Debug, Default)]
pub(super) struct List {
    /// The changes of the first list.
    held: Vec<Change>,
    /// The names of all objects of the list, also of invalid ones.
    names: HashSet<ObjectName>,
    /// The names of those that are invalid.
    invalid: HashSet<ObjectName>,
    /// Whether the list has an object whose name is not known.
    has_unnamed: bool,
}

impl List {
    /// Adds an object. Returns the change that is delivered at once. An invalid object stays as it was.
    pub(super) fn add(&mut self, item: Item, known: &mut Known) -> Option<Change> {
        let Some(name) = item.name.clone() else {
            self.has_unnamed = true;
            return None;
        };
        let is_deleted = item.change.as_ref().is_some_and(is_deletion);
        match item.change {
            Some(_) => _ = self.invalid.remove(&name),
            // It was valid earlier in a streamed list, and is delivered so.
            None if self.names.contains(&name) => {}
            None => _ = self.invalid.insert(name.clone()),
        }
        if is_deleted {
            self.names.remove(&name);
        } else {
            self.names.insert(name);
        }
        if known.is_synced {
            return known.apply(item);
        }
        self.held.extend(item.change);
        None
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

    /// The changes at the end of a list: the objects of the first one, the deletion of the objects that are not in it, and after the first one `Synced`. An invalid object
    /// stays as it was. If the name of one is not known, nothing is deleted.
    pub(super) fn replace(&mut self, list: List) -> Vec<Change> {
        let mut changes = list.held;
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

    /// Reads a list without its end. Returns what is delivered.
    fn begin(known: &mut Known, valid: &[&str], invalid: &[&str]) -> (List, Vec<Change>) {
        let mut list = List::default();
        let valid = valid.iter().map(|name| item(name, Some(upsert(name))));
        let invalid = invalid.iter().map(|name| item(name, None));
        let changes = valid.chain(invalid).filter_map(|item| list.add(item, known));
        let changes = changes.collect();
        (list, changes)
    }

    /// Reads a list. Returns all that is delivered.
    fn replace(known: &mut Known, valid: &[&str], invalid: &[&str]) -> Vec<Change> {
        let (list, mut changes) = begin(known, valid, invalid);
        changes.extend(known.replace(list));
        changes
    }

    #[test]
    fn the_first_list_is_followed_by_synced() {
        let mut known = Known::new(Kind::Node);
        let synced = Change::synced(Kind::Node);
        assert_eq!(replace(&mut known, &["a"], &[]), [upsert("a"), synced.clone()]);
        assert_eq!(replace(&mut known, &["a"], &[]), [upsert("a")]);
        assert_eq!(replace(&mut Known::new(Kind::Node), &[], &[]), [synced]);
    }

    #[test]
    fn what_is_not_in_a_later_list_is_deleted() {
        let mut known = Known::new(Kind::Node);
        replace(&mut known, &["a", "b"], &[]);
        known.apply(item("c", Some(upsert("c"))));
        known.apply(item("a", Some(delete("a"))));
        let mut changes = replace(&mut known, &["b"], &[]);
        assert_eq!(changes.split_off(1), [delete("c")]);
        assert_eq!(replace(&mut known, &[], &[]), [delete("b")]);
    }

    #[test]
    fn what_was_delivered_of_a_list_that_is_not_completed_is_deleted_at_the_end_of_the_next_one() {
        let mut known = Known::new(Kind::Node);
        // Nothing of the first list is delivered before its end.
        let (_, changes) = begin(&mut known, &["z"], &[]);
        assert_eq!(changes, []);
        assert_eq!(replace(&mut known, &[], &[]), [Change::synced(Kind::Node)]);
        let (_, changes) = begin(&mut known, &["a", "b"], &[]);
        assert_eq!(changes, [upsert("a"), upsert("b")]);
        assert_eq!(replace(&mut known, &["b"], &[]), [upsert("b"), delete("a")]);
        // Nothing is deleted before the end of a list.
        let (list, changes) = begin(&mut known, &["c"], &[]);
        assert_eq!(changes, [upsert("c")]);
        assert_eq!(known.replace(list), [delete("b")]);
    }

    #[test]
    fn an_object_that_is_valid_at_times_during_a_streamed_list_is_known() {
        let valid = || item("a", Some(upsert("a")));
        let invalid = || item("a", None);
        for items in [[valid(), invalid()], [invalid(), valid()]] {
            let mut streamed = List::default();
            let mut known = Known::new(Kind::Node);
            let changes = items
                .into_iter()
                .filter_map(|item| streamed.add(item, &mut known));
            assert_eq!(changes.count(), 0);
            assert_eq!(known.replace(streamed), [upsert("a"), Change::synced(Kind::Node)]);
            assert_eq!(replace(&mut known, &[], &[]), [delete("a")]);
        }
    }

    #[test]
    fn an_object_that_is_deleted_during_a_streamed_list_is_not_known() {
        let mut known = Known::new(Kind::Node);
        replace(&mut known, &[], &[]);
        let mut streamed = List::default();
        let items = [upsert("a"), delete("a")].map(|change| item("a", Some(change)));
        let changes = items
            .into_iter()
            .filter_map(|item| streamed.add(item, &mut known));
        assert_eq!(changes.collect::<Vec<_>>(), [upsert("a"), delete("a")]);
        assert_eq!(known.replace(streamed), []);
        assert_eq!(replace(&mut known, &[], &[]), []);
    }

    #[test]
    fn an_invalid_object_stays_as_it_was() {
        let mut known = Known::new(Kind::Node);
        replace(&mut known, &["a", "b"], &[]);
        assert_eq!(known.apply(item("a", None)), None);
        assert_eq!(replace(&mut known, &["b"], &["a", "new"]), [upsert("b")]);
        assert_eq!(
            replace(&mut known, &["b"], &[]),
            [upsert("b"), delete("a")],
            "new was never known"
        );
        let (mut list, _) = begin(&mut known, &["c"], &[]);
        let unnamed = Item {
            name: None,
            change: None,
            errors: Vec::new(),
        };
        assert_eq!(list.add(unnamed, &mut known), None);
        assert_eq!(known.replace(list), [], "it may be b");
        assert_eq!(replace(&mut known, &["c"], &[]), [upsert("c"), delete("b")]);
    }
}
