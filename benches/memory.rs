//! The memory of a process that did one thing: the benchmark starts itself again with an environment variable.

use kernlink_kernel_tests::programs;

/// The value of the environment variable of a child process. `None` if this process is not such a child.
///
/// # Errors
/// If the value is not a number.
pub fn child(variable: &str) -> Result<Option<u32>, String> {
    let Ok(value) = std::env::var(variable) else {
        return Ok(None);
    };
    let value = value.parse().map_err(|error| format!("{variable}: {error}"))?;
    Ok(Some(value))
}

/// Starts this program again with an environment variable, and returns the number that it prints to standard output.
///
/// # Errors
/// If it prints anything else.
pub fn of_child(variable: &str, value: u32) -> Result<f64, String> {
    let output = programs::this_program()
        .env(variable, value.to_string())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    text.trim()
        .parse()
        .map_err(|_| format!("invalid output of the child process: {text:?} {errors}"))
}

/// The peak memory of this process, in KiB.
///
/// # Errors
/// If it cannot be read.
pub fn peak_kib() -> Result<u64, String> {
    status("VmHWM:")
}

/// The resident memory of this process, in KiB.
///
/// # Errors
/// If it cannot be read.
pub fn resident_kib() -> Result<u64, String> {
    status("VmRSS:")
}

fn status(field: &str) -> Result<u64, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| error.to_string())?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let line = line.ok_or_else(|| format!("no {field}"))?;
    let number = line.trim().trim_end_matches(" kB");
    number.parse().map_err(|error| format!("{line:?}: {error}"))
}
