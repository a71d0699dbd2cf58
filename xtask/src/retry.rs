//! Retries of downloads: a temporary failure of a mirror is not a failure of the code.

use std::{thread, time::Duration};

use anyhow::{Context, Result};

/// The pauses between attempts. There is one attempt more than pauses.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// Calls a function that uses the network, and calls it again if it fails.
///
/// # Errors
///
/// The error of the last attempt, with the number of attempts.
pub(crate) fn retry<T>(what: &str, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    with_pauses(&PAUSES, what, attempt)
}

fn with_pauses<T>(pauses: &[Duration], what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for pause in pauses {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => {
                eprintln!("xtask: {what}: {error:#}; next attempt in {} s", pause.as_secs());
                thread::sleep(*pause);
            }
        }
    }
    attempt().with_context(|| format!("{what}, attempt {}", pauses.len() + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(times: usize) -> (Result<usize>, usize) {
        let mut attempts = 0;
        let result = with_pauses(&[Duration::ZERO; 2], "reading the mirror", || {
            attempts += 1;
            anyhow::ensure!(attempts > times, "no answer");
            Ok(attempts)
        });
        (result, attempts)
    }

    #[test]
    fn a_temporary_failure_is_retried() {
        assert_eq!(failing(0).0.unwrap(), 1);
        assert_eq!(failing(2).0.unwrap(), 3);
    }

    #[test]
    fn a_permanent_failure_is_the_error_of_the_last_attempt() {
        let (result, attempts) = failing(9);
        assert_eq!(attempts, 3);
        assert_eq!(
            format!("{:#}", result.unwrap_err()),
            "reading the mirror, attempt 3: no answer"
        );
    }
}
