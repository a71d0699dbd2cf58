//! Tests of kernlink-iptables-restore that need the kernel and the iptables tools, legacy and nft.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod client;
mod foreign;
mod rules;

use std::path::PathBuf;
use std::time::Duration;

use kernlink_iptables_restore::{ChainName, Client, Family, Rule, Variant};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools::{must, run_with_input};

pub(crate) const VARIANTS: [Variant; 2] = [Variant::Legacy, Variant::Nft];

/// A lock file of this test process. Its namespaces are private, so it needs no lock with other processes.
pub(crate) fn lock_file(name: &str) -> PathBuf {
    // On a tmpfs, like /run/xtables.lock: on an overlay, /proc/locks has the inode of the lower file, so no holder is found.
    PathBuf::from(format!(
        "/dev/shm/kernlink-iptables-{}-{name}",
        std::process::id()
    ))
}

pub(crate) fn client_of(variant: Variant) -> Client {
    Client::new()
        .with_variant(variant)
        .with_wait(Duration::from_secs(30))
        // The search for a refused rule runs the tool about ten times with a thousand rules.
        .with_timeout(Duration::from_secs(600))
        .with_lock_file(own_lock_file())
}

/// Named after the thread, which has the name of the test, so that no test waits for another.
pub(crate) fn own_lock_file() -> PathBuf {
    lock_file(std::thread::current().name().unwrap_or("unqualified"))
}

/// Runs a test for each variant in a new network namespace.
pub(crate) fn for_each_variant(test: impl Fn(Variant) + Sync) {
    for variant in VARIANTS {
        eprintln!("{variant}");
        NetNs::new().run(|| test(variant));
    }
    // Does not exist if the test took no lock.
    let _ = std::fs::remove_file(own_lock_file());
}

pub(crate) fn chain(name: &str) -> ChainName {
    name.parse().unwrap()
}

pub(crate) fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

/// The output of the tool without its comments.
pub(crate) fn saved_text(variant: Variant, family: Family) -> String {
    let text = must(&format!("{}-{}-save", tool(family), infix(variant)), &[]);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect()
}

pub(crate) fn golden(name: &str) -> String {
    let path = format!(
        "{}/../crates/iptables-restore/tests/golden/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

pub(crate) fn tool(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    }
}

/// The part of the names of the tools and of the golden files.
pub(crate) fn infix(variant: Variant) -> &'static str {
    match variant {
        Variant::Legacy => "legacy",
        Variant::Nft => "nft",
    }
}

/// Runs a tool as a foreign program would, with the lock file of the test: `iptables-nft-restore` for the suffix `-restore`.
pub(crate) fn run_tool(family: Family, variant: Variant, suffix: &str, arguments: &[&str], input: &str) {
    let lock = format!("XTABLES_LOCKFILE={}", own_lock_file().display());
    let program = format!("{}-{}{suffix}", tool(family), infix(variant));
    let arguments = [&[lock.as_str(), &program], arguments].concat();
    run_with_input("env", &arguments, input).unwrap();
}
