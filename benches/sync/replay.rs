//! The floor: the same bytes over bare sockets, the same processes and the same files, without decoding, encoding and bookkeeping.

use std::fs;
use std::time::{Duration, Instant};

use kernlink_benches::Result;
use kernlink_benches::recorded::Entry;
use kernlink_iptables_restore::{Invocation, Runner};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::sys::socket::{setsockopt, sockopt};

use crate::tools::Tools;
use crate::trace::{Event, Trace, messages};

/// The size of the buffer of `kernlink_netlink::Connection`. The kernel chooses the size of the datagrams of a dump by it.
const BUFFER: usize = 128 << 10;
const RECEIVE_BUFFER: usize = 4 << 20;

/// A recorded part of a sync that can be repeated.
pub(crate) struct Replay {
    /// The sockets that were used, each with its protocol.
    sockets: Vec<(usize, isize)>,
    steps: Vec<Step>,
}

enum Step {
    Send {
        /// The position in `sockets`.
        socket: usize,
        bytes: Vec<u8>,
        /// The sequence number of the last request.
        last: [u8; 4],
    },
    /// Processes that run at the same time.
    Processes(Vec<Invocation>),
    WriteFile {
        path: String,
        value: Box<str>,
    },
    ReadFile(String),
}

impl Replay {
    /// The changes of a sync: everything that it sends over netlink, what it writes to sysctls, and the inputs of `iptables-restore`, but
    /// no listing by another process.
    pub(crate) fn of_changes(trace: &Trace, entries: Vec<Entry>) -> Result<Self> {
        let is_change = |entry: &Entry| match entry {
            Entry::Process(invocation) => !invocation.stdin.is_empty(),
            Entry::WriteSysctl(_) => true,
            Entry::ReadSysctl(_) => false,
        };
        Self::new(trace, entries, is_change)
    }

    /// The reads of a sync without changes: dumps, `/proc/net/ip_vs`, `iptables-save` and sysctls.
    pub(crate) fn of_reads(trace: &Trace, entries: Vec<Entry>) -> Result<Self> {
        let mut replay = Self::new(trace, entries, |_| true)?;
        replay
            .steps
            .push(Step::ReadFile("/proc/thread-self/net/ip_vs".to_owned()));
        Ok(replay)
    }

    /// The steps of a trace. The processes and sysctls were recorded in another run of the same sync.
    fn new(trace: &Trace, entries: Vec<Entry>, is_needed: impl Fn(&Entry) -> bool) -> Result<Self> {
        let mut replay = Self {
            sockets: Vec::new(),
            steps: Vec::new(),
        };
        let mut processes = Vec::new();
        for entry in entries {
            let is_needed = is_needed(&entry);
            match entry {
                Entry::Process(invocation) => processes.push(is_needed.then_some(invocation)),
                Entry::WriteSysctl(sysctl) if is_needed => replay.steps.push(Step::WriteFile {
                    path: path(&sysctl.name),
                    value: sysctl.value,
                }),
                Entry::ReadSysctl(name) if is_needed => replay.steps.push(Step::ReadFile(path(&name))),
                Entry::WriteSysctl(_) | Entry::ReadSysctl(_) => {}
            }
        }
        if processes.len() != trace.processes() {
            let (recorded, traced) = (processes.len(), trace.processes());
            return Err(format!("{recorded} processes were recorded, and {traced} were traced").into());
        }
        let mut processes = processes.into_iter();
        for event in &trace.events {
            match event {
                Event::Process => {
                    if let Some(process) = processes.next().flatten() {
                        replay.add_process(process);
                    }
                }
                Event::Send {
                    socket,
                    protocol,
                    bytes,
                } => {
                    let socket = replay.socket(*socket, *protocol);
                    let last = messages(bytes).last().and_then(|message| message.get(8..12));
                    replay.steps.push(Step::Send {
                        socket,
                        bytes: bytes.clone(),
                        last: last.ok_or("a send without a message")?.try_into()?,
                    });
                }
            }
        }
        Ok(replay)
    }

    /// Processes without input only read. Those that follow each other run at the same time.
    fn add_process(&mut self, process: Invocation) {
        match self.steps.last_mut() {
            Some(Step::Processes(earlier))
                if process.stdin.is_empty() && earlier.iter().all(|earlier| earlier.stdin.is_empty()) =>
            {
                earlier.push(process);
            }
            _ => self.steps.push(Step::Processes(vec![process])),
        }
    }

    fn socket(&mut self, number: usize, protocol: isize) -> usize {
        let found = self.sockets.iter().position(|(known, _)| *known == number);
        found.unwrap_or_else(|| {
            self.sockets.push((number, protocol));
            self.sockets.len() - 1
        })
    }

    /// Repeats the steps in the calling thread's network namespace. Opening the sockets is not measured.
    pub(crate) fn run(&self) -> Result<Duration> {
        let sockets: Vec<Socket> = self
            .sockets
            .iter()
            .map(|(_, protocol)| open(*protocol))
            .collect::<Result<_>>()?;
        let mut runner = Tools::in_memory()?.runner();
        let mut buffer = vec![0; BUFFER];
        let start = Instant::now();
        for step in &self.steps {
            match step {
                Step::Send { socket, bytes, last } => {
                    let socket = sockets.get(*socket).ok_or("no socket")?;
                    socket.send(bytes, 0)?;
                    while !ends(read(socket, &mut buffer)?, *last) {}
                }
                Step::Processes(invocations) => {
                    let completions = runner.run_all(invocations.clone());
                    for (invocation, completion) in invocations.iter().zip(completions) {
                        let completion = completion?;
                        if completion.status != Some(0) {
                            let errors = String::from_utf8_lossy(&completion.stderr).into_owned();
                            return Err(format!("{}: {errors}", invocation.program).into());
                        }
                    }
                }
                Step::WriteFile { path, value } => fs::write(path, &**value)?,
                // Some sysctls do not exist in every namespace.
                Step::ReadFile(path) => _ = std::hint::black_box(fs::read(path)),
            }
        }
        Ok(start.elapsed())
    }
}

/// The path of a sysctl, which has this name or is a path.
fn path(name: &str) -> String {
    if name.starts_with('/') {
        name.to_owned()
    } else {
        format!("/proc/sys/{}", name.replace('.', "/"))
    }
}

/// A socket with the options of a `kernlink_netlink::Connection`.
fn open(protocol: isize) -> Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.bind_auto()?;
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    if protocol == NETLINK_ROUTE {
        socket.set_netlink_get_strict_chk(true)?;
    }
    setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

fn read<'b>(socket: &Socket, buffer: &'b mut [u8]) -> Result<&'b [u8]> {
    let length = socket.recv(&mut &mut *buffer, 0)?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Whether a datagram ends the answer to a send: the outcome of the last request, or the end of its dump, which may follow other messages
/// of the dump.
fn ends(datagram: &[u8], last: [u8; 4]) -> bool {
    const NLMSG_ERROR: [u8; 2] = 2_u16.to_ne_bytes();
    const NLMSG_DONE: [u8; 2] = 3_u16.to_ne_bytes();
    /// The length of a message with the end of a dump.
    const END: usize = 20;
    let is = |header: &[u8], types: &[[u8; 2]]| {
        let of_last = header.get(8..12) == Some(&last);
        of_last && types.iter().any(|known| header.get(4..6) == Some(known))
    };
    let end = datagram.len().saturating_sub(END);
    is(datagram, &[NLMSG_ERROR, NLMSG_DONE]) || datagram.get(end..).is_some_and(|end| is(end, &[NLMSG_DONE]))
}
