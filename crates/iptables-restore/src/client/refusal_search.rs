//! Searching for the edit that the kernel refuses if the tool names only its table.
//!
//! The legacy tools pass a whole table to the kernel at COMMIT and learn only that it was refused. `--test` ends before that. So
//! prefixes of the input are committed in a temporary network namespace until the shortest refused prefix is found.

use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use crate::argument::Argument;
use crate::matches::Match;
use crate::restore::{Edit, Restore};
use crate::rule::Rule;
use crate::ruleset::Ruleset;
use crate::table::Table;
use crate::targets::Target;

/// Whether the refused edit is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalSearch {
    /// No: a refusal at COMMIT names the table.
    Disabled,
    /// Yes, in temporary network namespaces. Needs `CAP_SYS_ADMIN`; without it, as [`RefusalSearch::Disabled`]. Must not be used
    /// with a runner that starts tools outside the network namespace of the calling thread.
    PrivateNamespace,
}

/// The result of committing a prefix of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Refused,
    /// The tool named this edit of the prefix.
    RefusedAt(usize),
}

/// Runs `work` on a thread in a new network namespace; `None` if the namespace cannot be created.
pub(super) fn in_private_namespace<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| unshare(CloneFlags::CLONE_NEWNET).ok().map(|()| work()));
        thread.join().ok().flatten()
    })
}

/// The first edit of `table` that is refused, as its index; `None` if it is not found within `timeout`.
///
/// Rules that use ipsets are left out of the candidates, because the sets do not exist in the private namespace. The tools name
/// such a rule themselves if its set is missing.
pub(super) fn search(
    restore: &Restore,
    table: Table,
    saved: &Ruleset,
    timeout: Duration,
    commit: &mut dyn FnMut(&Restore) -> Option<Outcome>,
) -> Option<usize> {
    let deadline = Instant::now() + timeout;
    let (_, edits) = restore.tables().find(|(other, _)| *other == table)?;
    // The current table first, then the edits without sets, each with its index in the input.
    let mut base = Vec::new();
    for edit in saved.to_restore(restore.family).table_mut(table).drain(..) {
        if !edit.rule().is_some_and(uses_sets) {
            base.push(edit);
        }
    }
    let tried: Vec<(usize, &Edit)> = edits
        .iter()
        .enumerate()
        .filter(|(_, edit)| !edit.rule().is_some_and(uses_sets))
        .collect();
    let mut refused = |count: usize| {
        if Instant::now() >= deadline {
            return None;
        }
        let mut input = Restore::new(restore.family);
        let lines = input.table_mut(table);
        lines.extend(base.iter().cloned());
        lines.extend(tried.iter().take(count).map(|(_, edit)| (*edit).clone()));
        Some(match commit(&input)? {
            Outcome::Accepted => None,
            Outcome::Refused => Some(None),
            Outcome::RefusedAt(at) => Some(at.checked_sub(base.len())),
        })
    };
    // If the whole input is not refused here too, the search cannot find the edit.
    if let Some(at) = refused(tried.len())?? {
        return tried.get(at).map(|(index, _)| *index);
    }
    // The smallest refused count is in (accepted, high].
    let (mut accepted, mut high) = (0, tried.len());
    if refused(0)?.is_some() {
        return None;
    }
    while high - accepted > 1 {
        let middle = accepted + (high - accepted) / 2;
        match refused(middle)? {
            None => accepted = middle,
            Some(_) => high = middle,
        }
    }
    tried.get(high.checked_sub(1)?).map(|(index, _)| *index)
}

fn uses_sets(rule: &Rule) -> bool {
    let verbatim = |arguments: &[Argument]| {
        arguments.iter().any(|argument| {
            matches!(
                argument.as_str(),
                "--match-set" | "--add-set" | "--del-set" | "--map-set"
            )
        })
    };
    rule.matches.iter().any(|test| match test {
        Match::Set(_) => true,
        Match::Verbatim(arguments) => verbatim(arguments),
        _ => false,
    }) || match &rule.target {
        Some(Target::Set(_)) => true,
        Some(Target::Verbatim(arguments)) => verbatim(arguments),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kernlink_base::Family;

    use super::*;

    /// Searches `count` edits with a kernel that refuses port 0; the edit with that port has the index `bad`.
    fn run(count: usize, bad: usize, with_sets: bool) -> (Option<usize>, usize) {
        let chain = "A".parse().unwrap();
        let mut restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain));
        for index in 1..count {
            let text = match index {
                _ if index == bad => "-p tcp -m tcp --dport 0".into(),
                _ if with_sets && index % 3 == 0 => "-m set --match-set S src".into(),
                _ => format!("-p tcp -m tcp --dport {index}"),
            };
            restore.push(Table::Filter, Edit::append(chain, text.parse().unwrap()));
        }
        let mut commits = 0;
        let found = search(
            &restore,
            Table::Filter,
            &Ruleset::new(),
            Duration::from_secs(60),
            &mut |input| {
                commits += 1;
                let text = input.to_string();
                assert!(!text.contains("match-set"));
                Some(if text.contains("--dport 0 ") || text.contains("--dport 0\n") {
                    Outcome::Refused
                } else {
                    Outcome::Accepted
                })
            },
        );
        (found, commits)
    }

    #[test]
    fn the_refused_edit_is_found_by_few_commits() {
        for bad in [1, 2, 50, 98, 99] {
            for with_sets in [false, true] {
                let (found, commits) = run(100, bad, with_sets);
                assert_eq!(found, Some(bad));
                assert!(commits <= 9, "{commits}");
            }
        }
        assert_eq!(run(100, 0, false).0, None);
    }
}
