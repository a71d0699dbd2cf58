//! Programs one Service in the kernel of this network namespace.
//!
//! As root, in a network namespace of its own, so that the host does not change:
//!
//! ```sh
//! cargo build --example one_service
//! unshare --net sh -c 'ip link set lo up; target/debug/examples/one_service; iptables-save'
//! ```

use std::time::Instant;

use kernlink_proxier::iptables_mode::{Config, Kernel, Proxier};
use kernlink_proxier::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, ObjectChange, ObjectName, Port, Service, SourceId,
};

fn main() -> anyhow::Result<()> {
    let mut config = Config::new("node-a");
    // All network namespaces share the size of the connection table, and only the initial one may change it: leave it as it is.
    config.conntrack.max_per_core = 0;
    let mut proxier = Proxier::new(&config, Kernel::open()?)?;

    let service = Service::new(ObjectName::new("shop", "web"))
        .with_cluster_ip("10.96.12.80")
        .with_port(Port::new("http", 80));
    let slice = EndpointSlice::new(ObjectName::new("shop", "web-4n8dz"), "web", Family::Ipv4)
        .with_port(EndpointPort::new("http", 8080))
        .with_endpoint(Endpoint::new([10, 244, 1, 20].into()))
        .with_endpoint(Endpoint::new([10, 244, 2, 20].into()));
    // No sync acts before the first full list of every kind: a partial list would delete working Services.
    for change in [
        Change::Services(ObjectChange::ReplaceAll(vec![service])),
        Change::Services(ObjectChange::Synced),
        Change::EndpointSlices(ObjectChange::ReplaceAll(vec![slice])),
        Change::EndpointSlices(ObjectChange::Synced),
    ] {
        for event in proxier.change(SourceId(0), change) {
            println!("event: {event}");
        }
    }

    // The plan prints as commands. `plan` makes it without executing it; `apply` executes a reviewed plan.
    let synced = proxier.sync(Instant::now())?;
    print!("{}", synced.plan);
    println!("{synced}");
    // When the first failed operation is retried: call `sync` again then.
    println!("next sync: {:?}", synced.next);
    Ok(())
}
