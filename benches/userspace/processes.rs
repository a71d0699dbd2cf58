//! What processes use.

use std::fs;

use super::Outcome;

/// The processor time that processes used, in seconds.
pub(crate) fn processor_time(ids: &[u32]) -> Outcome<f64> {
    let mut sum = 0.0;
    for id in ids {
        let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
        // The name, in parentheses, may contain spaces.
        let fields = stat
            .rsplit_once(')')
            .map(|(_, fields)| fields)
            .unwrap_or_default();
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        // The kernel reports times of processes in hundredths of a second on all architectures.
        sum += ticks as f64 / 100.0;
    }
    Ok(sum)
}

/// The resident memory of processes.
pub(crate) fn resident_bytes(ids: &[u32]) -> Outcome<f64> {
    let mut sum = 0.0;
    for id in ids {
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        sum += kib * 1024.0;
    }
    Ok(sum)
}
