//! Encoding and decoding, compared with bytes captured from a kernel.
//!
//! `tests/golden/*.hex` are from Linux 6.1.0-56-amd64 (x86-64, so little-endian), captured on a `nlmon` device. The first line is
//! the command. `request` is the message that `ipvsadm` 1.31 sent and the kernel accepted, `answer` a message of the kernel. The
//! bytes begin with the generic header, after the netlink header.
#![cfg(target_endian = "little")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use kernlink_ipvs::packet::IpvsMessage;
use kernlink_ipvs::{
    Daemon, DaemonRole, Family, ForwardingMethod, Granularity, Info, InterfaceName, Operation, Persistence,
    PersistenceEngine, RealServer, RealServerKey, RealServerStatus, Scheduler, SchedulerFlags, Thresholds,
    Timeouts, Tunnel, TunnelFlags, Version, VirtualServer, VirtualServerKey, VirtualServerStatus, Weight,
};
use kernlink_netlink::AttributeReader;
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_generic::{GenlHeader, GenlMessage};

/// The command, the request and the answers of a capture.
struct Capture {
    command: String,
    request: Vec<u8>,
    answers: Vec<Vec<u8>>,
}

fn capture(name: &str) -> Capture {
    let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut capture = Capture {
        command: String::new(),
        request: Vec::new(),
        answers: Vec::new(),
    };
    for line in text.lines() {
        let (kind, rest) = line.split_once(' ').unwrap();
        let bytes = || {
            let digits = rest
                .as_bytes()
                .chunks(2)
                .map(|pair| std::str::from_utf8(pair).unwrap());
            digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
        };
        match kind {
            "#" => capture.command = rest.to_owned(),
            "request" => capture.request = bytes(),
            "answer" => capture.answers.push(bytes()),
            other => panic!("{path}: {other}"),
        }
    }
    capture
}

fn parse(bytes: &[u8]) -> IpvsMessage {
    let header = GenlHeader {
        cmd: bytes[0],
        version: bytes[1],
    };
    IpvsMessage::parse_with_param(&bytes[4..], header).unwrap()
}

fn emit(message: &IpvsMessage) -> Vec<u8> {
    let message = GenlMessage::from_payload(message.clone());
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

/// Attributes by their path of types, without `NLA_F_NESTED`. Order and padding are ignored.
fn attributes(bytes: &[u8]) -> BTreeMap<Vec<u16>, Vec<u8>> {
    let mut found = BTreeMap::new();
    for outer in AttributeReader::new(&bytes[4..]) {
        let outer = outer.unwrap();
        // Timeouts are not nested; virtual servers, real servers and daemons are.
        if outer.kind() > 3 || bytes[0] == 14 {
            found.insert(vec![outer.kind()], outer.bytes().to_vec());
            continue;
        }
        for inner in outer.nested() {
            let inner = inner.unwrap();
            found.insert(vec![outer.kind(), inner.kind()], inner.bytes().to_vec());
        }
    }
    found
}

/// Compares the encoded operation with the captured request. All encoded attributes must be equal to the captured ones. Attributes
/// that are only in the capture must have no effect: configuration in a key, an empty engine name, zeros of a tunnel.
#[track_caller]
fn same_request(name: &str, operation: Operation) {
    let capture = capture(name);
    // The command parses to the operation.
    let line = capture.command.strip_prefix("ipvsadm ").unwrap();
    assert_eq!(line.parse::<Operation>(), Ok(operation.clone()), "{name}");
    let encoded = emit(&IpvsMessage::operation(operation.clone()).unwrap());
    assert_eq!(encoded[..2], capture.request[..2], "{name}: command and version");
    let (encoded, captured) = (attributes(&encoded), attributes(&capture.request));
    let is_key_only = |nest: u16| match operation {
        Operation::AddVirtualServer(_) | Operation::UpdateVirtualServer(_) => false,
        Operation::AddRealServer { .. } | Operation::UpdateRealServer { .. } => nest == 1,
        _ => true,
    };
    for (path, value) in &encoded {
        let captured_value = captured
            .get(path)
            .unwrap_or_else(|| panic!("{name}: ipvsadm does not send {path:?}"));
        // `ipvsadm` pads an address to 16 bytes, as the kernel does.
        let is_address = matches!(path[..], [1, 3] | [2, 1]);
        if is_address {
            assert_eq!(value[..], captured_value[..value.len()], "{name}: {path:?}");
            assert!(captured_value[value.len()..].iter().all(|byte| *byte == 0));
        } else {
            assert_eq!(value, captured_value, "{name}: {path:?}");
        }
    }
    for (path, value) in &captured {
        let is_zero = value.iter().all(|byte| *byte == 0);
        assert!(
            encoded.contains_key(path) || is_zero || is_key_only(path[0]),
            "{name}: {path:?} {value:02x?}"
        );
    }
}

fn web() -> VirtualServer {
    VirtualServer::new(
        VirtualServerKey::tcp(Ipv4Addr::new(10, 96, 1, 2), 0x1234),
        Scheduler::SH,
    )
    .with_scheduler_flags(SchedulerFlags::PORT)
    .with_persistence(
        Persistence::from_seconds(0x1234)
            .unwrap()
            .with_granularity(Granularity::from_mask(Ipv4Addr::new(255, 255, 240, 0))),
    )
}

fn sip() -> VirtualServer {
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x12, 0x34);
    VirtualServer::new(VirtualServerKey::udp(address, 5060), Scheduler::RR)
        .with_persistence(
            Persistence::from_seconds(77)
                .unwrap()
                .with_granularity(Granularity::from_prefix_length(65).unwrap()),
        )
        .with_persistence_engine(PersistenceEngine::SIP)
        .with_one_packet_scheduling()
}

fn marked() -> VirtualServer {
    let mark = NonZeroU32::new(0x0123_4567).unwrap();
    VirtualServer::new(VirtualServerKey::mark(Family::Ipv6, mark), Scheduler::WRR)
}

fn masqueraded(weight: u16) -> RealServer {
    RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 1, 2, 3), 8080))
        .with_weight(Weight::from(weight))
        .with_thresholds(Thresholds::new(0x304, 0x203).unwrap())
}

fn tunnelled() -> RealServer {
    RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 1, 2, 4), 0x1234))
        .with_weight(Weight::from(3))
        .with_tunnel(Tunnel::gue(6080, TunnelFlags::REMOTE_CHECKSUM))
}

fn sip_server() -> RealServer {
    let address = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0x56, 0x78);
    RealServer::new(RealServerKey::new(address, 5061)).with_weight(Weight::new(70_000).unwrap())
}

fn mixed() -> RealServer {
    RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 1, 2, 5), 80))
        .with_forwarding(ForwardingMethod::Tunnel)
        .with_weight(Weight::from(4))
}

fn master() -> Daemon {
    Daemon::new(DaemonRole::Master, InterfaceName::new("lo").unwrap())
        .with_sync_id(7)
        .with_max_length(1401)
        .with_group(Ipv4Addr::new(224, 1, 2, 3))
        .with_port(9029)
        .with_ttl(9)
}

fn backup() -> Daemon {
    Daemon::new(DaemonRole::Backup, InterfaceName::new("lo").unwrap())
        .with_sync_id(8)
        .with_group(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 2, 3))
        .with_ttl(5)
}

#[test]
fn requests_are_equal_to_those_of_ipvsadm() {
    let add = |server: &VirtualServer, real_server| Operation::AddRealServer {
        virtual_server: server.key,
        real_server,
    };
    same_request("new4", Operation::AddVirtualServer(web()));
    same_request(
        "set4",
        Operation::UpdateVirtualServer(VirtualServer::new(web().key, Scheduler::WRR)),
    );
    same_request("new6", Operation::AddVirtualServer(sip()));
    same_request("newm", Operation::AddVirtualServer(marked()));
    same_request("dest4", add(&web(), masqueraded(258)));
    same_request("destgue", add(&web(), tunnelled()));
    same_request("dest46", add(&marked(), mixed()));
    same_request("dest6", add(&sip(), sip_server()));
    same_request(
        "setdest",
        Operation::UpdateRealServer {
            virtual_server: web().key,
            real_server: masqueraded(259),
        },
    );
    same_request("zero", Operation::Zero(web().key));
    same_request(
        "set",
        Operation::SetTimeouts(Timeouts::new(
            Duration::from_secs(4660),
            Duration::from_secs(86),
            Duration::from_secs(1929),
        )),
    );
    same_request(
        "deldest",
        Operation::DeleteRealServer {
            virtual_server: sip().key,
            real_server: sip_server().key,
        },
    );
    same_request(
        "deldest46",
        Operation::DeleteRealServer {
            virtual_server: marked().key,
            real_server: mixed().key,
        },
    );
    same_request("daemon", Operation::StartDaemon(master()));
    same_request("daemon6", Operation::StartDaemon(backup()));
    same_request("stopd", Operation::StopDaemon(DaemonRole::Backup));
    same_request("del", Operation::DeleteVirtualServer(web().key));
    same_request("flush", Operation::Flush);
}

/// Compares the decoded answers with values, and the encoded values with the answers. The kernel additionally sends the counters in
/// 32 bits, and a flag that the virtual server is in its table.
#[track_caller]
fn same_answers(name: &str, expected: &[IpvsMessage]) {
    let answers = capture(name).answers;
    assert_eq!(
        answers.iter().map(|bytes| parse(bytes)).collect::<Vec<_>>(),
        expected,
        "{name}"
    );
    for (bytes, message) in answers.iter().zip(expected) {
        let written = emit(message);
        assert_eq!(parse(&written), *message);
        let (encoded, mut captured) = (attributes(&written), attributes(bytes));
        for (path, value) in &encoded {
            let captured_value = captured
                .remove(path)
                .unwrap_or_else(|| panic!("{name}: the kernel does not send {path:?}"));
            match (&path[..], bytes[0]) {
                ([1, 3], 1) | ([2, 1], 5) => {
                    assert_eq!(value[..], captured_value[..value.len()], "{name}: {path:?}")
                }
                // The captured flags have IP_VS_SVC_F_HASHED.
                ([1, 7], 1) => assert_eq!(value[0] | 2, captured_value[0], "{name}: {path:?}"),
                // The kernel pads 64-bit statistics.
                ([1, 12], 1) | ([2, 12], 5) => assert!(captured_value.len() >= value.len()),
                _ => assert_eq!(*value, captured_value, "{name}: {path:?}"),
            }
        }
        for path in captured.into_keys() {
            let is_known = matches!((&path[..], bytes[0]), ([1 | 2, 10], 1 | 5) | ([2, 13..=15], 5));
            assert!(is_known, "{name}: the kernel sends {path:?}, which has no field");
        }
    }
}

fn shown(server: VirtualServer) -> IpvsMessage {
    IpvsMessage::VirtualServer(VirtualServerStatus::new(server))
}

fn shown_real(server: RealServer) -> IpvsMessage {
    IpvsMessage::RealServer(RealServerStatus::new(server))
}

#[test]
fn answers_of_the_kernel_are_decoded_completely() {
    same_answers(
        "info",
        &[IpvsMessage::Info(Info::new(
            Version {
                major: 1,
                minor: 2,
                patch: 1,
            },
            4096,
        ))],
    );
    same_answers("list", &[shown(web()), shown(sip()), shown(marked())]);
    same_answers("list1", &[shown(web())]);
    same_answers("dests4", &[shown_real(tunnelled()), shown_real(masqueraded(259))]);
    same_answers("dests6", &[shown_real(sip_server())]);
    same_answers("dests46", &[shown_real(mixed())]);
    let timeouts = Timeouts::new(
        Duration::from_secs(4660),
        Duration::from_secs(86),
        Duration::from_secs(1929),
    );
    same_answers("timeouts", &[IpvsMessage::Timeouts(timeouts)]);
    same_answers(
        "daemons",
        &[
            IpvsMessage::Daemon(master()),
            IpvsMessage::Daemon(backup().with_max_length(65_487).with_port(8848)),
        ],
    );
}

/// The numbers are the output of `ipvsadm -Ln --stats --exact` at the time: `3 15 14 1254 2852`.
#[test]
fn counters_have_64_bits() {
    let [bytes] = &capture("counters").answers[..] else {
        panic!("not one answer")
    };
    let IpvsMessage::VirtualServer(status) = parse(bytes) else {
        panic!("not a virtual server")
    };
    assert_eq!(status.server.to_string(), "-A -t 10.96.0.1:80 -s rr");
    let [real_bytes] = &capture("counters-dests").answers[..] else {
        panic!("not one answer")
    };
    let IpvsMessage::RealServer(real_status) = parse(real_bytes) else {
        panic!("not a real server")
    };
    assert_eq!(real_status.server.key.to_string(), "127.0.0.2:8080");
    for stats in [status.stats, real_status.stats] {
        assert_eq!(stats.connections, 3);
        assert_eq!((stats.incoming_packets, stats.outgoing_packets), (15, 14));
        assert_eq!((stats.incoming_bytes, stats.outgoing_bytes), (1254, 2852));
    }
    assert!(status.stats.rates.outgoing_bytes > status.stats.rates.incoming_bytes);

    // Without the 64-bit statistics, as from kernels before 4.1, the 32-bit ones are used.
    let stats_64 = bytes
        .windows(4)
        .position(|window| window == [0x7c, 0, 12, 0])
        .unwrap();
    let mut old = bytes.clone();
    old[stats_64 + 2] = 200;
    let IpvsMessage::VirtualServer(old_status) = parse(&old) else {
        panic!("not a virtual server")
    };
    assert_eq!(old_status, status);

    // `ipvsadm -Ln` printed 0 active and 3 inactive connections.
    let [bytes] = &capture("inactive").answers[..] else {
        panic!("not one answer")
    };
    let IpvsMessage::RealServer(status) = parse(bytes) else {
        panic!("not a real server")
    };
    let connections = status.connections;
    assert_eq!(
        (connections.active, connections.inactive, connections.persistent),
        (0, 3, 0)
    );
}
