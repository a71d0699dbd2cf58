//! The tables of nftables mode as commands, to compare them with those that the example `desired_state` prints.

use kernlink_kernel_tests::listings::State;
use kernlink_kernel_tests::wait;
use kernlink_nftables::{Client, Commands, Nftables, SetFlags, TableFlags};

/// The tables of nftables mode: the second one has replaced the first one, or is replaced by it, after some restarts.
pub(crate) const TABLES: [&str; 2] = ["kernlink", "kernlink-2"];

/// The tables of nftables mode in the calling thread's namespace, as [`commands`]. Which process owns them, and which of the two names they have, is
/// not compared, nor are clients with session affinity, which rules add.
pub(crate) fn tables() -> State {
    let mut client = Client::open().unwrap();
    // Changes interrupt a listing.
    let mut ruleset = wait::until(|| client.ruleset());
    ruleset
        .tables
        .retain(|contents| TABLES.contains(&&*contents.table.key.name));
    for contents in &mut ruleset.tables {
        contents.table.flags = TableFlags::empty();
        contents.sets.iter_mut().for_each(|set| {
            if set.set.flags.contains(SetFlags::EVAL) {
                set.elements.clear();
            }
        });
    }
    let text = Commands::new(&ruleset.operations())
        .with_sets(
            ruleset
                .tables
                .iter()
                .flat_map(|contents| &contents.sets)
                .map(|set| set.set.clone()),
        )
        .to_string();
    commands(&text.replace(&format!(" {} ", TABLES[1]), &format!(" {} ", TABLES[0])))
}

/// Commands that make tables: the elements of each map and set, the rules of each chain in order, and all other ones of each table.
pub(crate) fn commands(text: &str) -> State {
    let mut state = State::new();
    let mut add = |section: String, line: &str| state.entry(section).or_default().push(line.to_owned());
    for line in text.lines() {
        let (command, rest) = line.split_once(" { ").unwrap_or((line, ""));
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["add", "element", family, table, set] => {
                let elements = rest.strip_suffix(" }").unwrap().split(", ");
                elements.for_each(|element| add(format!("{family} {table} {set}"), element));
            }
            ["add", "rule", family, table, chain, ..] => {
                add(format!("rules of {family} {table} {chain}"), line)
            }
            ["add", _, family, table, ..] => add(format!("{family} {table}"), line),
            _ => panic!("{line}"),
        }
    }
    for (section, lines) in &mut state {
        if !section.starts_with("rules of ") {
            lines.sort();
            // Two Services with the same endpoint have one element for it, and each adds it.
            lines.dedup();
        }
    }
    state
}
