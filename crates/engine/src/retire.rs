//! The removal of what modes left on a node that they do not serve any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use ipnet::IpNet;
use kernlink_services::{Changes, Family, FrontendKey, ObjectName, Services};

use crate::class::Class;

/// A mode that does not serve the node any more. It finds what it left by its own ownership rules alone, through kernel APIs of its own: it
/// depends on no other mode.
///
/// While another mode serves the node, the [hand-over](crate::handover) calls [`read`](Self::read) in each listing as long as anything may be
/// left (see [`is_read_again`](Self::is_read_again)), [`compile`](Self::compile) before each plan of the serving mode, and
/// [`retire`](Self::retire) after it was executed, if a [round is due](crate::handover#when-a-round-is-due). [`is_serving`](Self::is_serving) is
/// for the embedder.
/// `--cleanup` calls [`leftovers`](Self::leftovers) or [`remove`](Self::remove) only.
pub trait Retire: fmt::Debug + Send {
    /// The name of the mode in events, such as `IPVS mode`.
    fn mode(&self) -> &'static str;

    /// Whether the mode may write an object with this name. As long as anything of the mode is left, other retiring modes do not remove
    /// such an object. Default: no other mode has the names of this one.
    fn has(&self, _name: &Name<'_>) -> bool {
        false
    }

    /// Whether an absent mode is read again in each later listing; otherwise only until a listing finds nothing of it. For modes whose
    /// presence costs one request. Default: no.
    fn is_read_again(&self) -> bool {
        false
    }

    /// Reads what is left, and returns whether there is anything. Loads no module and creates nothing. A host without the tools or without
    /// the kernel support of the mode has nothing of it. `kept`: the objects that stay, because the serving mode or another retiring one
    /// has them too.
    ///
    /// # Errors
    /// What cannot be read, and why. It is not known then whether anything is left.
    fn read(&mut self, now: Instant, kept: Kept<'_>) -> Result<bool, String>;

    /// Whether the kernel serves Services in this mode: it has a virtual server, a chain of a service port, a portal, or the like. Loads no
    /// module and creates nothing.
    ///
    /// # Errors
    /// What cannot be read, and why.
    fn is_serving(&mut self) -> Result<bool, String>;

    /// Receives the Services, if anything is left: limits of connections depend on them. The first changes name everything. Default: nothing.
    fn compile(&mut self, _services: &Services, _changes: &Changes) {}

    /// The rules that chains of the serving mode must have meanwhile, after the last [`read`](Self::read) or [`retire`](Self::retire).
    /// Default: none.
    fn interim(&self) -> Vec<Interim> {
        Vec::new()
    }

    /// Removes what nothing needs any more: each frontend that is not [unserved](Round::unserved), and the shared objects with the last
    /// frontend. If a step fails, those that need it are [skipped](RetiredOutcome::Skipped). Reads again before what the serving mode may have
    /// changed since [`read`](Self::read). A frontend that is unserved is not kept if the mode admits a client that its present source ranges
    /// do not admit. What fails or cannot be read does not prevent the rest.
    fn retire(&mut self, round: &Round<'_>) -> Retired;

    /// What is left, as the commands that remove it on a node that no mode serves. Changes nothing.
    fn leftovers(&mut self, now: Instant) -> Leftovers;

    /// Removes what is left on a node that no mode serves. What fails or cannot be read does not prevent the rest.
    fn remove(&mut self, now: Instant) -> Removed;
}

/// Whether an object stays. A mode whose objects have names that no other mode uses ignores it.
pub type Kept<'a> = &'a dyn Fn(&Name<'_>) -> bool;

/// The name of an object that several modes may have, such as a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a> {
    /// The family.
    pub family: Family,
    /// The table, such as `nat`.
    pub table: &'a str,
    /// The name, such as `KUBE-SERVICES`.
    pub name: &'a str,
}

/// Rules that a chain of the serving mode must have on top as long as a retiring mode needs them.
///
/// The serving mode writes them when it writes the chain. The retiring mode may delete them before they are missing here; then the serving mode
/// writes the chain once more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interim {
    /// The family.
    pub family: Family,
    /// The table, such as `nat`.
    pub table: &'static str,
    /// The chain, such as `KUBE-SERVICES`.
    pub chain: &'static str,
    /// The rules in order, in the notation of `iptables-save` without `-A` and the chain.
    pub rules: Vec<String>,
}

/// A frontend that the serving mode does not serve yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unserved {
    /// The Service that owns it.
    pub service: ObjectName,
    /// The sources that are admitted. Empty: all.
    pub source_ranges: Arc<[IpNet]>,
}

/// One round of the removal.
pub struct Round<'a> {
    /// The time of the sync.
    pub now: Instant,
    /// The desired frontends that the serving mode does not serve yet, because operations failed or wait.
    pub unserved: &'a BTreeMap<FrontendKey, Unserved>,
    /// Whether the serving mode serves any frontend.
    pub has_served: bool,
    /// The objects that stay, because the serving mode or another retiring one has them too.
    pub kept: Kept<'a>,
    /// Whether steps are executed. Otherwise they are only returned, as [planned](RetiredOutcome::Planned).
    pub executes: bool,
}

impl fmt::Debug for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round")
            .field("now", &self.now)
            .field("unserved", &self.unserved)
            .finish_non_exhaustive()
    }
}

/// What a round did.
#[derive(Clone, Debug, Default)]
pub struct Retired {
    /// The steps, in order.
    pub steps: Vec<RetiredStep>,
    /// The unserved frontends that the mode still serves.
    pub held: BTreeSet<FrontendKey>,
    /// What could not be read, and why: it is not known what is left there.
    pub problem: Option<String>,
    /// When the next round is due, if it is earlier than that after changes, after steps, and for [held](Self::held) frontends, for which the
    /// hand-over has intervals of its own. Such as when connections are to be read again.
    pub next: Option<Instant>,
    /// The number of operations that failed, in this round or before, and that the mode itself tries again at [`next`](Self::next).
    pub waiting: usize,
    /// The number of endpoints that stay until their connections end.
    pub draining: usize,
    /// Whether nothing is left that can be removed. The next listing may find something again.
    pub is_gone: bool,
}

/// A step of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetiredStep {
    /// What it removes, for counts.
    pub class: Class,
    /// The command. It may have many lines.
    pub command: String,
    /// What became of it.
    pub outcome: RetiredOutcome,
}

/// What became of a step of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetiredOutcome {
    /// It was not executed, because only a plan was asked for.
    Planned,
    /// It was done.
    Done,
    /// It was tried and failed, and why.
    Failed(String),
    /// It was not tried, because a step that it needs was not done.
    Skipped,
}

impl RetiredStep {
    /// The first line of the command.
    #[must_use]
    pub fn summary(&self) -> &str {
        self.command.lines().next().unwrap_or_default()
    }
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
    use std::sync::{Mutex, MutexGuard};

    use super::*;

    /// A mode with some objects, which it can remove unless an object of another mode uses them.
    #[derive(Debug)]
    struct Mode {
        objects: Arc<Mutex<Vec<&'static str>>>,
        own: &'static [&'static str],
        used_by: Option<&'static str>,
    }

    impl Retire for Mode {
        fn mode(&self) -> &'static str {
            "a mode"
        }

        fn read(&mut self, _now: Instant, _kept: Kept<'_>) -> Result<bool, String> {
            Ok(true)
        }

        fn is_serving(&mut self) -> Result<bool, String> {
            Ok(false)
        }

        fn retire(&mut self, _round: &Round<'_>) -> Retired {
            Retired::default()
        }

        fn leftovers(&mut self, _now: Instant) -> Leftovers {
            Leftovers::default()
        }

        fn remove(&mut self, _now: Instant) -> Removed {
            let mut objects: MutexGuard<'_, _> = self.objects.lock().unwrap();
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

    fn modes(objects: &Arc<Mutex<Vec<&'static str>>>, foreign: Option<&'static str>) -> Vec<Box<dyn Retire>> {
        let mode = |own: &'static [&'static str], used_by| {
            let objects = Arc::clone(objects);
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
        let objects = Arc::new(Mutex::new(vec!["a", "b", "c", "foreign"]));
        let removed = remove_all(&mut modes(&objects, None), Instant::now());
        assert_eq!(*objects.lock().unwrap(), ["foreign"]);
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
        let objects = Arc::new(Mutex::new(vec!["a", "b", "c", "foreign"]));
        let removed = remove_all(&mut modes(&objects, Some("foreign")), Instant::now());
        assert_eq!(objects.lock().unwrap().len(), 4);
        assert_eq!(
            (removed.done, removed.kept),
            (0, vec!["a".into(), "b".into(), "c".into()])
        );
    }
}
