//! Sets on a real kernel, compared with ipset(8).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod batches;
#[path = "../../../crates/ipset/src/contract/examples.rs"]
mod examples;
mod fake;
mod generator;
mod refusals;
mod sharing;
mod tool;

use std::net::{IpAddr, Ipv4Addr};

use kernlink_ipset::{Client, Entry, IpSets, Operation, ProtocolPort, Set, SetName, uapi};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_netlink::{AttributeWriter, netfilter};

/// A client in a new namespace, which the calling thread enters and does not leave.
fn client() -> Client {
    std::mem::forget(NetNs::new().enter());
    Client::open().unwrap()
}

fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

/// An entry of `hash:ip,port`: TCP port 80 of the address 10.0.0.0 + n.
fn web(n: u32) -> Entry {
    Entry::ip_port(
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + n)),
        ProtocolPort::tcp(80),
    )
}

/// Creates a set with these entries.
fn fill(client: &mut Client, set: &Set, entries: impl Iterator<Item = Entry>) {
    client.create(set).unwrap();
    let operations: Vec<_> = entries.map(|entry| Operation::add(set.name, entry)).collect();
    for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
        outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
    }
}

/// The beginning of a message about a set.
fn write_set_name(w: &mut AttributeWriter<'_>, set: &str) {
    w.header(&netfilter::Header::new(0).to_bytes());
    w.u8(uapi::IPSET_ATTR_PROTOCOL, uapi::IPSET_PROTOCOL_MIN);
    w.string(uapi::IPSET_ATTR_SETNAME, set);
}
