//! Listing, deleting and flushing by a filter.

use kernlink_base::checks;
use kernlink_base::contract::Check;
use kernlink_base::{Family, Protocol};

use super::{Table, listed, network, new, ok, population, socket, udp};
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{FlowKey, Labels};
use crate::operation::FlushScope;
use crate::status::Status;
use crate::tuple::Tuple;
use crate::tuple_filter::TupleFilter;

pub(super) const CHECKS: &[Check<Table>] = checks!(
    Table:
    delete_matching_deletes_exactly_the_matching_flows,
    delete_matching_requires_a_condition,
    delete_matching_by_address_keeps_other_addresses,
    delete_matching_by_port_keeps_other_protocols,
    list_any_and_delete_any_take_several_filters,
    filters_compare_labels_port_ranges_and_either_direction,
    flush_of_a_scope_keeps_other_flows,
);

fn delete_matching_deletes_exactly_the_matching_flows(table: &mut Table) {
    let udp = Filter::new().with_protocol(Protocol::UDP);
    let filters = [
        (udp.clone().with_family(Family::Ipv4), 8),
        (udp.clone().with_destination_port(53), 8),
        (udp.clone().with_destination(network("10.96.0.1/32")), 4),
        (udp.clone().with_destination(network("10.96.0.0/30")), 8),
        (udp.clone().with_destination(network("fd96::1/128")), 4),
        (
            udp.clone()
                .with_reply_source(network("fd96::2/128"))
                .with_reply_source_port(54),
            2,
        ),
        (Filter::new().with_mark(2), 8),
        (Filter::new().with_masked_mark(1, 1), 8),
        (Filter::new().with_zone(1), 8),
        (Filter::new().with_zone(0), 0),
        (
            Filter::new().with_zone(1).with_mark(1).with_family(Family::Ipv6),
            2,
        ),
        (Filter::new().with_status(Status::CONFIRMED), 16),
        (Filter::new().with_status(Status::DST_NAT), 0),
        (Filter::new().with_protocol(Protocol::TCP), 0),
    ];
    for (filter, matches) in filters {
        population(table);
        let before = listed(table, &Filter::new());
        let matching = listed(table, &filter);
        assert_eq!(matching.len(), matches, "-L {filter}");
        let deletion = ok(table.delete_matching(&filter));
        assert_eq!(deletion.failed, []);
        if let Some(deleted) = deletion.deleted {
            assert_eq!(deleted, matches as u64, "-D {filter}");
        }
        let mut left = listed(table, &Filter::new());
        left.extend(matching);
        left.sort();
        assert_eq!(left, before, "-D {filter}");
        ok(table.flush(FlushScope::All));
    }
}

fn delete_matching_requires_a_condition(table: &mut Table) {
    population(table);
    for filter in [
        Filter::new(),
        Filter::new().with_masked_mark(0, 0),
        Filter::new().with_status(Status::empty()),
    ] {
        assert!(matches!(
            table.delete_matching(&filter),
            Err(Error::Invalid { .. })
        ));
    }
    assert_eq!(ok(table.totals()).entries, 16);
    ok(table.flush(FlushScope::All));
    assert_eq!(ok(table.totals()).entries, 0);
}

/// Several times, because a client may probe the kernel between two deletions.
fn delete_matching_by_address_keeps_other_addresses(table: &mut Table) {
    for source in [
        "10.0.0.1/32",
        "fd00::1/128",
        "fd00::1/128",
        "fd00::1/128",
        "10.0.0.1/32",
    ] {
        population(table);
        let filter = Filter::new().with_source(network(source));
        ok(table.delete_matching(&filter));
        assert_eq!(listed(table, &filter), [""; 0], "{source}");
        assert_eq!(ok(table.list(&Filter::new())).len(), 12, "{source}");
        ok(table.flush(FlushScope::All));
    }
}

fn delete_matching_by_port_keeps_other_protocols(table: &mut Table) {
    let ends = (socket("10.0.0.1:4660"), socket("10.0.0.2:53"));
    let other = socket("10.0.0.2:54");
    for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
        ok(table.add(&new(Tuple::with_ports(protocol, ends.0, ends.1))));
        ok(table.add(&new(Tuple::with_ports(protocol, ends.0, other))));
    }
    ok(table.add(&new(Tuple::echo_request(ends.0.ip(), ends.1.ip(), 53))));
    for (protocol, left) in [(Protocol::SCTP, 6), (Protocol::UDP, 5)] {
        let filter = Filter::new().with_protocol(protocol).with_destination_port(53);
        ok(table.delete_matching(&filter));
        assert_eq!(ok(table.list(&Filter::new())).len(), left, "{protocol}");
    }
    // A port without a protocol matches every protocol with ports.
    ok(table.delete_matching(&Filter::new().with_destination_port(54)));
    assert_eq!(
        listed(table, &Filter::new()),
        [
            "icmp src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=53",
            "tcp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53",
        ]
    );
}

fn list_any_and_delete_any_take_several_filters(table: &mut Table) {
    let udp = Filter::new().with_protocol(Protocol::UDP);
    let filters = [
        udp.clone().with_destination(network("10.96.0.1/32")),
        udp.clone().with_family(Family::Ipv6).with_mark(2),
        udp.clone().with_destination_port(54).with_mark(1),
        udp.clone().with_protocol(Protocol::TCP),
    ];
    for filters in [&filters[..], &filters[..1], &filters[1..3], &[]] {
        population(table);
        let before = listed(table, &Filter::new());
        let mut matching: Vec<String> = filters.iter().flat_map(|filter| listed(table, filter)).collect();
        matching.sort();
        matching.dedup();
        let mut any: Vec<String> = ok(table.list_any(filters))
            .iter()
            .map(|flow| {
                FlowKey {
                    id: None,
                    ..flow.key()
                }
                .to_string()
            })
            .collect();
        any.sort();
        assert_eq!(any, matching);
        let deletion = ok(table.delete_any(filters));
        assert_eq!(deletion.deleted, Some(any.len() as u64));
        let mut left = listed(table, &Filter::new());
        left.extend(matching);
        left.sort();
        assert_eq!(left, before);
        ok(table.flush(FlushScope::All));
    }
    population(table);
    assert!(matches!(
        table.delete_any(&[udp, Filter::new()]),
        Err(Error::Invalid { .. })
    ));
    assert_eq!(ok(table.totals()).entries, 16);
}

fn filters_compare_labels_port_ranges_and_either_direction(table: &mut Table) {
    for (port, server, labels) in [
        (1000, "10.0.1.1:53", 0b01),
        (1001, "10.0.1.2:53", 0b11),
        (1999, "10.0.1.1:54", 0b10),
        (2000, "10.0.1.3:54", 0b00),
    ] {
        let client = format!("10.0.0.1:{port}");
        let flow = new(udp(&client, "10.96.0.10:53"))
            .with_reply(udp(server, &client))
            .with_labels(Labels(labels));
        ok(table.add(&flow));
    }
    let mut ports = |filter: &Filter| -> Vec<u16> {
        let mut ports: Vec<u16> = ok(table.list(filter))
            .iter()
            .map(|flow| flow.original.source_socket().port())
            .collect();
        ports.sort_unstable();
        ports
    };
    let has_labels = !ports(&Filter::new().with_labels(Labels(1))).is_empty();
    let udp = Filter::new().with_protocol(Protocol::UDP);
    assert_eq!(ports(&udp.clone().with_source_port(1000..=1001)), [1000, 1001]);
    assert_eq!(ports(&udp.clone().with_source_port(1001..=1999)), [1001, 1999]);
    assert_eq!(ports(&udp.clone().with_source_port(2000..=2000)), [2000]);
    assert_eq!(ports(&udp.clone().with_reply_source_port(54..=60)), [1999, 2000]);
    let either = |tuple: TupleFilter| Filter::new().with_either(tuple);
    let server = TupleFilter::new().with_source(network("10.0.1.1/32"));
    assert_eq!(ports(&either(server.clone())), [1000, 1999]);
    assert_eq!(ports(&either(server.clone().with_source_port(54))), [1999]);
    assert_eq!(ports(&either(server.with_destination_port(1000..=1500))), [1000]);
    let client = TupleFilter::new().with_source(network("10.0.0.1/32"));
    assert_eq!(ports(&either(client.clone())).len(), 4);
    assert_eq!(ports(&either(client.with_source_port(54))), [0; 0]);
    if has_labels {
        assert_eq!(ports(&Filter::new().with_labels(Labels(1))), [1000, 1001]);
        assert_eq!(ports(&Filter::new().with_labels(Labels(0b11))), [1001]);
        let only = Filter::new().with_masked_labels(Labels(0b10), Labels(0b11));
        assert_eq!(ports(&only), [1999]);
    }
    let none = Filter::new().with_masked_labels(Labels(0), Labels(0b11));
    assert_eq!(ports(&none).len(), if has_labels { 1 } else { 4 });
    // Deletion compares the same conditions as listing.
    ok(table.delete_matching(&udp.with_source_port(1001..=1999)));
    assert_eq!(ok(table.totals()).entries, 2);
    let empty = Filter::new().with_source_port(std::ops::RangeInclusive::new(2, 1));
    assert!(matches!(table.list(&empty), Err(Error::InvalidFilter { .. })));
}

fn flush_of_a_scope_keeps_other_flows(table: &mut Table) {
    for (scope, left) in [
        (FlushScope::Family(Family::Ipv4), 8),
        (FlushScope::Family(Family::Ipv6), 8),
        (FlushScope::Zone(1), 8),
        (FlushScope::Zone(3), 16),
        (FlushScope::FamilyInZone(Family::Ipv6, 2), 12),
        (FlushScope::All, 0),
    ] {
        population(table);
        ok(table.flush(scope));
        let flows = ok(table.list(&Filter::new()));
        assert_eq!(flows.len(), left, "{scope:?}");
        assert!(
            !flows.iter().any(|flow| scope.filter().matches(flow)),
            "{scope:?}"
        );
        ok(table.flush(FlushScope::All));
    }
}
