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
/// A removal on a node without a serving mode, such as `--cleanup`, calls [`retire`](Self::retire) only: see [`remove_all`] and [`leftovers`].
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

    /// Whether addresses of Services of a family are, or may be, on a link of this mode: as long as they are, they are addresses of the node. After
    /// the last [`read`](Self::read) or [`retire`](Self::retire), also if it failed: addresses that are not read may be there. Called only while
    /// anything of the mode is left, or may be. Default: no.
    fn has_virtual_ips(&self, _family: Family) -> bool {
        false
    }

    /// Removes what nothing needs any more: each frontend that is not [unserved](Round::unserved), and the shared objects with the last
    /// frontend. If a step fails, those that need it are [skipped](RetiredOutcome::Skipped). Reads again before what the serving mode may have
    /// changed since [`read`](Self::read). A frontend that is unserved is not kept if the mode admits a client that its present source ranges
    /// do not admit. What fails or cannot be read does not prevent the rest.
    ///
    /// On a node [without a serving mode](Round::has_serving_mode) everything is removed at once: nothing was read before, nothing is retried,
    /// and no connection is waited for. What stays although it is owned is in [`Retired::kept`].
    fn retire(&mut self, round: &Round<'_>) -> Retired;
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
#[derive(Clone, Copy)]
pub struct Round<'a> {
    /// The time of the sync.
    pub now: Instant,
    /// Whether another mode serves the node. Otherwise nothing is unserved, and all objects are removed in one round as far as possible.
    pub has_serving_mode: bool,
    /// The desired frontends that the serving mode does not serve yet, because operations failed or wait.
    pub unserved: &'a BTreeMap<FrontendKey, Unserved>,
    /// Whether the serving mode serves any frontend.
    pub has_served: bool,
    /// The objects that stay, because the serving mode or another retiring one has them too.
    pub kept: Kept<'a>,
    /// Whether steps are executed. Otherwise they are only returned, as [planned](RetiredOutcome::Planned).
    pub executes: bool,
}

impl Round<'static> {
    /// A round on a node without a serving mode, whose steps are executed.
    #[must_use]
    pub fn without_serving_mode(now: Instant) -> Self {
        static NONE: BTreeMap<FrontendKey, Unserved> = BTreeMap::new();
        Self {
            now,
            has_serving_mode: false,
            unserved: &NONE,
            has_served: true,
            kept: &|_| false,
            executes: true,
        }
    }
}

impl Round<'_> {
    /// The step that removes a part of what is left of a family. `execute` makes the change, or returns why it failed; it is not called if steps
    /// are only [planned](RetiredOutcome::Planned).
    pub fn step(
        &self,
        family: Family,
        command: String,
        execute: impl FnOnce() -> Result<(), String>,
    ) -> RetiredStep {
        let outcome = if self.executes {
            execute().map_or_else(RetiredOutcome::Failed, |()| RetiredOutcome::Done)
        } else {
            RetiredOutcome::Planned
        };
        RetiredStep {
            class: Class {
                kind: "leftovers",
                family: Some(family),
                is_shared: false,
            },
            command,
            outcome,
        }
    }
}

impl fmt::Debug for Round<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Round")
            .field("now", &self.now)
            .field("has_serving_mode", &self.has_serving_mode)
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
    pub problems: Vec<String>,
    /// The objects that stay although they are owned, and why, such as a chain to which a foreign rule jumps. Only for a round
    /// [without a serving mode](Round::has_serving_mode).
    pub kept: Vec<String>,
    /// When the next round is due, if it is earlier than that after changes, after steps, and for [held](Self::held) frontends, for which the
    /// hand-over has intervals of its own. Such as when connections are to be read again.
    pub next: Option<Instant>,
    /// The number of operations that failed, in this round or before, and that the mode itself tries again at [`next`](Self::next).
    pub waiting: usize,
    /// The number of endpoints that stay until their connections end.
    pub draining: usize,
    /// Whether nothing is left that can be removed, and no operation that failed has to be made again. The next listing may find something again.
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

/// What modes left.
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
    /// The number of operations that were done, by mode. Modes of which nothing was removed are missing.
    pub done: BTreeMap<&'static str, usize>,
    /// What could not be read or removed, and why.
    pub failures: Vec<String>,
    /// What stays although it is owned, and why.
    pub kept: Vec<String>,
}

/// Removes what these modes left, on a node that no mode serves: a hand-over without a serving mode.
///
/// A mode may find that another one still uses an object that both have. So there are further rounds as long as anything was removed, of each mode
/// in their order. Returned is what the last round of each could not read or had to keep, and each operation that failed, unless a later round
/// executed it or found nothing left of the mode.
pub fn remove_all(modes: &mut [Box<dyn Retire>], now: Instant) -> Removed {
    let mut all = Removed::default();
    let mut rests: Vec<Rest> = modes.iter().map(|_| Rest::default()).collect();
    // One more than there are modes, and one that finds nothing left.
    for _ in 0..modes.len() + 2 {
        let mut has_done = false;
        for (mode, rest) in modes.iter_mut().zip(&mut rests) {
            let done = rest.record(mode.retire(&Round::without_serving_mode(now)));
            if done > 0 {
                *all.done.entry(mode.mode()).or_default() += done;
                has_done = true;
            }
        }
        if !has_done {
            break;
        }
    }
    for rest in rests {
        extend(&mut all.failures, rest.problems);
        extend(
            &mut all.failures,
            rest.failed.into_iter().map(|(_, text)| text).collect(),
        );
        extend(&mut all.kept, rest.kept);
    }
    all
}

/// What the rounds of a mode could not remove.
#[derive(Default)]
struct Rest {
    /// What the last round could not read.
    problems: Vec<String>,
    /// The commands that failed, each with a text about it.
    failed: Vec<(String, String)>,
    /// What the last round kept.
    kept: Vec<String>,
}

impl Rest {
    /// Records a round. Returns the number of operations that were done.
    fn record(&mut self, round: Retired) -> usize {
        self.problems = round.problems;
        self.kept = round.kept;
        if round.is_gone {
            self.failed.clear();
        }
        let mut done = 0;
        for step in &round.steps {
            match &step.outcome {
                RetiredOutcome::Planned | RetiredOutcome::Skipped => continue,
                RetiredOutcome::Done => {
                    done += 1;
                    self.failed.retain(|(command, _)| *command != step.command);
                }
                RetiredOutcome::Failed(error) => {
                    self.failed.retain(|(command, _)| *command != step.command);
                    let text = format!("{}: {error}", step.summary());
                    self.failed.push((step.command.clone(), text));
                }
            }
        }
        done
    }
}

/// What these modes left, as the commands with which [`remove_all`] begins. Changes nothing.
pub fn leftovers(modes: &mut [Box<dyn Retire>], now: Instant) -> Leftovers {
    let mut left = Leftovers::default();
    let mut kept = Vec::new();
    for mode in modes {
        let retired = mode.retire(&Round {
            executes: false,
            ..Round::without_serving_mode(now)
        });
        for step in &retired.steps {
            left.commands.push_str(step.command.trim_end());
            left.commands.push('\n');
        }
        extend(&mut kept, retired.kept);
        extend(&mut left.problems, retired.problems);
    }
    for kept in kept {
        left.commands += &format!("# {kept}\n");
    }
    left
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
        refuses: bool,
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

        fn retire(&mut self, round: &Round<'_>) -> Retired {
            assert!(!round.has_serving_mode && round.unserved.is_empty());
            let mut objects: MutexGuard<'_, _> = self.objects.lock().unwrap();
            let mut retired = Retired {
                problems: vec!["a table cannot be read".to_owned()],
                ..Retired::default()
            };
            if self.used_by.is_some_and(|user| objects.contains(&user)) {
                retired.kept = self.own.iter().map(ToString::to_string).collect();
                return retired;
            }
            for own in self.own.iter().filter(|own| objects.contains(*own)) {
                retired.steps.push(RetiredStep {
                    class: Class {
                        kind: "object",
                        family: None,
                        is_shared: false,
                    },
                    command: format!("delete {own}\nand its parts"),
                    outcome: match (round.executes, self.refuses) {
                        (false, _) => RetiredOutcome::Planned,
                        (true, true) => RetiredOutcome::Failed("refused".to_owned()),
                        (true, false) => RetiredOutcome::Done,
                    },
                });
            }
            if round.executes && !self.refuses {
                objects.retain(|object| !self.own.contains(object));
            }
            retired
        }
    }

    fn modes(objects: &Arc<Mutex<Vec<&'static str>>>, foreign: Option<&'static str>) -> Vec<Box<dyn Retire>> {
        let mode = |own: &'static [&'static str], used_by| {
            let objects = Arc::clone(objects);
            Box::new(Mode {
                objects,
                own,
                used_by,
                refuses: own == ["refused"],
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
        assert_eq!(
            (removed.done, removed.kept),
            (BTreeMap::from([("a mode", 3)]), Vec::new())
        );
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
            (BTreeMap::new(), vec!["a".into(), "b".into(), "c".into()])
        );
    }

    #[test]
    fn an_operation_that_is_refused_is_reported_once_with_its_command_and_the_rest_is_removed() {
        let objects = Arc::new(Mutex::new(vec!["a", "refused"]));
        let mode = |own: &'static [&'static str]| {
            Box::new(Mode {
                objects: Arc::clone(&objects),
                own,
                used_by: None,
                refuses: *own == ["refused"],
            }) as Box<dyn Retire>
        };
        let mut modes = [mode(&["refused"]), mode(&["a"])];
        let removed = remove_all(&mut modes, Instant::now());
        assert_eq!(*objects.lock().unwrap(), ["refused"]);
        assert_eq!(
            removed.failures,
            ["a table cannot be read", "delete refused: refused"]
        );
        assert_eq!(removed.done, BTreeMap::from([("a mode", 1)]));
    }

    /// What was done to a mode in a round.
    type Made = (Vec<RetiredStep>, bool);

    /// A mode whose rounds are given.
    #[derive(Debug)]
    struct Rounds(Vec<Made>);

    impl Retire for Rounds {
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
            let (steps, is_gone) = if self.0.is_empty() {
                Made::default()
            } else {
                self.0.remove(0)
            };
            Retired {
                steps,
                is_gone,
                ..Retired::default()
            }
        }
    }

    /// A command with its error.
    type Attempt<'a> = (&'a str, Option<&'a str>);

    /// The failures after these rounds: in each, what was attempted, and whether nothing is left.
    fn failures_after(rounds: &[(&[Attempt<'_>], bool)]) -> Vec<String> {
        let step = |(command, error): &Attempt<'_>| RetiredStep {
            class: Class {
                kind: "object",
                family: None,
                is_shared: false,
            },
            command: (*command).to_owned(),
            outcome: error.map_or(RetiredOutcome::Done, |error| {
                RetiredOutcome::Failed(error.to_owned())
            }),
        };
        let rounds = rounds
            .iter()
            .map(|(steps, is_gone)| (steps.iter().map(step).collect(), *is_gone));
        let mode: Box<dyn Retire> = Box::new(Rounds(rounds.collect()));
        remove_all(&mut [mode], Instant::now()).failures
    }

    #[test]
    fn a_failure_of_an_earlier_round_is_returned_unless_a_later_one_did_the_same_or_found_nothing() {
        let failed = ("delete flows", Some("refused"));
        let other = ("delete other", None);
        // No later round makes it again.
        let forgotten = failures_after(&[(&[other, failed], false), (&[], false)]);
        assert_eq!(forgotten, ["delete flows: refused"]);
        let done = failures_after(&[(&[other, failed], false), (&[("delete flows", None)], false)]);
        assert_eq!(done, Vec::<String>::new());
        let last = ("delete flows", Some("busy"));
        assert_eq!(
            failures_after(&[(&[other, failed], false), (&[last], false)]),
            ["delete flows: busy"]
        );
        // As when the reply was lost, or the rest was removed by another command.
        let gone = failures_after(&[(&[other, failed], false), (&[other], false), (&[], true)]);
        assert_eq!(gone, Vec::<String>::new());
    }

    #[test]
    fn leftovers_are_the_commands_and_what_stays_and_nothing_is_changed() {
        let objects = Arc::new(Mutex::new(vec!["a", "b", "c"]));
        let left = leftovers(&mut modes(&objects, None), Instant::now());
        assert_eq!(objects.lock().unwrap().len(), 3);
        assert_eq!(left.commands, "delete c\nand its parts\n# a\n# b\n");
        assert_eq!(left.problems, ["a table cannot be read"]);
    }
}
