//! What is printed about the results.

use std::{fmt, time::Duration};

use super::{
    junit::Outcome,
    results::{Results, Summary},
    rules::Setup,
    selection::{Expectations, Judgement},
};

/// A test is slow if it takes this many times as long as with kube-proxy.
const SLOW: u32 = 3;
/// Times below this one count as this one: most of them is what the test itself waits for.
const SHORT: Duration = Duration::from_secs(1);

/// A line for each test, and the counts.
#[derive(Clone, Debug)]
pub(super) struct Table {
    rows: Vec<Row>,
    /// Whether a column shows kube-proxy.
    has_other: bool,
}

#[derive(Clone, Debug)]
struct Row {
    test: String,
    summary: Option<Summary>,
    judgement: Judgement,
    other: Option<Summary>,
}

impl Row {
    /// Whether both passed, and kube-proxy in a third of the time.
    fn is_slow(&self) -> bool {
        let (Some(summary), Some(other)) = (&self.summary, &self.other) else {
            return false;
        };
        summary.outcome == Outcome::Passed
            && other.outcome == Outcome::Passed
            && summary.time >= other.time.max(SHORT) * SLOW
    }
}

impl Table {
    /// Of the last `runs` results of each test.
    pub(super) fn new(
        tests: &[String],
        results: &Results,
        other: Option<&Results>,
        expectations: &Expectations,
        setup: Setup<'_>,
        runs: usize,
    ) -> Self {
        let row = |test: &String| {
            let summary = results.last(test, runs);
            let outcome = summary.as_ref().map(|summary| &summary.outcome);
            Row {
                test: test.clone(),
                judgement: expectations.judge(test, setup, outcome),
                other: other.and_then(|other| other.last(test, runs)),
                summary,
            }
        };
        Self {
            rows: tests.iter().map(row).collect(),
            has_other: other.is_some(),
        }
    }

    /// Whether every test has the expected result.
    pub(super) fn is_good(&self) -> bool {
        !self.rows.iter().any(|row| row.judgement.is_unexpected())
    }
}

/// `passed`, `failed` or `skipped`.
pub(super) fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed(_) => "failed",
        Outcome::Skipped(_) => "skipped",
    }
}

/// The cells of a summary: the result and the seconds.
fn cells(summary: Option<&Summary>) -> [String; 2] {
    summary.map_or_else(
        || ["-".to_owned(), String::new()],
        |summary| [word(&summary.outcome).to_owned(), seconds(summary)],
    )
}

/// Whole seconds, and the number of runs if there were several.
pub(super) fn seconds(summary: &Summary) -> String {
    let seconds = summary.time.as_secs_f64().round();
    match summary.runs {
        1 => format!("{seconds}"),
        runs => format!("{seconds} ({runs} runs)"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = if self.has_other {
            "| kube-proxy | seconds "
        } else {
            ""
        };
        writeln!(f, "| result  | seconds {other}| test")?;
        for row in &self.rows {
            let [result, seconds] = cells(row.summary.as_ref());
            write!(f, "| {result:7} | {seconds:>7} ")?;
            if self.has_other {
                let [result, seconds] = cells(row.other.as_ref());
                write!(f, "| {result:10} | {seconds:>7} ")?;
            }
            writeln!(f, "| {}", row.test)?;
        }
        let slow: Vec<_> = self.rows.iter().filter(|row| row.is_slow()).collect();
        if self.has_other {
            writeln!(
                f,
                "\n{} tests took {SLOW} times as long as with kube-proxy (times below {} s count as {} s)",
                slow.len(),
                SHORT.as_secs(),
                SHORT.as_secs()
            )?;
        }
        for row in slow {
            writeln!(f, "  {}", row.test)?;
        }
        let count = |is_counted: fn(&Row) -> bool| self.rows.iter().filter(|row| is_counted(row)).count();
        let has = |row: &Row, name| {
            row.summary
                .as_ref()
                .is_some_and(|summary| word(&summary.outcome) == name)
        };
        let of = |name| self.rows.iter().filter(|row| has(row, name)).count();
        writeln!(
            f,
            "\n{} tests: {} passed, {} failed, {} skipped themselves, {} without a result",
            self.rows.len(),
            of("passed"),
            of("failed"),
            of("skipped"),
            count(|row| row.summary.is_none())
        )?;
        for row in &self.rows {
            if let Judgement::KnownFailure(reason) = &row.judgement {
                writeln!(f, "  fails as expected: {}: {reason}", row.test)?;
            }
        }
        for row in &self.rows {
            if let Judgement::Unexpected(what) = &row.judgement {
                writeln!(f, "  unexpected: {}: {what}", row.test)?;
            }
        }
        write!(
            f,
            "{} unexpected results",
            count(|row| row.judgement.is_unexpected())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(outcome: Outcome, seconds: f64) -> Option<Summary> {
        Some(Summary {
            outcome,
            time: Duration::from_secs_f64(seconds),
            runs: 1,
        })
    }

    fn row(test: &str, summary: Option<Summary>, judgement: Judgement, other: Option<Summary>) -> Row {
        Row {
            test: test.to_owned(),
            summary,
            judgement,
            other,
        }
    }

    fn table() -> Table {
        let passed = |seconds| summary(Outcome::Passed, seconds);
        let failed = |seconds| summary(Outcome::Failed(String::new()), seconds);
        let unexpected = |what: &str| Judgement::Unexpected(what.to_owned());
        Table {
            rows: vec![
                row("a", passed(2.9), Judgement::Expected, passed(0.1)),
                row("b", passed(18.0), Judgement::Expected, passed(6.0)),
                row(
                    "c",
                    failed(57.4),
                    Judgement::KnownFailure("IPv6 addresses".to_owned()),
                    failed(65.0),
                ),
                row("d", None, unexpected("no result"), None),
                row("e", failed(1.0), unexpected("no answer"), passed(0.1)),
            ],
            has_other: true,
        }
    }

    #[test]
    fn the_table_has_a_row_for_each_test_and_the_counts() {
        let expected = "\
| result  | seconds | kube-proxy | seconds | test
| passed  |       3 | passed     |       0 | a
| passed  |      18 | passed     |       6 | b
| failed  |      57 | failed     |      65 | c
| -       |         | -          |         | d
| failed  |       1 | passed     |       0 | e

1 tests took 3 times as long as with kube-proxy (times below 1 s count as 1 s)
  b

5 tests: 2 passed, 2 failed, 0 skipped themselves, 1 without a result
  fails as expected: c: IPv6 addresses
  unexpected: d: no result
  unexpected: e: no answer
2 unexpected results";
        assert_eq!(table().to_string(), expected);
    }

    #[test]
    fn a_table_with_an_unexpected_result_is_not_good() {
        let mut table = table();
        assert!(!table.is_good());
        table.rows.truncate(3);
        assert!(table.is_good());
    }

    #[test]
    fn without_results_of_kube_proxy_its_columns_are_missing() {
        let mut table = table();
        table.has_other = false;
        assert!(!table.to_string().contains("kube-proxy"));
    }
}
