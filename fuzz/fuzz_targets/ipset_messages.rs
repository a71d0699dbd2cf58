//! Arbitrary replies to all requests for sets: each request has an outcome, nothing panics, and there are not more entries than the
//! bytes can contain.
#![no_main]

use kernlink_ipset::{Client, Entry, IpSets, Operation, SetFamily, SetName, SetType};
use kernlink_netlink::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let message = Script::message(0x0607, 2, data);
    let client = || {
        let script = (0..8).fold(Script::new(), |script, _| {
            script
                .expect_anything()
                .answer(&message)
                .done()
                .acknowledge(0, Ok(()))
        });
        script.connect().ok().map(Client::from_connection)
    };
    let Ok(set) = SetName::new("a") else { return };
    let Some(mut first) = client() else { return };
    for listed in first.list_once().unwrap_or_default() {
        assert!(listed.entries.len() <= data.len() / 4);
        for entry in &listed.entries {
            // Each decoded entry can be printed.
            let _text = entry.to_string();
        }
    }
    if let Some(mut client) = client() {
        let _ = client.list();
    }
    if let Some(mut client) = client() {
        let _ = (client.headers(), client.names());
    }
    if let Some(mut client) = client() {
        let _ = (
            client.index_of(&set),
            client.name_of(1),
            client.revisions(SetType::HashIp, SetFamily::Inet),
        );
    }
    if let Some(mut client) = client() {
        let operations = [
            Operation::add(set, Entry::port(1)),
            Operation::add(set, Entry::port(2)),
        ];
        assert_eq!(client.execute(&operations).len(), 2);
    }
});
