//! The messages between this crate and a kernel, recorded in `tests/golden/session.txt`: the crate must send the same bytes again
//! and decode the answers to the same values. A script takes the part of the kernel.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use kernlink_ipset::{Client, Operation, Reason, SetFamily, SetName, SetType, notation};
use kernlink_netlink::Script;

/// Lines of `ipset restore` that were executed in one step, with the bytes that were sent (true) and received (false).
struct Step {
    lines: String,
    traffic: Vec<(bool, Vec<u8>)>,
}

fn session() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in include_str!("golden/session.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        let (prefix, rest) = line.split_at(2);
        match (prefix, steps.last_mut()) {
            ("$ ", Some(step)) if step.traffic.is_empty() => step.lines.push_str(&format!("{rest}\n")),
            ("$ ", _) => steps.push(Step {
                lines: format!("{rest}\n"),
                traffic: Vec::new(),
            }),
            (_, Some(step)) => step.traffic.push((prefix == "> ", bytes(rest))),
            _ => panic!("{line}"),
        }
    }
    steps
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

fn type_of(name: &SetName) -> Option<(SetType, SetFamily)> {
    Some(match name.to_string().as_str() {
        "web" => (SetType::HashIpPort, SetFamily::Inet6),
        "masked" => (SetType::HashIp, SetFamily::Inet),
        "ports" => (SetType::BitmapPort, SetFamily::Unspecified),
        "addresses" => (SetType::BitmapIpMac, SetFamily::Inet),
        "iface" => (SetType::HashNetIface, SetFamily::Inet),
        "triple" => (SetType::HashIpPortNet, SetFamily::Inet),
        "list" => (SetType::ListSet, SetFamily::Unspecified),
        _ => return None,
    })
}

#[test]
fn recorded_messages_are_encoded_and_decoded_the_same_again() {
    let session = session();
    assert_eq!(session.len(), 21);
    let mut script = Script::new();
    for (sent, bytes) in session.iter().flat_map(|step| &step.traffic) {
        script = if *sent {
            script.expect(bytes)
        } else {
            script.answer(bytes)
        };
    }
    let mut client = Client::from_connection(script.connect().unwrap());
    for step in &session {
        if step.lines == "LIST\n" {
            let listed = notation::save(&client.list_once().unwrap()).unwrap();
            assert_eq!(listed, include_str!("golden/session.save"));
            continue;
        }
        let operations = notation::parse_with(&step.lines, type_of).unwrap();
        for (operation, outcome) in operations
            .iter()
            .zip(kernlink_ipset::IpSets::execute(&mut client, &operations))
        {
            // In the middle of a message: 4663 is added, 4662 is refused, and 4664 is sent again.
            match operation {
                Operation::Add { .. }
                    if operation.to_string() == "add ports 4662" && step.lines.contains("4663") =>
                {
                    assert_eq!(outcome.unwrap_err().reason(), Some(Reason::EntryExists));
                }
                _ => outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}")),
            }
        }
    }
}
