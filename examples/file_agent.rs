//! The program `kernlink-agent`, which keeps the kernel in step with the manifests of a folder.
//!
//! ```sh
//! cargo run --example file_agent -- --node-name node-a --watch examples/manifests --dry-run
//! ```
//!
//! `docs/agent-reference.md` describes the options.

use std::process::ExitCode;

fn main() -> ExitCode {
    kernlink_agent::main(std::env::args_os().skip(1))
}
