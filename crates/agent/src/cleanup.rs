//! `--cleanup` and `--hand-back`.

use std::error::Error;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_proxier::ipvs_mode::Kernel;
use kernlink_proxier::ipvs_mode::hand_back::HandBack as IpvsHandBack;
use kernlink_proxier::nftables_mode::hand_back::HandBack as NftablesHandBack;
use kernlink_proxier::nftables_mode::nftables::{Client, Nftables};
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
    let mut modes = match retiring(settings) {
        Ok(modes) => modes,
        Err(exit) => return exit,
    };
    let removed = remove_all(&mut modes, Instant::now());
    print_removed(&removed, "removed what these modes left", "nothing was removed")
}

/// Prints what could not be done, what stays, and the line about what was done.
fn print_removed(removed: &Removed, done: &str, nothing: &str) -> Exit {
    for text in removed.failures.iter().chain(&removed.kept) {
        print::text(text);
    }
    let printed = print::line(&summary(removed, done, nothing));
    if removed.failures.is_empty() {
        printed
    } else {
        Exit::Failure
    }
}

/// What was done, on one line.
fn summary(removed: &Removed, done: &str, nothing: &str) -> String {
    if removed.done.is_empty() {
        let known = if removed.failures.is_empty() {
            ""
        } else {
            ", as far as it is known"
        };
        return format!("{nothing}{known}");
    }
    let of_mode = |(mode, done): (&&str, &usize)| match done {
        1 => format!("{mode} (1 command)"),
        done => format!("{mode} ({done} commands)"),
    };
    let modes: Vec<String> = removed.done.iter().map(of_mode).collect();
    format!("{done}: {}", modes.join(", "))
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
    let mut removed = Removed::default();
    match Client::open() {
        Ok(mut tables) => hand_back_tables(&mut tables, &mut removed),
        Err(error) => removed.failures.push(ErrorChain(&error).to_string()),
    }
    if has_ipvs(settings) {
        match Kernel::open() {
            Ok(mut kernel) => hand_back_sets(&mut kernel, &mut removed),
            Err(error) => removed.failures.push(ErrorChain(&error).to_string()),
        }
    }
    print_removed(&removed, HANDED_BACK, "nothing was changed")
}

/// What a hand-back did.
const HANDED_BACK: &str = "removed or changed what kube-proxy does not have";

fn hand_back_tables(tables: &mut dyn Nftables, removed: &mut Removed) {
    let plan = NftablesHandBack::plan(tables);
    if !plan.operations.is_empty() {
        match plan.execute(tables) {
            Ok(()) => _ = removed.done.insert("nftables mode", plan.operations.len()),
            Err(error) => removed.failures.push(ErrorChain(&error).to_string()),
        }
    }
    removed.failures.extend(plan.problems);
}

fn hand_back_sets(kernel: &mut Kernel, removed: &mut Removed) {
    let plan = IpvsHandBack::plan(kernel);
    let outcomes = plan.execute(kernel);
    let mut done = 0;
    for (operation, outcome) in plan.operations.iter().zip(outcomes) {
        match outcome {
            Ok(()) => done += 1,
            Err(error) => {
                let command = operation.to_string();
                let command = command.lines().next().unwrap_or_default();
                removed
                    .failures
                    .push(format!("{command}: {}", ErrorChain(&error)));
            }
        }
    }
    if done > 0 {
        removed.done.insert("IPVS mode", done);
    }
    for error in &plan.errors {
        let text = ErrorChain(error).to_string();
        // Several sets may fail for the same reason.
        if !removed.failures.contains(&text) {
            removed.failures.push(text);
        }
    }
    let too_large = plan.too_large.iter();
    removed.kept.extend(
        too_large
            .map(|set| format!("set {set} keeps its size: its entries do not fit in that of kube-proxy")),
    );
}

/// Prints the commands of [`hand_back()`].
#[must_use]
pub fn plan_hand_back(settings: &Settings) -> Exit {
    let mut tables = match Client::open() {
        Ok(tables) => tables,
        Err(error) => return failure(&error),
    };
    let plan = NftablesHandBack::plan(&mut tables);
    let (mut commands, mut unknown) = (plan.to_string(), plan.problems);
    if has_ipvs(settings) {
        let mut kernel = match Kernel::open() {
            Ok(kernel) => kernel,
            Err(error) => return failure(&error),
        };
        let removal = IpvsHandBack::plan(&mut kernel);
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

#[cfg(test)]
mod tests {
    use kernlink_proxier::ipvs_mode::ipset::{IpSets, Set, SetName};
    use kernlink_proxier::ipvs_mode::{SetId, ipset};
    use kernlink_proxier::nftables_mode::nftables::{Fake, Operation, Table, TableKey};
    use kernlink_services::Family;

    use super::*;

    fn text(removed: &Removed) -> String {
        summary(removed, HANDED_BACK, "nothing was changed")
    }

    #[test]
    fn a_hand_back_prints_what_it_changed_and_what_stays_in_one_line_for_each() {
        let mut tables = Fake::new();
        let mut kernel = Kernel::fake();
        let mut nothing = Removed::default();
        hand_back_tables(&mut tables, &mut nothing);
        hand_back_sets(&mut kernel, &mut nothing);
        assert_eq!((&nothing.failures, &nothing.kept), (&vec![], &vec![]));
        assert_eq!(text(&nothing), "nothing was changed");

        let table = TableKey::new(Family::Ipv4, "kernlink");
        tables.apply(&[Operation::add(Table::new(table))]).unwrap();
        let mut sets = ipset::Fake::new();
        for set in [
            SetId::Ledger.definition(Family::Ipv4),
            larger(SetId::ClusterIp),
            larger(SetId::ExternalIp),
        ] {
            sets.create(&set).unwrap();
        }
        fill(&mut sets, &SetId::ExternalIp.name(Family::Ipv4));
        kernel.sets = Box::new(sets);
        let mut removed = Removed::default();
        hand_back_tables(&mut tables, &mut removed);
        hand_back_sets(&mut kernel, &mut removed);
        assert_eq!(removed.failures, Vec::<String>::new());
        assert_eq!(
            removed.kept,
            ["set KUBE-EXTERNAL-IP keeps its size: its entries do not fit in that of kube-proxy"]
        );
        assert_eq!(
            text(&removed),
            "removed or changed what kube-proxy does not have: IPVS mode (2 commands), nftables mode (1 command)"
        );
        let names: Vec<SetName> = kernel
            .sets
            .headers()
            .unwrap()
            .into_iter()
            .map(|header| header.set.name)
            .collect();
        assert!(!names.contains(&SetId::Ledger.name(Family::Ipv4)), "{names:?}");
    }

    /// A set that kernlink enlarged.
    fn larger(id: SetId) -> Set {
        let mut set = id.definition(Family::Ipv4);
        set.options.maxelem = Some(131_072);
        set
    }

    /// Adds more entries than a set of kube-proxy holds.
    fn fill(sets: &mut dyn IpSets, name: &SetName) {
        let add = |number: u32| {
            let address = std::net::Ipv4Addr::from(0x0a60_0000 + number);
            let port = ipset::ProtocolPort::tcp(80);
            ipset::Operation::add(*name, ipset::Entry::ip_port(address.into(), port))
        };
        let operations: Vec<ipset::Operation> = (0..65_537).map(add).collect();
        assert!(sets.execute(&operations).iter().all(Result::is_ok));
    }

    #[test]
    fn a_removal_prints_one_line_of_what_it_did() {
        let mut removed = Removed::default();
        let summary =
            |removed: &Removed| summary(removed, "removed what these modes left", "nothing was removed");
        assert_eq!(summary(&removed), "nothing was removed");
        removed.failures.push("a table cannot be read".to_owned());
        assert_eq!(summary(&removed), "nothing was removed, as far as it is known");
        removed.done = [("IPVS mode", 34), ("userspace mode", 1)].into();
        assert_eq!(
            summary(&removed),
            "removed what these modes left: IPVS mode (34 commands), userspace mode (1 command)"
        );
    }
}
