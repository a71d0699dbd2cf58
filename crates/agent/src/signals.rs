//! The signals that end the process.

use std::io;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives SIGTERM and SIGINT from now on, each with its name. They no longer end the process.
pub(crate) fn register(runtime: &Runtime) -> io::Result<[(&'static str, Signal); 2]> {
    let _context = runtime.enter();
    Ok([
        ("SIGTERM", signal(SignalKind::terminate())?),
        ("SIGINT", signal(SignalKind::interrupt())?),
    ])
}
