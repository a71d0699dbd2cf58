//! Whether the alerts and the dashboard in `dist` use metrics and labels that `docs/metrics.md` has, and whether each alert has its tests
//! and its paragraph in `docs/troubleshooting.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{metrics::PAGE as METRICS, promql::Expression, workspace::Workspace};

const PARAGRAPHS: &str = "docs/troubleshooting.md";
const RULES: &str = "dist/prometheus/kernlink.rules.yaml";
const TESTS: &str = "dist/prometheus/kernlink.rules.test.yaml";
const DASHBOARD: &str = "dist/grafana/kernlink.json";
/// The metric that Prometheus itself writes for each target.
const UP: &str = "up";
/// The labels that Prometheus adds to each metric.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];
/// What each paragraph about an alert has.
const PARTS: [&str; 4] = ["Symptom:", "Command:", "Cause:", "Remedy:"];
/// How the series of a histogram end.
const SERIES: [&str; 3] = ["_bucket", "_sum", "_count"];

/// Fails with everything that is missing or unknown.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    let metrics = documented(&read(METRICS)?);
    ensure!(!metrics.is_empty(), "{METRICS}: no table with metrics and labels");
    let rules = rules(&read(RULES)?)?;
    ensure!(!rules.is_empty(), "{RULES}: no alert");
    let mut problems = Vec::new();
    for rule in &rules {
        let name = &rule.alert;
        let of_expression = problems_of(&rule.expression, &metrics).into_iter();
        problems.extend(of_expression.map(|problem| format!("{RULES}: {name}: {problem}")));
    }
    let tests = read(TESTS)?;
    problems.extend(rules.iter().filter_map(|rule| untested(&rule.alert, &tests)));
    problems.extend(problems_of_paragraphs(&rules, &read(PARAGRAPHS)?));
    problems.extend(problems_of_dashboard(&read(DASHBOARD)?, &metrics)?);
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

/// A metric of the page.
#[derive(Debug, PartialEq, Eq)]
struct Documented {
    is_histogram: bool,
    labels: BTreeSet<String>,
}

/// The metrics of the tables with the columns metric, type and labels.
fn documented(page: &str) -> BTreeMap<String, Documented> {
    let mut metrics = BTreeMap::new();
    let mut is_table = false;
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if !line.starts_with('|') {
            is_table = false;
        } else if cells.get(1..4) == Some(&["metric", "type", "labels"]) {
            is_table = true;
        } else if let (true, Some([name, kind, labels])) = (is_table, cells.get(1..4)) {
            let labels = labels
                .split(',')
                .map(|label| label.trim().trim_matches('`').to_owned());
            let metric = Documented {
                is_histogram: *kind == "histogram",
                labels: labels.filter(|label| !label.is_empty()).collect(),
            };
            metrics.insert(name.trim_matches('`').to_owned(), metric);
        }
    }
    metrics.remove("---");
    metrics
}

/// The metrics and labels of an expression that do not exist.
fn problems_of(expression: &str, metrics: &BTreeMap<String, Documented>) -> Vec<String> {
    let expression = Expression::read(expression);
    let mut problems = Vec::new();
    let mut known: BTreeSet<&str> = TARGET_LABELS.into();
    for selector in &expression.selectors {
        let name = selector.metric.as_str();
        let mut labels: BTreeSet<&str> = TARGET_LABELS.into();
        if name != UP {
            let histogram = SERIES.iter().find_map(|end| name.strip_suffix(end));
            let histogram = histogram.and_then(|name| metrics.get(name).filter(|metric| metric.is_histogram));
            let metric = histogram.or_else(|| metrics.get(name).filter(|metric| !metric.is_histogram));
            let Some(metric) = metric else {
                problems.push(format!("{METRICS} has no series `{name}`"));
                continue;
            };
            labels.extend(metric.labels.iter().map(String::as_str));
            if histogram.is_some() && name.ends_with("_bucket") {
                labels.insert("le");
            }
        }
        let unknown = selector
            .labels
            .iter()
            .filter(|label| !labels.contains(label.as_str()));
        problems.extend(unknown.map(|label| format!("`{name}` has no label `{label}`")));
        known.extend(labels);
    }
    if expression.selectors.is_empty() {
        problems.push("the expression has no metric".to_owned());
    }
    let unknown = expression
        .grouping
        .iter()
        .filter(|label| !known.contains(label.as_str()));
    problems.extend(unknown.map(|label| format!("no metric of the expression has the label `{label}`")));
    problems
}

/// An alert of the rules.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    alert: String,
    expression: String,
    runbook: String,
}

/// The alerts of the rules, in the form in which the file is written: each key on its own line, `alert` first.
fn rules(text: &str) -> Result<Vec<Rule>> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indent = |line: &str| line.len() - line.trim_start().len();
        if let Some(alert) = line.trim().strip_prefix("- alert: ") {
            rules.push(Rule {
                alert: alert.to_owned(),
                expression: String::new(),
                runbook: String::new(),
            });
        } else if let Some(expression) = line.trim().strip_prefix("expr: ") {
            let mut expression = expression.trim_start_matches('|').to_owned();
            while let Some(more) = lines.next_if(|next| indent(next) > indent(line)) {
                expression.push('\n');
                expression.push_str(more);
            }
            let rule = rules.last_mut().context("an expression before the first alert")?;
            ensure!(
                rule.expression.is_empty(),
                "{RULES}: {} has two expressions",
                rule.alert
            );
            rule.expression = expression;
        } else if let Some(runbook) = line.trim().strip_prefix("runbook_url: ") {
            let rule = rules.last_mut().context("a paragraph before the first alert")?;
            runbook.clone_into(&mut rule.runbook);
        }
    }
    Ok(rules)
}

/// What is wrong if an alert has no test in which it fires, and one in which it does not.
fn untested(alert: &str, tests: &str) -> Option<String> {
    let lines: Vec<&str> = tests.lines().map(str::trim).collect();
    let does_not_fire = format!("alertname: {alert}}}");
    let silent = lines.iter().any(|line| line.ends_with(&does_not_fire));
    let name = format!("alertname: {alert}");
    let fires = lines
        .windows(2)
        .any(|pair| pair == [name.as_str(), "exp_alerts:"]);
    match (fires, silent) {
        (true, true) => None,
        (false, _) => Some(format!("{TESTS}: no test in which {alert} fires")),
        (true, false) => Some(format!("{TESTS}: no test in which {alert} does not fire")),
    }
}

/// The alerts without a complete paragraph, the paragraphs without an alert, and the alerts with another link.
fn problems_of_paragraphs(rules: &[Rule], page: &str) -> Vec<String> {
    let section = page.split("\n## Alerts\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let paragraphs: BTreeMap<&str, &str> = section
        .split("\n### ")
        .skip(1)
        .filter_map(|paragraph| paragraph.split_once('\n'))
        .collect();
    let mut problems = Vec::new();
    for rule in rules {
        let alert = rule.alert.as_str();
        let Some(text) = paragraphs.get(alert) else {
            problems.push(format!(
                "{PARAGRAPHS}: no paragraph `### {alert}` below `## Alerts`"
            ));
            continue;
        };
        let missing = PARTS.iter().filter(|part| !text.contains(*part));
        problems.extend(missing.map(|part| format!("{PARAGRAPHS}: {alert} has no `{part}`")));
        let link = format!("/{PARAGRAPHS}#{}", alert.to_lowercase());
        if !rule.runbook.ends_with(&link) {
            problems.push(format!(
                "{RULES}: {alert}: `runbook_url` does not end with {link}"
            ));
        }
    }
    let unknown = paragraphs
        .keys()
        .filter(|name| !rules.iter().any(|rule| rule.alert == **name));
    problems.extend(unknown.map(|name| format!("{PARAGRAPHS}: {RULES} has no alert {name}")));
    problems
}

/// Panels without a description or an expression, and expressions with unknown metrics.
fn problems_of_dashboard(text: &str, metrics: &BTreeMap<String, Documented>) -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(text).with_context(|| format!("reading {DASHBOARD}"))?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut problems = Vec::new();
    let panels = list(&dashboard["panels"])
        .into_iter()
        .filter(|panel| panel["type"] != "row");
    let mut titles = BTreeSet::new();
    for panel in panels {
        let title = text(&panel["title"]);
        let targets = list(&panel["targets"]);
        if text(&panel["description"]).is_empty() || targets.is_empty() {
            problems.push(format!(
                "{DASHBOARD}: {title} has no description or no expression"
            ));
        }
        for target in targets {
            let found = problems_of(&text(&target["expr"]), metrics).into_iter();
            problems.extend(found.map(|problem| format!("{DASHBOARD}: {title}: {problem}")));
        }
        if !titles.insert(title.clone()) {
            problems.push(format!("{DASHBOARD}: two panels are called {title}"));
        }
    }
    ensure!(!titles.is_empty(), "{DASHBOARD}: no panel");
    for variable in list(&dashboard["templating"]["list"]) {
        // `label_values(METRIC, LABEL)`
        let query = text(&variable["query"]);
        let inner = query
            .strip_prefix("label_values(")
            .and_then(|query| query.strip_suffix(')'));
        if let Some((metric, label)) = inner.and_then(|inner| inner.split_once(", ")) {
            let selector = format!("max by ({label}) ({metric})");
            let found = problems_of(&selector, metrics).into_iter();
            problems.extend(found.map(|problem| format!("{DASHBOARD}: {query}: {problem}")));
        }
    }
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const PAGE: &str = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n\
        | `a_total` | counter | `code`, `host` | x |\n| `b_seconds` | histogram | | x |\n\n\
        | metric | type | meaning |\n| --- | --- | --- |\n| `c` | gauge | x |\n";

    const RULE: &str = "  rules:\n    - alert: Bad\n      expr: |\n        a_total > 1\n          and b\n      for: 1m\n\
        \x20     annotations:\n        runbook_url: https://x/docs/troubleshooting.md#bad\n";

    #[test]
    fn series_are_those_of_the_page_with_the_labels_that_they_have() {
        let metrics = documented(PAGE);
        let of = |expression: &str| problems_of(expression, &metrics);
        assert_eq!(of("a_total{code=\"1\", job=\"x\"} + up"), [""; 0]);
        assert_eq!(of("sum by (le) (b_seconds_bucket)"), [""; 0]);
        assert_eq!(of("b_seconds"), ["docs/metrics.md has no series `b_seconds`"]);
        assert_eq!(of("a_total_sum"), ["docs/metrics.md has no series `a_total_sum`"]);
        // A table without labels has metrics that the agent does not have.
        assert_eq!(of("c"), ["docs/metrics.md has no series `c`"]);
        assert_eq!(of("a_total{kind=\"x\"}"), ["`a_total` has no label `kind`"]);
        assert_eq!(
            of("max by (le) (a_total)"),
            ["no metric of the expression has the label `le`"]
        );
        assert_eq!(of("vector(1)"), ["the expression has no metric"]);
    }

    #[test]
    fn rules_are_read_with_expressions_of_several_lines() {
        let rules = rules(RULE).unwrap();
        assert_eq!(rules.len(), 1);
        assert_eq!(rules[0].alert, "Bad");
        assert_eq!(rules[0].expression, "\n        a_total > 1\n          and b");
        assert!(rules[0].runbook.ends_with("#bad"));
    }

    #[test]
    fn an_alert_needs_a_test_that_fires_and_one_that_does_not() {
        let fires = "      - eval_time: 1m\n        alertname: Bad\n        exp_alerts:\n          - exp_labels: {}\n";
        let silent = "      - {eval_time: 1m, alertname: Bad}\n";
        assert_eq!(untested("Bad", &format!("{silent}{fires}")), None);
        assert!(untested("Bad", fires).unwrap().contains("does not fire"));
        assert!(untested("Bad", silent).unwrap().contains("in which Bad fires"));
        assert!(untested("Ba", &format!("{silent}{fires}")).is_some());
    }

    #[test]
    fn each_alert_has_a_paragraph_and_each_paragraph_an_alert() {
        let rules = rules(RULE).unwrap();
        let page = |text: &str| format!("# T\n\n## Alerts\n\nText.\n{text}\n## Other\n\n### None\n");
        let good = "\n### Bad\n\nSymptom: a. Command: b.\nCause: c. Remedy: d.\n";
        assert_eq!(problems_of_paragraphs(&rules, &page(good)), [""; 0]);
        let all = problems_of_paragraphs(&rules, &page("\n### Worse\n\nText.\n"));
        assert_eq!(all.len(), 2, "{all:?}");
        let short = problems_of_paragraphs(&rules, &page("\n### Bad\n\nSymptom: a. Command: b. Cause: c.\n"));
        assert_eq!(short, ["docs/troubleshooting.md: Bad has no `Remedy:`"]);
    }

    #[test]
    fn panels_have_a_description_and_known_metrics() {
        let metrics = documented(PAGE);
        let of = |panel: &str| {
            let text = format!("{{\"panels\": [{panel}], \"templating\": {{\"list\": []}}}}");
            problems_of_dashboard(&text, &metrics).unwrap()
        };
        let good = r#"{"title": "A", "description": "x", "targets": [{"expr": "a_total"}]}"#;
        assert_eq!(of(good), [""; 0]);
        assert_eq!(of(&good.replace("a_total", "d")).len(), 1);
        assert_eq!(of(&good.replace("\"x\"", "\"\"")).len(), 1);
        assert_eq!(of(&format!("{good}, {good}")).len(), 1);
    }

    #[test]
    fn the_files_agree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join(RULES)).unwrap();
        assert_eq!(rules(&text).unwrap().len(), text.matches("alert:").count());
    }
}
