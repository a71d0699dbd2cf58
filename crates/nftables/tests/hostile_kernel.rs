//! Kernels whose ruleset changes all the time, or that answer in another order. A script takes the part of the kernel.

#![cfg(feature = "fake")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kernlink_netlink::{Errno, Script};
use kernlink_nftables::{
    Chain, Client, Element, Elements, Error, Nftables, Operation, SetKey, TableFamily, TableKey, Value, uapi,
};

const NLM_F_MULTI: u16 = 2;
const NLM_F_DUMP_INTR: u16 = 0x10;

fn table() -> TableKey {
    TableKey::new(TableFamily::Ip, "t")
}

fn set() -> SetKey {
    table().set("s")
}

fn client(script: Script) -> Client {
    Client::from_connection(script.connect().unwrap())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A message of a generation.
fn message(command: u8, flags: u16, generation: u32, attributes: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = vec![2, 0];
    payload.extend((generation as u16).to_be_bytes());
    payload.extend(attributes.concat());
    Script::message(0x0a00 | u16::from(command), flags, &payload)
}

/// The next request is answered with the number of a generation that the client does not know yet. The transaction after it, which changes
/// nothing, is refused.
fn generation(script: Script, generation: u32) -> Script {
    same_generation(script, generation)
        .expect_anything()
        .acknowledge(1, Err(Errno::EINVAL))
}

/// The next request is answered with the number of the generation of the request before it.
fn same_generation(script: Script, generation: u32) -> Script {
    let id = attribute(uapi::NFTA_GEN_ID, &generation.to_be_bytes());
    script
        .expect_anything()
        .answer(&message(uapi::NFT_MSG_NEWGEN, 0, generation, &[id]))
        .acknowledge(0, Ok(()))
}

fn element(key: u32) -> Vec<u8> {
    let value = attribute(uapi::NFTA_DATA_VALUE, &key.to_be_bytes());
    attribute(uapi::NFTA_LIST_ELEM, &attribute(uapi::NFTA_SET_ELEM_KEY, &value))
}

fn elements_message(generation: u32, keys: &[u32]) -> Vec<u8> {
    let list: Vec<u8> = keys.iter().flat_map(|key| element(*key)).collect();
    let attributes = [
        attribute(uapi::NFTA_SET_ELEM_LIST_TABLE, b"t\0"),
        attribute(uapi::NFTA_SET_ELEM_LIST_SET, b"s\0"),
        attribute(uapi::NFTA_SET_ELEM_LIST_ELEMENTS, &list),
    ];
    message(uapi::NFT_MSG_NEWSETELEM, NLM_F_MULTI, generation, &attributes)
}

/// The next request is a dump with these messages.
fn dump(script: Script, messages: &[Vec<u8>]) -> Script {
    let script = script.expect_anything();
    messages
        .iter()
        .fold(script, |script, message| script.answer(message))
        .done()
}

fn tables(script: Script, generation: u32, flags: u16) -> Script {
    let name = attribute(uapi::NFTA_TABLE_NAME, b"t\0");
    let flags = NLM_F_MULTI | flags;
    dump(
        script,
        &[message(uapi::NFT_MSG_NEWTABLE, flags, generation, &[name])],
    )
}

fn keys(elements: Vec<Element>) -> Vec<u32> {
    let number = |element: Element| u32::from_be_bytes(element.key.as_bytes().try_into().unwrap());
    elements.into_iter().map(number).collect()
}

/// A further request would be another error: the script does not contain it.
fn is_interrupted<T: std::fmt::Debug>(result: Result<T, Error>) {
    let Err(Error::Interrupted { attempts: 10, .. }) = &result else {
        panic!("{result:?}");
    };
}

#[test]
fn a_ruleset_whose_listing_is_interrupted_each_time_is_read_ten_times() {
    // The kernel reports the interruption, or the messages are of another generation.
    for (flags, difference) in [(NLM_F_DUMP_INTR, 0), (0, 1), (0, 0xffff)] {
        let mut script = generation(Script::new(), 7);
        for _ in 0..10 {
            script = tables(script, 7 + difference, flags);
            script = same_generation(script, 7);
        }
        is_interrupted(client(script).ruleset());
    }
}

#[test]
fn a_ruleset_with_a_set_that_changes_each_time_is_read_ten_times() {
    let set = [
        attribute(uapi::NFTA_SET_TABLE, b"t\0"),
        attribute(uapi::NFTA_SET_NAME, b"s\0"),
        attribute(uapi::NFTA_SET_KEY_LEN, &4_u32.to_be_bytes()),
    ];
    let mut script = generation(Script::new(), 7);
    for attempt in 7..17 {
        script = tables(script, attempt, 0);
        script = dump(script, &[]);
        script = dump(
            script,
            &[message(uapi::NFT_MSG_NEWSET, NLM_F_MULTI, attempt, &set)],
        );
        // The second message is of the next generation.
        script = dump(
            script,
            &[
                elements_message(attempt, &[1]),
                elements_message(attempt + 1, &[2]),
            ],
        );
        script = generation(script, attempt + 1);
    }
    let mut client = client(script);
    is_interrupted(client.ruleset());
    // A set that changes after it was read is noticed at the end, by all 32 bits.
    let mut script = generation(Script::new(), 7);
    for attempt in 0..10 {
        script = dump(script, &[]);
        script = generation(script, 7 + (attempt + 1) * 0x1_0000);
    }
    is_interrupted(self::client(script).ruleset());
}

#[test]
fn a_change_within_one_message_of_elements_is_noticed() {
    let mut script = generation(Script::new(), 7);
    script = dump(script, &[elements_message(7, &[1, 2])]);
    script = generation(script, 8);
    script = dump(script, &[elements_message(8, &[3])]);
    script = same_generation(script, 8);
    assert_eq!(keys(client(script).list_elements(&set()).unwrap()), [3]);
}

#[test]
fn a_change_of_the_generation_by_65536_is_noticed() {
    let mut script = generation(Script::new(), 7);
    script = dump(
        script,
        &[elements_message(7, &[1]), elements_message(0x1_0007, &[2])],
    );
    script = generation(script, 0x1_0007);
    script = dump(script, &[elements_message(0x1_0007, &[2])]);
    script = same_generation(script, 0x1_0007);
    assert_eq!(keys(client(script).list_elements(&set()).unwrap()), [2]);
}

#[test]
fn elements_that_are_returned_twice_are_listed_again_at_most_ten_times() {
    let mut script = generation(Script::new(), 7);
    // The hash table was enlarged between the two messages: 2 twice, and not 3.
    script = dump(script, &[elements_message(7, &[1, 2]), elements_message(7, &[2])]);
    script = same_generation(script, 7);
    script = dump(script, &[elements_message(7, &[3, 1]), elements_message(7, &[2])]);
    script = same_generation(script, 7);
    assert_eq!(keys(client(script).list_elements(&set()).unwrap()), [3, 1, 2]);
    let mut script = generation(Script::new(), 7);
    for _ in 0..10 {
        script = dump(script, &[elements_message(7, &[1, 1])]);
        script = same_generation(script, 7);
    }
    is_interrupted(client(script).list_elements(&set()));
}

#[test]
fn elements_that_change_while_they_are_reset_are_reported() {
    let script = dump(
        Script::new(),
        &[elements_message(7, &[1]), elements_message(8, &[2])],
    );
    let reset = client(script).reset_elements(&set());
    assert!(
        matches!(reset, Err(Error::Interrupted { attempts: 1, .. })),
        "{reset:?}"
    );
}

#[test]
fn refusals_in_another_order_belong_to_their_operations() {
    let names = ["a", "b", "c"];
    let operations = names.map(|name| Operation::add(Chain::new(table().chain(name))));
    let script = Script::new()
        .expect_anything()
        .acknowledge(3, Ok(()))
        .acknowledge(3, Err(Errno::EBUSY))
        .acknowledge(2, Err(Errno::ENOENT));
    let outcomes = client(script).execute(&operations);
    assert_eq!(outcomes[0], Err(Error::NotExecuted { refused: 1 }));
    assert!(outcomes[1].as_ref().is_err_and(Error::is_not_found));
    assert!(outcomes[2].as_ref().is_err_and(Error::is_busy));
}

#[test]
fn answers_about_elements_in_another_order_belong_to_their_elements() {
    let elements = Elements::new(set(), [1, 2, 3].map(|key| Element::new(Value::be_u32(key))));
    let script = Script::new()
        .expect_anything()
        .answer_to(1, &elements_message(7, &[2]))
        .acknowledge(0, Err(Errno::ENOENT))
        .answer_to(2, &elements_message(7, &[3]))
        .acknowledge(2, Ok(()));
    let found = client(script).find_elements(&elements).unwrap();
    let expected = [None, Some(Value::be_u32(2)), Some(Value::be_u32(3))];
    assert_eq!(
        found
            .into_iter()
            .map(|element| element.map(|element| element.key))
            .collect::<Vec<_>>(),
        expected
    );
}

/// An expression in an expression in an expression: as deep as a message can be.
#[test]
fn expressions_in_each_other_are_read_printed_and_written_without_exhausting_the_stack() {
    let be = |number: u32| number.to_be_bytes();
    let nested = |kind: u16, bytes: &[u8]| attribute(kind | 0x8000, bytes);
    let expression = |name: &[u8], data: &[u8]| {
        [
            attribute(uapi::NFTA_EXPR_NAME, name),
            nested(uapi::NFTA_EXPR_DATA, data),
        ]
        .concat()
    };
    let inner = |expression: &[u8]| {
        [
            attribute(uapi::NFTA_INNER_NUM, &be(0)),
            attribute(uapi::NFTA_INNER_TYPE, &be(1)),
            attribute(uapi::NFTA_INNER_FLAGS, &be(0)),
            attribute(uapi::NFTA_INNER_HDRSIZE, &be(8)),
            nested(uapi::NFTA_INNER_EXPR, expression),
        ]
        .concat()
    };
    let dynset = |expression: &[u8]| {
        [
            attribute(uapi::NFTA_DYNSET_SET_NAME, b"s\0"),
            attribute(uapi::NFTA_DYNSET_OP, &be(0)),
            attribute(uapi::NFTA_DYNSET_SREG_KEY, &be(8)),
            nested(uapi::NFTA_DYNSET_EXPR, expression),
        ]
        .concat()
    };
    let in_each_other = |name: &[u8], data: &dyn Fn(&[u8]) -> Vec<u8>| {
        let mut outer = expression(b"meta\0", &[]);
        while outer.len() < 64_000 {
            outer = expression(name, &data(&outer));
        }
        outer
    };
    for expression in [
        in_each_other(b"inner\0", &inner),
        in_each_other(b"dynset\0", &dynset),
    ] {
        let rule = [
            attribute(uapi::NFTA_RULE_TABLE, b"t\0"),
            attribute(uapi::NFTA_RULE_CHAIN, b"c\0"),
            nested(
                uapi::NFTA_RULE_EXPRESSIONS,
                &nested(uapi::NFTA_LIST_ELEM, &expression),
            ),
        ];
        let rules = message(uapi::NFT_MSG_NEWRULE, NLM_F_MULTI, 1, &rule);
        let rules = client(dump(Script::new(), &[rules]))
            .rules(&table(), None)
            .unwrap();
        let [rule] = &*rules else { panic!("{rules:?}") };
        assert!(rule.to_string().contains("Opaque"));
        let script = Script::new().expect_anything().acknowledge(1, Ok(()));
        let mut outcomes = client(script).execute(&[Operation::add(rule.clone())]);
        assert!(outcomes.pop().is_some());
    }
}
