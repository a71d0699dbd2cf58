//! Results of tests in the JUnit files that `e2e.test` writes.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Passed,
    /// With the message of the test.
    Failed(String),
    /// The test skipped itself, for this reason.
    Skipped(String),
}

/// One run of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// Its whole name, which begins with `[sig-network]`.
    pub(super) test: String,
    pub(super) outcome: Outcome,
    pub(super) time: Duration,
}

/// Before the names of tests. Other elements are about what runs before and after them.
const TEST: &str = "[It] ";

/// The tests of a file that ran. Tests that were not selected, or that a signal interrupted, have no result.
///
/// # Errors
///
/// If the file is not complete, or has a value that is not known.
pub(super) fn read(text: &str) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut open: Vec<String> = Vec::new();
    let mut case: Option<Unfinished> = None;
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        if let (Some(case), Some(name)) = (&mut case, open.last()) {
            case.add_text(name, &unescaped(&rest[..start])?);
        }
        let (tag, after) = Tag::read(&rest[start..])?;
        rest = after;
        let (name, is_end) = match tag {
            Tag::Other => continue,
            Tag::Start {
                name,
                attributes,
                is_empty,
            } => {
                if name == "testcase" {
                    ensure!(case.is_none(), "<testcase> within <testcase>");
                    case = Some(Unfinished::new(&attributes)?);
                } else if let Some(case) = &mut case
                    && let Some(message) = attributes.get("message")
                {
                    case.add_text(&name, message);
                }
                open.push(name.clone());
                (name, is_empty)
            }
            Tag::End(name) => (name, true),
        };
        if is_end {
            ensure!(
                open.pop().as_deref() == Some(name.as_str()),
                "</{name}> without a start"
            );
            if name == "testcase" {
                cases.extend(case.take().context("</testcase> without a start")?.finish()?);
            }
        }
    }
    if let Some(name) = open.last() {
        bail!("it ends within <{name}>");
    }
    ensure!(text.contains("<testsuite"), "it has no element <testsuite>");
    Ok(cases)
}

/// A test whose element has not ended.
#[derive(Debug)]
struct Unfinished {
    name: String,
    status: String,
    time: Duration,
    failure: String,
    skip: String,
}

impl Unfinished {
    fn new(attributes: &BTreeMap<String, String>) -> Result<Self> {
        let get = |name: &str| {
            let value = attributes.get(name).cloned();
            value.with_context(|| format!("<testcase> without the attribute {name}"))
        };
        let time = get("time")?;
        let seconds: f64 = time
            .parse()
            .with_context(|| format!("time=\"{time}\"; expected seconds"))?;
        Ok(Self {
            name: get("name")?,
            status: get("status")?,
            time: Duration::try_from_secs_f64(seconds)
                .with_context(|| format!("time=\"{time}\"; expected seconds"))?,
            failure: String::new(),
            skip: String::new(),
        })
    }

    fn add_text(&mut self, element: &str, text: &str) {
        match element {
            "failure" | "error" => self.failure.push_str(text),
            "skipped" => self.skip.push_str(text),
            _ => {}
        }
    }

    fn finish(self) -> Result<Option<Case>> {
        let Some(test) = self.name.strip_prefix(TEST) else {
            return Ok(None);
        };
        let outcome = match self.status.as_str() {
            "passed" => Outcome::Passed,
            "failed" | "timedout" | "panicked" => Outcome::Failed(first_line(&self.failure)),
            // `skipped - REASON` if the test ran, `skipped` if it was not selected.
            "skipped" => match self.skip.trim().strip_prefix("skipped - ") {
                Some(reason) => Outcome::Skipped(first_line(reason)),
                None => return Ok(None),
            },
            "interrupted" | "aborted" | "pending" => return Ok(None),
            other => bail!("status=\"{other}\" of the test {test}"),
        };
        Ok(Some(Case {
            test: test.to_owned(),
            outcome,
            time: self.time,
        }))
    }
}

/// The first line with more than white space.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    line.unwrap_or_default().to_owned()
}

/// What begins with `<`.
#[derive(Debug)]
enum Tag {
    Start {
        name: String,
        attributes: BTreeMap<String, String>,
        is_empty: bool,
    },
    End(String),
    /// A declaration or comment.
    Other,
}

impl Tag {
    /// Reads a tag at the start of the text, and returns it with the text after it.
    fn read(text: &str) -> Result<(Self, &str)> {
        for (start, end) in [("<?", "?>"), ("<!--", "-->")] {
            if text.starts_with(start) {
                let (_, rest) = text
                    .split_once(end)
                    .with_context(|| format!("{start} without {end}"))?;
                return Ok((Self::Other, rest));
            }
        }
        ensure!(!text.starts_with("<!"), "an element <! other than a comment");
        // encoding/xml writes `>` in values as an entity.
        let (inner, rest) = text.split_once('>').context("it ends within a tag")?;
        let inner = &inner[1..];
        if let Some(name) = inner.strip_prefix('/') {
            return Ok((Self::End(name.trim().to_owned()), rest));
        }
        let (inner, is_empty) = inner
            .strip_suffix('/')
            .map_or((inner, false), |inner| (inner, true));
        let (name, mut values) = inner.split_once(char::is_whitespace).unwrap_or((inner, ""));
        let mut attributes = BTreeMap::new();
        while !values.trim().is_empty() {
            let (name, after) = values
                .trim_start()
                .split_once("=\"")
                .with_context(|| format!("<{inner}>: expected NAME=\"VALUE\""))?;
            let (value, after) = after
                .split_once('"')
                .with_context(|| format!("<{inner}>: a value does not end"))?;
            attributes.insert(name.to_owned(), unescaped(value)?);
            values = after;
        }
        let name = name.to_owned();
        Ok((
            Self::Start {
                name,
                attributes,
                is_empty,
            },
            rest,
        ))
    }
}

/// The text without escapes.
fn unescaped(text: &str) -> Result<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        plain.push_str(before);
        let (entity, after) = after.split_once(';').context("`&` without `;`")?;
        plain.push(character(entity).with_context(|| format!("unknown entity &{entity};"))?);
        rest = after;
    }
    plain.push_str(rest);
    Ok(plain)
}

fn character(entity: &str) -> Option<char> {
    let number = match entity {
        "amp" => return Some('&'),
        "lt" => return Some('<'),
        "gt" => return Some('>'),
        "quot" => return Some('"'),
        "apos" => return Some('\''),
        _ => entity.strip_prefix('#')?,
    };
    let code = match number.strip_prefix('x') {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    char::from_u32(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the form that ginkgo writes.
    const FILE: &str = r##"<?xml version="1.0" encoding="UTF-8"?>
  <testsuites tests="6" disabled="3" errors="0" failures="1" time="21.5">
      <testsuite name="Kubernetes e2e suite" package="/e" tests="6" time="21.5">
          <properties>
              <property name="SuiteSucceeded" value="false"></property>
          </properties>
          <testcase name="[SynchronizedBeforeSuite]" classname="Kubernetes e2e suite" status="passed" time="0.1"></testcase>
          <testcase name="[It] [sig-network] Services should &#34;a&#34; &amp; b" classname="c" status="passed" time="12.5"></testcase>
          <testcase name="[It] [sig-network] Services c" classname="c" status="failed" time="3">
              <failure type="failed">&#xA;[FAILED] no answer &lt;nil&gt;&#xA;In [It] at: x.go:1</failure>
              <system-err>&gt; Enter [BeforeEach]</system-err>
          </testcase>
          <testcase name="[It] [sig-network] Services d" classname="c" status="skipped" time="0">
              <skipped message="skipped - needs 6 nodes"></skipped>
          </testcase>
          <testcase name="[It] [sig-node] Pods e" classname="c" status="skipped" time="0">
              <skipped message="skipped"></skipped>
          </testcase>
          <testcase name="[It] [sig-network] f" classname="c" status="interrupted" time="7"><error type="interrupted"/></testcase>
      </testsuite>
  </testsuites>"##;

    #[test]
    fn tests_that_ran_have_a_result() {
        let case = |test: &str, outcome, seconds| Case {
            test: format!("[sig-network] {test}"),
            outcome,
            time: Duration::from_secs_f64(seconds),
        };
        assert_eq!(
            read(FILE).unwrap(),
            [
                case("Services should \"a\" & b", Outcome::Passed, 12.5),
                case(
                    "Services c",
                    Outcome::Failed("[FAILED] no answer <nil>".to_owned()),
                    3.0
                ),
                case("Services d", Outcome::Skipped("needs 6 nodes".to_owned()), 0.0),
            ]
        );
    }

    #[test]
    fn a_file_that_is_cut_is_an_error() {
        let whole = FILE.trim_end();
        for end in (0..whole.len()).filter(|&end| whole.is_char_boundary(end)) {
            assert!(read(&whole[..end]).is_err(), "{}", &whole[..end]);
        }
    }

    #[test]
    fn an_error_names_what_is_not_known() {
        for (text, expected) in [
            ("status=\"failed\"", "status=\"passed early\""),
            ("time=\"12.5\"", "time=\"soon\""),
            ("&amp;", "&nbsp;"),
        ] {
            let changed = FILE.replace(text, expected);
            let error = format!("{:#}", read(&changed).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
