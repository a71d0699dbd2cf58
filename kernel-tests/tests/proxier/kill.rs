//! After a process was killed in the middle of a plan, the next one reaches the state that an uninterrupted process reaches.

use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

use kernlink_kernel_tests::programs;
use kernlink_proxier::ipvs_mode::{Kernel, Phase, Plan, Proxier};
use nix::sys::signal::{Signal, raise};

use crate::clusters::{everything, everything_else, node};
use crate::ownership::{add_foreign_objects, add_foreign_rules};
use crate::support::{State, assert_same, proxier_on, state, state_without_rules, sync};

/// Where the rules of a test are. All other objects are in the kernel. Programs start slowly on an emulated machine, so points that do not
/// concern rules are tested without rules in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    InKernel,
    InMemory,
}

impl Rules {
    /// A new proxier. Rules in memory end with its process.
    fn proxier(self, manifests: &str) -> Proxier {
        let mut kernel = Kernel::open().unwrap();
        if self == Rules::InMemory {
            kernel.rules = Box::new(kernlink_iptables_restore::Fake::new());
        }
        proxier_on(kernel, manifests)
    }

    fn add_foreign_objects(self) {
        add_foreign_objects();
        if self == Rules::InKernel {
            add_foreign_rules();
        }
    }

    fn state(self) -> State {
        match self {
            Rules::InKernel => state(),
            Rules::InMemory => state_without_rules(),
        }
    }

    /// The numbers of steps after which to kill the process: before and between the rules of the families; with rules in memory, in the
    /// middle and at the end of each other phase, except sysctls and link.
    fn points(self, plan: &Plan) -> Vec<usize> {
        let mut points = Vec::new();
        let mut done = 0;
        for phase in plan.phases() {
            let steps = phase.steps.len();
            match self {
                Rules::InKernel if phase.kind == Phase::Rules => points.extend([done, done + 1]),
                Rules::InMemory if phase.kind > Phase::Link && phase.kind != Phase::Rules => {
                    points.extend([done + steps / 2, done + steps]);
                }
                _ => {}
            }
            done += steps;
        }
        // A phase begins where the one before it ended.
        points.dedup();
        points
    }

    /// The number of steps of a plan after the first `steps`. Rules in memory end with their process and are all written again, so they are
    /// not counted then.
    fn left(self, plan: &Plan, steps: usize) -> usize {
        let kinds = plan.phases().iter();
        let kinds = kinds.flat_map(|phase| phase.steps.iter().map(|_| phase.kind));
        let is_of_rules = |kind: &Phase| [Phase::Rules, Phase::RemoveRules].contains(kind);
        // A process that changes UDP endpoints deletes stale flows; the next one does so only if it finds some.
        let counted = kinds
            .skip(steps)
            .filter(|kind| ![Phase::DeleteFlowsOfNew, Phase::DeleteFlows].contains(kind))
            .filter(|kind| self == Rules::InKernel || !is_of_rules(kind));
        counted.count()
    }
}

/// Set for a process that kills itself: the number of steps before.
const END_AFTER: &str = "KERNLINK_END_AFTER_STEPS";

/// In a process that [`kill_after`] started, executes the given number of steps of the plan for these manifests, then raises SIGKILL.
fn end_in_the_middle(rules: Rules, manifests: &str) {
    let Ok(steps) = std::env::var(END_AFTER) else {
        return;
    };
    let mut proxier = rules.proxier(manifests);
    let plan = proxier.plan(Instant::now()).unwrap();
    let kernel = proxier.kernel_mut();
    for (_, step) in plan.steps().take(steps.parse().unwrap()) {
        kernel.execute(&step.operation).unwrap();
    }
    raise(Signal::SIGKILL).unwrap();
}

/// Runs the test of this name, which calls [`end_in_the_middle`] first, in another process in the calling thread's namespace.
fn kill_after(steps: usize, test: &str) {
    let output = programs::this_program()
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(END_AFTER, steps.to_string())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(9), "{}: {stderr}", output.status);
}

/// The plan of an uninterrupted process, and the state after it.
struct Uninterrupted {
    plan: Plan,
    state: State,
}

impl Uninterrupted {
    fn sync(rules: Rules, manifests: &str) -> Self {
        let plan = sync(&mut rules.proxier(manifests)).plan;
        let state = rules.state();
        Self { plan, state }
    }

    /// The numbers of steps after which to kill the process.
    fn points(&self, rules: Rules) -> Vec<usize> {
        let points = rules.points(&self.plan);
        assert!(points.len() >= 2, "{points:?} of\n{}", self.plan);
        points
    }

    /// Kills a process after `steps` steps of this plan. The next process does the remaining steps and reaches the same state.
    fn kill_after(&self, steps: usize, rules: Rules, manifests: &str, test: &str) {
        kill_after(steps, test);
        let rest = sync(&mut rules.proxier(manifests)).plan;
        let left = rules.left(&self.plan, steps);
        assert_eq!(
            rules.left(&rest, 0),
            left,
            "after {steps} steps of\n{}\n{rest}",
            self.plan
        );
        let what = format!("killed after {steps} steps");
        assert_same(&rules.state(), &self.state, &what);
    }
}

/// Kills processes that start on an empty node.
fn building_up(rules: Rules, test: &str) {
    end_in_the_middle(rules, &everything());
    kernlink_kernel_tests::requires_ipvs_mode!();
    let uninterrupted = node().run(|| {
        rules.add_foreign_objects();
        Uninterrupted::sync(rules, &everything())
    });
    for steps in uninterrupted.points(rules) {
        node().run(|| {
            rules.add_foreign_objects();
            uninterrupted.kill_after(steps, rules, &everything(), test);
        });
    }
}

/// Kills processes that change the state of one cluster to that of another.
fn changing(rules: Rules, test: &str) {
    end_in_the_middle(rules, &everything_else());
    kernlink_kernel_tests::requires_ipvs_mode!();
    node().run(|| {
        rules.add_foreign_objects();
        sync(&mut rules.proxier(&everything()));
        let uninterrupted = Uninterrupted::sync(rules, &everything_else());
        for steps in uninterrupted.points(rules) {
            sync(&mut rules.proxier(&everything()));
            uninterrupted.kill_after(steps, rules, &everything_else(), test);
        }
    });
}

#[test]
fn building_up_killed_in_any_phase_converges_to_the_same_state() {
    building_up(
        Rules::InMemory,
        "kill::building_up_killed_in_any_phase_converges_to_the_same_state",
    );
}

#[test]
fn building_up_killed_around_the_rules_converges_to_the_same_state() {
    building_up(
        Rules::InKernel,
        "kill::building_up_killed_around_the_rules_converges_to_the_same_state",
    );
}

#[test]
fn a_change_killed_in_any_phase_converges_to_the_same_state() {
    changing(
        Rules::InMemory,
        "kill::a_change_killed_in_any_phase_converges_to_the_same_state",
    );
}

#[test]
fn a_change_killed_around_the_rules_converges_to_the_same_state() {
    changing(
        Rules::InKernel,
        "kill::a_change_killed_around_the_rules_converges_to_the_same_state",
    );
}
