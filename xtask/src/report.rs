//! The results of a test run, and its summary.

use std::{fmt, time::Duration};

use crate::libtest::{self, Outcome};

/// A test that was skipped, because something that it needs is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skip {
    pub(crate) test: String,
    pub(crate) reason: String,
}

/// The results of one test binary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binary {
    pub(crate) name: String,
    pub(crate) passed: usize,
    /// Names of failed tests, and the cause if the binary did not finish.
    pub(crate) failures: Vec<String>,
    pub(crate) skipped: Vec<Skip>,
    /// The time that its tests took, as it printed it. 0 if it did not finish.
    pub(crate) took: Duration,
}

impl Binary {
    /// A binary that did not finish. It counts as one failure.
    pub(crate) fn broken(name: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self {
            name: name.into(),
            passed: 0,
            failures: vec![cause.to_string()],
            skipped: Vec::new(),
            took: Duration::ZERO,
        }
    }

    /// Reads the output of a finished binary. `success` is whether it exited with status 0.
    pub(crate) fn read(name: impl Into<String>, text: &str, skips: Vec<Skip>, success: bool) -> Self {
        let name = name.into();
        let output = libtest::parse(text);
        let total = output.total();
        let mut failures = output.names(Outcome::Failed);
        // A crash before the summary, or a count that differs from the number of names, is a failure too.
        if let Some(cause) = output.incomplete() {
            failures.push(format!("{name} did not finish: {cause}"));
        } else if failures.len() < total.failed {
            failures.push(format!("{name}: {} failures in its summary", total.failed));
        } else if !success && failures.is_empty() {
            failures.push(format!("{name} exited with an error after its tests"));
        }
        let mut skipped = Vec::new();
        let mut passed = total.passed;
        for skip in skips {
            // A test that reported a skip and then failed is a failure.
            if !failures.contains(&skip.test) && passed > 0 {
                passed -= 1;
                skipped.push(skip);
            }
        }
        skipped.extend(output.names(Outcome::Ignored).into_iter().map(|test| Skip {
            test,
            reason: "marked #[ignore]".to_owned(),
        }));
        Self {
            name,
            passed,
            failures,
            skipped,
            took: output.took,
        }
    }
}

/// The results of one tier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TierReport {
    pub(crate) name: &'static str,
    pub(crate) binaries: Vec<Binary>,
}

impl TierReport {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            binaries: Vec::new(),
        }
    }

    fn passed(&self) -> usize {
        self.binaries.iter().map(|binary| binary.passed).sum()
    }

    fn failed(&self) -> usize {
        self.binaries.iter().map(|binary| binary.failures.len()).sum()
    }

    fn skipped(&self) -> usize {
        self.binaries.iter().map(|binary| binary.skipped.len()).sum()
    }
}

/// The results of all tiers of one run. Printed as the summary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) tiers: Vec<TierReport>,
}

impl Report {
    /// True if each tier ran at least one test and none failed.
    pub(crate) fn is_success(&self) -> bool {
        self.tiers
            .iter()
            .all(|tier| tier.failed() == 0 && tier.passed() > 0)
            && !self.tiers.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for tier in &self.tiers {
            for binary in &tier.binaries {
                for skip in &binary.skipped {
                    writeln!(
                        f,
                        "skipped  {}: {}::{}: {}",
                        tier.name, binary.name, skip.test, skip.reason
                    )?;
                }
            }
        }
        for tier in &self.tiers {
            for binary in &tier.binaries {
                for failure in &binary.failures {
                    writeln!(f, "FAILED   {}: {}: {failure}", tier.name, binary.name)?;
                }
            }
            if tier.passed() + tier.failed() == 0 {
                writeln!(f, "FAILED   {}: no test ran", tier.name)?;
            }
        }
        writeln!(
            f,
            "\n{:<6} {:>8} {:>8} {:>8} {:>8}",
            "tier", "ran", "passed", "failed", "skipped"
        )?;
        for tier in &self.tiers {
            let (passed, failed, skipped) = (tier.passed(), tier.failed(), tier.skipped());
            writeln!(
                f,
                "{:<6} {:>8} {passed:>8} {failed:>8} {skipped:>8}",
                tier.name,
                passed + failed
            )?;
        }
        let sum = |count: fn(&TierReport) -> usize| self.tiers.iter().map(count).sum::<usize>();
        write!(
            f,
            "\n{} passed, {} failed, {} skipped",
            sum(TierReport::passed),
            sum(TierReport::failed),
            sum(TierReport::skipped)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(passed: usize, failed: usize) -> String {
        format!(
            "running {} tests\ntest result: ok. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n",
            passed + failed
        )
    }

    fn skip(test: &str) -> Skip {
        Skip {
            test: test.to_owned(),
            reason: "no ip_vs".to_owned(),
        }
    }

    #[test]
    fn a_skipped_test_is_not_counted_as_passed() {
        let binary = Binary::read("ipvs", &output(3, 0), vec![skip("a"), skip("b")], true);
        assert_eq!(
            (binary.passed, binary.skipped.len(), binary.failures.len()),
            (1, 2, 0)
        );
    }

    #[test]
    fn a_crash_is_a_failure_even_if_all_printed_tests_passed() {
        let binary = Binary::read("ipvs", "running 3 tests\ntest a ... ok\n", Vec::new(), false);
        assert_eq!(binary.failures.len(), 1);
        assert!(
            binary.failures[0].contains("did not finish"),
            "{:?}",
            binary.failures
        );
    }

    #[test]
    fn an_exit_status_other_than_0_after_passed_tests_is_a_failure() {
        assert_eq!(
            Binary::read("ipvs", &output(3, 0), Vec::new(), false)
                .failures
                .len(),
            1
        );
    }

    #[test]
    fn a_failed_test_that_also_reported_a_skip_is_failed() {
        let text = "running 1 test\ntest a ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        let binary = Binary::read("ipvs", text, vec![skip("a")], false);
        assert_eq!((binary.failures.len(), binary.skipped.len()), (1, 0));
    }

    #[test]
    fn the_summary_lists_skips_and_failures_and_their_numbers() {
        let mut unit = TierReport::new("unit");
        unit.binaries
            .push(Binary::read("ipvs", &output(5, 0), Vec::new(), true));
        let mut host = TierReport::new("host");
        host.binaries
            .push(Binary::read("ipvs", &output(2, 0), vec![skip("a")], true));
        host.binaries.push(Binary::broken("ipset", "time limit of 5 s"));
        let report = Report {
            tiers: vec![unit, host],
        };
        let text = report.to_string();
        assert!(text.contains("skipped  host: ipvs::a: no ip_vs"), "{text}");
        assert!(text.contains("FAILED   host: ipset: time limit of 5 s"), "{text}");
        assert_eq!(text.lines().last(), Some("6 passed, 1 failed, 1 skipped"));
        assert!(!report.is_success());
    }

    #[test]
    fn a_tier_without_tests_is_not_a_success() {
        let report = Report {
            tiers: vec![TierReport::new("vm")],
        };
        assert!(!report.is_success());
        assert!(report.to_string().contains("FAILED   vm: no test ran"));
    }
}
