//! Answers for people.

use std::fmt::{self, Write as _};

use kernlink_services::escape::EscapeWriter;

use crate::query::documents::{Explanation, Failing, LogLevel, RecentEvent, ServiceList, Status};
use crate::query::explain::SERVED;

/// Text on one line of a terminal: control characters are escaped, also line feeds.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EscapeWriter(f).write_str(self.0)
    }
}

/// A page whose lines have no control characters: text of objects is not trusted.
pub(crate) fn printable(page: &str) -> String {
    page.lines().map(|line| format!("{}\n", OneLine(line))).collect()
}

/// Lines with a name and a value, aligned.
pub(crate) fn pairs(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let lines = lines
        .iter()
        .map(|(name, value)| format!("{name:width$}  {value}\n"));
    lines.collect()
}

/// Rows in columns of the same width. Each is on one line.
pub(crate) fn columns(header: &[&str], rows: &[Vec<String>]) -> String {
    let one_line = |cell: &String| OneLine(cell).to_string();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.iter().map(one_line).collect())
        .collect();
    let mut widths: Vec<usize> = header.iter().map(|name| name.len()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut page = String::new();
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&header).chain(&rows) {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        page.push_str(line.trim_end());
        page.push('\n');
    }
    page
}

/// The level of the log.
pub(super) fn log_level(level: &LogLevel) -> String {
    let until = match level.seconds_left {
        Some(left) => format!("for {left} seconds more"),
        None => "until it is changed".to_owned(),
    };
    printable(&pairs(&[
        ("level", format!("{}, {until}", level.filter)),
        ("configured", level.configured.clone()),
    ]))
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.1} s")
}

fn failing(page: &mut String, failing: &[Failing]) {
    for operation in failing {
        let for_service = operation
            .service
            .as_ref()
            .map(|service| format!(" of Service {service}"))
            .unwrap_or_default();
        let reason = operation.reason.as_deref().unwrap_or("the reason is not known");
        page.push_str(&format!(
            "fails: {}{for_service}: {reason} (for {} s, {} attempts, the next one in {} s): {}\n",
            operation.object,
            operation.failing_seconds,
            operation.attempts,
            operation.next_attempt_seconds,
            operation.operation
        ));
    }
}

fn events(page: &mut String, events: &[RecentEvent]) {
    for event in events {
        let time = if event.time.is_empty() { "now" } else { &event.time };
        page.push_str(&format!("event: {time} {}: {}\n", event.subject, event.text));
    }
}

pub(super) fn status(status: &Status) -> String {
    let mut lines = vec![(
        "State",
        match &status.waiting_for {
            Some(awaited) => format!("{}: {awaited}", status.state),
            None => status.state.clone(),
        },
    )];
    if let Some(error) = &status.error {
        lines.push(("Error", error.clone()));
    }
    lines.push(("Mode", status.mode.clone()));
    lines.push(("Node", status.node.clone()));
    lines.push((
        "Agent",
        format!("kernlink-agent {}, process {}", status.agent, status.pid),
    ));
    let names: Vec<&str> = status
        .families
        .iter()
        .map(|family| family.name.as_str())
        .collect();
    lines.push(("Families", names.join(", ")));
    lines.push((
        "Last sync",
        match &status.last_sync {
            None => "none".to_owned(),
            Some(last) => format!(
                "{} ago, in {}: {} done, {} failed, {} skipped",
                seconds(last.age_seconds),
                seconds(last.duration_seconds),
                last.done,
                last.failed,
                last.skipped
            ),
        },
    ));
    lines.push((
        "Changes",
        match status.pending_seconds {
            None => "none waits".to_owned(),
            Some(waiting) => format!("the oldest waits for {}", seconds(waiting)),
        },
    ));
    lines.push((
        "Services",
        format!(
            "{}, of which {} fail; {} frontends in conflict",
            status.services, status.failing_services, status.conflicts
        ),
    ));
    lines.push((
        "Syncs",
        format!(
            "{} done, {} did nothing because of an error",
            status.syncs, status.failed_syncs
        ),
    ));
    for waiting in &status.waiting {
        let family = waiting.family.as_deref().map(|family| format!(" ({family})"));
        lines.push((
            "Waiting",
            format!(
                "{} {}{}",
                waiting.objects,
                waiting.kind,
                family.unwrap_or_default()
            ),
        ));
    }
    if let Some(hand_over) = &status.hand_over {
        lines.push((
            "Hand-over",
            format!(
                "in progress: {}{} endpoints drain, {} operations are tried again",
                hand_over
                    .modes
                    .iter()
                    .map(|mode| format!("objects of {mode} were removed, "))
                    .collect::<String>(),
                hand_over.draining,
                hand_over.waiting
            ),
        ));
    }
    if let Some(server) = &status.api_server {
        let stale: Vec<String> = server
            .stale
            .iter()
            .map(|kind| format!("{} cannot be read for {} s", kind.kind, kind.seconds))
            .collect();
        lines.push((
            "API server",
            if stale.is_empty() {
                server.state.clone()
            } else {
                stale.join(", ")
            },
        ));
    }
    if let Some(is_eligible) = status.node_eligible {
        let text = if is_eligible {
            "eligible for load balancers"
        } else {
            "not eligible for load balancers"
        };
        lines.push(("Node object", text.to_owned()));
    }
    let mut page = pairs(&lines);
    failing(&mut page, &status.failing);
    events(&mut page, &status.events);
    printable(&page)
}

pub(super) fn services(list: &ServiceList) -> String {
    if let Some(why) = &list.not_served {
        return printable(&format!("not served: {why}\n"));
    }
    let rows: Vec<Vec<String>> = list
        .frontends
        .iter()
        .map(|row| {
            let owner = if row.owner == row.service { "-" } else { &row.owner };
            vec![
                row.service.clone(),
                row.frontend.clone(),
                row.kind.clone(),
                row.policy.clone(),
                row.endpoints_used.to_string(),
                row.endpoints_not_used.to_string(),
                if row.in_kernel { "yes" } else { "no" }.to_owned(),
                owner.to_owned(),
            ]
        })
        .collect();
    let header = [
        "SERVICE",
        "FRONTEND",
        "KIND",
        "POLICY",
        "USED",
        "NOT USED",
        "IN KERNEL",
        "TAKEN BY",
    ];
    columns(&header, &rows)
}

pub(super) fn explanation(explanation: &Explanation) -> String {
    let from = explanation.from.as_ref().map(|from| format!(" from {from}"));
    let mut page = format!(
        "{}{}: {}\n",
        explanation.frontend,
        from.unwrap_or_default(),
        explanation.verdict
    );
    for cause in &explanation.causes {
        let what = if explanation.verdict == SERVED {
            "note"
        } else {
            "cause"
        };
        page.push_str(&format!("{what}: {cause}\n"));
    }
    if let Some(owner) = &explanation.owner {
        let affinity = owner
            .affinity_seconds
            .map(|seconds| format!(", session affinity {seconds} s"));
        page.push_str(&format!(
            "owner: {} ({}), policy {}{}, mode {}\n",
            owner.service,
            owner.kinds.join(", "),
            owner.policy,
            affinity.unwrap_or_default(),
            explanation.mode
        ));
    }
    for note in &explanation.notes {
        page.push_str(&format!("note: {note}\n"));
    }
    for (number, step) in explanation.steps.iter().enumerate() {
        page.push_str(&format!("step {}: {step}\n", number + 1));
    }
    failing(&mut page, &explanation.failing);
    if !explanation.endpoints.is_empty() {
        let rows: Vec<Vec<String>> = explanation
            .endpoints
            .iter()
            .map(|endpoint| {
                vec![
                    endpoint.endpoint.clone(),
                    endpoint.node.clone().unwrap_or_else(|| "-".to_owned()),
                    endpoint.zone.clone().unwrap_or_else(|| "-".to_owned()),
                    if endpoint.used { "yes" } else { "no" }.to_owned(),
                    endpoint.text.clone().unwrap_or_default(),
                ]
            })
            .collect();
        page.push('\n');
        page.push_str(&columns(&["ENDPOINT", "NODE", "ZONE", "USED", "WHY NOT"], &rows));
    }
    for slice in &explanation.unused_slices {
        page.push_str(&format!(
            "EndpointSlice {}: {} endpoints not used: {}\n",
            slice.slice, slice.endpoints, slice.text
        ));
    }
    if !explanation.kernel_objects.is_empty() {
        page.push_str("\nin the kernel:\n");
        for object in &explanation.kernel_objects {
            let found = object.found.as_ref().map(|found| {
                format!(
                    "\n            found: {}",
                    found.trim_end().replace('\n', "\n            ")
                )
            });
            page.push_str(&format!(
                "  {:9} {}{}\n",
                object.state,
                object.desired.trim_end().replace('\n', "\n            "),
                found.unwrap_or_default().trim_end()
            ));
        }
    }
    if !explanation.events.is_empty() {
        page.push('\n');
        events(&mut page, &explanation.events);
    }
    printable(&page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::documents::{Endpoint, FrontendRow};

    #[test]
    fn text_of_an_object_sends_no_control_characters_and_forges_no_line() {
        let text = "z\u{1b}]0;x\u{7}\n10.0.0.9:80  forged\u{202e}".to_owned();
        let explained = Explanation {
            frontend: "10.96.0.1:80/TCP".to_owned(),
            verdict: SERVED.to_owned(),
            notes: vec!["\u{1b}[2J".to_owned()],
            endpoints: vec![Endpoint {
                endpoint: "10.244.0.1:80".to_owned(),
                node: Some(text.clone()),
                zone: Some(text),
                ..Endpoint::default()
            }],
            ..Explanation::default()
        };
        let page = explanation(&explained);
        let is_safe = |c: char| c == '\n' || (!c.is_control() && c != '\u{202e}');
        assert!(page.chars().all(is_safe), "{page:?}");
        assert!(page.contains("note: \\u{1b}[2J\n"), "{page}");
        let rows = page.lines().filter(|line| line.contains("10.244.0.1:80"));
        let row: Vec<&str> = rows.collect();
        assert_eq!(row.len(), 1, "{page}");
        assert!(
            row[0].contains(r"z\u{1b}]0;x\u{7}\n10.0.0.9:80  forged\u{202e}"),
            "{page}"
        );
    }

    #[test]
    fn a_failure_has_its_reason_and_since_when_it_fails() {
        let status_of = Status {
            failing: vec![Failing {
                object: "IPv4 chains of Service shop/web".to_owned(),
                operation: "iptables-restore --noflush".to_owned(),
                reason: Some("not permitted".to_owned()),
                attempts: 4,
                failing_seconds: 9,
                next_attempt_seconds: 2,
                ..Failing::default()
            }],
            ..Status::default()
        };
        let line = "fails: IPv4 chains of Service shop/web: not permitted (for 9 s, 4 attempts, the next one in 2 s): iptables-restore --noflush\n";
        assert!(status(&status_of).contains(line), "{}", status(&status_of));
    }

    #[test]
    fn a_list_has_aligned_columns() {
        let row = |service: &str, owner: &str| FrontendRow {
            service: service.to_owned(),
            owner: owner.to_owned(),
            frontend: "10.96.0.1:80/TCP".to_owned(),
            kind: "cluster IP".to_owned(),
            policy: "Cluster".to_owned(),
            in_kernel: true,
            endpoints_used: 2,
            endpoints_not_used: 1,
            endpoints: None,
        };
        let list = ServiceList {
            frontends: vec![row("a/b", "a/b"), row("shop/web:http", "a/b")],
            ..ServiceList::default()
        };
        assert_eq!(
            services(&list),
            "SERVICE        FRONTEND          KIND        POLICY   USED  NOT USED  IN KERNEL  TAKEN BY\n\
             a/b            10.96.0.1:80/TCP  cluster IP  Cluster  2     1         yes        -\n\
             shop/web:http  10.96.0.1:80/TCP  cluster IP  Cluster  2     1         yes        a/b\n"
        );
    }

    #[test]
    fn the_verdict_and_the_causes_are_first() {
        let explained = Explanation {
            frontend: "10.96.0.1:80/TCP".to_owned(),
            verdict: "not served".to_owned(),
            causes: vec!["none of 1 endpoints accepts traffic: 1 not ready".to_owned()],
            endpoints: vec![Endpoint {
                endpoint: "10.0.0.1:8080".to_owned(),
                text: Some("not ready".to_owned()),
                ..Endpoint::default()
            }],
            ..Explanation::default()
        };
        assert_eq!(
            explanation(&explained),
            "10.96.0.1:80/TCP: not served\n\
             cause: none of 1 endpoints accepts traffic: 1 not ready\n\
             \n\
             ENDPOINT       NODE  ZONE  USED  WHY NOT\n\
             10.0.0.1:8080  -     -     no    not ready\n"
        );
    }
}
