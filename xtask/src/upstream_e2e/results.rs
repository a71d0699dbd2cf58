//! The results of all runs of a proxy in a mode: one folder with a JUnit file for each process that ran tests.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

use super::junit::{self, Case, Outcome};

/// The name that `e2e.test` gives its file.
const FILE: &str = "junit_01.xml";
/// The extension of the folder of a process that has not ended.
const PART: &str = "part";

/// The results of each test, in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Results {
    tests: BTreeMap<String, Vec<Case>>,
}

/// The last results of a test, taken together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// The first one that is not a pass, or a pass.
    pub(super) outcome: Outcome,
    /// The median of the times.
    pub(super) time: Duration,
    pub(super) runs: usize,
}

impl Results {
    /// Reads the results in a folder. A folder that does not exist has none.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let mut results = Self::default();
        for run in runs(folder)? {
            let file = run.join(FILE);
            // A process that crashed wrote no results.
            if !file.is_file() {
                continue;
            }
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let cases =
                junit::read(&text).with_context(|| format!("{}: not a JUnit file", file.display()))?;
            results.add(cases);
        }
        Ok(results)
    }

    fn add(&mut self, cases: Vec<Case>) {
        for case in cases {
            self.tests.entry(case.test.clone()).or_default().push(case);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tests.is_empty()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tests.keys().map(String::as_str)
    }

    /// How often a test has a result.
    pub(super) fn count(&self, test: &str) -> usize {
        self.tests.get(test).map_or(0, Vec::len)
    }

    /// The last results of a test, at most `runs` of them.
    pub(super) fn last(&self, test: &str, runs: usize) -> Option<Summary> {
        let cases = self.tests.get(test)?;
        let cases = &cases[cases.len().saturating_sub(runs)..];
        let not_passed = cases.iter().find(|case| case.outcome != Outcome::Passed);
        let mut times: Vec<_> = cases.iter().map(|case| case.time).collect();
        times.sort();
        Some(Summary {
            outcome: not_passed.or(cases.last())?.outcome.clone(),
            time: *times.get(times.len() / 2)?,
            runs: cases.len(),
        })
    }

    /// The tests to run, each as often as results are missing.
    pub(super) fn missing(&self, tests: &[String], runs: usize, is_again: bool) -> Vec<String> {
        let mut missing = Vec::new();
        for test in tests {
            let present = if is_again { 0 } else { self.count(test) };
            missing.extend(std::iter::repeat_n(test.clone(), runs.saturating_sub(present)));
        }
        missing
    }
}

/// The folders of the processes that have ended, in the order of their numbers.
fn runs(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut runs = Vec::new();
    for (number, path) in numbered(folder)? {
        if path.extension().is_none() {
            runs.push((number, path));
        }
    }
    runs.sort();
    Ok(runs.into_iter().map(|(_, path)| path).collect())
}

/// The folders whose names begin with a number.
fn numbered(folder: &Path) -> Result<Vec<(usize, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("reading {}", folder.display())),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        found.extend(number.map(|number| (number, path)));
    }
    Ok(found)
}

/// Removes what interrupted processes left, and returns the first number that no folder has.
pub(super) fn next_number(folder: &Path) -> Result<usize> {
    let mut next = 0;
    for (number, path) in numbered(folder)? {
        if path.extension().is_some_and(|extension| extension == PART) {
            fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
        } else {
            next = next.max(number + 1);
        }
    }
    Ok(next)
}

/// The folder of a process while it runs, so that a file that is not complete is never read.
#[derive(Debug)]
pub(super) struct Run {
    part: PathBuf,
    whole: PathBuf,
}

impl Run {
    pub(super) fn new(folder: &Path, number: usize) -> Result<Self> {
        let whole = folder.join(format!("{number:04}"));
        let part = whole.with_extension(PART);
        fs::create_dir_all(&part).with_context(|| format!("creating {}", part.display()))?;
        Ok(Self { part, whole })
    }

    /// Where the process writes.
    pub(super) fn folder(&self) -> &Path {
        &self.part
    }

    /// The process has ended by itself: its results count. Returns them.
    pub(super) fn finish(self) -> Result<Vec<Case>> {
        fs::rename(&self.part, &self.whole).with_context(|| format!("renaming {}", self.part.display()))?;
        let file = self.whole.join(FILE);
        if !file.is_file() {
            return Ok(Vec::new());
        }
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        junit::read(&text).with_context(|| format!("{}: not a JUnit file", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream_e2e::scratch::{Scratch, file};

    #[test]
    fn results_of_all_files_add_up() {
        let folder = Scratch::new("sum");
        folder.write_timed("0000", &[("a", "passed", "1"), ("b", "failed", "5")]);
        folder.write_timed("0002", &[("b", "passed", "7"), ("c", "interrupted", "1")]);
        folder.write_timed("0010", &[("b", "passed", "6")]);
        // A process that was killed while it wrote, and one that crashed.
        folder.write_text("0003.part", "<testsuites><testsu");
        fs::create_dir(folder.path().join("0004")).unwrap();
        let results = Results::read(folder.path()).unwrap();
        assert_eq!(results.names().collect::<Vec<_>>(), ["a", "b"]);
        let b = results.last("b", 3).unwrap();
        assert_eq!(b.outcome, Outcome::Failed(String::new()));
        assert_eq!((b.time, b.runs), (Duration::from_secs(6), 3));
        assert_eq!(results.last("b", 2).unwrap().outcome, Outcome::Passed);
        assert_eq!(results.last("c", 1), None);
        assert_eq!(next_number(folder.path()).unwrap(), 11);
        assert!(!folder.path().join("0003.part").exists());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error() {
        let folder = Scratch::new("cut");
        folder.write_text("0000", "<testsuites><testsu");
        let error = format!("{:#}", Results::read(folder.path()).unwrap_err());
        assert!(error.contains("0000/junit_01.xml: not a JUnit file"), "{error}");
    }

    #[test]
    fn tests_with_a_result_are_not_run_again_unless_asked() {
        let folder = Scratch::new("missing");
        folder.write_timed("0000", &[("a", "passed", "1"), ("b", "failed", "5")]);
        let results = Results::read(folder.path()).unwrap();
        let tests = ["a", "c"].map(str::to_owned);
        assert_eq!(results.missing(&tests, 1, false), ["c"]);
        assert_eq!(results.missing(&tests, 2, false), ["a", "c", "c"]);
        assert_eq!(results.missing(&tests, 1, true), ["a", "c"]);
    }

    #[test]
    fn results_count_when_the_process_has_ended() {
        let folder = Scratch::new("run");
        let run = Run::new(folder.path(), 3).unwrap();
        fs::write(run.folder().join(FILE), file(&[("a", "passed", "1")])).unwrap();
        assert!(Results::read(folder.path()).unwrap().is_empty());
        assert_eq!(run.finish().unwrap().len(), 1);
        assert_eq!(Results::read(folder.path()).unwrap().count("a"), 1);
    }
}
