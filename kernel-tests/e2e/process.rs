//! What a process has used.

use std::fs;
use std::time::Duration;

fn read(id: u32, file: &str) -> String {
    fs::read_to_string(format!("/proc/{id}/{file}")).unwrap()
}

/// The processor time of a process and of the programs that it started and that have ended, in steps of 10 ms.
pub(crate) fn processor_time(id: u32) -> Duration {
    let stat = read(id, "stat");
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // utime, stime, cutime and cstime are the fields 14 to 17; the first one here is field 3.
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(4)
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

/// A value of `status` in MiB, such as `VmRSS`.
pub(crate) fn memory(id: u32, name: &str) -> u64 {
    let status = read(id, "status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t'])
        .trim_end_matches(" kB")
        .trim()
        .parse::<u64>()
        .unwrap()
        / 1024
}
