//! The notation of `ipset save` and `ipset restore`: parsing text into operations, and rendering operations as text.
//!
//! This module handles whole files. [`Set`] and [`Entry`](crate::Entry) print one set or entry, and `Entry` parses one.
//!
//! ```
//! use kernlink_ipset::notation;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "create web hash:ip,port family inet hashsize 1024 maxelem 65536\nadd web 10.0.0.1,tcp:80\n";
//! let operations = notation::parse(text)?;
//! assert_eq!(notation::render(&operations)?, text);
//! # Ok(())
//! # }
//! ```

// Circle of imports: a value prints itself as `ipset` does, and the notation of the whole is put together from that of its parts.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use kernlink_base::Protocol;

use crate::entry_options::Timeout;
use crate::entry_range::EntryRange;
use crate::name::SetName;
use crate::network::{Network, parse_address};
use crate::operation::{IfExists, Operation};
use crate::parse::{self, ParseError};
use crate::protocol_port::parse_port_range;
use crate::set::{Set, SetContents, SetRange};
use crate::set_family::SetFamily;
use crate::set_type::SetType;

/// An invalid line of a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is invalid")]
#[non_exhaustive]
pub struct NotationError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The reason.
    #[source]
    pub error: ParseError,
}

/// Parses the output of `ipset save` and the input of `ipset restore`. Empty lines, lines that begin with `#`, and `COMMIT` are
/// ignored. Entries are valid only for sets that the text creates; for other sets use [`parse_with`].
///
/// # Errors
///
/// The first invalid line.
pub fn parse(text: &str) -> Result<Vec<Operation>, NotationError> {
    parse_with(text, |_| None)
}

/// Like [`parse`], with the types and families of existing sets; `type_of` returns `None` for an unknown set.
///
/// # Errors
///
/// The first invalid line.
pub fn parse_with(
    text: &str,
    type_of: impl Fn(&SetName) -> Option<(SetType, SetFamily)>,
) -> Result<Vec<Operation>, NotationError> {
    let mut types = HashMap::new();
    let mut operations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let parsed = parse_line(line, &mut types, &type_of);
        operations.extend(parsed.map_err(|error| NotationError {
            line: index + 1,
            error,
        })?);
    }
    Ok(operations)
}

/// Renders the operations as input of `ipset restore`, one line for each.
///
/// # Errors
///
/// The first operation that the notation cannot represent, with its number from 1 as the line: a name that contains white space
/// or a quotation mark or that `ipset` parses as an option (`-q`, `-exist`), or a comment that is such an option or contains a
/// quotation mark or a line break. Only other programs create such names and comments.
pub fn render(operations: &[Operation]) -> Result<String, NotationError> {
    let mut text = String::new();
    for (index, operation) in operations.iter().enumerate() {
        check_operation(operation).map_err(|error| NotationError {
            line: index + 1,
            error,
        })?;
        let _infallible = writeln!(text, "{operation}");
    }
    Ok(text)
}

/// Renders sets with their entries as `ipset save` prints them.
///
/// # Errors
///
/// As for [`render`], with the number of the line in the text.
pub fn save(sets: &[SetContents]) -> Result<String, NotationError> {
    let mut text = String::new();
    let mut line = 0;
    for set in sets {
        let name = set.header.set.name;
        line += 1;
        check_name(&name).map_err(|error| NotationError { line, error })?;
        let _infallible = writeln!(text, "create {}", set.header.set);
        for entry in &set.entries {
            line += 1;
            check_entry(entry).map_err(|error| NotationError { line, error })?;
            let _infallible = writeln!(text, "add {name} {entry}");
        }
    }
    Ok(text)
}

/// A word of a line, without quotation marks.
#[derive(Clone, Copy)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    is_quoted: bool,
}

/// Splits a line at white space. Text in quotation marks is one word.
pub(crate) fn words(text: &str) -> Result<Vec<Word<'_>>, ParseError> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (text, after, is_quoted) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let error = || ParseError::new("line", text, "has an unclosed quotation mark");
                let (word, after) = quoted.split_once('"').ok_or_else(error)?;
                (word, after, true)
            }
            None => {
                let (word, after) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
                (word, after, false)
            }
        };
        words.push(Word { text, is_quoted });
        rest = after.trim_start();
    }
    Ok(words)
}

type Types = HashMap<SetName, (SetType, SetFamily)>;

fn parse_line(
    line: &str,
    types: &mut Types,
    type_of: &dyn Fn(&SetName) -> Option<(SetType, SetFamily)>,
) -> Result<Option<Operation>, ParseError> {
    if line.trim_start().starts_with('#') {
        return Ok(None);
    }
    let mut words = words(line)?;
    let all = words.len();
    words.retain(|word| word.is_quoted || !matches!(word.text, "-exist" | "-!"));
    let if_exists = if words.len() < all {
        IfExists::Succeed
    } else {
        IfExists::Fail
    };
    let mut words = words.into_iter();
    let Some(command) = words.next() else {
        return Ok(None);
    };
    let mut name = |what: &str| match words.next() {
        Some(word) => set_name(word.text),
        None if matches!(what, "destroy" | "flush") => Err(ParseError::new(
            "command",
            what,
            "requires the name of a set; changing all sets is not supported in text",
        )),
        None => Err(ParseError::new("command", what, "requires the name of a set")),
    };
    let operation = match command.text {
        "COMMIT" => return Ok(None),
        "create" | "-N" | "--create" => {
            let name = name("create")?;
            let set = parse_set(name, &mut words)?;
            types.insert(name, (set.set_type, set.family));
            Operation::Create {
                set: Box::new(set),
                if_exists,
            }
        }
        "destroy" | "-X" | "--destroy" => Operation::Destroy {
            set: name("destroy")?,
            if_exists,
        },
        "flush" | "-F" | "--flush" => Operation::Flush { set: name("flush")? },
        "rename" | "-E" | "--rename" => {
            let (from, to) = (name("rename")?, name("rename")?);
            if let Some(set_type) = types.remove(&from) {
                types.insert(to, set_type);
            }
            Operation::Rename { from, to }
        }
        "swap" | "-W" | "--swap" => Operation::Swap {
            first: name("swap")?,
            second: name("swap")?,
        },
        "add" | "-A" | "--add" | "del" | "-D" | "--del" => {
            let set = name(command.text)?;
            let set_type = types.get(&set).copied().or_else(|| type_of(&set));
            let (set_type, family) = set_type.ok_or_else(|| {
                ParseError::new("set", set, "has an unknown type, so its entries cannot be parsed")
            })?;
            let range = EntryRange::parse_words(&mut words, set_type, family)?;
            let is_add = matches!(command.text, "add" | "-A" | "--add");
            match (range.into_single(), is_add) {
                (Ok(entry), true) => Operation::Add {
                    set,
                    entry,
                    if_exists,
                },
                (Ok(entry), false) => Operation::Delete {
                    set,
                    entry,
                    if_exists,
                },
                (Err(range), true) => Operation::AddRange {
                    set,
                    range: Box::new(range),
                    if_exists,
                },
                (Err(range), false) => Operation::DeleteRange {
                    set,
                    range: Box::new(range),
                    if_exists,
                },
            }
        }
        other => {
            return Err(ParseError::new(
                "command",
                other,
                "is unknown; known: create, destroy, flush, rename, swap, add, del",
            ));
        }
    };
    match words.next() {
        Some(word) => Err(ParseError::new(
            "word",
            word.text,
            "is unexpected at the end of the line",
        )),
        None => Ok(Some(operation)),
    }
}

fn set_name(text: &str) -> Result<SetName, ParseError> {
    SetName::new(text).map_err(|error| ParseError::new("set name", text, error.reason()))
}

/// Parses the type and options after the name in a line `create`.
fn parse_set<'a>(name: SetName, words: &mut dyn Iterator<Item = Word<'a>>) -> Result<Set, ParseError> {
    let word = words
        .next()
        .ok_or_else(|| ParseError::new("set", name, "has no type"))?
        .text;
    let set_type: SetType = word
        .parse()
        .map_err(|error| ParseError::new("set type", word, error))?;
    if matches!(set_type, SetType::Unknown(_)) {
        return Err(ParseError::new("set type", word, "is unknown"));
    }
    let mut set = Set::new(name, set_type);
    let options = &mut set.options;
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .map(|word| word.text)
                .ok_or_else(|| ParseError::new("option", word.text, "requires a value"))
        };
        match word.text {
            "counters" => options.counters = true,
            "comment" => options.comment = true,
            "skbinfo" => options.skbinfo = true,
            "forceadd" => options.forceadd = true,
            "family" => {
                let family: SetFamily = value()?.parse()?;
                // A type with one family accepts that family.
                if !set_type.families().contains(&family) {
                    return Err(ParseError::new(
                        "family",
                        family,
                        format_args!("is not a family of {set_type}"),
                    ));
                }
                set.family = family;
            }
            "-6" if set_type.families().contains(&SetFamily::Inet6) => set.family = SetFamily::Inet6,
            "-4" if set_type.families().contains(&SetFamily::Inet) => set.family = SetFamily::Inet,
            "hashsize" => options.hashsize = Some(number32("hashsize", value()?)?),
            "maxelem" => options.maxelem = Some(number32("maxelem", value()?)?),
            "size" => options.size = Some(number32("size", value()?)?),
            "markmask" => options.markmask = Some(number32("markmask", value()?)?),
            "initval" => options.initval = Some(number32("initval", value()?)?),
            "bucketsize" => options.bucketsize = Some(number8("bucketsize", value()?, 255)?),
            "netmask" => options.netmask = Some(number8("netmask", value()?, 128)?),
            "bitmask" => options.bitmask = Some(parse_address(value()?)?),
            "timeout" => options.timeout = Some(value()?.parse::<Timeout>()?),
            "range" => options.range = Some(parse_range(value()?, set_type)?),
            other => return Err(ParseError::new("set option", other, "is unknown")),
        }
    }
    Ok(set)
}

fn parse_range(text: &str, set_type: SetType) -> Result<SetRange, ParseError> {
    if set_type == SetType::BitmapPort {
        let (first, last) = parse_port_range(text, Protocol::TCP)?;
        return Ok(SetRange::Ports(first, last.unwrap_or(first)));
    }
    let (first, last) = match text.split_once('-') {
        Some((first, last)) => (v4(first)?, v4(last)?),
        None => {
            let network: Network = text.parse()?;
            match (network.address(), network.last_address()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => (first, last),
                _ => return Err(ParseError::new("range", text, "is not a range of IPv4 addresses")),
            }
        }
    };
    Ok(SetRange::Addresses(first.min(last), first.max(last)))
}

fn v4(text: &str) -> Result<Ipv4Addr, ParseError> {
    match parse_address(text) {
        Ok(IpAddr::V4(address)) => Ok(address),
        _ => Err(ParseError::new("address", text, "is not an IPv4 address")),
    }
}

fn number32(what: &'static str, text: &str) -> Result<u32, ParseError> {
    // Bounded by the argument, so the conversion cannot fail.
    Ok(u32::try_from(parse::number(what, text, u64::from(u32::MAX))?).unwrap_or_default())
}

fn number8(what: &'static str, text: &str, max: u8) -> Result<u8, ParseError> {
    Ok(u8::try_from(parse::number(what, text, u64::from(max))?).unwrap_or_default())
}

fn check_operation(operation: &Operation) -> Result<(), ParseError> {
    match operation {
        Operation::Rename {
            from: first,
            to: second,
        }
        | Operation::Swap { first, second } => {
            check_name(first)?;
            check_name(second)
        }
        Operation::Add { set, entry, .. } | Operation::Delete { set, entry, .. } => {
            check_name(set)?;
            check_entry(entry)
        }
        Operation::AddRange { set, range, .. } | Operation::DeleteRange { set, range, .. } => {
            check_name(set)?;
            check_entry(&range.first)
        }
        _ => check_name(operation.set()),
    }
}

/// Words that `ipset` parses as options anywhere in a line, also in quotation marks: `ipset_envopts` in
/// [`lib/ipset.c` of ipset 7.17](https://git.netfilter.org/ipset/tree/lib/ipset.c?h=v7.17). A second leading dash is ignored.
const OPTIONS: [&str; 16] = [
    "-s", "-sorted", "-q", "-quiet", "-r", "-resolve", "-!", "-exist", "-o", "-output", "-t", "-terse", "-n",
    "-name", "-f", "-file",
];

fn is_option(word: &[u8]) -> bool {
    let word = word
        .strip_prefix(b"-")
        .filter(|rest| rest.starts_with(b"-"))
        .unwrap_or(word);
    OPTIONS.iter().any(|option| option.as_bytes() == word)
}

fn check_entry(entry: &crate::Entry) -> Result<(), ParseError> {
    if let crate::Element::Set(name) = entry.element() {
        check_name(name)?;
    }
    match &entry.options().comment {
        Some(comment)
            if is_option(comment.as_bytes())
                || comment
                    .as_bytes()
                    .iter()
                    .any(|byte| matches!(byte, b'"' | b'\n' | b'\r')) =>
        {
            Err(ParseError::new(
                "comment",
                comment,
                "cannot be written in the notation of ipset",
            ))
        }
        _ => Ok(()),
    }
}

fn check_name(name: &SetName) -> Result<(), ParseError> {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(text)
            if !text.contains(|c: char| c.is_whitespace() || c == '"') && !is_option(name.as_bytes()) =>
        {
            Ok(())
        }
        _ => Err(ParseError::new(
            "set name",
            name,
            "cannot be written in the notation of ipset",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let error = parse(text).unwrap_err();
        format!("{error}: {}", error.error)
    }

    #[test]
    fn the_output_of_ipset_save_parses_and_renders_unchanged() {
        let text = "\
create a hash:ip,port family inet hashsize 1024 maxelem 65536 timeout 300 counters comment skbinfo bucketsize 12 initval 0x8bc757d7
add a 1.1.1.1,icmp:echo-request timeout 299 packets 0 bytes 0
add a 1.1.1.1,tcp:80 timeout 0 packets 5 bytes 6 comment \"hello  -exist x\" skbmark 0x1/0xff skbprio 1:10 skbqueue 3
create b hash:ip family inet hashsize 1024 maxelem 65536 bitmask 255.0.255.0 bucketsize 12 initval 0x00000001
create c hash:net,iface family inet6 hashsize 1024 maxelem 65536 bucketsize 12 initval 0xa4a8d78b
add c ::/0,physdev:eth nomatch wildcard
create e bitmap:ip range 10.0.0.0-10.0.255.255 netmask 24
add e 10.0.3.0
create k bitmap:port range 1-1000 comment
add k 3 comment \"its \\ x\"
create m hash:ip,mark family inet markmask 0x0000ff00 hashsize 1024 maxelem 65536
create d list:set size 5 timeout 5
add d b timeout 4
";
        let operations = parse(text).unwrap();
        assert_eq!(operations.len(), text.lines().count());
        assert_eq!(render(&operations).unwrap(), text);
    }

    #[test]
    fn every_command_of_ipset_restore_is_parsed() {
        let text = "# a comment\n\n-N a iphash -exist\ncreate b hash:ip -6\n-A a 10.0.0.0/30\nadd a 10.0.0.9 -!\ndel a 10.0.0.1\n\
                    -D a 10.0.0.1-10.0.0.2 -exist\nflush a\nswap a b\nrename a c\n-A c 10.0.0.7\ndestroy c\nCOMMIT\n";
        assert_eq!(
            render(&parse(text).unwrap()).unwrap(),
            "create a hash:ip family inet -exist\ncreate b hash:ip family inet6\nadd a 10.0.0.0-10.0.0.3\n\
             add a 10.0.0.9 -exist\ndel a 10.0.0.1\ndel a 10.0.0.1-10.0.0.2 -exist\nflush a\nswap a b\nrename a c\n\
             add c 10.0.0.7\ndestroy c\n"
        );
    }

    #[test]
    fn errors_name_line_word_and_reason() {
        assert_eq!(
            error("create a hash:ip\nadd a x"),
            "line 2 is invalid: address \"x\" is neither an IPv4 nor an IPv6 address"
        );
        assert_eq!(
            error("add a 1.2.3.4"),
            "line 1 is invalid: set \"a\" has an unknown type, so its entries cannot be parsed"
        );
        assert_eq!(
            error("destroy"),
            "line 1 is invalid: command \"destroy\" requires the name of a set; changing all sets is not supported in text"
        );
        assert_eq!(
            error(&format!("destroy {}", "x".repeat(32))),
            format!(
                "line 1 is invalid: set name {:?} has 32 bytes; the maximum is 31 (IPSET_MAXNAMELEN includes the NUL)",
                "x".repeat(32)
            )
        );
        assert_eq!(
            error("make a"),
            "line 1 is invalid: command \"make\" is unknown; known: create, destroy, flush, rename, swap, add, del"
        );
        assert_eq!(
            error("create a hash:vlan"),
            "line 1 is invalid: set type \"hash:vlan\" is unknown"
        );
        assert_eq!(
            error("create a hash:ip hashsize"),
            "line 1 is invalid: option \"hashsize\" requires a value"
        );
        assert_eq!(
            error("create a hash:ip maxelem -1"),
            "line 1 is invalid: maxelem \"-1\" is not a number from 0 to 4294967295"
        );
        assert_eq!(
            error("create a bitmap:ip range ::/8"),
            "line 1 is invalid: range \"::/8\" is not a range of IPv4 addresses"
        );
        assert_eq!(
            error("swap a b c"),
            "line 1 is invalid: word \"c\" is unexpected at the end of the line"
        );
        let long = "x".repeat(32);
        assert!(error(&format!("flush {long}")).contains("the maximum is 31"));
    }

    #[test]
    fn what_the_notation_cannot_represent_is_refused() {
        let comment = crate::Comment::from_bytes(b"say \"hi\"").unwrap();
        let add = Operation::add(
            SetName::new("a").unwrap(),
            crate::Entry::port(1).with_comment(comment),
        );
        assert_eq!(render(&[add]).unwrap_err().error.what(), "comment");
        let flush = Operation::Flush {
            set: SetName::new("a b").unwrap(),
        };
        assert_eq!(render(&[flush]).unwrap_err().error.what(), "set name");
        // `ipset restore` and `parse` would take these for options.
        for name in ["-!", "-exist", "--exist", "-q", "-f"] {
            let set = SetName::new(name).unwrap();
            assert!(render(&[Operation::Flush { set }]).is_err(), "{name}");
        }
        let comment = crate::Comment::from_bytes(b"-exist").unwrap();
        let add = Operation::add(
            SetName::new("a").unwrap(),
            crate::Entry::port(1).with_comment(comment),
        );
        assert_eq!(render(&[add]).unwrap_err().error.what(), "comment");
        let set = SetName::new("-x").unwrap();
        assert_eq!(render(&[Operation::Flush { set }]).unwrap(), "flush -x\n");
        let renamed = parse("-E \"-!\" W").unwrap();
        assert_eq!(render(&renamed).unwrap_err().error.what(), "set name");
    }
}
