//! The agent with an API server that has ServiceCIDRs, in nftables mode.

use std::net::SocketAddr;

use kernlink_kernel_tests::expectations::assert_silent;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server};
use kernlink_kernel_tests::{requires, tools, wait};
use serde_json::{Value, json};

use crate::cluster::{add, with_api_server};
use crate::support::{Agent, api_command, ask, text, wait_for_answer};

const NFTABLES: [&str; 2] = ["--proxy-mode", "nftables"];

/// A cluster IP that no Service has.
const UNUSED: &str = "10.96.0.7";

fn service_cidr(cidrs: &[&str]) -> Value {
    json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": cidrs},
    })
}

/// The networks in the table of IPv4, as `nft` prints them.
fn networks() -> String {
    tools::must("nft", &["list", "set", "ip", "kernlink", "service-cidrs"])
}

fn wait_for_networks(has: bool) {
    wait::until(|| {
        let listed = networks();
        if listed.contains("10.96.0.0/16") == has {
            Ok(())
        } else {
            Err(listed)
        }
    });
}

/// Serves the unused address in the second pod, where packets to it arrive if nothing refuses them.
fn serve_unused(network: &Network) -> Server {
    tools::ip(&["route", "add", UNUSED, "via", &Network::pod_ipv4(1).to_string()]);
    let pod = &network.pods[1];
    pod.run(|| tools::ip(&["address", "add", UNUSED, "dev", "lo"]));
    let address: SocketAddr = format!("{UNUSED}:80").parse().unwrap();
    Server::start(pod, "unused", Protocol::Tcp, address)
}

fn assert_dropped(network: &Network) {
    let address = format!("{UNUSED}:80").parse().unwrap();
    assert_silent(&network.client, Protocol::Tcp, address);
}

#[test]
fn traffic_to_an_address_of_a_service_cidr_without_a_service_is_dropped_as_long_as_the_object_exists() {
    requires!(Feature::Conntrack);
    with_api_server(2, true, |network, server, kubeconfig| {
        let _unused = serve_unused(network);
        add(server, "web", "10.96.0.1", 0);
        server.apply(service_cidr(&["10.96.0.0/16", "fd00:10:96::/112"]));
        let agent = Agent::spawn(api_command(kubeconfig, &NFTABLES));
        // With the first sync.
        wait_for_answer(network, "10.96.0.1", "pod0");
        assert!(networks().contains("10.96.0.0/16"), "{}", networks());
        assert_dropped(network);
        server.apply(service_cidr(&["10.97.0.0/16"]));
        wait_for_networks(false);
        assert!(ask(&network.client, UNUSED).is_ok_and(|name| name == "unused"));
        server.apply(service_cidr(&["10.97.0.0/16", "10.96.0.0/16"]));
        wait_for_networks(true);
        assert_dropped(network);
        // A Service gets the address.
        add(server, "other", UNUSED, 0);
        wait_for_answer(network, UNUSED, "pod0");
        server.delete(&service_cidr(&[]));
        wait_for_networks(false);
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}

#[test]
fn a_single_sync_uses_service_cidrs_and_they_stay_where_the_server_does_not_permit_them() {
    requires!(Feature::Conntrack);
    with_api_server(2, false, |network, server, kubeconfig| {
        let _unused = serve_unused(network);
        add(server, "web", "10.96.0.1", 0);
        server.apply(service_cidr(&["10.96.0.0/16"]));
        let run = |action: &str| {
            let mut command = api_command(kubeconfig, &NFTABLES);
            let output = command.arg(action).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            text(&output)
        };
        let plan = run("--dry-run");
        assert!(
            plan.contains("add element ip kernlink service-cidrs { 10.96.0.0/16 }"),
            "{plan}"
        );
        run("--once");
        assert_dropped(network);
        server.refuse_lists("/apis/networking.k8s.io/v1/servicecidrs", Some(403));
        let agent = Agent::spawn(api_command(kubeconfig, &NFTABLES));
        add(server, "later", "10.96.0.2", 0);
        wait_for_answer(network, "10.96.0.2", "pod0");
        assert_dropped(network);
        let reasons = |event: &Value| event["reason"].as_str().unwrap().to_owned();
        wait::until(|| {
            let events = server.node_events();
            let found = events
                .iter()
                .filter(|event| reasons(event) == "ServiceCIDRsUnreadable");
            if found.count() == 1 {
                Ok(())
            } else {
                Err(format!("{events:?}"))
            }
        });
        let (_, log) = agent.stop();
        assert_eq!(
            log.matches("ServiceCIDR objects cannot be read").count(),
            1,
            "{log}"
        );
    });
}
