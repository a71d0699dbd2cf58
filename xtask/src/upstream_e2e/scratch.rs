//! Folders with results, for tests.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

/// A folder that is removed at the end.
#[derive(Debug)]
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xtask-upstream-e2e-{name}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes the JUnit file of a process.
    pub(super) fn write_text(&self, run: &str, text: &str) {
        let folder = self.0.join(run);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("junit_01.xml"), text).unwrap();
    }

    /// Tests with their status and seconds.
    pub(super) fn write_timed(&self, run: &str, cases: &[(&str, &str, &str)]) {
        self.write_text(run, &file(cases));
    }

    /// Tests with their status, of one second each.
    pub(super) fn write(&self, run: &str, cases: &[(&str, &str)]) {
        let cases: Vec<_> = cases.iter().map(|&(test, status)| (test, status, "1")).collect();
        self.write_timed(run, &cases);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A JUnit file with tests, their status and seconds.
pub(super) fn file(cases: &[(&str, &str, &str)]) -> String {
    let case = |&(test, status, time): &(&str, &str, &str)| {
        format!(r#"<testcase name="[It] {test}" status="{status}" time="{time}"></testcase>"#)
    };
    let cases: String = cases.iter().map(case).collect();
    format!("<testsuites><testsuite>{cases}</testsuite></testsuites>")
}
