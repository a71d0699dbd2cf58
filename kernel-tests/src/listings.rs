//! The state of a kernel as the standard tools list it, in a form that can be compared, and loading such listings by the standard tools.
//!
//! Listings of a desired state are those that kernlink writes (`desired_state --output-dir`) or that were recorded from kube-proxy.

use std::collections::{BTreeMap, BTreeSet};

use crate::tools;

/// The state of the kernel in the calling thread's namespace, as the standard tools list it: lines by section, with one section for the
/// virtual servers, the sets, the addresses of each link and each chain. Lines without an order are sorted; counters, sizes, link-local
/// addresses and built-in chains without rules are omitted.
pub type State = BTreeMap<String, Vec<String>>;

/// Reads the state.
#[must_use]
pub fn state() -> State {
    let mut state = state_without_rules();
    state.extend(rules(SAVE));
    state
}

/// Reads the state without the rules.
#[must_use]
pub fn state_without_rules() -> State {
    let mut state = State::from([
        ("ipvs".to_owned(), sorted(&tools::ipvsadm_save())),
        ("ipset".to_owned(), without_sizes(&tools::ipset_save())),
    ]);
    state.extend(addresses());
    state
}

/// The addresses of each link, without link-local ones.
#[must_use]
pub fn addresses() -> State {
    let mut state = State::new();
    for line in tools::must("ip", &["-o", "address", "show"]).lines() {
        let mut words = line.split_whitespace().skip(1);
        let (Some(link), Some(address)) = (words.next(), words.nth(1)) else {
            panic!("`ip -o address show`: {line}")
        };
        if !address.starts_with("fe80:") {
            let section = state.entry(format!("addresses of {link}")).or_default();
            section.push(address.to_owned());
            section.sort();
        }
    }
    state
}

/// The tools that list the rules of each family.
pub const SAVE: [&str; 2] = ["iptables-save", "ip6tables-save"];

/// Reads the rules with these tools, one for each family.
#[must_use]
pub fn rules(save: [&str; 2]) -> State {
    let mut state = State::new();
    for (family, program) in ["iptables", "ip6tables"].into_iter().zip(save) {
        state.extend(chains(family, &tools::must(program, &[])));
    }
    state
}

/// The sections of rules only.
#[must_use]
pub fn rules_of(state: &State) -> State {
    let is_rules = |section: &&String| section.starts_with("ip6tables ") || section.starts_with("iptables ");
    let sections = state.iter().filter(|(section, _)| is_rules(section));
    sections
        .map(|(section, lines)| (section.clone(), lines.clone()))
        .collect()
}

/// The rules in the output of `iptables-save` or `ip6tables-save`.
#[must_use]
pub fn chains(family: &str, saved: &str) -> State {
    let mut chains = State::new();
    let mut table = "";
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some(chain) = line.strip_prefix(':') {
            let Some((name, rest)) = chain.split_once(' ') else {
                panic!("{family}-save: {line}")
            };
            let policy = rest.split(' ').next().unwrap_or_default();
            let lines = if policy == "-" || policy == "ACCEPT" {
                Vec::new()
            } else {
                vec![format!("policy {policy}")]
            };
            let is_built_in = policy != "-";
            chains.insert(format!("{family} {table} {name}"), lines);
            // Removed below if it has no rules.
            if is_built_in {
                chains
                    .entry(format!("built-in {family} {table} {name}"))
                    .or_default();
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default();
            chains
                .entry(format!("{family} {table} {chain}"))
                .or_default()
                .push(line.to_owned());
        }
    }
    let built_in: Vec<String> = chains
        .keys()
        .filter_map(|section| section.strip_prefix("built-in ").map(str::to_owned))
        .collect();
    for section in built_in {
        chains.remove(&format!("built-in {section}"));
        if chains.get(&section).is_some_and(Vec::is_empty) {
            chains.remove(&section);
        }
    }
    chains
}

/// The lines in which two states differ; empty if they are equal.
#[must_use]
pub fn difference(actual: &State, desired: &State) -> String {
    let mut text = String::new();
    for (what, one, other) in [("missing", desired, actual), ("extra", actual, desired)] {
        for (section, lines) in one {
            match other.get(section) {
                None => text += &format!("{what}: {section}: {lines:?}\n"),
                Some(others) if others != lines => {
                    let others: BTreeSet<&String> = others.iter().collect();
                    let mut differ = lines.iter().filter(|line| !others.contains(line)).peekable();
                    if differ.peek().is_none() {
                        text += &format!("{section}: other order or number: {lines:?}\n");
                    }
                    differ.for_each(|line| text += &format!("{what}: {section}: {line}\n"));
                }
                Some(_) => {}
            }
        }
    }
    text
}

/// The lines of a listing without an order, sorted.
#[must_use]
pub fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

/// The output of `ipset save`, sorted, without the sizes of sets.
#[must_use]
pub fn without_sizes(text: &str) -> Vec<String> {
    let short = |line: &str| {
        let mut words = line.split(' ');
        let mut kept = Vec::new();
        while let Some(word) = words.next() {
            if ["hashsize", "maxelem", "bucketsize", "initval"].contains(&word) {
                words.next();
            } else {
                kept.push(word);
            }
        }
        kept.join(" ")
    };
    sorted(&text.lines().map(|line| short(line) + "\n").collect::<String>())
}

/// Panics with the lines in which two states differ.
pub fn assert_same(actual: &State, expected: &State, what: &str) {
    if actual == expected {
        return;
    }
    let mut text = String::new();
    let sections: BTreeSet<&String> = actual.keys().chain(expected.keys()).collect();
    for section in sections {
        let (actual, expected) = (actual.get(section), expected.get(section));
        if actual != expected {
            text += &format!("{section}:\n  actual {actual:#?}\n  expected {expected:#?}\n");
        }
    }
    panic!("{what}\n{text}");
}

/// Loads listings into the kernel by the standard tools.
pub fn load(ipvs: &str, ipset: &str, rules: [&str; 2], jumps: &str, addresses: &str) {
    load_sets(ipset);
    load_rules(rules[0], rules[1], jumps);
    let mut batch = "link add kube-ipvs0 type dummy\n".to_owned();
    for address in addresses.lines() {
        batch += &format!("address add {address} dev kube-ipvs0\n");
    }
    tools::ip_batch(&batch);
    feed("ipvsadm", &["-R"], ipvs);
}

/// Loads the output of `ipset save`, in any order.
pub fn load_sets(ipset: &str) {
    // In a sorted listing the sets follow their entries.
    let (create, add): (Vec<&str>, Vec<&str>) = ipset.lines().partition(|line| line.starts_with("create "));
    feed("ipset", &["restore"], &([create, add].concat().join("\n") + "\n"));
}

/// Rules without the accounting objects of netfilter: the extension may be missing on this host, and no packet is treated differently without
/// it.
#[must_use]
pub fn without_accounting(rules: &str) -> String {
    let mut text = String::new();
    // These rules only count the connections to loopback addresses; the next rule accepts them too.
    for line in rules
        .lines()
        .filter(|line| !line.contains("localhost_nps_accepted_pkts"))
    {
        match line.split_once("-m nfacct --nfacct-name ") {
            Some((before, object)) => {
                let (_, after) = object.trim_start().split_once(' ').unwrap_or_default();
                text += before;
                text += after;
            }
            None => text += line,
        }
        text.push('\n');
    }
    text
}

/// The most lines of a table that a tool gets at once: what `iptables-nft-restore` 1.8.9 needs grows with the square of its input.
const PART: usize = 2_000;

/// Loads the rules of both families, in the form of `iptables-save`, and then the jumps to them.
pub fn load_rules(iptables: &str, ip6tables: &str, jumps: &str) {
    for (program, rules) in [("iptables", iptables), ("ip6tables", ip6tables)] {
        let restore = format!("{program}-restore");
        for (table, lines) in tables(rules) {
            // Of several parts, one with a chain precedes those that lead to it.
            let (chains, rules): (Vec<&str>, Vec<&str>) =
                lines.iter().partition(|line| line.starts_with(':'));
            let lines = [chains, rules].concat();
            for part in lines.chunks(PART) {
                let part = part.join("\n");
                feed(
                    &restore,
                    &["-w", "--noflush"],
                    &format!("*{table}\n{part}\nCOMMIT\n"),
                );
            }
        }
        let mut input = String::new();
        for table in ["nat", "filter"] {
            let jumps: Vec<String> = jumps
                .lines()
                .filter_map(|line| jump(program, table, line))
                .collect();
            input += &format!("*{table}\n");
            // The command that inserts a jump is preceded by one that creates the chain if no rule is in it.
            let targets: BTreeSet<&str> = jumps
                .iter()
                .filter_map(|line| line.trim().split(' ').next_back())
                .collect();
            let is_new = |target: &&str| !rules.contains(&format!("\n:{target} "));
            input.extend(
                targets
                    .into_iter()
                    .filter(is_new)
                    .map(|target| format!(":{target} - [0:0]\n")),
            );
            input.extend(jumps);
            input += "COMMIT\n";
        }
        feed(&restore, &["-w", "--noflush"], &input);
    }
}

/// The tables of an input of `iptables-restore` with the lines of each.
fn tables(input: &str) -> Vec<(&str, Vec<&str>)> {
    let mut tables: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in input.lines() {
        if let Some(name) = line.strip_prefix('*') {
            tables.push((name, Vec::new()));
        } else if line.starts_with([':', '-'])
            && let Some((_, lines)) = tables.last_mut()
        {
            lines.push(line);
        }
    }
    tables
}

/// The command `iptables -I CHAIN -t TABLE MATCHES -m comment --comment COMMENT -j TARGET`, whose comment is not quoted, as a line of
/// restore input; `None` if it is for another program or table.
#[must_use]
pub fn jump(program: &str, table: &str, line: &str) -> Option<String> {
    let (chain, rest) = line
        .strip_prefix(program)?
        .strip_prefix(" -I ")?
        .split_once(" -t ")?;
    let rest = rest.strip_prefix(table)?.strip_prefix(' ')?;
    let (rest, target) = rest.rsplit_once("-j ")?;
    let matches = match rest.split_once("--comment ") {
        Some((before, comment)) => format!("{before}--comment \"{}\" ", comment.trim_end()),
        None => rest.to_owned(),
    };
    Some(format!("-I {chain} {matches}-j {target}\n"))
}

/// Runs a program with this input; it must succeed.
pub fn feed(program: &str, arguments: &[&str], input: &str) {
    tools::run_with_input(program, arguments, input).unwrap_or_else(|error| panic!("{error}\n{input}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_its_table_is_a_line_of_restore_input() {
        let command = "iptables -I INPUT -t filter -m conntrack --ctstate NEW -m comment --comment load balancer firewall -j KUBE-A";
        let line =
            "-I INPUT -m conntrack --ctstate NEW -m comment --comment \"load balancer firewall\" -j KUBE-A\n";
        assert_eq!(jump("iptables", "filter", command).as_deref(), Some(line));
        assert_eq!(jump("iptables", "nat", command), None);
        assert_eq!(jump("ip6tables", "filter", command), None);
        let bare = jump(
            "iptables",
            "filter",
            "iptables -I INPUT -t filter -j KUBE-FIREWALL",
        );
        assert_eq!(bare.as_deref(), Some("-I INPUT -j KUBE-FIREWALL\n"));
    }

    #[test]
    fn accounting_objects_are_removed_from_rules() {
        let rules = "-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name  ct_state_invalid_dropped_pkts -j DROP\n\
                     -A KUBE-FORWARD -d 127.0.0.0/8 -m nfacct --nfacct-name localhost_nps_accepted_pkts -j RETURN\n\
                     -A KUBE-FORWARD -j ACCEPT\n";
        let expected = "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n-A KUBE-FORWARD -j ACCEPT\n";
        assert_eq!(without_accounting(rules), expected);
    }

    #[test]
    fn the_tables_of_an_input_have_their_chains_and_rules() {
        let input = "# comment\n*filter\n:A - [0:0]\n-A A -j DROP\nCOMMIT\n*nat\nCOMMIT\n";
        let lines = vec![":A - [0:0]", "-A A -j DROP"];
        assert_eq!(tables(input), [("filter", lines), ("nat", Vec::new())]);
    }
}
