//! The test suite of `nft`, a folder of whose sources `KERNLINK_NFT_SUITE` names: the rules of `tests/py` (`*.t`), and the rulesets of
//! `tests/shell` (`*.nft`). What `nft` accepts on this kernel is read and written to another namespace, where `nft` must list the same. Without
//! the folder a few rules and sets of the same form are copied. What the crate prints is compared with the text of `nft`, too, line by line.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;
use kernlink_nftables::{Nftables, Ruleset};

use crate::copy::sorted;
use crate::{client, listing};

#[derive(Debug, Default)]
struct File {
    /// Name and definition.
    chains: BTreeMap<String, String>,
    /// Family, table and names of chains.
    tables: Vec<(String, String, Vec<String>)>,
    /// Commands after `add`, where the table is `{table}`.
    others: Vec<String>,
    rules: Vec<String>,
}

impl File {
    fn parse(text: &str) -> Self {
        let mut file = Self::default();
        for line in text.lines().map(str::trim) {
            let mut fields = line.split(';');
            let first = fields.next().unwrap_or_default();
            let rest: Vec<&str> = fields.collect();
            match first.chars().next() {
                None | Some('#' | '-') => {}
                Some(':') => drop(file.chains.insert(first[1..].to_owned(), rest.join(";"))),
                Some('*') => {
                    if let [table, chains] = *rest {
                        let chains = chains.split(',').map(str::to_owned).collect();
                        file.tables
                            .push((first[1..].to_owned(), table.to_owned(), chains));
                    }
                }
                Some('!') => {
                    let mut parts = first[1..].splitn(2, ' ');
                    let (name, definition) = (parts.next().unwrap(), parts.next().unwrap_or_default());
                    let options = rest.iter().filter(|field| !["ok", "fail"].contains(*field));
                    let options: Vec<&str> = options.copied().collect();
                    let kind = if definition.contains(" : ") { "map" } else { "set" };
                    let options = options.join("; ");
                    file.others
                        .push(format!("{kind} {{table}} {name} {{ {definition}; {options}; }}"));
                }
                Some('?') => {
                    let mut parts = first[1..].splitn(2, ' ');
                    let (name, elements) = (parts.next().unwrap(), parts.next().unwrap_or_default());
                    file.others
                        .push(format!("element {{table}} {name} {{ {elements} }}"));
                }
                Some('%') => {
                    let mut parts = first[1..].splitn(2, " type ");
                    let (name, definition) = (parts.next().unwrap(), parts.next().unwrap_or_default());
                    let (kind, data) = match definition {
                        text if text.starts_with("ct ") => {
                            let mut words = text.splitn(3, ' ');
                            let _ct = words.next();
                            (
                                format!("ct {}", words.next().unwrap_or_default()),
                                words.next().unwrap_or_default(),
                            )
                        }
                        text => {
                            let mut words = text.splitn(2, ' ');
                            (
                                words.next().unwrap_or_default().to_owned(),
                                words.next().unwrap_or_default(),
                            )
                        }
                    };
                    let data = if rest.len() > 1 {
                        [
                            first.split_once(&format!("{kind} ")).map_or("", |(_, data)| data),
                            &rest[..rest.len() - 1].join(";"),
                        ]
                        .join(";")
                    } else {
                        data.to_owned()
                    };
                    let data = data
                        .trim()
                        .trim_start_matches('{')
                        .trim_end_matches('}')
                        .to_owned();
                    file.others.push(format!("{kind} {{table}} {name} {{ {data} }}"));
                }
                Some(_) if rest.first().is_some_and(|state| *state == "ok") => {
                    file.rules.push(first.to_owned())
                }
                Some(_) => {}
            }
        }
        file
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // A link of the sources may lead nowhere.
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file()
            && path
                .extension()
                .is_some_and(|extension| extension == "t" || extension == "nft")
        {
            found.push(path);
        }
    }
    found.sort();
}

fn nft(command: &str) -> Result<String, String> {
    tools::run_with_input("nft", &["-f", "-"], command)
}

/// Adds what these commands name, in as few transactions as possible: a transaction that `nft` refuses is divided. Returns the commands that
/// it refuses alone.
fn add(commands: &[String]) -> Vec<&String> {
    let text: String = commands
        .iter()
        .map(|command| format!("add {command}\n"))
        .collect();
    if commands.is_empty() || nft(&text).is_ok() {
        return Vec::new();
    }
    match commands {
        [refused] => vec![refused],
        _ => {
            let (first, rest) = commands.split_at(commands.len() / 2);
            [add(first), add(rest)].concat()
        }
    }
}

/// Counts of one file.
#[derive(Debug, Default)]
struct Counts {
    accepted: usize,
    refused: usize,
    /// Rules that the crate prints as `nft` does.
    printed: usize,
    /// Both texts of each other rule.
    other_texts: Vec<(String, String)>,
    /// Lines of declarations, or of whole rulesets, that the crate prints as `nft` does.
    lines: usize,
    /// Those that `nft` prints only.
    missing_lines: Vec<String>,
    /// Those that the crate prints only.
    other_lines: Vec<String>,
    /// Rulesets that `nft` loads from the text of the crate.
    loaded: usize,
    /// What is not copied.
    differences: String,
}

/// Rules that `nft` accepted, and the differences.
fn check(file: &File) -> Counts {
    let mut counts = Counts::default();
    let Counts {
        accepted,
        refused,
        differences,
        ..
    } = &mut counts;
    let (mut texts, mut definitions) = (Vec::new(), Vec::new());
    for (family, table, chains) in &file.tables {
        let (expected, ruleset) = NetNs::new().run(|| {
            let mut commands = vec![format!("table {family} {table}")];
            commands.extend(chains.iter().map(|chain| {
                let definition = file.chains.get(chain).map(String::as_str).unwrap_or_default();
                format!("chain {family} {table} {chain} {{ {definition}; }}")
            }));
            let others = file.others.iter();
            commands.extend(others.map(|other| other.replace("{table}", &format!("{family} {table}"))));
            for command in add(&commands) {
                println!("refused by nft: {command}");
            }
            let rules = chains.iter().flat_map(|chain| {
                let rules = file.rules.iter();
                rules.map(move |rule| format!("rule {family} {table} {chain} {rule}"))
            });
            let rules: Vec<String> = rules.collect();
            let of_table = add(&rules).len();
            *accepted += rules.len() - of_table;
            *refused += of_table;
            (listing(), client().ruleset())
        });
        let ruleset = match ruleset {
            Ok(ruleset) => ruleset,
            Err(error) => {
                let _ = writeln!(differences, "{family} {table}: cannot read: {error:?}");
                continue;
            }
        };
        let printed = ruleset.to_string();
        texts.push((rules(&expected), rules(&printed)));
        definitions.push((expected.clone(), printed));
        copy(&format!("{family} {table}"), &expected, &ruleset, differences);
    }
    for (listed, printed) in texts {
        assert_eq!(listed.len(), printed.len(), "{listed:#?}\n{printed:#?}");
        for (listed, printed) in listed.into_iter().zip(printed) {
            if of_any_version(&listed) == of_any_version(&printed) {
                counts.printed += 1;
            } else {
                counts.other_texts.push((listed, printed));
            }
        }
    }
    for (listed, printed) in definitions {
        counts.compare_lines(&without_rules(&listed), &without_rules(&printed));
    }
    counts
}

/// Writes a ruleset to another namespace, where the listing must be the expected one.
fn copy(name: &str, expected: &str, ruleset: &Ruleset, differences: &mut String) {
    let copied = NetNs::new().run(|| {
        let operations = ruleset.operations();
        let outcomes = client().execute_rest(&operations);
        for (operation, outcome) in operations.iter().zip(outcomes) {
            if let Err(error) = outcome {
                let _ = writeln!(differences, "{name}: {error:?}\n    {operation:?}");
            }
        }
        listing()
    });
    let (copied, expected) = (sorted(&rounded(&copied)), sorted(&rounded(expected)));
    if copied != expected {
        for (left, right) in expected.lines().zip(copied.lines()) {
            if left != right {
                let _ = writeln!(differences, "{name}:\n    - {left}\n    + {right}");
                break;
            }
        }
    }
}

/// A ruleset as `nft` lists it.
fn check_ruleset(text: &str) -> Counts {
    let mut counts = Counts::default();
    let read = NetNs::new().run(|| {
        nft(text).ok()?;
        Some((listing(), client().ruleset()))
    });
    let (expected, ruleset) = match read {
        None => {
            counts.refused = 1;
            return counts;
        }
        Some((expected, Ok(ruleset))) => (expected, ruleset),
        Some((_, Err(error))) => {
            let _ = writeln!(counts.differences, "cannot read: {error:?}");
            return counts;
        }
    };
    counts.accepted = 1;
    let printed = ruleset.to_string();
    counts.compare_lines(&lines(&expected), &lines(&printed));
    copy("ruleset", &expected, &ruleset, &mut counts.differences);
    // What the crate prints is a file for `nft`.
    match NetNs::new().run(|| nft(&printed).map(|_| listing())) {
        Ok(loaded) if lines(&loaded) == lines(&expected) => counts.loaded = 1,
        Ok(loaded) => {
            let (loaded, expected) = (lines(&loaded), lines(&expected));
            let pair = loaded.iter().zip(&expected).find(|(left, right)| left != right);
            println!("    another ruleset is loaded from the text: {pair:?}");
        }
        Err(error) => println!("    the text is not loaded: {error}"),
    }
    counts
}

/// The lines of a listing, with the elements of each set in one line and each rule in one. Without the number of elements, a comment that newer
/// versions write.
fn lines(listing: &str) -> Vec<String> {
    let sorted = sorted(&rounded(listing));
    let lines = sorted.lines().map(|line| {
        let line = line.split_once("\t# count ").map_or(line, |(line, _)| line);
        of_any_version(line)
    });
    lines.filter(|line| !line.is_empty()).collect()
}

/// The lines of a listing that are not rules.
fn without_rules(listing: &str) -> Vec<String> {
    let mut is_chain = false;
    let mut kept = String::new();
    for line in listing.lines() {
        if line == "\t}" {
            is_chain = false;
        }
        if !is_chain || line.trim_start().starts_with("type ") {
            kept += &format!("{line}\n");
        }
        is_chain |= line.starts_with("\tchain ");
    }
    lines(&kept)
}

impl Counts {
    fn compare_lines(&mut self, listed: &[String], printed: &[String]) {
        let mut missing: Vec<&String> = listed.iter().collect();
        let mut others = Vec::new();
        for line in printed {
            match missing.iter().position(|found| *found == line) {
                Some(index) => {
                    missing.remove(index);
                    self.lines += 1;
                }
                None => others.push(line.clone()),
            }
        }
        self.missing_lines.extend(missing.into_iter().cloned());
        self.other_lines.extend(others);
    }
}

/// The rules of a listing, each in one line.
fn rules(listing: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let mut lines = listing.lines();
    while let Some(line) = lines.next() {
        let is_chain = line.starts_with("\tchain ") && line.ends_with('{');
        if !is_chain {
            continue;
        }
        let mut rule = String::new();
        for line in lines.by_ref() {
            if line == "\t}" {
                break;
            }
            let line = line.trim();
            if line.starts_with("type ") && line.contains(" hook ") || line.starts_with("comment ") {
                continue;
            }
            rule += &format!("{line} ");
            if rule.matches('{').count() == rule.matches('}').count() {
                rules.push(std::mem::take(&mut rule));
            }
        }
    }
    rules
}

/// A rule without what versions of `nft` print differently: the order of elements, the default burst, the radix of a fragment offset, a
/// comparison with all of the flags that a mask has, the existence of a route, and the names of dynamic sets without one of their own.
fn of_any_version(rule: &str) -> String {
    let mut text = rounded(rule)
        .replace(" burst 5 packets", "")
        .replace(" oif exists", " check exists");
    text = text.replace(" oif missing", " check missing").trim().to_owned();
    let mut sorted = String::new();
    while let Some((before, rest)) = text.split_once("{ ") {
        let (elements, after) = rest.split_once('}').unwrap_or((rest, ""));
        let mut elements: Vec<&str> = elements.trim().split(", ").collect();
        elements.sort_unstable();
        sorted += &format!("{before}{{ {} }}", elements.join(", "));
        text = after.to_owned();
    }
    sorted += &text;
    if sorted.contains("frag-off") {
        let words = sorted.split(' ').map(|word| {
            let numbers = word.split('-').map(|number| {
                let digits = number.trim_end_matches(',');
                let hexadecimal = digits
                    .strip_prefix("0x")
                    .and_then(|digits| u32::from_str_radix(digits, 16).ok());
                hexadecimal.map_or_else(
                    || number.to_owned(),
                    |value| number.replace(digits, &value.to_string()),
                )
            });
            numbers.collect::<Vec<_>>().join("-")
        });
        return words.collect::<Vec<_>>().join(" ");
    }
    sorted
}

/// The listing with the first unit only of each time since a packet (`last used 5m4ms`), which passes between two listings.
fn rounded(listing: &str) -> String {
    let lines = listing.lines().map(|line| match line.split_once("last used ") {
        Some((before, time)) => {
            let digits = time.trim_start_matches(|letter: char| letter.is_ascii_digit());
            let unit = digits.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
            let (first, rest) = time.split_at(time.len() - unit.len());
            let end = rest.find([' ', ',']).unwrap_or(rest.len());
            format!("{before}last used {first}{}\n", &rest[end..])
        }
        None => format!("{line}\n"),
    });
    lines.collect()
}

/// Files of the form of the suite.
const SAMPLES: [&str; 3] = [
    r#"
:input;type filter hook input priority 0
*ip;test4;input
*ip6;test6;input
tcp dport 22 accept;ok
tcp dport { 80, 443 } counter packets 0 bytes 0;ok
udp sport 53-59 drop;ok
meta mark 0x00000010 meta mark set 0x00000020;ok
ct state established,related accept;ok
limit rate 10/second burst 5 packets accept;ok
numgen random mod 4 vmap { 0 : accept, 1 : drop };ok
iifname "eth0" log prefix "in " reject;ok
meta l4proto { tcp, udp } th dport 53 accept;ok
tcp option maxseg size set 1400;ok
tcp option timestamp exists;ok
udp length 8-100 accept;ok
tcp flags syn counter packets 0 bytes 0;ok
ct mark set meta mark;ok
ct state != invalid ct direction reply accept;ok
meta mark set meta mark & 0xffff0000 | 0x00000012;ok
log prefix "x" level debug flags ip options;ok
log group 2 snaplen 33;ok
meta mark set jhash tcp sport . tcp dport mod 8 seed 0x2a;ok
meta skuid 0-99 drop;ok
meta priority 1:a;ok
meta pkttype broadcast drop;ok
meta hour "17:00"-"19:00" accept;ok
sctp chunk data tsn 5 drop;ok
sctp dport 80 sctp vtag 7 accept;ok
dccp type request drop;ok
rt classid 5 drop;ok
fib saddr type local drop;ok
osf name "Linux" drop;ok
socket transparent 1 accept;ok
th sport 1-1023 ct count over 5 reject;ok
quota over 10 mbytes drop;ok
@th,16,16 0x50 drop;ok
"#,
    r#"
:input;type filter hook input priority 0
*bridge;test;input
ether saddr 00:01:02:03:04:05 drop;ok
ether type arp accept;ok
arp operation request arp saddr ip 10.0.0.1 accept;ok
vlan id 10 accept;ok
vlan id 10 vlan pcp 3 accept;ok
vlan id 10 ip saddr 10.0.0.0/8 tcp dport 80 accept;ok
ip dscp cs1 accept;ok
ip dscp { cs1, af11 } accept;ok
ip version 4 ip hdrlength 5 accept;ok
ip saddr 10.0.0.1 ip daddr 10.0.0.2 accept;ok
ip saddr & 0.0.0.255 == 0.0.0.1 accept;ok
ip6 flowlabel 22 accept;ok
ip6 saddr fd00::/8 udp dport 53 accept;ok
icmp type echo-request accept;ok
icmpv6 type nd-neighbor-solicit icmpv6 taddr fd00::1 accept;ok
ether saddr . ip saddr { 00:01:02:03:04:05 . 10.0.0.1 } accept;ok
ip dscp set cs1;ok
meta protocol ip6 accept;ok
reject with icmpx host-unreachable;ok
"#,
    r#"
:input;type filter hook input priority 0
*inet;test;input
ip saddr 10.0.0.0/8 tcp dport 80 accept;ok
meta nfproto ipv4 accept;ok
ip6 nexthdr tcp tcp dport 80 accept;ok
frag more-fragments 1 drop;ok
rt type 0 drop;ok
exthdr hbh exists drop;ok
mh type 1 drop;ok
ip option rr exists drop;ok
reject with icmp host-unreachable;ok
"#,
];

/// How many of their rules every kernel accepts, and more.
const SAMPLE_RULES: usize = 80;

/// A ruleset of the form of the suite.
const SAMPLE_RULESET: &str = r#"
table ip t {
	counter hits {
		packets 3 bytes 5
	}

	set names {
		typeof iifname . tcp dport
		size 16
		elements = { "lo" . 22 }
	}

	set tags {
		typeof vlan id
		elements = { 1, 4095 }
	}

	set banned {
		typeof ip saddr
		size 65535
		flags dynamic,timeout
		counter
		timeout 1h
	}

	set networks {
		type ipv4_addr
		flags interval
		auto-merge
		comment "some"
		elements = { 10.0.0.0/8, 192.168.0.1-192.168.0.5 }
	}

	map marks {
		typeof ip saddr . ip daddr : meta mark
		elements = { 1.2.3.4 . 5.6.7.8 : 0x00000001 }
	}

	map verdicts {
		typeof ip protocol . th dport : verdict
		elements = { tcp . 22 : accept }
	}

	map backends {
		typeof numgen random mod 2 : ip daddr . tcp dport
		elements = { 0 : 10.0.0.1 . 80, 1 : 10.0.0.2 . 80 }
	}

	map connections {
		typeof ct original ip saddr : ct mark
		elements = { 10.0.0.1 : 0x00000005 }
	}

	chain c {
		comment "regular"
		iifname . tcp dport @names accept
		meta mark set ip saddr . ip daddr map @marks
		ip protocol . th dport vmap @verdicts
		counter name "hits"
	}
}
"#;

#[test]
fn every_rule_of_the_suite_is_copied() {
    let (mut accepted, mut refused, mut different) = (0, 0, Vec::new());
    let (mut printed, mut others) = (0, 0);
    let (mut rulesets, mut refused_rulesets, mut loaded) = (0, 0, 0);
    let (mut equal_lines, mut other_lines) = (0, 0);
    let mut paths: Vec<PathBuf> = (0..=SAMPLES.len())
        .map(|index| PathBuf::from(format!("sample {index}")))
        .collect();
    let mut in_samples = 0;
    let folder = std::env::var("KERNLINK_NFT_SUITE");
    if let Ok(folder) = &folder {
        let mut found = Vec::new();
        files(Path::new(folder), &mut found);
        paths.extend(found);
    }
    for (index, path) in paths.iter().enumerate() {
        let is_sample = index <= SAMPLES.len();
        let is_ruleset =
            index == SAMPLES.len() || path.extension().is_some_and(|extension| extension == "nft");
        let counts = match SAMPLES.get(index) {
            Some(text) => check(&File::parse(text)),
            None if is_sample => check_ruleset(SAMPLE_RULESET),
            None if is_ruleset => check_ruleset(&fs::read_to_string(path).unwrap()),
            None => check(&File::parse(&fs::read_to_string(path).unwrap())),
        };
        if is_sample {
            assert_eq!(counts.other_texts, [], "{}", counts.differences);
            assert_eq!(
                counts.missing_lines,
                Vec::<String>::new(),
                "{:#?}",
                counts.other_lines
            );
            assert_eq!(counts.loaded, usize::from(is_ruleset));
            in_samples += counts.printed;
        }
        if !counts.differences.is_empty() {
            different.push(path);
        }
        println!(
            "{}: {} copied, {} refused by nft, {} rules and {} lines printed as by nft, {} and {} otherwise\n{}",
            path.display(),
            counts.accepted,
            counts.refused,
            counts.printed,
            counts.lines,
            counts.other_texts.len(),
            counts.missing_lines.len(),
            counts.differences
        );
        for (listed, other) in &counts.other_texts {
            println!("    nft {listed}\n    own {other}");
        }
        for line in &counts.missing_lines {
            println!("    nft {line}");
        }
        for line in &counts.other_lines {
            println!("    own {line}");
        }
        // The counts are those of the folder.
        if is_sample {
            continue;
        }
        if is_ruleset {
            rulesets += counts.accepted;
            refused_rulesets += counts.refused;
            loaded += counts.loaded;
        } else {
            accepted += counts.accepted;
            refused += counts.refused;
        }
        printed += counts.printed;
        others += counts.other_texts.len();
        equal_lines += counts.lines;
        other_lines += counts.missing_lines.len();
    }
    println!(
        "{} files, {accepted} rules copied, {refused} refused by nft, files with differences: {different:?}",
        paths.len() - SAMPLES.len() - 1
    );
    println!("{printed} rules printed as by nft, {others} otherwise");
    println!(
        "{rulesets} rulesets copied, {refused_rulesets} refused by nft, {loaded} loaded again from the text of the crate"
    );
    println!("{equal_lines} lines of rulesets and declarations printed as by nft, {other_lines} otherwise");
    assert!(in_samples >= SAMPLE_RULES, "{in_samples}");
    assert!(folder.is_err() || accepted + rulesets > 0);
    assert_eq!(different, Vec::<&PathBuf>::new());
}
