//! Compares the README's table of the kernel's interface with the header.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

const README: &str = include_str!("../README.md");
const UAPI: &str = include_str!("../src/uapi.rs");
/// All commands and attributes of `linux/ip_vs.h` at v6.1 with their numbers, one per line.
const HEADER: &str = include_str!("golden/ip_vs.h.names");

fn is_name(word: &str) -> bool {
    word.starts_with("IPVS_CMD_") || (word.starts_with("IPVS_") && word.contains("_ATTR_"))
}

/// The names in a header's `enum`s with their numbers, without `__..._MAX` and `..._UNSPEC`.
fn names_of_header(text: &str) -> BTreeMap<String, u32> {
    let mut names = BTreeMap::new();
    let mut next = None;
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or_default().trim();
        if line == "enum {" {
            next = Some(0);
        } else if line.starts_with('}') {
            next = None;
        } else if let (Some(number), Some(word)) = (&mut next, line.strip_suffix(',')) {
            let name = word.split_whitespace().next().unwrap_or_default();
            if is_name(name) && !name.ends_with("_UNSPEC") {
                names.insert(name.to_owned(), *number);
            }
            *number += 1;
        }
    }
    names
}

fn stored_names() -> BTreeMap<String, u32> {
    HEADER
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, number) = line.split_once(' ').unwrap();
            (name.to_owned(), number.parse().unwrap())
        })
        .collect()
}

#[test]
fn the_readme_has_a_row_for_every_command_and_attribute() {
    let rows: BTreeMap<&str, &str> = README
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `IPVS_")?
                .strip_suffix(" |")?
                .split_once("` | ")
        })
        .collect();
    let named: BTreeSet<String> = rows.keys().map(|name| format!("IPVS_{name}")).collect();
    let expected: BTreeSet<String> = stored_names().into_keys().collect();
    assert_eq!(named, expected);
    // Each row names items of the crate: type and member are in its source.
    let mut source = String::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            source += &std::fs::read_to_string(path).unwrap();
        }
    }
    for (name, items) in rows {
        for item in items.split('`').skip(1).step_by(2) {
            let (owner, member) = match item.split_once("::") {
                Some((owner, member)) => (owner, Some(member)),
                None => (item, None),
            };
            let is_owner = ["struct", "enum", "trait"].iter().any(|kind| {
                [" ", "(", ":"]
                    .iter()
                    .any(|end| source.contains(&format!("pub {kind} {owner}{end}")))
            });
            assert!(is_owner, "{name}: {item}");
            let Some(member) = member else { continue };
            let is_member = [
                format!("pub {member}:"),
                format!("fn {member}("),
                format!("    {member}("),
                format!("    {member} {{"),
                format!("    {member},"),
            ]
            .iter()
            .any(|form| source.contains(form));
            assert!(is_member, "{name}: {item}");
        }
    }
}

#[test]
fn the_constants_are_those_of_the_header() {
    for (name, number) in stored_names() {
        let is_same = ["u8", "u16"]
            .iter()
            .any(|kind| UAPI.contains(&format!("pub const {name}: {kind} = {number};")));
        assert!(is_same, "{name} = {number}");
    }
}

/// Runs on a machine with the kernel's headers. A newer header may have more names; the README must then be extended.
#[test]
fn the_stored_names_are_those_of_the_installed_header() {
    let Ok(header) = std::fs::read_to_string("/usr/include/linux/ip_vs.h") else {
        println!("/usr/include/linux/ip_vs.h does not exist");
        return;
    };
    assert_eq!(names_of_header(&header), stored_names());
}
