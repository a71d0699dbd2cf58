//! The table of results in `docs/conformance.md`. Each column has the results of a proxy in a mode; columns without results in the folder
//! stay as they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context, Result, ensure};

use super::{
    options::{KERNLINK, KUBE_PROXY, Mode},
    results::{Results, Summary},
    table::{seconds, word},
};

/// The document with the table.
pub(super) const DOCUMENT: &str = "docs/conformance.md";
/// The lines around the table.
pub(crate) const BEGIN: &str = "<!-- upstream-e2e: begin -->\n";
pub(crate) const END: &str = "<!-- upstream-e2e: end -->\n";

/// How many results of a test are taken together.
const RUNS: usize = usize::MAX;

/// The columns: a proxy and its mode.
const COLUMNS: [(&str, Mode); 5] = [
    (KUBE_PROXY, Mode::Nftables),
    (KERNLINK, Mode::Nftables),
    (KUBE_PROXY, Mode::Iptables),
    (KERNLINK, Mode::Iptables),
    (KERNLINK, Mode::Userspace),
];

/// The name of the folder of a column.
pub(super) fn name(proxy: &str, mode: Mode) -> String {
    format!("{proxy}-{}", mode.name())
}

/// The cells of each test.
type Rows = BTreeMap<String, [String; COLUMNS.len()]>;

/// Writes the results in a folder to the document.
pub(super) fn write(root: &Path, results: &Path) -> Result<()> {
    let path = root.join(DOCUMENT);
    let old = fs::read_to_string(&path).with_context(|| format!("reading {DOCUMENT}"))?;
    let mut columns = Vec::new();
    for (proxy, mode) in COLUMNS {
        columns.push(Results::read(&results.join(name(proxy, mode)))?);
    }
    let new = updated(&old, &columns).context(DOCUMENT)?;
    if new != old {
        fs::write(&path, new).with_context(|| format!("writing {DOCUMENT}"))?;
        println!("{DOCUMENT}");
    }
    Ok(())
}

/// The document with these columns.
fn updated(document: &str, columns: &[Results]) -> Result<String> {
    let (before, rest) = document
        .split_once(BEGIN)
        .with_context(|| format!("no line {BEGIN}"))?;
    let (table, after) = rest.split_once(END).with_context(|| format!("no line {END}"))?;
    let mut rows = parsed(table)?;
    for (position, results) in columns.iter().enumerate() {
        if results.is_empty() {
            continue;
        }
        let known = rows.keys().map(String::as_str);
        let tests: BTreeSet<String> = known.chain(results.names()).map(str::to_owned).collect();
        for test in tests {
            let text = results.last(&test, RUNS).as_ref().map(cell).unwrap_or_default();
            if let Some(cell) = rows.entry(test).or_default().get_mut(position) {
                *cell = text;
            }
        }
    }
    rows.retain(|_, cells| cells.iter().any(|cell| !cell.is_empty()));
    Ok(format!("{before}{BEGIN}{}{END}{after}", printed(&rows)))
}

fn cell(summary: &Summary) -> String {
    format!("{}, {} s", word(&summary.outcome), seconds(summary))
}

/// The rows of a table. The first three lines have no results.
fn parsed(table: &str) -> Result<Rows> {
    let mut rows = Rows::new();
    for line in table.lines().filter(|line| !line.is_empty()).skip(3) {
        let line_of = || format!("`{line}`; expected a test and {} cells", COLUMNS.len());
        let (test, cells) = line
            .strip_prefix("| `")
            .and_then(|line| line.strip_suffix('|')?.split_once("` |"))
            .with_context(line_of)?;
        let test = test.replace("\\|", "|");
        let cells = cells.split('|').map(|cell| cell.trim().to_owned());
        let cells: Vec<String> = cells.collect();
        let cells = cells.try_into().ok().with_context(line_of)?;
        ensure!(rows.insert(test.clone(), cells).is_none(), "two rows for {test}");
    }
    Ok(rows)
}

fn printed(rows: &Rows) -> String {
    let heads = COLUMNS.map(|(proxy, mode)| format!("{proxy}, {}", mode.name()));
    let counts: Vec<String> = (0..COLUMNS.len()).map(|column| counted(rows, column)).collect();
    let mut text = row("test of Kubernetes, run", &heads);
    text.push_str(&row("---", &["---"; COLUMNS.len()]));
    text.push_str(&row("all", &counts));
    for (test, cells) in rows {
        text.push_str(&row(&format!("`{}`", test.replace('|', "\\|")), cells));
    }
    text
}

fn row(first: &str, cells: &[impl AsRef<str>]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" {} |", cell.as_ref())).collect();
    format!("| {first} |{cells}\n")
}

/// The number of each result in a column.
fn counted(rows: &Rows, column: usize) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for cell in rows.values().filter_map(|cells| cells.get(column)) {
        if let Some((word, _)) = cell.split_once(',') {
            *counts.entry(word).or_default() += 1;
        }
    }
    let counts = ["passed", "failed", "skipped"].map(|word| Some((word, *counts.get(word)?)));
    let counts = counts.into_iter().flatten();
    counts
        .map(|(word, count)| format!("{count} {word}"))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream_e2e::scratch::Scratch;

    const EMPTY: &str = "text\n<!-- upstream-e2e: begin -->\n<!-- upstream-e2e: end -->\nmore\n";

    fn results(cases: &[(&str, &str)]) -> Results {
        let scratch = Scratch::new("record");
        scratch.write("0000", cases);
        Results::read(scratch.path()).unwrap()
    }

    fn columns(column: usize, results: Results) -> Vec<Results> {
        let mut columns = vec![Results::default(); COLUMNS.len()];
        columns[column] = results;
        columns
    }

    #[test]
    fn a_column_is_written_and_others_stay() {
        let first = updated(
            EMPTY,
            &columns(0, results(&[("[sig] a", "passed"), ("[sig] b", "failed")])),
        )
        .unwrap();
        assert!(first.starts_with("text\n<!--") && first.ends_with("-->\nmore\n"));
        assert!(
            first.contains("| `[sig] a` | passed, 1 s |  |  |  |  |\n"),
            "{first}"
        );
        let second = updated(&first, &columns(1, results(&[("[sig] a", "passed")]))).unwrap();
        assert!(
            second.contains("| all | 1 passed, 1 failed | 1 passed |  |  |  |\n"),
            "{second}"
        );
        assert!(
            second.contains("| `[sig] a` | passed, 1 s | passed, 1 s |  |  |  |\n"),
            "{second}"
        );
        // The same results change nothing; other results of a column replace all of it.
        let again = updated(&second, &columns(1, results(&[("[sig] a", "passed")]))).unwrap();
        assert_eq!(again, second);
        let third = updated(&second, &columns(0, results(&[("[sig] a", "failed")]))).unwrap();
        assert!(!third.contains("[sig] b"), "{third}");
    }

    #[test]
    fn a_name_may_have_the_character_that_separates_cells() {
        let of = |status| columns(0, results(&[("[sig] (a|b)", status)]));
        let first = updated(EMPTY, &of("passed")).unwrap();
        assert!(first.contains("| `[sig] (a\\|b)` | passed, 1 s |"), "{first}");
        let second = updated(&first, &of("failed")).unwrap();
        assert!(second.contains("| all | 1 failed |  |"), "{second}");
        assert_eq!(updated(&second, &of("passed")).unwrap(), first);
    }

    #[test]
    fn a_row_that_is_not_complete_is_an_error() {
        let table = updated(EMPTY, &columns(0, results(&[("[sig] a", "passed")]))).unwrap();
        let cut = table.replace("| passed, 1 s |  |", "| passed, 1 s |");
        let error = updated(&cut, &columns(1, Results::default())).unwrap_err();
        assert!(
            error.to_string().contains("expected a test and 5 cells"),
            "{error}"
        );
    }

    #[test]
    fn a_document_without_the_table_is_an_error() {
        updated("text\n", &columns(0, Results::default())).unwrap_err();
        let cut = EMPTY.replace("end", "start");
        updated(&cut, &columns(0, Results::default())).unwrap_err();
    }
}
