//! Runs one program and records its output, on the host and (through [`crate::guest`]) in the VM.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::{
    libtest,
    report::{Binary, Report, Skip, TierReport},
    threads,
};

/// The environment variable with the path of the file to which `kernlink-kernel-tests` writes skipped tests.
pub(crate) const SKIP_FILE: &str = "KERNLINK_SKIP_FILE";

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) folder: PathBuf,
    /// Added to the environment of the process that runs the step.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) time_limit: Duration,
    /// Whether the output is also shown while the program runs.
    pub(crate) show: bool,
}

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Exited(i32),
    Killed(i32),
    TimedOut,
    NotStarted(String),
}

impl End {
    pub(crate) fn is_success(&self) -> bool {
        *self == Self::Exited(0)
    }

    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Killed(signal),
            (None, None) => Self::NotStarted("neither an exit status nor a signal".to_owned()),
        }
    }
}

/// The files that a step writes in its folder. Their names begin with the position of the step.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    stem: PathBuf,
}

impl Records {
    pub(crate) fn new(folder: &Path, position: usize) -> Self {
        Self {
            stem: folder.join(position.to_string()),
        }
    }

    /// The lines of both streams, in the order of arrival.
    pub(crate) fn output(&self) -> PathBuf {
        self.stem.with_extension("out")
    }

    fn skips(&self) -> PathBuf {
        self.stem.with_extension("skips")
    }

    /// What the threads of the program waited for at its time limit.
    fn threads(&self) -> PathBuf {
        self.stem.with_extension("threads")
    }

    fn end(&self) -> PathBuf {
        self.stem.with_extension("end")
    }

    /// How the step ended. `None` if it has not ended.
    pub(crate) fn read_end(&self) -> Result<Option<End>> {
        match fs::read_to_string(self.end()) {
            Ok(text) => Ok(Some(
                serde_json::from_str(&text).with_context(|| format!("reading {text:?}"))?,
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", self.end().display())),
        }
    }

    /// The output so far. Empty if there is none.
    pub(crate) fn read_output(&self) -> String {
        fs::read(self.output())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Reads the results of a test binary from its records.
    pub(crate) fn read_binary(&self, step: &Step) -> Result<Binary> {
        let text = self.read_output();
        let binary = match self.read_end()? {
            None => Binary::broken(&step.name, "it did not finish"),
            Some(End::NotStarted(cause)) => {
                Binary::broken(&step.name, format!("starting it failed: {cause}"))
            }
            Some(End::TimedOut) => {
                let last = text
                    .lines()
                    .rfind(|line| !line.trim().is_empty())
                    .unwrap_or("nothing");
                let limit = step.time_limit.as_secs();
                let running = libtest::running(&text).join(", ");
                let threads = fs::read_to_string(self.threads()).unwrap_or_default();
                Binary::broken(
                    &step.name,
                    format!(
                        "time limit of {limit} s; last line printed: {last}; running tests: {running}; threads:\n{threads}"
                    ),
                )
            }
            Some(End::Killed(signal)) => Binary::broken(&step.name, format!("killed by signal {signal}")),
            Some(end @ End::Exited(_)) => {
                Binary::read(&step.name, &text, read_skips(&self.skips())?, end.is_success())
            }
        };
        Ok(binary)
    }
}

/// Reads the lines `kernlink-skip: TEST: REASON` that the kernel tests append.
fn read_skips(file: &Path) -> Result<Vec<Skip>> {
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", file.display())),
    };
    text.lines()
        .map(|line| {
            skip(line).with_context(|| {
                format!(
                    "{}: invalid line {line:?}; expected `kernlink-skip: TEST: REASON`",
                    file.display()
                )
            })
        })
        .collect()
}

fn skip(line: &str) -> Option<Skip> {
    let (test, reason) = line.strip_prefix("kernlink-skip: ")?.split_once(": ")?;
    Some(Skip {
        test: test.to_owned(),
        reason: reason.to_owned(),
    })
}

/// Receives the lines of a running program.
pub(crate) type Sink = fn(Stream, &[u8]);

/// The stream of the program that a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// Writes lines to the same stream of this process.
pub(crate) fn pass_through(stream: Stream, line: &[u8]) {
    // A closed pipe must not end a test run.
    let _ = match stream {
        Stream::Out => std::io::stdout()
            .write_all(line)
            .and_then(|()| std::io::stdout().flush()),
        Stream::Err => std::io::stderr().write_all(line),
    };
}

/// Runs a step to its end and writes its records.
pub(crate) fn run(step: &Step, records: &Records, sink: Sink) -> Result<End> {
    let log =
        File::create(records.output()).with_context(|| format!("creating {}", records.output().display()))?;
    let mut command = Command::new(&step.program);
    command
        .args(&step.arguments)
        .current_dir(&step.folder)
        .envs(&step.environment)
        .env(SKIP_FILE, records.skips())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let end = match Group::spawn(&mut command) {
        Ok(mut group) => {
            let log = Arc::new(Mutex::new(log));
            let sink = step.show.then_some(sink);
            let readers = [
                group
                    .child
                    .stdout
                    .take()
                    .map(|pipe| copy_lines(pipe, Stream::Out, log.clone(), sink)),
                group
                    .child
                    .stderr
                    .take()
                    .map(|pipe| copy_lines(pipe, Stream::Err, log, sink)),
            ];
            let id = group.id;
            let status = group.wait_while(|elapsed| {
                let may_continue = elapsed <= step.time_limit;
                if !may_continue {
                    let _is_not_essential = fs::write(records.threads(), threads::of_group(id).join("\n"));
                }
                may_continue
            })?;
            let end = status.map_or(End::TimedOut, End::of);
            // What the program left behind would keep the pipes open for ever.
            group.kill();
            for reader in readers.into_iter().flatten() {
                let _ = reader.join();
            }
            end
        }
        Err(error) => End::NotStarted(format!("{error:#}")),
    };
    fs::write(records.end(), serde_json::to_string(&end)?)
        .with_context(|| format!("writing {}", records.end().display()))?;
    Ok(end)
}

/// Runs a test binary and shows its output. False if a test failed, or none ran; the reason is printed.
pub(crate) fn run_tests(tier: &'static str, step: &Step, target: &Path) -> Result<bool> {
    let folder = target.join("xtask").join(format!("{tier}-records"));
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let records = Records::new(&folder, 0);
    // Those of an earlier run.
    for file in [records.end(), records.skips()] {
        if let Err(error) = fs::remove_file(&file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("removing {}", file.display()));
        }
    }
    run(step, &records, pass_through)?;
    let report = Report {
        tiers: vec![TierReport {
            name: tier,
            binaries: vec![records.read_binary(step)?],
        }],
    };
    println!("{report}");
    Ok(report.is_success())
}

fn copy_lines(
    pipe: impl Read + Send + 'static,
    stream: Stream,
    log: Arc<Mutex<File>>,
    sink: Option<Sink>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            // The lock keeps lines of both streams intact.
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = log.write_all(&line);
            if let Some(sink) = sink {
                sink(stream, &line);
            }
            line.clear();
        }
    })
}

/// A child process and its process group, which are killed together.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) child: std::process::Child,
    id: Pid,
}

/// The groups to kill when this process is interrupted.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

impl Group {
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        let child = command
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let id = Pid::from_raw(child.id().try_into().context("process ID above 2^31")?);
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(Self { child, id })
    }

    /// Waits for the child as long as `may_continue` allows, which gets the time since the start of waiting. Then kills the group
    /// and returns `None`.
    pub(crate) fn wait_while(
        &mut self,
        may_continue: impl Fn(Duration) -> bool,
    ) -> Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if !may_continue(start.elapsed()) {
                self.kill();
                self.child.wait()?;
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn kill(&self) {
        // An error means that the group does not exist any more.
        let _ = killpg(self.id, Signal::SIGKILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        RUNNING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|id| *id != self.id);
    }
}

/// Runs a command, and shows its output. An interrupt kills it with the processes that it started.
///
/// # Errors
///
/// If the command cannot be started, or its exit status is not 0.
pub(crate) fn succeed_in_group(command: &mut Command) -> Result<()> {
    let mut group = Group::spawn(command.stdin(Stdio::null()))?;
    let program = command.get_program().display();
    let status = group.wait_while(|_| true)?;
    let status = status.with_context(|| format!("{program} was killed"))?;
    ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// What is done after the groups are killed.
static AFTER_INTERRUPT: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Makes an interrupt do this too, after it has killed all running groups.
pub(crate) fn on_interrupt(remove: fn()) {
    AFTER_INTERRUPT
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(remove);
}

/// Makes Ctrl-C and SIGTERM kill all running groups, including VMs.
pub(crate) fn end_all_on_interrupt() -> Result<()> {
    ctrlc::set_handler(|| {
        for id in RUNNING.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = killpg(*id, Signal::SIGKILL);
        }
        for remove in AFTER_INTERRUPT
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
            remove();
        }
        std::process::exit(130);
    })
    .context("setting the handler for interrupts")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Step {
        Step {
            name: "shell".to_owned(),
            program: "/bin/sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            folder: "/".into(),
            environment: BTreeMap::from([("WORD".to_owned(), "there".to_owned())]),
            time_limit: Duration::from_secs(60),
            show: false,
        }
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-step-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn output_exit_status_and_skips_are_recorded() {
        let folder = folder("records");
        let records = Records::new(&folder, 0);
        let step = shell(
            "echo 'running 2 tests'; echo hello $WORD >&2
             echo 'kernlink-skip: a::b: kernel lacks x: y' >> $KERNLINK_SKIP_FILE
             echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out'",
        );
        assert_eq!(run(&step, &records, pass_through).unwrap(), End::Exited(0));
        assert!(records.read_output().contains("hello there\n"));
        let binary = records.read_binary(&step).unwrap();
        assert_eq!(binary.passed, 1);
        assert_eq!(
            binary.skipped,
            [Skip {
                test: "a::b".to_owned(),
                reason: "kernel lacks x: y".to_owned()
            }]
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_step_that_hangs_is_killed_and_reported() {
        let folder = folder("hang");
        let records = Records::new(&folder, 0);
        let step = Step {
            time_limit: Duration::from_secs(2),
            ..shell("echo 'test a has been running for over 60 seconds'; sleep 1000 & wait")
        };
        assert_eq!(run(&step, &records, pass_through).unwrap(), End::TimedOut);
        let binary = records.read_binary(&step).unwrap();
        let [failure] = &binary.failures[..] else {
            panic!("{:?}", binary.failures)
        };
        assert!(failure.contains("running tests: a; threads:\n"), "{failure}");
        assert!(failure.contains(" sh ("), "{failure}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_command_in_a_group_must_succeed() {
        succeed_in_group(&mut Command::new("/bin/true")).unwrap();
        let error = succeed_in_group(&mut Command::new("/bin/false")).unwrap_err();
        assert_eq!(error.to_string(), "/bin/false: exit status: 1");
    }

    #[test]
    fn a_run_without_tests_is_a_failure() {
        let folder = folder("no-tests");
        let summary = |passed: u8| {
            shell(&format!(
                "echo 'running {passed} tests'; echo 'test result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured'"
            ))
        };
        assert!(run_tests("one", &summary(1), &folder).unwrap());
        assert!(!run_tests("none", &summary(0), &folder).unwrap());
        let skip = shell(
            "echo 'kernlink-skip: a: no kernel' >> $KERNLINK_SKIP_FILE; echo 'running 1 test'
             echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'",
        );
        assert!(!run_tests("skipped", &skip, &folder).unwrap());
        // The skip of an earlier run does not count.
        assert!(run_tests("skipped", &summary(1), &folder).unwrap());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_step_that_was_not_run_is_a_failure() {
        let binary = Records::new(Path::new("/nonexistent"), 7)
            .read_binary(&shell("true"))
            .unwrap();
        assert_eq!(binary.failures, ["it did not finish"]);
    }

    #[test]
    fn a_missing_program_is_a_failure() {
        let folder = folder("absent");
        let records = Records::new(&folder, 0);
        let step = Step {
            program: "/nonexistent".into(),
            ..shell("")
        };
        assert!(matches!(
            run(&step, &records, pass_through).unwrap(),
            End::NotStarted(_)
        ));
        assert!(records.read_binary(&step).unwrap().failures[0].contains("starting it failed"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_signal_is_a_failure_with_its_number() {
        let folder = folder("signal");
        let records = Records::new(&folder, 0);
        let step = shell("kill -SEGV $$");
        assert_eq!(run(&step, &records, pass_through).unwrap(), End::Killed(11));
        assert_eq!(
            records.read_binary(&step).unwrap().failures,
            ["killed by signal 11"]
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn other_lines_are_not_skip_lines() {
        assert_eq!(skip("kernlink-skip: no reason"), None);
        assert_eq!(skip("something else"), None);
    }
}
