//! The README's table of the kernel's interface against the header.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

const README: &str = include_str!("../README.md");
const UAPI: &str = include_str!("../src/uapi.rs");
/// Every command and attribute of `linux/ip_vs.h` at v6.1 with its number, one a line.
const HEADER: &str = include_str!("golden/ip_vs.h.names");

fn is_name(word: &str) -> bool {
    word.starts_with("IPVS_CMD_") || (word.starts_with("IPVS_") && word.contains("_ATTR_"))
}

/// The names of a header's `enum`s with their numbers. Markers of the end (`__..._MAX`) and of nothing (`..._UNSPEC`) name
/// nothing.
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

fn checked_in_names() -> BTreeMap<String, u32> {
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
fn every_command_and_attribute_has_a_place_in_the_readme() {
    let rows: BTreeMap<&str, &str> = README
        .lines()
        .filter_map(|line| {
            line.strip_prefix("| `IPVS_")?
                .strip_suffix(" |")?
                .split_once("` | ")
        })
        .collect();
    let named: BTreeSet<String> = rows.keys().map(|name| format!("IPVS_{name}")).collect();
    let wanted: BTreeSet<String> = checked_in_names().into_keys().collect();
    assert_eq!(named, wanted);
    // Each place is an item of the crate: type and member are in its source.
    let mut source = String::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            source += &std::fs::read_to_string(path).unwrap();
        }
    }
    for (name, place) in rows {
        for item in place.split('`').skip(1).step_by(2) {
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
fn our_numbers_are_those_of_the_header() {
    for (name, number) in checked_in_names() {
        let is_same = ["u8", "u16"]
            .iter()
            .any(|kind| UAPI.contains(&format!("pub const {name}: {kind} = {number};")));
        assert!(is_same, "{name} = {number}");
    }
}

/// On a machine with the kernel's headers, they are asked; a newer header may have more, which then needs a place.
#[test]
fn the_checked_in_names_are_those_of_the_installed_header() {
    let Ok(header) = std::fs::read_to_string("/usr/include/linux/ip_vs.h") else {
        println!("no /usr/include/linux/ip_vs.h here");
        return;
    };
    assert_eq!(names_of_header(&header), checked_in_names());
}
