//! Prints the counters of the elements of a set, the largest first.
//!
//! `cargo run --example set_counters -- ip guard banned`, as root. The elements have counters if the set was made with `counter`, for example
//! by `nft add set ip guard banned '{ type ipv4_addr; counter; }'`.

use std::cmp::Reverse;

use anyhow::{Context, Result, bail};
use kernlink_nftables::{Client, Expression, Nftables, TableKey};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [family, table, set] = arguments.as_slice() else {
        bail!("usage: set_counters FAMILY TABLE SET");
    };
    let mut client = Client::open()?;
    let tables = client.tables(None)?.into_iter().map(|table| table.key);
    let is_named = |key: &TableKey| key.family.to_string() == *family && *key.name == **table;
    let table = tables.into_iter().find(is_named).context("no such table")?;
    let set = client.set(&table.set(set.as_str()))?.context("no such set")?;

    let mut rows = Vec::new();
    // The elements arrive one after the other: their number needs no memory.
    for element in client.elements(&set.key)? {
        let element = element?;
        let counter = element
            .expressions
            .iter()
            .find_map(|expression| match expression {
                Expression::Counter(counter) => Some(counter.clone()),
                _ => None,
            });
        let counter = counter.context("the elements of this set have no counters")?;
        rows.push((counter.bytes, counter.packets, set.key_types.format(&element.key)));
    }
    rows.sort_by_key(|(bytes, packets, _)| Reverse((*bytes, *packets)));
    println!("{:>12} {:>15} element", "packets", "bytes");
    for (bytes, packets, element) in rows {
        println!("{packets:>12} {bytes:>15} {element}");
    }
    Ok(())
}
