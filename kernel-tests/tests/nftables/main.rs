//! nf_tables on the kernel, in network namespaces of their own, compared with the tool `nft`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod contents;
mod copy;
mod events;
mod expressions;
mod names;
mod neighbours;
mod releases;
mod rules;
mod suite;

use kernlink_kernel_tests::tools;
use kernlink_nftables::{Client, TableFamily, TableKey};

fn client() -> Client {
    Client::open().unwrap()
}

/// Loads the text of a ruleset.
#[track_caller]
fn nft(text: &str) {
    tools::run_with_input("nft", &["-f", "-"], text).unwrap_or_else(|error| panic!("{error}\n{text}"));
}

fn listing() -> String {
    tools::must("nft", &["list", "ruleset"])
}

fn table() -> TableKey {
    TableKey::new(TableFamily::Ip, "t")
}
