#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod extensions;
mod interim;
mod local_match;
mod removal;
mod rules;
#[cfg(feature = "fake")]
mod shared_rules;
mod watched_tables;

pub use self::extensions::{Extension, MissingExtensions};
pub use self::interim::{interim, interim_rules, name_of_chain};
pub use self::local_match::local_match;
pub use self::removal::{Owned, Removal, TableRemoval, kept_chain, removal, retired_step};
pub use self::rules::{
    Jump, LOOPBACK_IPV4, LOOPBACK_IPV6, TABLES, chain_name, comment_match, frontend_of_rule, mark_match,
    masquerade_sources, node_port_of_rule, read_chains_of, read_tables, read_tables_of, rules_code,
    unreadable_rules, unreadable_table, unreadable_tables,
};
#[cfg(feature = "fake")]
pub use self::shared_rules::SharedRules;
pub use self::watched_tables::{detect_watch_options, rules_source, watched_tables};
