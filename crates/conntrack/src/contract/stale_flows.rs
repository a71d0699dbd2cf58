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
use crate::operation::{Operation, Scope};
use crate::stale_filter::StaleFlows;
use crate::statistics::Totals;
use crate::zone::{Zone, ZoneScope};

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
    ok(table.flush(Scope::Zone(1)));
    let deletion = table.delete_all(&keys);
    assert_eq!((deletion.deleted, deletion.vanished), (Some(8), 8));
    assert_eq!(deletion.failed, []);
    assert_eq!(ok(table.totals()).entries, 0);
}

fn stale_flows_are_listed_and_deleted(table: &mut Table) {
    let flows = [
        // To a service, answered by an endpoint that is still there, by one that left, and by nobody.
        ("10.0.0.1:1", "10.96.0.10:53", "10.0.1.1:5353"),
        ("10.0.0.1:2", "10.96.0.10:53", "10.0.1.2:5353"),
        ("10.0.0.1:3", "10.96.0.10:53", "10.96.0.10:53"),
        // To a service without endpoints.
        ("10.0.0.1:4", "10.96.0.11:53", "10.0.1.1:5353"),
        // To something else.
        ("10.0.0.1:5", "192.0.2.1:53", "192.0.2.1:53"),
        ("[fd00::1]:6", "[fd96::10]:53", "[fd01::2]:5353"),
    ];
    for (client, service, answerer) in flows {
        let flow = new(udp(client, service)).with_reply(udp(answerer, client));
        ok(table.add(&flow));
    }
    let question = StaleFlows::new()
        .with_destination(Protocol::UDP, socket("10.96.0.10:53"), [socket("10.0.1.1:5353")])
        .with_destination(Protocol::UDP, socket("10.96.0.11:53"), [])
        .with_destination(Protocol::UDP, socket("[fd96::10]:53"), [socket("[fd01::1]:5353")]);
    let mut stale: Vec<u16> = ok(table.stale(&question))
        .iter()
        .map(|flow| flow.original.source_socket().port())
        .collect();
    stale.sort_unstable();
    assert_eq!(stale, [2, 3, 4, 6]);
    let deletion = ok(table.delete_stale(&question));
    assert_eq!((deletion.deleted, deletion.vanished), (Some(4), 0));
    assert_eq!(ok(table.stale(&question)), []);
    assert_eq!(ok(table.totals()).entries, 2);
    assert_eq!(ok(table.stale(&StaleFlows::new())), []);
}

/// Does something else between listing and deleting.
struct Meddler<'t> {
    table: &'t mut Table,
    meddle: fn(&mut Table),
}

impl Conntrack for Meddler<'_> {
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
    fn delete_all(&mut self, keys: &[FlowKey]) -> Deletion {
        (self.meddle)(self.table);
        self.table.delete_all(keys)
    }
    fn totals(&mut self) -> Result<Totals, Error> {
        self.table.totals()
    }
}

/// A stale flow ends before it is deleted, and its client's next packet makes one that leads where it should.
fn delete_stale_keeps_a_later_flow_with_another_destination(table: &mut Table) {
    const CLIENT: &str = "10.0.0.1:4660";
    fn leading_to(server: &str) -> NewFlow {
        new(udp(CLIENT, "10.96.0.10:53")).with_reply(udp(server, CLIENT))
    }
    let question =
        StaleFlows::new().with_destination(Protocol::UDP, socket("10.96.0.10:53"), [socket("10.0.1.2:5353")]);
    ok(table.add(&leading_to("10.0.1.1:5353")));
    let mut meddler = Meddler {
        table,
        meddle: |table| {
            ok(table.flush(Scope::Everything));
            ok(table.add(&leading_to("10.0.1.2:5353")));
        },
    };
    let deletion = ok(meddler.delete_stale(&question));
    assert_eq!((deletion.deleted, deletion.vanished), (Some(0), 1));
    let [live] = &ok(table.list(&Filter::new()))[..] else {
        panic!("the live flow is gone")
    };
    assert_eq!(live.reply, udp("10.0.1.2:5353", CLIENT));
    // The key finds the flow in zones of each kind.
    for scope in [ZoneScope::Both, ZoneScope::Original, ZoneScope::Reply] {
        let flow = leading_to("10.0.1.3:5353").with_zone(Zone { id: 7, scope });
        ok(table.flush(Scope::Everything));
        ok(table.add(&flow));
        let key = ok(table.flow(&flow.key())).key_by_reply();
        assert_eq!(ok(table.flow(&key)).original, flow.original, "{scope:?}");
        ok(table.delete(&key));
    }
}
