//! Kubernetes manifests in, a kernel programmed, requests balanced.
//!
//! `cargo run --example demo [-- FILE...]`
//!
//! As root on a kernel with IPVS this makes a private network namespace for a node, joins namespaces for two pods and a client
//! to it, starts a small server for every endpoint of the manifests, programs the node's kernel through the proxier and sends
//! requests to every virtual IP. Nothing outside these namespaces is touched, and they end with the program. Elsewhere the same
//! pipeline runs on a kernel in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kernlink_ipvs::VirtualServerKey;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{self, Network, Server, ask_many};
use kernlink_kernel_tests::wait;
use kernlink_kubernetes::manifest::{self, Objects};
use kernlink_proxier::ipvs_mode::{Config, Error, Kernel, Proxier, config::Conntrack};
use kernlink_proxier::services::{self, Change, EndpointSlice, Family, FrontendKey, ObjectChange, SourceId};

const SOURCE: SourceId = SourceId(0);
const REQUESTS: usize = 60;
const USAGE: &str = "usage: demo [FILE]...

Reads Kubernetes manifests (by default those in examples/manifests) and programs a kernel with them: this one, in network
namespaces of its own, where it has IPVS and this is root, else one in memory.";

/// Prints a line, and ends the program when nobody reads any more (`demo | head`).
macro_rules! say {
    ($($argument:tt)*) => {
        if writeln!(std::io::stdout(), $($argument)*).is_err() {
            std::process::exit(1);
        }
    };
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every file was read, the kernel took everything and every request was answered.
fn run() -> Result<bool> {
    let options: Vec<_> = std::env::args_os()
        .skip(1)
        .filter(|argument| argument.as_encoded_bytes().starts_with(b"-"))
        .collect();
    if let Some(option) = options.first() {
        if option == "--help" || option == "-h" {
            say!("{USAGE}");
            return Ok(true);
        }
        anyhow::bail!("there is no option {}\n{USAGE}", option.display());
    }
    let obstacle = obstacle();
    match &obstacle {
        None => {
            say!("A real kernel: everything below happens in network namespaces that end with this program.")
        }
        Some(obstacle) => say!("A kernel in memory, because {obstacle}."),
    }
    let (objects, all_read) = read_manifests()?;
    let good = match obstacle {
        None => on_the_kernel(objects)?,
        Some(_) => in_memory(objects)?,
    };
    Ok(good && all_read)
}

/// Why the running kernel cannot be programmed, and what would help; `None` if it can.
fn obstacle() -> Option<String> {
    const VM: &str = "`cargo xtask vm run -- cargo run --example demo` runs this on a kernel that has it";
    if !is_root() {
        return Some(format!(
            "programming a real one takes root: run this under sudo; {VM}"
        ));
    }
    // The probe is made in a namespace of its own, so that nothing happens in the host's. Where it panics, the first line says so.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let probed = std::panic::catch_unwind(|| NetNs::new().run(|| Kernel::open().map(drop)));
    std::panic::set_hook(hook);
    match probed {
        Ok(Ok(())) => None,
        // What is wrong with IPVS says itself what would help.
        Ok(Err(Error::Ipvs(error))) => Some(format!("{}; {VM}", text(&error))),
        Ok(Err(error)) => Some(format!("this program {}; {VM}", text(&error))),
        Err(panic) => {
            let reason = panic
                .downcast_ref::<String>()
                .map_or("no network namespace can be made here", String::as_str);
            Some(format!(
                "{reason}; it takes CAP_SYS_ADMIN and the command `ip`; {VM}"
            ))
        }
    }
}

fn is_root() -> bool {
    // The owner of a process's own entry is its effective user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|entry| entry.uid() == 0)
}

/// Reads the files named on the command line, else those beside this example. What is wrong in them is said; the rest counts.
/// Returns also whether every file could be read.
fn read_manifests() -> Result<(Objects, bool)> {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests");
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
        files = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        files.sort();
    }
    let mut objects = Objects::default();
    let mut unread = 0;
    for file in &files {
        let name = file.display().to_string();
        match std::fs::read_to_string(file) {
            Ok(text) => objects.extend(manifest::read(&name, &text)),
            Err(error) => {
                unread += 1;
                say!("left out: {}: cannot read it: {error}", name.escape_debug());
            }
        }
    }
    ensure!(unread < files.len(), "there is no file that can be read");
    for error in &objects.errors {
        say!("left out: {error}");
    }
    say!(
        "\nRead {} Services and {} EndpointSlices.",
        objects.services.len(),
        objects.endpoint_slices.len()
    );
    if !objects.other.is_empty() {
        let other: Vec<String> = objects
            .other
            .iter()
            .map(|(kind, count)| format!("{count} {}", kind.escape_debug()))
            .collect();
        say!("Objects of other kinds, not used: {}.", other.join(", "));
    }
    Ok((objects, unread == 0))
}

/// kube-proxy's defaults for a node of this name, but the table of tracked connections, which all namespaces share, stays.
fn config() -> Config {
    let mut config = Config::new("node-a");
    let zero = std::time::Duration::ZERO;
    config.conntrack = Conntrack {
        max_per_core: 0,
        tcp_established: zero,
        tcp_close_wait: zero,
        ..Conntrack::default()
    };
    config
}

fn proxier(kernel: Kernel, objects: Objects) -> Result<Proxier> {
    let mut proxier = Proxier::new(config(), kernel)?;
    // What could not be read was named; the kernel is empty, so that nothing is removed without it.
    for change in objects.into_changes_without_missing() {
        for event in proxier.change(SOURCE, change) {
            say!("note: {event}");
        }
    }
    let skipped: Vec<String> = proxier
        .services()
        .excluded()
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    if !skipped.is_empty() {
        say!("Skipped: {}.", skipped.join(", "));
    }
    Ok(proxier)
}

/// Programs the kernel, says how long it took, and whether it took everything.
fn sync(proxier: &mut Proxier) -> Result<bool> {
    let start = Instant::now();
    let synced = proxier.sync(start)?;
    let elapsed = start.elapsed();
    for event in &synced.events {
        say!("note: {event}");
    }
    say!("Sync: {synced}, in {:.1} ms.", elapsed.as_secs_f64() * 1e3);
    Ok(synced.is_success())
}

/// Prints the tables as they are read back.
fn print_tables(proxier: &mut Proxier) -> Result<()> {
    let kernel = proxier.kernel_mut();
    say!("\nVirtual servers and real servers (ipvsadm -S -n):");
    for (virtual_server, real_servers) in kernel.ipvs.list_all()? {
        say!("  {virtual_server}");
        for real_server in real_servers {
            say!("  -a {} {real_server}", virtual_server.key);
        }
    }
    let sets = kernel.sets.list()?;
    let entries: usize = sets.iter().map(|set| set.entries.len()).sum();
    say!("Sets: {} with {entries} entries together:", sets.len());
    for set in sets.iter().filter(|set| !set.entries.is_empty()) {
        say!("  {}: {} entries", set.header.set.name, set.entries.len());
    }
    for family in Family::ALL {
        let tables = match family {
            Family::Ipv4 => kernlink_iptables_restore::Family::Ipv4,
            Family::Ipv6 => kernlink_iptables_restore::Family::Ipv6,
        };
        let rules = kernel.rules.save(&kernlink_iptables_restore::Save::all(tables))?;
        say!("{family} rules: {}", rules.rule_count());
    }
    Ok(())
}

fn in_memory(objects: Objects) -> Result<bool> {
    let mut proxier = proxier(Kernel::fake(), objects)?;
    let plan = proxier.plan(Instant::now())?;
    say!("\nThe plan, as commands:\n\n{plan}");
    let mut good = sync(&mut proxier)?;
    print_tables(&mut proxier)?;
    say!("\nThe same again:");
    good &= sync(&mut proxier)?;
    Ok(good)
}

fn on_the_kernel(objects: Objects) -> Result<bool> {
    let network = Network::new(2);
    let slices = objects.endpoint_slices.clone();
    let pods = Pods::start(&network, &slices);
    say!(
        "Two pods serve {} endpoints; a client stands outside the node.",
        pods.servers.len()
    );

    // From here on this thread is on the node.
    let _on_node = network.node.enter();
    let mut proxier = proxier(Kernel::open()?, objects)?;
    let mut good = sync(&mut proxier)?;
    say!("(The first one has the kernel load its modules.)");
    print_tables(&mut proxier)?;

    say!("\n{REQUESTS} requests from the client to each virtual IP, each a connection of its own:");
    good &= ask_all(&network, &proxier);

    say!("\nThe same manifests again:");
    good &= sync(&mut proxier)?;

    if let Some((address, changes)) = without_one_endpoint(&slices, &proxier) {
        say!("\nThe endpoint {address} leaves:");
        for change in changes {
            proxier.change(SOURCE, change);
        }
        good &= sync(&mut proxier)?;
        say!("{REQUESTS} requests to each virtual IP:");
        good &= ask_all(&network, &proxier);
    }
    Ok(good)
}

/// The servers behind the endpoints, in two namespaces.
struct Pods {
    servers: Vec<Server>,
}

impl Pods {
    /// Gives each endpoint address to one of the pods in turn, a route there to the node, and a server for each port.
    fn start(network: &Network, slices: &[EndpointSlice]) -> Self {
        let mut pod_of: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let mut servers = Vec::new();
        let mut started = BTreeSet::new();
        for slice in slices {
            for endpoint in slice
                .endpoints
                .iter()
                .filter(|endpoint| endpoint.conditions.ready)
            {
                if !can_be_a_pod(endpoint.address) {
                    say!(
                        "No pod can have the address {}: nothing answers there.",
                        endpoint.address
                    );
                    continue;
                }
                let next = pod_of.len() % network.pods.len();
                let address = endpoint.address;
                let number = *pod_of.entry(address).or_insert_with(|| {
                    attach(network, next, address);
                    next
                });
                for port in &slice.ports {
                    let at = SocketAddr::new(address, port.port);
                    let Some(protocol) = traffic_protocol(port.protocol) else {
                        continue;
                    };
                    if port.port != 0 && started.insert((at, protocol)) {
                        servers.push(Server::start(
                            &network.pods[number],
                            &at.to_string(),
                            protocol,
                            at,
                        ));
                    }
                }
            }
        }
        Pods { servers }
    }
}

/// Whether a server can listen at this address, and another namespace reach it.
fn can_be_a_pod(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.octets()[0] == 0
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.octets()[0] >= 240)
        }
        IpAddr::V6(v6) => {
            !(v6.is_unspecified() || v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast())
        }
    }
}

/// Puts an address into a pod and tells the node the way to it.
fn attach(network: &Network, pod: usize, address: IpAddr) {
    let host = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
    let number = u8::try_from(pod).unwrap_or_default();
    let via = match address {
        IpAddr::V4(_) => IpAddr::from(Network::pod_ipv4(number)),
        IpAddr::V6(_) => IpAddr::from(Network::pod_ipv6(number)),
    };
    let ip = |arguments: &[&str]| kernlink_kernel_tests::tools::ip(arguments);
    network.pods[pod].run(|| {
        ip(&["address", "replace", &host, "dev", "lo"]);
        wait::for_ipv6_addresses();
    });
    if via != address {
        network
            .node
            .run(|| ip(&["route", "replace", &host, "via", &via.to_string()]));
    }
}

fn traffic_protocol(protocol: services::Protocol) -> Option<traffic::Protocol> {
    match protocol {
        services::Protocol::Tcp => Some(traffic::Protocol::Tcp),
        services::Protocol::Udp => Some(traffic::Protocol::Udp),
        services::Protocol::Sctp => None,
    }
}

/// Sends requests to every virtual server that has real servers, and says who answered.
fn ask_all(network: &Network, proxier: &Proxier) -> bool {
    wait::for_ipv6_addresses();
    let mut failed = 0;
    for family in Family::ALL {
        for wanted in proxier.state().virtual_servers(family) {
            let VirtualServerKey::Address {
                address,
                protocol,
                port,
            } = wanted.virtual_server.key
            else {
                continue;
            };
            let (protocol, of_frontend) = match protocol {
                kernlink_ipvs::Protocol::Tcp => (traffic::Protocol::Tcp, services::Protocol::Tcp),
                kernlink_ipvs::Protocol::Udp => (traffic::Protocol::Udp, services::Protocol::Udp),
                _ => continue,
            };
            let key = FrontendKey {
                address,
                protocol: of_frontend,
                port,
            };
            let Some(frontend) = proxier.services().frontend(&key) else {
                continue;
            };
            if wanted.real_servers.is_empty() {
                continue;
            }
            let target = SocketAddr::new(address, port);
            let tally = ask_many(&network.client, protocol, target, REQUESTS);
            let answers: Vec<String> = tally
                .answers
                .iter()
                .map(|(server, count)| format!("{server} {count}"))
                .collect();
            say!(
                "  {} {protocol} {target}: {}",
                frontend.owner.key.name,
                answers.join(", ")
            );
            if let Some(failure) = tally.failures.first() {
                say!(
                    "    {} requests failed, the first with: {failure}",
                    tally.failures.len()
                );
            }
            failed += tally.failures.len();
        }
    }
    say!("  {failed} requests failed.");
    failed == 0
}

/// The changes that take one ready endpoint away, from a virtual server that has others.
fn without_one_endpoint(slices: &[EndpointSlice], proxier: &Proxier) -> Option<(IpAddr, Vec<Change>)> {
    let mut wanted = Family::ALL
        .into_iter()
        .flat_map(|family| proxier.state().virtual_servers(family));
    let leaving = wanted.find(|wanted| wanted.real_servers.len() > 2).or_else(|| {
        let mut wanted = Family::ALL
            .into_iter()
            .flat_map(|family| proxier.state().virtual_servers(family));
        wanted.find(|wanted| wanted.real_servers.len() > 1)
    })?;
    let address = leaving.real_servers.first()?.key.address;
    let without = |slice: &EndpointSlice| {
        let mut slice = slice.clone();
        slice.endpoints.retain(|endpoint| endpoint.address != address);
        Change::EndpointSlices(ObjectChange::Upsert(slice))
    };
    let concerned = slices
        .iter()
        .filter(|slice| slice.endpoints.iter().any(|e| e.address == address));
    Some((address, concerned.map(without).collect()))
}

/// An error with the errors behind it.
fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
