//! The source of the agent: the API server of a cluster.
//!
//! Services, EndpointSlices and Nodes are listed and watched with kube-proxy's selectors. Each object is reduced to the fields that a
//! service proxy uses as it arrives; of the objects that were delivered only the names are kept.
//!
//! - The first list is streamed as events of a watch if the server supports it, otherwise it is read in pages.
//! - A watch that ends continues at the last version. If the server no longer knows that version (`410 Gone`), the list is read again, and
//!   what is no longer in it is deleted.
//! - A watch that is refused for another reason is repeated at its version if the server may accept it later; otherwise the list is read
//!   again. What is known stays, and which verb and resource are refused is reported.
//! - A server that hangs is noticed within 45 seconds, also behind a load balancer: over HTTP/2 by a ping that is not answered, over HTTP/1.1 by
//!   a watch of up to 30 seconds that does not end. The next attempt has a new connection.
//! - A watch over HTTP/2 without an event and a bookmark for 200 seconds begins again: a proxy on the way may answer pings.
//! - Objects are requested in protobuf, and in JSON from a server without it.
//! - Attempts that fail are repeated after a random delay that doubles up to 30 seconds, and not before the time that the server names (`Retry-After`). Credentials, certificates and the address of the
//!   server are read again for each attempt after a failed one, and for the next request after one of their files changed.
//! - An invalid object stays as it was before; it is reported, and does not affect the others. Of an object with an invalid part, such as an
//!   endpoint, or an unknown value, the rest is used.
//! - ServiceCIDR objects are read where the mode uses them. Nothing else depends on whether they can be read.
//! - Events about the Node are written to the server; nothing else is.
//! - Nothing is [`Synced`](kernlink_services::ObjectChange::Synced) before its first full list. Nodes are not synced before the Node of this
//!   node has an address, or 30 seconds have passed, as in kube-proxy.

mod access;
mod awaited;
mod backoff;
mod certificates;
mod connection;
mod encoding;
mod files;
mod format;
mod known;
mod kubeconfig;
mod lines;
mod node_events;
mod node_gate;
mod plugin;
mod problems;
mod process_group;
mod proxy;
mod read;
mod reflector;
mod refusals;
mod resource;
mod service_cidrs;
#[cfg(test)]
mod tests;
mod token;
mod traffic;
mod transport;

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ipnet::IpNet;
use kernlink_services::{Change, Kind};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::access::Access;
use self::awaited::AwaitedThread;
use self::connection::Connection;
use self::node_events::Writer;
pub use self::node_events::{NodeEvent, NodeEvents};
use self::node_gate::NodeGate;
pub use self::problems::Problems;
pub(crate) use self::read::SERVICE_CIDRS_TIMEOUT;
pub use self::read::{Objects, read};
use self::reflector::Reflector;
use self::resource::Resource;
use self::service_cidrs::ServiceCidrs;
pub use self::traffic::Traffic;
use self::transport::Limits;

/// What is read, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the API server is, and the credentials.
    pub access: Access,
    /// The name of this node.
    pub node_name: Arc<str>,
    /// Serves only Services whose label `service.kubernetes.io/service-proxy-name` has this value. `None`: only Services without the label.
    pub service_proxy_name: Option<String>,
    /// Whether all Nodes are read, not only that of this node: their addresses are not served as external IPs then.
    pub has_all_nodes: bool,
    /// Whether ServiceCIDR objects are read too.
    pub has_service_cidrs: bool,
    /// Whether the Node must have an address before the Nodes are synced. False if the addresses are configured.
    pub needs_address: bool,
    /// Whether the Node must have a pod network before the Nodes are synced.
    pub needs_pod_cidr: bool,
}

/// What happened to the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Objects changed, or a first list is complete.
    Changes(Vec<Change>),
    /// Objects are invalid, and stay as they were.
    Invalid(Problems),
    /// Parts of objects that are invalid, such as single endpoints, are ignored, and defaults replace unknown values.
    Ignored(Problems),
    /// A kind cannot be read; it is tried again. The objects stay as they were.
    Failed {
        /// The kind.
        kind: Kind,
        /// The reason.
        problem: String,
        /// When the last byte about this kind, or of its connection, was received. `None`: nothing was ever received.
        received: Option<SystemTime>,
    },
    /// A kind that could not be read is read again.
    Recovered(Kind),
    /// The networks of all ServiceCIDR objects, each once; none if the server does not have the kind.
    ServiceCidrs(Vec<IpNet>),
    /// ServiceCIDR objects cannot be read, and why; what is known stays. `None`: they are read again.
    ServiceCidrsFailed(Option<String>),
    /// The thread ended because of a defect.
    Ended,
    /// The Nodes are not synced yet, or are synced although the Node of this node is not as it should be.
    Node(String),
}

/// Receives updates. Calls are made on the thread of the source.
type OnUpdate = Arc<dyn Fn(Update) + Send + Sync>;

/// The longest time until the thread has ended after it was told to. Only one that is blocked, such as by a file system, takes longer.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// The thread that reads the API server. Dropping it ends the thread; one that is blocked is left after 5 seconds.
#[derive(Debug)]
pub struct Cluster {
    events: NodeEvents,
    /// Closed to stop the thread.
    stop: Option<watch::Sender<()>>,
    _thread: AwaitedThread,
}

impl Cluster {
    /// Starts the thread, and calls `on_update` with what it receives. Requests are counted in `traffic`.
    ///
    /// # Errors
    /// If the system has no resources for the thread. A server that does not answer is not an error here.
    pub fn start(
        options: &Options,
        traffic: &Traffic,
        on_update: impl Fn(Update) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::start_with(options, traffic, Limits::default(), on_update)
    }

    fn start_with(
        options: &Options,
        traffic: &Traffic,
        limits: Limits,
        on_update: impl Fn(Update) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, mut stopped) = watch::channel(());
        let on_update: OnUpdate = Arc::new(on_update);
        let connection = Arc::new(Connection::new(options.access.clone(), traffic.clone(), limits));
        let (events, writer) = Writer::new(Arc::clone(&options.node_name), Arc::clone(&connection));
        let node = if options.has_all_nodes {
            Resource::nodes()
        } else {
            Resource::node(&options.node_name)
        };
        let resources = [
            (node, Some(NodeGate::new(options))),
            (Resource::services(options.service_proxy_name.as_deref()), None),
            (Resource::endpoint_slices(), None),
        ];
        let reflectors = resources.map(|(resource, gate)| {
            Reflector::new(resource, gate, Arc::clone(&connection), Arc::clone(&on_update))
        });
        let service_cidrs = options
            .has_service_cidrs
            .then(|| ServiceCidrs::new(connection, Arc::clone(&on_update)));
        let thread = AwaitedThread::spawn("kernlink-cluster", STOP_LIMIT, move || {
            let mut tasks = JoinSet::new();
            for reflector in reflectors {
                tasks.spawn_on(reflector.run(), runtime.handle());
            }
            if let Some(service_cidrs) = service_cidrs {
                tasks.spawn_on(service_cidrs.run(), runtime.handle());
            }
            tasks.spawn_on(writer.run(), runtime.handle());
            let is_defect = runtime.block_on(async {
                tokio::select! {
                    // It returns when the other end is dropped.
                    _ = stopped.changed() => false,
                    _ = tasks.join_next() => true,
                }
            });
            if is_defect {
                on_update(Update::Ended);
            }
            // A name may still be resolved.
            runtime.shutdown_background();
        })?;
        Ok(Self {
            events,
            stop: Some(stop),
            _thread: thread,
        })
    }

    /// Takes events about the Node of this node.
    #[must_use]
    pub fn events(&self) -> &NodeEvents {
        &self.events
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The thread is awaited after this.
        self.stop = None;
    }
}
