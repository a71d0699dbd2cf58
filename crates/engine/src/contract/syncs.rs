//! What syncs without faults have in common.

use super::process::{Expected, cluster, converged, same};
use super::{Fixture, Host};

/// A sync that finds the kernel in the desired state, with and without reading it, plans nothing.
pub fn a_second_sync_plans_nothing<F: Fixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let (mut services, mut random) = cluster(fixture, seed);
        let mut process = converged(fixture, &services, &format!("seed {seed}"));
        for round in 0..6 {
            for is_read in [false, true] {
                if is_read {
                    process.proxier.resync();
                }
                let plan = process.plan();
                assert_eq!(plan, "", "seed {seed}, round {round}, read: {is_read}");
                process.take_calls();
                let synced = process.sync_successfully();
                assert_eq!(synced.counts().done, 0, "seed {seed}, round {round}");
                let [changes, _] = process.take_calls();
                assert_eq!(
                    changes, 0,
                    "seed {seed}, round {round}: calls that change the kernel"
                );
            }
            let change = services.change(&mut random);
            process.deliver([change]);
            process.converge();
        }
        process.check_served(&Expected::stable(fixture));
    }
}

/// A new process with the same Services plans nothing, except objects that ended with the one before.
pub fn a_new_process_plans_nothing<F: Fixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let (mut services, mut random) = cluster(fixture, seed);
        let expected = Expected::stable(fixture);
        let mut process = converged(fixture, &services, &format!("seed {seed}"));
        for round in 0..4 {
            let before = process.host.owned();
            process = process.restart(&services);
            let plan = process.plan();
            assert_eq!(plan, "", "seed {seed}, round {round}");
            if fixture.serves_without_process() {
                process.observe(&expected);
            }
            process.converge();
            process.check_owned(&before);
            process.check_served(&expected);
            for _ in 0..3 {
                let change = services.change(&mut random);
                process.deliver([change]);
                process.observe(&expected);
                process.converge();
            }
            process.calls.remove_observer();
        }
    }
}

/// After any changes, each executed by a sync, the objects are those of a new node with the last Services.
pub fn changes_in_turn_equal_a_new_node<F: Fixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let (mut services, mut random) = cluster(fixture, seed);
        let mut process = converged(fixture, &services, &format!("seed {seed}"));
        process.observe(&Expected::stable(fixture));
        for round in 0..12 {
            for _ in 0..=random.below(2) {
                let change = services.change(&mut random);
                process.deliver([change]);
            }
            process.converge();
            let rebuilt = converged(fixture, &services, &format!("seed {seed}, new"));
            same(
                &format!("seed {seed}, round {round}"),
                &rebuilt.host.owned(),
                &process.host.owned(),
            );
        }
    }
}

/// A plan that is made again is equal, and is what a sync executes. Making it changes nothing in the kernel.
pub fn a_plan_printed_twice_is_the_same<F: Fixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let (mut services, mut random) = cluster(fixture, seed);
        let mut process = super::process::Process::new(fixture, &services, &format!("seed {seed}"));
        for round in 0..6 {
            let about = format!("seed {seed}, round {round}");
            let before = process.host.owned();
            process.take_calls();
            let plans = [(); 3].map(|()| process.proxier.plan(process.now).map(|plan| plan.to_string()));
            let [Ok(first), Ok(second), Ok(third)] = plans else {
                panic!("{about}: the kernel was not read");
            };
            same(&about, &first, &second);
            same(&about, &first, &third);
            assert_eq!(
                process.take_calls()[0],
                0,
                "{about}: calls that change the kernel"
            );
            process.check_owned(&before);
            let synced = process.sync_successfully();
            same(&about, &first, &synced.plan.to_string());
            process.converge();
            let change = services.change(&mut random);
            process.deliver([change]);
            if random.chance(50) {
                process.proxier.resync();
            }
        }
    }
}

/// Objects of other programs stay as they are, also when all Services are deleted.
pub fn foreign_objects_are_unchanged<F: Fixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let (mut services, mut random) = cluster(fixture, seed);
        let about = format!("seed {seed}");
        let mut process = super::process::Process::new(fixture, &services, &about);
        let foreign = process.host.foreign();
        assert_ne!(foreign, "", "the host of the fixture has no foreign object");
        for _ in 0..6 {
            process.converge();
            same(&about, &foreign, &process.host.foreign());
            let change = services.change(&mut random);
            process.deliver([change]);
        }
        process = process.restart(&services);
        process.converge();
        same(&about, &foreign, &process.host.foreign());
        let none = services.empty();
        process.deliver(none.all());
        process.converge();
        same(&about, &foreign, &process.host.foreign());
        let rebuilt = converged(fixture, &none, &format!("{about}, no Services"));
        process.check_owned(&rebuilt.host.owned());
    }
}
