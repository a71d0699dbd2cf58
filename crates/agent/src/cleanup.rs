//! `--cleanup` and `--hand-back`.

use std::error::Error;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_proxier::Lock;
use kernlink_proxier::any_mode::Config;
use kernlink_proxier::ipvs_mode::cleanup::{self, Removal};
use kernlink_proxier::ipvs_mode::{self, Kernel, Proxier};

use crate::exit::Exit;
use crate::print;
use crate::settings::Settings;

/// Removes everything that is owned, in both families, and prints what could not be removed.
#[must_use]
pub fn cleanup(settings: &Settings) -> Exit {
    let _lock = match Lock::acquire() {
        Ok(lock) => lock,
        Err(error) => {
            print::error(&error);
            return Exit::from(&error);
        }
    };
    let Some(mut proxier) = without_services(settings) else {
        return Exit::Failure;
    };
    match proxier.cleanup(Instant::now()) {
        Ok((synced, removal, outcomes)) => {
            let exit = report(&removal, &outcomes);
            if synced.is_success() {
                exit
            } else {
                print::text(&synced.to_string());
                Exit::Failure
            }
        }
        Err(error) => failure(&error),
    }
}

/// Prints the commands of [`cleanup()`].
#[must_use]
pub fn plan_cleanup(settings: &Settings) -> Exit {
    let Some(mut proxier) = without_services(settings) else {
        return Exit::Failure;
    };
    match proxier.plan_cleanup(Instant::now()) {
        Ok((plan, removal)) => print::line(format!("{plan}{removal}").trim_end()),
        Err(error) => failure(&error),
    }
}

/// Leaves the node as kube-proxy expects it.
#[must_use]
pub fn hand_back() -> Exit {
    let _lock = match Lock::acquire() {
        Ok(lock) => lock,
        Err(error) => {
            print::error(&error);
            return Exit::from(&error);
        }
    };
    let Some(mut kernel) = kernel() else {
        return Exit::Failure;
    };
    let removal = cleanup::hand_back(&mut kernel);
    let outcomes = removal.execute(&mut kernel);
    report(&removal, &outcomes)
}

/// Prints the commands of [`hand_back()`].
#[must_use]
pub fn plan_hand_back() -> Exit {
    let Some(mut kernel) = kernel() else {
        return Exit::Failure;
    };
    let removal = cleanup::hand_back(&mut kernel);
    let text = removal.to_string();
    print::line(if text.is_empty() {
        "# nothing to do"
    } else {
        text.trim_end()
    })
}

fn failure(error: &(dyn Error + 'static)) -> Exit {
    print::error(error);
    Exit::Failure
}

fn kernel() -> Option<Kernel> {
    Kernel::open().inspect_err(|error| print::error(error)).ok()
}

fn without_services(settings: &Settings) -> Option<Proxier> {
    let proxier = Proxier::without_services(ipvs_config(settings), kernel()?);
    proxier.inspect_err(|error| print::error(error)).ok()
}

/// The configuration of IPVS mode, also if another mode is configured: the part that decides what is owned.
fn ipvs_config(settings: &Settings) -> ipvs_mode::Config {
    match &settings.config {
        Config::Ipvs(config) => config.clone(),
        Config::Iptables(config) => {
            let mut ipvs = ipvs_mode::Config::new("");
            ipvs.services = config.services.clone();
            ipvs.exclude_cidrs.clone_from(&settings.file.ipvs.exclude_cidrs);
            ipvs
        }
    }
}

/// Prints what was not removed, and why.
fn report(removal: &Removal, outcomes: &[Result<(), ipvs_mode::Error>]) -> Exit {
    let mut exit = Exit::Success;
    for error in &removal.errors {
        print::error(error);
        exit = Exit::Failure;
    }
    for (operation, outcome) in removal.operations.iter().zip(outcomes) {
        if let Err(error) = outcome {
            let command = operation.to_string();
            let command = command.lines().next().unwrap_or_default();
            print::text(&format!("{command}: {}", ErrorChain(error)));
            exit = Exit::Failure;
        }
    }
    for (family, table, chain) in &removal.kept_chains {
        print::text(&format!(
            "{family} chain {chain} of table {table} stays: foreign rules use it"
        ));
    }
    for set in &removal.too_large {
        print::text(&format!(
            "set {set} keeps its size: its entries do not fit in that of kube-proxy"
        ));
    }
    exit
}
