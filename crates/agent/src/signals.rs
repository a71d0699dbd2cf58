//! The signals that the process receives.

use std::io;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGUSR1 and SIGUSR2 from now on, which change the level of the log: whether more is to be logged.
pub(crate) fn register_levels(runtime: &Runtime) -> io::Result<[(bool, Signal); 2]> {
    let _context = runtime.enter();
    Ok([
        (true, signal(SignalKind::user_defined1())?),
        (false, signal(SignalKind::user_defined2())?),
    ])
}

/// Receives SIGTERM and SIGINT from now on, each with its name. They no longer end the process.
pub(crate) fn register(runtime: &Runtime) -> io::Result<[(&'static str, Signal); 2]> {
    let _context = runtime.enter();
    Ok([
        ("SIGTERM", signal(SignalKind::terminate())?),
        ("SIGINT", signal(SignalKind::interrupt())?),
    ])
}
