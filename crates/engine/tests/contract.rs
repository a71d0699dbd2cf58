//! The contract of data paths: an example in memory passes it, and each defect of one is found.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test reports errors by panicking")]

mod example;

use std::collections::BTreeSet;

use kernlink_engine::contract;

use crate::example::Defect;
use crate::example::host::ExampleFixture;

kernlink_engine::contract_tests!(ExampleFixture::default());

/// Whether an example with a defect does not pass a check.
fn finds(check: &str, defect: Defect) -> bool {
    let mut fixture = ExampleFixture { defect: Some(defect) };
    let checks = contract::checks().into_iter();
    let checks: Vec<_> = checks.filter(|of| of.name == check).collect();
    assert_eq!(checks.len(), 1, "{check}");
    kernlink_base::contract::run(&checks, |check| (check.run)(&mut fixture)).is_err()
}

/// A check for which there is no such defect would pass regardless of what a data path does.
#[test]
fn each_check_finds_a_defect() {
    let mut found = BTreeSet::new();
    for (defect, checks) in [
        (Defect::WritesAlways, &["a_second_sync_plans_nothing"][..]),
        (Defect::WritesAtStart, &["a_new_process_plans_nothing"]),
        (Defect::KeepsEndpoints, &["changes_in_turn_equal_a_new_node"]),
        (Defect::PlansEachObjectOnce, &["a_plan_printed_twice_is_the_same"]),
        (Defect::OwnsEverything, &["foreign_objects_are_unchanged"]),
        (Defect::StopsAtAFailure, &["all_but_a_refused_change_is_executed"]),
        (Defect::IgnoresRefusals, &["all_but_a_refused_change_is_executed"]),
        (Defect::HasNoNeeds, &["all_but_a_refused_change_is_executed"]),
        (Defect::TakesUnknownForRefused, &["lost_replies_are_read_again"]),
        (Defect::TakesUnknownForDone, &["lost_requests_are_sent_again"]),
        (
            Defect::RemembersWhatItOwns,
            &[
                "any_change_may_be_the_last_of_a_process",
                "after_random_faults_the_kernel_reaches_the_desired_state",
            ],
        ),
        (
            Defect::ReadsOnce,
            &["damage_by_another_program_is_repaired_by_one_sync"],
        ),
        (
            Defect::TakesUnreadableForEmpty,
            &["a_failed_reading_removes_nothing"],
        ),
        (
            Defect::UsesTornListings,
            &["a_torn_listing_is_not_used_as_complete"],
        ),
        (
            Defect::ComparesEverything,
            &["a_change_costs_the_same_at_any_size"],
        ),
        (
            Defect::RebuildsForEachChange,
            &["changes_in_turn_equal_a_new_node"],
        ),
        (
            Defect::DeletesToReplace,
            &["all_but_a_refused_change_is_executed"],
        ),
        (
            Defect::OpensBeforeItRestricts,
            &["any_first_change_may_be_the_last_of_a_process"],
        ),
    ] {
        for check in checks {
            assert!(finds(check, defect), "{check} does not find {defect:?}");
            found.insert(*check);
        }
    }
    let checks = contract::checks::<ExampleFixture>();
    let names: BTreeSet<&str> = checks.iter().map(|check| check.name).collect();
    assert_eq!(found, names);
}
