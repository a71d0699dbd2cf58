//! Boots a VM with virtme-ng, which shares the file system of this machine, and runs steps in it.
//!
//! The guest mounts the file system of the host read-only, with temporary overlays over the usual system folders. One folder for
//! each run is writable; the guest writes its records to it (see [`crate::guest`]).

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    guest::{ERROR, FINISHED, JOB, Job, STARTED, STDERR_PREFIX, Steps},
    provision::{self, inherited},
    step::{End, Group, Records, Step, Stream, pass_through},
    workspace::Workspace,
};

/// The options of the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Hardware virtualisation; emulation otherwise.
    pub(crate) kvm: bool,
    /// A kernel image with its modules in `../lib/modules`. `None`: [`KERNEL_VARIABLE`], else the package of the distribution.
    pub(crate) kernel: Option<PathBuf>,
    /// For the VM including its boot. `None`: [`TIME_LIMIT`].
    pub(crate) time_limit: Option<Duration>,
    /// Folders of the host that the guest may write to.
    pub(crate) writable: Vec<PathBuf>,
}

/// The environment variable with the kernel image, if the option is not given.
const KERNEL_VARIABLE: &str = "KERNLINK_VM_KERNEL";
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The time until the guest has booted, which takes about half a minute on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_secs(8 * 60);
/// Loaded in the guest before the first step. Many kernels of hosts lack them, therefore the VM exists.
const MODULES: [&str; 2] = ["ip_vs", "dummy"];
/// Modules that no test uses. Loading them takes half of the time of a boot in emulation.
const NOT_LOADED: &str = "kvm_amd,kvm_intel,kvm,ccp,ahci,libata,sr_mod,cdrom,i2c_i801,lpc_ich,iTCO_wdt,i6300esb,\
     psmouse,snd_pcsp,pcspkr,intel_rapl_msr,powernow_k8,qemu_fw_cfg,evdev";

/// A VM that can be booted.
#[derive(Debug)]
pub(crate) struct Vm {
    kernel: PathBuf,
    programs: PathBuf,
    options: Options,
}

/// The result of one run of a VM.
#[derive(Debug)]
pub(crate) struct Run {
    folder: PathBuf,
    /// Why the guest did not run all steps. `None` if it did.
    pub(crate) problem: Option<String>,
    /// Whether the guest has booted and started the job.
    has_booted: bool,
}

impl Run {
    pub(crate) fn records(&self, position: usize) -> Records {
        Records::new(&self.folder, position)
    }
}

/// Runs one command in the VM and returns its exit status.
pub(crate) fn run_command(workspace: &Workspace, command: &[String], options: &Options) -> Result<ExitCode> {
    let (program, arguments) = match cargo_run(command)? {
        Some((build, arguments)) => {
            let executables = workspace.build(&build)?;
            let [executable] = &executables[..] else {
                bail!(
                    "cargo {}: {} programs; expected one",
                    build.join(" "),
                    executables.len()
                );
            };
            (executable.path.clone(), arguments)
        }
        None => {
            let (program, arguments) = command.split_first().context("no command")?;
            (PathBuf::from(program), arguments.to_vec())
        }
    };
    let vm = Vm::prepare(workspace, options)?;
    let step = Step {
        name: command.join(" "),
        program,
        arguments,
        folder: env::current_dir().context("finding the current folder")?,
        environment: inherited(),
        time_limit: options.time_limit.unwrap_or(TIME_LIMIT),
        show: true,
    };
    let run = vm.run(workspace, vec![step])?;
    if let Some(problem) = &run.problem {
        bail!("{problem}");
    }
    match run.records(0).read_end()? {
        Some(End::Exited(code)) => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        Some(End::Killed(signal)) => bail!("the command was killed by signal {signal}"),
        Some(End::TimedOut) => bail!("the command exceeded the time limit"),
        Some(End::NotStarted(cause)) => bail!("starting the command failed: {cause}"),
        None => bail!("the guest left no record of the command"),
    }
}

/// For `cargo run ...`: the arguments of `cargo build`, and the arguments of the program.
///
/// The program is built on the host, because the target folder is read-only in the guest, and compiling in emulation takes minutes.
fn cargo_run(command: &[String]) -> Result<Option<(Vec<String>, Vec<String>)>> {
    let [cargo, verb, rest @ ..] = command else {
        return Ok(None);
    };
    if cargo != "cargo" {
        return Ok(None);
    }
    match verb.as_str() {
        "run" | "r" => {}
        "test" | "t" => bail!(
            "`cargo test` writes to the target folder, which is read-only in the VM: use `cargo xtask vm test [FILTER]...`"
        ),
        "bench" => bail!(
            "`cargo bench` writes to the target folder, which is read-only in the VM: use `cargo xtask bench [GROUP]`"
        ),
        _ => return Ok(None),
    }
    let mut halves = rest.splitn(2, |word| word == "--");
    let mut build = vec!["build".to_owned()];
    build.extend(halves.next().unwrap_or_default().iter().cloned());
    Ok(Some((build, halves.next().unwrap_or_default().to_vec())))
}

impl Vm {
    /// Installs everything that a boot needs.
    pub(crate) fn prepare(workspace: &Workspace, options: &Options) -> Result<Self> {
        provision::install(&[provision::VM_PROGRAMS])?;
        let folder = workspace.target().join("vm");
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let kernel = match options
            .kernel
            .clone()
            .or_else(|| env::var_os(KERNEL_VARIABLE).map(PathBuf::from))
        {
            Some(kernel) => {
                ensure!(kernel.is_file(), "no kernel image at {}", kernel.display());
                kernel
            }
            None => provision::kernel(&folder)?,
        };
        let programs = provision::virtme_ng(&folder)?;
        Ok(Self {
            kernel,
            programs,
            options: options.clone(),
        })
    }

    /// Boots the VM, runs the steps, and waits for its end. See [`run_folder`](Self::run_folder).
    pub(crate) fn run(&self, workspace: &Workspace, steps: Vec<Step>) -> Result<Run> {
        let folder = new_folder(workspace)?;
        let mut list = Steps::new(&folder);
        steps.into_iter().try_for_each(|step| list.give(step))?;
        list.end()?;
        self.run_folder(workspace, folder)
    }

    /// Boots the VM, runs the steps in a [new folder](new_folder) until their list ends, and waits for the end of the VM.
    ///
    /// A failed boot is retried once, because no step has run. Failures after the boot are not retried.
    ///
    /// # Errors
    ///
    /// Errors of the host. Errors of the guest are in the returned value.
    pub(crate) fn run_folder(&self, workspace: &Workspace, folder: PathBuf) -> Result<Run> {
        let run = self.boot(workspace, folder.clone())?;
        match &run.problem {
            Some(problem) if !run.has_booted => {
                eprintln!("xtask: {problem}\nxtask: booting the VM again")
            }
            _ => return Ok(run),
        }
        self.boot(workspace, folder)
    }

    fn boot(&self, workspace: &Workspace, folder: PathBuf) -> Result<Run> {
        let job = Job {
            modules: MODULES.map(str::to_owned).to_vec(),
        };
        fs::write(folder.join(JOB), serde_json::to_string(&job)?)?;

        let limit = self.options.time_limit.unwrap_or(TIME_LIMIT);
        let start = Instant::now();
        let mut group = Group::spawn(&mut self.command(workspace, &folder)?)?;
        let output = group
            .child
            .stdout
            .take()
            .map(|pipe| thread::spawn(move || show(pipe)));
        let console = group
            .child
            .stderr
            .take()
            .map(|pipe| thread::spawn(move || keep(pipe)));
        let started = folder.join(STARTED);
        let status = group.wait_while(|elapsed| may_continue(elapsed, limit, started.exists()))?;
        drop(group);
        if let Some(output) = output {
            let _ = output.join();
        }
        let console = console.and_then(|thread| thread.join().ok()).unwrap_or_default();
        fs::write(folder.join("console.log"), &console)?;

        let problem = problem(
            &folder,
            status.map(|status| status.to_string()),
            start.elapsed(),
            &console,
        );
        let has_booted = started.exists();
        Ok(Run {
            folder,
            problem,
            has_booted,
        })
    }

    fn command(&self, workspace: &Workspace, shared: &Path) -> Result<Command> {
        let script = format!("exec {} guest {}", quote(&workspace.xtask)?, quote(shared)?);
        let mut command = Command::new(self.programs.join("vng"));
        command
            .env(
                "PATH",
                format!("{}:{}", self.programs.display(), provision::search_path()),
            )
            .current_dir(workspace.root())
            .arg("--run")
            .arg(&self.kernel)
            // Writes the console of the guest to standard error, which is recorded.
            .arg("--verbose")
            .args([
                "--append",
                "loglevel=4",
                // On a loaded machine the emulated timer is late, and the kernel's check of it ends in a panic.
                "--append",
                "no_timer_check",
                "--append",
                &format!("modprobe.blacklist={NOT_LOADED}"),
            ])
            // virtiofs needs a daemon on the host.
            .arg("--force-9p")
            .args(["--cpus", "2", "--memory", "4G", "--user", "root"])
            .arg("--rwdir")
            .arg(shared)
            .args(["--exec", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for folder in &self.options.writable {
            let folder = folder
                .canonicalize()
                .with_context(|| format!("--writable {}", folder.display()))?;
            command.arg("--rwdir").arg(folder);
        }
        if !self.options.kvm {
            command.arg("--disable-kvm");
        }
        Ok(command)
    }
}

/// Whether to wait for the VM any longer.
fn may_continue(elapsed: Duration, limit: Duration, has_booted: bool) -> bool {
    elapsed <= limit && (has_booted || elapsed <= BOOT_LIMIT)
}

/// A new folder that a VM shares with this machine. The records of earlier runs are removed.
pub(crate) fn new_folder(workspace: &Workspace) -> Result<PathBuf> {
    let vms = workspace.target().join("vm");
    fs::create_dir_all(&vms).with_context(|| format!("creating {}", vms.display()))?;
    remove_old_runs(&vms)?;
    let folder = vms.join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    Ok(folder)
}

/// Removes the records of earlier runs, except those of which the process still exists.
fn remove_old_runs(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix("run-") else {
            continue;
        };
        if process == std::process::id().to_string() || !Path::new("/proc").join(process).exists() {
            fs::remove_dir_all(entry.path())
                .with_context(|| format!("removing {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// Why the guest did not run all steps, by the files that it wrote. `None` if it ran them.
fn problem(folder: &Path, status: Option<String>, took: Duration, console: &str) -> Option<String> {
    let seconds = took.as_secs();
    let tail = || format!("its console:\n  {}", cause(console).join("\n  "));
    if let Ok(error) = fs::read_to_string(folder.join(ERROR)) {
        return Some(error);
    }
    if let Ok(tainted) = fs::read_to_string(folder.join(FINISHED)) {
        let mask: u64 = tainted.trim().parse().unwrap_or(u64::MAX);
        return (mask & TAINT_DIE != 0).then(|| format!("the kernel of the guest had an oops; {}", tail()));
    }
    let ended = match status {
        Some(status) => format!("ended after {seconds} s ({status})"),
        None if folder.join(STARTED).exists() => {
            format!("was killed at its time limit after {seconds} s (see --time-limit)")
        }
        None => format!("was killed after {seconds} s"),
    };
    if folder.join(STARTED).exists() {
        Some(format!(
            "the VM booted, but {ended} before all steps were run; {}",
            tail()
        ))
    } else {
        Some(format!("the VM did not boot: it {ended}; {}", tail()))
    }
}

/// The lines of the console that show the cause: from the first error of the kernel on, else the last lines.
fn cause(console: &str) -> Vec<&str> {
    let lines: Vec<_> = console.lines().filter(|line| !line.trim().is_empty()).collect();
    let errors = ["Kernel panic", "BUG: ", "Oops: ", "Out of memory: "];
    let first = lines
        .iter()
        .position(|line| errors.iter().any(|error| line.contains(error)));
    let start = first.unwrap_or(lines.len().saturating_sub(CONSOLE_LINES));
    lines.into_iter().skip(start).take(CONSOLE_LINES).collect()
}

/// Enough for a call trace.
const CONSOLE_LINES: usize = 24;

/// The taint flag that an oops or a BUG sets:
/// <https://github.com/torvalds/linux/blob/v6.1/include/linux/panic.h#L60>.
const TAINT_DIE: u64 = 1 << 7;

/// Writes the lines of the guest to the stream that they were written to.
fn show(pipe: impl Read) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        match line.strip_prefix(&[STDERR_PREFIX]) {
            Some(rest) => pass_through(Stream::Err, rest),
            None => pass_through(Stream::Out, &line),
        }
        line.clear();
    }
}

fn keep(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // On a read error, the part before it is used.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A path as one argument of a shell command.
fn quote(path: &Path) -> Result<String> {
    let Some(text) = path.to_str() else {
        bail!("path {} is not UTF-8", path.display())
    };
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str, marks: &[(&str, &str)]) -> PathBuf {
        let folder = env::temp_dir().join(format!("xtask-vm-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (mark, text) in marks {
            fs::write(folder.join(mark), text).unwrap();
        }
        folder
    }

    fn problem_with(name: &str, marks: &[(&str, &str)], status: Option<&str>) -> Option<String> {
        let folder = folder(name, marks);
        let problem = problem(
            &folder,
            status.map(str::to_owned),
            Duration::from_secs(9),
            "first\nKernel panic\n",
        );
        fs::remove_dir_all(folder).unwrap();
        problem
    }

    #[test]
    fn a_failed_boot_is_reported_with_its_console() {
        let problem = problem_with("boot", &[], Some("exit status: 0")).unwrap();
        assert!(
            problem.contains("did not boot") && problem.contains("Kernel panic"),
            "{problem}"
        );
    }

    #[test]
    fn the_cause_begins_with_the_error_of_the_kernel() {
        let console = format!(
            "boot\n[1] Kernel panic - not syncing: x\n{}",
            "trace\n".repeat(100)
        );
        assert_eq!(
            cause(&console).first(),
            Some(&"[1] Kernel panic - not syncing: x")
        );
        assert_eq!(cause(&console).len(), CONSOLE_LINES);
        assert_eq!(cause("a\n\nb\n"), ["a", "b"]);
    }

    #[test]
    fn a_guest_that_ends_before_the_last_step_is_a_failure() {
        let problem = problem_with("half", &[(STARTED, "")], Some("exit status: 0")).unwrap();
        assert!(problem.contains("booted, but ended after 9 s"), "{problem}");
    }

    #[test]
    fn the_time_limit_is_reported() {
        let problem = problem_with("limit", &[(STARTED, "")], None).unwrap();
        assert!(problem.contains("time limit"), "{problem}");
    }

    #[test]
    fn a_boot_has_a_shorter_time_limit_than_the_run() {
        let limit = TIME_LIMIT;
        assert!(may_continue(BOOT_LIMIT, limit, false));
        assert!(!may_continue(BOOT_LIMIT + Duration::from_secs(1), limit, false));
        assert!(may_continue(limit, limit, true));
        assert!(!may_continue(limit + Duration::from_secs(1), limit, true));
        let problem = problem_with("slow", &[], None).unwrap();
        assert!(
            problem.contains("did not boot: it was killed after 9 s"),
            "{problem}"
        );
    }

    #[test]
    fn the_error_of_the_guest_is_the_cause() {
        let problem = problem_with(
            "module",
            &[(STARTED, ""), (ERROR, "no module ip_vs")],
            Some("exit status: 1"),
        );
        assert_eq!(problem.as_deref(), Some("no module ip_vs"));
    }

    #[test]
    fn a_complete_run_is_a_problem_only_after_an_oops() {
        assert_eq!(
            problem_with(
                "good",
                &[(STARTED, ""), (FINISHED, "512")],
                Some("exit status: 0")
            ),
            None
        );
        let problem = problem_with(
            "oops",
            &[(STARTED, ""), (FINISHED, "640")],
            Some("exit status: 0"),
        )
        .unwrap();
        assert!(problem.contains("oops"), "{problem}");
    }

    fn split(line: &str) -> Result<Option<(String, String)>> {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        Ok(cargo_run(&words)?.map(|(build, arguments)| (build.join(" "), arguments.join(" "))))
    }

    #[test]
    fn the_program_of_cargo_run_is_built_on_the_host() {
        let expected = ("build --example demo".to_owned(), "a.yaml -- b".to_owned());
        assert_eq!(
            split("cargo run --example demo -- a.yaml -- b").unwrap(),
            Some(expected)
        );
        assert_eq!(
            split("cargo run").unwrap(),
            Some(("build".to_owned(), String::new()))
        );
        assert_eq!(split("ipvsadm -Sn").unwrap(), None);
        assert_eq!(split("cargo --version").unwrap(), None);
        assert!(
            split("cargo test -p x")
                .unwrap_err()
                .to_string()
                .contains("cargo xtask vm test")
        );
    }

    #[test]
    fn quotes_are_escaped_for_the_shell() {
        assert_eq!(quote(Path::new("/a b/it's")).unwrap(), r"'/a b/it'\''s'");
    }
}
