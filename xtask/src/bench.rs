//! `cargo xtask bench`: runs the benchmarks in `benches/Cargo.toml`, which print lines `figure NAME VALUE UNIT`. With `--check`
//! the figures are compared with the documented ones.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use kernlink_kernel_tests::programs::PROGRAMS;
use serde::Deserialize;

use crate::{
    e2e::{KUBE_PROXY_VARIABLE, given},
    figures::{DOCUMENT, Documented, Figure, MACHINE, Machine},
    host, programs,
    provision::{self, inherited},
    step::{self, Records, Step, pass_through},
    vm::{self, Vm},
    watchers,
    workspace::{BENCHES, Executable, Workspace},
};

/// The environment variable with the requested group, so that a benchmark can leave out other groups.
const GROUP_VARIABLE: &str = "KERNLINK_BENCH_GROUP";
/// For one program: nftables mode with kube-proxy takes about half an hour.
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);

/// One entry of `[package.metadata.benches]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The groups of the figures that it prints.
    groups: Vec<String>,
    /// Whether it needs the kernel of the VM.
    vm: bool,
}

/// Runs the benchmarks of a group, or all of them. False if one failed or, with `check`, if a figure is not as documented.
pub(crate) fn run(
    workspace: &Workspace,
    group: Option<&str>,
    check: bool,
    kube_proxy: Option<&Path>,
    of_watchers: &watchers::Options,
    options: &vm::Options,
) -> Result<bool> {
    ensure!(
        !check || group != Some(MACHINE),
        "--check: the figures of the group {MACHINE} are not compared; others are compared by them"
    );
    let kube_proxy = kube_proxy.map(|path| given("--kube-proxy", path)).transpose()?;
    let entries = entries(workspace)?;
    // An invalid document is an error before benchmarks run for hours.
    let documented = check.then(|| documented(workspace)).transpose()?;
    let mut chosen: BTreeMap<_, _> = entries
        .iter()
        .filter(|(_, entry)| group.is_none_or(|group| entry.groups.iter().any(|name| name == group)))
        .collect();
    let has_watchers = group == Some(watchers::GROUP);
    ensure!(
        has_watchers || !chosen.is_empty(),
        "{}",
        nothing_chosen(&entries, group)
    );
    if check {
        // The benchmark has the name of its group.
        chosen.extend(entries.get_key_value(MACHINE));
    }
    let mut arguments: Vec<_> = ["bench", "--package", BENCHES, "--no-run"]
        .map(str::to_owned)
        .to_vec();
    arguments.extend(
        chosen
            .keys()
            .flat_map(|name| ["--bench".to_owned(), (*name).clone()]),
    );
    // Some benchmarks start no external programs and run without root.
    if provision::is_root() {
        provision::install(&[PROGRAMS])?;
    }
    let path = programs::folder(workspace.target())?;
    let mut executables = if chosen.is_empty() {
        Vec::new()
    } else {
        workspace.build(&arguments)?
    };
    executables.retain(|executable| executable.kind == "bench");
    ensure!(
        executables.len() == chosen.len(),
        "cargo built {} of {} benchmarks",
        executables.len(),
        chosen.len()
    );

    let (of_machine, others): (Vec<_>, Vec<_>) = executables
        .iter()
        .partition(|executable| check && executable.target == MACHINE);
    let (in_vm, here): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|executable| chosen.get(&executable.target).is_some_and(|entry| entry.vm));
    let folder = workspace.target().join("xtask/bench");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    // How slow the machine is at the moment. `None` if its benchmark failed: figures that need hours are compared all the same.
    let machine = || -> Result<Option<Machine>> {
        let (Some(executable), Some(documented)) = (of_machine.first(), &documented) else {
            return Ok(Some(Machine::default()));
        };
        let records = Records::new(&folder, executables.len());
        step::run(&here_step(executable, None, &path), &records, |_, _| ())?;
        let Some(figures) = evaluate(executable, &records, &chosen, None)? else {
            return Ok(None);
        };
        let machine = documented.machine(&figures)?;
        println!("== this machine: {machine} ==");
        Ok(Some(machine))
    };
    let with_kube_proxy = |mut step: Step| {
        if let Some(kube_proxy) = &kube_proxy {
            let value = kube_proxy.to_string_lossy().into_owned();
            step.environment.insert(KUBE_PROXY_VARIABLE.to_owned(), value);
        }
        step
    };
    let mut all = Measured::default();
    for (position, executable) in here.into_iter().enumerate() {
        let machine = machine()?;
        let records = Records::new(&folder, position);
        let mut step = with_kube_proxy(here_step(executable, group, &path));
        // The loopback device of such a namespace is down.
        if provision::is_root() && executable.target != MACHINE {
            step = host::in_private_namespace(&step);
        }
        step::run(&step, &records, pass_through)?;
        all.add(machine, evaluate(executable, &records, &chosen, group)?);
    }
    if !in_vm.is_empty() {
        let vm = Vm::prepare(workspace, options)?;
        let machine = machine()?;
        let steps = in_vm
            .iter()
            .map(|executable| with_kube_proxy(memory_step(executable, group, &path)))
            .collect();
        let run = vm.run(workspace, steps)?;
        if let Some(problem) = &run.problem {
            eprintln!("xtask: {problem}");
            all.has_failed = true;
        }
        for (position, executable) in in_vm.into_iter().enumerate() {
            all.add(
                machine,
                evaluate(executable, &run.records(position), &chosen, group)?,
            );
        }
    }
    if has_watchers {
        let machine = machine()?;
        let of_group = |text: String| figures(&text, &[watchers::GROUP.to_owned()], group);
        let figures = watchers::run(workspace, of_watchers)?.map(of_group).transpose()?;
        all.add(machine, figures);
    }
    let Measured { figures, has_failed } = all;
    let mut good = !has_failed;
    if let Some(documented) = documented {
        let findings = documented.compare(&figures, group, kube_proxy.is_some());
        println!("{documented}");
        for finding in &findings {
            println!("  {finding}");
        }
        println!("{} figures measured, {} findings", figures.len(), findings.len());
        good &= findings.is_empty();
    }
    Ok(good)
}

/// What the benchmarks printed.
#[derive(Debug, Default)]
struct Measured {
    /// Each figure with the machine at that time.
    figures: Vec<(Figure, Machine)>,
    has_failed: bool,
}

impl Measured {
    /// Adds the figures of a benchmark. `None` is what failed.
    fn add(&mut self, machine: Option<Machine>, figures: Option<Vec<Figure>>) {
        self.has_failed |= machine.is_none() || figures.is_none();
        let machine = machine.unwrap_or_default();
        let figures = figures.into_iter().flatten();
        self.figures.extend(figures.map(|figure| (figure, machine)));
    }
}

fn documented(workspace: &Workspace) -> Result<Documented> {
    let text =
        fs::read_to_string(workspace.root().join(DOCUMENT)).with_context(|| format!("reading {DOCUMENT}"))?;
    Documented::parse(&text).context(DOCUMENT)
}

fn entries(workspace: &Workspace) -> Result<BTreeMap<String, Entry>> {
    let package = workspace.package(BENCHES)?;
    let table = package.metadata.get("benches").cloned().unwrap_or_default();
    let entries: BTreeMap<String, Entry> = if table.is_null() {
        BTreeMap::new()
    } else {
        serde_json::from_value(table)
            .with_context(|| format!("{}: [package.metadata.benches]", package.manifest_path))?
    };
    let targets: Vec<_> = package
        .targets
        .iter()
        .filter(|target| target.is_bench())
        .collect();
    for target in &targets {
        ensure!(
            entries.contains_key(&target.name),
            "{}: [package.metadata.benches] has no entry {}",
            package.manifest_path,
            target.name
        );
    }
    for name in entries.keys() {
        ensure!(
            targets.iter().any(|target| target.name == *name),
            "{}: entry {name} in [package.metadata.benches] has no [[bench]]",
            package.manifest_path
        );
    }
    Ok(entries)
}

fn nothing_chosen(entries: &BTreeMap<String, Entry>, group: Option<&str>) -> String {
    let mut groups: Vec<_> = entries
        .values()
        .flat_map(|entry| entry.groups.iter().cloned())
        .chain([watchers::GROUP.to_owned()])
        .collect();
    groups.sort();
    groups.dedup();
    match group {
        Some(group) if !groups.is_empty() => format!("unknown group `{group}`; known: {}", groups.join(", ")),
        _ => format!("the package {BENCHES} has no benchmarks"),
    }
}

fn here_step(executable: &Executable, group: Option<&str>, path: &Path) -> Step {
    let mut environment = inherited();
    environment.insert("PATH".to_owned(), path.to_string_lossy().into_owned());
    if let Some(group) = group {
        environment.insert(GROUP_VARIABLE.to_owned(), group.to_owned());
    }
    Step {
        name: executable.target.clone(),
        program: executable.path.clone(),
        // As `cargo bench` does.
        arguments: vec!["--bench".to_owned()],
        folder: executable.folder.clone(),
        environment,
        time_limit: TIME_LIMIT,
        show: true,
    }
}

/// A step that copies the benchmark to the memory of the guest and runs it there. Otherwise pages of the program would be read over
/// 9p during the measurement.
fn memory_step(executable: &Executable, group: Option<&str>, path: &Path) -> Step {
    let copy_and_run = r#"cp "$0" /dev/shm/ && exec "/dev/shm/${0##*/}" "$@""#;
    let step = here_step(executable, group, path);
    let mut arguments = vec![
        "-c".to_owned(),
        copy_and_run.to_owned(),
        executable.path.to_string_lossy().into_owned(),
    ];
    arguments.extend(step.arguments);
    Step {
        program: "sh".into(),
        arguments,
        ..step
    }
}

/// The figures of the requested group, if a benchmark exited with status 0 and printed figures, all of groups that it declares.
fn evaluate(
    executable: &Executable,
    records: &Records,
    chosen: &BTreeMap<&String, &Entry>,
    group: Option<&str>,
) -> Result<Option<Vec<Figure>>> {
    let name = &executable.target;
    let groups = chosen
        .get(name)
        .map(|entry| entry.groups.as_slice())
        .unwrap_or_default();
    let result = match records.read_end()? {
        Some(end) if end.is_success() => figures(&records.read_output(), groups, group),
        Some(end) => Err(anyhow::anyhow!("failed: {end:?}")),
        None => Err(anyhow::anyhow!("it did not finish")),
    };
    match result {
        Ok(figures) => {
            println!("{name}: {} figures", figures.len());
            Ok(Some(figures))
        }
        Err(error) => {
            eprintln!("xtask: benchmark {name}: {error:#}");
            Ok(None)
        }
    }
}

/// Checks the figures in the output of a benchmark. Returns those of the requested group.
fn figures(text: &str, groups: &[String], requested: Option<&str>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("figure ")) {
        let [_, name, value, unit] = line.split(' ').collect::<Vec<_>>()[..] else {
            bail!("invalid line `{line}`; expected `figure NAME VALUE UNIT`");
        };
        let number: f64 = value
            .parse()
            .with_context(|| format!("invalid number in `{line}`"))?;
        ensure!(number.is_finite(), "number is not finite in `{line}`");
        ensure!(name.contains('.'), "name without a group in `{line}`");
        let figure = Figure {
            name: name.to_owned(),
            value: number,
            unit: unit.to_owned(),
        };
        ensure!(
            groups.iter().any(|known| known == figure.group()),
            "group is not listed in benches/Cargo.toml: `{line}`"
        );
        if requested.is_none_or(|requested| requested == figure.group()) {
            figures.push(figure);
        }
    }
    ensure!(
        !figures.is_empty(),
        "no figure{} in its output",
        requested.map(|group| format!(" of {group}")).unwrap_or_default()
    );
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str, requested: Option<&str>) -> Result<usize> {
        let groups = ["ipvs".to_owned(), "ipset".to_owned()];
        figures(text, &groups, requested).map(|figures| figures.len())
    }

    #[test]
    fn figures_of_the_group_are_counted() {
        let text = "warming up\nfigure ipvs.add 1.5 ops/s\nfigure ipset.add 2e6 entries/s\n";
        assert_eq!(count(text, None).unwrap(), 2);
        assert_eq!(count(text, Some("ipset")).unwrap(), 1);
    }

    #[test]
    fn a_benchmark_without_a_figure_of_the_group_fails() {
        assert!(count("figure ipset.add 2 entries/s\n", Some("ipvs")).is_err());
        assert!(count("", None).is_err());
    }

    #[test]
    fn invalid_figures_are_errors() {
        for line in [
            "figure ipvs.add 1",
            "figure ipvs.add fast ops/s",
            "figure ipvs.add NaN ops/s",
            "figure add 1 ops/s",
            "figure other.add 1 ops/s",
            "figure ipvs.add 1 ops per second",
        ] {
            assert!(count(line, None).is_err(), "{line}");
        }
    }
}
