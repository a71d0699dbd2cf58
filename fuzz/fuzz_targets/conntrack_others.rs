//! Arbitrary replies to all requests except listings: one flow, totals, statistics, expectations.
#![no_main]

use kernlink_conntrack::{Client, Conntrack, FlowKey, Tuple};
use kernlink_netlink::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((choice, payload)) = data.split_first() else {
        return;
    };
    let message = Script::message(0x0100, 2, payload);
    let script = Script::new().expect_anything().answer(&message);
    // Lists and single replies end with different messages.
    let script = match choice % 6 {
        0 | 1 => script.acknowledge(0, Ok(())),
        _ => script.done(),
    };
    let Ok(connection) = script.connect() else { return };
    let mut client = Client::from_connection(connection);
    match choice % 6 {
        0 => drop(client.totals()),
        1 => {
            let ends = ([10, 0, 0, 1], 1).into();
            drop(client.flow(&FlowKey::new(Tuple::udp(ends, ends))));
        }
        2 => drop(client.cpu_statistics()),
        3 => drop(client.expectation_statistics()),
        4 => {
            for expectation in client.expectations().into_iter().flatten() {
                assert!(!expectation.to_string().is_empty());
            }
        }
        _ => drop(client.dying()),
    }
});
