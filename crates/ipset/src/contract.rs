//! Checks that every implementation of [`IpSets`] must pass.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a check reports a difference by panicking"
)]

mod entries;
// Tests in other packages include this file, so it refers to this crate by its name.
pub(crate) mod examples;
mod sets;

use std::net::IpAddr;

use kernlink_base::checks;
use kernlink_base::contract::{Check, Failures};

use self::entries::{
    a_bitmap_refuses_entries_outside_its_range, a_full_set_refuses_further_entries_and_reports_its_limit,
    a_list_keeps_its_order, a_range_adds_and_deletes_all_its_entries,
    a_range_of_all_addresses_is_split_in_two, addresses_are_tested_against_networks,
    ensuring_an_existing_entry_updates_its_options, entries_are_added_once_and_deleted_once,
    entries_of_another_type_are_refused, entry_options_that_the_set_was_created_without_are_refused,
    every_type_holds_and_lists_its_entries, execution_until_the_first_failure_does_not_attempt_the_rest,
    one_outcome_for_each_operation_in_order,
};
use self::sets::{
    a_failed_replacement_changes_nothing, a_missing_set_is_not_found,
    a_set_created_in_a_batch_takes_entries_in_the_same_batch, a_set_in_a_list_cannot_be_destroyed,
    a_set_is_created_listed_and_destroyed, all_sets_are_flushed_and_destroyed,
    an_empty_namespace_lists_nothing, an_existing_set_is_not_created_again_but_can_be_ensured,
    options_that_the_set_type_does_not_support_are_refused, renaming_moves_a_set,
    replacing_a_set_replaces_all_entries, sets_are_found_by_name_and_index, swapping_exchanges_the_contents,
};
use crate::{Entry, Error, IpSets, ProtocolPort, Reason, Set, SetName, SetType};

/// The implementation that is checked.
type Sets = dyn IpSets;

/// Calls `each` with every check and collects all failures. `each` must call [`Check::run`] with an implementation that has no
/// sets, such as a [`Client`](crate::Client) in a new network namespace.
///
/// Set types that [`IpSets::revisions`] reports as missing are not checked. An implementation without that method must support
/// all types, and must skip the check `sets_are_found_by_name_and_index`.
///
/// # Errors
///
/// The checks that failed.
///
/// ```
/// use kernlink_ipset::{Fake, contract};
///
/// contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
/// ```
pub fn run(each: impl FnMut(&Check<dyn IpSets>)) -> Result<(), Failures> {
    kernlink_base::contract::run(
        checks!(
            Sets:
            an_empty_namespace_lists_nothing,
            a_set_is_created_listed_and_destroyed,
            an_existing_set_is_not_created_again_but_can_be_ensured,
            a_missing_set_is_not_found,
            a_set_created_in_a_batch_takes_entries_in_the_same_batch,
            options_that_the_set_type_does_not_support_are_refused,
            swapping_exchanges_the_contents,
            renaming_moves_a_set,
            a_set_in_a_list_cannot_be_destroyed,
            replacing_a_set_replaces_all_entries,
            a_failed_replacement_changes_nothing,
            sets_are_found_by_name_and_index,
            all_sets_are_flushed_and_destroyed,
            entries_are_added_once_and_deleted_once,
            every_type_holds_and_lists_its_entries,
            one_outcome_for_each_operation_in_order,
            execution_until_the_first_failure_does_not_attempt_the_rest,
            a_full_set_refuses_further_entries_and_reports_its_limit,
            entries_of_another_type_are_refused,
            entry_options_that_the_set_was_created_without_are_refused,
            ensuring_an_existing_entry_updates_its_options,
            a_list_keeps_its_order,
            a_range_adds_and_deletes_all_its_entries,
            a_range_of_all_addresses_is_split_in_two,
            addresses_are_tested_against_networks,
            a_bitmap_refuses_entries_outside_its_range,
        ),
        each,
    )
}

fn name(name: &str) -> SetName {
    SetName::new(name).unwrap()
}

fn ip_port_set(text: &str) -> Set {
    Set::new(name(text), SetType::HashIpPort)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// An entry of `hash:ip,port`: TCP port 80 of 10.0.0.`last`.
fn web(last: u8) -> Entry {
    Entry::ip_port(ip(&format!("10.0.0.{last}")), ProtocolPort::tcp(80))
}

/// The entries of a set as text, sorted.
fn entries(sets: &mut dyn IpSets, set: &str) -> Vec<String> {
    let mut entries: Vec<String> = sets
        .list_set(&name(set))
        .unwrap()
        .entries
        .iter()
        .map(ToString::to_string)
        .collect();
    entries.sort();
    entries
}

/// The reason of a refusal; panics if there is none.
fn reason(outcome: Result<(), Error>) -> Reason {
    let error = outcome.unwrap_err();
    error
        .reason()
        .unwrap_or_else(|| panic!("not a refusal: {error:?}"))
}

/// Panics unless all operations succeeded.
fn oks(outcomes: Vec<Result<(), Error>>) {
    for outcome in outcomes {
        outcome.unwrap();
    }
}

/// Whether the kernel supports a set type; true for an implementation without [`IpSets::revisions`].
fn has(sets: &mut dyn IpSets, set_type: SetType) -> bool {
    let family = set_type.families().first().copied().unwrap();
    match sets.revisions(set_type, family) {
        Ok(revisions) => revisions.is_some(),
        Err(error) => matches!(error, Error::NotImplemented { .. }) || panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use crate::Fake;

    #[test]
    fn the_fake_keeps_the_contract() {
        super::run(|check| (check.run)(&mut Fake::new())).unwrap();
    }
}
