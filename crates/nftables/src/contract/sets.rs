//! Sets, maps and their elements.

use std::time::Duration;

use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{
    Rules, add_base, add_chain, add_table, elements, jump, lookup, number, numbers, ok, port, ports, refused,
    table,
};
use crate::data_type::DataType;
use crate::element::Element;
use crate::error::Error;
use crate::object::{Object, ObjectKey, ObjectKind};
use crate::operation::Operation;
use crate::register::Register;
use crate::set::{Set, SetFlags};
use crate::value::Value;
use crate::verdict::Verdict;

pub(super) const CHECKS: &[Check<Rules>] = checks!(
    Rules:
    a_set_is_read_as_it_was_written,
    a_set_that_exists_with_another_type_is_refused,
    a_set_that_a_rule_uses_is_busy,
    elements_are_added_found_and_deleted,
    the_data_of_an_element_change_only_if_it_is_deleted_before,
    keys_and_data_must_have_the_length_of_the_set,
    a_full_set_refuses_elements,
    verdict_maps_keep_chains_busy,
    loops_through_verdict_maps_are_refused,
    ranges_are_found_by_the_keys_in_them,
    ranges_of_concatenations_are_found_by_the_keys_in_them,
    elements_have_timeouts_and_comments,
    maps_to_objects_keep_objects_busy,
    a_lookup_that_does_not_fit_its_set_is_refused,
    a_flushed_set_is_empty,
    elements_are_returned_one_after_the_other,
);

const PAIR: [DataType; 2] = [DataType::Ipv4Address, DataType::Service];

fn pair(address: [u8; 4], port: u16) -> Value {
    Value::concat([Value::from(address), Value::port(port)])
}

#[track_caller]
fn keys(rules: &mut Rules, set: &str) -> Vec<Value> {
    let elements = ok(rules.list_elements(&table().set(set))).into_iter();
    let mut keys: Vec<Value> = elements.map(|element| element.key).collect();
    keys.sort();
    keys
}

fn a_set_is_read_as_it_was_written(rules: &mut Rules) {
    let sets = [
        Set::new(table().set("a"), &PAIR).with_comment("pairs"),
        Set::map(table().set("b"), &PAIR, &[DataType::Mark]).with_size(4096),
        Set::verdict_map(table().set("c"), &[DataType::Mark]),
        Set::new(table().set("d"), &PAIR).with_intervals(),
        Set::new(table().set("e"), &[DataType::Ipv4Address])
            .with_flags(SetFlags::EVAL)
            .with_size(128)
            .with_timeout(Duration::from_secs(60))
            .with_collection_interval(Duration::from_secs(5)),
    ];
    ok(rules.apply(&[add_table()]));
    for set in sets {
        ok(rules.apply(&[Operation::create(set.clone())]));
        refused(
            rules.apply(&[Operation::create(set.clone())]),
            Error::is_already_exists,
        );
        ok(rules.apply(&[Operation::add(set.clone())]));
        let read = ok(rules.set(&set.key)).unwrap_or_else(|| panic!("set missing"));
        assert!(read.handle.is_some());
        assert_eq!(read.configuration(), set);
    }
    assert_eq!(ok(rules.sets(&table())).len(), 5);
    assert_eq!(ok(rules.set(&table().set("f"))), None);
}

fn a_set_that_exists_with_another_type_is_refused(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), Operation::add(ports("s"))]));
    let others = [
        Set::new(table().set("s"), &[DataType::Mark]),
        Set::map(table().set("s"), &[DataType::Service], &[DataType::Mark]),
        ports("s").with_flags(SetFlags::EVAL),
    ];
    for other in others {
        refused(rules.apply(&[Operation::add(other)]), Error::is_already_exists);
    }
}

fn a_set_that_a_rule_uses_is_busy(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), add_chain("a")]));
    refused(
        rules.apply(&[Operation::add(lookup("a", "s", None))]),
        Error::is_not_found,
    );
    ok(rules.apply(&[Operation::add(ports("s")), Operation::add(lookup("a", "s", None))]));
    refused(
        rules.apply(&[Operation::delete(table().set("s"))]),
        Error::is_busy,
    );
    ok(rules.apply(&[
        Operation::flush_chain(table().chain("a")),
        Operation::delete(table().set("s")),
    ]));
    refused(
        rules.apply(&[Operation::delete(table().set("s"))]),
        Error::is_not_found,
    );
}

fn elements_are_added_found_and_deleted(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), Operation::add(ports("s"))]));
    refused(
        rules.apply(&[Operation::add(elements("missing", [port(1)]))]),
        Error::is_not_found,
    );
    ok(rules.apply(&[Operation::add(elements("s", [port(80), port(443)]))]));
    ok(rules.apply(&[Operation::add(elements("s", [port(80)]))]));
    refused(
        rules.apply(&[Operation::create(elements("s", [port(80)]))]),
        Error::is_already_exists,
    );
    let found = ok(rules.find_elements(&elements("s", [port(443), port(444), port(80)])));
    assert_eq!(found, [Some(port(443)), None, Some(port(80))]);
    assert_eq!(ok(rules.find_elements(&elements("s", [port(1)]))), [None]);
    refused(
        rules.find_elements(&elements("missing", [port(1)])),
        Error::is_not_found,
    );
    refused(
        rules.apply(&[Operation::delete(elements("s", [port(80), port(81)]))]),
        Error::is_not_found,
    );
    assert_eq!(keys(rules, "s"), [Value::port(80), Value::port(443)]);
    ok(rules.apply(&[
        Operation::add(elements("s", [port(22)])),
        Operation::delete(elements("s", [port(22), port(80)])),
    ]));
    assert_eq!(keys(rules, "s"), [Value::port(443)]);
    ok(rules.apply(&[Operation::add(elements("s", []))]));
}

fn the_data_of_an_element_change_only_if_it_is_deleted_before(rules: &mut Rules) {
    let map = Set::map(table().set("m"), &[DataType::Service], &[DataType::Mark]);
    let element = |mark| elements("m", [port(80).with_value(Value::host_u32(mark))]);
    ok(rules.apply(&[add_table(), Operation::add(map), Operation::add(element(1))]));
    ok(rules.apply(&[Operation::add(element(1))]));
    refused(
        rules.apply(&[Operation::add(element(2))]),
        Error::is_already_exists,
    );
    ok(rules.apply(&[
        Operation::delete(elements("m", [port(80)])),
        Operation::add(element(2)),
    ]));
    assert_eq!(ok(rules.list_elements(&table().set("m"))), element(2).elements);
}

fn keys_and_data_must_have_the_length_of_the_set(rules: &mut Rules) {
    let map = Set::map(table().set("m"), &PAIR, &[DataType::Mark]);
    ok(rules.apply(&[add_table(), Operation::add(map), Operation::add(ports("s"))]));
    let key = pair([10, 0, 0, 1], 80);
    let refusals = [
        elements("m", [Element::new(key.clone())]),
        elements("m", [Element::new(key.clone()).with_value([1, 2])]),
        elements("m", [Element::new([1]).with_value([1, 2, 3, 4])]),
        elements("m", [Element::new(key.clone()).with_verdict(Verdict::Accept)]),
        elements("s", [port(80).with_value([1])]),
        elements("s", [port(80).with_timeout(Duration::from_secs(1))]),
    ];
    for refusal in refusals {
        assert!(
            rules.apply(&[Operation::add(refusal.clone())]).is_err(),
            "{refusal:?}"
        );
    }
    ok(rules.apply(&[Operation::add(elements(
        "m",
        [Element::new(key).with_value([1, 2, 3, 4])],
    ))]));
}

fn a_full_set_refuses_elements(rules: &mut Rules) {
    ok(rules.apply(&[
        add_table(),
        Operation::add(ports("s").with_size(2)),
        Operation::add(elements("s", [port(1), port(2)])),
    ]));
    refused(
        rules.apply(&[Operation::add(elements("s", [port(3)]))]),
        Error::is_full,
    );
    ok(rules.apply(&[Operation::add(elements("s", [port(2)]))]));
    assert_eq!(keys(rules, "s").len(), 2);
}

fn verdict_maps_keep_chains_busy(rules: &mut Rules) {
    let map = Set::verdict_map(table().set("m"), &[DataType::Service]);
    let to = |chain: &str| elements("m", [port(80).with_verdict(Verdict::goto(chain))]);
    ok(rules.apply(&[add_table(), Operation::add(map), add_chain("a"), add_base("in")]));
    refused(rules.apply(&[Operation::add(to("missing"))]), Error::is_not_found);
    refused(rules.apply(&[Operation::add(to("in"))]), Error::is_unsupported);
    ok(rules.apply(&[Operation::add(to("a"))]));
    assert_eq!(ok(rules.list_elements(&table().set("m"))), to("a").elements);
    refused(
        rules.apply(&[Operation::delete(table().chain("a"))]),
        Error::is_busy,
    );
}

fn loops_through_verdict_maps_are_refused(rules: &mut Rules) {
    let map = Set::verdict_map(table().set("m"), &[DataType::Service]);
    ok(rules.apply(&[
        add_table(),
        Operation::add(map),
        add_base("in"),
        add_chain("a"),
        jump("in", "a"),
        Operation::add(lookup("a", "m", Some(Register::VERDICT))),
    ]));
    let to_itself = elements("m", [port(80).with_verdict(Verdict::jump("a"))]);
    refused(rules.apply(&[Operation::add(to_itself)]), Error::is_loop);
    assert_eq!(keys(rules, "m").len(), 0);
}

fn ranges_are_found_by_the_keys_in_them(rules: &mut Rules) {
    let set = ports("s").with_intervals();
    let mut ranges = set.interval(Value::port(80), Value::port(89));
    ranges.extend(set.interval(Value::port(1000), Value::port(1000)));
    ok(rules.apply(&[
        add_table(),
        Operation::add(set),
        Operation::add(elements("s", ranges)),
    ]));
    let queries = [79, 80, 85, 89, 90, 999, 1000, 1001].map(port);
    let found = ok(rules.find_elements(&elements("s", queries)));
    let is_found: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(
        is_found,
        [false, true, true, true, false, false, true, false],
        "{found:?}"
    );
}

fn ranges_of_concatenations_are_found_by_the_keys_in_them(rules: &mut Rules) {
    let set = Set::new(table().set("s"), &PAIR).with_intervals();
    let range = set.interval(pair([10, 0, 0, 0], 80), pair([10, 0, 255, 255], 89));
    ok(rules.apply(&[
        add_table(),
        Operation::add(set),
        Operation::add(elements("s", range.clone())),
    ]));
    let queries = [
        pair([10, 0, 7, 1], 80),
        pair([10, 0, 7, 1], 90),
        pair([10, 1, 0, 0], 80),
        pair([10, 0, 255, 255], 89),
    ];
    let found = ok(rules.find_elements(&elements("s", queries.map(Element::new))));
    let is_found: Vec<bool> = found.iter().map(Option::is_some).collect();
    assert_eq!(is_found, [true, false, false, true], "{found:?}");
    ok(rules.apply(&[Operation::delete(elements("s", range))]));
    assert_eq!(keys(rules, "s").len(), 0);
}

fn elements_have_timeouts_and_comments(rules: &mut Rules) {
    let hour = Duration::from_secs(3600);
    let set = ports("s").with_timeout(hour);
    let long = port(80).with_timeout(hour * 2).with_comment("web");
    ok(rules.apply(&[
        add_table(),
        Operation::add(set),
        Operation::add(elements("s", [long, port(443)])),
    ]));
    for element in ok(rules.list_elements(&table().set("s"))) {
        let (limit, comment) = if element.key == Value::port(80) {
            (hour * 2, Some("web"))
        } else {
            (hour, None)
        };
        assert_eq!(element.comment(), comment);
        let expiration = element.expiration.unwrap_or_default();
        assert!(
            expiration > limit - hour / 2 && expiration <= limit,
            "{element:?}"
        );
    }
    let too_late = port(22).with_timeout(hour).with_expiration(hour * 2);
    assert!(rules.apply(&[Operation::add(elements("s", [too_late]))]).is_err());
}

fn maps_to_objects_keep_objects_busy(rules: &mut Rules) {
    let map = Set::object_map(table().set("m"), &[DataType::Service], ObjectKind::Counter);
    let element = || elements("m", [port(80).with_object("web")]);
    ok(rules.apply(&[add_table(), Operation::add(map)]));
    refused(rules.apply(&[Operation::add(element())]), Error::is_not_found);
    ok(rules.apply(&[
        Operation::add(Object::counter(table(), "web")),
        Operation::add(element()),
    ]));
    assert_eq!(ok(rules.list_elements(&table().set("m"))), element().elements);
    let key = ObjectKey::new(table(), ObjectKind::Counter, "web");
    refused(rules.apply(&[Operation::delete(key)]), Error::is_busy);
}

fn a_lookup_that_does_not_fit_its_set_is_refused(rules: &mut Rules) {
    ok(rules.apply(&[
        add_table(),
        add_chain("a"),
        Operation::add(ports("s")),
        Operation::add(Set::verdict_map(table().set("m"), &[DataType::Service])),
    ]));
    let data = Some(Register::data(1));
    for refusal in [lookup("a", "s", data), lookup("a", "m", data)] {
        assert!(rules.apply(&[Operation::add(refusal)]).is_err());
    }
    ok(rules.apply(&[Operation::add(lookup("a", "m", Some(Register::VERDICT)))]));
}

fn a_flushed_set_is_empty(rules: &mut Rules) {
    ok(rules.apply(&[
        add_table(),
        Operation::add(ports("s")),
        Operation::add(elements("s", (1..100).map(port))),
    ]));
    ok(rules.apply(&[
        Operation::flush_set(table().set("s")),
        Operation::add(elements("s", [port(7)])),
    ]));
    assert_eq!(keys(rules, "s"), [Value::port(7)]);
    refused(
        rules.apply(&[Operation::flush_set(table().set("missing"))]),
        Error::is_not_found,
    );
}

fn elements_are_returned_one_after_the_other(rules: &mut Rules) {
    let missing = ok(rules.elements(&table().set("s"))).next();
    refused(missing.unwrap_or(Ok(number(0))), Error::is_not_found);
    ok(rules.apply(&[
        add_table(),
        Operation::add(numbers("s", 10_000)),
        Operation::add(elements("s", (0..5_000).map(number))),
    ]));
    let mut found: Vec<Value> = ok(rules.elements(&table().set("s")))
        .map(|element| ok(element).key)
        .collect();
    found.sort();
    let mut expected: Vec<Value> = (0..5_000).map(Value::host_u32).collect();
    expected.sort();
    assert_eq!(found, expected);
    // The rest need not be read.
    let first = ok(rules.elements(&table().set("s"))).next();
    assert!(matches!(first, Some(Ok(_))), "{first:?}");
    assert_eq!(
        ok(rules.find_elements(&elements("s", [number(9)]))),
        [Some(number(9))]
    );
}
