//! Replaces the entries of a set atomically: a packet is matched against the old entries or the new ones, never against a mixture.
//!
//! `cargo run --example swap_set -- blocked 192.0.2.1 192.0.2.2`, as root. `ipset list blocked` shows the result.

use anyhow::{Context, Result};
use kernlink_ipset::{Client, Entry, IpSets, Set, SetName, SetType};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().context("usage: swap_set SET [ADDRESS...]")?;
    let name = SetName::new(&name)?;
    let entries = arguments.map(|address| Ok(Entry::ip(address.parse().context("invalid address")?)));
    let entries: Vec<Entry> = entries.collect::<Result<_>>()?;

    let mut sets = Client::open()?;
    sets.ensure_set(&Set::new(name, SetType::HashIp))?;
    // Fills a second set, exchanges the two (`ipset swap`) and destroys the second. If an entry is refused, nothing changes.
    sets.replace(&name, &entries)?;

    for entry in sets.list_set(&name)?.entries {
        println!("add {name} {entry}");
    }
    Ok(())
}
