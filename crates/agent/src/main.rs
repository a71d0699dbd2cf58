//! The program `kernlink-agent`. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    kernlink_agent::main(std::env::args_os().skip(1))
}
