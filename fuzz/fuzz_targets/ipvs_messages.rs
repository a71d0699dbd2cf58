//! Arbitrary IPVS messages: nothing panics, and a decoded message encodes to bytes that decode to the same message.
#![no_main]

use kernlink_ipvs::packet::IpvsMessage;
use libfuzzer_sys::fuzz_target;
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_generic::{GenlFamily, GenlHeader};

fuzz_target!(|data: &[u8]| {
    let Some((command, body)) = data.split_first() else {
        return;
    };
    let header = GenlHeader {
        cmd: *command % 20,
        version: 1,
    };
    let Ok(message) = IpvsMessage::parse_with_param(body, header) else {
        return;
    };
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    assert_eq!(message.command(), header.cmd);
    assert_eq!(IpvsMessage::parse_with_param(&bytes, header).ok(), Some(message));
});
