//! Messages of the tools, and what they mean.
//!
//! The texts are those of iptables 1.8.9 and 1.8.11, legacy and nft. Older versions print the same texts or none.

use crate::error::RefusedKind;
use crate::restore::{Edit, Line, Restore};
use crate::runner::Completion;
use crate::table::Table;
use crate::targets::Target;

/// What the tool reports about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ToolMessage {
    /// The input line, counted from 1.
    pub(super) line: Option<usize>,
    /// The name of a chain that does not exist.
    pub(super) missing_chain: Option<String>,
    pub(super) kind: RefusedKind,
    pub(super) text: String,
}

impl ToolMessage {
    /// The text about the refused part of the input, which the error names, without the numbers of lines: the same part may be in another
    /// line of the next input.
    pub(super) fn reason(&self) -> String {
        let is_about = |part: &&str| {
            let is_banner = part.ends_with("):");
            let is_position = part.starts_with("Error occurred at line");
            let is_other = part.starts_with("line ") && line_number(part) != self.line;
            !is_banner && !is_position && !is_other
        };
        let parts: Vec<String> = self
            .text
            .split("; ")
            .filter(is_about)
            .map(without_line_number)
            .collect();
        if parts.is_empty() {
            return self.text.clone();
        }
        parts.join("; ")
    }
}

/// `iptables-restore: failed` of `iptables-restore: line 3 failed`, and so on.
fn without_line_number(text: &str) -> String {
    let Some((before, after)) = text.split_once("line ").or_else(|| text.split_once("line: ")) else {
        return text.to_owned();
    };
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    if rest.len() == after.len() {
        return text.to_owned();
    }
    let before = before.trim_end();
    let before = before.strip_suffix(" at").unwrap_or(before);
    if before.is_empty() {
        return rest.trim_start_matches([':', ' ']).to_owned();
    }
    format!("{before}{rest}")
}

/// What the tool wrote to both outputs, without the hints to `--help`.
pub(super) fn text(completion: &Completion) -> String {
    let output = String::from_utf8_lossy(&completion.stderr);
    let more = String::from_utf8_lossy(&completion.stdout);
    let lines = output.lines().chain(more.lines()).map(str::trim);
    let mut text = lines
        .filter(|line| !line.is_empty() && !line.starts_with("Try `"))
        .collect::<Vec<_>>()
        .join("; ");
    if let Some(signal) = completion.signal {
        let separator = if text.is_empty() { "" } else { "; " };
        text = format!("{text}{separator}terminated by signal {signal}");
    }
    text
}

pub(super) fn read(completion: &Completion) -> ToolMessage {
    let text = text(completion);
    let missing_chain = between(&text, "Chain '", "' does not exist")
        .or_else(|| between(&text, "Couldn't load target `", "'"))
        .map(str::to_owned);
    ToolMessage {
        line: line_number(&text),
        missing_chain,
        kind: kind(&text, completion.status),
        text,
    }
}

/// Whether the tool failed because another process held the lock.
pub(super) fn is_locked(text: &str) -> bool {
    text.contains("holding the xtables lock") || text.contains("xtables lock; still")
}

/// Whether the tool failed because it does not support an option.
pub(super) fn is_unknown_option(completion: &Completion) -> bool {
    completion.status != Some(0) && text(completion).contains("unrecognized option")
}

fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(inner, _)| inner)
}

/// The number in `line 7 failed`, `line 7: RULE_APPEND failed`, `Error occurred at line: 7`, `at line 7`.
fn line_number(text: &str) -> Option<usize> {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("line") {
        let digits = after.trim_start_matches(':').trim_start_matches(' ');
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        if let Some(number) = digits.get(..end).and_then(|digits| digits.parse().ok()) {
            return Some(number);
        }
        rest = after;
    }
    None
}

fn kind(text: &str, status: Option<i32>) -> RefusedKind {
    let contains = |needles: &[&str]| needles.iter().any(|needle| text.contains(needle));
    if contains(&["Permission denied", "Operation not permitted", "you must be root"]) {
        RefusedKind::PermissionDenied
    } else if contains(&["Parsing nftables rule failed", "is incompatible, use 'nft' tool"]) {
        RefusedKind::Unreadable
    } else if contains(&[
        "missing kernel module",
        "Couldn't load match",
        "unable to initialize table",
        "Table does not exist",
        "table name",
        "Protocol not supported",
        // A kernel without the family.
        "Address family not supported",
        "Operation not supported",
        "unknown option",
    ]) {
        RefusedKind::Unsupported
    } else if contains(&["already exists", "File exists"]) {
        RefusedKind::AlreadyExists
    } else if contains(&["resource busy", "Directory not empty", "Too many references"]) {
        RefusedKind::InUse
    } else if contains(&[
        "does not exist",
        "doesn't exist",
        "No chain/target/match by that name",
        "does a matching rule exist",
        "Couldn't load target",
        "No such file or directory",
        "too big",
    ]) {
        RefusedKind::NotFound
    } else if contains(&[
        "Resource temporarily unavailable",
        "Cannot allocate memory",
        "Out of memory",
        "Interrupted",
    ]) || (status == Some(4) && !text.contains("failed ("))
    {
        RefusedKind::Resource
    } else {
        RefusedKind::Other
    }
}

/// The part of the input that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// This edit of the table.
    Edit(Table, usize),
    /// An unknown edit of the table: the tool named its first line or its COMMIT.
    Table(Table),
    /// The tool named no line.
    Unknown,
}

/// Finds the part of the input that the message names.
pub(super) fn locate(restore: &Restore, message: &ToolMessage) -> Location {
    let Some(line) = message.line.and_then(|line| restore.line(line)) else {
        return Location::Unknown;
    };
    match line {
        Line::Edit { table, index, .. } => Location::Edit(table, index),
        Line::Table(table) => Location::Table(table),
        Line::Commit(table) => match &message.missing_chain {
            Some(chain) => first_jump(restore, table, chain)
                .map_or(Location::Table(table), |index| Location::Edit(table, index)),
            None => Location::Table(table),
        },
    }
}

/// nft reports a missing chain at COMMIT, and then names only the chain.
fn first_jump(restore: &Restore, table: Table, chain: &str) -> Option<usize> {
    let (_, edits) = restore.tables().find(|(other, _)| *other == table)?;
    edits.iter().position(|edit| match edit {
        Edit::Append { rule, .. } | Edit::Insert { rule, .. } => rule
            .target
            .as_ref()
            .and_then(Target::chain)
            .is_some_and(|name| name.as_str() == chain),
        _ => edit.chain().as_str() == chain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts captured from iptables 1.8.9, both variants.
    #[test]
    fn lines_and_kinds_are_parsed_from_messages_of_the_tools() {
        for (text, status, line, kind) in [
            ("iptables-restore: line 3 failed", 1, Some(3), RefusedKind::Other),
            (
                "iptables-nft-restore: line 3 failed: No chain/target/match by that name.",
                1,
                Some(3),
                RefusedKind::NotFound,
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 7: RULE_APPEND failed (Invalid argument): rule in chain A",
                4,
                Some(7),
                RefusedKind::Other,
            ),
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load target `NOPE':No such file or directory\n\nError occurred at line: 4\nTry `iptables-restore -h' or 'iptables-restore --help' for more information.",
                2,
                Some(4),
                RefusedKind::NotFound,
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 4: CHAIN_DEL failed (Device or resource busy): chain A",
                4,
                Some(4),
                RefusedKind::InUse,
            ),
            (
                "Warning: Extension ipvs revision 0 not supported, missing kernel module?\niptables-restore: line 5 failed",
                1,
                Some(5),
                RefusedKind::Unsupported,
            ),
            (
                "iptables-restore v1.8.9 (legacy): Can't set policy `ACCEPT' on `A' line 2: Bad built-in chain name",
                1,
                Some(2),
                RefusedKind::Other,
            ),
            (
                "iptables-restore: COMMIT expected at line 3",
                1,
                Some(3),
                RefusedKind::Other,
            ),
            (
                "iptables-nft-restore: line 3 failed: Chain already exists.",
                1,
                Some(3),
                RefusedKind::AlreadyExists,
            ),
            (
                "Fatal: can't open lock file: Permission denied",
                4,
                None,
                RefusedKind::PermissionDenied,
            ),
            ("something", 4, None, RefusedKind::Resource),
            (
                "Error: unknown ipv4 meta key\niptables-nft-save v1.8.9 (nf_tables): Parsing nftables rule failed\nPerhaps iptables-nft-save or your kernel needs to be upgraded.",
                3,
                None,
                RefusedKind::Unreadable,
            ),
            (
                "iptables v1.8.9 (nf_tables): table `filter' is incompatible, use 'nft' tool.",
                1,
                None,
                RefusedKind::Unreadable,
            ),
        ] {
            let message = read(&Completion {
                status: Some(status),
                signal: None,
                stdout: Vec::new(),
                stderr: text.as_bytes().to_vec(),
            });
            assert_eq!((message.line, message.kind), (line, kind), "{text}");
            assert!(!message.text.contains("Try `"));
        }
    }

    #[test]
    fn a_reason_has_no_number_of_a_line_and_nothing_about_other_lines() {
        let busy = "CHAIN_DEL failed (Device or resource busy): chain";
        for (text, reason) in [
            (
                format!("iptables-restore v1.8.9 (nf_tables): \nline 14: {busy} A\nline 20: {busy} B"),
                format!("{busy} A"),
            ),
            (
                "iptables-restore: line 90 failed (Device or resource busy)".into(),
                "iptables-restore: failed (Device or resource busy)".into(),
            ),
            (
                "iptables-nft-restore: line 3 failed: No chain/target/match by that name.".into(),
                "iptables-nft-restore: failed: No chain/target/match by that name.".into(),
            ),
            (
                "Set A doesn't exist.\n\nError occurred at line: 4\nTry `iptables-restore -h' for more"
                    .into(),
                "Set A doesn't exist.".into(),
            ),
            (
                "Can't set policy `ACCEPT' on `A' line 2: Bad built-in chain name".into(),
                "Can't set policy `ACCEPT' on `A': Bad built-in chain name".into(),
            ),
            (
                "iptables-restore: COMMIT expected at line 3".into(),
                "iptables-restore: COMMIT expected".into(),
            ),
            (
                "Error occurred at line: 7".into(),
                "Error occurred at line: 7".into(),
            ),
            ("an outline is missing".into(), "an outline is missing".into()),
        ] {
            let message = read(&Completion {
                status: Some(1),
                signal: None,
                stdout: Vec::new(),
                stderr: text.as_bytes().to_vec(),
            });
            assert_eq!(message.reason(), reason);
        }
    }

    #[test]
    fn a_signal_is_reported() {
        let completion = Completion {
            status: None,
            signal: Some(11),
            stdout: Vec::new(),
            stderr: Vec::new(),
        };
        assert_eq!(read(&completion).text, "terminated by signal 11");
    }
}
