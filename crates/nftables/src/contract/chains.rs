//! Chains, rules and objects.

use kernlink_base::checks;
use kernlink_base::contract::Check;

use super::{Rules, add_base, add_chain, add_table, jump, ok, refused, rule, table};
use crate::chain::{BaseChain, Chain, ChainType, Hook, Policy};
use crate::error::Error;
use crate::expression::{
    Compare, CompareOperator, Counter, FlowOffload, Immediate, Meta, MetaKey, NumberGenerator,
    NumberGeneratorKind, ObjectReference,
};
use crate::flowtable::{Flowtable, FlowtableKey};
use crate::object::{Object, ObjectData, ObjectKey, ObjectKind};
use crate::operation::{Flush, Operation};
use crate::register::Register;
use crate::rule::Rule;
use crate::value::Value;
use crate::verdict::Verdict;

pub(super) const CHECKS: &[Check<Rules>] = checks!(
    Rules:
    a_base_chain_is_read_as_it_was_written,
    the_policy_of_a_base_chain_can_change_and_its_hook_cannot,
    a_chain_that_a_rule_jumps_to_is_busy,
    rules_are_in_the_order_in_which_they_were_placed,
    rules_are_placed_relative_to_others_of_the_same_transaction,
    a_rule_is_read_as_it_was_written,
    loops_of_jumps_are_refused,
    sixteen_jumps_are_accepted_and_seventeen_refused,
    jumps_to_base_chains_are_refused,
    an_object_in_use_is_busy,
    a_flowtable_in_use_is_busy,
    numbers_without_a_modulus_are_refused,
);

fn a_base_chain_is_read_as_it_was_written(rules: &mut Rules) {
    let base = BaseChain::new(ChainType::Nat, Hook::Prerouting, -123).with_policy(Policy::Accept);
    let chain = Chain::new(table().chain("in"))
        .with_base(base)
        .with_comment("first");
    refused(rules.apply(&[Operation::add(chain.clone())]), Error::is_not_found);
    ok(rules.apply(&[add_table(), Operation::add(chain.clone())]));
    let read = ok(rules.chain(&chain.key)).unwrap_or_else(|| panic!("chain missing"));
    assert!(read.handle.is_some());
    assert_eq!(read.comment(), Some("first"));
    assert_eq!(read.configuration(), chain);
    assert_eq!(ok(rules.chain(&table().chain("other"))), None);
    refused(rules.apply(&[Operation::create(chain)]), Error::is_already_exists);
}

fn the_policy_of_a_base_chain_can_change_and_its_hook_cannot(rules: &mut Rules) {
    let chain = |hook, priority, policy| {
        let base = BaseChain::new(ChainType::Filter, hook, priority).with_policy(policy);
        Operation::add(Chain::new(table().chain("in")).with_base(base))
    };
    ok(rules.apply(&[add_table(), chain(Hook::Input, 0, Policy::Accept)]));
    ok(rules.apply(&[chain(Hook::Input, 0, Policy::Drop)]));
    let read = ok(rules.chain(&table().chain("in"))).and_then(|chain| chain.base);
    assert_eq!(read.and_then(|base| base.policy), Some(Policy::Drop));
    for changed in [
        chain(Hook::Input, 1, Policy::Drop),
        chain(Hook::Output, 0, Policy::Drop),
    ] {
        assert!(rules.apply(&[changed]).is_err());
    }
}

fn a_chain_that_a_rule_jumps_to_is_busy(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), add_chain("a"), add_chain("b"), jump("a", "b")]));
    refused(
        rules.apply(&[Operation::delete(table().chain("b"))]),
        Error::is_busy,
    );
    ok(rules.apply(&[
        Operation::flush_chain(table().chain("a")),
        Operation::delete(table().chain("b")),
    ]));
    // The rules of a chain do not prevent its deletion.
    ok(rules.apply(&[Operation::add(rule("a", Verdict::Drop))]));
    ok(rules.apply(&[Operation::delete(table().chain("a"))]));
    assert_eq!(ok(rules.chains(&table())), []);
}

/// The comments of the rules of a chain.
fn comments(rules: &mut Rules) -> Vec<String> {
    let rules = ok(rules.rules(&table(), Some("a"))).into_iter();
    rules
        .map(|rule| rule.comment().unwrap_or_default().to_owned())
        .collect()
}

fn rules_are_in_the_order_in_which_they_were_placed(rules: &mut Rules) {
    let named = |name: &str| rule("a", Verdict::Accept).with_comment(name);
    ok(rules.apply(&[
        add_table(),
        add_chain("a"),
        Operation::add(named("2")),
        Operation::add(named("4")),
        Operation::Insert(named("1")),
    ]));
    assert_eq!(comments(rules), ["1", "2", "4"]);
    let listed = ok(rules.rules(&table(), Some("a")));
    let keys: Vec<_> = listed.iter().filter_map(Rule::key).collect();
    let [_, second, fourth] = &*keys else {
        panic!("{keys:?}")
    };
    ok(rules.apply(&[
        Operation::add(named("3").with_position(second.handle)),
        Operation::Insert(named("0").with_position(second.handle)),
    ]));
    assert_eq!(comments(rules), ["1", "0", "2", "3", "4"]);
    ok(rules.apply(&[
        Operation::delete(second.clone()),
        Operation::Replace(fourth.clone(), named("5")),
    ]));
    assert_eq!(comments(rules), ["1", "0", "3", "5"]);
    refused(
        rules.apply(&[Operation::delete(second.clone())]),
        Error::is_not_found,
    );
    refused(
        rules.apply(&[Operation::add(named("6").with_position(second.handle))]),
        Error::is_not_found,
    );
    ok(rules.apply(&[Operation::Flush(Flush::Table(table()))]));
    assert_eq!(comments(rules), [""; 0]);
}

fn rules_are_placed_relative_to_others_of_the_same_transaction(rules: &mut Rules) {
    let named = |name: &str| rule("a", Verdict::Accept).with_comment(name);
    ok(rules.apply(&[
        add_table(),
        add_chain("a"),
        Operation::add(named("1").with_id(7)),
        Operation::add(named("4").with_id(8)),
        Operation::add(named("2").with_position_id(7).with_id(9)),
        Operation::Insert(named("3").with_position_id(8)),
        Operation::Insert(named("0")),
    ]));
    assert_eq!(comments(rules), ["0", "1", "2", "3", "4"]);
    // The numbers are those of one transaction and chain.
    refused(
        rules.apply(&[Operation::add(named("5").with_position_id(7))]),
        Error::is_not_found,
    );
    let elsewhere = rule("b", Verdict::Accept).with_position_id(7);
    refused(
        rules.apply(&[
            add_chain("b"),
            Operation::add(named("5").with_id(7)),
            Operation::add(elsewhere),
        ]),
        Error::is_not_found,
    );
    assert_eq!(comments(rules), ["0", "1", "2", "3", "4"]);
}

fn a_rule_is_read_as_it_was_written(rules: &mut Rules) {
    let expressions = vec![
        Meta::new(MetaKey::TransportProtocol, Register::data(3)).into(),
        Compare::new(Register::data(3), CompareOperator::NotEqual, Value::protocol(17)).into(),
        Counter::new().into(),
        Immediate::verdict(Verdict::goto("b")).into(),
    ];
    let rule = Rule::new(table().chain("a"), expressions).with_comment("not udp");
    ok(rules.apply(&[
        add_table(),
        add_chain("a"),
        add_chain("b"),
        Operation::add(rule.clone()),
    ]));
    let read = ok(rules.rules(&table(), Some("a")))
        .into_iter()
        .map(Rule::configuration);
    assert_eq!(read.collect::<Vec<_>>(), [rule]);
}

fn loops_of_jumps_are_refused(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), add_base("in"), add_chain("a"), add_chain("b")]));
    ok(rules.apply(&[jump("in", "a"), jump("a", "b")]));
    refused(rules.apply(&[jump("b", "a")]), Error::is_loop);
    assert_eq!(ok(rules.rules(&table(), Some("b"))), []);
}

fn sixteen_jumps_are_accepted_and_seventeen_refused(rules: &mut Rules) {
    let mut operations = vec![add_table(), add_base("in")];
    operations.extend((1..=17).map(|number| add_chain(&format!("c{number}"))));
    operations.push(jump("in", "c1"));
    // A base chain and 15 others.
    operations.extend((1..15).map(|number| jump(&format!("c{number}"), &format!("c{}", number + 1))));
    ok(rules.apply(&operations));
    refused(
        rules.apply(&[jump("c15", "c16"), jump("c16", "c17")]),
        Error::is_loop,
    );
}

fn jumps_to_base_chains_are_refused(rules: &mut Rules) {
    ok(rules.apply(&[add_table(), add_base("in"), add_chain("a")]));
    refused(rules.apply(&[jump("a", "in")]), Error::is_unsupported);
}

fn an_object_in_use_is_busy(rules: &mut Rules) {
    let counter = Counter::new().with_bytes(7_u64).with_packets(5_u64);
    let key = ObjectKey::new(table(), ObjectKind::Counter, "https");
    let object = Object::new(key.clone(), ObjectData::Counter(counter)).with_comment("port 443");
    let reference = ObjectReference::new(ObjectKind::Counter, "https");
    let rule = Rule::new(table().chain("a"), vec![reference.into()]);
    ok(rules.apply(&[add_table(), add_chain("a")]));
    refused(rules.apply(&[Operation::add(rule.clone())]), Error::is_not_found);
    ok(rules.apply(&[Operation::add(object.clone()), Operation::add(rule)]));
    let read = ok(rules.objects(&table()));
    let [read] = &*read else { panic!("{read:?}") };
    assert_eq!(
        (&read.key, &read.data, read.comment()),
        (&key, &object.data, Some("port 443"))
    );
    is_kept_while_used(rules, Operation::create(object), &Operation::delete(key));
}

/// What a rule of the chain uses exists, and can be deleted when the rule is gone.
fn is_kept_while_used(rules: &mut Rules, create: Operation, delete: &Operation) {
    refused(rules.apply(&[create]), Error::is_already_exists);
    refused(rules.apply(std::slice::from_ref(delete)), Error::is_busy);
    ok(rules.apply(&[Operation::flush_chain(table().chain("a")), delete.clone()]));
    refused(rules.apply(std::slice::from_ref(delete)), Error::is_not_found);
}

/// Skipped where there are no flowtables: the kernel needs `CONFIG_NF_FLOW_TABLE_INET`.
fn a_flowtable_in_use_is_busy(rules: &mut Rules) {
    let key = FlowtableKey::new(table(), "f");
    let flowtable = Flowtable::new(key.clone(), -7, ["lo"]);
    let rule = Rule::new(table().chain("a"), vec![FlowOffload::new("f").into()]);
    ok(rules.apply(&[add_table(), add_chain("a")]));
    refused(rules.apply(&[Operation::add(rule.clone())]), Error::is_not_found);
    ok(rules.apply(&[Operation::add(flowtable.clone()), Operation::add(rule)]));
    let read = ok(rules.flowtables(&table()));
    let [read] = &*read else { panic!("{read:?}") };
    assert!(read.handle.is_some());
    assert_eq!(
        (&read.key, read.priority, &read.devices),
        (&key, -7, &flowtable.devices)
    );
    is_kept_while_used(rules, Operation::create(flowtable), &Operation::delete(key));
    assert_eq!(ok(rules.flowtables(&table())), []);
}

fn numbers_without_a_modulus_are_refused(rules: &mut Rules) {
    let number = |modulus: u32, offset: u32| {
        let generator = NumberGenerator::new(Register::data(0), modulus, NumberGeneratorKind::Random);
        Operation::add(Rule::new(
            table().chain("a"),
            vec![generator.with_offset(offset).into()],
        ))
    };
    ok(rules.apply(&[add_table(), add_chain("a"), number(1, 0)]));
    for (modulus, offset) in [(0, 0), (2, u32::MAX)] {
        assert!(
            rules.apply(&[number(modulus, offset)]).is_err(),
            "{modulus} {offset}"
        );
    }
}
