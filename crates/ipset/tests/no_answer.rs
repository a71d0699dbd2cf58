//! A kernel that stops answering. A script takes the part of the kernel.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use kernlink_ipset::{Client, Entry, Error, IpSets, Operation, Set, SetName, SetType};
use kernlink_netlink::{Errno, Script};

fn name(number: usize) -> SetName {
    SetName::new(&format!("s{number}")).unwrap()
}

/// True if the operation was sent and not answered, false if it was not sent. Panics for every other outcome.
fn was_sent(outcome: &Result<(), Error>) -> bool {
    match outcome {
        Err(Error::Netlink { error, .. }) if matches!(**error, kernlink_netlink::Error::TimedOut) => true,
        Err(Error::NotAttempted) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn after_a_timeout_nothing_more_is_sent() {
    // More operations than one send takes. The script has no second send, so that one would be another error.
    let operations: Vec<Operation> = (0..300)
        .map(|number| Operation::Rename {
            from: name(2 * number),
            to: name(2 * number + 1),
        })
        .collect();
    let script = Script::new().expect_anything();
    // The kernel answers the first two operations only.
    let script = script.acknowledge(0, Ok(())).acknowledge(1, Err(Errno::ENOENT));
    let mut client = Client::from_connection(script.connect().unwrap());
    let outcomes = client.execute(&operations);
    assert_eq!(outcomes.len(), operations.len());
    assert_eq!(outcomes[0], Ok(()));
    assert!(outcomes[1].as_ref().is_err_and(Error::is_not_found));
    let sent = outcomes
        .iter()
        .skip(2)
        .take_while(|outcome| was_sent(outcome))
        .count();
    assert!(sent > 0 && sent < 200, "{sent}");
    assert!(outcomes.iter().skip(2 + sent).all(|outcome| !was_sent(outcome)));
    // The error of an operation that was sent names the operation.
    let text = outcomes[7].as_ref().unwrap_err().to_string();
    assert!(text == "cannot rename s14 s15", "{text}");
}

#[test]
fn if_the_revisions_of_a_type_are_not_answered_nothing_more_is_sent() {
    let operations: Vec<Operation> = [
        Operation::Rename {
            from: name(0),
            to: name(1),
        },
        Operation::create(Set::new(name(2), SetType::HashIp)),
        Operation::create(Set::new(name(3), SetType::HashNet)),
    ]
    .to_vec();
    // The revisions of the set type are requested before the operations are sent.
    let mut client = Client::from_connection(Script::new().expect_anything().connect().unwrap());
    let outcomes = client.execute(&operations);
    let sent: Vec<bool> = outcomes.iter().map(was_sent).collect();
    assert_eq!(sent, [false, true, false]);
}

#[test]
fn if_the_type_of_a_set_is_not_answered_nothing_is_sent() {
    let entry = || Entry::ip("10.0.0.1".parse().unwrap());
    let operations = [
        Operation::create(Set::new(name(0), SetType::HashIp)),
        Operation::add(name(1), entry()),
        Operation::destroy(name(2)),
    ];
    let mut client = Client::from_connection(Script::new().expect_anything().connect().unwrap());
    let outcomes = client.execute(&operations);
    let sent: Vec<bool> = outcomes.iter().map(was_sent).collect();
    assert_eq!(sent, [false, true, false]);
    assert!(
        outcomes[1]
            .as_ref()
            .unwrap_err()
            .to_string()
            .starts_with("cannot add s1 10.0.0.1")
    );
}
