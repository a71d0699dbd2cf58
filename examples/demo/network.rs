//! A node, two pods and a client: four network namespaces joined by veth devices. They end with the program.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns, unshare};

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
        namespace.run(|| ip("link set lo up"))?;
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
        network.join("client", &network.client, "192.0.2", "2001:db8:")?;
        for (number, pod) in network.pods.iter().enumerate() {
            let (v4, v6) = pod_prefixes(number);
            network.join(&format!("pod{number}"), pod, &v4, &v6)?;
        }
        Ok(network)
    }

    /// Joins the node and another namespace. The node has the first address of each prefix and is the gateway of the other.
    fn join(&self, device: &str, other: &Namespace, v4: &str, v6: &str) -> Result<()> {
        let peer = other.0.try_clone()?;
        self.node.run(|| {
            // `ip` opens the namespace by its path, which names a file of this process.
            let path = format!(
                "/proc/{}/fd/{}",
                std::process::id(),
                std::os::fd::AsRawFd::as_raw_fd(&peer)
            );
            ip(&format!(
                "link add {device} type veth peer name eth0 netns {path}"
            ))?;
            ip(&format!("link set {device} up"))?;
            ip(&format!("address add {v4}.1/24 dev {device}"))
        })?;
        other.run(|| {
            ip("link set eth0 up")?;
            ip(&format!("address add {v4}.2/24 dev eth0"))?;
            ip(&format!("route add default via {v4}.1"))
        })?;
        if !self.has_ipv6 {
            return Ok(());
        }
        self.node
            .run(|| ip(&format!("address add {v6}:1/64 dev {device} nodad")))?;
        other.run(|| {
            ip(&format!("address add {v6}:2/64 dev eth0 nodad"))?;
            ip(&format!("route add default via {v6}:1"))
        })
    }

    /// Gives an endpoint's address to a pod, and the node a route to it.
    pub(crate) fn add_address(&self, pod: usize, address: IpAddr) -> Result<()> {
        let namespace = self
            .pods
            .get(pod)
            .ok_or_else(|| anyhow!("there is no pod {pod}"))?;
        let (v4, v6) = pod_prefixes(pod);
        let (length, option, gateway) = if address.is_ipv4() {
            (32, "", format!("{v4}.2"))
        } else {
            // Without duplicate address detection, during which no server can be bound to the address.
            (128, " nodad", format!("{v6}:2"))
        };
        namespace.run(|| ip(&format!("address replace {address}/{length} dev lo{option}")))?;
        self.node
            .run(|| ip(&format!("route replace {address}/{length} via {gateway}")))
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

fn pod_prefixes(pod: usize) -> (String, String) {
    (format!("198.18.{pod}"), format!("2001:db8:{}:", pod + 1))
}

fn set_sysctl(name: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{name}");
    fs::write(&path, value).with_context(|| format!("write {value} to {path}"))
}

/// Runs `ip` of iproute2 in the namespace of the calling thread.
fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.context("run `ip` (package iproute2)")?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", message.trim());
    Ok(())
}

fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let result = scope.spawn(work).join();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
