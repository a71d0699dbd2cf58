//! Pages about the process for a person: `/statusz` and `/flagz`, as in the components of Kubernetes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// What Kubernetes' pages begin with.
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for \
                       debugging purposes only.";

/// The page `/statusz`: when the process started, its version and mode, and the paths of the server.
pub(super) fn statusz(started: SystemTime, now: SystemTime, mode: &str, paths: &[&str]) -> String {
    let up = now.duration_since(started).unwrap_or(Duration::ZERO).as_secs();
    let (hours, minutes, seconds) = (up / 3600, up / 60 % 60, up % 60);
    let time = Timestamp::try_from(started).map_or_else(|_| "unknown".to_owned(), |time| time.to_string());
    let version = crate::version::TEXT;
    let paths = paths.join(" ");
    format!(
        "\nkernlink-agent statusz\n{WARNING}\n\nStarted: {time}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
         Binary version: {version}\nMode: {mode}\n\nPaths: {paths}\n"
    )
}

/// The page `/flagz`: the flags of the command line with their values. `/configz` has the configuration in effect.
pub(super) fn flagz(flags: &BTreeMap<String, String>) -> String {
    let mut page = format!("\nkernlink-agent flagz\n{WARNING}\n\n");
    for (name, value) in flags {
        // A string accepts everything.
        let _ = writeln!(page, "{name}={value}");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statusz_has_the_start_and_the_time_since_then() {
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let now = started + Duration::from_secs(3 * 3600 + 4 * 60 + 5);
        let page = statusz(started, now, "iptables", &["/configz", "/metrics"]);
        for line in [
            "kernlink-agent statusz",
            "Started: 2001-09-09T01:46:40Z",
            "Up: 3 hr 04 min 05 sec",
            "Mode: iptables",
            "Paths: /configz /metrics",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
        // A clock that was set back.
        assert!(statusz(now, started, "ipvs", &[]).contains("Up: 0 hr 00 min 00 sec"));
    }
}
