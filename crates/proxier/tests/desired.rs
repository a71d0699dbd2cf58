//! Scenarios: manifests in, tables out. Each file of `tests/scenarios/desired` is one; `tests/scenarios/README.md` describes the format
//! and lists which behaviour is in which file.
//!
//! `KERNLINK_BLESS=1 cargo test --test desired` writes the actual results into the files; review the difference.
#![cfg(all(feature = "kubernetes", feature = "fake"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/scenario.rs"]
mod scenario;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_proxier::ipvs_mode::{Kernel, Listings, Operation, Proxier};
use kernlink_services::{Family, SourceId};

use crate::scenario::Scenario;
use crate::support::{Desired, events, lines};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// The actual result, section by section.
type Outcome = Vec<(&'static str, String)>;

/// The listings of a node without Services.
fn bare() -> Listings {
    support::listings(&Desired::new(&Scenario::parse("", "").config()))
}

/// The actual result of each stage.
fn outcomes(scenario: &Scenario) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    scenario.run(&scenario.config(), |_, desired, errors| {
        let events = events(desired);
        let printed: String = events.iter().map(|event| format!("{event}\n")).collect();
        let listings = desired.state.listings(scenario.kernel(), scenario.processors());
        let mut outcome = scenario::sections(&listings, &bare());
        outcome.push(("health", health_checks(desired)));
        outcome.push(("events", errors + &printed));
        outcomes.push(outcome);
    });
    if let Some(first) = outcomes.first_mut() {
        first.push(("plan", plan(scenario)));
    }
    outcomes
}

/// The steps for virtual servers and addresses after the changes of the first stage, as commands, on a kernel with the virtual servers
/// and links of the file. Empty if the file has no section `plan`.
fn plan(scenario: &Scenario) -> String {
    let Some(stage) = scenario
        .stages
        .first()
        .filter(|stage| stage.expected("plan").is_some())
    else {
        return String::new();
    };
    let mut kernel = Kernel::fake();
    let mut links: BTreeMap<String, Vec<LinkAddress>> = BTreeMap::new();
    for (link, address) in scenario.links(0).unwrap_or_default() {
        links
            .entry(link)
            .or_default()
            .push(LinkAddress::host(address).unwrap());
    }
    let mut fake = kernlink_dummylink::Fake::new();
    for (link, addresses) in &links {
        let kind = (link == "kube-ipvs0").then_some("dummy");
        fake = fake.with_link(LinkName::new(link).unwrap(), kind, addresses);
    }
    kernel.links = Box::new(fake);
    for operation in kernlink_ipvs::notation::parse(&stage.present).unwrap() {
        kernel.execute(&Operation::Ipvs(operation)).unwrap();
    }
    let mut proxier = Proxier::new(&scenario.config(), kernel).unwrap();
    for change in scenario.changes(0).0 {
        proxier.change(SourceId(0), change);
    }
    let plan = proxier.plan(std::time::Instant::now()).unwrap();
    let of_them = |line: &String| line.starts_with("ipvsadm ") || line.starts_with("ip address ");
    plan.steps()
        .map(|(_, step)| step.operation.to_string())
        .filter(of_them)
        .map(|line| format!("{line}\n"))
        .collect()
}

/// The health checks, one per line: family, port, Service, number of local ready addresses.
fn health_checks(desired: &Desired) -> String {
    let mut text = String::new();
    for family in Family::ALL {
        for check in desired.services.health_checks(family) {
            text += &format!(
                "{family} {} {} {}\n",
                check.port, check.service, check.local_endpoints
            );
        }
    }
    text
}

/// The sections that are expected to be empty if a file does not have them.
const USUAL: [&str; 6] = ["ipvs", "entries", "addresses", "rules", "health", "events"];

/// The file with the actual results in place of the expected ones.
fn blessed(scenario: &Scenario, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for (stage, outcome) in scenario.stages.iter().zip(outcomes) {
        let is_expected = |line: &str| {
            stage
                .expected
                .iter()
                .any(|(name, _)| line == format!("== {name}"))
        };
        let given = stage.given.lines().filter(|line| !is_expected(line));
        text.extend(given.map(|line| format!("{line}\n")));
        for (section, content) in outcome {
            if stage.expected(section).is_some() || (USUAL.contains(section) && !content.is_empty()) {
                text += &format!("== {section}\n{content}");
            }
        }
    }
    text
}

#[test]
fn scenarios() {
    let scenarios = Scenario::all(&folder().join("desired"));
    let mut wrong = String::new();
    for scenario in &scenarios {
        let outcomes = outcomes(scenario);
        if std::env::var_os("KERNLINK_BLESS").is_some() {
            let path = folder().join(format!("desired/{}.txt", scenario.name));
            fs::write(path, blessed(scenario, &outcomes)).unwrap();
            continue;
        }
        for (stage, outcome) in outcomes.iter().enumerate() {
            for (section, content) in outcome {
                let expected = match scenario.stages[stage].expected(section) {
                    None if USUAL.contains(section) => "",
                    None => continue,
                    Some(expected) => expected,
                };
                // The order of events has no meaning.
                let is_same = if *section == "events" {
                    let sorted = |text: &str| {
                        let mut lines = lines(text);
                        lines.sort();
                        lines
                    };
                    sorted(expected) == sorted(content)
                } else {
                    expected == content
                };
                if !is_same {
                    let difference = support::difference(section, &lines(expected), &lines(content));
                    wrong += &format!("{}, stage {stage}: {}\n{difference}", scenario.name, scenario.why);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

#[test]
fn every_scenario_has_a_reason_and_known_sections_only() {
    let known: Vec<&str> = {
        let nothing = Scenario::parse("", "== manifests\n");
        let outcome = outcomes(&nothing).remove(0);
        outcome.into_iter().map(|(section, _)| section).collect()
    };
    for scenario in Scenario::all(&folder().join("desired")) {
        assert!(
            scenario.why.ends_with('.'),
            "{}: no line `why:` that ends with a full stop",
            scenario.name
        );
        for stage in &scenario.stages {
            for (section, _) in &stage.expected {
                assert!(
                    known.contains(&section.as_str()),
                    "{}: {section} is not a section",
                    scenario.name
                );
            }
        }
    }
}

/// The tables of the README name every file, and no other.
#[test]
fn the_readme_names_every_scenario() {
    let readme = fs::read_to_string(folder().join("README.md")).unwrap();
    let mut named: BTreeSet<&str> = BTreeSet::new();
    let rows = readme
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.rsplit_once(" | "));
    for (behaviour, files) in rows.filter(|row| *row != ("behaviour", "files |")) {
        assert!(files.contains('`'), "{behaviour}: names no file");
        named.extend(files.split('`').skip(1).step_by(2));
    }
    let scenarios = Scenario::all(&folder().join("desired"));
    let files: BTreeSet<&str> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    let missing: Vec<_> = files.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&files).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "files not in the README: {missing:?}; files in the README that do not exist: {unknown:?}"
    );
}
