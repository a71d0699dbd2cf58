//! Running the tools.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::{Error, LockHolder};
use crate::lock;

/// A tool to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Name of the tool, without a directory.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its environment, to which the runner adds only `PATH`.
    pub environment: BTreeMap<String, String>,
    /// Its standard input.
    pub stdin: Vec<u8>,
    /// After this time it is killed.
    pub timeout: Duration,
    /// Bytes it may write to standard output and to standard error, each.
    pub output_limit: usize,
}

/// The result of running a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Exit status; `None` if a signal terminated it.
    pub status: Option<i32>,
    /// The signal that terminated it.
    pub signal: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

/// Runs the tools: on this host, in a container, or as a script in a test.
pub trait Runner: Send {
    /// Runs the tool and waits until it exits.
    ///
    /// # Errors
    ///
    /// [`Error::NotStarted`], [`Error::TimedOut`], [`Error::TooMuchOutput`]. An exit status other than 0 is not
    /// an error.
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error>;

    /// Runs tools that do not depend on each other, and returns one result for each, in order. The provided method runs one after the
    /// other.
    fn run_all(&mut self, invocations: Vec<Invocation>) -> Vec<Result<Completion, Error>> {
        invocations
            .into_iter()
            .map(|invocation| self.run(invocation))
            .collect()
    }

    /// As [`run_all`](Self::run_all), but passes what the tools write to standard output to `output` as it arrives, with the position of the
    /// invocation. [`Completion::stdout`] is empty. The provided method passes all of it after the tools have exited.
    fn run_all_streamed(
        &mut self,
        invocations: Vec<Invocation>,
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Vec<Result<Completion, Error>> {
        let mut completions = self.run_all(invocations);
        for (index, completion) in completions.iter_mut().enumerate() {
            if let Ok(completion) = completion {
                output(index, &std::mem::take(&mut completion.stdout));
            }
        }
        completions
    }

    /// Takes the xtables lock, waiting up to `wait`. It is released when the returned value is dropped. Used for `iptables-restore`
    /// before 1.6.2 and `iptables` before 1.4.20, which do not take the lock themselves.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`], [`Error::LockFile`]. The provided method returns [`Error::LockFile`] with kind
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    fn lock(&mut self, path: &Path, wait: Duration) -> Result<Box<dyn Send>, Error> {
        let _ = wait;
        Err(Error::LockFile {
            path: path.to_owned(),
            kind: io::ErrorKind::Unsupported,
            text: "this runner does not support locking, which this version of the tool needs".into(),
        })
    }

    /// The process that holds the lock, if it can be determined. The provided method returns `None`.
    fn lock_holder(&mut self, path: &Path) -> Option<LockHolder> {
        let _ = path;
        None
    }
}

/// Runs the tools on this host, in the network namespace of the calling thread.
///
/// A tool runs in its own process group, with `/` as its directory and only the given environment. After the timeout the whole group is
/// killed.
#[derive(Clone, Debug)]
pub struct LocalRunner {
    search: Vec<PathBuf>,
}

impl LocalRunner {
    /// Searches `/usr/local/sbin`, `/usr/sbin`, `/sbin`, `/usr/local/bin`, `/usr/bin` and `/bin` for the tools.
    pub fn new() -> Self {
        let directories = [
            "/usr/local/sbin",
            "/usr/sbin",
            "/sbin",
            "/usr/local/bin",
            "/usr/bin",
            "/bin",
        ];
        LocalRunner {
            search: directories.map(PathBuf::from).to_vec(),
        }
    }

    /// Searches these directories, in this order.
    pub fn with_search(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        LocalRunner {
            search: directories.into_iter().collect(),
        }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.search
            .iter()
            .map(|directory| directory.join(program))
            .find(|path| path.is_file())
    }

    fn start(&self, invocation: &Invocation) -> io::Result<Child> {
        let path = self.find(&invocation.program).ok_or_else(|| {
            let directories: Vec<_> = self
                .search
                .iter()
                .map(|directory| directory.display().to_string())
                .collect();
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("not found in {}", directories.join(", ")),
            )
        })?;
        // An in-memory file instead of a pipe, which would have to be written while the tool reads.
        let mut stdin = std::fs::File::from(memfd_create(c"iptables-restore", MFdFlags::MFD_CLOEXEC)?);
        stdin.write_all(&invocation.stdin)?;
        stdin.rewind()?;
        let search = std::env::join_paths(&self.search).map_err(io::Error::other)?;
        Command::new(path)
            .args(&invocation.arguments)
            .env_clear()
            .env("PATH", search)
            .envs(&invocation.environment)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

impl Default for LocalRunner {
    fn default() -> Self {
        LocalRunner::new()
    }
}

/// The tools of this process.
struct Tools {
    /// The process groups of those that run.
    groups: BTreeSet<i32>,
    /// Whether they were ended, and no other one is started.
    are_ended: bool,
}

static TOOLS: Mutex<Tools> = Mutex::new(Tools {
    groups: BTreeSet::new(),
    are_ended: false,
});

fn tools() -> MutexGuard<'static, Tools> {
    // A panic while it was locked leaves it valid.
    TOOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the tools that every [`LocalRunner`] of this process runs, and has it start no other one, for a process that is to end although a tool
/// hangs. Their operations fail with [`Error::Ended`].
pub fn end_tools() {
    let mut tools = tools();
    tools.are_ended = true;
    for group in &tools.groups {
        // It may have exited already.
        let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
    }
}

impl Runner for LocalRunner {
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
        Running::start(self, invocation, None)?.finish()
    }

    /// Runs all of them at the same time.
    fn run_all(&mut self, invocations: Vec<Invocation>) -> Vec<Result<Completion, Error>> {
        let invocations = invocations.into_iter();
        let started = invocations.map(|invocation| Running::start(self, invocation, None));
        finish_all(started.collect())
    }

    fn run_all_streamed(
        &mut self,
        invocations: Vec<Invocation>,
        output: &mut dyn FnMut(usize, &[u8]),
    ) -> Vec<Result<Completion, Error>> {
        let (sender, parts) = sync_channel(WAITING_PARTS);
        let started = invocations.into_iter().enumerate();
        let started: Vec<_> = started
            .map(|(index, invocation)| Running::start(self, invocation, Some((index, sender.clone()))))
            .collect();
        drop(sender);
        let deadlines = started.iter().flatten().map(|running| running.deadline);
        let deadline = deadlines.max().unwrap_or_else(Instant::now);
        // After the deadline, `finish` returns the error, also for a tool whose last bytes were not taken.
        while let Ok((index, part)) = parts.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            output(index, &part);
        }
        drop(parts);
        finish_all(started)
    }

    fn lock(&mut self, path: &Path, wait: Duration) -> Result<Box<dyn Send>, Error> {
        lock::take(path, wait).map(|held| Box::new(held) as Box<dyn Send>)
    }

    fn lock_holder(&mut self, path: &Path) -> Option<LockHolder> {
        lock::holder(path)
    }
}

/// A tool that was started.
struct Running {
    tool: String,
    child: Child,
    outputs: Receiver<(Stream, Option<Vec<u8>>)>,
    deadline: Instant,
    timeout: Duration,
    output_limit: usize,
}

impl Running {
    /// With `parts`, standard output is sent there as it arrives.
    fn start(
        runner: &LocalRunner,
        invocation: Invocation,
        parts: Option<(usize, SyncSender<Part>)>,
    ) -> Result<Self, Error> {
        let deadline = Instant::now() + invocation.timeout;
        // Locked until the group is recorded: a tool is recorded or not started when the tools are ended.
        let mut tools = tools();
        if tools.are_ended {
            return Err(Error::Ended {
                tool: invocation.program,
            });
        }
        let mut child = runner.start(&invocation).map_err(|error| Error::NotStarted {
            tool: invocation.program.clone(),
            kind: error.kind(),
            text: error.to_string(),
        })?;
        tools.groups.extend(group(&child));
        drop(tools);
        let (sender, outputs) = channel();
        if let Some(stdout) = child.stdout.take() {
            match parts {
                Some((index, parts)) => {
                    send_in_thread(stdout, index, invocation.output_limit, parts, sender.clone());
                }
                None => read_in_thread(stdout, Stream::Stdout, invocation.output_limit, sender.clone()),
            }
        }
        if let Some(stderr) = child.stderr.take() {
            read_in_thread(stderr, Stream::Stderr, invocation.output_limit, sender);
        }
        Ok(Self {
            tool: invocation.program,
            child,
            outputs,
            deadline,
            timeout: invocation.timeout,
            output_limit: invocation.output_limit,
        })
    }

    /// Waits until it exits.
    fn finish(mut self) -> Result<Completion, Error> {
        let mut completion = Completion {
            status: None,
            signal: None,
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        let ended = collect_output(&self.outputs, self.deadline, &mut completion)
            .and_then(|()| wait_until(&mut self.child, self.deadline).ok_or(KillReason::Timeout));
        match ended {
            Ok(status) if status.signal().is_some() && tools().are_ended => {
                Err(Error::Ended { tool: self.tool })
            }
            Ok(status) => {
                completion.status = status.code();
                completion.signal = status.signal();
                Ok(completion)
            }
            Err(reason) => {
                kill(&mut self.child);
                Err(match reason {
                    KillReason::Timeout => Error::TimedOut {
                        tool: self.tool,
                        timeout: self.timeout,
                    },
                    KillReason::OutputLimit => Error::TooMuchOutput {
                        tool: self.tool,
                        limit: self.output_limit,
                    },
                })
            }
        }
    }
}

/// Waits until all of them exit.
fn finish_all(started: Vec<Result<Running, Error>>) -> Vec<Result<Completion, Error>> {
    let started = started.into_iter();
    started.map(|running| running.and_then(Running::finish)).collect()
}

#[derive(Clone, Copy)]
enum Stream {
    Stdout,
    Stderr,
}

/// Bytes of the standard output of the tool with this position.
type Part = (usize, Vec<u8>);

/// The most bytes of a part.
const PART_SIZE: usize = 64 << 10;
/// The number of parts that wait until those before are processed.
const WAITING_PARTS: usize = 4;

/// Why a tool is killed.
enum KillReason {
    Timeout,
    OutputLimit,
}

/// Reads a stream on another thread and sends its bytes, or `None` if they exceed the limit.
fn read_in_thread(
    from: impl Read + Send + 'static,
    stream: Stream,
    limit: usize,
    sender: Sender<(Stream, Option<Vec<u8>>)>,
) {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        // A failed read is treated as the end of the stream. The exit status shows whether the tool succeeded.
        let _ = from.take(most).read_to_end(&mut bytes);
        let complete = (bytes.len() <= limit).then_some(bytes);
        // The receiver is gone if the tool was killed.
        let _ = sender.send((stream, complete));
    });
}

/// Reads standard output on another thread and sends it in parts. At the end it sends no more bytes, or `None` if they exceed the limit. It sends
/// no end if a part was not taken.
fn send_in_thread(
    mut from: impl Read + Send + 'static,
    index: usize,
    limit: usize,
    parts: SyncSender<Part>,
    sender: Sender<(Stream, Option<Vec<u8>>)>,
) {
    thread::spawn(move || {
        let mut buffer = vec![0; PART_SIZE];
        let mut total = 0;
        loop {
            let read = match from.read(&mut buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A failed read is treated as the end of the stream.
                Err(_) => break,
            };
            total += read;
            if total > limit {
                let _ = sender.send((Stream::Stdout, None));
                return;
            }
            let part = buffer.get(..read).unwrap_or_default();
            if part.is_empty() {
                break;
            }
            if parts.send((index, part.to_vec())).is_err() {
                return;
            }
        }
        let _ = sender.send((Stream::Stdout, Some(Vec::new())));
    });
}

fn collect_output(
    outputs: &Receiver<(Stream, Option<Vec<u8>>)>,
    deadline: Instant,
    completion: &mut Completion,
) -> Result<(), KillReason> {
    let mut is_complete = false;
    loop {
        match outputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((_, None)) => return Err(KillReason::OutputLimit),
            Ok((Stream::Stdout, Some(bytes))) => {
                completion.stdout = bytes;
                is_complete = true;
            }
            Ok((Stream::Stderr, Some(bytes))) => completion.stderr = bytes,
            Err(RecvTimeoutError::Timeout) => return Err(KillReason::Timeout),
            // Both threads have ended. Parts of standard output are taken until the deadline.
            Err(RecvTimeoutError::Disconnected) if is_complete => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => return Err(KillReason::Timeout),
        }
    }
}

/// Waits until a tool exits that has closed its outputs, which usually takes no time.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    let mut pause = Duration::from_micros(50);
    loop {
        // The number of its group is used by no other process before the tool was waited for.
        let mut tools = tools();
        if let Ok(Some(status)) = child.try_wait() {
            if let Some(group) = group(child) {
                tools.groups.remove(&group);
            }
            return Some(status);
        }
        drop(tools);
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// The process group of a tool, which it leads.
fn group(child: &Child) -> Option<i32> {
    i32::try_from(child.id()).ok()
}

fn kill(child: &mut Child) {
    if let Some(group) = group(child) {
        // The group may have exited already.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    // A process in uninterruptible sleep is not waited for.
    let _ = wait_until(child, Instant::now() + Duration::from_secs(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation(script: &str) -> Invocation {
        Invocation {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            environment: BTreeMap::from([("GIVEN".into(), "yes".into())]),
            stdin: b"some input".to_vec(),
            timeout: Duration::from_secs(300),
            output_limit: 1000,
        }
    }

    #[test]
    fn output_whose_parts_are_no_longer_taken_is_not_complete() {
        let collected = |is_taken: bool| {
            let (parts, taken) = sync_channel(WAITING_PARTS);
            let taken = is_taken.then_some(taken);
            let (sender, outputs) = channel();
            send_in_thread(&b"*filter\n"[..], 0, 1000, parts, sender);
            let mut completion = Completion {
                status: None,
                signal: None,
                stdout: Vec::new(),
                stderr: Vec::new(),
            };
            let deadline = Instant::now() + Duration::from_secs(300);
            let collected = collect_output(&outputs, deadline, &mut completion);
            drop(taken);
            collected.is_ok()
        };
        assert!(collected(true));
        assert!(!collected(false));
    }

    #[test]
    fn input_outputs_and_status_are_passed() {
        let completion = LocalRunner::new()
            .run(invocation("cat; echo oops >&2; exit 3"))
            .unwrap();
        assert_eq!(completion.stdout, b"some input");
        assert_eq!(completion.stderr, b"oops\n");
        assert_eq!((completion.status, completion.signal), (Some(3), None));
        let killed = LocalRunner::new().run(invocation("kill -SEGV $$")).unwrap();
        assert_eq!((killed.status, killed.signal), (None, Some(11)));
    }

    #[test]
    fn the_environment_is_not_inherited() {
        let completion = LocalRunner::new()
            .run(invocation("env | sed 's/=.*//' | sort | tr '\\n' ' '; pwd"))
            .unwrap();
        let text = String::from_utf8(completion.stdout).unwrap();
        assert!(
            text.contains("GIVEN") && !text.contains("HOME") && !text.contains("CARGO"),
            "{text}"
        );
        assert!(text.ends_with("/\n"));
    }

    #[test]
    fn a_tool_that_exceeds_the_timeout_or_the_output_limit_is_killed() {
        let hanging = Invocation {
            timeout: Duration::from_millis(50),
            ..invocation("sleep 1000 & wait")
        };
        assert!(matches!(
            LocalRunner::new().run(hanging),
            Err(Error::TimedOut { .. })
        ));
        let silent = Invocation {
            timeout: Duration::from_millis(50),
            ..invocation("exec >&- 2>&-; sleep 1000")
        };
        assert!(matches!(
            LocalRunner::new().run(silent),
            Err(Error::TimedOut { .. })
        ));
        let verbose = invocation("while :; do echo too much; done");
        assert!(matches!(
            LocalRunner::new().run(verbose),
            Err(Error::TooMuchOutput { limit: 1000, .. })
        ));
    }

    #[test]
    fn tools_that_do_not_depend_on_each_other_run_at_the_same_time() {
        // Each waits for the other through a pipe with a name.
        let folder = std::env::temp_dir().join(format!("kernlink-runner-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (there, back) = (folder.join("there"), folder.join("back"));
        for pipe in [&there, &back] {
            nix::unistd::mkfifo(pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        let (there, back) = (there.display(), back.display());
        let scripts = [
            format!("echo one > {there}; cat {back}"),
            format!("cat {there}; echo two > {back}; exit 4"),
        ];
        let invocations = scripts.iter().map(|script| invocation(script)).collect();
        let completions = LocalRunner::new().run_all(invocations);
        std::fs::remove_dir_all(&folder).unwrap();
        let outputs: Vec<_> = completions
            .into_iter()
            .map(|completion| completion.map(|done| (done.stdout, done.status)).unwrap())
            .collect();
        assert_eq!(
            outputs,
            [(b"two\n".to_vec(), Some(0)), (b"one\n".to_vec(), Some(4))]
        );
    }

    /// What a tool writes to standard output, in one piece, and how it ends.
    fn streamed(tool: Invocation) -> (Vec<u8>, Result<Completion, Error>) {
        let mut bytes = Vec::new();
        let mut output = |_: usize, part: &[u8]| bytes.extend_from_slice(part);
        let completion = LocalRunner::new().run_all_streamed(vec![tool], &mut output).pop();
        (bytes, completion.unwrap())
    }

    #[test]
    fn standard_output_is_passed_as_it_arrives() {
        let mut tool = invocation("head -c 300000 /dev/zero; echo oops >&2; exit 3");
        tool.output_limit = 300_000;
        let (bytes, completion) = streamed(tool.clone());
        let completion = completion.unwrap();
        assert_eq!((bytes.len(), completion.stdout.len()), (300_000, 0));
        assert_eq!(
            (completion.stderr, completion.status),
            (b"oops\n".to_vec(), Some(3))
        );
        tool.output_limit -= 1;
        let (_, completion) = streamed(tool);
        assert!(matches!(
            completion,
            Err(Error::TooMuchOutput { limit: 299_999, .. })
        ));
    }

    #[test]
    fn a_tool_that_exceeds_the_timeout_while_its_output_is_passed_is_killed() {
        let mut tool = invocation("echo some; sleep 1000");
        tool.timeout = Duration::from_millis(50);
        let (bytes, completion) = streamed(tool);
        assert!(bytes.is_empty() || bytes == b"some\n");
        assert!(
            matches!(completion, Err(Error::TimedOut { .. })),
            "{completion:?}"
        );
    }

    #[test]
    fn a_missing_tool_is_named_in_the_error() {
        let absent = Invocation {
            program: "no-such-tool".into(),
            ..invocation("")
        };
        let error = LocalRunner::new().run(absent).unwrap_err();
        assert!(
            error.is_unsupported() && error.to_string().contains("no-such-tool"),
            "{error}"
        );
    }
}
