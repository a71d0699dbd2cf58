//! Requests of the client to kernels of different versions, and its handling of their answers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use ipnet::IpNet;
use kernlink_conntrack::{
    Client, Conntrack, Error, Family, Filter, Flow, FlowKey, FlowUpdate, FlushScope, Labels, NewFlow,
    Operation, Protocol, Status, Tuple,
};
use kernlink_netlink::{Errno, Script};

const GET: u16 = 0x0101;
const DELETE: u16 = 0x0102;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x301;
const CREATE_EXCLUSIVE: u16 = 0x601;

fn flow(source: &str, port: u16, id: u32) -> Flow {
    let source = std::net::SocketAddr::new(source.parse().unwrap(), port);
    let server = if source.is_ipv4() {
        "10.96.0.10:53"
    } else {
        "[fd96::10]:53"
    };
    let tuple = Tuple::udp(source, server.parse().unwrap());
    let mut flow = Flow::new(tuple, tuple.inverted().unwrap());
    flow.id = id;
    flow
}

fn client(script: Script) -> Client {
    Client::from_connection(script.connect().unwrap())
}

fn network(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// `IPCTNL_MSG_CT_DELETE` of an IPv4 flow of `flow` by one of its tuples and its id.
fn delete(key: &FlowKey) -> Vec<u8> {
    let octets = |address: std::net::IpAddr| {
        let address: std::net::Ipv4Addr = address.to_string().parse().unwrap();
        address.octets()
    };
    let [source, destination] = [key.tuple.source_socket(), key.tuple.destination_socket()];
    let mut payload = vec![2, 0, 0, 0];
    // CTA_TUPLE_ORIG of 52 bytes: CTA_TUPLE_IP of 20, CTA_TUPLE_PROTO of 28.
    payload.extend([52, 0, 1, 0x80, 20, 0, 1, 0x80, 8, 0, 1, 0]);
    payload.extend(octets(source.ip()));
    payload.extend([8, 0, 2, 0]);
    payload.extend(octets(destination.ip()));
    payload.extend([28, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 2, 0]);
    payload.extend(source.port().to_be_bytes());
    payload.extend([0, 0, 6, 0, 3, 0]);
    payload.extend(destination.port().to_be_bytes());
    payload.extend([0, 0]);
    // CTA_ID
    payload.extend([8, 0, 12, 0]);
    payload.extend(key.id.unwrap().to_be_bytes());
    Script::message(DELETE, REQUEST, &payload)
}

#[test]
fn without_kernel_filters_flows_are_listed_and_deleted_one_by_one() {
    let [one, two, three] = [1, 2, 3].map(|number| flow("10.0.0.1", number, u32::from(number)));
    let other = flow("10.0.0.2", 9, 9);
    let listing = [&one, &other, &two, &three].map(support::flow_message).concat();
    let script = Script::new()
        // The probe for filters in deletions: the kernel looks up a flow that does not exist.
        .expect_anything()
        .acknowledge(0, Err(Errno::ENOENT))
        // The probe for filters in listings: the kernel ignores the filter and lists flows.
        .expect_anything()
        .answer(&listing)
        .done()
        // So the listing has a family only.
        .expect(&Script::message(GET, DUMP, &[2, 0, 0, 0]))
        .answer(&listing)
        .done()
        // By the reply tuple, so that a later flow with another destination is not deleted.
        .expect(
            &[&one, &two, &three]
                .map(|flow| delete(&flow.key_by_reply()))
                .concat(),
        )
        .acknowledge(0, Ok(()))
        .acknowledge(1, Err(Errno::ENOENT))
        .acknowledge(2, Err(Errno::EPERM))
        // The second call does not probe again.
        .expect(&Script::message(GET, DUMP, &[2, 0, 0, 0]))
        .done()
        .expect(&[])
        .acknowledge(0, Ok(()));
    let mut client = client(script);
    let filter = Filter::new().with_source(network("10.0.0.1/32"));
    let deletion = client.delete_matching(&filter).unwrap();
    assert_eq!((deletion.deleted, deletion.not_found), (Some(1), 1));
    let [(key, error)] = deletion.failed.as_slice() else {
        panic!("{deletion:?}")
    };
    assert_eq!(*key, three.key_by_reply());
    assert_eq!(key.tuple, three.reply);
    assert!(error.is_permission_denied());
    let error = deletion.into_result().unwrap_err();
    assert_eq!(error.to_string(), "cannot delete 1 flows; 1 deleted, 1 not found");
    let nothing = client.delete_matching(&filter).unwrap();
    assert_eq!((nothing.deleted, nothing.not_found), (Some(0), 0));
}

#[test]
fn a_refused_filter_is_compared_in_this_process() {
    for errno in [Errno::EINVAL, Errno::EOPNOTSUPP] {
        let one = flow("10.0.0.1", 1, 1);
        let script = Script::new()
            .expect_anything()
            .acknowledge(0, Err(errno))
            .expect(&Script::message(GET, DUMP, &[0, 0, 0, 0]))
            .answer(&support::flow_message(&one))
            .done();
        let listed = client(script).list(&Filter::new().with_mark(1)).unwrap();
        // The listed flow does not match.
        assert_eq!(listed, []);
    }
}

#[test]
fn a_missing_permission_is_an_error_of_the_probe() {
    let script = Script::new().expect_anything().acknowledge(0, Err(Errno::EPERM));
    let error = client(script).list(&Filter::new().with_mark(1)).unwrap_err();
    assert!(error.is_permission_denied(), "{error:?}");
}

#[test]
fn with_kernel_filters_flows_are_deleted_in_one_message() {
    // Version 1; CTA_MARK 7 with CTA_MARK_MASK; CTA_TUPLE_ORIG with source, UDP and destination port 53; CTA_FILTER with
    // bits 0 (source), 3 (protocol) and 5 (destination port).
    #[rustfmt::skip]
    let mut request = vec![
        2, 1, 0, 0,
        8, 0, 8, 0, 0, 0, 0, 7,
        8, 0, 21, 0, 255, 255, 255, 255,
        36, 0, 1, 0x80,
            12, 0, 1, 0x80, 8, 0, 1, 0, 10, 0, 0, 1,
            20, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 3, 0, 0, 53, 0, 0,
        20, 0, 25, 0x80, 8, 0, 1, 0,
    ];
    request.extend(0b10_1001_u32.to_ne_bytes());
    request.extend([8, 0, 2, 0, 0, 0, 0, 0]);
    let script = Script::new()
        .expect_anything()
        .acknowledge(0, Err(Errno::EINVAL))
        .expect(&Script::message(DELETE, REQUEST, &request))
        .acknowledge(0, Ok(()));
    let filter = Filter::new()
        .with_protocol(Protocol::UDP)
        .with_source(network("10.0.0.1/32"))
        .with_destination_port(53)
        .with_mark(7);
    let deletion = client(script).delete_matching(&filter).unwrap();
    assert_eq!((deletion.deleted, deletion.not_found), (None, 0));
}

#[test]
fn an_ipv6_address_is_sent_only_to_a_kernel_that_compares_it_correctly() {
    let [matching, other] = [flow("fd00::1", 1, 1), flow("fd00::2", 2, 2)];
    let both = [&matching, &other].map(support::flow_message).concat();
    let family_only = Script::message(GET, DUMP, &[10, 0, 0, 0]);
    let filter = Filter::new().with_source(network("fd00::1/128"));
    let probes = || {
        Script::new()
            // The kernel supports filters.
            .expect_anything()
            .done()
            // The listing is by family; the first flow is used for the probe of IPv6 addresses.
            .expect(&family_only)
            .answer(&both)
            .done()
            .expect_anything()
    };
    // This kernel lists the flow with the other address.
    let inverted = probes()
        .answer(&support::flow_message(&other))
        .done()
        .expect(&family_only)
        .answer(&both)
        .done();
    let mut table = client(inverted);
    for _ in 0..2 {
        assert_eq!(
            table.list(&filter).unwrap().as_slice(),
            std::slice::from_ref(&matching)
        );
    }
    // This kernel lists the flow with the address, so later requests have the address: bit 0 of the filter.
    #[rustfmt::skip]
    let mut with_address = vec![
        10, 0, 0, 0,
        28, 0, 1, 0x80, 24, 0, 1, 0x80, 20, 0, 3, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        20, 0, 25, 0x80, 8, 0, 1, 0,
    ];
    with_address.extend(1_u32.to_ne_bytes());
    with_address.extend([8, 0, 2, 0, 0, 0, 0, 0]);
    let correct = probes()
        .answer(&support::flow_message(&matching))
        .done()
        .expect(&Script::message(GET, DUMP, &with_address))
        .answer(&support::flow_message(&matching))
        .done();
    let mut table = client(correct);
    for _ in 0..2 {
        assert_eq!(
            table.list(&filter).unwrap().as_slice(),
            std::slice::from_ref(&matching)
        );
    }
}

#[test]
fn a_flush_of_all_flows_is_one_message_and_a_flush_of_a_family_a_filter() {
    let script = Script::new()
        .expect(&Script::message(DELETE, REQUEST, &[0, 1, 0, 0]))
        .acknowledge(0, Ok(()));
    client(script).flush(FlushScope::All).unwrap();

    // Without kernel filters, the flows of the family are listed. The list is empty.
    let script = Script::new()
        .expect_anything()
        .acknowledge(0, Err(Errno::ENOENT))
        .expect(&Script::message(GET, DUMP, &[10, 0, 0, 0]))
        .done()
        .expect(&[]);
    client(script).flush(FlushScope::Family(Family::Ipv6)).unwrap();
}

#[test]
fn a_lost_answer_is_an_error_of_its_operation_only() {
    let keys = [1, 2].map(|number| flow("10.0.0.1", number, u32::from(number)).key());
    let script = Script::new()
        .requests_per_send(1)
        .expect(&delete(&keys[0]))
        .fail(kernlink_netlink::Error::Overrun)
        .expect(&delete(&keys[1]))
        .acknowledge(0, Ok(()));
    let outcomes = client(script).execute(&keys.map(Operation::Delete));
    assert!(outcomes[0].as_ref().unwrap_err().is_outcome_unknown());
    assert_eq!(outcomes[1], Ok(()));
}

#[test]
fn nothing_is_sent_after_an_operation_of_unknown_outcome() {
    let [one, two] = [1, 2].map(|number| flow("10.0.0.1", number, u32::from(number)).key());
    // No answer to the first operation. A later request would be an error of the script.
    let script = Script::new().expect(&delete(&one));
    let outcomes = client(script).execute(&[
        Operation::Delete(one),
        Operation::Flush(FlushScope::All),
        Operation::Delete(two),
    ]);
    let [Err(lost), Err(second), Err(third)] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert!(lost.is_outcome_unknown(), "{lost:?}");
    for error in [second, third] {
        assert!(matches!(error, Error::NotSent { .. }), "{error:?}");
        assert!(!error.is_outcome_unknown(), "{error:?}");
    }
}

#[test]
fn conditions_that_a_kernel_compares_incorrectly_are_not_sent() {
    let one = flow("10.0.0.1", 1, 1);
    #[rustfmt::skip]
    let mut probe = vec![
        2, 0, 0, 0,
        4, 0, 2, 0x80,
        20, 0, 25, 0x80, 8, 0, 1, 0, 0, 0, 0, 0, 8, 0, 2, 0,
    ];
    probe.extend(1_u32.to_ne_bytes());
    let probe = Script::message(GET, DUMP, &probe);
    let by_reply = Filter::new()
        .with_family(Family::Ipv4)
        .with_reply_source(network("10.96.0.10/32"));
    let by_mark = Filter::new().with_family(Family::Ipv4).with_masked_mark(0, 0xff);
    let family_only = Script::message(GET, DUMP, &[2, 0, 0, 0]);
    // Linux 5.8 to 5.15.5 supports filters and accepts the probe.
    let script = Script::new()
        .expect_anything()
        .done()
        .expect(&probe)
        .done()
        .expect(&family_only)
        .answer(&support::flow_message(&one))
        .done()
        .expect(&family_only)
        .answer(&support::flow_message(&one))
        .done();
    let mut client_of_5_8 = client(script);
    for filter in [&by_reply, &by_mark] {
        assert_eq!(
            client_of_5_8.list(filter).unwrap().as_slice(),
            std::slice::from_ref(&one)
        );
    }
    // Later kernels refuse the probe, and the conditions are sent.
    #[rustfmt::skip]
    let mut reply = vec![
        2, 0, 0, 0,
        16, 0, 2, 0x80, 12, 0, 1, 0x80, 8, 0, 1, 0, 10, 96, 0, 10,
        20, 0, 25, 0x80, 8, 0, 1, 0, 0, 0, 0, 0, 8, 0, 2, 0,
    ];
    reply.extend(1_u32.to_ne_bytes());
    let mark = [2, 0, 0, 0, 8, 0, 8, 0, 0, 0, 0, 0, 8, 0, 21, 0, 0, 0, 0, 255];
    let script = Script::new()
        .expect_anything()
        .done()
        .expect(&probe)
        .acknowledge(0, Err(Errno::EINVAL))
        .expect(&Script::message(GET, DUMP, &reply))
        .done()
        .expect(&Script::message(GET, DUMP, &mark))
        .done();
    let mut client_of_5_16 = client(script);
    for filter in [&by_reply, &by_mark] {
        assert_eq!(client_of_5_16.list(filter).unwrap(), []);
    }
}

#[test]
fn ensure_repeats_the_request_with_the_status_bits_of_the_flow() {
    let mut existing = flow("10.0.0.1", 1, 7);
    existing.status = Status::SEEN_REPLY | Status::CONFIRMED | Status::EXPECTED;
    let new = NewFlow::new(existing.original, Duration::from_secs(60));
    let script = Script::new()
        .expect_anything()
        .acknowledge(0, Err(Errno::EBUSY))
        .expect_anything()
        .answer(&support::flow_message(&existing))
        .acknowledge(0, Ok(()))
        .expect_anything()
        .acknowledge(0, Ok(()))
        // The later operation follows.
        .expect(&delete(&existing.key()))
        .acknowledge(0, Ok(()));
    let outcomes = client(script).execute(&[
        Operation::Ensure(new.with_status(Status::ASSURED)),
        Operation::Delete(existing.key()),
    ]);
    assert_eq!(outcomes, [Ok(()), Ok(())]);
}

#[test]
fn a_fixed_timeout_is_distinguished_from_a_missing_permission() {
    let mut existing = flow("10.0.0.1", 1, 7);
    existing.status |= Status::FIXED_TIMEOUT;
    let change = FlowUpdate::new().with_timeout(Duration::from_secs(60));
    let refused = || Script::new().expect_anything().acknowledge(0, Err(Errno::EPERM));
    let fixed = refused()
        .expect_anything()
        .answer(&support::flow_message(&existing))
        .acknowledge(0, Ok(()));
    let error = client(fixed).update(&existing.key(), &change).unwrap_err();
    assert!(
        error.is_timeout_fixed() && !error.is_permission_denied(),
        "{error:?}"
    );
    let denied = refused().expect_anything().acknowledge(0, Err(Errno::EPERM));
    let error = client(denied).update(&existing.key(), &change).unwrap_err();
    assert!(
        !error.is_timeout_fixed() && error.is_permission_denied(),
        "{error:?}"
    );
}

#[test]
fn labels_outside_the_mask_are_not_sent() {
    let existing = flow("10.0.0.1", 1, 7);
    let mut expected = delete(&FlowKey {
        id: Some(7),
        ..existing.key()
    });
    expected.drain(..16);
    // CTA_LABELS and CTA_LABELS_MASK, two words in host byte order each.
    for (kind, low, high) in [(22, 0b0001_u64, 1_u64 << 7), (23, 0b0101, 1 << 7)] {
        expected.extend([20, 0, kind, 0]);
        expected.extend(low.to_ne_bytes());
        expected.extend(high.to_ne_bytes());
    }
    let script = Script::new()
        .expect(&Script::message(0x0100, REQUEST, &expected))
        .acknowledge(0, Ok(()));
    let change = FlowUpdate::new().with_labels(Labels(0b1011 | 3 << 71), Labels(0b0101 | 1 << 71));
    client(script).update(&existing.key(), &change).unwrap();
}

#[test]
fn predicates_distinguish_refusals() {
    let new = NewFlow::new(flow("10.0.0.1", 1, 0).original, Duration::from_secs(60));
    let outcome = |errno| {
        let script = Script::new().expect_anything().acknowledge(0, Err(errno));
        client(script).add(&new).unwrap_err()
    };
    assert!(outcome(Errno::EEXIST).is_already_exists());
    assert!(outcome(Errno::ENOMEM).is_table_full());
    assert!(outcome(Errno::EPERM).is_permission_denied());
    assert!(outcome(Errno::EOPNOTSUPP).is_unsupported());
    let error = outcome(Errno::EEXIST);
    assert_eq!(
        error.to_string(),
        "cannot execute conntrack -I udp src=10.0.0.1 dst=10.96.0.10 sport=1 dport=53 timeout=60"
    );
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn a_flow_with_another_id_is_not_found() {
    let existing = flow("10.0.0.1", 1, 7);
    let key = existing.key();
    let find = |key: &FlowKey| {
        let script = Script::new()
            .expect_anything()
            .answer(&support::flow_message(&existing))
            .acknowledge(0, Ok(()));
        client(script).flow(key)
    };
    assert_eq!(find(&key), Ok(existing.clone()));
    assert!(find(&key.with_id(8)).unwrap_err().is_not_found());
}

#[test]
fn a_flow_is_added_with_all_its_fields() {
    let tuple = flow("10.0.0.1", 0x1234, 0).original;
    let new = NewFlow::new(tuple, Duration::from_secs(0x0102))
        .with_mark(0x1234_5678)
        .with_status(Status::SEEN_REPLY)
        .with_zone(kernlink_conntrack::Zone::new(0x2345))
        .with_destination_nat("10.244.1.2".parse().unwrap(), Some(5353))
        .with_helper("tftp");
    #[rustfmt::skip]
    let request = vec![
        2, 0, 0, 0,
        52, 0, 1, 0x80,
            20, 0, 1, 0x80, 8, 0, 1, 0, 10, 0, 0, 1, 8, 0, 2, 0, 10, 96, 0, 10,
            28, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 2, 0, 0x12, 0x34, 0, 0, 6, 0, 3, 0, 0, 53, 0, 0,
        52, 0, 2, 0x80,
            20, 0, 1, 0x80, 8, 0, 1, 0, 10, 96, 0, 10, 8, 0, 2, 0, 10, 0, 0, 1,
            28, 0, 2, 0x80, 5, 0, 1, 0, 17, 0, 0, 0, 6, 0, 2, 0, 0, 53, 0, 0, 6, 0, 3, 0, 0x12, 0x34, 0, 0,
        6, 0, 18, 0, 0x23, 0x45, 0, 0,
        8, 0, 7, 0, 0, 0, 1, 2,
        8, 0, 3, 0, 0, 0, 0, 10,
        8, 0, 8, 0, 0x12, 0x34, 0x56, 0x78,
        16, 0, 5, 0x80, 9, 0, 1, 0, b't', b'f', b't', b'p', 0, 0, 0, 0,
        40, 0, 13, 0x80,
            8, 0, 1, 0, 10, 244, 1, 2, 8, 0, 2, 0, 10, 244, 1, 2,
            20, 0, 3, 0x80, 6, 0, 1, 0, 0x14, 0xe9, 0, 0, 6, 0, 2, 0, 0x14, 0xe9, 0, 0,
    ];
    let script = Script::new()
        .expect(&Script::message(0x0100, CREATE_EXCLUSIVE, &request))
        .acknowledge(0, Ok(()));
    client(script).add(&new).unwrap();
}

#[test]
fn a_malformed_message_is_an_error_and_later_flows_are_listed() {
    let good = flow("10.0.0.1", 1, 1);
    // A flow without a reply tuple: the type of CTA_TUPLE_REPLY is replaced by an unknown one.
    let mut bad = support::flow_message(&good);
    bad[20 + 52 + 2] = 99;
    let script = Script::new()
        .expect_anything()
        .answer(&[bad, support::flow_message(&good)].concat())
        .done();
    let mut client = client(script);
    let items: Vec<_> = client.flows(&Filter::new()).unwrap().collect();
    assert!(matches!(items[0], Err(Error::Request { .. })), "{items:?}");
    assert_eq!(items[1], Ok(good));
    assert_eq!(items.len(), 2);
}
