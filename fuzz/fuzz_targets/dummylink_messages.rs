//! Arbitrary links, addresses and routes: each is decoded or rejected, nothing panics, and there are not more items than messages.
#![no_main]

use kernlink_dummylink::{Client, DummyLinks, LinkName, Selection};
use kernlink_netlink::{Connection, Script};
use libfuzzer_sys::fuzz_target;

/// The shortest address: a netlink header, a fixed header and one IPv4 address.
const SHORTEST: usize = 16 + 8 + 8;

fn connect(script: Script) -> Option<Connection> {
    script.connect().ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, payload)) = data.split_first() else {
        return;
    };
    let kind = 16 + u16::from(kind % 11);
    let Ok(name) = LinkName::new("fuzz0") else { return };
    // With the framing of the kernel, and without.
    for reply in [Script::message(kind, 2, payload), data.to_vec()] {
        let answered = || Script::new().expect_anything().answer(&reply).done();
        if let Some(connection) = connect(answered()) {
            let _links = Client::from(connection).links();
        }
        if let Some(connection) = connect(
            answered()
                .expect_anything()
                .answer(&reply)
                .done()
                .expect_anything()
                .done(),
        ) && let Ok(addresses) = Client::from(connection).list(Selection::All)
        {
            assert!(addresses.len() <= reply.len() / SHORTEST);
        }
        // A link of this name, then the input.
        let link = || {
            Script::new()
                .expect_anything()
                .answer(&LINK)
                .acknowledge(0, Ok(()))
        };
        let script = link().expect_anything().answer(&reply).done();
        if let Some(connection) = connect(script) {
            let _addresses = Client::from(connection).list(Selection::On(name));
        }
        let script = link()
            .expect_anything()
            .answer(&reply)
            .done()
            .expect_anything()
            .answer(&reply)
            .done();
        if let Some(connection) = connect(script) {
            let _routes = Client::from(connection).routes(&name);
        }
    }
});

/// A dummy link with the name `fuzz0` and the index 1.
const LINK: [u8; 68] = [
    68, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // RTM_NEWLINK
    0, 0, 1, 0, 1, 0, 0, 0, 0x82, 0, 0, 0, 0, 0, 0, 0, // struct ifinfomsg
    10, 0, 3, 0, b'f', b'u', b'z', b'z', b'0', 0, 0, 0, // IFLA_IFNAME
    8, 0, 4, 0, 0xdc, 5, 0, 0, // IFLA_MTU
    16, 0, 18, 0, 10, 0, 1, 0, b'd', b'u', b'm', b'm', b'y', 0, 0, 0, // IFLA_LINKINFO
];
