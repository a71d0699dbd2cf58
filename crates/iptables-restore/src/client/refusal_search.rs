//! Finding the edit that the kernel refuses when the tool names only the table.
//!
//! The legacy tools hand the kernel a whole table at COMMIT and learn only that it was refused. Their `--test`
//! ends before that and passes. So parts of the input are really committed, in a network namespace made for
//! that and gone afterwards, until the smallest beginning is found that is refused.

use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use crate::matches::Match;
use crate::restore::{Edit, Restore};
use crate::rule::Rule;
use crate::ruleset::Ruleset;
use crate::table::Table;
use crate::targets::Target;

/// Whether the culprit of a refusal is looked for by trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    /// No: a refusal at COMMIT names the table.
    None,
    /// Yes, in network namespaces made for it. Needs `CAP_SYS_ADMIN`; without it, as [`Trial::None`]. With a
    /// runner that does not start tools in the namespace of the calling thread it must not be used.
    InPrivateNamespace,
}

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    Taken,
    Refused,
    /// The tool named this edit of the attempt.
    RefusedAt(usize),
}

/// Does something on a thread in a network namespace of its own; none if there is none to be had.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| unshare(CloneFlags::CLONE_NEWNET).ok().map(|()| work()));
        thread.join().ok().flatten()
    })
}

/// Finds the edit of `table` without which the input would go further.
///
/// Rules that look into ipsets are left out of the attempts, because the sets are not in the private namespace;
/// the tools name such a rule themselves when its set is missing.
pub(crate) fn find(
    restore: &Restore,
    table: Table,
    saved: &Ruleset,
    limit: Duration,
    attempt: &mut dyn FnMut(&Restore) -> Option<Attempt>,
) -> Option<usize> {
    let deadline = Instant::now() + limit;
    let (_, edits) = restore.tables().find(|(known, _)| *known == table)?;
    // What is there first, then the edits that can be tried, each with its place in the input.
    let mut base = Vec::new();
    for edit in saved.to_restore(restore.family).table_mut(table).drain(..) {
        if !edit.rule().is_some_and(reads_sets) {
            base.push(edit);
        }
    }
    let tried: Vec<(usize, &Edit)> = edits
        .iter()
        .enumerate()
        .filter(|(_, edit)| !edit.rule().is_some_and(reads_sets))
        .collect();
    let mut refused = |count: usize| {
        if Instant::now() >= deadline {
            return None;
        }
        let mut input = Restore::new(restore.family);
        let lines = input.table_mut(table);
        lines.extend(base.iter().cloned());
        lines.extend(tried.iter().take(count).map(|(_, edit)| (*edit).clone()));
        Some(match attempt(&input)? {
            Attempt::Taken => None,
            Attempt::Refused => Some(None),
            Attempt::RefusedAt(at) => Some(at.checked_sub(base.len())),
        })
    };
    // Everything must be refused here too, or the namespace shows nothing.
    if let Some(at) = refused(tried.len())?? {
        return tried.get(at).map(|(place, _)| *place);
    }
    // The least count that is refused is in (taken, high].
    let (mut taken, mut high) = (0, tried.len());
    if refused(0)?.is_some() {
        return None;
    }
    while high - taken > 1 {
        let middle = taken + (high - taken) / 2;
        match refused(middle)? {
            None => taken = middle,
            Some(_) => high = middle,
        }
    }
    tried.get(high.checked_sub(1)?).map(|(place, _)| *place)
}

fn reads_sets(rule: &Rule) -> bool {
    let verbatim = |words: &[crate::Word]| {
        words.iter().any(|word| {
            matches!(
                word.as_str(),
                "--match-set" | "--add-set" | "--del-set" | "--map-set"
            )
        })
    };
    rule.matches.iter().any(|test| match test {
        Match::Set(_) => true,
        Match::Verbatim(words) => verbatim(words),
        _ => false,
    }) || match &rule.target {
        Some(Target::Set(_)) => true,
        Some(Target::Verbatim(words)) => verbatim(words),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;

    /// A kernel that refuses port 0, and a table of so many rules with such a one at `bad`.
    fn search(count: usize, bad: usize, with_sets: bool) -> (Option<usize>, usize) {
        let chain = "A".parse().unwrap();
        let mut restore = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare(chain));
        for place in 1..count {
            let text = match place {
                _ if place == bad => "-p tcp -m tcp --dport 0".into(),
                _ if with_sets && place % 3 == 0 => "-m set --match-set S src".into(),
                _ => format!("-p tcp -m tcp --dport {place}"),
            };
            restore.push(Table::Filter, Edit::append(chain, text.parse().unwrap()));
        }
        let mut attempts = 0;
        let found = find(
            &restore,
            Table::Filter,
            &Ruleset::new(),
            Duration::from_secs(60),
            &mut |input| {
                attempts += 1;
                let text = input.to_string();
                assert!(!text.contains("match-set"));
                Some(if text.contains("--dport 0 ") || text.contains("--dport 0\n") {
                    Attempt::Refused
                } else {
                    Attempt::Taken
                })
            },
        );
        (found, attempts)
    }

    #[test]
    fn the_culprit_is_found_in_few_attempts() {
        for bad in [1, 2, 50, 98, 99] {
            for with_sets in [false, true] {
                let (found, attempts) = search(100, bad, with_sets);
                assert_eq!(found, Some(bad));
                assert!(attempts <= 9, "{attempts}");
            }
        }
        assert_eq!(search(100, 0, false).0, None);
    }
}
