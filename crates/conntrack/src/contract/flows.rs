//! Adding, finding and listing flows.

use std::time::Duration;

use kernlink_base::checks;
use kernlink_base::contract::Check;
use kernlink_base::{Family, Protocol};

use super::{Table, listed, new, ok, population, refused, socket, udp};
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::FlowKey;
use crate::flow_update::FlowUpdate;
use crate::operation::FlushScope;
use crate::status::Status;
use crate::tuple::{ProtocolPart, Tuple};
use crate::zone::Zone;

pub(super) const CHECKS: &[Check<Table>] = checks!(
    Table:
    an_empty_table_lists_nothing,
    a_flow_is_added_once,
    a_reply_tuple_belongs_to_one_flow_only,
    a_flow_is_found_by_either_tuple,
    a_flow_is_listed_as_it_was_added,
    translation_changes_the_reply_tuple,
    an_absent_flow_is_not_found,
    a_key_with_another_id_is_not_found,
    flows_without_ports_are_supported,
    a_timeout_of_zero_deletes_a_flow,
    flows_of_every_kind_of_tuple_are_added_and_listed,
    an_unknown_helper_is_unsupported,
    a_master_must_exist,
    totals_counts_the_flows,
);

fn an_empty_table_lists_nothing(table: &mut Table) {
    assert_eq!(listed(table, &Filter::new()), [""; 0]);
    assert_eq!(ok(table.totals()).entries, 0);
}

fn a_flow_is_added_once(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    refused(table.add(&flow), Error::is_already_exists);
    assert_eq!(
        listed(table, &Filter::new()),
        ["udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53"]
    );
}

fn a_reply_tuple_belongs_to_one_flow_only(table: &mut Table) {
    ok(table.add(&new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_reply(udp("10.0.0.3:54", "10.0.0.1:4660"))));
    // The original tuple differs, the reply tuple does not.
    refused(
        table.add(&new(udp("10.0.0.1:4660", "10.0.0.9:53")).with_reply(udp("10.0.0.3:54", "10.0.0.1:4660"))),
        Error::is_already_exists,
    );
}

fn a_flow_is_found_by_either_tuple(table: &mut Table) {
    let original = udp("10.0.0.1:4660", "10.0.0.2:53");
    let reply = udp("10.0.0.3:54", "10.0.0.1:4660");
    ok(table.add(&new(original).with_reply(reply)));
    let by_original = ok(table.flow(&FlowKey::new(original)));
    let by_reply = ok(table.flow(&FlowKey::new(reply)));
    assert_eq!(by_original.key(), by_reply.key());
    assert_eq!((by_original.original, by_original.reply), (original, reply));
    ok(table.delete(&FlowKey::new(reply)));
    refused(table.flow(&FlowKey::new(original)), Error::is_not_found);
}

fn a_flow_is_listed_as_it_was_added(table: &mut Table) {
    let new = new(udp("[fd00::1]:4660", "[fd00::2]:53"))
        .with_mark(0x1234_5678)
        .with_zone(Zone::new(0x1234))
        .with_status(Status::SEEN_REPLY | Status::ASSURED);
    ok(table.add(&new));
    let flows = ok(table.list(&Filter::new()));
    let [flow] = flows.as_slice() else {
        panic!("expected one flow: {flows:?}")
    };
    assert_eq!(flow.original, new.original);
    assert_eq!(Some(flow.reply), new.original.inverted());
    assert_eq!(flow.mark, new.mark);
    assert_eq!(flow.zone, new.zone);
    assert!(
        flow.status
            .contains(Status::SEEN_REPLY | Status::ASSURED | Status::CONFIRMED)
    );
    let left = flow.timeout.map_or(0, |timeout| timeout.as_secs());
    assert!((540..=600).contains(&left), "{left} seconds left");
    assert_eq!(ok(table.flow(&flow.key())).key(), flow.key());
}

fn translation_changes_the_reply_tuple(table: &mut Table) {
    let endpoint = socket("10.0.1.1:5353");
    let flow =
        new(udp("10.0.0.1:4660", "10.96.0.10:53")).with_destination_nat(endpoint.ip(), Some(endpoint.port()));
    ok(table.add(&flow));
    let found = ok(table.flow(&flow.key()));
    assert_eq!(found.reply, udp("10.0.1.1:5353", "10.0.0.1:4660"));
    assert!(found.status.contains(Status::DST_NAT) && !found.status.contains(Status::SRC_NAT));
    let source_nat =
        new(udp("10.0.0.1:4661", "10.96.0.10:53")).with_source_nat(socket("10.0.0.7:0").ip(), Some(4662));
    ok(table.add(&source_nat));
    let found = ok(table.flow(&source_nat.key()));
    assert_eq!(found.reply, udp("10.96.0.10:53", "10.0.0.7:4662"));
    assert!(found.status.contains(Status::SRC_NAT) && !found.status.contains(Status::DST_NAT));
    assert_eq!(
        listed(table, &Filter::new().with_status(Status::DST_NAT)).len(),
        1
    );
}

fn an_absent_flow_is_not_found(table: &mut Table) {
    let key = FlowKey::new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    refused(table.flow(&key), Error::is_not_found);
    refused(table.delete(&key), Error::is_not_found);
    refused(
        table.update(&key, &FlowUpdate::new().with_mark(7)),
        Error::is_not_found,
    );
}

fn a_key_with_another_id_is_not_found(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    let key = ok(table.flow(&flow.key())).key();
    let other = key.with_id(key.id.unwrap_or(0) ^ 1);
    refused(table.flow(&other), Error::is_not_found);
    refused(table.delete(&other), Error::is_not_found);
    ok(table.delete(&key));
    assert_eq!(ok(table.totals()).entries, 0);
}

/// For protocols with ports that some kernels do not track.
fn flows_without_ports_are_supported(table: &mut Table) {
    for protocol in [Protocol::DCCP, Protocol::UDPLITE, Protocol::GRE, Protocol::SCTP] {
        for (source, destination) in [("10.0.0.1:0", "10.0.0.2:0"), ("[fd00::1]:0", "[fd00::2]:0")] {
            let tuple = Tuple {
                protocol,
                part: ProtocolPart::None,
                ..udp(source, destination)
            };
            let flow = new(tuple);
            match table.add(&flow) {
                Ok(()) => {}
                // The kernel tracks the protocol, and requires ports.
                Err(error) if error.errno() == Some(kernlink_netlink::Errno::EINVAL) => continue,
                Err(error) => panic!("{error:?}"),
            }
            let found = ok(table.flow(&flow.key()));
            assert_eq!(found.original, tuple);
            ok(table.update(&found.key(), &FlowUpdate::new().with_mark(1)));
            ok(table.delete(&found.key()));
            ok(table.add(&flow));
            ok(table.flush(FlushScope::Family(tuple.family())));
            assert_eq!(ok(table.totals()).entries, 0);
        }
    }
}

fn a_timeout_of_zero_deletes_a_flow(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    ok(table.update(&flow.key(), &FlowUpdate::new().with_timeout(Duration::ZERO)));
    refused(table.flow(&flow.key()), Error::is_not_found);
    assert_eq!(listed(table, &Filter::new()), [""; 0]);
}

/// One tuple of each kind that every kernel tracks, of both families.
fn kinds() -> Vec<Tuple> {
    let mut tuples = Vec::new();
    for (client, server) in [("10.0.0.1", "10.0.0.2"), ("[fd00::1]", "[fd00::2]")] {
        let [source, destination] =
            [(client, 0x1234), (server, 0x2345)].map(|(address, port)| socket(&format!("{address}:{port}")));
        for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
            tuples.push(Tuple::with_ports(protocol, source, destination));
        }
        tuples.push(Tuple::echo_request(source.ip(), destination.ip(), 0x1234));
        tuples.push(Tuple {
            protocol: Protocol(50),
            part: ProtocolPart::None,
            ..Tuple::udp(source, destination)
        });
    }
    tuples
}

fn flows_of_every_kind_of_tuple_are_added_and_listed(table: &mut Table) {
    let tuples = kinds();
    for tuple in &tuples {
        ok(table.add(&new(*tuple)));
        let flow = ok(table.flow(&FlowKey::new(*tuple)));
        assert_eq!((flow.original, Some(flow.reply)), (*tuple, tuple.inverted()));
    }
    assert_eq!(ok(table.list(&Filter::new())).len(), tuples.len());
    assert_eq!(
        listed(table, &Filter::new().with_family(Family::Ipv6)).len(),
        tuples.len() / 2
    );
    assert_eq!(
        listed(table, &Filter::new().with_protocol(Protocol::UDP)).len(),
        2
    );
    for tuple in &tuples {
        ok(table.delete(&FlowKey::new(*tuple)));
    }
    assert_eq!(ok(table.totals()).entries, 0);
}

fn an_unknown_helper_is_unsupported(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_helper("kernlink-none");
    refused(table.add(&flow), Error::is_unsupported);
}

fn a_master_must_exist(table: &mut Table) {
    let master = udp("10.0.0.1:4660", "10.0.0.2:69");
    let child = new(udp("10.0.0.2:2000", "10.0.0.1:4660")).with_master(master);
    refused(table.add(&child), Error::is_not_found);
    ok(table.add(&new(master)));
    ok(table.add(&child));
    let found = ok(table.flow(&child.key()));
    assert_eq!(found.master.as_deref(), Some(&master));
    assert!(found.status.contains(Status::EXPECTED));
}

fn totals_counts_the_flows(table: &mut Table) {
    population(table);
    assert_eq!(ok(table.totals()).entries, 16);
    ok(table.flush(FlushScope::All));
    assert_eq!(ok(table.totals()).entries, 0);
}
