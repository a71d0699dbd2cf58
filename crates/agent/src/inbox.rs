//! What the sources delivered and the main thread has not received: the last change of each object, and the last update about everything else,
//! however long it takes. The main thread is away while a tool of iptables hangs, and while nothing reads its log.

use std::mem::{self, Discriminant, discriminant};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernlink_services::Kind;

use crate::cluster::{Problems, Update};
use crate::cluster_objects::MAX_PROBLEMS;
use crate::folder::Reading;
use crate::pending::Pending;

/// What waits.
#[derive(Debug, Default)]
pub(crate) struct Inbox(Mutex<Waiting>);

/// What the sources delivered since the last time.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    /// The last reading of the folder, with the changes of all readings.
    pub(crate) reading: Option<Reading>,
    /// Of the API server.
    pub(crate) updates: Vec<Update>,
}

/// Updates in which later ones about the same have replaced earlier ones.
#[derive(Debug, Default)]
struct Waiting {
    /// Without its changes.
    reading: Option<Reading>,
    of_folder: Pending,
    of_cluster: Pending,
    invalid: Problems,
    ignored: Problems,
    /// At most one about each subject, in their order.
    others: Vec<Update>,
}

impl Inbox {
    /// Adds an update of the API server. Returns whether nothing else waits: the main thread has to be told then, and receives what follows together with it.
    pub(crate) fn add(&self, update: Update) -> bool {
        let mut waiting = self.lock();
        let is_first = waiting.is_empty();
        waiting.add(update);
        is_first
    }

    /// Adds a reading of the folder, as [`add`](Self::add).
    pub(crate) fn add_reading(&self, mut reading: Reading) -> bool {
        let mut waiting = self.lock();
        let is_first = waiting.is_empty();
        waiting.of_folder.extend(mem::take(&mut reading.changes));
        waiting.reading = Some(reading);
        is_first
    }

    /// What was added since the last call.
    pub(crate) fn take(&self) -> Delivered {
        let mut waiting = mem::take(&mut *self.lock());
        let changes = waiting.of_folder.take();
        Delivered {
            reading: waiting
                .reading
                .take()
                .map(|reading| Reading { changes, ..reading }),
            updates: waiting.into_updates(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic while it was locked leaves it valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.reading.is_none()
            && self.of_cluster.is_empty()
            && self.invalid.is_empty()
            && self.ignored.is_empty()
            && self.others.is_empty()
    }

    fn add(&mut self, update: Update) {
        match update {
            Update::Changes(changes) => self.of_cluster.extend(changes),
            Update::Invalid(problems) => self.invalid.append(problems, MAX_PROBLEMS),
            Update::Ignored(problems) => self.ignored.append(problems, MAX_PROBLEMS),
            other => {
                let new = subject(&other);
                self.others.retain(|known| subject(known) != new);
                self.others.push(other);
            }
        }
    }

    fn into_updates(mut self) -> Vec<Update> {
        let mut updates = Vec::new();
        if !self.invalid.is_empty() {
            updates.push(Update::Invalid(self.invalid));
        }
        if !self.ignored.is_empty() {
            updates.push(Update::Ignored(self.ignored));
        }
        if !self.of_cluster.is_empty() {
            updates.push(Update::Changes(self.of_cluster.take()));
        }
        updates.append(&mut self.others);
        updates
    }
}

/// What an update is about. A failure and the end of it are two subjects, so that neither is lost.
fn subject(update: &Update) -> (Discriminant<Update>, Option<Kind>, bool) {
    let kind = match update {
        Update::Failed { kind, .. } | Update::Recovered(kind) => Some(*kind),
        _ => None,
    };
    let is_end = matches!(update, Update::ServiceCidrsFailed(None));
    (discriminant(update), kind, is_end)
}

#[cfg(test)]
mod tests {
    use kernlink_services::{Change, ObjectChange, ObjectName, Service};

    use super::*;

    fn upsert(name: &str, address: String) -> Change {
        let service = Service::new(ObjectName::new("ns", name)).with_cluster_ip(address);
        Change::Services(ObjectChange::Upsert(service))
    }

    fn failed(kind: Kind, problem: &str) -> Update {
        Update::Failed {
            kind,
            problem: problem.to_owned(),
            received: None,
        }
    }

    #[test]
    fn what_waits_is_told_once_and_has_the_last_change_of_each_object() {
        let inbox = Inbox::default();
        let mut told = 0;
        let mut add = |update| told += usize::from(inbox.add(update));
        for round in 0..10_000 {
            let address = format!("10.96.0.{}", round % 200);
            add(Update::Changes(vec![upsert("a", address.clone())]));
            add(Update::Changes(vec![
                upsert("b", address),
                Change::synced(Kind::Service),
            ]));
            add(Update::Invalid(vec![format!("invalid {round}")].into()));
            add(Update::Ignored(
                vec![format!("ignored {round}"), "x".to_owned()].into(),
            ));
            add(failed(Kind::Service, &format!("{round}")));
            add(failed(Kind::Node, &format!("{round}")));
            add(Update::Recovered(Kind::Service));
            add(Update::Node(format!("waiting {round}")));
            add(Update::ServiceCidrs(Vec::new()));
            add(Update::ServiceCidrsFailed(Some(format!("{round}"))));
            add(Update::ServiceCidrsFailed(None));
        }
        assert_eq!(told, 1);
        let problems = |text: fn(usize) -> String, others| Problems {
            texts: (0..MAX_PROBLEMS).map(text).collect(),
            others,
        };
        let ignored = |number: usize| match number % 2 {
            0 => format!("ignored {}", number / 2),
            _ => "x".to_owned(),
        };
        let expected = [
            Update::Invalid(problems(
                |number| format!("invalid {number}"),
                10_000 - MAX_PROBLEMS,
            )),
            Update::Ignored(problems(ignored, 20_000 - MAX_PROBLEMS)),
            Update::Changes(vec![
                upsert("a", "10.96.0.199".to_owned()),
                upsert("b", "10.96.0.199".to_owned()),
                Change::synced(Kind::Service),
            ]),
            failed(Kind::Service, "9999"),
            failed(Kind::Node, "9999"),
            Update::Recovered(Kind::Service),
            Update::Node("waiting 9999".to_owned()),
            Update::ServiceCidrs(Vec::new()),
            Update::ServiceCidrsFailed(Some("9999".to_owned())),
            Update::ServiceCidrsFailed(None),
        ];
        assert_eq!(inbox.take().updates, expected);
        assert_eq!(inbox.take().updates, []);
        assert!(inbox.add(Update::Recovered(Kind::Node)), "it is told again");
    }

    #[test]
    fn a_failure_after_the_end_of_another_one_stays_a_failure() {
        let inbox = Inbox::default();
        for update in [
            failed(Kind::Service, "first"),
            Update::Recovered(Kind::Service),
            failed(Kind::Service, "second"),
        ] {
            inbox.add(update);
        }
        let expected = [Update::Recovered(Kind::Service), failed(Kind::Service, "second")];
        assert_eq!(inbox.take().updates, expected);
    }

    #[test]
    fn readings_of_the_folder_that_wait_are_the_last_one_with_the_changes_of_all() {
        let inbox = Inbox::default();
        let reading = |files, changes| Reading {
            files,
            changes,
            ..Reading::default()
        };
        let mut told = 0;
        for round in 0..1_000 {
            let changes = vec![upsert("a", format!("10.96.0.{}", round % 200))];
            told += usize::from(inbox.add_reading(reading(round, changes)));
            told += usize::from(inbox.add_reading(reading(round, Vec::new())));
        }
        told += usize::from(inbox.add(Update::Recovered(Kind::Node)));
        assert_eq!(told, 1);
        let Delivered { reading, updates } = inbox.take();
        let reading = reading.unwrap();
        assert_eq!(reading.changes, [upsert("a", "10.96.0.199".to_owned())]);
        assert_eq!(
            (reading.files, updates),
            (999, vec![Update::Recovered(Kind::Node)])
        );
        assert!(inbox.take().reading.is_none());
    }
}
