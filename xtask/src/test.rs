//! `cargo xtask test`: the three tiers of tests.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use kernlink_kernel_tests::programs::PROGRAMS;

use crate::{
    guest::Steps,
    host, programs, provision,
    report::{Binary, Report, Skip, TierReport},
    step::{self, Records, Step, pass_through},
    vm::{self, Vm},
    workspace::{Executable, KERNEL_TESTS, Workspace},
};

/// One of the three tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Unit, property and documentation tests, without privileges.
    Unit,
    /// Kernel tests on the running kernel. Tests of features that it lacks are skipped.
    Host,
    /// Kernel tests in the VM.
    Vm,
}

impl Tier {
    pub(crate) const ALL: [Self; 3] = [Self::Unit, Self::Host, Self::Vm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Host => "host",
            Self::Vm => "vm",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|tier| tier.name() == name);
        found.with_context(|| format!("--tier: unknown tier `{name}`; known: unit, host, vm"))
    }
}

/// The environment variable from which the kernel tests read their tier: `host` or `vm`.
const TIER_VARIABLE: &str = "KERNLINK_TIER";
/// The environment variable from which proptest reads the seed of its cases, and the seed of this command: every run tests the same cases, so a
/// change is not refused because of a case that has nothing to do with it. `cargo test` tries new ones.
const PROPERTY_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "1");
/// For one test binary. Emulation is about ten times slower than the host.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs the tiers and prints the summary. False if a test failed, or a tier ran no test.
pub(crate) fn run(workspace: &Workspace, tiers: &[Tier], options: &vm::Options) -> Result<bool> {
    require(tiers)?;
    // One build, so that every dependency is compiled once. `cargo test` would not build the program of the agent: it has no
    // integration tests.
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    let build: Vec<_> = ["build", "--workspace", "--all-features"]
        .into_iter()
        .chain(targets)
        .collect();
    let (kernel, unit): (Vec<_>, Vec<_>) = workspace
        .build(&build)?
        .into_iter()
        .filter(|executable| executable.is_test)
        .partition(|executable| executable.package == KERNEL_TESTS && executable.kind == "test");
    let path = programs::folder(workspace.target())?;
    let run_kernel = || run_kernel(workspace, tiers, &kernel, &path, options);
    // Kernel tests wait for the kernel most of the time, and unit tests for nothing: these run when a processor is free.
    let (unit, kernel) = thread::scope(|scope| {
        let kernel = scope.spawn(run_kernel);
        let unit = match tiers.contains(&Tier::Unit) {
            true => timed(Tier::Unit, || run_unit(workspace, &unit, &path)).map(Some),
            false => Ok(None),
        };
        (unit, kernel.join())
    });
    let kernel = kernel.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let report = Report {
        tiers: unit?.into_iter().chain(kernel?).collect(),
    };
    println!("\n{report}");
    Ok(report.is_success())
}

/// Runs a tier, and prints how long it took.
fn timed(tier: Tier, run: impl FnOnce() -> Result<TierReport>) -> Result<TierReport> {
    println!("== {} begins ==", tier.name());
    let start = Instant::now();
    let report = run()?;
    println!(
        "== {} took {:.0} s ==",
        tier.name(),
        start.elapsed().as_secs_f64()
    );
    Ok(report)
}

/// Test files that run in the VM also after the host ran all their tests, because what they test differs between releases of the kernel; of some,
/// only the tests whose names begin so.
const ON_EVERY_KERNEL: &[(&str, &[&str])] = &[
    ("contract_nftables", &[]),
    ("nftables", &[]),
    ("nftables_mode", &["packets::"]),
];

/// Runs the kernel tests, on the host and in the VM at the same time. The VM boots meanwhile, and gets a test file when the host has run it.
fn run_kernel(
    workspace: &Workspace,
    tiers: &[Tier],
    kernel: &[Executable],
    path: &Path,
    options: &vm::Options,
) -> Result<Vec<TierReport>> {
    let on_host = tiers.contains(&Tier::Host);
    let on_host = on_host
        .then(|| kernel_steps(kernel, Tier::Host, &[], path))
        .transpose()?;
    if !tiers.contains(&Tier::Vm) {
        let host = on_host.map(|steps| timed(Tier::Host, || run_host(workspace, &steps, |_| Ok(()))));
        return Ok(host.transpose()?.into_iter().collect());
    }
    let mut in_vm = VmSteps::new(kernel_steps(kernel, Tier::Vm, &[], path)?);
    let folder = vm::new_folder(workspace)?;
    let mut list = Steps::new(&folder);
    thread::scope(|scope| {
        // Returns the steps that the VM got.
        let host = scope.spawn(move || -> (Steps, Result<Option<TierReport>>) {
            let run = || -> Result<Option<TierReport>> {
                let mut give = |steps: Vec<Step>| -> Result<()> {
                    steps.into_iter().try_for_each(|step| list.give(step))
                };
                let Some(steps) = on_host else {
                    give(in_vm.all)?;
                    return Ok(None);
                };
                give(in_vm.first())?;
                let report = timed(Tier::Host, || {
                    run_host(workspace, &steps, |binary| give(in_vm.after(binary)))
                })?;
                give(in_vm.last())?;
                Ok(Some(report))
            };
            let report = run();
            // Also after an error, so that the VM does not wait for more.
            let end = list.end();
            (list, report.and_then(|report| end.map(|()| report)))
        });
        let mut host_report = None;
        let vm = timed(Tier::Vm, || {
            let run = Vm::prepare(workspace, options)?.run_folder(workspace, folder.clone())?;
            let (list, report) = host
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            host_report = report?;
            read_vm(&run, list.given())
        })?;
        Ok(host_report.into_iter().chain([vm]).collect())
    })
}

/// The steps of the VM next to the tier [`Host`](Tier::Host): the tests that it skipped, and [`ON_EVERY_KERNEL`]. All tests if it skipped none:
/// such a host has another kernel than the VM.
#[derive(Debug)]
struct VmSteps {
    all: Vec<Step>,
    /// To be run if the host skips a test.
    waiting: Vec<Step>,
    has_skipped: bool,
}

impl VmSteps {
    /// `all` has a step for each test file.
    fn new(all: Vec<Step>) -> Self {
        Self {
            all,
            waiting: Vec::new(),
            has_skipped: false,
        }
    }

    /// The steps that are run in any case.
    fn first(&self) -> Vec<Step> {
        self.all.iter().filter(|step| is_whole(step)).cloned().collect()
    }

    /// The steps that are known after the host has run a test file.
    fn after(&mut self, binary: &Binary) -> Vec<Step> {
        let skipped = binary.skipped.iter().filter(|skip| !is_marked(skip));
        let skipped: Vec<String> = skipped.map(|skip| skip.test.clone()).collect();
        self.has_skipped |= !skipped.is_empty();
        let step = self.all.iter().find(|step| step.name == binary.name);
        if let Some(step) = step.filter(|step| !is_whole(step)) {
            let arguments = match (on_every_kernel(step), skipped.is_empty()) {
                (Some(tests), _) => tests.iter().map(|&test| test.to_owned()).chain(skipped).collect(),
                (None, false) => ["--exact".to_owned()].into_iter().chain(skipped).collect(),
                (None, true) => Vec::new(),
            };
            if !arguments.is_empty() {
                self.waiting.push(Step {
                    arguments,
                    ..step.clone()
                });
            }
        }
        match self.has_skipped {
            true => std::mem::take(&mut self.waiting),
            false => Vec::new(),
        }
    }

    /// The steps that are known after the host has run all test files.
    fn last(self) -> Vec<Step> {
        if self.has_skipped {
            return self.waiting;
        }
        let all = self.all.into_iter();
        all.filter(|step| !is_whole(step)).collect()
    }
}

/// The tests of a file that run on every kernel; empty: all.
fn on_every_kernel(step: &Step) -> Option<&'static [&'static str]> {
    let (_, tests) = ON_EVERY_KERNEL.iter().find(|(name, _)| *name == step.name)?;
    Some(tests)
}

/// Whether all tests of the file run on every kernel.
fn is_whole(step: &Step) -> bool {
    on_every_kernel(step).is_some_and(<[_]>::is_empty)
}

/// Whether the test is marked `#[ignore]`: it is skipped everywhere.
fn is_marked(skip: &Skip) -> bool {
    skip.reason.starts_with("marked")
}

/// Runs kernel tests in the VM. A filter that is the name of a test file selects this file. Other filters select tests by a part
/// of their names. All of them run `repeat` times in one boot.
pub(crate) fn run_vm_only(
    workspace: &Workspace,
    filters: &[String],
    repeat: NonZeroUsize,
    options: &vm::Options,
) -> Result<bool> {
    require(&[Tier::Vm])?;
    // Some kernel tests run the examples and the agent.
    workspace.build(&["build", "--package", "kernlink-examples", "--examples"])?;
    workspace.build(&["build", "--package", "kernlink-agent", "--bins"])?;
    let executables = workspace.build(&[
        "test",
        "--package",
        KERNEL_TESTS,
        "--all-features",
        "--tests",
        "--no-run",
    ])?;
    let kernel: Vec<_> = executables
        .into_iter()
        .filter(|executable| executable.kind == "test" && executable.is_test)
        .collect();
    let path = programs::folder(workspace.target())?;
    let steps = repeated(&kernel_steps(&kernel, Tier::Vm, filters, &path)?, repeat);
    let run = Vm::prepare(workspace, options)?.run(workspace, steps.clone())?;
    let report = Report {
        tiers: vec![read_vm(&run, &steps)?],
    };
    println!("\n{report}");
    Ok(report.is_success())
}

/// All steps, then all of them again, so often in total.
fn repeated(steps: &[Step], repeat: NonZeroUsize) -> Vec<Step> {
    let runs = 1..=repeat.get();
    let of_run = |run| {
        steps.iter().cloned().map(move |step| match repeat.get() {
            1 => step,
            all => Step {
                name: format!("{} (run {run} of {all})", step.name),
                ..step
            },
        })
    };
    runs.flat_map(of_run).collect()
}

/// Installs what the tiers need as root; otherwise fails if something is missing.
fn require(tiers: &[Tier]) -> Result<()> {
    let mut needed = Vec::new();
    if tiers.iter().any(|tier| *tier != Tier::Unit) {
        needed.push(PROGRAMS);
    }
    if tiers.contains(&Tier::Vm) {
        needed.push(provision::VM_PROGRAMS);
    }
    if provision::is_root() {
        return provision::install(&needed);
    }
    let mut problems = Vec::new();
    if tiers.contains(&Tier::Host) {
        problems.push(
            "the tier host needs root, because it creates and configures network namespaces".to_owned(),
        );
    }
    let missing = provision::missing(&needed);
    if !missing.is_empty() {
        problems.push(format!(
            "missing programs, which only root can install: {}",
            provision::list(&missing)
        ));
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!(
        "{}; without root, run `cargo xtask test --tier unit`",
        problems.join("; ")
    )
}

fn kernel_steps(kernel: &[Executable], tier: Tier, filters: &[String], path: &Path) -> Result<Vec<Step>> {
    let (files, tests): (Vec<_>, Vec<_>) = filters
        .iter()
        .partition(|filter| kernel.iter().any(|executable| executable.target == **filter));
    let steps: Vec<_> = kernel
        .iter()
        .filter(|executable| files.is_empty() || files.contains(&&executable.target))
        .map(|executable| Step {
            name: executable.target.clone(),
            arguments: tests.iter().map(|&test| test.clone()).collect(),
            ..step(executable, tier, path)
        })
        .collect();
    if steps.is_empty() {
        bail!("the package {KERNEL_TESTS} has no test file");
    }
    Ok(steps)
}

/// `path` is the folder of the declared programs.
fn step(executable: &Executable, tier: Tier, path: &Path) -> Step {
    let folder = executable.folder.to_string_lossy().into_owned();
    let mut environment = BTreeMap::from([
        ("CARGO_MANIFEST_DIR".to_owned(), folder),
        ("CARGO_PKG_NAME".to_owned(), executable.package.clone()),
        (TIER_VARIABLE.to_owned(), tier.name().to_owned()),
        (PROPERTY_SEED.0.to_owned(), PROPERTY_SEED.1.to_owned()),
    ]);
    environment.extend(provision::inherited());
    environment.insert("PATH".to_owned(), path.to_string_lossy().into_owned());
    Step {
        name: executable.name(),
        program: executable.path.clone(),
        arguments: Vec::new(),
        folder: executable.folder.clone(),
        environment,
        time_limit: TIME_LIMIT,
        show: false,
    }
}

/// Runs the steps with `unshare`, so that objects that a test does not remove are not in the network of the host. Calls `done` after each.
fn run_host(
    workspace: &Workspace,
    steps: &[Step],
    done: impl FnMut(&Binary) -> Result<()>,
) -> Result<TierReport> {
    let steps: Vec<_> = steps.iter().map(host::in_private_namespace).collect();
    run_here(workspace, Tier::Host.name(), &steps, done)
}

fn run_unit(workspace: &Workspace, executables: &[Executable], path: &Path) -> Result<TierReport> {
    let mut steps: Vec<_> = executables
        .iter()
        .map(|executable| step(executable, Tier::Unit, path))
        .collect();
    // With the `PATH` of the user, because cargo needs the compiler and the linker.
    steps.push(Step {
        name: "documentation tests".to_owned(),
        program: workspace.cargo().get_program().into(),
        arguments: [
            "test",
            "--workspace",
            "--all-features",
            "--doc",
            "--no-fail-fast",
            "--quiet",
        ]
        .map(str::to_owned)
        .to_vec(),
        folder: workspace.root().to_owned(),
        environment: BTreeMap::new(),
        time_limit: 2 * TIME_LIMIT,
        show: false,
    });
    let steps: Vec<_> = steps.into_iter().map(host::with_low_priority).collect();
    run_here(workspace, Tier::Unit.name(), &steps, |_| Ok(()))
}

/// Runs steps on this machine, one after the other. Calls `done` after each.
fn run_here(
    workspace: &Workspace,
    name: &'static str,
    steps: &[Step],
    mut done: impl FnMut(&Binary) -> Result<()>,
) -> Result<TierReport> {
    let folder = workspace.target().join(format!("xtask/{name}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut tier = TierReport::new(name);
    for (position, step) in steps.iter().enumerate() {
        let records = Records::new(&folder, position);
        step::run(step, &records, pass_through)?;
        let binary = read(name, step, &records)?;
        done(&binary)?;
        tier.binaries.push(binary);
    }
    Ok(tier)
}

/// Reads the results of the steps of a VM.
fn read_vm(run: &vm::Run, steps: &[Step]) -> Result<TierReport> {
    let mut tier = TierReport::new(Tier::Vm.name());
    if let Some(problem) = &run.problem {
        eprintln!("xtask: {problem}");
        let first = problem.lines().next().unwrap_or_default();
        tier.binaries.push(Binary::broken("VM", first));
    }
    for (position, step) in steps.iter().enumerate() {
        let binary = read(tier.name, step, &run.records(position))?;
        tier.binaries.push(in_vm(binary));
    }
    Ok(tier)
}

/// In the VM, a test may be skipped only because the kernel is too old, or because it is ignored.
fn in_vm(mut binary: Binary) -> Binary {
    let (old, wrong): (Vec<_>, Vec<_>) = binary
        .skipped
        .into_iter()
        .partition(|skip| skip.reason.starts_with("kernel is older") || is_marked(skip));
    binary.skipped = old;
    binary.failures.extend(
        wrong
            .into_iter()
            .map(|skip| format!("{} was skipped in the VM: {}", skip.test, skip.reason)),
    );
    binary
}

/// Reads the records of a step. Prints its output if it failed, in one piece, because another tier may print at the same time.
fn read(tier: &str, step: &Step, records: &Records) -> Result<Binary> {
    let binary = records.read_binary(step)?;
    let (passed, failed, skipped) = (binary.passed, binary.failures.len(), binary.skipped.len());
    let mut text = format!(
        "{tier:<4} {:<44} {passed:>5} passed {failed:>3} failed {skipped:>3} skipped {:>6.1} s",
        binary.name,
        binary.took.as_secs_f64()
    );
    if failed > 0 {
        text += &output(&binary.name, &records.read_output(), &records.output());
    }
    println!("{text}");
    Ok(binary)
}

/// The lines of the output of a program, except for those of tests that passed.
fn output(name: &str, text: &str, file: &Path) -> String {
    let mut lines = vec![format!("\n---- output of {name} ({}) ----", file.display())];
    let shown = text.lines().filter(|line| !line.ends_with(" ... ok"));
    lines.extend(shown.map(str::to_owned));
    lines.push(format!("---- end of the output of {name} ----"));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Vec<Executable> {
        ["harness", "ipvs"]
            .map(|target| Executable {
                package: KERNEL_TESTS.to_owned(),
                target: target.to_owned(),
                kind: "test".to_owned(),
                is_test: true,
                path: "/nonexistent".into(),
                folder: "/".into(),
            })
            .to_vec()
    }

    fn names_and_arguments(filters: &[&str]) -> Vec<(String, Vec<String>)> {
        let filters: Vec<_> = filters.iter().map(|&filter| filter.to_owned()).collect();
        let steps = kernel_steps(&kernel(), Tier::Vm, &filters, Path::new("/declared")).unwrap();
        steps
            .into_iter()
            .map(|step| (step.name, step.arguments))
            .collect()
    }

    #[test]
    fn a_filter_selects_a_file_or_tests() {
        let none = Vec::<String>::new();
        assert_eq!(
            names_and_arguments(&[]),
            [("harness".into(), none.clone()), ("ipvs".into(), none.clone())]
        );
        assert_eq!(names_and_arguments(&["ipvs"]), [("ipvs".into(), none)]);
        assert_eq!(
            names_and_arguments(&["ipvs", "udp"]),
            [("ipvs".into(), vec!["udp".to_owned()])]
        );
        assert_eq!(names_and_arguments(&["udp"]).len(), 2);
    }

    /// The test files `harness` and `ipvs`, and those of [`ON_EVERY_KERNEL`].
    fn vm_steps() -> VmSteps {
        let mut kernel = kernel();
        let first = kernel[0].clone();
        kernel.extend(ON_EVERY_KERNEL.iter().map(|(target, _)| Executable {
            target: (*target).to_owned(),
            ..first.clone()
        }));
        VmSteps::new(kernel_steps(&kernel, Tier::Vm, &[], Path::new("/declared")).unwrap())
    }

    /// The results of a test file of which the host skipped these tests, each with the reason.
    fn on_host(name: &str, skipped: &[(&str, &str)]) -> Binary {
        let skip = |(test, reason): &(&str, &str)| Skip {
            test: (*test).to_owned(),
            reason: (*reason).to_owned(),
        };
        Binary {
            skipped: skipped.iter().map(skip).collect(),
            ..Binary::read(name, "", Vec::new(), true)
        }
    }

    fn lines(steps: Vec<Step>) -> Vec<String> {
        let line = |step: Step| format!("{} {}", step.name, step.arguments.join(" "));
        steps.into_iter().map(line).collect()
    }

    #[test]
    fn the_vm_runs_the_tests_that_the_host_skipped_as_soon_as_they_are_known() {
        let mut steps = vm_steps();
        assert_eq!(lines(steps.first()), ["contract_nftables ", "nftables "]);
        assert_eq!(lines(steps.after(&on_host("harness", &[]))), [""; 0]);
        let ipvs = on_host(
            "ipvs",
            &[("a::b", "no IPVS"), ("c", "marked #[ignore]"), ("d", "old")],
        );
        assert_eq!(lines(steps.after(&ipvs)), ["ipvs --exact a::b d"]);
        assert_eq!(lines(steps.after(&on_host("nftables", &[("e", "old")]))), [""; 0]);
        assert_eq!(lines(steps.last()), [""; 0]);
    }

    #[test]
    fn the_vm_runs_all_tests_if_the_host_skipped_none() {
        let mut steps = vm_steps();
        let mut run = lines(steps.first());
        for name in [
            "harness",
            "ipvs",
            "contract_nftables",
            "nftables",
            "nftables_mode",
        ] {
            let marked = [("c", "marked #[ignore]")];
            run.extend(lines(steps.after(&on_host(name, &marked))));
        }
        run.extend(lines(steps.last()));
        assert_eq!(
            run,
            [
                "contract_nftables ",
                "nftables ",
                "harness ",
                "ipvs ",
                "nftables_mode "
            ]
        );
    }

    #[test]
    fn tests_of_what_differs_between_kernels_run_on_the_host_and_in_the_vm() {
        for is_skipped_first in [true, false] {
            let mut steps = vm_steps();
            let mut run = Vec::new();
            let ipvs = on_host("ipvs", &[("a", "no IPVS")]);
            let mode = on_host("nftables_mode", &[("b", "old")]);
            let order = if is_skipped_first {
                [&ipvs, &mode]
            } else {
                [&mode, &ipvs]
            };
            for binary in order {
                run.extend(lines(steps.after(binary)));
            }
            run.extend(lines(steps.last()));
            run.sort();
            assert_eq!(run, ["ipvs --exact a", "nftables_mode packets:: b"]);
        }
        // It waits until a test is skipped.
        let mut steps = vm_steps();
        assert_eq!(lines(steps.after(&on_host("nftables_mode", &[]))), [""; 0]);
        let ipvs = on_host("ipvs", &[("a", "no IPVS")]);
        assert_eq!(
            lines(steps.after(&ipvs)),
            ["nftables_mode packets::", "ipvs --exact a"]
        );
    }

    #[test]
    fn repeated_steps_run_one_run_after_the_other() {
        let steps = kernel_steps(&kernel(), Tier::Vm, &[], Path::new("/declared")).unwrap();
        let names = |repeat| -> Vec<String> {
            let steps = repeated(&steps, NonZeroUsize::new(repeat).unwrap());
            steps.into_iter().map(|step| step.name).collect()
        };
        assert_eq!(names(1), ["harness", "ipvs"]);
        let expected = ["harness", "ipvs"].map(|name| format!("{name} (run 2 of 2)"));
        assert_eq!(names(2)[2..], expected);
    }

    #[test]
    fn each_run_has_the_same_random_cases() {
        let steps = kernel_steps(&kernel(), Tier::Host, &[], Path::new("/declared")).unwrap();
        let chosen = provision::inherited().remove("PROPTEST_RNG_SEED");
        let seed = chosen.unwrap_or_else(|| "1".to_owned());
        assert!(
            steps
                .iter()
                .all(|step| step.environment["PROPTEST_RNG_SEED"] == seed)
        );
    }

    #[test]
    fn tests_find_declared_programs_only() {
        let steps = kernel_steps(&kernel(), Tier::Host, &[], Path::new("/declared")).unwrap();
        for step in steps {
            assert_eq!(step.environment["PATH"], "/declared");
            // `unshare` is found in the same folder.
            let on_host = host::in_private_namespace(&step);
            assert_eq!(on_host.environment["PATH"], "/declared");
            let threads = &on_host.environment["RUST_TEST_THREADS"];
            assert!(
                threads.parse::<usize>().is_ok_and(|threads| threads > 0),
                "{threads}"
            );
        }
    }

    #[test]
    fn tiers_are_parsed_by_name() {
        for tier in Tier::ALL {
            assert_eq!(Tier::parse(tier.name()).unwrap(), tier);
        }
        assert!(
            Tier::parse("all")
                .unwrap_err()
                .to_string()
                .contains("unknown tier `all`")
        );
    }

    #[test]
    fn in_the_vm_a_test_is_skipped_only_on_an_old_kernel() {
        let skip = |reason: &str| Skip {
            test: "t".to_owned(),
            reason: reason.to_owned(),
        };
        let binary = Binary {
            name: "ipvs".to_owned(),
            passed: 0,
            failures: Vec::new(),
            skipped: vec![skip("kernel is older than 6.3: 6.1"), skip("no ip_vs")],
            took: Duration::ZERO,
        };
        let binary = in_vm(binary);
        assert_eq!((binary.skipped.len(), binary.failures.len()), (1, 1));
        assert!(binary.failures[0].contains("no ip_vs"));
    }
}
