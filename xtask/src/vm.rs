//! The one VM runner: boots a kernel over this machine's file system with virtme-ng and runs steps in it.
//!
//! The guest sees the host's files read-only, with throw-away overlays over the usual system folders. One
//! folder per run is shared for writing; in it the guest leaves what it did (see [`crate::guest`]).

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
    guest::{ERROR, ERROR_MARK, FINISHED, JOB, Job, STARTED},
    provision,
    step::{End, Group, Records, Step, Stream, pass_through},
    test::inherited,
    workspace::Workspace,
};

/// What the command line says of the VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Hardware virtualisation; emulation otherwise.
    pub(crate) kvm: bool,
    /// A kernel image with its modules in `../lib/modules`, instead of the distribution's.
    pub(crate) kernel: Option<PathBuf>,
    /// For the VM as a whole, boot included.
    pub(crate) time_limit: Option<Duration>,
    /// Folders of the host that the guest may write to.
    pub(crate) writable: Vec<PathBuf>,
}

/// Names the kernel image where no option does.
const KERNEL_VARIABLE: &str = "KERNLINK_VM_KERNEL";
const TIME_LIMIT: Duration = Duration::from_secs(60 * 60);
/// Until the guest's sign of life, which takes about half a minute where nothing else is going on.
const BOOT_LIMIT: Duration = Duration::from_secs(8 * 60);
/// Loaded in the guest before anything else; both are missing in many hosts' kernels, which is what the VM is for.
const MODULES: [&str; 2] = ["ip_vs", "dummy"];
/// Devices and helpers that no test uses. Loading them takes half of the boot in an emulated machine.
const NOT_LOADED: &str = "kvm_amd,kvm_intel,kvm,ccp,ahci,libata,sr_mod,cdrom,i2c_i801,lpc_ich,iTCO_wdt,i6300esb,\
     psmouse,snd_pcsp,pcspkr,intel_rapl_msr,powernow_k8,qemu_fw_cfg,evdev";

/// A VM that can be booted.
#[derive(Debug)]
pub(crate) struct Vm {
    kernel: PathBuf,
    programs: PathBuf,
    options: Options,
}

/// What a VM left behind.
#[derive(Debug)]
pub(crate) struct Run {
    folder: PathBuf,
    /// Why the guest did not do all its steps, if it did not.
    pub(crate) problem: Option<String>,
    /// Whether the guest gave a sign of life.
    came_up: bool,
}

impl Run {
    pub(crate) fn records(&self, position: usize) -> Records {
        Records::new(&self.folder, position)
    }
}

/// Runs one command in the VM; its exit status is ours.
pub(crate) fn run_command(workspace: &Workspace, command: &[String], options: &Options) -> Result<ExitCode> {
    let (program, arguments) = match cargo_run(command)? {
        Some((build, arguments)) => {
            let executables = workspace.build(&build)?;
            let [executable] = &executables[..] else {
                bail!(
                    "cargo {}: {} programs where one is needed",
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
        Some(End::TimedOut) => bail!("the command ran into the time limit"),
        Some(End::NotStarted(cause)) => bail!("the command could not be started: {cause}"),
        None => bail!("the guest left no record of the command"),
    }
}

/// Of `cargo run ...`: the arguments of the `cargo build` that makes its program, and the program's own arguments.
/// In the guest cargo would find its folder read-only, and compiling in an emulated machine would take minutes.
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
            "`cargo test` writes to the target folder; `cargo xtask vm test [FILTER]...` runs tests in the VM"
        ),
        "bench" => bail!(
            "`cargo bench` writes to the target folder; `cargo xtask bench [GROUP]` runs benchmarks in the VM"
        ),
        _ => return Ok(None),
    }
    let mut halves = rest.splitn(2, |word| word == "--");
    let mut build = vec!["build".to_owned()];
    build.extend(halves.next().unwrap_or_default().iter().cloned());
    Ok(Some((build, halves.next().unwrap_or_default().to_vec())))
}

impl Vm {
    /// Finds or fetches everything that a boot takes.
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

    /// Boots, does the steps, and waits for the end. An error is one of the host; what went wrong in the guest is in the
    /// run.
    ///
    /// A boot that fails is tried once more, as nothing of ours has run until then. From the guest's sign of life on, whatever
    /// goes wrong stands.
    pub(crate) fn run(&self, workspace: &Workspace, steps: Vec<Step>) -> Result<Run> {
        remove_old_runs(&workspace.target().join("vm"))?;
        let folder = workspace.target().join(format!("vm/run-{}", std::process::id()));
        let run = self.boot(workspace, folder.clone(), steps.clone())?;
        match &run.problem {
            Some(problem) if !run.came_up => eprintln!("xtask: {problem}\nxtask: the VM is booted once more"),
            _ => return Ok(run),
        }
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
        self.boot(workspace, folder, steps)
    }

    fn boot(&self, workspace: &Workspace, folder: PathBuf, steps: Vec<Step>) -> Result<Run> {
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let job = Job {
            modules: MODULES.map(str::to_owned).to_vec(),
            steps,
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
        let status = group.wait_while(|elapsed| may_go_on(elapsed, limit, started.exists()))?;
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
        let came_up = started.exists();
        Ok(Run {
            folder,
            problem,
            came_up,
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
            // The guest's console goes to standard error, which is kept for when the boot fails.
            .arg("--verbose")
            .args([
                "--append",
                "loglevel=4",
                "--append",
                &format!("modprobe.blacklist={NOT_LOADED}"),
            ])
            // virtiofs would need a daemon of its own on the host.
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

/// Whether a VM that has taken so long is waited for any longer.
fn may_go_on(elapsed: Duration, limit: Duration, came_up: bool) -> bool {
    elapsed <= limit && (came_up || elapsed <= BOOT_LIMIT)
}

/// The records of the last run are worth keeping, those of runs before it are not. One that is going on has its process.
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

/// Why the guest did not do all its steps: the first of the marks that is not there says how far it came.
fn problem(folder: &Path, status: Option<String>, took: Duration, console: &str) -> Option<String> {
    let seconds = took.as_secs();
    let tail = || format!("of its console:\n  {}", cause(console).join("\n  "));
    if let Ok(error) = fs::read_to_string(folder.join(ERROR)) {
        return Some(error);
    }
    if let Ok(tainted) = fs::read_to_string(folder.join(FINISHED)) {
        let mask: u64 = tainted.trim().parse().unwrap_or(u64::MAX);
        return (mask & TAINT_DIE != 0).then(|| format!("the guest's kernel had an oops; {}", tail()));
    }
    let ended = match status {
        Some(status) => format!("ended after {seconds} s ({status})"),
        None if folder.join(STARTED).exists() => {
            format!("was ended at its time limit, after {seconds} s (--time-limit SECONDS sets another)")
        }
        None => format!("was ended after {seconds} s"),
    };
    if folder.join(STARTED).exists() {
        Some(format!(
            "the VM came up but {ended} before all its steps were done; {}",
            tail()
        ))
    } else {
        Some(format!(
            "the VM did not boot: it {ended} without a sign of life; {}",
            tail()
        ))
    }
}

/// The lines of a console that say why it ended: from the kernel's own words on, else the last ones.
fn cause(console: &str) -> Vec<&str> {
    let lines: Vec<_> = console.lines().filter(|line| !line.trim().is_empty()).collect();
    let words = ["Kernel panic", "BUG: ", "Oops: ", "Out of memory: "];
    let first = lines
        .iter()
        .position(|line| words.iter().any(|word| line.contains(word)));
    let start = first.unwrap_or(lines.len().saturating_sub(CONSOLE_LINES));
    lines.into_iter().skip(start).take(CONSOLE_LINES).collect()
}

/// Enough for a call trace, not more than a screen.
const CONSOLE_LINES: usize = 24;

/// The kernel has survived an oops or a BUG:
/// <https://github.com/torvalds/linux/blob/v6.1/include/linux/panic.h#L60>.
const TAINT_DIE: u64 = 1 << 7;

/// Passes the guest's lines on to the stream they came from.
fn show(pipe: impl Read) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
        match line.strip_prefix(&[ERROR_MARK]) {
            Some(rest) => pass_through(Stream::Err, rest),
            None => pass_through(Stream::Out, &line),
        }
        line.clear();
    }
}

fn keep(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    // What came before a read error is still worth having.
    let _ = pipe.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One word of a shell command.
fn quote(path: &Path) -> Result<String> {
    let Some(text) = path.to_str() else {
        bail!("{}: a path that is not UTF-8", path.display())
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

    fn verdict(name: &str, marks: &[(&str, &str)], status: Option<&str>) -> Option<String> {
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
    fn no_sign_of_life_is_a_failed_boot_with_its_console() {
        let problem = verdict("boot", &[], Some("exit status: 0")).unwrap();
        assert!(
            problem.contains("did not boot") && problem.contains("Kernel panic"),
            "{problem}"
        );
    }

    #[test]
    fn the_kernels_own_words_come_first() {
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
    fn a_guest_that_stops_half_way_is_a_failure() {
        let problem = verdict("half", &[(STARTED, "")], Some("exit status: 0")).unwrap();
        assert!(problem.contains("came up but ended after 9 s"), "{problem}");
    }

    #[test]
    fn the_time_limit_is_named() {
        let problem = verdict("limit", &[(STARTED, "")], None).unwrap();
        assert!(problem.contains("time limit"), "{problem}");
    }

    #[test]
    fn a_boot_has_less_time_than_the_whole() {
        let limit = TIME_LIMIT;
        assert!(may_go_on(BOOT_LIMIT, limit, false));
        assert!(!may_go_on(BOOT_LIMIT + Duration::from_secs(1), limit, false));
        assert!(may_go_on(limit, limit, true));
        assert!(!may_go_on(limit + Duration::from_secs(1), limit, true));
        let problem = verdict("slow", &[], None).unwrap();
        assert!(
            problem.contains("did not boot: it was ended after 9 s"),
            "{problem}"
        );
    }

    #[test]
    fn the_guests_own_error_is_the_cause() {
        let problem = verdict(
            "module",
            &[(STARTED, ""), (ERROR, "no module ip_vs")],
            Some("exit status: 1"),
        );
        assert_eq!(problem.as_deref(), Some("no module ip_vs"));
    }

    #[test]
    fn all_steps_done_is_no_problem_unless_the_kernel_had_an_oops() {
        assert_eq!(
            verdict(
                "good",
                &[(STARTED, ""), (FINISHED, "512")],
                Some("exit status: 0")
            ),
            None
        );
        let problem = verdict(
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
    fn cargo_run_is_built_here_and_run_there() {
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
    fn quotes_survive_a_shell() {
        assert_eq!(quote(Path::new("/a b/it's")).unwrap(), r"'/a b/it'\''s'");
    }
}
