//! Starting a tool and waiting for it.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::error::{Error, LockHolder};
use crate::lock;

/// One start of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Name of the tool, without a folder.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Its whole environment but for `PATH`; nothing else is passed on.
    pub environment: BTreeMap<String, String>,
    /// What it reads from its standard input.
    pub input: Vec<u8>,
    /// How long it may take.
    pub time_limit: Duration,
    /// How many bytes it may write to standard output and to standard error, each.
    pub output_limit: usize,
}

/// What a tool left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Exit status; none if a signal ended it.
    pub status: Option<i32>,
    /// The signal that ended it, if one did.
    pub signal: Option<i32>,
    /// Standard output.
    pub output: Vec<u8>,
    /// Standard error.
    pub errors: Vec<u8>,
}

/// Something that can start the tools: this host, a container, a script in a test.
pub trait Runner: Send {
    /// Starts the tool, gives it its input, and waits for its end.
    ///
    /// # Errors
    ///
    /// [`Error::NotStarted`], [`Error::TimedOut`], [`Error::TooMuchOutput`]. An exit status other than 0 is not
    /// an error.
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error>;

    /// Takes the lock that tools older than 1.6.2 do not take for a restore, waiting up to `wait`; it is
    /// given back when the value returned is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`]; [`Error::Unexpected`] if this runner knows no lock, which is what the provided method
    /// answers.
    fn lock(&mut self, path: &Path, wait: Duration) -> Result<Box<dyn Send>, Error> {
        let _ = wait;
        let text = "this runner cannot take the lock that so old a tool needs".into();
        Err(Error::Unexpected {
            tool: path.display().to_string(),
            text,
        })
    }

    /// Who holds the lock now, if that can be seen.
    fn lock_holder(&mut self, path: &Path) -> Option<LockHolder> {
        let _ = path;
        None
    }
}

/// Starts the tools on this host, in the network namespace of the calling thread.
///
/// A tool runs in a process group of its own, in `/`, with only the environment it is given; when its time is
/// up the whole group is killed.
#[derive(Clone, Debug)]
pub struct Local {
    search: Vec<PathBuf>,
}

impl Local {
    /// Looks for tools where distributions put them: `/usr/local/sbin`, `/usr/sbin`, `/sbin`, and the same with `bin`.
    pub fn new() -> Self {
        let folders = [
            "/usr/local/sbin",
            "/usr/sbin",
            "/sbin",
            "/usr/local/bin",
            "/usr/bin",
            "/bin",
        ];
        Local {
            search: folders.map(PathBuf::from).to_vec(),
        }
    }

    /// Looks for tools in these folders, in this order.
    pub fn with_search(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Local {
            search: folders.into_iter().collect(),
        }
    }

    fn find(&self, program: &str) -> Option<PathBuf> {
        self.search
            .iter()
            .map(|folder| folder.join(program))
            .find(|path| path.is_file())
    }

    fn start(&self, invocation: &Invocation) -> io::Result<Child> {
        let path = self.find(&invocation.program).ok_or_else(|| {
            let folders: Vec<_> = self
                .search
                .iter()
                .map(|folder| folder.display().to_string())
                .collect();
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("is in none of {}", folders.join(", ")),
            )
        })?;
        // A file in memory instead of a pipe: nobody has to feed it while the tool reads.
        let mut input = std::fs::File::from(memfd_create(c"iptables-restore", MFdFlags::MFD_CLOEXEC)?);
        input.write_all(&invocation.input)?;
        input.rewind()?;
        let search = std::env::join_paths(&self.search).map_err(io::Error::other)?;
        Process::new(path)
            .args(&invocation.arguments)
            .env_clear()
            .env("PATH", search)
            .envs(&invocation.environment)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::from(input))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

impl Default for Local {
    fn default() -> Self {
        Local::new()
    }
}

impl Runner for Local {
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
        let tool = invocation.program.clone();
        let not_started = |error: io::Error| Error::NotStarted {
            tool: tool.clone(),
            kind: error.kind(),
            text: error.to_string(),
        };
        let deadline = Instant::now() + invocation.time_limit;
        let mut child = self.start(&invocation).map_err(not_started)?;
        let (sender, outputs) = channel();
        if let Some(stdout) = child.stdout.take() {
            read_aside(stdout, Stream::Output, invocation.output_limit, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            read_aside(stderr, Stream::Errors, invocation.output_limit, sender);
        }
        let mut completion = Completion {
            status: None,
            signal: None,
            output: Vec::new(),
            errors: Vec::new(),
        };
        let ended = gather(&outputs, deadline, &mut completion)
            .and_then(|()| wait_until(&mut child, deadline).ok_or(Cut::Time));
        match ended {
            Ok(status) => {
                completion.status = status.code();
                completion.signal = status.signal();
                Ok(completion)
            }
            Err(cut) => {
                kill(&mut child);
                Err(match cut {
                    Cut::Time => Error::TimedOut {
                        tool,
                        limit: invocation.time_limit,
                    },
                    Cut::Size => Error::TooMuchOutput {
                        tool,
                        limit: invocation.output_limit,
                    },
                })
            }
        }
    }

    fn lock(&mut self, path: &Path, wait: Duration) -> Result<Box<dyn Send>, Error> {
        lock::take(path, wait).map(|held| Box::new(held) as Box<dyn Send>)
    }

    fn lock_holder(&mut self, path: &Path) -> Option<LockHolder> {
        lock::holder(path)
    }
}

#[derive(Clone, Copy)]
enum Stream {
    Output,
    Errors,
}

/// Why a tool is not waited for any longer.
enum Cut {
    Time,
    Size,
}

/// Reads a stream to its end or its limit on a thread of its own; none there if it is too long.
fn read_aside(
    from: impl Read + Send + 'static,
    stream: Stream,
    limit: usize,
    sender: Sender<(Stream, Option<Vec<u8>>)>,
) {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        // A read that fails ends the stream as its end does; the exit status tells what became of the tool.
        let _ = from.take(most).read_to_end(&mut bytes);
        let whole = (bytes.len() <= limit).then_some(bytes);
        // The receiver is gone if the tool was given up.
        let _ = sender.send((stream, whole));
    });
}

fn gather(
    outputs: &Receiver<(Stream, Option<Vec<u8>>)>,
    deadline: Instant,
    completion: &mut Completion,
) -> Result<(), Cut> {
    loop {
        match outputs.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((_, None)) => return Err(Cut::Size),
            Ok((Stream::Output, Some(bytes))) => completion.output = bytes,
            Ok((Stream::Errors, Some(bytes))) => completion.errors = bytes,
            Err(RecvTimeoutError::Timeout) => return Err(Cut::Time),
            // Both threads have ended.
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Waits for the end of a tool that has closed its outputs, so nearly always at once.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<std::process::ExitStatus> {
    let mut pause = Duration::from_micros(50);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

fn kill(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // The group may be gone already.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    // A process that the kernel does not let die is left behind rather than waited for.
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
            input: b"some input".to_vec(),
            time_limit: Duration::from_secs(20),
            output_limit: 1000,
        }
    }

    #[test]
    fn input_outputs_and_status_go_through() {
        let completion = Local::new()
            .run(invocation("cat; echo oops >&2; exit 3"))
            .unwrap();
        assert_eq!(completion.output, b"some input");
        assert_eq!(completion.errors, b"oops\n");
        assert_eq!((completion.status, completion.signal), (Some(3), None));
        let killed = Local::new().run(invocation("kill -SEGV $$")).unwrap();
        assert_eq!((killed.status, killed.signal), (None, Some(11)));
    }

    #[test]
    fn nothing_of_our_environment_is_passed_on() {
        let completion = Local::new()
            .run(invocation("env | sed 's/=.*//' | sort | tr '\\n' ' '; pwd"))
            .unwrap();
        let text = String::from_utf8(completion.output).unwrap();
        assert!(
            text.contains("GIVEN") && !text.contains("HOME") && !text.contains("CARGO"),
            "{text}"
        );
        assert!(text.ends_with("/\n"));
    }

    #[test]
    fn a_tool_that_hangs_or_talks_too_much_is_killed() {
        let hanging = Invocation {
            time_limit: Duration::from_millis(50),
            ..invocation("sleep 1000 & wait")
        };
        assert!(matches!(Local::new().run(hanging), Err(Error::TimedOut { .. })));
        let silent = Invocation {
            time_limit: Duration::from_millis(50),
            ..invocation("exec >&- 2>&-; sleep 1000")
        };
        assert!(matches!(Local::new().run(silent), Err(Error::TimedOut { .. })));
        let talking = invocation("while :; do echo too much; done");
        assert!(matches!(
            Local::new().run(talking),
            Err(Error::TooMuchOutput { limit: 1000, .. })
        ));
    }

    #[test]
    fn a_tool_that_is_not_there_is_named() {
        let absent = Invocation {
            program: "no-such-tool".into(),
            ..invocation("")
        };
        let error = Local::new().run(absent).unwrap_err();
        assert!(
            error.is_unsupported() && error.to_string().contains("no-such-tool"),
            "{error}"
        );
    }
}
