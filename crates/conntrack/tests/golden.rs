//! Messages captured from a kernel, decoded, and encoded to the same bytes.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, UNIX_EPOCH};

use kernlink_conntrack::{
    Client, Conntrack, Counters, Filter, Flow, Labels, Protocol, ProtocolState, SctpState, Status, Synproxy,
    TcpState, Tuple, Zone, ZoneDirection,
};
use kernlink_netlink::Script;

/// The flows that a client lists if the kernel answers with these messages.
fn list(messages: &[Vec<u8>]) -> Vec<Flow> {
    // A listing of everything: IPCTNL_MSG_CT_GET with NLM_F_REQUEST and NLM_F_DUMP, an empty netfilter header.
    let request = Script::message(0x0101, 0x301, &[0; 4]);
    let script = Script::new().expect(&request).answer(&messages.concat()).done();
    let mut client = Client::from_connection(script.connect().unwrap());
    client.list(&Filter::new()).unwrap()
}

#[track_caller]
fn check(name: &str, expected: Flow, line: &str) {
    let messages = support::golden(name);
    assert_eq!(list(&messages).as_slice(), std::slice::from_ref(&expected));
    assert_eq!(expected.to_string(), line);
    assert_eq!(support::flow_message(&expected), messages[0]);
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A flow of a kernel with SYNPROXY and accounting.
fn flow(original: Tuple, reply: Tuple) -> Flow {
    let mut flow = Flow::new(original, reply);
    flow.counters = Some([Counters::default(); 2]);
    flow.synproxy = Some(Synproxy::default());
    flow.use_count = 1;
    flow
}

#[test]
fn a_translated_udp_flow_in_a_zone() {
    let mut expected = flow(
        Tuple::udp(socket("10.0.0.1:4660"), socket("10.96.0.10:53")),
        Tuple::udp(socket("10.244.1.2:5353"), socket("10.0.0.1:4660")),
    );
    expected.zone = Zone::new(4660);
    expected.mark = 0x1234_5678;
    expected.timeout = Some(Duration::from_secs(599));
    expected.id = 0x0cb4_019c;
    check(
        "udp4_zone",
        expected,
        "ipv4     2 udp      17 599 src=10.0.0.1 dst=10.96.0.10 sport=4660 dport=53 packets=0 bytes=0 [UNREPLIED] \
         src=10.244.1.2 dst=10.0.0.1 sport=5353 dport=4660 packets=0 bytes=0 mark=305419896 zone=4660 use=1 id=213123484",
    );
}

#[test]
fn an_assured_tcp_connection() {
    let mut expected = flow(
        Tuple::tcp(socket("[fd00::1]:4660"), socket("[fd96::10]:443")),
        Tuple::tcp(socket("[fd96::10]:443"), socket("[fd00::1]:4660")),
    );
    expected.status |= Status::SEEN_REPLY | Status::ASSURED;
    expected.protocol_state = Some(ProtocolState::Tcp {
        state: TcpState::ESTABLISHED,
        window_scale: [0; 2],
        flags: [0x0a; 2],
    });
    expected.timeout = Some(Duration::from_secs(599));
    expected.id = 0x1b50_e4f3;
    check(
        "tcp6_established",
        expected,
        "ipv6     10 tcp      6 599 ESTABLISHED src=fd00::1 dst=fd96::10 sport=4660 dport=443 packets=0 bytes=0 \
         src=fd96::10 dst=fd00::1 sport=443 dport=4660 packets=0 bytes=0 [ASSURED] mark=0 use=1 id=458286323",
    );
}

#[test]
fn a_real_connection_with_translation_labels_and_a_zone_of_one_direction() {
    let mut expected = flow(
        Tuple::tcp(socket("127.0.0.1:4660"), socket("127.0.0.9:80")),
        Tuple::tcp(socket("127.0.0.1:8080"), socket("127.0.0.1:4660")),
    );
    expected.zone = Zone {
        id: 4660,
        direction: ZoneDirection::Original,
    };
    expected.status = Status::SEEN_REPLY
        | Status::ASSURED
        | Status::CONFIRMED
        | Status::DST_NAT
        | Status::SRC_NAT_DONE
        | Status::DST_NAT_DONE;
    expected.protocol_state = Some(ProtocolState::Tcp {
        state: TcpState::ESTABLISHED,
        window_scale: [10, 10],
        flags: [0x23; 2],
    });
    expected.counters = Some([
        Counters {
            packets: 3,
            bytes: 169,
        },
        Counters {
            packets: 2,
            bytes: 112,
        },
    ]);
    expected.timeout = Some(Duration::from_secs(431_999));
    expected.started = Some(UNIX_EPOCH + Duration::from_nanos(0x18ea_1952_130e_0892));
    expected.labels = Some(Labels(1 << 71));
    expected.synproxy = None;
    expected.id = 0xf60d_2488;
    check(
        "tcp4_nat_labels",
        expected,
        "ipv4     2 tcp      6 431999 ESTABLISHED src=127.0.0.1 dst=127.0.0.9 sport=4660 dport=80 zone-orig=4660 \
         packets=3 bytes=169 src=127.0.0.1 dst=127.0.0.1 sport=8080 dport=4660 packets=2 bytes=112 [ASSURED] mark=0 \
         use=1 id=4128056456",
    );
}

#[test]
fn an_sctp_association() {
    let tuple = Tuple::with_ports(Protocol::SCTP, socket("10.0.0.1:4660"), socket("10.0.0.2:9"));
    let mut expected = flow(tuple, tuple.inverted().unwrap());
    expected.protocol_state = Some(ProtocolState::Sctp {
        state: SctpState::ESTABLISHED,
        // The tool sends the numbers in host byte order; packets have them in network byte order.
        verification_tags: [0x0302_0100, 0x0706_0504],
    });
    expected.timeout = Some(Duration::from_secs(599));
    expected.id = 0xefd8_c571;
    check(
        "sctp4",
        expected,
        "ipv4     2 sctp     132 599 ESTABLISHED src=10.0.0.1 dst=10.0.0.2 sport=4660 dport=9 packets=0 bytes=0 \
         [UNREPLIED] src=10.0.0.2 dst=10.0.0.1 sport=9 dport=4660 packets=0 bytes=0 mark=0 use=1 id=4023960945",
    );
}

#[test]
fn an_echo_of_each_family() {
    for (name, ends, seconds, id, line) in [
        (
            "icmp4",
            ["10.0.0.1", "10.0.0.2"],
            29,
            0x79d4_9ce0,
            "ipv4     2 icmp     1 29 src=10.0.0.1 dst=10.0.0.2 type=8 code=0 id=4660 packets=0 bytes=0 [UNREPLIED] \
             src=10.0.0.2 dst=10.0.0.1 type=0 code=0 id=4660 packets=0 bytes=0 mark=0 use=1 id=2043976928",
        ),
        (
            "icmp6",
            ["fd00::1", "fd00::2"],
            30,
            0x7833_f6ac,
            "ipv6     10 icmpv6   58 30 src=fd00::1 dst=fd00::2 type=128 code=0 id=4660 packets=0 bytes=0 [UNREPLIED] \
             src=fd00::2 dst=fd00::1 type=129 code=0 id=4660 packets=0 bytes=0 mark=0 use=1 id=2016671404",
        ),
    ] {
        let [source, destination] = ends.map(|end| end.parse().unwrap());
        let tuple = Tuple::echo_request(source, destination, 4660);
        let mut expected = flow(tuple, tuple.inverted().unwrap());
        expected.timeout = Some(Duration::from_secs(seconds));
        expected.id = id;
        check(name, expected, line);
    }
}

#[test]
fn statistics_of_two_processors() {
    let messages = support::golden("cpu_statistics");
    let request = Script::message(0x0104, 0x301, &[0; 4]);
    let script = Script::new().expect(&request).answer(&messages.concat()).done();
    let mut client = Client::from_connection(script.connect().unwrap());
    let statistics = client.cpu_statistics().unwrap();
    let found: Vec<_> = statistics
        .iter()
        .map(|cpu| (cpu.cpu, cpu.insert, cpu.drop))
        .collect();
    assert_eq!(found, [(0, 2, 0), (1, 3, 0)]);
}
