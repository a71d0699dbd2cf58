use kernlink_netlink::{AttributeReader, Batch, Script};

use super::*;
use crate::{Client, Expression, Nftables, Rule, TableKey};

/// The rule of a message without netlink header.
fn decoded(payload: &[u8]) -> Rule {
    const NLM_F_MULTI: u16 = 2;
    let message = Script::message(message_type(crate::uapi::NFT_MSG_NEWRULE), NLM_F_MULTI, payload);
    let script = Script::new().expect_anything().answer(&message).done();
    let mut client = Client::from_connection(script.connect().unwrap());
    let table = TableKey::new(TableFamily::Ip, "any");
    client.rules(&table, None).unwrap().remove(0)
}

fn encoded(rule: &Rule) -> Vec<u8> {
    let mut batch = Batch::new();
    let write = |writer: &mut AttributeWriter<'_>| {
        encode_rule(writer, rule, Placement::Position, &Names::new(&[]));
    };
    batch.push(0, 0, write).unwrap();
    batch.messages().next().unwrap()[16..].to_vec()
}

/// Attributes as text, in order of their kinds, which the kernel does not depend on. Elements of lists keep their order.
fn tree(bytes: &[u8], depth: usize) -> String {
    let mut attributes: Vec<(u16, String)> = Vec::new();
    let mut rest = bytes;
    for attribute in AttributeReader::new(bytes) {
        let attribute = attribute.unwrap();
        let is_nested = rest[3] & 0x80 != 0;
        rest = &rest[(4 + attribute.bytes().len()).next_multiple_of(4).min(rest.len())..];
        // The number of a rule in its transaction, which is not read.
        if depth == 0 && attribute.kind() == crate::uapi::NFTA_RULE_ID {
            continue;
        }
        let text = match is_nested {
            true => format!("\n{}", tree(attribute.bytes(), depth + 1)),
            false => format!(" {:02x?}\n", attribute.bytes()),
        };
        attributes.push((attribute.kind(), text));
    }
    attributes.sort_by_key(|(kind, _)| *kind);
    let indentation = "  ".repeat(depth);
    attributes
        .iter()
        .map(|(kind, text)| format!("{indentation}{kind}:{text}"))
        .collect()
}

/// Whether a line is the same. The other library writes the numbers that a register of 16 bytes had before Linux 4.1; the kernel lists, and
/// this crate writes, that of its first 4 bytes. It writes the name of an object without the zero byte at its end.
fn is_same(expected: &str, written: &str) -> bool {
    let register = |number: u8| format!("[00, 00, 00, {number:02x}]");
    let is_renumbered = |old: u8| {
        let kind = expected.strip_suffix(&register(old));
        kind.is_some() && kind == written.strip_suffix(&register(8 + 4 * (old - 1)))
    };
    let is_terminated = || expected.strip_suffix(']') == written.strip_suffix(", 00]");
    expected == written || is_terminated() || (1..=4).any(is_renumbered)
}

#[test]
fn rules_of_another_library_are_read_and_written_the_same() {
    let (mut count, mut different) = (0, Vec::new());
    let lines = include_str!("rules_of_google_nftables.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let (test, hex) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        let rule = decoded(&bytes);
        let opaque = |expression: &&Expression| matches!(expression, Expression::Opaque(_));
        assert_eq!(rule.expressions.iter().find(opaque), None, "{test}");
        let (expected, written) = (tree(&bytes[4..], 0), tree(&encoded(&rule)[4..], 0));
        assert_eq!(decoded(&encoded(&rule)), rule, "{test}");
        count += 1;
        // `NFTA_BITWISE_OP`: the boolean operation, which is the kernel's default. The other library does not write it.
        let is_written = |line: &&str| *line != "      6: [00, 00, 00, 00]";
        let expected_lines: Vec<_> = expected.lines().filter(is_written).collect();
        let written_lines: Vec<_> = written.lines().filter(is_written).collect();
        let mut lines = expected_lines.iter().zip(&written_lines);
        if expected_lines.len() != written_lines.len() || !lines.all(|(a, b)| is_same(a, b)) {
            println!("{test}\n--- expected\n{expected}--- written\n{written}");
            different.push(test);
        }
    }
    assert_eq!(count, 41);
    assert_eq!(different, Vec::<&str>::new());
}
