//! Reads the lines that libtest prints.

use std::time::Duration;

/// The result that libtest printed for one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Ignored,
}

/// The line `test result:` of one test binary, or of one group of documentation tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// The results in the output of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    /// One per `test result:` line; several where documentation tests run in groups.
    pub(crate) summaries: Vec<Summary>,
    pub(crate) tests: Vec<(String, Outcome)>,
    /// The sum of `running N tests`. After a crash it is greater than the sum of the summaries.
    pub(crate) announced: usize,
    /// The sum of `finished in S s` of the summaries.
    pub(crate) took: Duration,
}

impl Output {
    /// The sum of all summaries.
    pub(crate) fn total(&self) -> Summary {
        self.summaries
            .iter()
            .fold(Summary::default(), |sum, next| Summary {
                passed: sum.passed + next.passed,
                failed: sum.failed + next.failed,
                ignored: sum.ignored + next.ignored,
            })
    }

    /// Names of the tests with this result, in the order of the output.
    pub(crate) fn names(&self, expected: Outcome) -> Vec<String> {
        self.tests
            .iter()
            .filter(|(_, outcome)| *outcome == expected)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Why this is not the output of a complete run. `None` if it is.
    pub(crate) fn incomplete(&self) -> Option<String> {
        if self.summaries.is_empty() {
            return Some("no line `test result:` in the output".to_owned());
        }
        let total = self.total();
        let ran = total.passed + total.failed + total.ignored;
        (ran < self.announced).then(|| {
            format!(
                "{} tests were announced, but {ran} are in the lines `test result:`",
                self.announced
            )
        })
    }
}

/// The tests that libtest reported to run for more than a minute and that have not ended. With one thread libtest prints the name
/// of a test at its start, without the end of the line.
pub(crate) fn running(text: &str) -> Vec<String> {
    let ended = parse(text).tests;
    let slow = text.lines().filter_map(|line| {
        let line = line.strip_prefix("test ")?;
        let name = line
            .strip_suffix(" has been running for over 60 seconds")
            .or_else(|| line.strip_suffix(" ... "))?;
        Some(name.to_owned())
    });
    slow.filter(|name| !ended.iter().any(|(test, _)| test == name))
        .collect()
}

/// Reads the output of a test binary. Lines of other programs are ignored.
pub(crate) fn parse(text: &str) -> Output {
    let mut output = Output::default();
    for line in text.lines() {
        if let Some(summary) = summary(line) {
            output.summaries.push(summary);
            output.took += took(line).unwrap_or_default();
        } else if let Some(count) = announced(line) {
            output.announced += count;
        } else if let Some(test) = test(line) {
            output.tests.push(test);
        }
    }
    output
}

fn announced(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    rest.strip_suffix(" tests")
        .or_else(|| rest.strip_suffix(" test"))?
        .parse()
        .ok()
}

fn summary(line: &str) -> Option<Summary> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut summary = Summary::default();
    let mut seen = 0;
    for part in counts.split(';') {
        let Some((number, what)) = part.trim().split_once(' ') else {
            continue;
        };
        let field = match what {
            "passed" => &mut summary.passed,
            "failed" => &mut summary.failed,
            "ignored" => &mut summary.ignored,
            _ => continue,
        };
        *field = number.parse().ok()?;
        seen += 1;
    }
    (seen == 3).then_some(summary)
}

/// The duration in a line `test result:`.
fn took(line: &str) -> Option<Duration> {
    let (_, seconds) = line.rsplit_once("; finished in ")?;
    Duration::try_from_secs_f64(seconds.strip_suffix('s')?.parse().ok()?).ok()
}

fn test(line: &str) -> Option<(String, Outcome)> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let outcome = match outcome.split([',', ' ']).next()? {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        "ignored" => Outcome::Ignored,
        _ => return None,
    };
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    Some((name.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "
running 3 tests
test names::a_long_name_is_refused ... ok
test slow ... ignored, takes an hour
test wire::decode_truncated ... FAILED

failures:

---- wire::decode_truncated stdout ----
test result: this line is not libtest's
thread panicked

failures:
    wire::decode_truncated

test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.03s
";

    #[test]
    fn results_and_the_summary_are_read() {
        let output = parse(MIXED);
        assert_eq!(
            output.total(),
            Summary {
                passed: 1,
                failed: 1,
                ignored: 1
            }
        );
        assert_eq!(output.names(Outcome::Failed), ["wire::decode_truncated"]);
        assert_eq!(output.names(Outcome::Ignored), ["slow"]);
        assert_eq!(output.names(Outcome::Passed), ["names::a_long_name_is_refused"]);
        assert_eq!(output.incomplete(), None);
        assert_eq!(output.took, Duration::from_millis(30));
    }

    #[test]
    fn the_results_of_groups_of_documentation_tests_are_added() {
        let text = "running 2 tests\n..\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                    running 1 test\ntest result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
        assert_eq!(
            parse(text).total(),
            Summary {
                passed: 2,
                failed: 0,
                ignored: 1
            }
        );
        assert_eq!(parse(text).incomplete(), None);
        assert_eq!(parse(text).took, Duration::from_millis(200));
    }

    #[test]
    fn output_without_a_summary_is_incomplete() {
        let cut = MIXED.split("test result: FAILED").next().unwrap();
        assert!(parse(cut).incomplete().is_some());
        assert!(parse("").incomplete().is_some());
    }

    #[test]
    fn output_with_fewer_results_than_announced_is_incomplete() {
        let text = "running 5 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        assert!(
            parse(text)
                .incomplete()
                .unwrap()
                .contains("5 tests were announced")
        );
    }

    #[test]
    fn a_summary_with_an_invalid_count_is_ignored() {
        assert_eq!(
            parse("test result: ok. x passed; 0 failed; 0 ignored\n").summaries,
            []
        );
        assert_eq!(parse("test result: ok. 1 passed; 0 failed\n").summaries, []);
    }

    #[test]
    fn a_slow_test_runs_until_its_result() {
        let slow = |name: &str| format!("test {name} has been running for over 60 seconds\n");
        let text = [slow("a"), slow("b"), "test a ... ok\n".to_owned()].concat();
        assert_eq!(running(&text), ["b"]);
        assert_eq!(running("test a ... ok\ntest b ... "), ["b"]);
    }

    #[test]
    fn should_panic_is_not_part_of_the_name() {
        assert_eq!(
            parse("test t - should panic ... ok\n").names(Outcome::Passed),
            ["t"]
        );
    }
}
