//! What a preflight found, for people.

use super::document::{Document, Found, Sysctl};
use crate::commands::table::{columns, pairs, printable};

/// The page.
pub(super) fn page(document: &Document) -> String {
    let mut page = format!("preflight: {}\n", document.readiness.name());
    let header = [
        ("Mode", document.mode.clone()),
        ("Node", document.node.clone()),
        ("Families", document.families.join(", ")),
        ("Kernel", document.kernel.clone()),
    ];
    page.push_str(&pairs(&header));
    page.push('\n');
    let checks: Vec<Vec<String>> = document
        .checks
        .iter()
        .map(|check| {
            vec![
                check.result.name().to_owned(),
                check.check.to_owned(),
                check.text.clone(),
            ]
        })
        .collect();
    page.push_str(&columns(&["RESULT", "CHECK", "WHAT WAS FOUND"], &checks));
    page.push_str("\nServed now:\n");
    let found: Vec<String> = document.found.iter().filter_map(found).collect();
    page.push_str(&lines(&found, "nothing of any mode"));
    page.push_str("\nSysctls that would change:\n");
    let sysctls: Vec<String> = document.sysctls.iter().map(sysctl).collect();
    page.push_str(&lines(&sysctls, "none"));
    page.push_str("\nA sync would change:\n");
    match &document.plan {
        None => page.push_str("  not known\n"),
        Some(plan) => {
            let kinds = plan.by_kind.iter().map(|steps| {
                let family = steps.family.as_deref().unwrap_or("all families");
                format!("{} of {}, {family}", steps.steps, steps.kind)
            });
            let kinds: Vec<String> = kinds.collect();
            page.push_str(&lines(&kinds, "nothing"));
            page.push_str(&format!(
                "  for {} Services with {} frontends; --dry-run prints the commands\n",
                plan.services, plan.frontends
            ));
        }
    }
    page.push_str("\nInterrupted by the change:\n");
    page.push_str(&lines(&document.interrupted, "nothing"));
    if !document.events.is_empty() {
        page.push_str("\nEvents:\n");
        page.push_str(&lines(&document.events, ""));
    }
    printable(&page)
}

/// Lines with an indent, or one line without any text.
fn lines(texts: &[String], none: &str) -> String {
    if texts.is_empty() {
        return format!("  {none}\n");
    }
    // Each on one line: what it names may be of an object that any user of the cluster wrote.
    texts
        .iter()
        .map(|text| format!("  {}\n", text.replace('\n', " ")))
        .collect()
}

fn found(found: &Found) -> Option<String> {
    let mode = found.title;
    let is_served = match found.serves {
        Some(true) => "Services are served",
        Some(false) => "objects are left, and serve no Service",
        None => "it cannot be read whether Services are served",
    };
    match (found.serves, found.removal) {
        (Some(false), None | Some(0)) => None,
        (_, None) => Some(format!("{mode}: {is_served}")),
        (_, Some(0)) => Some(format!("{mode}: {is_served}; nothing is to be removed")),
        (_, Some(removal)) => {
            let number = if removal == 1 {
                "1 command".to_owned()
            } else {
                format!("{removal} commands")
            };
            let commands = found.first_commands.join("; ");
            let rest = removal.saturating_sub(found.first_commands.len());
            let more = if rest > 0 {
                format!("; and {rest} more")
            } else {
                String::new()
            };
            Some(format!(
                "{mode}: {is_served}; removed after the agent serves, by {number}: {commands}{more}"
            ))
        }
    }
}

fn sysctl(sysctl: &Sysctl) -> String {
    let now = sysctl.now.as_deref().unwrap_or("not known");
    format!("{}: {now} -> {}", sysctl.name, sysctl.then)
}
