//! What every [`Conntrack`] must do: run on the `Fake` in unit tests and on the kernel in kernel tests.
//!
//! Each check starts and ends with an empty table and panics where the contract is broken. It must be
//! given a table of its own: in the kernel, a network namespace of its own.

#![expect(clippy::panic, reason = "a check says what went wrong by panicking")]

use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::deletion::Conntrack;
use crate::error::Error;
use crate::filter::{Filter, TupleFilter};
use crate::flow::{FlowKey, Labels, Status};
use crate::operation::{Changes, NewFlow, Operation, Scope};
use crate::protocol_state::{Family, Protocol, ProtocolState, SctpState, TcpState};
use crate::stale_filter::StaleFlows;
use crate::tuple::{Tuple, Zone, ZoneScope};

/// One check of the contract.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What it checks, as a sentence.
    pub name: &'static str,
    check: fn(&mut dyn Conntrack),
}

impl Check {
    /// Runs the check, between two flushes.
    pub fn run(&self, table: &mut dyn Conntrack) {
        ok(table.flush(Scope::Everything));
        (self.check)(table);
        ok(table.flush(Scope::Everything));
    }
}

macro_rules! checks {
    ($($name:ident),* $(,)?) => {
        /// All checks.
        pub const ALL: &[Check] = &[$(Check { name: stringify!($name), check: $name }),*];
    };
}

checks![
    an_empty_table_lists_nothing,
    a_flow_is_added_once,
    both_tuples_are_taken,
    a_flow_is_found_by_either_tuple,
    a_flow_is_listed_as_it_was_added,
    translation_shows_in_the_reply,
    an_absent_flow_is_not_found,
    another_id_is_another_flow,
    ensure_adds_and_then_changes,
    a_mark_is_changed_bit_by_bit,
    status_bits_are_set_and_not_taken_away,
    a_tcp_state_is_changed,
    all_of_a_protocol_state_is_written,
    labels_are_changed_bit_by_bit,
    ensure_keeps_status_bits,
    a_fixed_timeout_is_no_missing_privilege,
    a_flow_that_leads_elsewhere_is_spared,
    a_flow_without_ports_is_a_flow,
    a_flow_without_time_left_is_gone,
    zones_are_tables_of_their_own,
    zones_of_one_direction_share_the_other,
    every_kind_of_tuple_goes_in_and_out,
    an_outcome_for_each_operation_in_order,
    what_cannot_be_is_refused_by_name,
    a_helper_that_is_not_there_is_unsupported,
    a_master_must_be_there,
    deletion_by_filter_hits_what_the_filter_accepts,
    deletion_by_filter_needs_a_condition,
    deletion_by_address_spares_all_others,
    deletion_by_port_spares_other_protocols,
    several_filters_share_one_pass,
    labels_ranges_and_either_direction_are_conditions,
    flushing_a_part_spares_the_rest,
    vanished_flows_are_counted_apart,
    stale_flows_are_found_in_one_pass,
    the_total_is_the_number_of_flows,
];

#[track_caller]
fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

#[track_caller]
fn refused<T: Debug>(result: Result<T, Error>, is: fn(&Error) -> bool) {
    match result {
        Err(error) if is(&error) => {}
        other => panic!("another outcome was expected than {other:?}"),
    }
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn network(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|_| panic!("{text}"))
}

fn udp(source: &str, destination: &str) -> Tuple {
    Tuple::udp(socket(source), socket(destination))
}

fn new(tuple: Tuple) -> NewFlow {
    NewFlow::new(tuple, Duration::from_secs(600))
}

/// The original tuples that a filter accepts, sorted.
#[track_caller]
fn listed(table: &mut dyn Conntrack, filter: &Filter) -> Vec<String> {
    let mut tuples: Vec<String> = ok(table.list(filter))
        .iter()
        .map(|flow| flow.key().with_zone(flow.zone))
        .map(|key| FlowKey { id: None, ..key }.to_string())
        .collect();
    tuples.sort();
    tuples
}

fn an_empty_table_lists_nothing(table: &mut dyn Conntrack) {
    assert_eq!(listed(table, &Filter::new()), [""; 0]);
    assert_eq!(ok(table.totals()).entries, 0);
}

fn a_flow_is_added_once(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    refused(table.add(&flow), Error::is_already_exists);
    assert_eq!(
        listed(table, &Filter::new()),
        ["udp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53"]
    );
}

fn both_tuples_are_taken(table: &mut dyn Conntrack) {
    ok(table.add(&new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_reply(udp("10.0.0.3:54", "10.0.0.1:4660"))));
    // Another original tuple, the same reply tuple.
    refused(
        table.add(&new(udp("10.0.0.1:4660", "10.0.0.9:53")).with_reply(udp("10.0.0.3:54", "10.0.0.1:4660"))),
        Error::is_already_exists,
    );
}

fn a_flow_is_found_by_either_tuple(table: &mut dyn Conntrack) {
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

fn a_flow_is_listed_as_it_was_added(table: &mut dyn Conntrack) {
    let new = new(udp("[fd00::1]:4660", "[fd00::2]:53"))
        .with_mark(0x1234_5678)
        .with_zone(Zone::new(0x1234))
        .with_status(Status::SEEN_REPLY | Status::ASSURED);
    ok(table.add(&new));
    let flows = ok(table.list(&Filter::new()));
    let [flow] = flows.as_slice() else {
        panic!("one flow was expected: {flows:?}")
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

fn translation_shows_in_the_reply(table: &mut dyn Conntrack) {
    let backend = socket("10.0.1.1:5353");
    let flow =
        new(udp("10.0.0.1:4660", "10.96.0.10:53")).with_destination_nat(backend.ip(), Some(backend.port()));
    ok(table.add(&flow));
    let found = ok(table.flow(&flow.key()));
    assert_eq!(found.reply, udp("10.0.1.1:5353", "10.0.0.1:4660"));
    assert!(found.status.contains(Status::DST_NAT) && !found.status.contains(Status::SRC_NAT));
    let masked =
        new(udp("10.0.0.1:4661", "10.96.0.10:53")).with_source_nat(socket("10.0.0.7:0").ip(), Some(4662));
    ok(table.add(&masked));
    let found = ok(table.flow(&masked.key()));
    assert_eq!(found.reply, udp("10.96.0.10:53", "10.0.0.7:4662"));
    assert!(found.status.contains(Status::SRC_NAT) && !found.status.contains(Status::DST_NAT));
    assert_eq!(
        listed(table, &Filter::new().with_status(Status::DST_NAT)).len(),
        1
    );
}

fn an_absent_flow_is_not_found(table: &mut dyn Conntrack) {
    let key = FlowKey::new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    refused(table.flow(&key), Error::is_not_found);
    refused(table.delete(&key), Error::is_not_found);
    refused(
        table.update(&key, &Changes::new().with_mark(7)),
        Error::is_not_found,
    );
}

fn another_id_is_another_flow(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    let key = ok(table.flow(&flow.key())).key();
    let other = key.with_id(key.id.unwrap_or(0) ^ 1);
    refused(table.flow(&other), Error::is_not_found);
    refused(table.delete(&other), Error::is_not_found);
    ok(table.delete(&key));
    assert_eq!(ok(table.totals()).entries, 0);
}

fn ensure_adds_and_then_changes(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.ensure(&flow));
    let key = ok(table.flow(&flow.key())).key();
    ok(table.ensure(&flow.clone().with_mark(9)));
    let found = ok(table.flow(&flow.key()));
    assert_eq!((found.mark, found.key()), (9, key));
    assert_eq!(ok(table.totals()).entries, 1);
    // What is decided when a flow begins cannot be ensured later.
    let translated = flow.with_destination_nat(socket("10.0.1.1:5353").ip(), None);
    refused(table.ensure(&translated), Error::is_unsupported);
}

fn a_mark_is_changed_bit_by_bit(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_mark(0xff00_00ff);
    ok(table.add(&flow));
    ok(table.update(
        &flow.key(),
        &Changes::new().with_masked_mark(0x1234_5678, 0x00ff_ff00),
    ));
    assert_eq!(ok(table.flow(&flow.key())).mark, 0xff34_56ff);
    ok(table.update(&flow.key(), &Changes::new().with_mark(3)));
    assert_eq!(ok(table.flow(&flow.key())).mark, 3);
}

fn status_bits_are_set_and_not_taken_away(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    let assured = Status::SEEN_REPLY | Status::ASSURED;
    ok(table.update(&flow.key(), &Changes::new().with_status(assured)));
    assert!(ok(table.flow(&flow.key())).status.contains(assured));
    refused(
        table.update(&flow.key(), &Changes::new().with_status(Status::SEEN_REPLY)),
        Error::is_busy,
    );
    refused(
        table.update(&flow.key(), &Changes::new().with_status(assured | Status::DYING)),
        Error::is_busy,
    );
    assert!(ok(table.flow(&flow.key())).status.contains(assured));
}

fn a_tcp_state_is_changed(table: &mut dyn Conntrack) {
    let state = |table: &mut dyn Conntrack, key: &FlowKey| match ok(table.flow(key)).protocol_state {
        Some(ProtocolState::Tcp { state, .. }) => state,
        other => panic!("no TCP state: {other:?}"),
    };
    let tuple = Tuple::tcp(socket("10.0.0.1:4660"), socket("10.0.0.2:80"));
    let flow = new(tuple).with_tcp_state(TcpState::ESTABLISHED);
    ok(table.add(&flow));
    assert_eq!(state(table, &flow.key()), TcpState::ESTABLISHED);
    ok(table.update(&flow.key(), &Changes::new().with_tcp_state(TcpState::TIME_WAIT)));
    assert_eq!(state(table, &flow.key()), TcpState::TIME_WAIT);
}

fn all_of_a_protocol_state_is_written(table: &mut dyn Conntrack) {
    let ends = (socket("10.0.0.1:4660"), socket("10.0.0.2:80"));
    let states = [
        ProtocolState::Tcp {
            state: TcpState::SYN_SENT,
            window_scale: [7, 14],
            flags: [0b11, 0b1001],
        },
        ProtocolState::Tcp {
            state: TcpState::ESTABLISHED,
            window_scale: [3, 0],
            flags: [0b1, 0b1011],
        },
    ];
    let associations = [
        ProtocolState::Sctp {
            state: SctpState::COOKIE_WAIT,
            verification_tags: [0x1234_5678, 0],
        },
        ProtocolState::Sctp {
            state: SctpState::ESTABLISHED,
            verification_tags: [0x1234_5678, 0x9abc_def0],
        },
    ];
    for (protocol, [first, second]) in [(Protocol::TCP, states), (Protocol::SCTP, associations)] {
        let flow = new(Tuple::with_ports(protocol, ends.0, ends.1)).with_protocol_state(first);
        ok(table.add(&flow));
        assert_eq!(ok(table.flow(&flow.key())).protocol_state, Some(first));
        ok(table.update(&flow.key(), &Changes::new().with_protocol_state(second)));
        assert_eq!(ok(table.flow(&flow.key())).protocol_state, Some(second));
        ok(table.ensure(&flow));
        assert_eq!(ok(table.flow(&flow.key())).protocol_state, Some(first));
    }
    let tcp = new(Tuple::tcp(ends.0, ends.1));
    let [first, _] = associations;
    for (flow, text) in [
        (
            tcp.clone().with_protocol_state(first),
            "protocol state: it is one of sctp and the flow is of tcp",
        ),
        (
            new(udp("10.0.0.1:1", "10.0.0.2:2")).with_tcp_state(TcpState::ESTABLISHED),
            "protocol state: it is one of tcp and the flow is of udp",
        ),
        (
            tcp.with_protocol_state(ProtocolState::Tcp {
                state: TcpState::ESTABLISHED,
                window_scale: [0, 15],
                flags: [1, 1],
            }),
            "window scale: 15 is more than 14",
        ),
    ] {
        match table.ensure(&flow) {
            Err(Error::Invalid { problem, .. }) => assert_eq!(problem.to_string(), text),
            other => panic!("{text} was expected: {other:?}"),
        }
    }
}

/// If flows have room for labels, which a rule decides.
fn labels_are_changed_bit_by_bit(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_labels(Labels(0b0110 | 1 << 71));
    ok(table.add(&flow));
    let labels = |table: &mut dyn Conntrack| ok(table.flow(&flow.key())).labels;
    let change = |value, mask| Changes::new().with_labels(Labels(value), Labels(mask));
    let Some(first) = labels(table) else {
        let no_room = |error: &Error| error.errno() == Some(kernlink_netlink::Errno::ENOSPC);
        refused(table.update(&flow.key(), &change(1, 1)), no_room);
        refused(table.ensure(&flow), no_room);
        return;
    };
    assert_eq!(first, Labels(0b0110 | 1 << 71));
    // Bits of the value outside the mask have no effect.
    ok(table.update(&flow.key(), &change(0b1011, 0b0001)));
    assert_eq!(labels(table), Some(Labels(0b0111 | 1 << 71)));
    ok(table.update(&flow.key(), &change(0, 0b0010 | 1 << 71)));
    assert_eq!(labels(table), Some(Labels(0b0101)));
    ok(table.update(&flow.key(), &change(1 << 127, u128::MAX)));
    assert_eq!(labels(table), Some(Labels(1 << 127)));
    ok(table.ensure(&flow.clone().with_labels(Labels(0b1000))));
    assert_eq!(labels(table), Some(Labels(0b1000)));
    ok(table.update(&flow.key(), &change(0, u128::MAX)));
    assert_eq!(labels(table), None);
}

fn ensure_keeps_status_bits(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow.clone().with_status(Status::SEEN_REPLY)));
    let status = |table: &mut dyn Conntrack| ok(table.flow(&flow.key())).status;
    ok(table.ensure(&flow.clone().with_mark(7)));
    assert_eq!(status(table), Status::SEEN_REPLY | Status::CONFIRMED);
    ok(table.ensure(&flow.clone().with_status(Status::ASSURED)));
    assert_eq!(
        status(table),
        Status::SEEN_REPLY | Status::ASSURED | Status::CONFIRMED
    );
    assert_eq!(ok(table.flow(&flow.key())).mark, 0);
    // One that is expected, which a status that is asked for cannot be.
    let child = new(udp("10.0.0.2:2000", "10.0.0.1:4660")).with_master(flow.original);
    ok(table.add(&child));
    let again = new(child.original).with_status(Status::SEEN_REPLY);
    ok(table.ensure(&again));
    assert!(
        ok(table.flow(&child.key()))
            .status
            .contains(Status::EXPECTED | Status::SEEN_REPLY)
    );
    // In a batch, in order.
    let outcomes = table.execute(&[
        Operation::Ensure(again),
        Operation::Delete(child.key()),
        Operation::Ensure(flow.clone().with_status(Status::SEEN_REPLY)),
        Operation::Delete(flow.key()),
    ]);
    assert_eq!(outcomes, [Ok(()), Ok(()), Ok(()), Ok(())]);
    assert_eq!(ok(table.totals()).entries, 0);
    refused(table.ensure(&flow.with_status(Status::DYING)), Error::is_busy);
}

fn a_fixed_timeout_is_no_missing_privilege(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_status(Status::FIXED_TIMEOUT);
    ok(table.add(&flow));
    let refused = |outcome: Result<(), Error>| {
        refused(outcome, |error| {
            error.is_timeout_fixed() && !error.is_permission_denied() && !error.is_outcome_unknown()
        });
    };
    let change = Changes::new().with_timeout(Duration::from_secs(10)).with_mark(7);
    let key = ok(table.flow(&flow.key())).key();
    refused(table.update(&key, &change));
    refused(table.ensure(&flow.clone().with_mark(7)));
    assert_eq!(ok(table.flow(&flow.key())).mark, 0);
    ok(table.update(&key, &Changes::new().with_mark(7)));
    assert_eq!(ok(table.flow(&flow.key())).mark, 7);
    ok(table.delete(&key));
}

/// Does something else between listing and deleting.
struct Meddler<'t> {
    table: &'t mut dyn Conntrack,
    meddle: fn(&mut dyn Conntrack),
}

impl Conntrack for Meddler<'_> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.table.execute(operations)
    }
    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<crate::deletion::Flows<'a>, Error> {
        self.table.flows(filter)
    }
    fn flow(&mut self, key: &FlowKey) -> Result<crate::flow::Flow, Error> {
        self.table.flow(key)
    }
    fn delete_matching(&mut self, filter: &Filter) -> Result<crate::deletion::Deletion, Error> {
        self.table.delete_matching(filter)
    }
    fn delete_all(&mut self, keys: &[FlowKey]) -> crate::deletion::Deletion {
        (self.meddle)(self.table);
        self.table.delete_all(keys)
    }
    fn totals(&mut self) -> Result<crate::statistics::Totals, Error> {
        self.table.totals()
    }
}

/// A stale flow ends before it is deleted, and its client's next packet makes one that leads where it should.
fn a_flow_that_leads_elsewhere_is_spared(table: &mut dyn Conntrack) {
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

/// Of a protocol with ports that a kernel may have no tracker for.
fn a_flow_without_ports_is_a_flow(table: &mut dyn Conntrack) {
    for protocol in [Protocol::DCCP, Protocol::UDPLITE, Protocol::GRE, Protocol::SCTP] {
        for (source, destination) in [("10.0.0.1:0", "10.0.0.2:0"), ("[fd00::1]:0", "[fd00::2]:0")] {
            let tuple = Tuple {
                protocol,
                part: crate::tuple::ProtocolPart::None,
                ..udp(source, destination)
            };
            let flow = new(tuple);
            match table.add(&flow) {
                Ok(()) => {}
                // It has a tracker, which wants ports.
                Err(error) if error.errno() == Some(kernlink_netlink::Errno::EINVAL) => continue,
                Err(error) => panic!("{error:?}"),
            }
            let found = ok(table.flow(&flow.key()));
            assert_eq!(found.original, tuple);
            ok(table.update(&found.key(), &Changes::new().with_mark(1)));
            ok(table.delete(&found.key()));
            ok(table.add(&flow));
            ok(table.flush(Scope::Family(tuple.family())));
            assert_eq!(ok(table.totals()).entries, 0);
        }
    }
}

fn a_flow_without_time_left_is_gone(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    ok(table.update(&flow.key(), &Changes::new().with_timeout(Duration::ZERO)));
    refused(table.flow(&flow.key()), Error::is_not_found);
    assert_eq!(listed(table, &Filter::new()), [""; 0]);
}

fn zones_are_tables_of_their_own(table: &mut dyn Conntrack) {
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

fn zones_of_one_direction_share_the_other(table: &mut dyn Conntrack) {
    let scoped = |scope| Zone { id: 0x1234, scope };
    let original = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_zone(scoped(ZoneScope::Original));
    ok(table.add(&original));
    // The reply direction is in zone 0, where its tuple is taken now.
    refused(
        table.add(&new(udp("10.0.0.1:4660", "10.0.0.2:53"))),
        Error::is_already_exists,
    );
    assert_eq!(ok(table.flow(&original.key())).zone, original.zone);
    let reply = new(udp("10.0.0.1:4661", "10.0.0.2:53")).with_zone(scoped(ZoneScope::Reply));
    ok(table.add(&reply));
    assert_eq!(ok(table.flow(&reply.key())).zone, reply.zone);
    assert_eq!(listed(table, &Filter::new().with_zone(0x1234)).len(), 2);
    for flow in ok(table.list(&Filter::new())) {
        ok(table.delete(&flow.key()));
    }
    assert_eq!(ok(table.totals()).entries, 0);
}

/// One tuple of each kind that every kernel tracks, both families.
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
            part: crate::tuple::ProtocolPart::None,
            ..Tuple::udp(source, destination)
        });
    }
    tuples
}

fn every_kind_of_tuple_goes_in_and_out(table: &mut dyn Conntrack) {
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

fn an_outcome_for_each_operation_in_order(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    let mixed = Tuple {
        destination: socket("[::1]:53").ip(),
        ..flow.original
    };
    let outcomes = table.execute(&[
        Operation::Delete(flow.key()),
        Operation::Add(flow.clone()),
        Operation::Add(flow.clone()),
        Operation::Delete(FlowKey::new(mixed)),
        Operation::DeleteMatching(Filter::new().with_protocol(Protocol::UDP)),
        Operation::DeleteMatching(Filter::new()),
        Operation::Add(flow.clone()),
        Operation::Flush(Scope::Everything),
        Operation::Update(flow.key(), Changes::new().with_mark(1)),
    ]);
    let found: Vec<&str> = outcomes
        .iter()
        .map(|outcome| match outcome {
            Ok(()) => "done",
            Err(error) if error.is_not_found() => "not found",
            Err(error) if error.is_already_exists() => "exists",
            Err(Error::Invalid { .. }) => "invalid",
            Err(_) => "other",
        })
        .collect();
    assert_eq!(
        found,
        [
            "not found",
            "done",
            "exists",
            "invalid",
            "done",
            "invalid",
            "done",
            "done",
            "not found"
        ]
    );
    assert_eq!(table.execute(&[]), []);
}

fn what_cannot_be_is_refused_by_name(table: &mut dyn Conntrack) {
    let tuple = udp("10.0.0.1:4660", "10.0.0.2:53");
    let cases = [
        (
            new(Tuple {
                protocol: Protocol::ICMP,
                ..tuple
            }),
            "original tuple: its protocol-specific part is not one of icmp",
        ),
        (
            new(tuple).with_reply(udp("[::1]:1", "[::1]:2")),
            "reply tuple: its family and protocol are not those of the original tuple",
        ),
        (
            NewFlow::new(tuple, Duration::from_millis(1500)),
            "timeout: 1.5s is not a whole number of seconds up to 4294967295",
        ),
        (
            new(tuple).with_helper("a name that is too long"),
            "helper: a name has 1 to 15 bytes (NF_CT_HELPER_NAME_LEN) and no NUL",
        ),
        (
            new(tuple).with_source_nat(socket("[::1]:1").ip(), None),
            "source translation: source and destination are of different families",
        ),
    ];
    for (flow, text) in cases {
        match table.add(&flow) {
            Err(Error::Invalid { problem, .. }) => assert_eq!(problem.to_string(), text),
            other => panic!("{text} was expected: {other:?}"),
        }
    }
    let contradictory = Filter::new()
        .with_source(network("10.0.0.0/8"))
        .with_destination(network("fd00::/8"));
    assert!(matches!(
        table.list(&contradictory),
        Err(Error::InvalidFilter { .. })
    ));
    assert!(matches!(
        table.delete_matching(&contradictory),
        Err(Error::Invalid { .. })
    ));
}

fn a_helper_that_is_not_there_is_unsupported(table: &mut dyn Conntrack) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_helper("kernlink-none");
    refused(table.add(&flow), Error::is_unsupported);
}

fn a_master_must_be_there(table: &mut dyn Conntrack) {
    let master = udp("10.0.0.1:4660", "10.0.0.2:69");
    let child = new(udp("10.0.0.2:2000", "10.0.0.1:4660")).with_master(master);
    refused(table.add(&child), Error::is_not_found);
    ok(table.add(&new(master)));
    ok(table.add(&child));
    let found = ok(table.flow(&child.key()));
    assert_eq!(found.master.as_deref(), Some(&master));
    assert!(found.status.contains(Status::EXPECTED));
}

/// Sixteen flows: two clients, two services, two ports, both families, marked by client.
fn population(table: &mut dyn Conntrack) {
    for (client, service) in [("10.0.0", "10.96.0"), ("[fd00::", "[fd96::")] {
        let close = if client.starts_with('[') { "]" } else { "" };
        let dot = if client.starts_with('[') { "" } else { "." };
        for host in [1, 2] {
            for target in [1, 2] {
                for port in [53, 54] {
                    let flow = new(udp(
                        &format!("{client}{dot}{host}{close}:4660"),
                        &format!("{service}{dot}{target}{close}:{port}"),
                    ));
                    ok(table.add(&flow.with_mark(host).with_zone(Zone::new(target))));
                }
            }
        }
    }
}

fn deletion_by_filter_hits_what_the_filter_accepts(table: &mut dyn Conntrack) {
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
    for (filter, hits) in filters {
        population(table);
        let before = listed(table, &Filter::new());
        let accepted = listed(table, &filter);
        assert_eq!(accepted.len(), hits, "-L {filter}");
        let deletion = ok(table.delete_matching(&filter));
        assert_eq!(deletion.failed, []);
        if let Some(deleted) = deletion.deleted {
            assert_eq!(deleted, hits as u64, "-D {filter}");
        }
        let mut left = listed(table, &Filter::new());
        left.extend(accepted);
        left.sort();
        assert_eq!(left, before, "-D {filter}");
        ok(table.flush(Scope::Everything));
    }
}

fn deletion_by_filter_needs_a_condition(table: &mut dyn Conntrack) {
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
    ok(table.flush(Scope::Everything));
    assert_eq!(ok(table.totals()).entries, 0);
}

/// Again and again, since an implementation may learn on the way what its kernel can do.
fn deletion_by_address_spares_all_others(table: &mut dyn Conntrack) {
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
        ok(table.flush(Scope::Everything));
    }
}

fn deletion_by_port_spares_other_protocols(table: &mut dyn Conntrack) {
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
    // Of any protocol: those with ports.
    ok(table.delete_matching(&Filter::new().with_destination_port(54)));
    assert_eq!(
        listed(table, &Filter::new()),
        [
            "icmp src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=53",
            "tcp src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=53",
        ]
    );
}

fn several_filters_share_one_pass(table: &mut dyn Conntrack) {
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
        let mut accepted: Vec<String> = filters.iter().flat_map(|filter| listed(table, filter)).collect();
        accepted.sort();
        accepted.dedup();
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
        assert_eq!(any, accepted);
        let deletion = ok(table.delete_any(filters));
        assert_eq!(deletion.deleted, Some(any.len() as u64));
        let mut left = listed(table, &Filter::new());
        left.extend(accepted);
        left.sort();
        assert_eq!(left, before);
        ok(table.flush(Scope::Everything));
    }
    population(table);
    assert!(matches!(
        table.delete_any(&[udp, Filter::new()]),
        Err(Error::Invalid { .. })
    ));
    assert_eq!(ok(table.totals()).entries, 16);
}

fn labels_ranges_and_either_direction_are_conditions(table: &mut dyn Conntrack) {
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
    // Deleted as they are listed.
    ok(table.delete_matching(&udp.with_source_port(1001..=1999)));
    assert_eq!(ok(table.totals()).entries, 2);
    let empty = Filter::new().with_source_port(std::ops::RangeInclusive::new(2, 1));
    assert!(matches!(table.list(&empty), Err(Error::InvalidFilter { .. })));
}

fn flushing_a_part_spares_the_rest(table: &mut dyn Conntrack) {
    for (scope, left) in [
        (Scope::Family(Family::Ipv4), 8),
        (Scope::Family(Family::Ipv6), 8),
        (Scope::Zone(1), 8),
        (Scope::Zone(3), 16),
        (Scope::FamilyInZone(Family::Ipv6, 2), 12),
        (Scope::Everything, 0),
    ] {
        population(table);
        ok(table.flush(scope));
        let flows = ok(table.list(&Filter::new()));
        assert_eq!(flows.len(), left, "{scope:?}");
        assert!(
            !flows.iter().any(|flow| scope.filter().matches(flow)),
            "{scope:?}"
        );
        ok(table.flush(Scope::Everything));
    }
}

fn vanished_flows_are_counted_apart(table: &mut dyn Conntrack) {
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

fn stale_flows_are_found_in_one_pass(table: &mut dyn Conntrack) {
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

fn the_total_is_the_number_of_flows(table: &mut dyn Conntrack) {
    population(table);
    assert_eq!(ok(table.totals()).entries, 16);
    ok(table.flush(Scope::Everything));
    assert_eq!(ok(table.totals()).entries, 0);
}
