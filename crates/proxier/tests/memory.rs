//! The bytes that a plan, a listing and a report need, compared with those of the desired objects. An allocator counts them.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kernlink_iptables_restore::{Client, Completion, Error, Invocation, Ruleset, Runner, Table, Variant};
use kernlink_proxier::services::Family;
use kernlink_proxier::{DataPath, Proxier, ipvs_mode, nftables_mode};
use peak_alloc::PeakAlloc;

use crate::iptables_node::{deliver_numbered, kernel, proxier_on, saved, sync};

/// Counts the bytes of all threads.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Enough that other bytes do not matter.
const SERVICES: u16 = 2_000;
const ENDPOINTS: [u8; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

/// The bytes of a proxier on an empty kernel that compares all Services: its desired objects, a plan, and the most while it makes the plan.
struct Bytes {
    desired: usize,
    plan: usize,
    peak: usize,
}

fn bytes<M: DataPath>(config: &M::Config, kernel: M::Kernel) -> Bytes {
    let before = ALLOCATOR.current_usage();
    let mut proxier: Proxier<M> = Proxier::new(config, kernel).unwrap();
    deliver_numbered(&mut proxier, SERVICES, &ENDPOINTS);
    drop(proxier.plan(Instant::now()).unwrap());
    let desired = ALLOCATOR.current_usage() - before;
    // The second time, only what is planned is new.
    ALLOCATOR.reset_peak_usage();
    let plan = proxier.plan(Instant::now()).unwrap();
    assert!(plan.len() > usize::from(SERVICES));
    Bytes {
        desired,
        plan: ALLOCATOR.current_usage() - before - desired,
        peak: ALLOCATOR.peak_usage() - before - desired,
    }
}

#[test]
fn the_steps_of_iptables_mode_share_the_desired_chains_and_rules() {
    let _alone = alone();
    let Bytes { desired, plan, peak } =
        bytes::<kernlink_proxier::iptables_mode::State>(&iptables_node::config(), kernel());
    // With copies of the rules, the plan is larger than what is desired.
    assert!(2 * plan < desired, "{plan} of {desired}");
    assert!(peak < desired, "{peak} of {desired}");
}

#[test]
fn the_steps_of_nftables_mode_share_the_desired_elements() {
    let _alone = alone();
    let config = nftables_mode::Config::new("node-a");
    let Bytes { desired, plan, peak } = bytes::<nftables_mode::State>(&config, nftables_mode::Kernel::fake());
    assert!(2 * plan < desired, "{plan} of {desired}");
    assert!(peak < desired, "{peak} of {desired}");
}

#[test]
fn a_plan_of_ipvs_mode_is_made_without_a_copy_of_its_steps() {
    let _alone = alone();
    let config = ipvs_mode::Config::new("node-a");
    let Bytes { plan, peak, .. } = bytes::<ipvs_mode::State>(&config, ipvs_mode::Kernel::fake());
    // The largest part of a list of steps is copied when the list grows.
    assert!(peak < 2 * plan, "{peak} for {plan}");
}

/// Answers `iptables-save` in parts, with texts by [family](Family::index) and table.
struct Saved([[String; 2]; 2]);

impl Runner for Saved {
    fn run(&mut self, tool: Invocation) -> Result<Completion, Error> {
        panic!("{tool:?}")
    }

    fn run_all_streamed(
        &mut self,
        tools: Vec<Invocation>,
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Vec<Result<Completion, Error>> {
        for (index, tool) in tools.iter().enumerate() {
            assert!(tool.program.ends_with("-save"), "{tool:?}");
            let position = usize::from(tool.arguments.contains(&"nat".to_owned()));
            let family = usize::from(tool.program.starts_with("ip6"));
            let text = &self.0[family][position];
            for part in text.as_bytes().chunks(1 << 16) {
                output(index, part);
            }
        }
        let done = Completion {
            status: Some(0),
            signal: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        tools.iter().map(|_| Ok(done.clone())).collect()
    }
}

#[test]
fn a_listing_of_iptables_mode_does_not_hold_the_rules_that_it_reads() {
    let _alone = alone();
    let mut first = proxier_on(kernel());
    deliver_numbered(&mut first, SERVICES, &ENDPOINTS);
    sync(&mut first);
    let texts = Family::ALL.map(|family| {
        let rules: Ruleset = saved(&mut first, family);
        [Table::Filter, Table::Nat].map(|table| {
            let mut one = Ruleset::new();
            *one.table_mut(table) = rules.table(table).unwrap().clone();
            one.to_string()
        })
    });
    let mut kernel = first.into_kernel();
    kernel.rules = Box::new(Client::with_runner(Box::new(Saved(texts))).with_variant(Variant::Legacy));
    let before = ALLOCATOR.current_usage();
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, SERVICES, &ENDPOINTS);
    ALLOCATOR.reset_peak_usage();
    for _ in 0..2 {
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.report.is_success(), "{synced}");
        let written = synced.plan.steps().map(|(_, step)| step.operation.to_string());
        let written = written.filter(|operation| operation.contains("KUBE-S"));
        assert_eq!(written.collect::<Vec<_>>(), [""; 0]);
        drop(synced);
        let steady = ALLOCATOR.current_usage() - before;
        let peak = ALLOCATOR.peak_usage() - before;
        // The whole rule set alone needs more than all that stays.
        assert!(2 * peak < 3 * steady, "{peak} of {steady}");
        proxier.resync();
        ALLOCATOR.reset_peak_usage();
    }
}
