//! A process that dies in the middle of a plan leaves a kernel from which the next one gets where an undisturbed one would be.

use std::os::unix::process::ExitStatusExt;
use std::time::Instant;

use kernlink_kernel_tests::programs;
use kernlink_proxier::ipvs_mode::{Kernel, Phase, Plan, Proxier};
use nix::sys::signal::{Signal, raise};

use crate::clusters::{everything, everything_else, node};
use crate::ownership::{add_foreign_objects, add_foreign_rules};
use crate::support::{State, assert_same, proxier_on, state, state_without_rules, sync};

/// Where the rules of a test are. All else is in the kernel in any case; programs start so slowly in an emulated machine that
/// the many points at which rules do not matter are tried without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    InKernel,
    InMemory,
}

impl Rules {
    /// A process's proxier; its rules in memory die with it.
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

    /// After how many steps of a plan to die: before and between the families' rules; with rules in memory, in the middle and
    /// at the end of each other phase. Settings and link are few steps, each a whole.
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
        points
    }

    /// How many steps of a plan there are behind so many. Rules in memory are lost with their process, which has all of them to write
    /// again, in one step or two: then only the other steps count.
    fn left(self, plan: &Plan, steps: usize) -> usize {
        let kinds = plan.phases().iter();
        let kinds = kinds.flat_map(|phase| phase.steps.iter().map(|_| phase.kind));
        let is_of_rules = |kind: &Phase| [Phase::Rules, Phase::RemoveRules].contains(kind);
        let counted = kinds
            .skip(steps)
            .filter(|kind| self == Rules::InKernel || !is_of_rules(kind));
        counted.count()
    }
}

/// Set for a process that is to die: after how many steps.
const DIE_AFTER: &str = "KERNLINK_DIE_AFTER_STEPS";

/// In a process that [`kill_after`] has started, executes so many steps of the plan for these manifests, one by one, then dies by
/// SIGKILL.
fn die_in_the_middle(rules: Rules, manifests: &str) {
    let Ok(steps) = std::env::var(DIE_AFTER) else {
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

/// Has another process, in the calling thread's namespace, run the test of this name, which begins with [`die_in_the_middle`].
fn kill_after(steps: usize, test: &str) {
    let output = programs::this_program()
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(DIE_AFTER, steps.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(9), "{}: {said}", output.status);
}

/// What an undisturbed process plans and leaves behind.
struct Undisturbed {
    plan: Plan,
    state: State,
}

impl Undisturbed {
    fn sync(rules: Rules, manifests: &str) -> Self {
        let plan = sync(&mut rules.proxier(manifests)).plan;
        let state = rules.state();
        Self { plan, state }
    }

    /// After how many steps to die.
    fn points(&self, rules: Rules) -> Vec<usize> {
        let points = rules.points(&self.plan);
        assert!(points.len() >= 2, "{points:?} of\n{}", self.plan);
        points
    }

    /// Kills a process after so many steps of this plan; the next one has the others to do, and comes to the same state.
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

/// From nothing.
fn building_up(rules: Rules, test: &str) {
    die_in_the_middle(rules, &everything());
    requires_the_kernel!();
    let undisturbed = node().run(|| {
        rules.add_foreign_objects();
        Undisturbed::sync(rules, &everything())
    });
    for steps in undisturbed.points(rules) {
        node().run(|| {
            rules.add_foreign_objects();
            undisturbed.kill_after(steps, rules, &everything(), test);
        });
    }
}

/// From one world to another.
fn changing(rules: Rules, test: &str) {
    die_in_the_middle(rules, &everything_else());
    requires_the_kernel!();
    node().run(|| {
        rules.add_foreign_objects();
        sync(&mut rules.proxier(&everything()));
        let undisturbed = Undisturbed::sync(rules, &everything_else());
        for steps in undisturbed.points(rules) {
            sync(&mut rules.proxier(&everything()));
            undisturbed.kill_after(steps, rules, &everything_else(), test);
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
