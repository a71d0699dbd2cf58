//! The behaviour that every [`Nftables`] must have.

#![expect(clippy::panic, reason = "a check fails by panicking")]

mod chains;
mod sets;
mod transactions;

use std::fmt::Debug;

use kernlink_base::contract::{Check, Failures};

use crate::chain::{BaseChain, Chain, ChainType, Hook};
use crate::client::Nftables;
use crate::data_type::DataType;
use crate::element::{Element, Elements};
use crate::error::Error;
use crate::expression::{Expression, Immediate, Lookup, Payload, PayloadBase};
use crate::operation::Operation;
use crate::register::Register;
use crate::rule::Rule;
use crate::set::Set;
use crate::table::{Table, TableKey};
use crate::table_family::TableFamily;
use crate::value::Value;
use crate::verdict::Verdict;

/// Calls `each` with every check and collects all failures. `each` must call [`Check::run`] with an empty ruleset that nothing else
/// changes: for the kernel, that of a new network namespace. It may skip a check.
///
/// # Errors
///
/// The checks that failed.
///
/// ```
/// use kernlink_nftables::{Fake, contract};
///
/// contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
/// ```
pub fn run(each: impl FnMut(&Check<dyn Nftables>)) -> Result<(), Failures> {
    let checks = [transactions::CHECKS, chains::CHECKS, sets::CHECKS].concat();
    kernlink_base::contract::run(&checks, each)
}

/// What a check runs on.
type Rules = dyn Nftables;

#[track_caller]
fn ok<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("{error}: {error:?}"))
}

#[track_caller]
fn refused<T: Debug>(result: Result<T, Error>, is: fn(&Error) -> bool) {
    match result {
        Err(error) if is(&error) => {}
        other => panic!("unexpected outcome {other:?}"),
    }
}

fn table() -> TableKey {
    TableKey::new(TableFamily::Ip, "t")
}

fn add_table() -> Operation {
    Operation::add(Table::new(table()))
}

fn add_chain(name: &str) -> Operation {
    Operation::add(Chain::new(table().chain(name)))
}

/// A base chain of the input hook.
fn add_base(name: &str) -> Operation {
    let base = BaseChain::new(ChainType::Filter, Hook::Input, BaseChain::FILTER);
    Operation::add(Chain::new(table().chain(name)).with_base(base))
}

fn rule(chain: &str, verdict: Verdict) -> Rule {
    Rule::new(table().chain(chain), vec![Immediate::verdict(verdict).into()])
}

fn jump(from: &str, to: &str) -> Operation {
    Operation::add(rule(from, Verdict::jump(to)))
}

/// A set of ports.
fn ports(name: &str) -> Set {
    Set::new(table().set(name), &[DataType::Service])
}

fn port(port: u16) -> Element {
    Element::new(Value::port(port))
}

/// A set of numbers for many elements, of this size. The kernel keeps ports in a list that it searches for each new one, and a set without a size
/// in a hash table whose size it changes while the set is listed.
fn numbers(name: &str, size: u32) -> Set {
    Set::new(table().set(name), &[DataType::Mark]).with_size(size)
}

fn number(number: u32) -> Element {
    Element::new(Value::host_u32(number))
}

fn elements(set: &str, elements: impl IntoIterator<Item = Element>) -> Elements {
    Elements::new(table().set(set), elements)
}

/// A rule that looks up the destination port.
fn lookup(chain: &str, set: &str, destination: Option<Register>) -> Rule {
    let mut lookup = Lookup::new(set, Register::data(0));
    lookup.destination = destination;
    let load: Expression = Payload::new(Register::data(0), PayloadBase::Transport, 2_u32, 2_u32).into();
    Rule::new(table().chain(chain), vec![load, lookup.into()])
}
