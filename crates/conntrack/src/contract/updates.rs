//! `ensure` and `update`.

use std::time::Duration;

use kernlink_base::Protocol;
use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{Table, new, ok, refused, socket, udp};
use crate::error::Error;
use crate::flow::{FlowKey, Labels};
use crate::flow_update::FlowUpdate;
use crate::operation::Operation;
use crate::protocol_state::{ProtocolState, SctpState, TcpState};
use crate::status::Status;
use crate::tuple::Tuple;

pub(super) const CHECKS: &[Check<Table>] = checks!(
    Table:
    ensure_adds_a_flow_or_updates_it,
    a_masked_mark_changes_only_the_bits_of_the_mask,
    status_bits_can_be_set_and_not_cleared,
    a_tcp_state_is_updated,
    all_fields_of_a_protocol_state_are_written,
    a_label_update_changes_only_the_labels_of_the_mask,
    ensure_keeps_status_bits,
    a_fixed_timeout_is_not_reported_as_a_missing_permission,
);

fn ensure_adds_a_flow_or_updates_it(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.ensure(&flow));
    let key = ok(table.flow(&flow.key())).key();
    ok(table.ensure(&flow.clone().with_mark(9)));
    let found = ok(table.flow(&flow.key()));
    assert_eq!((found.mark, found.key()), (9, key));
    assert_eq!(ok(table.totals()).entries, 1);
    // The kernel sets address translation only when a flow begins.
    let translated = flow.with_destination_nat(socket("10.0.1.1:5353").ip(), None);
    refused(table.ensure(&translated), Error::is_unsupported);
}

fn a_masked_mark_changes_only_the_bits_of_the_mask(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_mark(0xff00_00ff);
    ok(table.add(&flow));
    ok(table.update(
        &flow.key(),
        &FlowUpdate::new().with_masked_mark(0x1234_5678, 0x00ff_ff00),
    ));
    assert_eq!(ok(table.flow(&flow.key())).mark, 0xff34_56ff);
    ok(table.update(&flow.key(), &FlowUpdate::new().with_mark(3)));
    assert_eq!(ok(table.flow(&flow.key())).mark, 3);
}

fn status_bits_can_be_set_and_not_cleared(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow));
    let assured = Status::SEEN_REPLY | Status::ASSURED;
    ok(table.update(&flow.key(), &FlowUpdate::new().with_status(assured)));
    assert!(ok(table.flow(&flow.key())).status.contains(assured));
    refused(
        table.update(&flow.key(), &FlowUpdate::new().with_status(Status::SEEN_REPLY)),
        Error::is_busy,
    );
    refused(
        table.update(
            &flow.key(),
            &FlowUpdate::new().with_status(assured | Status::DYING),
        ),
        Error::is_busy,
    );
    assert!(ok(table.flow(&flow.key())).status.contains(assured));
}

fn a_tcp_state_is_updated(table: &mut Table) {
    let state = |table: &mut Table, key: &FlowKey| match ok(table.flow(key)).protocol_state {
        Some(ProtocolState::Tcp { state, .. }) => state,
        other => panic!("expected a TCP state: {other:?}"),
    };
    let tuple = Tuple::tcp(socket("10.0.0.1:4660"), socket("10.0.0.2:80"));
    let flow = new(tuple).with_tcp_state(TcpState::ESTABLISHED);
    ok(table.add(&flow));
    assert_eq!(state(table, &flow.key()), TcpState::ESTABLISHED);
    ok(table.update(
        &flow.key(),
        &FlowUpdate::new().with_tcp_state(TcpState::TIME_WAIT),
    ));
    assert_eq!(state(table, &flow.key()), TcpState::TIME_WAIT);
}

fn all_fields_of_a_protocol_state_are_written(table: &mut Table) {
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
        ok(table.update(&flow.key(), &FlowUpdate::new().with_protocol_state(second)));
        assert_eq!(ok(table.flow(&flow.key())).protocol_state, Some(second));
        ok(table.ensure(&flow));
        assert_eq!(ok(table.flow(&flow.key())).protocol_state, Some(first));
    }
    let tcp = new(Tuple::tcp(ends.0, ends.1));
    let [first, _] = associations;
    for (flow, text) in [
        (
            tcp.clone().with_protocol_state(first),
            "protocol state of sctp for a flow of tcp",
        ),
        (
            new(udp("10.0.0.1:1", "10.0.0.2:2")).with_tcp_state(TcpState::ESTABLISHED),
            "protocol state of tcp for a flow of udp",
        ),
        (
            tcp.with_protocol_state(ProtocolState::Tcp {
                state: TcpState::ESTABLISHED,
                window_scale: [0, 15],
                flags: [1, 1],
            }),
            "invalid window scale 15; valid: 0 to 14",
        ),
    ] {
        match table.ensure(&flow) {
            Err(Error::Invalid { problem, .. }) => assert_eq!(problem.to_string(), text),
            other => panic!("expected {text:?}: {other:?}"),
        }
    }
}

/// Flows have room for labels only if a rule of the network namespace uses labels.
fn a_label_update_changes_only_the_labels_of_the_mask(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_labels(Labels(0b0110 | 1 << 71));
    ok(table.add(&flow));
    let labels = |table: &mut Table| ok(table.flow(&flow.key())).labels;
    let change = |value, mask| FlowUpdate::new().with_labels(Labels(value), Labels(mask));
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

fn ensure_keeps_status_bits(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53"));
    ok(table.add(&flow.clone().with_status(Status::SEEN_REPLY)));
    let status = |table: &mut Table| ok(table.flow(&flow.key())).status;
    ok(table.ensure(&flow.clone().with_mark(7)));
    assert_eq!(status(table), Status::SEEN_REPLY | Status::CONFIRMED);
    ok(table.ensure(&flow.clone().with_status(Status::ASSURED)));
    assert_eq!(
        status(table),
        Status::SEEN_REPLY | Status::ASSURED | Status::CONFIRMED
    );
    assert_eq!(ok(table.flow(&flow.key())).mark, 0);
    // A child of another flow has EXPECTED, which a request cannot set.
    let child = new(udp("10.0.0.2:2000", "10.0.0.1:4660")).with_master(flow.original);
    ok(table.add(&child));
    let again = new(child.original).with_status(Status::SEEN_REPLY);
    ok(table.ensure(&again));
    assert!(
        ok(table.flow(&child.key()))
            .status
            .contains(Status::EXPECTED | Status::SEEN_REPLY)
    );
    // In one batch, in order.
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

fn a_fixed_timeout_is_not_reported_as_a_missing_permission(table: &mut Table) {
    let flow = new(udp("10.0.0.1:4660", "10.0.0.2:53")).with_status(Status::FIXED_TIMEOUT);
    ok(table.add(&flow));
    let refused = |outcome: Result<(), Error>| {
        refused(outcome, |error| {
            error.is_timeout_fixed() && !error.is_permission_denied() && !error.is_outcome_unknown()
        });
    };
    let change = FlowUpdate::new()
        .with_timeout(Duration::from_secs(10))
        .with_mark(7);
    let key = ok(table.flow(&flow.key())).key();
    refused(table.update(&key, &change));
    refused(table.ensure(&flow.clone().with_mark(7)));
    assert_eq!(ok(table.flow(&flow.key())).mark, 0);
    ok(table.update(&key, &FlowUpdate::new().with_mark(7)));
    assert_eq!(ok(table.flow(&flow.key())).mark, 7);
    ok(table.delete(&key));
}
