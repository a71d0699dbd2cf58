//! Outcomes of several operations, and invalid ones.

use std::time::Duration;

use kernlink_base::Protocol;
use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{Table, network, new, socket, udp};
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::FlowKey;
use crate::flow_update::FlowUpdate;
use crate::new_flow::NewFlow;
use crate::operation::{FlushScope, Operation};
use crate::tuple::Tuple;

pub(super) const CHECKS: &[Check<Table>] = checks!(
    Table:
    each_operation_has_an_outcome_in_order,
    invalid_operations_are_refused_with_a_reason,
);

fn each_operation_has_an_outcome_in_order(table: &mut Table) {
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
        Operation::Flush(FlushScope::All),
        Operation::Update(flow.key(), FlowUpdate::new().with_mark(1)),
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

fn invalid_operations_are_refused_with_a_reason(table: &mut Table) {
    let tuple = udp("10.0.0.1:4660", "10.0.0.2:53");
    let cases = [
        (
            new(Tuple {
                protocol: Protocol::ICMP,
                ..tuple
            }),
            "original tuple: ports or ICMP fields do not match protocol icmp",
        ),
        (
            new(tuple).with_reply(udp("[::1]:1", "[::1]:2")),
            "reply tuple: family or protocol differs from the original tuple",
        ),
        (
            NewFlow::new(tuple, Duration::from_millis(1500)),
            "invalid timeout 1.5s; valid: whole seconds from 0 to 4294967295",
        ),
        (
            new(tuple).with_helper("a name that is too long"),
            "invalid helper name; valid: 1 to 15 bytes without NUL (NF_CT_HELPER_NAME_LEN includes the terminating NUL)",
        ),
        (
            new(tuple).with_source_nat(socket("[::1]:1").ip(), None),
            "source translation: addresses of different families",
        ),
    ];
    for (flow, text) in cases {
        match table.add(&flow) {
            Err(Error::Invalid { problem, .. }) => assert_eq!(problem.to_string(), text),
            other => panic!("expected {text:?}: {other:?}"),
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
