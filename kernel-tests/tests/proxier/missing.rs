//! A host on which something is missing or refuses: a clear report, no loss of what worked, and packets to prove it.

use std::net::IpAddr;
use std::time::Instant;

use kernlink_ipset::{IpSets, Operation, SetContents, SetHeader, SetName};
use kernlink_iptables_restore::{Client, LocalRunner};
use kernlink_kernel_tests::mounts::make_sysctls_read_only;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier, Synced};

use crate::clusters::WEB_PORTS;
use crate::support::{cluster_ips, proxier_on, replace_objects, service, slices, sync};

const CLUSTER_IP: &str = "type: ClusterIP, ports: [{name: web, port: 80, protocol: TCP}]";

/// A Service with an endpoint.
fn web(name: &str, number: u8, pod: u8) -> String {
    service(name, number, CLUSTER_IP, "") + &slices(name, WEB_PORTS, &[(pod, "node-b")])
}

/// The client gets answers from this pod at the cluster IPs of a Service.
fn assert_served(network: &Network, number: u8, pod: &str) {
    for address in cluster_ips(number) {
        ask_many(&network.client, Protocol::Tcp, (address, 80).into(), 2).assert_balanced(&[pod], 0);
    }
}

/// The cluster IPs of a Service are not bound.
fn assert_not_bound(number: u8) {
    let addresses = tools::ip_addresses();
    for address in cluster_ips(number).map(|address: IpAddr| address.to_string()) {
        assert!(!addresses.contains(&format!(" {address}/")), "{addresses}");
    }
}

fn events(synced: &Synced, text: &str) -> Vec<String> {
    let events = synced.events.iter().map(ToString::to_string);
    events.filter(|event| event.contains(text)).collect()
}

/// Syncs when retries are due until nothing waits. Returns all events.
fn settle(proxier: &mut Proxier, mut at: Instant) -> Vec<String> {
    let mut events = Vec::new();
    for _ in 0..100 {
        let synced = proxier.sync(at).unwrap();
        events.extend(synced.events.iter().map(ToString::to_string));
        match synced.next {
            Some(next) => at = next,
            None => {
                assert!(synced.is_success(), "{synced}");
                kernlink_kernel_tests::wait::for_ipv6_addresses();
                return events;
            }
        }
    }
    panic!("something still waits");
}

/// A network with a served Service in its node, and the proxier.
fn serving(network: &Network) -> Proxier {
    let mut proxier = proxier_on(Kernel::open().unwrap(), &web("old", 1, 0));
    sync(&mut proxier);
    assert_served(network, 1, "pod0");
    proxier
}

#[test]
fn without_the_iptables_tools_what_was_served_is_served_and_follows_its_endpoints() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let mut kernel = serving(&network).into_kernel();
    kernel.rules = Box::new(Client::with_runner(Box::new(LocalRunner::with_search([]))));
    // A new process, with another endpoint and a new Service.
    let mut proxier = proxier_on(kernel, &(web("old", 1, 1) + &web("new", 2, 0)));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.counts().failed > 0, "{synced}");
    for family in ["IPv4", "IPv6"] {
        let text = format!("{family} tables cannot be read: cannot start ip");
        assert_eq!(events(&synced, &text).len(), 1, "{:?}", synced.events);
    }
    assert_eq!(
        events(&synced, "no address is bound").len(),
        2,
        "{:?}",
        synced.events
    );
    assert_served(&network, 1, "pod1");
    assert_not_bound(2);
    let again = proxier.sync(synced.next.unwrap()).unwrap();
    assert_eq!(again.events, []);
    proxier.kernel_mut().rules = Box::new(Client::new());
    proxier.resync();
    let solved = settle(&mut proxier, again.next.unwrap());
    assert!(solved.iter().any(|event| event.contains("solved")), "{solved:?}");
    assert_served(&network, 1, "pod1");
    assert_served(&network, 2, "pod0");
}

/// Sets of the kernel that can be changed but not listed.
struct Unlisted(Box<dyn IpSets>);

impl IpSets for Unlisted {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), kernlink_ipset::Error>> {
        self.0.execute(operations)
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, kernlink_ipset::Error> {
        Err(kernlink_ipset::Error::custom(
            format!("list {name}"),
            "refused by the test",
        ))
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, kernlink_ipset::Error> {
        Err(kernlink_ipset::Error::custom("list sets", "refused by the test"))
    }
}

#[test]
fn while_sets_cannot_be_listed_services_are_added_removed_and_follow_their_endpoints() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let mut proxier = serving(&network);
    let sets: Box<dyn IpSets> = Box::new(kernlink_ipset::Client::open().unwrap());
    proxier.kernel_mut().sets = Box::new(Unlisted(sets));
    replace_objects(&mut proxier, &(web("old", 1, 1) + &web("new", 2, 0)));
    proxier.resync();
    let synced = proxier.sync(Instant::now()).unwrap();
    kernlink_kernel_tests::wait::for_ipv6_addresses();
    assert_eq!(
        events(&synced, "sets cannot be read").len(),
        1,
        "{:?}",
        synced.events
    );
    assert!(synced.report.is_success() && synced.unread == 1, "{synced}");
    assert_served(&network, 1, "pod1");
    assert_served(&network, 2, "pod0");
    // A new process cannot know what is owned: it changes nothing, and all traffic goes on.
    let mut proxier = proxier_on(proxier.into_kernel(), &web("new", 2, 1));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.plan.is_empty() && !synced.is_success(), "{}", synced.plan);
    assert_served(&network, 1, "pod1");
    assert_served(&network, 2, "pod0");
    proxier.kernel_mut().sets = Box::new(kernlink_ipset::Client::open().unwrap());
    settle(&mut proxier, synced.next.unwrap());
    assert_not_bound(1);
    assert_served(&network, 2, "pod1");
}

#[test]
fn with_read_only_sysctls_that_have_their_values_everything_works() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let kernel = serving(&network).into_kernel();
    tools::set_sysctl("net.ipv4.vs.expire_nodest_conn", "0");
    make_sysctls_read_only();
    let mut proxier = proxier_on(kernel, &(web("old", 1, 1) + &web("new", 2, 0)));
    let synced = proxier.sync(Instant::now()).unwrap();
    kernlink_kernel_tests::wait::for_ipv6_addresses();
    // One of them has another value: it is reported, and nothing depends on it.
    let reported = events(&synced, "net.ipv4.vs.expire_nodest_conn");
    assert_eq!(
        (reported.len(), synced.events.len()),
        (1, 1),
        "{:?}",
        synced.events
    );
    assert!(reported[0].contains("Read-only file system"), "{reported:?}");
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 0),
        "{synced}"
    );
    assert_served(&network, 1, "pod1");
    assert_served(&network, 2, "pod0");
    assert_eq!(proxier.sync(synced.next.unwrap()).unwrap().events, []);
}

#[test]
fn with_a_read_only_sysctl_without_which_traffic_breaks_no_new_service_is_served() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let kernel = serving(&network).into_kernel();
    // Forwarding is needed in the direction of this test too, so masquerading is what would break.
    tools::set_sysctl("net.ipv4.vs.conntrack", "0");
    make_sysctls_read_only();
    let mut proxier = proxier_on(kernel, &(web("old", 1, 1) + &web("new", 2, 0)));
    let synced = proxier.sync(Instant::now()).unwrap();
    let reported = events(&synced, "net.ipv4.vs.conntrack");
    assert_eq!(reported.len(), 1, "{:?}", synced.events);
    assert!(
        reported[0].contains("new frontends are not served"),
        "{reported:?}"
    );
    assert_not_bound(2);
    // The Service that was served follows its endpoints.
    let servers = tools::ipvsadm_save();
    let [address, _] = cluster_ips(1);
    let [_, pod] = [Network::pod_ipv4(0), Network::pod_ipv4(1)];
    assert!(
        servers.contains(&format!("-a -t {address}:80 -r {pod}:8080")),
        "{servers}"
    );
    assert!(!servers.contains("10.96.0.2"), "{servers}");
}
