//! The signals that the process receives.

use std::fs;
use std::io;
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kernlink_proxier::ipvs_mode::iptables_restore::end_tools;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::Exit;

/// The time in which the agent ends by itself, with the sync in progress. Then the tools that it started are ended.
const TIME_OF_SYNC: Duration = Duration::from_secs(3);
/// The time in which it ends without the tools. Then the process ends in the middle of what it does: the next one continues there.
const TIME_WITHOUT_TOOLS: Duration = Duration::from_secs(3);

/// Whether the agent has ended by itself.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Ends the process after some time, unless the agent [ends](has_ended) before: a tool or the kernel may hang. A second call has no effect.
pub(crate) fn limit_end() {
    static FIRST: Once = Once::new();
    FIRST.call_once(start_limit);
}

/// The agent has ended by itself: the process is not ended.
pub(crate) fn has_ended() {
    HAS_ENDED.store(true, Ordering::Relaxed);
}

fn start_limit() {
    let limit = || {
        thread::sleep(TIME_OF_SYNC);
        if HAS_ENDED.load(Ordering::Relaxed) {
            return;
        }
        tracing::warn!("a sync is still in progress; the tools that it runs are ended");
        // On a thread of its own: it waits for a tool that is being started.
        if let Err(error) = spawn("kernlink-tools", end_tools) {
            tracing::warn!("the tools cannot be ended: {error}");
        }
        thread::sleep(TIME_WITHOUT_TOOLS);
        if HAS_ENDED.load(Ordering::Relaxed) {
            return;
        }
        tracing::warn!("stopped within a sync; the next start continues");
        process::exit(i32::from(Exit::Success.code()));
    };
    if let Err(error) = spawn("kernlink-end", limit) {
        tracing::warn!("the time until the end is not limited: {error}");
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Receives SIGUSR1 and SIGUSR2 from now on, which change the level of the log: whether more is to be logged.
pub(crate) fn register_levels(runtime: &Runtime) -> io::Result<[(bool, Signal); 2]> {
    let _context = runtime.enter();
    Ok([
        (true, signal(SignalKind::user_defined1())?),
        (false, signal(SignalKind::user_defined2())?),
    ])
}

/// Receives SIGHUP from now on, which no longer ends the process. `None`: it is ignored, as in a program that `nohup` started.
pub(crate) fn register_hangup(runtime: &Runtime) -> io::Result<Option<Signal>> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores_hangup(&status) {
        return Ok(None);
    }
    let _context = runtime.enter();
    signal(SignalKind::hangup()).map(Some)
}

/// Whether the process with this `/proc/PID/status` ignores SIGHUP (number 1).
fn ignores_hangup(status: &str) -> bool {
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|ignored| u64::from_str_radix(ignored.trim(), 16).ok());
    ignored.is_some_and(|ignored| ignored & 1 != 0)
}

/// Receives SIGTERM and SIGINT from now on, each with its name. They no longer end the process.
pub(crate) fn register(runtime: &Runtime) -> io::Result<[(&'static str, Signal); 2]> {
    let _context = runtime.enter();
    Ok([
        ("SIGTERM", signal(SignalKind::terminate())?),
        ("SIGINT", signal(SignalKind::interrupt())?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_ignored_is_known() {
        assert!(ignores_hangup("SigBlk:\t0\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup(
            "SigIgn:\t0000000000001000\nSigCgt:\t0000000000000001\n"
        ));
        assert!(!ignores_hangup(""));
    }
}
