//! Brings the chain EXAMPLE-IN of the table `filter` to its desired rules, by the smallest change, and deletes other EXAMPLE- chains.
//!
//! `cargo run --example apply_rules [-- NETWORK...]`, as root: drops packets from these networks. Nothing else is changed.

use anyhow::{Context, Result};
use kernlink_iptables_restore::{
    Client, Desired, Family, Iptables, Jump, Match, Network, Ownership, Position, Rule, Save, Table, Target,
    diff_operations,
};

fn main() -> Result<()> {
    let mut rules = Vec::new();
    for network in std::env::args().skip(1) {
        let network: Network = network.parse().context("usage: apply_rules [NETWORK...]")?;
        rules.push(Rule::new().with(Match::source(network)).with_target(Target::Drop));
    }
    let mut desired = Desired::new(Family::Ipv4);
    desired.set_chain(Table::Filter, "EXAMPLE-IN".parse()?, rules)?;
    let jump = Rule::new().jump("EXAMPLE-IN".parse()?);
    desired.add_jump(
        Table::Filter,
        Jump {
            from: "INPUT".parse()?,
            rule: jump,
            position: Position::First,
        },
    )?;
    let owned = Ownership::new().with_prefix("EXAMPLE-");

    let mut iptables = Client::new();
    // Rules of other programs that this crate cannot parse are kept as they are.
    let saved = iptables.save(&Save::all(Family::Ipv4).lenient())?;
    let operations = diff_operations(&saved, &desired, &owned);
    println!("{} operations", operations.len());
    for outcome in iptables.execute(&operations) {
        outcome?;
    }
    print!(
        "{}",
        iptables.save(&Save::table(Family::Ipv4, Table::Filter).lenient())?
    );
    Ok(())
}
