//! Compares the constants in `uapi` and the README's feature tables with the kernel's headers
//! (Debian's `linux-libc-dev`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Names and values of a header's enumerations and plain numeric definitions.
fn header(name: &str) -> BTreeMap<String, u64> {
    let path = format!("/usr/include/linux/{name}");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path} (linux-libc-dev): {error}"));
    let mut numbers = BTreeMap::new();
    let mut next = None;
    let mut rest = text.as_str();
    let mut plain = String::new();
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").unwrap().1;
    }
    plain.push_str(rest);
    let value = |text: &str, numbers: &BTreeMap<String, u64>| -> Option<u64> {
        let text = text.trim();
        if let Some((one, shift)) = text.split_once("<<") {
            return Some(one.trim().parse::<u64>().ok()? << shift.trim().parse::<u32>().ok()?);
        }
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok().or_else(|| numbers.get(text).copied()),
        }
    };
    for line in plain.lines() {
        let line = line.trim();
        if line.starts_with("enum") {
            next = Some(0);
        } else if line.starts_with('}') {
            next = None;
        } else if let Some(definition) = line.strip_prefix("#define") {
            let mut words = definition.split_whitespace();
            if let (Some(name), Some(number)) = (words.next(), words.next())
                && let Some(number) = value(number, &numbers)
            {
                numbers.insert(name.to_owned(), number);
            }
        } else if let Some(at) = next {
            for item in line.split(',').map(str::trim).filter(|item| !item.is_empty()) {
                let (name, number) = match item.split_once('=') {
                    Some((name, number)) => (name.trim(), value(number, &numbers)),
                    None => (item, next.or(Some(at))),
                };
                next = number.map(|number| number + 1);
                numbers.extend(number.map(|number| (name.to_owned(), number)));
            }
        }
    }
    numbers
}

fn all_headers() -> BTreeMap<String, u64> {
    ["if.h", "if_link.h", "if_addr.h", "rtnetlink.h", "socket.h"]
        .into_iter()
        .flat_map(header)
        .collect()
}

#[test]
fn every_constant_has_the_value_of_the_headers() {
    let numbers = all_headers();
    let source = include_str!("../src/uapi.rs");
    let mut checked = 0;
    for line in source.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let (name, rest) = line.split_once(':').unwrap();
        let text = rest.split_once('=').unwrap().1.trim().trim_end_matches(';');
        let value = match (text.split_once("<<"), text.strip_prefix("0x")) {
            (Some((one, shift)), _) => {
                one.trim().parse::<u64>().unwrap() << shift.trim().parse::<u32>().unwrap()
            }
            (None, Some(hex)) => u64::from_str_radix(hex, 16).unwrap(),
            (None, None) => text.parse().unwrap(),
        };
        // The address families are in the C library's headers.
        if !name.starts_with("AF_") {
            assert_eq!(numbers.get(name), Some(&value), "{name}");
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} numbers were found in uapi.rs");
}

/// Names in the first column of the README's tables.
fn table() -> BTreeMap<String, String> {
    let rows = include_str!("../README.md")
        .lines()
        .filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().unwrap().trim_matches('`').to_owned();
        (name, cells.collect::<Vec<_>>().join(" | "))
    })
    .collect()
}

#[test]
fn every_attribute_and_flag_of_an_address_is_in_the_readme() {
    let table = table();
    let numbers = header("if_addr.h");
    let relevant = |name: &&String| {
        name.starts_with("IFA_")
            && !name.ends_with("MAX")
            && !name.ends_with("UNSPEC")
            && *name != "IFA_F_TEMPORARY"
    };
    let missing: BTreeSet<_> = numbers
        .keys()
        .filter(relevant)
        .filter(|name| !table.contains_key(*name))
        .collect();
    assert!(
        missing.is_empty(),
        "in if_addr.h but not in the README: {missing:?}"
    );
}

#[test]
fn the_readme_lists_names_of_the_headers_and_whether_they_are_used() {
    let numbers = all_headers();
    let source = include_str!("../src/uapi.rs");
    let table = table();
    assert!(
        table.len() > 40,
        "only {} rows were found in the README",
        table.len()
    );
    for (name, cells) in &table {
        assert!(numbers.contains_key(name), "{name} is in no header");
        let is_used = source.contains(&format!("pub const {name}:"));
        let is_no = cells.starts_with("no");
        assert!(
            is_used != is_no,
            "{name}: {cells:?} in the README, used: {is_used}"
        );
    }
}
