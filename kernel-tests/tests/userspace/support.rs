//! A node with a proxier of userspace mode.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{Client, Variant};
use kernlink_kernel_tests::netns::{Entered, NetNs};
use kernlink_kernel_tests::traffic::{Network, Protocol, Server};
use kernlink_kernel_tests::{tools, wait};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Ingress, IngressMode, Kind, ObjectChange,
    ObjectName, Port, Service, ServiceType, SourceId,
};
use kernlink_userspace::Limits;
use kernlink_userspace::data_path::{Config, Kernel, Proxier, remaining};
use kernlink_userspace::limits::DIAL_TIMEOUTS;
use tokio::runtime::Runtime;

pub(crate) const VARIANTS: [Variant; 2] = [Variant::Legacy, Variant::Nft];

/// The cluster IPs of Service `web`, one of each family.
pub(crate) fn cluster_ips() -> [IpAddr; 2] {
    ["10.96.0.10".parse().unwrap(), "fd00:10:96::10".parse().unwrap()]
}

pub(crate) fn node_ips() -> [IpAddr; 2] {
    [Network::node_ipv4().into(), Network::node_ipv6().into()]
}

/// Both ports of a Service at an address.
pub(crate) fn targets(address: IpAddr, tcp: u16, udp: u16) -> [(Protocol, SocketAddr); 2] {
    [
        (Protocol::Tcp, SocketAddr::new(address, tcp)),
        (Protocol::Udp, SocketAddr::new(address, udp)),
    ]
}

/// Service `web` with ports 80/TCP and 53/UDP in both families.
pub(crate) fn web() -> Service {
    let [v4, v6] = cluster_ips().map(|ip| ip.to_string());
    let mut service = Service::new(ObjectName::new("default", "web"))
        .with_cluster_ip(v4.clone())
        .with_port(Port::new("web", 80))
        .with_port(Port::new("ask", 53).with_protocol(kernlink_services::Protocol::Udp));
    service.cluster_ips = vec![v4, v6];
    service.ip_families = Family::ALL.into();
    service
}

/// The same with the node ports 30080/TCP and 30053/UDP.
pub(crate) fn with_node_ports() -> Service {
    let mut service = web();
    service.service_type = ServiceType::LoadBalancer;
    service.ports = vec![
        Port::new("web", 80).with_node_port(30_080),
        Port::new("ask", 53)
            .with_protocol(kernlink_services::Protocol::Udp)
            .with_node_port(30_053),
    ];
    service
}

/// The external IPs and the load-balancer IPs of [`with_external_addresses`].
pub(crate) const EXTERNAL: [&str; 2] = ["203.0.113.5", "2001:db8:5::5"];
pub(crate) const BALANCER: [&str; 2] = ["198.51.100.7", "2001:db8:7::7"];

/// The same with external IPs and load-balancer IPs.
pub(crate) fn with_external_addresses() -> Service {
    let mut service = with_node_ports();
    service.external_ips = EXTERNAL.map(String::from).into();
    service.ingress = BALANCER
        .map(|ip| Ingress {
            ip: ip.into(),
            mode: IngressMode::Vip,
        })
        .into();
    service
}

/// A network, and the calling thread in its node.
pub(crate) struct Place {
    pub(crate) network: Network,
    _servers: Vec<Server>,
    _on_node: Entered,
}

impl Place {
    pub(crate) fn new(pods: u8) -> Self {
        let network = Network::new(pods);
        let mut servers = network.serve(Protocol::Tcp, 8080);
        servers.extend(network.serve(Protocol::Udp, 5353));
        let on_node = network.node.enter();
        // As on every node: cluster IPs are routed somewhere until rules translate them.
        for gateway in [
            IpAddr::from(Network::client_ipv4()),
            Network::client_ipv6().into(),
        ] {
            tools::ip(&["route", "add", "default", "via", &gateway.to_string()]);
        }
        Self {
            network,
            _servers: servers,
            _on_node: on_node,
        }
    }

    pub(crate) fn client(&self) -> &NetNs {
        &self.network.client
    }

    pub(crate) fn node(&self) -> &NetNs {
        &self.network.node
    }
}

/// A process of userspace mode in the calling thread's namespace: a proxier and the runtime of its sockets.
pub(crate) struct Process {
    pub(crate) proxier: Proxier,
    /// The node of the endpoints.
    node: &'static str,
    _runtime: Runtime,
}

/// The configuration of the processes.
pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.services.node_ips = node_ips().into();
    config
}

impl Process {
    pub(crate) fn new(variant: Variant) -> Self {
        let config = config();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut limits = Limits::default();
        limits.dial_timeouts = DIAL_TIMEOUTS.into();
        let mut kernel = Kernel::open(runtime.handle().clone(), limits).unwrap();
        kernel.rules = Box::new(client(variant));
        Self {
            proxier: Proxier::new(&config, kernel).unwrap(),
            node: "node-b",
            _runtime: runtime,
        }
    }

    /// A process that serves Service `web` with these pods.
    pub(crate) fn serving(variant: Variant, service: Service, pods: &[u8]) -> Self {
        let mut process = Self::new(variant);
        for change in [
            Change::Services(ObjectChange::ReplaceAll(vec![service])),
            Change::synced(Kind::Service),
            Change::synced(Kind::EndpointSlice),
        ] {
            process.proxier.change(SourceId(0), change);
        }
        process.endpoints(pods);
        process
    }

    /// Adds or changes a Service.
    pub(crate) fn change(&mut self, service: Service) {
        let change = Change::Services(ObjectChange::Upsert(service));
        self.proxier.change(SourceId(0), change);
    }

    /// Deletes Service `web`.
    pub(crate) fn delete(&mut self) {
        let name = ObjectName::new("default", "web");
        self.proxier
            .change(SourceId(0), Change::Services(ObjectChange::Delete(name)));
    }

    /// Sets the pods of Service `web`, which are on another node for traffic policies.
    pub(crate) fn endpoints(&mut self, pods: &[u8]) {
        self.node = "node-b";
        self.set_endpoints(pods);
    }

    /// Sets the pods of Service `web`, on this node.
    pub(crate) fn endpoints_here(&mut self, pods: &[u8]) {
        self.node = "node-a";
        self.set_endpoints(pods);
    }

    fn set_endpoints(&mut self, pods: &[u8]) {
        for family in Family::ALL {
            let address = |pod: u8| -> IpAddr {
                match family {
                    Family::Ipv4 => Network::pod_ipv4(pod).into(),
                    Family::Ipv6 => Network::pod_ipv6(pod).into(),
                }
            };
            self.addresses(family, &pods.iter().map(|pod| address(*pod)).collect::<Vec<_>>());
        }
    }

    /// Sets the endpoints of Service `web` in a family.
    pub(crate) fn addresses(&mut self, family: Family, addresses: &[IpAddr]) {
        let udp = EndpointPort::new("ask", 5353).with_protocol(kernlink_services::Protocol::Udp);
        let name = ObjectName::new("default", format!("web-{family}"));
        let mut slice = EndpointSlice::new(name, "web", family)
            .with_port(EndpointPort::new("web", 8080))
            .with_port(udp);
        for address in addresses {
            slice = slice.with_endpoint(Endpoint::new(*address).with_node(self.node));
        }
        self.proxier
            .change(SourceId(0), Change::EndpointSlices(ObjectChange::Upsert(slice)));
    }

    /// Syncs; every step must succeed, and reading the kernel again must find nothing to do. Returns the number of steps.
    pub(crate) fn sync(&mut self) -> usize {
        let synced = self.proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        self.proxier.resync();
        let plan = self.proxier.plan(Instant::now()).unwrap();
        assert!(plan.is_empty(), "{plan}");
        synced.plan.len()
    }
}

/// Waits until no socket of the calling thread's namespace has one of these local ports. A program that another test starts has copies of sockets
/// until it is executed.
pub(crate) fn wait_until_free(is_port: impl Fn(u16) -> bool) {
    wait::until(|| {
        for file in ["tcp", "tcp6", "udp", "udp6"] {
            let sockets = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap();
            let mut ports = sockets.lines().filter_map(|line| {
                let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
                u16::from_str_radix(port, 16).ok()
            });
            if let Some(port) = ports.find(|port| is_port(*port)) {
                return Err(format!("a socket of {file} has port {port}"));
            }
        }
        Ok(())
    });
}

/// Removes what userspace mode left.
pub(crate) fn clean(variant: Variant) {
    let removal = remaining(&mut client(variant), &Family::ALL);
    assert_eq!(removal.errors, []);
    let outcomes = removal.execute(&mut client(variant));
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}\n{removal}");
}

/// The tools of one variant, with a lock file of the calling test.
pub(crate) fn client(variant: Variant) -> Client {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test").replace("::", "-");
    // On a tmpfs, and of its own: the namespace is private.
    let lock = PathBuf::from(format!(
        "/dev/shm/kernlink-userspace-{}-{name}",
        std::process::id()
    ));
    Client::new()
        .with_variant(variant)
        .with_wait(Duration::from_secs(30))
        .with_timeout(Duration::from_secs(300))
        .with_lock_file(lock)
}

/// An address on a link of the node at which no machine answers, one of each family.
pub(crate) fn black_hole(place: &Place) -> [IpAddr; 2] {
    let other = NetNs::bare();
    place.network.node.connect("hole", &other, "hole");
    tools::ip(&["address", "add", "10.99.0.1/24", "dev", "hole"]);
    tools::ip(&["address", "add", "fd00:99::1/64", "dev", "hole", "nodad"]);
    // A neighbour that is never asked for: packets to it disappear in the other namespace, which has no addresses.
    for address in ["10.99.0.2", "fd00:99::2"] {
        tools::ip(&[
            "neighbour",
            "replace",
            address,
            "lladdr",
            "02:00:00:00:00:02",
            "dev",
            "hole",
        ]);
    }
    std::mem::forget(other);
    [
        Ipv4Addr::new(10, 99, 0, 2).into(),
        Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 2).into(),
    ]
}
