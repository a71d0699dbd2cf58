//! Arbitrary notifications: each message is an event, is ignored, or is an error, and events can be printed.
#![no_main]

use kernlink_netlink::{Error, Script};
use kernlink_nftables::{Event, Operation};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Each part begins with its command and its length, so that one input can be several messages.
    let mut datagram = Vec::new();
    let mut rest = data;
    while let [command, length, after @ ..] = rest {
        let (payload, after) = after.split_at(usize::from(*length).saturating_mul(4).min(after.len()));
        datagram.extend(Script::message(0x0a00 | u16::from(*command), 2, payload));
        rest = after;
    }
    let script = Script::new().expect_anything().answer(&datagram).done();
    let Ok(mut connection) = script.connect() else {
        return;
    };
    let Ok(dump) = connection.dump(
        0x0a10,
        0,
        |_| {},
        |message| {
            // An error concerns one message.
            Ok::<_, Error>(Event::decode(message).ok().flatten())
        },
    ) else {
        return;
    };
    for event in dump.flatten() {
        assert!(!format!("{event:?} {:?}", event.family()).is_empty());
        match event {
            Event::Trace(trace) => assert!(!trace.to_string().is_empty()),
            Event::Added(item) => assert!(!Operation::add(item).to_string().is_empty()),
            _ => {}
        }
    }
});
