//! Bytes as they went between this crate and a kernel, in `tests/golden/session.txt`, and played again: what is sent must
//! be the same, and what comes back must mean the same. The kernel is played by a script.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use kernlink_ipset::{Client, Operation, Reason, SetFamily, SetName, SetType, notation};
use kernlink_netlink::Script;

/// The lines of `ipset restore` that were executed in one step, and the bytes that went there and back.
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
        let (mark, rest) = line.split_at(2);
        match (mark, steps.last_mut()) {
            ("$ ", Some(step)) if step.traffic.is_empty() => step.lines.push_str(&format!("{rest}\n")),
            ("$ ", _) => steps.push(Step {
                lines: format!("{rest}\n"),
                traffic: Vec::new(),
            }),
            (_, Some(step)) => step.traffic.push((mark == "> ", bytes(rest))),
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

fn known(name: &SetName) -> Option<(SetType, SetFamily)> {
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
fn the_bytes_of_a_conversation_with_a_kernel_are_the_same_again() {
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
    let mut client = Client::over(script.connect().unwrap());
    for step in &session {
        if step.lines == "LIST\n" {
            let listed = notation::save(&client.list_once().unwrap()).unwrap();
            assert_eq!(listed, include_str!("golden/session.save"));
            continue;
        }
        let operations = notation::parse_with(&step.lines, known).unwrap();
        for (operation, outcome) in operations
            .iter()
            .zip(kernlink_ipset::IpSets::execute(&mut client, &operations))
        {
            // In the middle of a message: 4663 is added, 4662 refused, and 4664 sent again.
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
