//! Runs tests with several processes of `e2e.test`.

use std::{
    collections::VecDeque,
    fs::File,
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use super::{
    Job, Test,
    addresses::DOMAIN,
    control_plane::admin,
    network::{self, OUTSIDE_NAME},
};
use crate::upstream_e2e::{
    junit::{Case, Outcome},
    results::{self, Run},
    table::word,
};

/// Tests that must not run at the same time as others.
const ALONE: [&str; 2] = ["[Serial]", "[Disruptive]"];
/// One process gets tests for about this time, at most [`TESTS`] of them: its start costs seconds, and what is interrupted is run again.
const SECONDS: u64 = 60;
const TESTS: usize = 6;
/// The time limit of a process, as `e2e.test` understands it. A test that runs then has failed.
const LIMIT: &str = "2h";
/// How often the cluster is checked.
const INTERVAL: Duration = Duration::from_secs(2);

/// Runs the tests of a job, and calls `check` while they run.
pub(super) fn run(job: &Job, check: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let numbers = Mutex::new(results::next_number(&job.results)?);
    let (alone, beside) = queues(&job.tests);
    let total = job.tests.len();
    eprintln!("xtask: running {total} tests");
    let progress = Progress {
        done: Mutex::new(0),
        total,
    };
    for (queue, processes) in [(beside, job.processes.get()), (alone, 1)] {
        let queue = Mutex::new(queue);
        let (send, receive) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..processes {
                let (queue, numbers, progress, send) = (&queue, &numbers, &progress, send.clone());
                scope.spawn(move || {
                    let result = work(job, queue, numbers, progress);
                    // The other end waits for the end of all threads.
                    let _ = send.send(result);
                });
            }
            drop(send);
            loop {
                let result = match receive.recv_timeout(INTERVAL) {
                    Ok(result) => result,
                    Err(mpsc::RecvTimeoutError::Disconnected) => break,
                    Err(mpsc::RecvTimeoutError::Timeout) => check(),
                };
                if let Err(error) = result {
                    // The other threads would wait for tests that can only fail. With this process all others end.
                    eprintln!("xtask: {error:#}");
                    std::process::exit(1);
                }
            }
        });
    }
    Ok(())
}

/// The tests that run alone, and the others, those that take long first.
fn queues(tests: &[Test]) -> (VecDeque<Test>, VecDeque<Test>) {
    let mut tests = tests.to_vec();
    tests.sort_by_key(|test| std::cmp::Reverse(test.seconds));
    tests
        .into_iter()
        .partition(|test| ALONE.iter().any(|label| test.name.contains(label)))
}

/// The tests for one process. Not twice the same one: a process runs each test once.
fn take(queue: &mut VecDeque<Test>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut seconds = 0;
    while let Some(test) = queue.front() {
        let is_first = names.is_empty();
        if !is_first
            && (names.len() == TESTS || seconds + test.seconds > SECONDS || names.contains(&test.name))
        {
            break;
        }
        seconds += test.seconds;
        names.extend(queue.pop_front().map(|test| test.name));
    }
    names
}

/// A test that takes a process for itself.
fn single(name: String) -> Test {
    Test {
        name,
        seconds: SECONDS + 1,
    }
}

/// The numbers of tests, for the lines that are printed.
#[derive(Debug)]
struct Progress {
    done: Mutex<usize>,
    total: usize,
}

impl Progress {
    fn print(&self, cases: &[Case], tests: &[String]) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        for test in tests {
            *done += 1;
            let case = cases.iter().find(|case| case.test == *test);
            let result = case.map_or("no result", |case| word(&case.outcome));
            let seconds = case.map_or(0.0, |case| case.time.as_secs_f64());
            println!("{:4}/{} {result:9} {seconds:4.0} s {test}", *done, self.total);
            if let Some(Outcome::Failed(message) | Outcome::Skipped(message)) = case.map(|case| &case.outcome)
            {
                println!("          {message}");
            }
        }
    }
}

/// Runs processes until no test is left.
fn work(job: &Job, queue: &Mutex<VecDeque<Test>>, numbers: &Mutex<usize>, progress: &Progress) -> Result<()> {
    loop {
        let tests = take(&mut queue.lock().unwrap_or_else(PoisonError::into_inner));
        if tests.is_empty() {
            return Ok(());
        }
        let number = {
            let mut next = numbers.lock().unwrap_or_else(PoisonError::into_inner);
            *next += 1;
            *next - 1
        };
        let run = Run::new(&job.results, number)?;
        start(job, &tests, run.folder())?;
        let cases = run.finish()?;
        let (ended, crashed): (Vec<_>, Vec<_>) = tests
            .into_iter()
            .partition(|test| cases.iter().any(|case| case.test == *test));
        progress.print(&cases, &ended);
        if ended.is_empty() && crashed.len() == 1 {
            progress.print(&cases, &crashed);
            continue;
        }
        // The process crashed: the next one of each of these tests has no other test.
        queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(crashed.into_iter().map(single));
    }
}

/// Runs one process to its end. Its exit status is not used: a test without a result has none.
fn start(job: &Job, tests: &[String], folder: &Path) -> Result<()> {
    let log = File::create(folder.join("log")).context("creating the log of a test")?;
    let errors = log.try_clone().context("creating the log of a test")?;
    let layout = job.layout();
    Command::new("nsenter")
        .arg(format!("--net={}", network::file(OUTSIDE_NAME)))
        .arg(layout.program("e2e.test"))
        .arg(format!("--ginkgo.focus={}", focus(tests)))
        .arg(format!("--ginkgo.timeout={LIMIT}"))
        .args(["--ginkgo.no-color", "--ginkgo.silence-skips", "--provider=local"])
        .arg(format!("--kubeconfig={}", admin(&layout.cluster()).display()))
        .arg(format!("--kubectl-path={}", layout.program("kubectl").display()))
        .arg(format!("--num-nodes={}", job.nodes))
        .arg(format!("--dns-domain={DOMAIN}"))
        .arg(format!("--report-dir={}", folder.display()))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .status()
        .context("starting e2e.test")?;
    Ok(())
}

/// A regular expression that matches these tests only: what it is compared with ends with the name.
fn focus(tests: &[String]) -> String {
    let names: Vec<_> = tests.iter().map(|test| regex::escape(test)).collect();
    format!("({})$", names.join("|"))
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    fn tests(list: &[(&str, u64)]) -> Vec<Test> {
        list.iter()
            .map(|&(name, seconds)| Test {
                name: name.to_owned(),
                seconds,
            })
            .collect()
    }

    #[test]
    fn tests_that_take_long_come_first_and_alone() {
        let list = tests(&[("a", 20), ("b [Serial]", 5), ("c", 300), ("d", 30), ("e", 20)]);
        let (mut alone, mut beside) = queues(&list);
        assert_eq!(take(&mut alone), ["b [Serial]"]);
        assert_eq!(take(&mut beside), ["c"]);
        assert_eq!(take(&mut beside), ["d", "a"]);
        assert_eq!(take(&mut beside), ["e"]);
        assert!(take(&mut beside).is_empty());
    }

    #[test]
    fn a_process_gets_few_tests_and_each_once() {
        let names: Vec<String> = (0..10).map(|number| format!("t{number}")).collect();
        let list: Vec<_> = names.iter().map(|name| (name.as_str(), 0)).collect();
        let (_, mut queue) = queues(&tests(&list));
        assert_eq!(take(&mut queue).len(), TESTS);
        queue.extend([single("x".to_owned()), single("y".to_owned())]);
        assert_eq!(take(&mut queue).len(), 10 - TESTS);
        assert_eq!(take(&mut queue), ["x"]);
        let (_, mut queue) = queues(&tests(&[("a", 1), ("a", 1)]));
        assert_eq!(take(&mut queue), ["a"]);
        assert_eq!(take(&mut queue), ["a"]);
    }

    #[test]
    fn the_regular_expression_matches_whole_names_at_the_end() {
        let names = ["[sig-network] Services should (a)", "[sig-network] b"].map(str::to_owned);
        let regex = Regex::new(&focus(&names)).unwrap();
        assert!(regex.is_match("Kubernetes e2e suite [sig-network] Services should (a)"));
        assert!(regex.is_match("Kubernetes e2e suite [sig-network] b"));
        assert!(!regex.is_match("Kubernetes e2e suite [sig-network] b [Slow]"));
    }
}
