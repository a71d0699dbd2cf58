//! What a test binary said of itself: the lines that libtest prints.

/// The verdict that libtest printed for one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Ignored,
}

/// The closing line of one test binary (or of one group of documentation tests).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
}

/// Everything in the output of one run that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Output {
    /// One per `test result:` line; several where documentation tests run in groups.
    pub(crate) summaries: Vec<Summary>,
    pub(crate) tests: Vec<(String, Verdict)>,
    /// Tests that were announced by `running N tests`; a crash leaves this above the sum of the summaries.
    pub(crate) announced: usize,
}

impl Output {
    /// The sum over all closing lines.
    pub(crate) fn total(&self) -> Summary {
        self.summaries
            .iter()
            .fold(Summary::default(), |sum, next| Summary {
                passed: sum.passed + next.passed,
                failed: sum.failed + next.failed,
                ignored: sum.ignored + next.ignored,
            })
    }

    /// Names of the tests with this verdict, in the order they were printed.
    pub(crate) fn names(&self, wanted: Verdict) -> Vec<String> {
        self.tests
            .iter()
            .filter(|(_, verdict)| *verdict == wanted)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Why this output is not that of a run that came to its end, if it is not.
    pub(crate) fn incomplete(&self) -> Option<String> {
        if self.summaries.is_empty() {
            return Some("it printed no `test result:` line".to_owned());
        }
        let total = self.total();
        let ran = total.passed + total.failed + total.ignored;
        (ran < self.announced).then(|| {
            format!(
                "it announced {} tests but its closing lines count {ran}",
                self.announced
            )
        })
    }
}

/// Reads what a test binary printed. Lines that are not libtest's are passed over.
pub(crate) fn parse(text: &str) -> Output {
    let mut output = Output::default();
    for line in text.lines() {
        if let Some(summary) = summary(line) {
            output.summaries.push(summary);
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

fn test(line: &str) -> Option<(String, Verdict)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let verdict = match verdict.split([',', ' ']).next()? {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        "ignored" => Verdict::Ignored,
        _ => return None,
    };
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    Some((name.to_owned(), verdict))
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
    fn verdicts_and_closing_line_are_read() {
        let output = parse(MIXED);
        assert_eq!(
            output.total(),
            Summary {
                passed: 1,
                failed: 1,
                ignored: 1
            }
        );
        assert_eq!(output.names(Verdict::Failed), ["wire::decode_truncated"]);
        assert_eq!(output.names(Verdict::Ignored), ["slow"]);
        assert_eq!(output.names(Verdict::Passed), ["names::a_long_name_is_refused"]);
        assert_eq!(output.incomplete(), None);
    }

    #[test]
    fn groups_of_documentation_tests_are_added_up() {
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
    }

    #[test]
    fn output_without_a_closing_line_is_incomplete() {
        let cut = MIXED.split("test result: FAILED").next().unwrap();
        assert!(parse(cut).incomplete().is_some());
        assert!(parse("").incomplete().is_some());
    }

    #[test]
    fn fewer_results_than_announced_is_incomplete() {
        let text = "running 5 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        assert!(parse(text).incomplete().unwrap().contains("announced 5"));
    }

    #[test]
    fn a_closing_line_with_a_broken_count_is_no_closing_line() {
        assert_eq!(
            parse("test result: ok. x passed; 0 failed; 0 ignored\n").summaries,
            []
        );
        assert_eq!(parse("test result: ok. 1 passed; 0 failed\n").summaries, []);
    }

    #[test]
    fn should_panic_is_not_part_of_the_name() {
        assert_eq!(
            parse("test t - should panic ... ok\n").names(Verdict::Passed),
            ["t"]
        );
    }
}
