//! Events about what could not be read outside a full listing, and about Services.

use std::collections::BTreeSet;

use kernlink_services::Event;

/// Events that no sync has returned yet. One about what could not be read is returned once between two listings.
#[derive(Clone, Debug, Default)]
pub(super) struct Events {
    reported: BTreeSet<Event>,
    pending: Vec<Event>,
}

impl Events {
    /// A full listing returned these events.
    pub(super) fn replace(&mut self, events: &[Event]) {
        self.reported = events.iter().cloned().collect();
    }

    /// The listing returned these events too.
    pub(super) fn returned(&mut self, events: &[Event]) {
        self.reported.extend(events.iter().cloned());
    }

    /// Adds an event about a Service, which is returned each time that its reason begins.
    pub(super) fn push(&mut self, event: Event) {
        self.pending.push(event);
    }

    pub(super) fn add(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            if self.reported.insert(event.clone()) {
                self.pending.push(event);
            }
        }
    }

    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.pending)
    }
}
