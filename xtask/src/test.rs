//! The three tiers of tests and their order.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use kernlink_kernel_tests::programs::PROGRAMS;

use crate::{
    host, programs, provision,
    report::{Binary, Report, Tier},
    step::{self, Records, Step, pass_through},
    vm::{self, Vm},
    workspace::{Executable, KERNEL_TESTS, Workspace},
};

/// One of the three tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Unit, property and documentation tests, without privileges.
    Unit,
    /// Kernel tests on the running kernel, for what it has.
    Host,
    /// Kernel tests in the VM.
    Vm,
}

impl Which {
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
        found.with_context(|| format!("--tier {name}: there are unit, host and vm"))
    }
}

/// The kernel tests read from this where they run: `host` or `vm`.
const TIER_VARIABLE: &str = "KERNLINK_TIER";
/// For one test binary; emulation is about ten times slower than the machine it runs on.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Runs the tiers and prints the closing lines. False where a test failed or did not run.
pub(crate) fn run(workspace: &Workspace, tiers: &[Which], options: &vm::Options) -> Result<bool> {
    require(tiers)?;
    let executables = workspace.build(&["test", "--workspace", "--all-features", "--no-run"])?;
    let (kernel, unit): (Vec<_>, Vec<_>) = executables
        .into_iter()
        .filter(|executable| executable.kind != "example")
        .partition(|executable| executable.package == KERNEL_TESTS && executable.kind == "test");
    let path = programs::folder(workspace.target())?;
    let mut report = Report::default();
    for tier in tiers {
        println!("\n== {} ==", tier.name());
        let start = Instant::now();
        report.tiers.push(match tier {
            Which::Unit => run_unit(workspace, &unit, &path)?,
            Which::Host => host::run(workspace, &kernel_steps(&kernel, Which::Host, &[], &path)?)?,
            Which::Vm => run_in_vm(workspace, kernel_steps(&kernel, Which::Vm, &[], &path)?, options)?,
        });
        println!("{} took {:.0} s", tier.name(), start.elapsed().as_secs_f64());
    }
    println!("\n{report}");
    Ok(report.is_success())
}

/// Runs only kernel tests, only in the VM. A filter that is the name of a test file chooses that file; the others choose
/// tests by a part of their name.
pub(crate) fn run_vm_only(workspace: &Workspace, filters: &[String], options: &vm::Options) -> Result<bool> {
    require(&[Which::Vm])?;
    // Some kernel tests run the examples.
    workspace.build(&["build", "--package", "kernlink-examples", "--examples"])?;
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
        .filter(|executable| executable.kind == "test")
        .collect();
    let path = programs::folder(workspace.target())?;
    let steps = kernel_steps(&kernel, Which::Vm, filters, &path)?;
    let report = Report {
        tiers: vec![run_in_vm(workspace, steps, options)?],
    };
    println!("\n{report}");
    Ok(report.is_success())
}

/// Installs what the tiers need, or says what is missing before anything is built.
fn require(tiers: &[Which]) -> Result<()> {
    let mut needed = Vec::new();
    if tiers.iter().any(|tier| *tier != Which::Unit) {
        needed.push(PROGRAMS);
    }
    if tiers.contains(&Which::Vm) {
        needed.push(provision::VM_PROGRAMS);
    }
    if provision::is_root() {
        return provision::install(&needed);
    }
    let mut problems = Vec::new();
    if tiers.contains(&Which::Host) {
        problems.push(
            "the host tier needs root, because it makes network namespaces and programs them".to_owned(),
        );
    }
    let missing = provision::missing(&needed);
    if !missing.is_empty() {
        problems.push(format!(
            "only root can install what is missing: {}",
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

fn kernel_steps(kernel: &[Executable], tier: Which, filters: &[String], path: &Path) -> Result<Vec<Step>> {
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

/// `path` is where the test finds programs: the folder of the declared ones.
fn step(executable: &Executable, tier: Which, path: &Path) -> Step {
    let folder = executable.folder.to_string_lossy().into_owned();
    let mut environment = BTreeMap::from([
        ("CARGO_MANIFEST_DIR".to_owned(), folder),
        ("CARGO_PKG_NAME".to_owned(), executable.package.clone()),
        (TIER_VARIABLE.to_owned(), tier.name().to_owned()),
    ]);
    environment.extend(inherited());
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

/// What a program in the VM gets of this process's environment.
pub(crate) fn inherited() -> BTreeMap<String, String> {
    let mut environment: BTreeMap<_, _> = std::env::vars()
        .filter(|(name, _)| {
            name.starts_with("KERNLINK_")
                || name.starts_with("PROPTEST_")
                || [
                    "HOME",
                    "LANG",
                    "LC_ALL",
                    "TERM",
                    "RUST_BACKTRACE",
                    "RUST_LOG",
                    "CI",
                ]
                .contains(&name.as_str())
        })
        .collect();
    environment.insert("PATH".to_owned(), provision::search_path());
    environment
}

fn run_unit(workspace: &Workspace, executables: &[Executable], path: &Path) -> Result<Tier> {
    let mut steps: Vec<_> = executables
        .iter()
        .map(|executable| step(executable, Which::Unit, path))
        .collect();
    // cargo needs the compiler and the linker, wherever the user has them.
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
    run_here(workspace, Which::Unit.name(), &steps)
}

/// Runs steps on this machine, one after the other.
pub(crate) fn run_here(workspace: &Workspace, name: &'static str, steps: &[Step]) -> Result<Tier> {
    let folder = workspace.target().join(format!("xtask/{name}"));
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut tier = Tier::new(name);
    for (position, step) in steps.iter().enumerate() {
        let records = Records::new(&folder, position);
        step::run(step, &records, pass_through)?;
        tier.binaries.push(read(step, &records)?);
    }
    Ok(tier)
}

fn run_in_vm(workspace: &Workspace, steps: Vec<Step>, options: &vm::Options) -> Result<Tier> {
    let vm = Vm::prepare(workspace, options)?;
    let run = vm.run(workspace, steps.clone())?;
    let mut tier = Tier::new(Which::Vm.name());
    if let Some(problem) = &run.problem {
        eprintln!("xtask: {problem}");
        let first = problem.lines().next().unwrap_or_default();
        tier.binaries.push(Binary::broken("VM", first));
    }
    for (position, step) in steps.iter().enumerate() {
        tier.binaries.push(in_vm(read(step, &run.records(position))?));
    }
    Ok(tier)
}

/// In the VM nothing may be missing: only a kernel that is too old is a reason to skip.
fn in_vm(mut binary: Binary) -> Binary {
    let (old, wrong): (Vec<_>, Vec<_>) = binary
        .skipped
        .into_iter()
        .partition(|skip| skip.reason.starts_with("kernel is older") || skip.reason.starts_with("marked"));
    binary.skipped = old;
    binary.failures.extend(
        wrong
            .into_iter()
            .map(|skip| format!("{} was skipped in the VM: {}", skip.test, skip.reason)),
    );
    binary
}

/// Reads the records of a step and shows its output where something is wrong.
fn read(step: &Step, records: &Records) -> Result<Binary> {
    let binary = records.read_binary(step)?;
    let (passed, failed, skipped) = (binary.passed, binary.failures.len(), binary.skipped.len());
    println!(
        "{:<44} {passed:>5} passed {failed:>3} failed {skipped:>3} skipped",
        binary.name
    );
    if failed > 0 {
        show_output(&binary.name, &records.read_output(), &records.output());
    }
    Ok(binary)
}

fn show_output(name: &str, text: &str, file: &Path) {
    println!("---- output of {name} ({}) ----", file.display());
    for line in text.lines().filter(|line| !line.ends_with(" ... ok")) {
        println!("{line}");
    }
    println!("---- end of the output of {name} ----");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Skip;

    fn kernel() -> Vec<Executable> {
        ["harness", "ipvs"]
            .map(|target| Executable {
                package: KERNEL_TESTS.to_owned(),
                target: target.to_owned(),
                kind: "test".to_owned(),
                path: "/nonexistent".into(),
                folder: "/".into(),
            })
            .to_vec()
    }

    fn names_and_arguments(filters: &[&str]) -> Vec<(String, Vec<String>)> {
        let filters: Vec<_> = filters.iter().map(|&filter| filter.to_owned()).collect();
        let steps = kernel_steps(&kernel(), Which::Vm, &filters, Path::new("/declared")).unwrap();
        steps
            .into_iter()
            .map(|step| (step.name, step.arguments))
            .collect()
    }

    #[test]
    fn a_filter_chooses_a_file_or_tests() {
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

    #[test]
    fn tests_find_declared_programs_only() {
        let steps = kernel_steps(&kernel(), Which::Host, &[], Path::new("/declared")).unwrap();
        for step in steps {
            assert_eq!(step.environment["PATH"], "/declared");
            // `unshare` is looked for there as well.
            assert_eq!(host::in_private_namespace(&step).environment["PATH"], "/declared");
        }
    }

    #[test]
    fn tiers_are_known_by_their_names() {
        for tier in Which::ALL {
            assert_eq!(Which::parse(tier.name()).unwrap(), tier);
        }
        assert!(
            Which::parse("all")
                .unwrap_err()
                .to_string()
                .contains("--tier all")
        );
    }

    #[test]
    fn in_the_vm_only_an_old_kernel_is_a_reason_to_skip() {
        let skip = |reason: &str| Skip {
            test: "t".to_owned(),
            reason: reason.to_owned(),
        };
        let binary = Binary {
            name: "ipvs".to_owned(),
            passed: 0,
            failures: Vec::new(),
            skipped: vec![skip("kernel is older than 6.3: 6.1"), skip("no ip_vs")],
        };
        let binary = in_vm(binary);
        assert_eq!((binary.skipped.len(), binary.failures.len()), (1, 1));
        assert!(binary.failures[0].contains("no ip_vs"));
    }
}
