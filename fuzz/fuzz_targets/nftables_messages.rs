//! Arbitrary listings: each message is an object or an error, and what was read can be printed and written again.
#![no_main]

use kernlink_netlink::Script;
use kernlink_nftables::{
    ChainContents, Client, Elements, Nftables, Operation, Ruleset, SetContents, Table, TableContents,
    TableFamily, TableKey,
};
use libfuzzer_sys::fuzz_target;

/// A client whose next dump has these messages.
fn client(data: &[u8], command: u16) -> Option<Client> {
    // The first byte of each part is its length, so that one input can be several messages.
    let mut datagram = Vec::new();
    let mut rest = data;
    while let Some((length, after)) = rest.split_first() {
        let (payload, after) = after.split_at(usize::from(*length).saturating_mul(4).min(after.len()));
        datagram.extend(Script::message(0x0a00 | command, 2, payload));
        rest = after;
    }
    let script = Script::new().expect_anything().answer(&datagram).done();
    script.connect().ok().map(Client::from_connection)
}

/// Encodes operations; the answer does not matter.
fn write(operations: &[Operation]) {
    let Ok(connection) = Script::new().expect_anything().connect() else {
        return;
    };
    assert_eq!(
        Client::from_connection(connection).execute(operations).len(),
        operations.len()
    );
}

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, data) = input;
    // The name that messages must have to be in the table.
    let key = TableKey::new(TableFamily::Ip, "t");
    let mut contents = TableContents::new(Table::new(key.clone()));
    match kind % 7 {
        0 => {
            let tables = client(data, 0).and_then(|mut client| client.tables(None).ok());
            for table in tables.unwrap_or_default() {
                write(&[Operation::add(table)]);
            }
        }
        1 => {
            let chains = client(data, 3).and_then(|mut client| client.chains(&key).ok());
            let chains = chains.unwrap_or_default().into_iter();
            contents.chains = chains
                .map(|chain| ChainContents::new(chain, Vec::new()))
                .collect();
        }
        2 => {
            let rules = client(data, 6).and_then(|mut client| client.rules(&key, None).ok());
            for rule in rules.unwrap_or_default() {
                assert!(!format!("{rule:?}{rule}").is_empty());
                write(&[Operation::add(rule)]);
            }
        }
        3 => {
            let sets = client(data, 9).and_then(|mut client| client.sets(&key).ok());
            let sets = sets.unwrap_or_default().into_iter();
            contents.sets = sets.map(|set| SetContents::new(set, Vec::new())).collect();
        }
        4 => {
            let set = key.set("s");
            if let Some(mut client) = client(data, 12)
                && let Ok(elements) = client.elements(&set)
            {
                let elements = Elements::new(set, elements.flatten());
                let operation = Operation::add(elements);
                assert!(!operation.to_string().is_empty());
                write(&[operation]);
            }
        }
        5 => {
            let objects = client(data, 18).and_then(|mut client| client.objects(&key).ok());
            contents.objects = objects.unwrap_or_default();
        }
        _ => {
            let flowtables = client(data, 22).and_then(|mut client| client.flowtables(&key).ok());
            contents.flowtables = flowtables.unwrap_or_default();
        }
    }
    let mut ruleset = Ruleset::default();
    ruleset.tables.push(contents);
    assert!(!ruleset.to_string().is_empty());
    write(&ruleset.operations());
});
