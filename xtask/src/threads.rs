//! What threads wait for, from `/proc`.

use std::{fs, path::Path};

use nix::unistd::Pid;

/// The maximum number of functions in a line.
const FUNCTIONS: usize = 8;
/// The maximum number of lines.
const LINES: usize = 300;

/// A line for each thread of a process group, and for each other thread of the machine in an uninterruptible wait: its name, its state,
/// and the functions of the kernel in which it waits, the innermost first (only root can read them).
pub(crate) fn of_group(group: Pid) -> Vec<String> {
    let processes = numbered(Path::new("/proc"));
    let threads = processes
        .iter()
        .flat_map(|process| numbered(&Path::new("/proc").join(process).join("task")));
    threads
        .filter_map(|thread| describe(&thread, group))
        .take(LINES)
        .collect()
}

/// The entries of a folder of `/proc` that are numbers; empty if it does not exist any more.
fn numbered(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.parse::<i32>().is_ok()).collect()
}

/// `None` for a thread of another group without an uninterruptible wait, and for one that has ended.
fn describe(thread: &str, group: Pid) -> Option<String> {
    // A name can end within a character.
    let read = |file: &str| {
        let bytes = fs::read(Path::new("/proc").join(thread).join(file)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (name, state, of) = parse(&read("stat")?)?;
    if of != group.as_raw() && state != "D" {
        return None;
    }
    let stack = read("stack").unwrap_or_default();
    let name = name.escape_debug();
    Some(format!("{thread} {name} ({state}): {}", functions(&stack)))
}

/// The name, state and process group in `/proc/PID/stat`. The name can contain any character.
fn parse(stat: &str) -> Option<(String, String, i32)> {
    let (start, rest) = stat.rsplit_once(") ")?;
    let (_, name) = start.split_once('(')?;
    let mut fields = rest.split(' ');
    let state = fields.next()?.to_owned();
    let group = fields.nth(1)?.parse().ok()?;
    Some((name.to_owned(), state, group))
}

/// `a < b < c` of the lines `[<0>] a+0x2d/0x40 [module]`.
fn functions(stack: &str) -> String {
    let names = stack.lines().filter_map(|line| {
        let (_, place) = line.split_once("] ")?;
        place.split('+').next()
    });
    names.take(FUNCTIONS).collect::<Vec<_>>().join(" < ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_described_by_its_name_state_and_functions() {
        let stat = "287 (a) (b) D 1 280 280 0 -1 4194560 91 0";
        assert_eq!(parse(stat), Some(("a) (b".to_owned(), "D".to_owned(), 280)));
        let stack = "[<0>] __request_module+0x1a5/0x3e0\n[<0>] ip_vs_scheduler_get+0x2d/0x40 [ip_vs]\n";
        assert_eq!(functions(stack), "__request_module < ip_vs_scheduler_get");
    }
}
