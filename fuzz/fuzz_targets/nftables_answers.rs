//! Arbitrary answers to a transaction and to requests for single objects: each operation has an outcome, each key has an element or
//! none, and every error can be printed.
#![no_main]

use kernlink_netlink::Script;
use kernlink_nftables::{
    Chain, Client, DataType, Element, Elements, Error, Nftables, Operation, Set, Table, TableFamily,
    TableKey, Value,
};
use libfuzzer_sys::fuzz_target;

const NLMSG_ERROR: u16 = 2;

/// A client whose next request has these answers. Each part of the input begins with the index of the request, the type of the message, its
/// flags and its length.
fn client(data: &[u8]) -> Option<Client> {
    let mut script = Script::new().expect_anything();
    let mut rest = data;
    while let [request, kind, flags, length, after @ ..] = rest {
        let (payload, after) = after.split_at(usize::from(*length).min(after.len()));
        let message_type = match kind {
            0..64 => 0x0a00 | u16::from(*kind),
            64..128 => u16::from(kind % 5),
            _ => NLMSG_ERROR,
        };
        let message = Script::message(message_type, u16::from(*flags) << 4, payload);
        script = script.answer_to(usize::from(request % 8), &message);
        rest = after;
    }
    script.connect().ok().map(Client::from_connection)
}

fn print<T>(result: Result<T, Error>) {
    if let Err(error) = result {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        assert!(!format!("{error} {source:?} {error:?}").is_empty());
    }
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, data) = input;
    let Some(mut client) = client(data) else { return };
    let key = TableKey::new(TableFamily::Ip, "t");
    let set = key.set("s");
    let elements = Elements::new(set.clone(), (0..3).map(|port| Element::new(Value::port(port))));
    match kind % 7 {
        0 => {
            let operations = [
                Operation::add(Table::new(key.clone())),
                Operation::add(Set::new(set, &[DataType::Service])),
                Operation::add(elements.clone()),
                Operation::add(Chain::new(key.chain("a"))),
                Operation::delete(elements),
            ];
            let outcomes = client.execute(&operations);
            assert_eq!(outcomes.len(), operations.len());
            // All of them, or none.
            let executed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
            assert!([0, operations.len()].contains(&executed));
            outcomes.into_iter().for_each(print);
        }
        1 => match client.find_elements(&elements) {
            Ok(found) => assert_eq!(found.len(), 3),
            error => print(error),
        },
        2 => print(client.generation()),
        3 => print(client.table(&key)),
        4 => print(client.chain(&key.chain("a"))),
        5 => print(client.set(&set)),
        _ => print(client.reset_elements(&set)),
    }
});
