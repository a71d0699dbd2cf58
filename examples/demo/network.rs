//! A node, two pods and a client: four network namespaces joined by veth devices. They end with the program.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns, unshare};

use crate::links;

/// A network namespace. A thread is in one namespace at a time, and programs that it starts are in the same one.
pub(crate) struct Namespace(File);

impl Namespace {
    /// Creates a namespace with its loopback device up: IPVS rejects every real server before.
    pub(crate) fn new() -> Result<Self> {
        let created = on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        });
        let namespace = Self(created.context("create a network namespace")?);
        namespace.run(|| links::set_up("lo"))?;
        Ok(namespace)
    }

    /// Runs `work` in the namespace, on a thread of its own.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// Moves the calling thread to the namespace.
    pub(crate) fn enter(&self) -> Result<()> {
        setns(&self.0, CloneFlags::CLONE_NEWNET).context("enter a network namespace")
    }

    /// A second handle, for a thread that outlives the borrow.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

pub(crate) struct Network {
    pub(crate) has_ipv6: bool,
    pub(crate) node: Namespace,
    pub(crate) client: Namespace,
    pub(crate) pods: [Namespace; 2],
}

impl Network {
    /// The client is 192.0.2.2 and 2001:db8::2; the links between node and pods have addresses that no endpoint has.
    pub(crate) fn new(has_ipv6: bool) -> Result<Self> {
        let network = Self {
            has_ipv6,
            node: Namespace::new()?,
            client: Namespace::new()?,
            pods: [Namespace::new()?, Namespace::new()?],
        };
        network.node.run(|| {
            set_sysctl("net/ipv4/ip_forward", "1")?;
            if has_ipv6 {
                set_sysctl("net/ipv6/conf/all/forwarding", "1")?;
            }
            Ok(())
        })?;
        network.join("client", &network.client, client_link)?;
        for (number, pod) in network.pods.iter().enumerate() {
            network.join(&format!("pod{number}"), pod, |end| pod_link(number, end))?;
        }
        Ok(network)
    }

    /// Joins the node and another namespace. The node has the addresses of end 1 and is the gateway of the other.
    fn join(&self, device: &str, other: &Namespace, addresses: impl Fn(u8) -> [IpAddr; 2]) -> Result<()> {
        let families = if self.has_ipv6 { 2 } else { 1 };
        let (near, far) = (&addresses(1)[..families], &addresses(2)[..families]);
        self.node.run(|| {
            links::add_veth(device, "eth0", &other.0)?;
            links::set_up(device)?;
            near.iter()
                .try_for_each(|address| links::add_address(device, *address, link_length(*address)))
        })?;
        other.run(|| {
            links::set_up("eth0")?;
            far.iter()
                .try_for_each(|address| links::add_address("eth0", *address, link_length(*address)))?;
            near.iter()
                .try_for_each(|gateway| links::add_route(None, *gateway))
        })
    }

    /// Gives an endpoint's address to a pod, and the node a route to it.
    pub(crate) fn add_address(&self, pod: usize, address: IpAddr) -> Result<()> {
        let namespace = self
            .pods
            .get(pod)
            .ok_or_else(|| anyhow!("there is no pod {pod}"))?;
        let [v4, v6] = pod_link(pod, 2);
        let (length, gateway) = if address.is_ipv4() { (32, v4) } else { (128, v6) };
        namespace.run(|| links::add_address("lo", address, length))?;
        self.node.run(|| links::add_route(Some(address), gateway))
    }
}

/// Whether an endpoint can have this address and be reached from another namespace.
pub(crate) fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let is_reserved = v4.octets()[0] == 0 || v4 >= Ipv4Addr::new(224, 0, 0, 0);
            !(is_reserved || v4.is_loopback() || v4.is_link_local())
        }
        IpAddr::V6(v6) => {
            let is_local = v6 == Ipv6Addr::UNSPECIFIED || v6.is_loopback() || v6.is_unicast_link_local();
            !(is_local || v6.is_multicast())
        }
    }
}

/// The addresses on the link between node (end 1) and client (end 2).
fn client_link(end: u8) -> [IpAddr; 2] {
    [
        Ipv4Addr::new(192, 0, 2, end).into(),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, end.into()).into(),
    ]
}

/// The addresses on the link between node (end 1) and a pod (end 2).
fn pod_link(pod: usize, end: u8) -> [IpAddr; 2] {
    let number = u8::try_from(pod).unwrap_or(u8::MAX);
    [
        Ipv4Addr::new(198, 18, number, end).into(),
        Ipv6Addr::new(0x2001, 0xdb8, u16::from(number) + 1, 0, 0, 0, 0, end.into()).into(),
    ]
}

/// The length of the network of a link.
fn link_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 24 } else { 64 }
}

fn set_sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
}

fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let result = scope.spawn(work).join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
