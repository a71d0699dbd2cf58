//! The program `kernlink-agent`. Everything is in the library.

use std::process::ExitCode;

/// The first sync needs several times the memory of what it leaves. The allocator of glibc keeps most of that; this one returns it to the
/// kernel after about ten seconds.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    kernlink_agent::main(std::env::args_os().skip(1))
}
