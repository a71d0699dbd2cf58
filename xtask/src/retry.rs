//! What comes over the network is asked for more than once: a mirror that fails for a moment says nothing about the code.

use std::{thread, time::Duration};

use anyhow::{Context, Result};

/// Between the attempts, of which there is one more.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(20),
    Duration::from_secs(60),
];

/// Does something that needs the network, again where it fails. The error of the last attempt says how many there were.
pub(crate) fn persist<T>(what: &str, attempt: impl FnMut() -> Result<T>) -> Result<T> {
    with_pauses(&PAUSES, what, attempt)
}

fn with_pauses<T>(pauses: &[Duration], what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for pause in pauses {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) => {
                eprintln!("xtask: {what}: {error:#}; once more in {} s", pause.as_secs());
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
        let result = with_pauses(&[Duration::ZERO; 2], "asking the mirror", || {
            attempts += 1;
            anyhow::ensure!(attempts > times, "no answer");
            Ok(attempts)
        });
        (result, attempts)
    }

    #[test]
    fn a_hiccup_is_survived() {
        assert_eq!(failing(0).0.unwrap(), 1);
        assert_eq!(failing(2).0.unwrap(), 3);
    }

    #[test]
    fn what_goes_on_failing_is_an_error_after_the_last_attempt() {
        let (result, attempts) = failing(9);
        assert_eq!(attempts, 3);
        assert_eq!(
            format!("{:#}", result.unwrap_err()),
            "asking the mirror, attempt 3: no answer"
        );
    }
}
