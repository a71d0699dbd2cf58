//! Drops what banned addresses send. Addresses are banned for an hour: those of the command line, and by the kernel itself those that
//! connect to the port of a trap.
//!
//! `cargo run --example ban_list -- 2323 192.0.2.1 192.0.2.2`, as root. `nft list table ip guard` shows the result.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Client, DataType, DynsetOperation, Element, Elements, Hook, Nftables,
    Operation, Protocol, RuleBuilder, Set, SetFlags, Table, TableFamily, TableKey, Value, Verdict,
};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let trap: u16 = arguments
        .next()
        .context("usage: ban_list PORT [ADDRESS...]")?
        .parse()?;
    let banned = arguments.map(|address| address.parse().context("invalid address"));
    let banned: Vec<Ipv4Addr> = banned.collect::<Result<_>>()?;

    let table = TableKey::new(TableFamily::Ip, "guard");
    let input = table.chain("input");
    let set = Set::new(table.set("banned"), &[DataType::Ipv4Address])
        .with_flags(SetFlags::EVAL)
        .with_size(65_536)
        .with_timeout(Duration::from_secs(3600));
    let rule = || RuleBuilder::new(input.clone());
    let drop = rule()
        .source_address()
        .is_in(&set)
        .counter()
        .verdict(Verdict::Drop);
    let is_trap = rule().transport_protocol().equals(Protocol::TCP);
    let is_trap = is_trap
        .destination_port()
        .equals(Value::port(trap))
        .source_address();
    let ban = is_trap
        .change_set(DynsetOperation::Add, &set, None)
        .verdict(Verdict::Drop);
    let base = BaseChain::new(ChainType::Filter, Hook::Input, BaseChain::FILTER);
    let elements = banned
        .into_iter()
        .map(|address| Element::new(address).with_comment("by command"));

    let mut client = Client::open()?;
    client.apply(&[
        Operation::add(Table::new(table)),
        Operation::add(set.clone()),
        Operation::add(Chain::new(input.clone()).with_base(base)),
        // Without the rules of an earlier call.
        Operation::flush_chain(input),
        Operation::add(drop.build()?),
        Operation::add(ban.build()?),
        Operation::add(Elements::new(set.key.clone(), elements)),
    ])?;
    for element in client.list_elements(&set.key)? {
        let left = element.expiration.unwrap_or_default().as_secs();
        let address = Ipv4Addr::from(<[u8; 4]>::try_from(element.key.as_bytes())?);
        println!("{address} for {left} s");
    }
    Ok(())
}
