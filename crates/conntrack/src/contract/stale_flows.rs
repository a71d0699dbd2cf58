//! Deleting by key and stale flows.

use kernlink_base::Protocol;
use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{Table, new, ok, population, socket, udp};
use crate::client::Conntrack;
use crate::deletion::Deletion;
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey};
use crate::flows::Flows;
use crate::new_flow::NewFlow;
use crate::operation::{FlushScope, Operation};
use crate::stale_filter::StaleFilter;
use crate::statistics::Totals;
use crate::zone::{Zone, ZoneDirection};

pub(super) const CHECKS: &[Check<Table>] = checks!(
    Table:
    delete_stale_keeps_a_later_flow_with_another_destination,
    flows_that_are_not_found_are_counted_separately,
    stale_flows_are_listed_and_deleted,
);

fn flows_that_are_not_found_are_counted_separately(table: &mut Table) {
    population(table);
    let keys: Vec<FlowKey> = ok(table.list(&Filter::new()))
        .iter()
        .map(|flow| flow.key())
        .collect();
    ok(table.flush(FlushScope::Zone(1)));
    let deletion = table.delete_many(&keys);
    assert_eq!((deletion.deleted, deletion.not_found), (Some(8), 8));
    assert_eq!(deletion.failed, []);
    assert_eq!(ok(table.totals()).entries, 0);
}

fn stale_flows_are_listed_and_deleted(table: &mut Table) {
    let flows = [
        // To a service, and there to an endpoint, to a removed endpoint, and without address translation.
        ("10.0.0.1:1", "10.96.0.10:53", "10.0.1.1:5353"),
        ("10.0.0.1:2", "10.96.0.10:53", "10.0.1.2:5353"),
        ("10.0.0.1:3", "10.96.0.10:53", "10.96.0.10:53"),
        // To a service without endpoints.
        ("10.0.0.1:4", "10.96.0.11:53", "10.0.1.1:5353"),
        // To another destination.
        ("10.0.0.1:5", "192.0.2.1:53", "192.0.2.1:53"),
        ("[fd00::1]:6", "[fd96::10]:53", "[fd01::2]:5353"),
    ];
    for (client, service, endpoint) in flows {
        let flow = new(udp(client, service)).with_reply(udp(endpoint, client));
        ok(table.add(&flow));
    }
    let filter = StaleFilter::new()
        .with_destination(Protocol::UDP, socket("10.96.0.10:53"), [socket("10.0.1.1:5353")])
        .with_destination(Protocol::UDP, socket("10.96.0.11:53"), [])
        .with_destination(Protocol::UDP, socket("[fd96::10]:53"), [socket("[fd01::1]:5353")]);
    let mut ports: Vec<u16> = ok(table.list_stale(&filter))
        .iter()
        .map(|flow| flow.original.source_socket().port())
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [2, 3, 4, 6]);
    let deletion = ok(table.delete_stale(&filter));
    assert_eq!((deletion.deleted, deletion.not_found), (Some(4), 0));
    assert_eq!(ok(table.list_stale(&filter)), []);
    assert_eq!(ok(table.totals()).entries, 2);
    assert_eq!(ok(table.list_stale(&StaleFilter::new())), []);
}

/// Calls a function between listing and deleting.
struct Interleaved<'t> {
    table: &'t mut Table,
    before_deletion: fn(&mut Table),
}

impl Conntrack for Interleaved<'_> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.table.execute(operations)
    }
    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        self.table.flows(filter)
    }
    fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
        self.table.flow(key)
    }
    fn delete_matching(&mut self, filter: &Filter) -> Result<Deletion, Error> {
        self.table.delete_matching(filter)
    }
    fn delete_many(&mut self, keys: &[FlowKey]) -> Deletion {
        (self.before_deletion)(self.table);
        self.table.delete_many(keys)
    }
    fn totals(&mut self) -> Result<Totals, Error> {
        self.table.totals()
    }
}

/// A stale flow ends before it is deleted, and the next packet of its client begins a flow to a current endpoint.
fn delete_stale_keeps_a_later_flow_with_another_destination(table: &mut Table) {
    const CLIENT: &str = "10.0.0.1:4660";
    fn flow_to(server: &str) -> NewFlow {
        new(udp(CLIENT, "10.96.0.10:53")).with_reply(udp(server, CLIENT))
    }
    let filter = StaleFilter::new().with_destination(
        Protocol::UDP,
        socket("10.96.0.10:53"),
        [socket("10.0.1.2:5353")],
    );
    ok(table.add(&flow_to("10.0.1.1:5353")));
    let mut interleaved = Interleaved {
        table,
        before_deletion: |table| {
            ok(table.flush(FlushScope::All));
            ok(table.add(&flow_to("10.0.1.2:5353")));
        },
    };
    let deletion = ok(interleaved.delete_stale(&filter));
    assert_eq!((deletion.deleted, deletion.not_found), (Some(0), 1));
    let [later] = &ok(table.list(&Filter::new()))[..] else {
        panic!("the later flow was deleted")
    };
    assert_eq!(later.reply, udp("10.0.1.2:5353", CLIENT));
    // The key finds the flow in a zone of each direction.
    for direction in [ZoneDirection::Both, ZoneDirection::Original, ZoneDirection::Reply] {
        let flow = flow_to("10.0.1.3:5353").with_zone(Zone { id: 7, direction });
        ok(table.flush(FlushScope::All));
        ok(table.add(&flow));
        let key = ok(table.flow(&flow.key())).key_by_reply();
        assert_eq!(ok(table.flow(&key)).original, flow.original, "{direction:?}");
        ok(table.delete(&key));
    }
}
