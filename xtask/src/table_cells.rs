//! The cells of tables in Markdown files: short enough to be read as a table.

use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::{
    prose::outside_fences,
    workspace::{Workspace, files},
};

/// The most characters of a cell, as a page shows it: without the targets of links.
const MOST: usize = 199;

/// Fails with every cell that is longer.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let mut problems = Vec::new();
    let mut tables = 0;
    for file in files(root, &["md"])? {
        let text =
            fs::read_to_string(root.join(&file)).with_context(|| format!("reading {}", file.display()))?;
        for (line, length) in lengths(&text) {
            tables += 1;
            if length > MOST {
                problems.push(format!(
                    "{}:{line}: a cell of {length} characters",
                    file.display()
                ));
            }
        }
    }
    ensure!(tables > 0, "no table was found");
    if problems.is_empty() {
        return Ok(());
    }
    bail!(
        "cells of tables have at most {MOST} characters\n  {}",
        problems.join("\n  ")
    )
}

/// The longest cell of each row of a table, with its line.
fn lengths(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (number, line) in outside_fences(text) {
        if line.starts_with('|') {
            let longest = cells(line).iter().map(|cell| shown(cell)).max();
            found.push((number, longest.unwrap_or_default()));
        }
    }
    found
}

/// The cells of a row. `\|` is no border.
fn cells(line: &str) -> Vec<String> {
    let cells = line.replace("\\|", "\u{0}");
    cells.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The number of characters without the targets of links.
fn shown(cell: &str) -> usize {
    let mut parts = cell.split("](");
    let first = parts.next().unwrap_or_default();
    let after = parts.map(|part| part.split_once(')').map_or(part, |(_, after)| after));
    first.chars().count() + after.map(|part| part.chars().count() + 1).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_cell_of_each_row_counts_without_targets_of_links() {
        let text =
            "| a | bcd |\n|---|---|\n| [e](https://example.org/long) f | g\\|h |\n```\n| code |\n```\ntext\n";
        assert_eq!(lengths(text), [(1, 3), (2, 3), (3, 5)]);
    }
}
