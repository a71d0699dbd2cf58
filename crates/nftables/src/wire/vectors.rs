//! Messages of other programs: what is read of them and written again has the same attributes.
//!
//! They are byte literals of Go, as the tests of google/nftables expect them (`nftables_test.go`), whose folder `KERNLINK_NFT_VECTORS` names.
//! Without the folder they are those of `vectors.txt`, which `nft` 1.0.6 sent.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fmt, fs};

use kernlink_netlink::{AttributeReader, AttributeWriter, Batch, Message, Script};

use super::*;
use crate::uapi::{
    NFTA_CHAIN_HANDLE, NFTA_CHAIN_USE, NFTA_LIST_ELEM, NFTA_RULE_ID, NFTA_RULE_TABLE,
    NFTA_SET_ELEM_LIST_SET_ID, NFTA_SET_ID,
};
use crate::{ChainKey, Elements, Expression, RuleKey, TableKey};

/// A message without its netlink header.
#[derive(Debug)]
struct Vector {
    /// The function of the test, and the comment before the message.
    origin: String,
    bytes: Vec<u8>,
}

/// Reads the lists `[][]byte{...}` of a Go file.
struct Scanner<'a> {
    rest: &'a str,
    comment: &'a str,
}

impl<'a> Scanner<'a> {
    /// Skips blanks, commas and comments.
    fn skip(&mut self) {
        loop {
            self.rest = self
                .rest
                .trim_start_matches(|letter: char| letter.is_whitespace() || letter == ',');
            let Some(comment) = self.rest.strip_prefix("//") else {
                return;
            };
            let (line, after) = comment.split_once('\n').unwrap_or((comment, ""));
            (self.comment, self.rest) = (line.trim(), after);
        }
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// The bytes of a literal; `None` if it is another expression.
    fn literal(&mut self) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        if self.take("[]byte(\"") {
            loop {
                self.string(&mut bytes)?;
                if !(self.take("+") && self.take("\"")) {
                    return self.take(")").then_some(bytes);
                }
            }
        }
        let is_list = self.take("[]byte{") || self.take("{");
        while is_list && !self.take("}") {
            let end = self.rest.find([',', '}', '\n'])?;
            let (number, rest) = self.rest.split_at(end);
            bytes.push(match number.trim().strip_prefix("0x") {
                Some(digits) => u8::from_str_radix(digits, 16).ok()?,
                None => number.trim().parse().ok()?,
            });
            self.rest = rest;
        }
        is_list.then_some(bytes)
    }

    /// The rest of a string, and its closing quotation mark.
    fn string(&mut self, bytes: &mut Vec<u8>) -> Option<()> {
        let mut letters = self.rest.char_indices();
        loop {
            let (index, letter) = letters.next()?;
            match letter {
                '"' => {
                    self.rest = &self.rest[index + 1..];
                    return Some(());
                }
                '\\' => match letters.next()?.1 {
                    'x' => {
                        let digits: String = [letters.next()?.1, letters.next()?.1].iter().collect();
                        bytes.push(u8::from_str_radix(&digits, 16).ok()?);
                    }
                    'n' => bytes.push(b'\n'),
                    'r' => bytes.push(b'\r'),
                    't' => bytes.push(b'\t'),
                    'a' => bytes.push(7),
                    'b' => bytes.push(8),
                    'v' => bytes.push(11),
                    'f' => bytes.push(12),
                    letter @ ('"' | '\\') => bytes.push(letter as u8),
                    _ => return None,
                },
                letter => bytes.extend(letter.to_string().bytes()),
            }
        }
    }
}

fn vectors(text: &str) -> Vec<Vector> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut function = "";
    while let Some(list) = rest.find("[][]byte{") {
        let (before, after) = rest.split_at(list);
        if let Some(named) = before.rfind("\nfunc Test").or_else(|| before.find("func Test")) {
            let name = before[named..].trim_start().trim_start_matches("func ");
            function = name.split('(').next().unwrap();
        }
        let mut scanner = Scanner {
            rest: &after["[][]byte{".len()..],
            comment: "",
        };
        while !scanner.take("}") {
            let start = scanner.rest;
            match scanner.literal() {
                Some(bytes) => found.push(Vector {
                    origin: format!("{function}: {}", scanner.comment),
                    bytes,
                }),
                None => panic!(
                    "{function}: not a list of literals: {}",
                    &start[..start.len().min(200)]
                ),
            }
        }
        rest = scanner.rest;
    }
    found
}

/// In what a message differs although it means the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Difference {
    /// The order of attributes of different kinds, on which the kernel does not depend.
    Order,
    /// A register of 16 bytes has the number that it had before Linux 4.1. The kernel lists that of its first 4 bytes.
    Register,
    /// Text without the zero byte at its end.
    Terminator,
    /// An attribute that is zero is absent, or the other way round.
    Zero,
    /// The flag of attributes with others in them.
    NestedFlag,
    /// The elements of a list are numbered. The kernel does not read their kinds.
    Numbered,
    /// It is an answer of the kernel, with a handle and a number of users, which are only read.
    Answer,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Difference::Order => "order of attributes",
            Difference::Register => "number of a register before Linux 4.1",
            Difference::Terminator => "text without a zero byte",
            Difference::Zero => "an attribute of value 0",
            Difference::NestedFlag => "flag of nested attributes",
            Difference::Numbered => "numbers of the elements of a list",
            Difference::Answer => "handle and number of users in an answer of the kernel",
        })
    }
}

/// Kind, whether the flag of nested attributes is set, payload.
type Found<'a> = (u16, bool, &'a [u8]);

fn attributes(bytes: &[u8]) -> Option<Vec<Found<'_>>> {
    let mut found = Vec::new();
    let mut rest = bytes;
    for attribute in AttributeReader::new(bytes) {
        let attribute = attribute.ok()?;
        let is_nested = *rest.get(3)? & 0x80 != 0;
        rest = rest
            .get((4 + attribute.bytes().len()).next_multiple_of(4)..)
            .unwrap_or(&[]);
        found.push((attribute.kind(), is_nested, attribute.bytes()));
    }
    Some(found)
}

/// Compares lists of attributes; an error names the attribute.
fn compare(expected: &[u8], written: &[u8], found: &mut BTreeSet<Difference>) -> Result<(), String> {
    let (left, right) = (attributes(expected), attributes(written));
    let (mut left, mut right) = (left.ok_or("not attributes")?, right.ok_or("not attributes")?);
    let common = |list: &[Found<'_>], other: &[Found<'_>]| -> Vec<u16> {
        let kinds = list.iter().map(|(kind, ..)| *kind);
        kinds
            .filter(|kind| other.iter().any(|(found, ..)| found == kind))
            .collect()
    };
    let is_one_kind = |list: &[Found<'_>]| list.iter().all(|(kind, ..)| *kind == NFTA_LIST_ELEM);
    let is_numbered = left.iter().zip(1..).all(|((kind, ..), index)| *kind == index);
    if is_numbered && left.len() > 1 && left.len() == right.len() && is_one_kind(&right) {
        found.insert(Difference::Numbered);
        let mut pairs = left.into_iter().zip(right);
        return pairs.try_for_each(|(a, b)| compare_one(a, b, found));
    }
    if common(&left, &right) != common(&right, &left) {
        found.insert(Difference::Order);
    }
    // Those of one kind are a list, and keep their order.
    left.sort_by_key(|(kind, ..)| *kind);
    right.sort_by_key(|(kind, ..)| *kind);
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    loop {
        match (left.peek().copied(), right.peek().copied()) {
            (None, None) => return Ok(()),
            (Some(a), Some(b)) if a.0 == b.0 => {
                compare_one(a, b, found).map_err(|error| format!("{} > {error}", a.0))?;
                left.next();
                right.next();
            }
            (Some((kind, _, bytes)), b) if b.is_none_or(|b| kind < b.0) => {
                if !is_zero(bytes) {
                    return Err(format!("{kind} is not written: {bytes:02x?}"));
                }
                found.insert(Difference::Zero);
                left.next();
            }
            (_, Some((kind, _, bytes))) => {
                if !is_zero(bytes) {
                    return Err(format!("{kind} is written: {bytes:02x?}"));
                }
                found.insert(Difference::Zero);
                right.next();
            }
            (Some(_), None) => unreachable!(),
        }
    }
}

fn compare_one(left: Found<'_>, right: Found<'_>, found: &mut BTreeSet<Difference>) -> Result<(), String> {
    let ((_, is_left, a), (_, is_right, b)) = (left, right);
    if is_left != is_right {
        found.insert(Difference::NestedFlag);
    }
    if a == b {
        return Ok(());
    }
    if is_left || is_right {
        return compare(a, b, found);
    }
    if b.strip_suffix(&[0]) == Some(a) {
        found.insert(Difference::Terminator);
        return Ok(());
    }
    if let ([0, 0, 0, old @ 1..=4], [0, 0, 0, new]) = (a, b)
        && *new == 8 + 4 * (old - 1)
    {
        found.insert(Difference::Register);
        return Ok(());
    }
    Err(format!("{a:02x?} is written as {b:02x?}"))
}

/// A message without the attributes of these kinds.
fn without(bytes: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut kept = bytes[..4].to_vec();
    let mut rest = &bytes[4..];
    for (kind, _, payload) in attributes(rest).unwrap() {
        let (this, after) = rest.split_at((4 + payload.len()).next_multiple_of(4));
        if !kinds.contains(&kind) {
            kept.extend(this);
        }
        rest = after;
    }
    kept
}

fn number(payload: &[u8], kind: u16) -> Option<u32> {
    let list = attributes(payload.get(4..)?)?;
    let (.., bytes) = list.iter().find(|(found, ..)| *found == kind)?;
    Some(u32::from_be_bytes((*bytes).try_into().ok()?))
}

fn written(write: impl FnMut(&mut AttributeWriter<'_>)) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(0, 0, write).unwrap();
    batch.messages().next().unwrap()[16..].to_vec()
}

/// What a message may be, and how it is written if it is that. A decoder ignores the attributes of a message that it does not know, which
/// are then missing in what is written, so only the right one gives the same attributes.
type Kind = (&'static str, fn(&Message<'_>) -> Option<Vec<u8>>);

const KINDS: [Kind; 16] = [
    ("table", |message| {
        let table = decode_table(message).ok()?;
        Some(written(|writer| encode_table(writer, &table)))
    }),
    ("name of a table", |message| {
        let table = decode_table(message).ok()?;
        Some(written(|writer| encode_table_key(writer, &table.key)))
    }),
    ("chain", |message| {
        let chain = decode_chain(message).ok()?;
        Some(written(|writer| encode_chain(writer, &chain, None)))
    }),
    ("name of a chain", |message| {
        let chain = decode_chain(message).ok()?;
        Some(written(|writer| encode_chain_key(writer, &chain.key)))
    }),
    ("rule", |message| {
        let mut rule = decode_rule(message).ok()?;
        let is_opaque = |expression: &Expression| matches!(expression, Expression::Opaque(_));
        if rule.expressions.iter().any(is_opaque) {
            return None;
        }
        // The number of a rule in its transaction is not read: the kernel does not list it.
        rule.id = number(message.payload, NFTA_RULE_ID);
        let placement = match rule.handle {
            Some(handle) => Placement::Replace(handle),
            None => Placement::Position,
        };
        Some(written(|writer| {
            encode_rule(writer, &rule, placement, &Names::new(&[]));
        }))
    }),
    ("handle of a rule", |message| {
        let rule = decode_rule(message).ok()?;
        let key = RuleKey::new(rule.chain, rule.handle?);
        Some(written(|writer| encode_rule_key(writer, &key)))
    }),
    ("rules of a chain", |message| {
        let rule = decode_rule(message).ok()?;
        let ChainKey { table, name, .. } = rule.chain;
        Some(written(|writer| encode_rules_of(writer, &table, Some(&name))))
    }),
    ("set", |message| {
        let set = decode_set(message).ok()?;
        let id = number(message.payload, NFTA_SET_ID)?;
        Some(written(|writer| encode_set(writer, &set, id)))
    }),
    ("name of a set", |message| {
        let set = decode_set(message).ok()?;
        Some(written(|writer| encode_set_key(writer, &set.key)))
    }),
    ("elements", |message| {
        let list = ElementList::decode(message).ok()?;
        let set = list.set.clone();
        let elements: Result<Vec<_>, _> = list.collect();
        let elements = Elements::new(set, elements.ok()?);
        let id = number(message.payload, NFTA_SET_ELEM_LIST_SET_ID);
        Some(written(|writer| {
            let count = encode_elements(writer, &elements.set, id, &elements.elements);
            assert_eq!(count, elements.elements.len());
        }))
    }),
    ("elements of a set", |message| {
        let list = ElementList::decode(message).ok()?;
        Some(written(|writer| encode_set_of_elements(writer, &list.set)))
    }),
    ("object", |message| {
        let object = decode_object(message).ok()?;
        Some(written(|writer| encode_object(writer, &object)))
    }),
    ("name of an object", |message| {
        let object = decode_object(message).ok()?;
        Some(written(|writer| encode_object_key(writer, &object.key)))
    }),
    ("flowtable", |message| {
        let flowtable = decode_flowtable(message).ok()?;
        Some(written(|writer| encode_flowtable(writer, &flowtable)))
    }),
    ("name of a flowtable", |message| {
        let flowtable = decode_flowtable(message).ok()?;
        Some(written(|writer| {
            encode_flowtable_key(writer, &flowtable.key);
        }))
    }),
    ("family or table", |message| {
        let (family, attributes) = parts(message).ok()?;
        let mut names =
            attributes.map(|attribute| attribute.map(|attribute| (attribute.kind(), text(&attribute))));
        match names.next() {
            None => Some(written(|writer| header(writer, family))),
            Some(Ok((NFTA_RULE_TABLE, name))) => Some(written(|writer| {
                encode_rules_of(writer, &TableKey::new(family, name.clone()), None);
            })),
            Some(_) => None,
        }
    }),
];

/// The end of a listing.
const NLMSG_DONE: u16 = 3;

/// How the message is written as each kind that it may be.
fn all_written(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    const NLM_F_MULTI: u16 = 2;
    let message = Script::message(message_type(crate::uapi::NFT_MSG_NEWRULE), NLM_F_MULTI, bytes);
    let script = Script::new().expect_anything().answer(&message).done();
    let mut connection = script.connect().unwrap();
    let read = |message: Message<'_>| {
        let write = |(name, write): &Kind| Some((*name, write(&message)?));
        Ok::<_, Error>(Some(KINDS.iter().filter_map(write).collect()))
    };
    let dump = connection.dump(message_type(crate::uapi::NFT_MSG_GETRULE), 0, |_| {}, read);
    dump.unwrap().next().unwrap().unwrap()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.to_string_lossy().ends_with("_test.go") {
            found.push(path);
        }
    }
    found.sort();
}

#[test]
fn messages_of_other_programs_are_read_and_written_the_same() {
    let mut texts = vec![include_str!("vectors.txt").to_owned()];
    let folder = std::env::var("KERNLINK_NFT_VECTORS");
    if let Ok(folder) = &folder {
        let mut paths = Vec::new();
        files(Path::new(folder), &mut paths);
        texts = paths
            .iter()
            .map(|path| fs::read_to_string(path).unwrap())
            .collect();
    }
    let (mut limits, mut equal, mut kinds, mut reasons) = (0, 0, BTreeMap::new(), BTreeMap::new());
    let mut different = Vec::new();
    for vector in texts.iter().flat_map(|text| vectors(text)) {
        let Vector { origin, mut bytes } = vector;
        // A whole message of the kernel.
        let is_answer = bytes.get(..4) == Some(&(bytes.len() as u32).to_le_bytes()[..]);
        if is_answer {
            let command = bytes.get(4..6).map(|kind| u16::from_le_bytes([kind[0], kind[1]]));
            if command == Some(NLMSG_DONE) {
                limits += 1;
                continue;
            }
            assert_eq!(
                command,
                Some(message_type(crate::uapi::NFT_MSG_NEWCHAIN)),
                "{origin}"
            );
            bytes.drain(..16);
            // The number of the ruleset's generation.
            bytes[2..4].fill(0);
        }
        // The beginning and end of a transaction name the subsystem.
        if bytes.get(2..4) == Some(&[0, 10]) {
            limits += 1;
            continue;
        }
        let mut problems = Vec::new();
        let all = all_written(&bytes);
        let found = all.iter().find_map(|(name, written)| {
            let mut differences = BTreeSet::new();
            let bytes = if is_answer {
                differences.insert(Difference::Answer);
                without(&bytes, &[NFTA_CHAIN_HANDLE, NFTA_CHAIN_USE])
            } else {
                bytes.clone()
            };
            let header = bytes.get(..4) == written.get(..4);
            match compare(&bytes[4..], &written[4..], &mut differences) {
                Ok(()) if header => Some((*name, *written == bytes, differences)),
                Ok(()) => None,
                Err(error) => {
                    problems.push(format!("    as {name}: {error}"));
                    None
                }
            }
        });
        match found {
            Some((name, is_equal, differences)) => {
                assert_eq!(
                    is_equal,
                    differences.iter().all(|one| *one == Difference::Answer),
                    "{origin}"
                );
                equal += usize::from(is_equal);
                *kinds.entry(name).or_insert(0) += 1;
                for difference in differences {
                    *reasons.entry(difference).or_insert(0) += 1;
                }
            }
            None => different.push(format!("{origin}\n    {bytes:02x?}\n{}", problems.join("\n"))),
        }
    }
    let count: usize = kinds.values().sum();
    println!(
        "{count} messages are read and written the same, {equal} of them with the same bytes; {kinds:?}"
    );
    for (reason, count) in &reasons {
        println!("{count} differ in this: {reason}");
    }
    println!(
        "{limits} messages begin or end a transaction; {} are different",
        different.len()
    );
    for text in &different {
        println!("{text}");
    }
    if folder.is_err() {
        assert_eq!((count, kinds.len()), (10, 7));
    }
    assert!(count > 0);
    assert_eq!(different, Vec::<String>::new());
}
