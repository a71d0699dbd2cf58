//! Properties of all values and all bytes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use kernlink_ipvs::packet::IpvsMessage;
use kernlink_ipvs::{
    ConnectionFilter, Connections, Daemon, DaemonRole, Family, ForwardingMethod, Granularity, Info,
    InterfaceName, Operation, Persistence, PersistenceEngine, Protocol, RealServer, RealServerKey,
    RealServerStatus, Scheduler, SchedulerFlags, Thresholds, Timeouts, Tunnel, TunnelFlags, TunnelKind,
    Version, VirtualServer, VirtualServerKey, VirtualServerStatus, Weight, notation,
};
use kernlink_netlink::Batch;
use netlink_packet_core::{Emitable, ParseableParametrized};
use netlink_packet_generic::{GenlFamily, GenlHeader};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn addresses() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits))),
        any::<u128>().prop_map(|bits| IpAddr::V6(Ipv6Addr::from(bits))),
    ]
}

fn protocols() -> impl Strategy<Value = Protocol> {
    prop_oneof![
        Just(Protocol::Tcp),
        Just(Protocol::Udp),
        Just(Protocol::Sctp),
        any::<u16>().prop_map(Protocol::from_number),
    ]
}

fn keys() -> impl Strategy<Value = VirtualServerKey> {
    prop_oneof![
        (addresses(), any::<u16>(), protocols())
            .prop_map(|(address, port, protocol)| VirtualServerKey::new(address, port, protocol)),
        (any::<bool>(), 1..=u32::MAX).prop_map(|(is_v6, mark)| {
            let family = if is_v6 { Family::Ipv6 } else { Family::Ipv4 };
            VirtualServerKey::mark(family, NonZeroU32::new(mark).unwrap())
        }),
    ]
}

fn names() -> impl Strategy<Value = String> {
    "[a-z0-9_.-]{1,15}"
}

fn schedulers() -> impl Strategy<Value = Scheduler> {
    prop_oneof![
        proptest::sample::select(Scheduler::KNOWN.to_vec()),
        names().prop_map(|name| Scheduler::new(&name).unwrap()),
    ]
}

fn virtual_servers() -> impl Strategy<Value = VirtualServer> {
    let persistence = (0..=Persistence::MAX_SECONDS, any::<u32>(), 1..=128_u8);
    (
        keys(),
        schedulers(),
        0..8_u32,
        any::<bool>(),
        option::of(persistence),
        option::of(names()),
    )
        .prop_map(|(key, scheduler, flags, one_packet, persistence, engine)| {
            let mut server = VirtualServer::new(key, scheduler);
            server.scheduler_flags = SchedulerFlags::from_bits_truncate(flags << 3);
            server.one_packet = one_packet;
            server.persistence = persistence.map(|(seconds, mask, length)| {
                let granularity = match key.family() {
                    Family::Ipv4 => Granularity::from_mask(Ipv4Addr::from(mask)),
                    Family::Ipv6 => Granularity::from_prefix_length(length).unwrap(),
                };
                Persistence::from_seconds(seconds)
                    .unwrap()
                    .with_granularity(granularity)
            });
            server.persistence_engine = engine.map(|name| PersistenceEngine::new(&name).unwrap());
            server
        })
}

fn real_servers() -> impl Strategy<Value = RealServer> {
    let thresholds = (0..=Thresholds::MAX)
        .prop_flat_map(|upper| (Just(upper), 0..=upper))
        .prop_map(|(upper, lower)| Thresholds::new(upper, lower).unwrap());
    let tunnels = (any::<u8>(), any::<u16>(), any::<u16>()).prop_map(|(kind, port, flags)| {
        Tunnel::new(
            TunnelKind::from_number(kind % 5),
            port,
            TunnelFlags::from_bits_retain(flags),
        )
    });
    (
        addresses(),
        any::<u16>(),
        0..8_u32,
        0..=Weight::MAX.get(),
        prop_oneof![Just(Thresholds::NONE), thresholds],
        prop_oneof![Just(Tunnel::IPIP), tunnels],
    )
        .prop_map(|(address, port, method, weight, thresholds, tunnel)| {
            let mut server = RealServer::new(RealServerKey::new(address, port))
                .with_forwarding(ForwardingMethod::from_number(method))
                .with_weight(Weight::new(weight).unwrap())
                .with_thresholds(thresholds);
            server.tunnel = tunnel;
            server
        })
}

fn timeouts() -> impl Strategy<Value = Timeouts> {
    let seconds = || (0..=Timeouts::MAX_SECONDS).prop_map(|seconds| Duration::from_secs(seconds.into()));
    (seconds(), seconds(), seconds()).prop_map(|(tcp, tcp_fin, udp)| Timeouts::new(tcp, tcp_fin, udp))
}

fn roles() -> impl Strategy<Value = DaemonRole> {
    prop_oneof![Just(DaemonRole::Master), Just(DaemonRole::Backup)]
}

fn daemons() -> impl Strategy<Value = Daemon> {
    (
        roles(),
        names(),
        0..=255_u32,
        option::of(any::<u16>()),
        option::of(addresses()),
        option::of(any::<u16>()),
        option::of(any::<u8>()),
    )
        .prop_map(|(role, interface, sync_id, max_length, group, port, ttl)| {
            let mut daemon = Daemon::new(role, InterfaceName::new(&interface).unwrap()).with_sync_id(sync_id);
            daemon.max_length = max_length;
            daemon.group = group;
            daemon.port = port;
            daemon.ttl = ttl;
            daemon
        })
}

fn operations() -> impl Strategy<Value = Operation> {
    let with_real = (keys(), real_servers());
    prop_oneof![
        virtual_servers().prop_map(Operation::AddVirtualServer),
        virtual_servers().prop_map(Operation::UpdateVirtualServer),
        keys().prop_map(Operation::DeleteVirtualServer),
        with_real.prop_map(|(virtual_server, real_server)| Operation::AddRealServer {
            virtual_server,
            real_server
        }),
        (keys(), real_servers()).prop_map(|(virtual_server, real_server)| Operation::UpdateRealServer {
            virtual_server,
            real_server
        }),
        (keys(), real_servers()).prop_map(|(virtual_server, real_server)| Operation::DeleteRealServer {
            virtual_server,
            real_server: real_server.key
        }),
        Just(Operation::Flush),
        Just(Operation::ZeroAll),
        keys().prop_map(Operation::Zero),
        timeouts().prop_map(Operation::SetTimeouts),
        daemons().prop_map(Operation::StartDaemon),
        roles().prop_map(Operation::StopDaemon),
    ]
}

fn answers() -> impl Strategy<Value = IpvsMessage> {
    let counters = || vec(any::<u64>(), 10);
    prop_oneof![
        (virtual_servers(), counters()).prop_map(|(server, counters)| {
            let mut status = VirtualServerStatus::new(server);
            fill(&mut status.stats, &counters);
            IpvsMessage::VirtualServer(status)
        }),
        (real_servers(), counters(), prop::array::uniform3(0..1_u32 << 31)).prop_map(
            |(server, counters, connections)| {
                let mut status = RealServerStatus::new(server);
                fill(&mut status.stats, &counters);
                [
                    status.connections.active,
                    status.connections.inactive,
                    status.connections.persistent,
                ] = connections;
                IpvsMessage::RealServer(status)
            }
        ),
        daemons().prop_map(IpvsMessage::Daemon),
        timeouts().prop_map(IpvsMessage::Timeouts),
        (any::<[u8; 3]>(), any::<u32>()).prop_map(|([major, minor, patch], size)| {
            IpvsMessage::Info(Info::new(Version { major, minor, patch }, size))
        }),
    ]
}

fn fill(stats: &mut kernlink_ipvs::Stats, counters: &[u64]) {
    stats.connections = counters[0];
    stats.incoming_packets = counters[1];
    stats.outgoing_packets = counters[2];
    stats.incoming_bytes = counters[3];
    stats.outgoing_bytes = counters[4];
    stats.rates.connections = counters[5];
    stats.rates.incoming_packets = counters[6];
    stats.rates.outgoing_packets = counters[7];
    stats.rates.incoming_bytes = counters[8];
    stats.rates.outgoing_bytes = counters[9];
}

fn body(message: &IpvsMessage) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

fn parse(command: u8, bytes: &[u8]) -> Option<IpvsMessage> {
    IpvsMessage::parse_with_param(
        bytes,
        GenlHeader {
            cmd: command,
            version: 1,
        },
    )
    .ok()
}

#[test]
fn an_ensure_operation_is_two_messages() {
    let server = VirtualServer::new(VirtualServerKey::tcp([10, 0, 0, 1], 80), Scheduler::RR);
    let ensure = Operation::EnsureVirtualServer(server);
    assert_eq!(
        ensure.to_string(),
        "-A -t 10.0.0.1:80 -s rr || -E -t 10.0.0.1:80 -s rr"
    );
    let [add, update] = ensure.add_and_update().unwrap();
    assert!(IpvsMessage::operation(ensure.clone()).unwrap_err().is_invalid());
    let mut together = kernlink_netlink::Batch::new();
    ensure.encode(0x20, &mut together).unwrap();
    let mut apart = kernlink_netlink::Batch::new();
    add.encode(0x20, &mut apart).unwrap();
    update.encode(0x20, &mut apart).unwrap();
    assert!(together.messages().eq(apart.messages()) && together.len() == 2);
}

#[test]
fn a_negative_number_of_connections_is_zero() {
    let mut status = RealServerStatus::new(RealServer::new(RealServerKey::new([10, 0, 0, 1], 80)));
    let expected = IpvsMessage::RealServer(status.clone());
    status.connections.active = u32::MAX;
    status.connections.inactive = 1 << 31;
    let shown = IpvsMessage::RealServer(status);
    assert_eq!(parse(shown.command(), &body(&shown)), Some(expected));
}

proptest! {
    #[test]
    fn keys_read_back_as_they_print(key in keys(), address in any::<std::net::IpAddr>(), port in any::<u16>()) {
        prop_assert_eq!(key.to_string().parse::<VirtualServerKey>(), Ok(key));
        let key = RealServerKey::new(address, port);
        prop_assert_eq!(key.to_string().parse::<RealServerKey>(), Ok(key));
    }

    #[test]
    fn an_encoded_answer_decodes_to_itself(answer in answers()) {
        prop_assert_eq!(parse(answer.command(), &body(&answer)), Some(answer));
    }

    /// A listing of the kernel has the attributes of the request that added the object.
    #[test]
    fn a_request_to_add_decodes_as_a_listed_object(virtual_server in virtual_servers(), real_server in real_servers()) {
        let key = virtual_server.key;
        let add = IpvsMessage::operation(Operation::AddVirtualServer(virtual_server.clone())).unwrap();
        prop_assert_eq!(
            parse(1, &body(&add)),
            Some(IpvsMessage::VirtualServer(VirtualServerStatus::new(virtual_server)))
        );
        let add = Operation::AddRealServer { virtual_server: key, real_server: real_server.clone() };
        let add = IpvsMessage::operation(add).unwrap();
        prop_assert_eq!(
            parse(5, &body(&add)),
            Some(IpvsMessage::RealServer(RealServerStatus::new(real_server)))
        );
    }

    #[test]
    fn a_printed_operation_parses_to_itself(operation in operations()) {
        prop_assert_eq!(operation.to_string().parse(), Ok(operation));
    }

    #[test]
    fn a_saved_table_parses_to_itself(
        table in vec((virtual_servers(), vec(real_servers(), 0..4)), 0..4)
    ) {
        let text = notation::save(table.iter().map(|(server, real_servers)| (server, real_servers)));
        let mut expected = Vec::new();
        for (server, real_servers) in table {
            let key = server.key;
            expected.push(Operation::AddVirtualServer(server));
            expected.extend(
                real_servers.into_iter().map(|real_server| Operation::AddRealServer { virtual_server: key, real_server }),
            );
        }
        prop_assert_eq!(notation::parse(&text), Ok(expected));
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "\\PC{0,60}", line in "(-[A-Za-z0-9] ?|--[a-z-]{2,12} |[0-9.:\\[\\]]{1,12} ){0,8}") {
        let _ = notation::parse(&text);
        let _ = notation::parse(&line);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(command in 0..20_u8, bytes in vec(any::<u8>(), 0..300)) {
        let _ = parse(command, &bytes);
    }

    #[test]
    fn damaged_answers_are_decoded_or_refused(
        answer in answers(),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut bytes = body(&answer);
        for (position, byte) in damage {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = parse(answer.command(), &bytes);
    }

    #[test]
    fn any_connection_table_is_parsed_or_refused(text in vec(any::<u8>(), 0..300)) {
        let mut table = b"headings\n".to_vec();
        table.extend_from_slice(&text);
        for entry in Connections::from_reader(&table[..], ConnectionFilter::all()) {
            let _ = entry;
        }
    }
}

#[test]
fn encoding_allocates_nothing() {
    let server = VirtualServer::new(
        VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80),
        Scheduler::RR,
    );
    let real_server = RealServer::new(RealServerKey::new(Ipv4Addr::new(10, 0, 0, 2), 80))
        .with_tunnel(Tunnel::gue(6080, TunnelFlags::CHECKSUM));
    let operations = [
        Operation::AddVirtualServer(server.clone().with_persistence_engine(PersistenceEngine::SIP)),
        Operation::AddRealServer {
            virtual_server: server.key,
            real_server: real_server.clone(),
        },
        Operation::DeleteRealServer {
            virtual_server: server.key,
            real_server: real_server.key,
        },
        Operation::DeleteVirtualServer(server.key),
        Operation::SetTimeouts(Timeouts::UNCHANGED),
    ];
    let mut batch = Batch::new();
    let mut encode = || {
        batch.clear();
        for _ in 0..100 {
            for operation in &operations {
                operation.encode(30, &mut batch).unwrap();
            }
        }
    };
    // The first run allocates the memory of the batch.
    encode();
    assert_eq!(allocation_counter::measure(encode).count_total, 0);
}
