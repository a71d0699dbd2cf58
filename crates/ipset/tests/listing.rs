//! Lists of several messages, and sets that change while they are listed. A script takes the part of the kernel.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use kernlink_ipset::uapi::*;
use kernlink_ipset::{Client, Error, IpSets, SetName};
use kernlink_netlink::{AttributeWriter, Script};

/// A message of the list of a `bitmap:port` set; the first message of a set has the header.
fn message(name: &str, with_header: bool, ports: &[u16]) -> Vec<u8> {
    let mut payload = Vec::new();
    let mut w = AttributeWriter::new(&mut payload);
    w.header(&[0; 4]);
    w.u8(IPSET_ATTR_PROTOCOL, 6);
    w.string(IPSET_ATTR_SETNAME, name);
    if with_header {
        w.string(IPSET_ATTR_TYPENAME, "bitmap:port");
        w.nested(IPSET_ATTR_DATA, |w| {
            w.net().be_u16(IPSET_ATTR_PORT, 0);
            w.net().be_u16(IPSET_ATTR_PORT_TO, 9);
        });
    }
    w.nested(IPSET_ATTR_ADT, |w| {
        for port in ports {
            w.nested(IPSET_ATTR_DATA, |w| {
                w.net().be_u16(IPSET_ATTR_PORT, *port);
            });
        }
    });
    Script::message(0x0607, 2, &payload)
}

/// A client that receives these lists, one for each request.
fn client(listings: &[&[Vec<u8>]]) -> Client {
    let script = listings.iter().fold(Script::new(), |script, messages| {
        let script = messages
            .iter()
            .fold(script.expect_anything(), |script, message| script.answer(message));
        script.done()
    });
    Client::from_connection(script.connect().unwrap())
}

fn ports(client: &mut Client) -> Result<Vec<String>, Error> {
    let listed = client.list_set(&SetName::new("a").unwrap())?;
    Ok(listed.entries.iter().map(ToString::to_string).collect())
}

#[test]
fn the_messages_of_a_set_are_joined() {
    let pieces = [
        message("a", true, &[1, 2]),
        message("a", false, &[3]),
        message("b", true, &[4]),
        message("b", false, &[5]),
    ];
    let sets = client(&[&pieces, &pieces]).list().unwrap();
    let entries: Vec<Vec<String>> = sets
        .iter()
        .map(|set| set.entries.iter().map(ToString::to_string).collect())
        .collect();
    assert_eq!(
        entries,
        [
            ["1", "2", "3"].map(String::from).to_vec(),
            ["4", "5"].map(String::from).to_vec()
        ]
    );
}

#[test]
fn entries_without_the_header_of_their_set_are_an_error() {
    let error = client(&[&[message("a", true, &[1]), message("b", false, &[2])]])
        .list()
        .unwrap_err();
    assert!(matches!(error, Error::Netlink { .. }), "{error:?}");
}

#[test]
fn a_set_is_listed_until_two_lists_are_equal() {
    let listing = |ports: &[u16]| [message("a", true, ports)];
    let (torn, before, after) = (listing(&[1, 3]), listing(&[1, 2]), listing(&[2, 3]));
    let mut settled = client(&[&before, &torn, &after, &after]);
    assert_eq!(ports(&mut settled), Ok(vec!["2".to_owned(), "3".to_owned()]));
}

#[test]
fn a_set_that_changes_all_the_time_is_an_error() {
    let listings: Vec<[Vec<u8>; 1]> = (0..20).map(|port| [message("a", true, &[port % 10])]).collect();
    let listings: Vec<&[Vec<u8>]> = listings.iter().map(|listing| &listing[..]).collect();
    let error = ports(&mut client(&listings)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot list a: changed by another process during all 8 attempts"
    );
}

#[test]
fn an_empty_list_of_a_set_is_not_found() {
    assert!(ports(&mut client(&[&[], &[]])).unwrap_err().is_not_found());
}
