//! Forwards TCP ports of this host to other hosts, by a map. A connection is sent to the old target or to the new one when the map is
//! replaced, never to none.
//!
//! `cargo run --example forward_ports -- 8080=192.0.2.1:80 8443=192.0.2.1:443`, as root. `nft list table ip forward-ports` shows the result.

use std::net::SocketAddrV4;

use anyhow::{Context, Result};
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Client, Commands, DataType, Element, Elements, Hook, Nftables, Operation,
    Protocol, RuleBuilder, Set, Table, TableFamily, TableKey, Value,
};

fn main() -> Result<()> {
    let forward = |text: String| {
        let (port, target) = text
            .split_once('=')
            .context("usage: forward_ports [PORT=ADDRESS:PORT...]")?;
        let (port, target): (u16, SocketAddrV4) = (port.parse()?, target.parse()?);
        let value = Value::concat([(*target.ip()).into(), Value::port(target.port())]);
        Ok(Element::new(Value::port(port)).with_value(value))
    };
    let elements: Vec<Element> = std::env::args().skip(1).map(forward).collect::<Result<_>>()?;

    let table = TableKey::new(TableFamily::Ip, "forward-ports");
    let value = [DataType::Ipv4Address, DataType::Service];
    let map = Set::map(table.set("targets"), &[DataType::Service], &value);
    let mut operations = vec![
        // The table of an earlier call is deleted in the transaction that makes the new one. It may not exist before.
        Operation::add(Table::new(table.clone())),
        Operation::delete(table.clone()),
        Operation::add(Table::new(table.clone())),
        Operation::add(map.clone()),
        Operation::add(Elements::new(map.key.clone(), elements)),
    ];
    for hook in [Hook::Prerouting, Hook::Output] {
        let chain = table.chain(hook.to_string());
        let base = BaseChain::new(ChainType::Nat, hook, BaseChain::DSTNAT);
        operations.push(Operation::add(Chain::new(chain.clone()).with_base(base)));
        let rule = RuleBuilder::new(chain).transport_protocol().equals(Protocol::TCP);
        let rule = rule.destination_port().value_of(&map).destination_nat();
        operations.push(Operation::add(rule.build()?));
    }
    Client::open()?.apply(&operations)?;
    print!("{}", Commands::new(&operations));
    Ok(())
}
