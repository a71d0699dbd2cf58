//! `--cleanup` and `--hand-back`.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Display;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_proxier::any_mode::{self, Mode as InKernel};
use kernlink_proxier::iptables_mode;
use kernlink_proxier::ipvs_mode::iptables_restore::{ChainName, Table};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier, cleanup};
use kernlink_proxier::unreadable::is_unreadable;
use kernlink_services::Family;
use kernlink_userspace::data_path as userspace;

use crate::all_modes::Mode;
use crate::exit::Exit;
use crate::lock;
use crate::print;
use crate::settings::Settings;

/// Removes everything that is owned, of all modes and both families, and prints what could not be removed.
///
/// IPVS mode is first, since its link is the notice for other processes that something of it is left. Its chains are compared again after those
/// of iptables mode were removed: both use some of them.
#[must_use]
pub fn cleanup(settings: &Settings) -> Exit {
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    let mut exit = Exit::Success;
    let mut ipvs = match without_services(settings) {
        Ok(proxier) => proxier,
        Err(exit) => return exit,
    };
    if let Some(proxier) = &mut ipvs {
        match cleanup::cleanup(proxier, Instant::now()) {
            Ok((synced, removal, outcomes)) => {
                exit = exit.and(report(&removal.errors, &removal.operations, &outcomes));
                if let Some(synced) = synced.filter(|synced| !synced.is_success()) {
                    print::text(&synced.to_string());
                    exit = Exit::Failure;
                }
            }
            Err(error) => exit = failure(&error),
        }
    }
    match iptables_mode::Kernel::open() {
        Ok(mut kernel) => {
            let removal = iptables_mode::cleanup::remaining(&mut kernel);
            let outcomes = removal.execute(&mut kernel);
            exit = exit.and(report(&removal.errors, &removal.operations, &outcomes));
            report_kept(&removal.kept_chains);
            match userspace::cleanup(&mut *kernel.rules, &Family::ALL) {
                Ok(removal) => report_kept(&removal.kept),
                Err(error) => exit = failure(&error),
            }
        }
        Err(error) => exit = failure(&error),
    }
    if let Some(proxier) = &mut ipvs {
        let config = proxier.state().config().clone();
        let removal = cleanup::remaining(proxier.kernel_mut(), &config);
        let outcomes = removal.execute(proxier.kernel_mut());
        exit = exit.and(report(&removal.errors, &removal.operations, &outcomes));
        report_kept(&removal.kept_chains);
    }
    exit
}

/// Prints the commands of [`cleanup()`]. Fails if something could not be read.
#[must_use]
pub fn plan_cleanup(settings: &Settings) -> Exit {
    let mut text = String::new();
    let mut unknown = Vec::new();
    match without_services(settings) {
        Ok(Some(mut proxier)) => match cleanup::plan_cleanup(&mut proxier, Instant::now()) {
            Ok((plan, removal)) => {
                text.extend(plan.map(|plan| plan.to_string()));
                text += &removal.to_string();
                let events = proxier.pending_events().filter(|event| is_unreadable(event));
                unknown.extend(events.map(|event| event.reason.to_string()));
                unknown.extend(removal.errors.iter().map(|error| ErrorChain(error).to_string()));
            }
            Err(error) => unknown.push(ErrorChain(&error).to_string()),
        },
        Ok(None) => {}
        Err(exit) => return exit,
    }
    match iptables_mode::Kernel::open() {
        Ok(mut kernel) => {
            let removal = iptables_mode::cleanup::remaining(&mut kernel);
            text += &removal.to_string();
            unknown.extend(removal.errors.iter().map(|error| ErrorChain(error).to_string()));
            match userspace::plan_cleanup(&mut *kernel.rules, &Family::ALL) {
                Ok(removal) => text += &removal.to_string(),
                Err(error) => unknown.push(ErrorChain(&error).to_string()),
            }
        }
        Err(error) => return failure(&error),
    }
    // The same table may be read for each mode.
    let mut reported = BTreeSet::new();
    unknown.retain(|problem| reported.insert(problem.clone()));
    print::commands(&text, &unknown)
}

/// Leaves the node as kube-proxy expects it. The chains of iptables and userspace mode are those of kube-proxy, so there is nothing to do without IPVS.
#[must_use]
pub fn hand_back(settings: &Settings) -> Exit {
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    if !has_ipvs(settings) {
        return Exit::Success;
    }
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
    if !has_ipvs(settings) {
        return print::commands("", &[]);
    }
    match Kernel::open() {
        Ok(mut kernel) => {
            let removal = cleanup::hand_back(&mut kernel);
            let unknown = removal.errors.iter().map(|error| ErrorChain(error).to_string());
            print::commands(&removal.to_string(), &unknown.collect::<Vec<_>>())
        }
        Err(error) => failure(&error),
    }
}

/// Whether IPVS mode is configured, or left something on this node.
fn has_ipvs(settings: &Settings) -> bool {
    settings.config.mode() == Mode::InKernel(InKernel::Ipvs) || has_ipvs_link()
}

fn has_ipvs_link() -> bool {
    // If it cannot be read, what follows reports the error.
    any_mode::Kernel::new().has_ipvs_link().unwrap_or(true)
}

fn failure(error: &(dyn Error + 'static)) -> Exit {
    print::error(error);
    Exit::Failure
}

/// The proxier that removes what IPVS mode left. `None` if IPVS mode is not configured and the host has no IPVS: then there is nothing.
fn without_services(settings: &Settings) -> Result<Option<Proxier>, Exit> {
    let kernel = match (Kernel::open(), settings.config.mode()) {
        (Ok(kernel), _) => kernel,
        (Err(_), mode) if mode != Mode::InKernel(InKernel::Ipvs) && !has_ipvs_link() => return Ok(None),
        (Err(error), _) => return Err(failure(&error)),
    };
    let proxier = cleanup::without_services(settings.config.former_ipvs(), kernel);
    proxier.map(Some).map_err(|error| failure(&error))
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

fn report_kept(chains: &[(Family, Table, ChainName)]) {
    for (family, table, chain) in chains {
        print::text(&format!(
            "{family} chain {chain} of table {table} stays: foreign rules use it"
        ));
    }
}
