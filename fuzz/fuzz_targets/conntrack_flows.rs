//! Arbitrary listings: each message is a flow or an error, and each flow can be printed, filtered and deleted.
#![no_main]

use kernlink_conntrack::{Client, Conntrack, Filter, NewFlow, Operation, StaleFilter};
use kernlink_netlink::Script;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first byte of each part is its length, so that one input can be several messages.
    let mut datagram = Vec::new();
    let mut rest = data;
    while let Some((length, behind)) = rest.split_first() {
        let (payload, behind) = behind.split_at(usize::from(*length).saturating_mul(3).min(behind.len()));
        datagram.extend(Script::message(0x0100, 2, payload));
        rest = behind;
    }
    let script = Script::new().expect_anything().answer(&datagram).done();
    let Ok(connection) = script.connect() else { return };
    let mut client = Client::from_connection(connection);
    let Ok(flows) = client.flows(&Filter::new()) else {
        return;
    };
    for flow in flows.flatten() {
        let filter = Filter::new()
            .with_protocol(flow.protocol())
            .with_source(flow.original.source)
            .with_mark(flow.mark)
            .with_zone(flow.zone.id)
            .with_status(flow.status);
        assert!(filter.matches(&flow));
        assert!(!format!("{flow} {filter} {:?}", flow.labels).is_empty());
        let destination = flow.original.destination_socket();
        let question = StaleFilter::new().with_destination(flow.protocol(), destination, []);
        // An IPv4-mapped address in a filter is the IPv4 address.
        assert_eq!(
            question.is_stale(&flow),
            destination.ip() == destination.ip().to_canonical()
        );
        // Operations that delete and create any flow can be encoded without a panic.
        let again = NewFlow::new(flow.original, std::time::Duration::from_secs(1)).with_reply(flow.reply);
        let operations = [
            Operation::Delete(flow.key()),
            Operation::Add(again),
            Operation::DeleteMatching(filter),
        ];
        let script = Script::new()
            .expect_anything()
            .acknowledge(0, Ok(()))
            .acknowledge(1, Ok(()));
        let Ok(connection) = script.connect() else { return };
        assert_eq!(Client::from_connection(connection).execute(&operations).len(), 3);
    }
});
