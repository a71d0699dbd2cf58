//! Datagrams that are too large for the path to the endpoint.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{tools, wait};
use kernlink_userspace::balance::Backend;
use kernlink_userspace::{Limits, ListenerKey, Proxy, Serving, Transport};

/// A router next to the node, and next to it a machine to which only packets of up to 1280 bytes fit. Returns their
/// namespaces.
fn narrow_path(node: &NetNs) -> [NetNs; 2] {
    let router = NetNs::new();
    let far = NetNs::new();
    node.connect("router", &router, "node");
    router.connect("far", &far, "eth0");
    let add = |device: &str, host: u8, v4: &str, v6: &str| {
        tools::ip_batch(&format!(
            "address add {v4}.{host}/24 dev {device}\naddress add {v6}::{host}/64 dev {device} nodad\n"
        ));
    };
    let (near_v4, near_v6, far_v4, far_v6) = ("10.1.0", "fd00:1", "10.2.0", "fd00:2");
    node.run(|| {
        add("router", 1, near_v4, near_v6);
        tools::ip_batch("route add 10.2.0.0/24 via 10.1.0.2\nroute add fd00:2::/64 via fd00:1::2\n");
    });
    router.run(|| {
        for sysctl in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            tools::set_sysctl(sysctl, "1");
        }
        add("node", 2, near_v4, near_v6);
        tools::ip(&["link", "set", "far", "mtu", "1280"]);
        add("far", 1, far_v4, far_v6);
    });
    far.run(|| {
        add("eth0", 2, far_v4, far_v6);
        tools::ip_batch("route add default via 10.2.0.1\nroute add default via fd00:2::1\n");
    });
    [router, far]
}

/// Sends until an answer comes.
fn ask(client: &UdpSocket, data: &[u8]) {
    wait::until(|| {
        client.send(data)?;
        client.recv(&mut [0; 8])
    });
}

#[test]
fn a_flow_goes_on_if_a_router_asks_for_smaller_packets() {
    let node = NetNs::new();
    let [_router, far] = narrow_path(&node);
    let addresses: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::new(10, 2, 0, 2).into()),
        (
            Ipv6Addr::LOCALHOST.into(),
            Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 2).into(),
        ),
    ];
    node.run(|| {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut limits = Limits::default();
        // No flow ends by itself, however long the neighbours take to find each other.
        limits.flow_timeouts.first_reply = wait::LIMIT;
        limits.flow_timeouts.idle = wait::LIMIT;
        let mut proxy = Proxy::new(runtime.handle().clone(), limits).unwrap();
        for (local, endpoint) in addresses {
            let server = far.run(|| wait::until(|| UdpSocket::bind((endpoint, 5000))));
            thread::spawn(move || {
                let mut buffer = [0; 2048];
                while let Ok((_, client)) = server.recv_from(&mut buffer) {
                    // The way back is new to the neighbours too.
                    let _ = server.send_to(b"answer", client);
                }
            });
            let key = ListenerKey {
                transport: Transport::Udp,
                address: SocketAddr::new(local, 5000),
            };
            let serving = Serving {
                backends: vec![Backend::new((endpoint, 5000).into())],
                ..Serving::default()
            };
            proxy.listen(key, &serving).unwrap();
            let client = UdpSocket::bind((local, 0)).unwrap();
            client.connect(key.address).unwrap();
            client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            ask(&client, b"small");
            for _ in 0..3 {
                ask(&client, &[1; 1400]);
            }
            let stats = proxy.stats(&key).unwrap();
            assert_eq!((stats.opened, stats.ended), (1, 0), "{stats:?}");
        }
    });
}
