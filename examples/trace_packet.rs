//! Sends a UDP packet and prints which rules it meets, as `nft monitor trace` does.
//!
//! `cargo run --example trace_packet -- 192.0.2.1:53`, as root.

use std::net::{SocketAddrV4, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Client, Event, Hook, Monitor, MonitorScope, Nftables, Operation, Protocol,
    RuleBuilder, Table, TableFamily, TableKey,
};

fn main() -> Result<()> {
    let target: SocketAddrV4 = std::env::args()
        .nth(1)
        .context("usage: trace_packet ADDRESS:PORT")?
        .parse()?;
    let table = TableKey::new(TableFamily::Ip, "trace-packet");
    let output = table.chain("output");
    // Before all other rules.
    let base = BaseChain::new(ChainType::Filter, Hook::Output, -500);
    let rule = RuleBuilder::new(output.clone())
        .destination_address()
        .equals(*target.ip());
    let rule = rule.is_to_port(Protocol::UDP, target.port()).trace();

    let mut client = Client::open()?;
    let rules = client.ruleset()?;
    let mut monitor = Monitor::open(MonitorScope::Traces, Some(Duration::from_secs(1)))?;
    client.apply(&[
        Operation::add(Table::new(table.clone())),
        Operation::add(Chain::new(output).with_base(base)),
        Operation::add(rule.build()?),
    ])?;
    let sent = UdpSocket::bind("0.0.0.0:0")?.send_to(b"trace", target);
    for event in &mut monitor {
        let Event::Trace(step) = event? else { continue };
        // The statements of the rule, if it is not the one that traces.
        match step.rule.and_then(|handle| rules.rule(&step.table, handle)) {
            Some(rule) => println!("{step}: {rule}"),
            None => println!("{step}"),
        }
    }
    client.apply(&[Operation::delete(table)])?;
    sent.with_context(|| format!("send to {target}"))?;
    Ok(())
}
