//! `--cleanup` and `--hand-back`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Display;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_proxier::ipvs_mode::{Kernel, cleanup};
use kernlink_proxier::nftables_mode::hand_back::HandBack;
use kernlink_proxier::nftables_mode::nftables::Client as Nftables;
use kernlink_proxier::retire::{Removed, Retire, leftovers, remove_all};

use crate::exit::Exit;
use crate::lock;
use crate::modes::{self, Mode};
use crate::print;
use crate::settings::Settings;

/// Removes everything that is owned, of all modes and both families. Prints what was removed, what could not be removed, and what stays.
#[must_use]
pub fn cleanup(settings: &Settings) -> Exit {
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    let (mut modes, mut exit) = match retiring(settings) {
        Ok(modes) => (modes, Exit::Success),
        Err(exit) => return exit,
    };
    let removed = remove_all(&mut modes, Instant::now());
    for failure in &removed.failures {
        print::text(failure);
        exit = Exit::Failure;
    }
    for kept in &removed.kept {
        print::text(kept);
    }
    match print::line(&done(&removed)) {
        Exit::Success => exit,
        failed => failed,
    }
}

/// What was removed, on one line.
fn done(removed: &Removed) -> String {
    if removed.done.is_empty() {
        let known = if removed.failures.is_empty() {
            ""
        } else {
            ", as far as it is known"
        };
        return format!("nothing was removed{known}");
    }
    let of_mode = |(mode, done): (&&str, &usize)| match done {
        1 => format!("{mode} (1 command)"),
        done => format!("{mode} ({done} commands)"),
    };
    let modes: Vec<String> = removed.done.iter().map(of_mode).collect();
    format!("removed what these modes left: {}", modes.join(", "))
}

/// Prints the commands of [`cleanup()`]. Fails if something could not be read.
#[must_use]
pub fn plan_cleanup(settings: &Settings) -> Exit {
    let mut modes = match retiring(settings) {
        Ok(modes) => modes,
        Err(exit) => return exit,
    };
    let left = leftovers(&mut modes, Instant::now());
    print::commands(&left.commands, &left.problems)
}

/// All modes, to be removed. Fails, after the error was printed, if the kernel APIs of one cannot be opened.
fn retiring(settings: &Settings) -> Result<Vec<Box<dyn Retire>>, Exit> {
    let all = modes::retire_all(&settings.config).map_err(|error| failure(&error))?;
    Ok(all.into_iter().map(|(_, mode)| mode).collect())
}

/// Leaves the node as kube-proxy expects it: of nftables mode nothing, once kube-proxy serves, in any configured mode; the sets of IPVS mode as
/// kube-proxy has them. The chains of iptables and userspace mode are those of kube-proxy.
#[must_use]
pub fn hand_back(settings: &Settings) -> Exit {
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    let tables = hand_back_tables();
    let sets = if has_ipvs(settings) {
        hand_back_sets()
    } else {
        Exit::Success
    };
    tables.and(sets)
}

fn hand_back_tables() -> Exit {
    let mut tables = match Nftables::open() {
        Ok(tables) => tables,
        Err(error) => return failure(&error),
    };
    let plan = HandBack::plan(&mut tables);
    let mut exit = Exit::Success;
    for problem in &plan.problems {
        print::text(problem);
        exit = Exit::Failure;
    }
    if plan.operations.is_empty() {
        return exit;
    }
    match plan.execute(&mut tables) {
        Ok(()) => exit,
        Err(error) => failure(&error),
    }
}

fn hand_back_sets() -> Exit {
    let mut kernel = match Kernel::open() {
        Ok(kernel) => kernel,
        Err(error) => return failure(&error),
    };
    let removal = cleanup::hand_back(&mut kernel);
    let outcomes = removal.execute(&mut kernel);
    for set in &removal.too_large {
        print::text(&format!(
            "set {set} keeps its size: its entries do not fit in that of kube-proxy"
        ));
    }
    report(&removal.errors, &removal.operations, &outcomes)
}

/// Prints the commands of [`hand_back()`].
#[must_use]
pub fn plan_hand_back(settings: &Settings) -> Exit {
    let mut tables = match Nftables::open() {
        Ok(tables) => tables,
        Err(error) => return failure(&error),
    };
    let plan = HandBack::plan(&mut tables);
    let (mut commands, mut unknown) = (plan.to_string(), plan.problems);
    if has_ipvs(settings) {
        let mut kernel = match Kernel::open() {
            Ok(kernel) => kernel,
            Err(error) => return failure(&error),
        };
        let removal = cleanup::hand_back(&mut kernel);
        commands += &removal.to_string();
        let errors = removal.errors.iter();
        unknown.extend(errors.map(|error| ErrorChain(error).to_string()));
    }
    print::commands(&commands, &unknown)
}

/// Whether IPVS mode is configured, or left something on this node.
fn has_ipvs(settings: &Settings) -> bool {
    settings.config.mode() == Mode::Ipvs || has_ipvs_link()
}

fn has_ipvs_link() -> bool {
    // If it cannot be read, what follows reports the error.
    modes::has_ipvs_link().unwrap_or(true)
}

fn failure(error: &(dyn Error + 'static)) -> Exit {
    print::error(error);
    Exit::Failure
}

/// Prints what was not removed, and why.
fn report<E: Error + 'static>(errors: &[E], operations: &[impl Display], outcomes: &[Result<(), E>]) -> Exit {
    let mut exit = Exit::Success;
    // Several tables may fail for the same reason.
    let mut reported = BTreeSet::new();
    for error in errors {
        if reported.insert(ErrorChain(error).to_string()) {
            exit = failure(error);
        }
    }
    for (operation, outcome) in operations.iter().zip(outcomes) {
        if let Err(error) = outcome {
            let command = operation.to_string();
            let command = command.lines().next().unwrap_or_default();
            print::text(&format!("{command}: {}", ErrorChain(error)));
            exit = Exit::Failure;
        }
    }
    exit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_prints_one_line_of_what_it_did() {
        let mut removed = Removed::default();
        assert_eq!(done(&removed), "nothing was removed");
        removed.failures.push("a table cannot be read".to_owned());
        assert_eq!(done(&removed), "nothing was removed, as far as it is known");
        removed.done = [("IPVS mode", 34), ("userspace mode", 1)].into();
        assert_eq!(
            done(&removed),
            "removed what these modes left: IPVS mode (34 commands), userspace mode (1 command)"
        );
    }
}
