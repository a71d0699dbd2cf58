//! The requests of a client that remembers the types of sets. A script takes the part of the kernel, and fails on any further request.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use kernlink_ipset::uapi::*;
use kernlink_ipset::{Client, Entry, Error, IpSets, Operation, SetFamily, SetName};
use kernlink_netlink::{AttributeWriter, Errno, Script, netfilter};

/// The answer to a request for the type of a set, or a message of a listing.
fn header(name: &str, set_type: &str) -> Vec<u8> {
    let mut payload = Vec::new();
    let mut w = AttributeWriter::new(&mut payload);
    w.header(&netfilter::Header::new(0).to_bytes());
    w.u8(IPSET_ATTR_PROTOCOL, 6);
    w.string(IPSET_ATTR_SETNAME, name);
    w.string(IPSET_ATTR_TYPENAME, set_type);
    w.u8(IPSET_ATTR_FAMILY, SetFamily::Inet.number());
    w.nested(IPSET_ATTR_DATA, |_| {});
    Script::message(0x0607, 2, &payload)
}

/// A kernel that answers the request for the type of `s`.
fn type_requested(script: Script, set_type: &str) -> Script {
    script
        .expect_anything()
        .answer(&header("s", set_type))
        .acknowledge(0, Ok(()))
}

/// A kernel that executes or refuses one request.
fn changed(script: Script, outcome: Result<(), Errno>) -> Script {
    script.expect_anything().acknowledge(0, outcome)
}

fn add(client: &mut Client, last: u8) -> Result<(), Error> {
    client.add(&SetName::new("s").unwrap(), &Entry::ip([10, 0, 0, last].into()))
}

fn client(script: Script) -> Client {
    Client::from_connection(script.connect().unwrap())
}

#[test]
fn without_it_the_type_is_requested_before_each_change() {
    let script = changed(type_requested(Script::new(), "hash:ip"), Ok(()));
    let script = changed(type_requested(script, "hash:ip"), Ok(()));
    let mut client = client(script);
    add(&mut client, 1).unwrap();
    add(&mut client, 2).unwrap();
}

#[test]
fn the_type_is_requested_once() {
    let script = type_requested(Script::new(), "hash:ip");
    let script = (0..3).fold(script, |script, _| changed(script, Ok(())));
    let mut client = client(script).with_remembered_types();
    for last in 1..4 {
        add(&mut client, last).unwrap();
    }
}

#[test]
fn the_type_is_requested_again_after_a_failure() {
    let script = changed(type_requested(Script::new(), "hash:ip"), Ok(()));
    let script = changed(script, Err(Errno(IPSET_ERR_EXIST)));
    let script = changed(type_requested(script, "hash:ip"), Ok(()));
    let mut client = client(script).with_remembered_types();
    add(&mut client, 1).unwrap();
    assert!(add(&mut client, 1).unwrap_err().is_already_exists());
    add(&mut client, 2).unwrap();
}

#[test]
fn the_type_is_requested_again_after_a_change_of_sets() {
    let script = changed(type_requested(Script::new(), "hash:ip"), Ok(()));
    let script = changed(script, Ok(()));
    let script = type_requested(script, "hash:ip,port");
    let mut client = client(script).with_remembered_types();
    let (s, other) = (SetName::new("s").unwrap(), SetName::new("other").unwrap());
    add(&mut client, 1).unwrap();
    client
        .execute_one(Operation::Swap {
            first: s,
            second: other,
        })
        .unwrap();
    // An address is not an entry of the new type.
    assert!(add(&mut client, 2).unwrap_err().is_invalid());
}

#[test]
fn a_listing_replaces_the_remembered_types() {
    let script = changed(type_requested(Script::new(), "hash:ip"), Ok(()));
    let script = script
        .expect_anything()
        .answer(&header("s", "hash:ip,port"))
        .done();
    let mut client = client(script).with_remembered_types();
    add(&mut client, 1).unwrap();
    assert_eq!(client.headers().unwrap().len(), 1);
    assert!(add(&mut client, 2).unwrap_err().is_invalid());
}
