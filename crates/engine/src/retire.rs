//! The removal of what modes left on a node that they do not serve any more.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use kernlink_services::ObjectName;

/// A mode that does not serve the node any more. It finds what it left by its own ownership rules alone, through kernel APIs of its own: it
/// depends on no other mode.
pub trait Retire: fmt::Debug {
    /// What is left, as the commands that remove it. Changes nothing.
    fn leftovers(&mut self, now: Instant) -> Leftovers;

    /// Removes what is left. What fails or cannot be read does not prevent the rest.
    fn remove(&mut self, now: Instant) -> Removed;
}

/// What a mode left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftovers {
    /// The commands that remove it, and a comment for everything that stays. Empty: nothing is left.
    pub commands: String,
    /// What could not be read: it is not known what is left there.
    pub problems: Vec<String>,
}

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The number of operations that were done.
    pub done: usize,
    /// What could not be read or removed, and why.
    pub failures: Vec<String>,
    /// What stays although it is owned, and why.
    pub kept: Vec<String>,
}

/// Removes what these modes left, on a node that no mode serves: a hand-over without a serving mode.
///
/// A mode may find that another one still uses an object that both have. So the modes are asked again as long as anything was removed, in
/// their order. What the last removal of each could not do is returned.
pub fn remove_all(modes: &mut [Box<dyn Retire>], now: Instant) -> Removed {
    let mut all = Removed::default();
    for _ in 0..=modes.len() {
        let removed: Vec<Removed> = modes.iter_mut().map(|mode| mode.remove(now)).collect();
        let done: usize = removed.iter().map(|removed| removed.done).sum();
        (all.failures, all.kept) = (Vec::new(), Vec::new());
        for removed in removed {
            extend(&mut all.failures, removed.failures);
            extend(&mut all.kept, removed.kept);
        }
        all.done += done;
        if done == 0 {
            break;
        }
    }
    all
}

/// The most Services that an event names.
const MOST_NAMES: usize = 3;

/// The names of Services for an event: the first ones, and the number of the others. `None` without any.
#[must_use]
pub fn names(services: &BTreeSet<&ObjectName>) -> Option<String> {
    let first: Vec<String> = services
        .iter()
        .take(MOST_NAMES)
        .map(ToString::to_string)
        .collect();
    if first.is_empty() {
        return None;
    }
    let others = match services.len() - first.len() {
        0 => String::new(),
        others => format!(" and {others} others"),
    };
    Some(format!("{}{others}", first.join(", ")))
}

/// Adds texts that are new: several modes may read one table.
fn extend(texts: &mut Vec<String>, more: Vec<String>) {
    for text in more {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A mode with some objects, which it can remove unless an object of another mode uses them.
    #[derive(Debug)]
    struct Mode {
        objects: Rc<RefCell<Vec<&'static str>>>,
        own: &'static [&'static str],
        used_by: Option<&'static str>,
    }

    impl Retire for Mode {
        fn leftovers(&mut self, _now: Instant) -> Leftovers {
            Leftovers::default()
        }

        fn remove(&mut self, _now: Instant) -> Removed {
            let mut objects = self.objects.borrow_mut();
            let mut removed = Removed {
                failures: vec!["a table cannot be read".to_owned()],
                ..Removed::default()
            };
            if self.used_by.is_some_and(|user| objects.contains(&user)) {
                removed.kept = self.own.iter().map(ToString::to_string).collect();
                return removed;
            }
            let before = objects.len();
            objects.retain(|object| !self.own.contains(object));
            removed.done = before - objects.len();
            removed
        }
    }

    fn modes(
        objects: &Rc<RefCell<Vec<&'static str>>>,
        foreign: Option<&'static str>,
    ) -> Vec<Box<dyn Retire>> {
        let mode = |own: &'static [&'static str], used_by| {
            let objects = Rc::clone(objects);
            Box::new(Mode {
                objects,
                own,
                used_by,
            }) as Box<dyn Retire>
        };
        vec![
            mode(&["a"], Some("b")),
            mode(&["b"], Some("c")),
            mode(&["c"], foreign),
        ]
    }

    #[test]
    fn what_another_mode_uses_is_removed_after_that_mode() {
        let objects = Rc::new(RefCell::new(vec!["a", "b", "c", "foreign"]));
        let removed = remove_all(&mut modes(&objects, None), Instant::now());
        assert_eq!(*objects.borrow(), ["foreign"]);
        assert_eq!((removed.done, removed.kept), (3, Vec::new()));
        // Each mode reports it, after each removal.
        assert_eq!(removed.failures, ["a table cannot be read"]);
    }

    #[test]
    fn an_event_names_few_services() {
        let services = ["a", "b", "c", "d", "e"].map(|name| ObjectName::new("ns", name));
        let named = |most: usize| names(&services.iter().take(most).collect());
        assert_eq!(named(0), None);
        assert_eq!(named(2).unwrap(), "ns/a, ns/b");
        assert_eq!(named(3).unwrap(), "ns/a, ns/b, ns/c");
        assert_eq!(named(5).unwrap(), "ns/a, ns/b, ns/c and 2 others");
    }

    #[test]
    fn what_a_foreign_object_uses_stays_and_is_reported_once() {
        let objects = Rc::new(RefCell::new(vec!["a", "b", "c", "foreign"]));
        let removed = remove_all(&mut modes(&objects, Some("foreign")), Instant::now());
        assert_eq!(objects.borrow().len(), 4);
        assert_eq!(
            (removed.done, removed.kept),
            (0, vec!["a".into(), "b".into(), "c".into()])
        );
    }
}
