//! What a watcher needs to know about tables of iptables.

use std::collections::BTreeMap;

use kernlink_host::watch::{RulesSource, WatchOptions, WatchedTable};
use kernlink_iptables_restore::{Client, Table, Variant};
use kernlink_services::Family;

/// How changes of tables of a variant are noticed.
#[must_use]
pub fn rules_source(variant: Variant) -> RulesSource {
    match variant {
        Variant::Nft => RulesSource::Events,
        Variant::Legacy => RulesSource::Checks,
    }
}

/// The options of a watcher for the variant that the iptables tools of this host have, for these families. A family without tools is not
/// watched.
#[must_use]
pub fn detect_watch_options(families: impl IntoIterator<Item = Family>) -> WatchOptions {
    let mut client = Client::new();
    WatchOptions::new(families.into_iter().filter_map(|family| {
        let version = client.version(family).ok()?;
        Some((family, rules_source(version.variant)))
    }))
}

/// The tables with these chains.
pub fn watched_tables(chains: impl IntoIterator<Item = (Table, Box<str>)>) -> Vec<WatchedTable> {
    let mut of_tables: BTreeMap<Table, Vec<Box<str>>> = BTreeMap::new();
    for (table, chain) in chains {
        of_tables.entry(table).or_default().push(chain);
    }
    let tables = of_tables.into_iter();
    tables
        .map(|(table, chains)| WatchedTable::new(table.as_str()).with_chains(chains))
        .collect()
}
