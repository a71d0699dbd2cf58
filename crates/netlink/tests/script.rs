//! Connections with a scripted mock of the kernel, for cases that are rare with a real kernel.
#![cfg(feature = "fake")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_netlink::{Batch, Connection, Errno, Error, Message, Reply, Script};

const MULTI: u16 = 2;
const INTERRUPTED: u16 = 0x10;
const DONE: u16 = 3;
const ERROR: u16 = 2;
const CAPPED: u16 = 0x100;
const TLVS: u16 = 0x200;

fn item(flags: u16, value: u32) -> Vec<u8> {
    Script::message(0x20, MULTI | flags, &value.to_ne_bytes())
}

fn done(flags: u16, code: i32, tlvs: &[u8]) -> Vec<u8> {
    Script::message(DONE, MULTI | flags, &[&code.to_ne_bytes(), tlvs].concat())
}

fn value(message: Message<'_>) -> Result<Option<u32>, Error> {
    let bytes = message
        .payload
        .try_into()
        .map_err(|_| Error::Malformed { what: "item" })?;
    Ok(Some(u32::from_ne_bytes(bytes)))
}

fn batch(len: u32) -> Batch {
    let mut batch = Batch::new();
    for index in 0..len {
        batch
            .push(0x20, 0, |w| {
                w.ne_u32(1, index);
            })
            .unwrap();
    }
    batch
}

fn dump_all(connection: &mut Connection) -> Result<Vec<u32>, Error> {
    connection.dump_all(0x21, 0, |_| {}, value)
}

#[test]
fn a_dump_of_several_datagrams_with_several_messages_is_read() {
    let script = Script::new()
        .expect(&Script::message(0x21, 0x301, &[]))
        .answer(&[item(0, 1), item(0, 2)].concat())
        .answer(&item(0, 3))
        .done();
    assert_eq!(dump_all(&mut script.connect().unwrap()), Ok(vec![1, 2, 3]));
}

#[test]
fn an_interrupted_dump_is_repeated_and_its_items_are_discarded() {
    let script = Script::new()
        .expect_anything()
        .answer(&item(INTERRUPTED, 1))
        .done()
        .expect_anything()
        .answer(&item(0, 5))
        .answer(&done(0, 0, &[]));
    assert_eq!(dump_all(&mut script.connect().unwrap()), Ok(vec![5]));
}

#[test]
fn a_dump_that_is_always_interrupted_fails_after_ten_attempts() {
    let script = (0..10).fold(Script::new(), |script, _| {
        script.expect_anything().answer(&done(INTERRUPTED, 0, &[]))
    });
    assert_eq!(
        dump_all(&mut script.connect().unwrap()),
        Err(Error::DumpInterrupted { attempts: 10 })
    );
}

#[test]
fn an_interrupted_dump_iterator_ends_with_an_error() {
    let script = Script::new()
        .expect_anything()
        .answer(&item(INTERRUPTED, 1))
        .done();
    let mut connection = script.connect().unwrap();
    let items: Vec<_> = connection.dump(0x21, 0, |_| {}, value).unwrap().collect();
    assert_eq!(items, [Ok(1), Err(Error::DumpInterrupted { attempts: 1 })]);
}

#[test]
fn an_error_in_the_last_message_of_a_dump_is_reported() {
    let text = b"\x12\x00\x01\x00No such dev\0\0\0\0\0";
    let script = Script::new().expect_anything().answer(&done(TLVS, -19, text));
    let error = dump_all(&mut script.connect().unwrap()).unwrap_err();
    let Error::Refused(refusal) = error else {
        panic!("{error:?}")
    };
    assert_eq!(
        (refusal.errno, refusal.message.as_deref()),
        (Errno::ENODEV, Some("No such dev"))
    );
}

#[test]
fn an_extended_acknowledgement_is_decoded_after_a_whole_and_a_capped_echo() {
    let mut request = Script::message(0x20, 5, &7u32.to_ne_bytes());
    let tlvs = b"\x08\x00\x02\x00\x2c\x00\x00\x00\x08\x00\x05\x00\x03\x00\x00\x00";
    for flags in [TLVS, TLVS | CAPPED] {
        let echo = if flags & CAPPED == 0 {
            &request[..]
        } else {
            &request[..16]
        };
        let reply = Script::message(ERROR, flags, &[&(-22i32).to_ne_bytes(), echo, tlvs].concat());
        let script = Script::new().expect_anything().answer(&reply);
        let error = script
            .connect()
            .unwrap()
            .execute_one(0x20, 0, |_| {})
            .unwrap_err();
        let Error::Refused(refusal) = error else {
            panic!("{error:?}")
        };
        assert_eq!((refusal.offset, refusal.missing_attribute), (Some(44), Some(3)));
    }
    request.truncate(8);
    let cut = Script::message(ERROR, 0, &[&(-22i32).to_ne_bytes(), &request[..]].concat());
    let error = Script::new()
        .expect_anything()
        .answer(&cut)
        .connect()
        .unwrap()
        .execute_one(0x20, 0, |_| {});
    assert!(matches!(error, Err(Error::Malformed { .. })), "{error:?}");
}

#[test]
fn a_dropped_dump_is_read_to_its_end_before_the_next_request() {
    let script = Script::new()
        .expect_anything()
        .answer(&item(0, 1))
        .answer(&item(0, 2))
        .done()
        .expect_anything()
        .acknowledge(0, Ok(()));
    let mut connection = script.connect().unwrap();
    assert_eq!(
        connection.dump(0x21, 0, |_| {}, value).unwrap().next(),
        Some(Ok(1))
    );
    assert_eq!(connection.execute_one(0x20, 0, |_| {}), Ok(()));
}

#[test]
fn answers_with_another_sequence_number_are_ignored() {
    // An answer to request 9, which does not exist, has sequence number 0, as a notification.
    let script = Script::new()
        .expect_anything()
        .answer_to(9, &item(0, 77))
        .answer(&item(0, 1))
        .acknowledge(0, Ok(()));
    assert_eq!(
        script.connect().unwrap().request(0x20, 0, |_| {}, value),
        Ok(vec![1])
    );
}

#[test]
fn every_failure_of_a_batch_is_reported_for_its_request() {
    let script = Script::new()
        .requests_per_send(3)
        .expect(&(0..3).flat_map(request).collect::<Vec<_>>())
        .acknowledge(0, Err(Errno::EEXIST))
        .acknowledge(2, Ok(()))
        .expect(&(3..5).flat_map(request).collect::<Vec<_>>())
        .acknowledge(0, Err(Errno::ENOENT))
        .acknowledge(1, Err(Errno::ESRCH));
    let outcomes = script.connect().unwrap().execute(&mut batch(5));
    let errnos: Vec<_> = outcomes
        .iter()
        .map(|outcome| outcome.clone().err().and_then(|e| e.errno()))
        .collect();
    let expected = [
        Some(Errno::EEXIST),
        None,
        None,
        Some(Errno::ENOENT),
        Some(Errno::ESRCH),
    ];
    assert_eq!(errnos, expected);
}

fn request(value: u32) -> Vec<u8> {
    let mut payload = vec![8, 0, 1, 0];
    payload.extend_from_slice(&value.to_ne_bytes());
    Script::message(0x20, 1, &payload)
}

#[test]
fn after_an_overrun_no_request_without_an_answer_is_reported_as_executed() {
    let script = Script::new()
        .requests_per_send(4)
        .expect_anything()
        .acknowledge(1, Err(Errno::EEXIST))
        .fail(Error::Overrun)
        .acknowledge(2, Err(Errno::EEXIST))
        .expect_anything()
        .acknowledge(1, Ok(()));
    let outcomes = script.connect().unwrap().execute(&mut batch(6));
    let unknown = Err(Error::Overrun);
    assert_eq!(
        [&outcomes[0], &outcomes[3]],
        [&unknown, &Err(Error::TimedOut)].map(|_| &unknown)
    );
    assert_eq!(outcomes[1].clone().unwrap_err().errno(), Some(Errno::EEXIST));
    assert_eq!(outcomes[2].clone().unwrap_err().errno(), Some(Errno::EEXIST));
    assert_eq!(outcomes[4..], [Ok(()), Ok(())]);
}

#[test]
fn without_an_acknowledgement_every_unanswered_request_times_out() {
    let script = Script::new().expect_anything().acknowledge(0, Err(Errno::EEXIST));
    let outcomes = script.connect().unwrap().execute(&mut batch(2));
    assert_eq!(outcomes[0].clone().unwrap_err().errno(), Some(Errno::EEXIST));
    assert_eq!(outcomes[1], Err(Error::TimedOut));
}

#[test]
fn nothing_more_of_a_batch_is_sent_after_a_timeout() {
    // The script does not expect a second send.
    let script = Script::new()
        .requests_per_send(2)
        .expect(&(0..2).flat_map(request).collect::<Vec<_>>())
        .acknowledge(0, Err(Errno::EEXIST));
    let mut connection = script.connect().unwrap();
    let outcomes = connection.execute(&mut batch(5));
    assert_eq!(outcomes[0].clone().unwrap_err().errno(), Some(Errno::EEXIST));
    assert_eq!(outcomes[1], Err(Error::TimedOut));
    assert!(outcomes[1].clone().unwrap_err().is_outcome_unknown());
    for outcome in &outcomes[2..] {
        assert_eq!(*outcome, Err(Error::NotSent));
        assert!(!outcome.clone().unwrap_err().is_outcome_unknown());
    }
}

#[test]
fn a_send_whose_only_answer_is_a_permission_error_for_the_first_request_is_refused_as_a_whole() {
    let script = Script::new()
        .requests_per_send(3)
        .expect_anything()
        .acknowledge(0, Err(Errno::EPERM))
        .expect_anything()
        .acknowledge(0, Err(Errno::EPERM));
    let outcomes = script.connect().unwrap().execute(&mut batch(5));
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EPERM));
        assert!(!error.is_outcome_unknown());
    }
}

#[test]
fn a_permission_error_for_the_first_request_does_not_apply_if_other_answers_follow() {
    let script = Script::new()
        .expect_anything()
        .acknowledge(0, Err(Errno::EPERM))
        .acknowledge(3, Ok(()));
    let outcomes = script.connect().unwrap().execute(&mut batch(4));
    assert_eq!(outcomes[0].clone().unwrap_err().errno(), Some(Errno::EPERM));
    assert_eq!(outcomes[1..], [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn a_refusal_keeps_its_error_number_if_its_text_is_invalid() {
    // Text of 5 bytes that are not UTF-8, followed by an attribute whose length exceeds the data.
    let tlvs = b"\x09\x00\x01\x00no \xff\0\0\0\0\x40\x00\x02\x00";
    let reply = Script::message(
        ERROR,
        CAPPED | TLVS,
        &[&(-22i32).to_ne_bytes(), &[0; 16][..], tlvs].concat(),
    );
    let script = Script::new()
        .expect_anything()
        .answer_to(1, &reply)
        .acknowledge(2, Ok(()));
    let outcomes = script.connect().unwrap().execute(&mut batch(3));
    assert_eq!([&outcomes[0], &outcomes[2]], [&Ok(()), &Ok(())]);
    let Err(Error::Refused(refusal)) = &outcomes[1] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(
        (refusal.errno, refusal.message.as_deref()),
        (Errno::EINVAL, Some("no \u{fffd}"))
    );
}

#[test]
fn the_outcome_is_unknown_if_the_answer_cannot_be_decoded() {
    let cut = Script::message(ERROR, 0, &[0, 0]);
    let script = Script::new().expect_anything().answer(&cut);
    let outcomes = script.connect().unwrap().execute(&mut batch(2));
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error:?}");
        assert!(error.is_outcome_unknown());
    }
}

#[test]
fn the_next_request_succeeds_after_a_dump_whose_end_was_lost() {
    for lost in [None, Some(Error::Overrun)] {
        let mut script = Script::new().expect_anything().answer(&item(0, 1));
        if let Some(error) = lost.clone() {
            script = script.fail(error);
        }
        let script = script
            .expect_anything()
            .answer(&item(0, 5))
            .done()
            .expect_anything()
            .acknowledge(0, Ok(()));
        let mut connection = script.connect().unwrap();
        assert_eq!(dump_all(&mut connection), Err(lost.unwrap_or(Error::TimedOut)));
        assert_eq!(dump_all(&mut connection), Ok(vec![5]));
        assert_eq!(connection.execute_one(0x20, 0, |_| {}), Ok(()));
    }
}

#[test]
fn a_dump_can_be_read_by_datagrams() {
    let script = Script::new()
        .expect_anything()
        .answer(&[item(0, 1), item(0, 2)].concat())
        .answer(&[item(INTERRUPTED, 3), done(0, 0, &[])].concat());
    let mut connection = script.connect().unwrap();
    let mut dump = connection.dump(0x21, 0, |_| {}, value).unwrap();
    let mut seen = Vec::new();
    while let Some(datagram) = dump.next_datagram() {
        seen.push(datagram.map(|datagram| (datagram.items, datagram.length)));
    }
    assert_eq!(
        seen,
        [
            Ok((vec![1, 2], 40)),
            Ok((vec![3], 40)),
            Err(Error::DumpInterrupted { attempts: 1 }),
        ]
    );
}

#[test]
fn the_warning_of_an_executed_request_is_kept_until_it_is_taken() {
    let tlvs = b"\x0e\x00\x01\x00look out!\0\0\0";
    let reply = Script::message(
        ERROR,
        CAPPED | TLVS,
        &[&0i32.to_ne_bytes(), &[0; 16][..], tlvs].concat(),
    );
    let script = Script::new()
        .expect_anything()
        .answer(&reply)
        .expect_anything()
        .answer_to(1, &reply)
        .expect_anything()
        .answer(&done(TLVS, 0, tlvs));
    let mut connection = script.connect().unwrap();
    assert_eq!(connection.execute_one(0x20, 0, |_| {}), Ok(()));
    assert_eq!(connection.take_warnings(), ["look out!".into()]);
    assert_eq!(connection.take_warnings(), []);
    assert_eq!(connection.execute(&mut batch(2)), [Ok(()), Ok(())]);
    assert_eq!(dump_all(&mut connection), Ok(vec![]));
    assert_eq!(
        connection.take_warnings(),
        ["look out!".into(), "look out!".into()]
    );
}

#[test]
fn the_echo_of_a_refused_request_is_passed_to_the_caller() {
    let reply = Script::message(ERROR, 0, &[&(-4103i32).to_ne_bytes()[..], &request(9)].concat());
    let script = Script::new().expect_anything().answer(&reply);
    let mut seen = Vec::new();
    let outcomes = script
        .connect()
        .unwrap()
        .execute_with(&mut batch(1), |index, reply| {
            if let Reply::Refused { refusal, echo } = reply {
                seen.push((index, refusal.errno, echo.to_vec()));
            }
        });
    assert_eq!(outcomes[0].clone().unwrap_err().errno(), Some(Errno(4103)));
    assert_eq!(seen, [(0, Errno(4103), request(9)[16..].to_vec())]);
}

#[test]
fn an_unexpected_request_is_reported_with_the_expected_one() {
    let error = Script::new()
        .expect(&request(1))
        .connect()
        .unwrap()
        .execute_one(0x20, 0, |_| {})
        .unwrap_err();
    assert!(matches!(error, Error::UnexpectedRequest { .. }), "{error:?}");
}
