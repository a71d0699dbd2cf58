//! Zones.

use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{Table, listed, new, ok, refused, udp};
use crate::error::Error;
use crate::filter::Filter;
use crate::zone::{Zone, ZoneDirection};

pub(super) const CHECKS: &[Check<Table>] = checks!(
    Table:
    zones_are_separate_tables,
    a_zone_of_one_direction_leaves_the_other_in_zone_0,
);

fn zones_are_separate_tables(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    for zone in [0, 5, 0x1234] {
        ok(table.add(&flow.clone().with_zone(Zone::new(zone))));
    }
    assert_eq!(ok(table.totals()).entries, 3);
    assert_eq!(
        listed(table, &Filter::new().with_zone(5)),
        ["udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53 zone=5"]
    );
    assert_eq!(
        listed(table, &Filter::new().with_zone(0)),
        ["udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53"]
    );
    ok(table.delete(&flow.key().with_zone(Zone::new(5))));
    refused(
        table.delete(&flow.key().with_zone(Zone::new(5))),
        Error::is_not_found,
    );
    assert_eq!(ok(table.totals()).entries, 2);
    assert_eq!(ok(table.flow(&flow.key())).zone, Zone::DEFAULT);
}

fn a_zone_of_one_direction_leaves_the_other_in_zone_0(table: &mut Table) {
    let zone = |direction| Zone {
        id: 0x1234,
        direction,
    };
    let original = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_zone(zone(ZoneDirection::Original));
    ok(table.add(&original));
    // The reply direction is in zone 0, so no other flow there can have its tuple.
    refused(
        table.add(&new(udp("10.0.0.1:4660", "10.0.0.2:53"))),
        Error::is_already_exists,
    );
    assert_eq!(ok(table.flow(&original.key())).zone, original.zone);
    let reply = new(udp("10.0.0.1:4661", "10.0.0.2:53")).with_zone(zone(ZoneDirection::Reply));
    ok(table.add(&reply));
    assert_eq!(ok(table.flow(&reply.key())).zone, reply.zone);
    assert_eq!(listed(table, &Filter::new().with_zone(0x1234)).len(), 2);
    for flow in ok(table.list(&Filter::new())) {
        ok(table.delete(&flow.key()));
    }
    assert_eq!(ok(table.totals()).entries, 0);
}
