//! UDP flows use local ports of the node.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{tools, wait};
use kernlink_userspace::balance::Backend;
use kernlink_userspace::limits::raise_descriptor_limit;
use kernlink_userspace::{Limits, ListenerKey, Proxy, Serving, Stats, Transport};

/// The local ports that the kernel chooses from.
const PORTS: u64 = 200;

/// Sends one datagram from each of 300 ports to a proxy, in a namespace with 200 local ports. Calls `check` while all flows exist.
fn flood(all_flows: Option<usize>, check: impl FnOnce(Stats) + Send) {
    // Each of both tests has up to 500 sockets, and other tests of the process run at the same time.
    raise_descriptor_limit(4_096).unwrap();
    NetNs::new().run(|| {
        tools::set_sysctl("net.ipv4.ip_local_port_range", "20000 20199");
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 5001)).unwrap();
        let endpoint = server.local_addr().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 8];
            while let Ok((length, client)) = server.recv_from(&mut buffer) {
                let _ = server.send_to(&buffer[..length], client);
            }
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut limits = Limits::default();
        limits.all_flows = all_flows;
        limits.port_share = 0;
        // No flow ends by itself, however slow the machine is.
        limits.flow_timeouts.idle = wait::LIMIT;
        let mut proxy = Proxy::new(runtime.handle().clone(), limits).unwrap();
        let key = ListenerKey {
            transport: Transport::Udp,
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 5000)),
        };
        let serving = Serving {
            backends: vec![Backend::new(endpoint)],
            ..Serving::default()
        };
        proxy.listen(key, &serving).unwrap();
        let client = |port: u16| UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let clients: Vec<UdpSocket> = (30_000..30_300).map(client).collect();
        for (number, client) in (1..).zip(&clients) {
            client.send_to(b"x", key.address).unwrap();
            // The flows have replies: none is replaced.
            wait::until(|| {
                let stats = proxy.stats(&key).unwrap();
                let is_passed_on = stats.opened + stats.shed + stats.without_endpoint == number
                    && stats.datagrams_out == stats.opened;
                if is_passed_on {
                    Ok(())
                } else {
                    Err(format!("{number}: {stats:?}"))
                }
            });
        }
        check(proxy.stats(&key).unwrap());
    });
}

#[test]
fn udp_flows_leave_local_ports_for_other_programs() {
    flood(None, |stats| {
        assert_eq!((stats.opened, stats.shed), (PORTS / 2, PORTS));
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    });
}

#[test]
fn without_a_local_port_left_no_endpoint_counts_as_failed() {
    flood(Some(1000), |stats| {
        assert_eq!((stats.opened, stats.shed), (PORTS, 300 - PORTS));
        assert_eq!((stats.dial_failures, stats.without_endpoint), (0, 0));
    });
}
