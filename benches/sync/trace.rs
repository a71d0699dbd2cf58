//! The system calls of a sync, and what it sends to the kernel: this program is started again under `strace`.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use kernlink_benches::Result;
use kernlink_kernel_tests::programs;
use nix::unistd::{Pid, getpgid};

/// What one part of a traced program did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    /// What the traced process sent over netlink, in order, and where it started another process.
    pub(crate) events: Vec<Event>,
    /// The system calls of the process and of all processes that it started.
    pub(crate) calls: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// One send on a netlink socket.
    Send {
        /// The number of the socket in the trace.
        socket: usize,
        /// The netlink protocol of the socket.
        protocol: isize,
        bytes: Vec<u8>,
    },
    /// The start of a process.
    Process,
}

impl Trace {
    /// The netlink messages that were sent.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &[u8]> {
        self.events
            .iter()
            .filter_map(|event| match event {
                Event::Send { bytes, .. } => Some(bytes),
                Event::Process => None,
            })
            .flat_map(|bytes| messages(bytes))
    }

    /// The netlink messages that request a dump.
    pub(crate) fn dumps(&self) -> usize {
        const NLM_F_DUMP: u16 = 0x300;
        self.messages()
            .filter(|message| flags(message) & NLM_F_DUMP == NLM_F_DUMP)
            .count()
    }

    /// The processes that were started.
    pub(crate) fn processes(&self) -> usize {
        self.events
            .iter()
            .filter(|event| **event == Event::Process)
            .count()
    }
}

/// The messages of one send.
pub(crate) fn messages(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length: [u8; 4] = rest.get(..4)?.try_into().ok()?;
        let length = (u32::from_ne_bytes(length) as usize).max(16);
        let message = rest.get(..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(message)
    })
}

/// `nlmsg_flags`.
fn flags(message: &[u8]) -> u16 {
    let bytes: [u8; 2] = message
        .get(6..8)
        .and_then(|bytes| bytes.try_into().ok())
        .unwrap_or_default();
    u16::from_ne_bytes(bytes)
}

/// The argument of the system call that separates the parts of a trace. No process group has this number.
const SEPARATOR: i32 = 0x7fff_fffe;

/// Begins the next part of the trace of this program.
pub(crate) fn next_part() {
    let _no_such_process = getpgid(Some(Pid::from_raw(SEPARATOR)));
}

/// Runs this program under `strace` with an environment variable, in the calling thread's network namespace, and returns the parts of its
/// trace: before the first call of [`next_part`], between the first and the second, and so on.
pub(crate) fn traced(variable: &str, value: &str) -> Result<Vec<Trace>> {
    // On a tmpfs, because the text of a trace is five times as long as what was sent.
    let path = PathBuf::from(format!("/dev/shm/kernlink-trace-{}", std::process::id()));
    let program = programs::this_program();
    let status = programs::command("strace")
        .args(["--follow-forks", "-qq", "--raw=all", "--write=all", "--output"])
        .arg(&path)
        .arg(program.get_program())
        .env(variable, value)
        .status()?;
    let parts = read(&path);
    std::fs::remove_file(&path)?;
    if status.success() {
        parts
    } else {
        Err(format!("the traced program failed: {status}").into())
    }
}

fn read(path: &Path) -> Result<Vec<Trace>> {
    let mut reader = Reader::default();
    for line in BufReader::with_capacity(1 << 20, File::open(path)?).lines() {
        reader.read(&line?)?;
    }
    reader.finish()
}

/// Reads the lines of a trace: `PID CALL(ARGUMENT, ...) = RESULT`. A call during which another traced thread makes one has two lines. Lines
/// with the bytes follow a call that writes.
#[derive(Default)]
struct Reader {
    parts: Vec<Trace>,
    /// The process that was started under `strace`.
    first: Option<u32>,
    /// Those that it started, which executed another program.
    programs: HashSet<u32>,
    /// The netlink sockets, each with its number and protocol, by file descriptor.
    sockets: HashMap<u64, (usize, isize)>,
    opened: usize,
    /// The first lines of calls without a result yet, by process.
    unfinished: HashMap<u32, String>,
    /// Whether the following bytes belong to the last event, and the number of those still to come.
    expected: usize,
}

impl Reader {
    fn read(&mut self, line: &str) -> Result<()> {
        if let Some(dump) = line.strip_prefix(" | ") {
            return self.bytes(dump);
        }
        if line.starts_with(" * ") {
            // A heading for one of the buffers of `writev`.
            return Ok(());
        }
        self.complete()?;
        let (pid, call) = line.split_once(' ').ok_or_else(|| unknown(line))?;
        let pid: u32 = pid.parse().map_err(|_| unknown(line))?;
        let call = call.trim_start();
        self.first.get_or_insert(pid);
        if call.starts_with("+++") || call.starts_with("---") {
            return Ok(());
        }
        if let Some(begun) = call.strip_suffix(" <unfinished ...>") {
            self.unfinished.insert(pid, begun.to_owned());
            return Ok(());
        }
        if let Some((_, end)) = call
            .strip_prefix("<... ")
            .and_then(|call| call.split_once(" resumed>"))
        {
            let begun = self.unfinished.remove(&pid).unwrap_or_default();
            return self.call(pid, &format!("{begun}{end}"));
        }
        self.call(pid, call)
    }

    fn call(&mut self, pid: u32, call: &str) -> Result<()> {
        let (name, rest) = call.split_once('(').ok_or_else(|| unknown(call))?;
        // Without a result: the process ended in the call. The results are in one column.
        let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, "?"));
        let arguments = arguments.trim_end().trim_end_matches(')');
        let arguments: Vec<Option<u64>> = arguments.split(", ").map(number).collect();
        let argument = |position: usize| {
            arguments
                .get(position)
                .copied()
                .flatten()
                .ok_or_else(|| unknown(call))
        };
        let result = result.split(' ').next().and_then(number);
        if name == "getpgid" && argument(0)? == SEPARATOR as u64 {
            self.parts.push(Trace::default());
            return Ok(());
        }
        if self.parts.is_empty() {
            self.parts.push(Trace::default());
        }
        let Some(part) = self.parts.last_mut() else {
            return Ok(());
        };
        part.calls += 1;
        if self.programs.contains(&pid) {
            return Ok(());
        }
        match (name, result) {
            ("execve", Some(0)) if self.first != Some(pid) => {
                self.programs.insert(pid);
                part.events.push(Event::Process);
            }
            ("socket", Some(fd)) if argument(0)? == nix::libc::AF_NETLINK as u64 => {
                self.sockets.insert(fd, (self.opened, argument(2)? as isize));
                self.opened += 1;
            }
            ("close", Some(0)) => {
                self.sockets.remove(&argument(0)?);
            }
            ("sendto", Some(length)) => {
                if let Some((socket, protocol)) = self.sockets.get(&argument(0)?).copied() {
                    part.events.push(Event::Send {
                        socket,
                        protocol,
                        bytes: Vec::with_capacity(length as usize),
                    });
                    self.expected = length as usize;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads up to 16 bytes: `OFFSET  00 01 ... 07  08 ... 0f  TEXT |`.
    fn bytes(&mut self, dump: &str) -> Result<()> {
        let bytes = self.parts.last_mut().and_then(|part| part.events.last_mut());
        let Some(Event::Send { bytes, .. }) = bytes.filter(|_| self.expected > 0) else {
            return Ok(());
        };
        let (_, columns) = dump.split_once("  ").ok_or_else(|| unknown(dump))?;
        // Three characters for each byte, and a space between the eighth and the ninth.
        for position in 0..self.expected.min(16) {
            let start = position * 3 + usize::from(position >= 8);
            let byte = columns.get(start..start + 2).ok_or_else(|| unknown(dump))?;
            bytes.push(u8::from_str_radix(byte, 16).map_err(|_| unknown(dump))?);
        }
        self.expected -= self.expected.min(16);
        Ok(())
    }

    /// Fails if bytes of the last send are missing.
    fn complete(&self) -> Result<()> {
        match self.expected {
            0 => Ok(()),
            missing => Err(format!("the trace lacks {missing} bytes of a send").into()),
        }
    }

    fn finish(self) -> Result<Vec<Trace>> {
        self.complete()?;
        Ok(self.parts)
    }
}

/// A number as `strace --raw` prints it.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => text.parse().ok(),
    }
}

fn unknown(line: &str) -> String {
    format!("unexpected line in the output of strace: {line}")
}
