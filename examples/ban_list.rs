//! Drops what banned addresses send. Addresses are banned for an hour: those of the command line, and by the kernel itself those that
//! connect to the port of a trap.
//!
//! `cargo run --example ban_list -- 2323 192.0.2.1 192.0.2.2`, as root. `nft list table ip guard` shows the result.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Client, DataType, Element, Elements, Hook, Nftables, Operation, Protocol,
    RuleBuilder, Set, SetFlags, Table, TableFamily, TableKey, Verdict,
};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().context("usage: ban_list PORT [ADDRESS...]")?;
    let port: u16 = port.parse()?;
    let ban = |address: String| Ok(Element::new(address.parse::<Ipv4Addr>()?).with_comment("by command"));
    let banned: Vec<Element> = arguments.map(ban).collect::<Result<_>>()?;

    let table = TableKey::new(TableFamily::Ip, "guard");
    let input = table.chain("input");
    let base = BaseChain::new(ChainType::Filter, Hook::Input, BaseChain::FILTER);
    let set = Set::new(table.set("banned"), &[DataType::Ipv4Address])
        .with_flags(SetFlags::EVAL)
        .with_size(65_536)
        .with_timeout(Duration::from_secs(3600));
    let rule = || RuleBuilder::new(input.clone());
    let drop = rule().source_address().is_in(&set).counter();
    let trap = rule().is_to_port(Protocol::TCP, port).source_address();

    let mut client = Client::open()?;
    client.apply(&[
        Operation::add(Table::new(table)),
        Operation::add(set.clone()),
        Operation::add(Chain::new(input.clone()).with_base(base)),
        // Without the rules of an earlier call.
        Operation::flush_chain(input.clone()),
        Operation::add(drop.verdict(Verdict::Drop).build()?),
        Operation::add(trap.add_to(&set).verdict(Verdict::Drop).build()?),
        Operation::add(Elements::new(set.key.clone(), banned)),
    ])?;
    for element in client.list_elements(&set.key)? {
        let left = element.expiration.unwrap_or_default().as_secs();
        println!("{} for {left} s", set.key_types.format(&element.key));
    }
    Ok(())
}
