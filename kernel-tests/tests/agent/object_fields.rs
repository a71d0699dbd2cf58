//! Fields of objects that the agent does not use, and unknown values of those that it uses, in iptables mode.

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::{requires, tools};
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::cluster::{api_node, with_api_server};
use crate::support::{Agent, api_command, wait_for_answer, wait_until_gone};

/// A Service as the API server stores it after a condition was written without a time, with more fields of unexpected types.
fn odd_service(name: &str, address: &str) -> Value {
    let mut object = api_service(name, address);
    object["metadata"]["managedFields"] = json!({"a": [null, -1.5]});
    object["metadata"]["ownerReferences"] = json!("text");
    object["spec"]["selector"] = json!([1]);
    object["spec"]["ports"][0]["targetPort"] = json!({"port": 8080});
    object["spec"]["trafficDistribution"] = json!(["PreferSameRack"]);
    object["status"] = json!({
        "loadBalancer": {},
        "conditions": [{"type": "X", "status": "True", "lastTransitionTime": null, "reason": "r", "message": ""}],
    });
    object
}

fn odd_slice(service: &str, pod: u8) -> Value {
    let mut object = api_slice(service, pod);
    object["metadata"]["managedFields"] = json!(7);
    object["ports"][0]["appProtocol"] = json!(["h3"]);
    object["endpoints"][0]["targetRef"] = json!("pod");
    object["endpoints"][0]["conditions"]["degraded"] = json!({"since": null});
    object
}

#[test]
fn a_service_with_a_condition_without_a_time_is_served_and_its_later_changes_apply() {
    requires!(Feature::Iptables);
    with_api_server(2, false, |network, server, kubeconfig| {
        let mut node = api_node(&["192.0.2.1"]);
        node["spec"] = json!({"taints": [{"key": "t", "timeAdded": 7}], "configSource": []});
        node["status"]["conditions"] =
            json!([{"type": "Ready", "lastHeartbeatTime": null, "lastTransitionTime": 3}]);
        node["status"]["capacity"] = json!({"cpu": null, "memory": [1]});
        server.apply(node);
        server.apply(odd_service("a", "10.96.0.1"));
        server.apply(odd_slice("a", 0));
        server.apply(api_service("b", "10.96.0.2"));
        server.apply(api_slice("b", 0));
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        wait_for_answer(network, "10.96.0.1", "pod0");

        // A watch: also a Service gets such a condition that had none.
        server.apply(odd_slice("a", 1));
        wait_for_answer(network, "10.96.0.1", "pod1");
        server.apply(odd_service("a", "10.96.0.11"));
        wait_for_answer(network, "10.96.0.11", "pod1");
        server.apply(odd_service("b", "10.96.0.12"));
        wait_for_answer(network, "10.96.0.12", "pod0");
        let (_, log) = agent.stop();
        assert!(!log.contains("shop/a") && !log.contains("shop/b"), "{log}");

        // After a restart they are part of a list.
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        server.apply(odd_slice("a", 0));
        wait_for_answer(network, "10.96.0.11", "pod0");
        wait_for_answer(network, "10.96.0.12", "pod0");
        server.delete(&odd_service("a", ""));
        wait_until_gone("a");
        let (_, log) = agent.stop();
        assert!(!log.contains("shop/a") && !log.contains("shop/b"), "{log}");
    });
}

#[test]
fn unknown_values_of_a_service_are_reported_and_do_not_cost_it() {
    requires!(Feature::Iptables);
    with_api_server(2, false, |network, server, kubeconfig| {
        server.apply(api_service("a", "10.96.0.1"));
        server.apply(api_slice("a", 0));
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        wait_for_answer(network, "10.96.0.1", "pod0");

        let mut service = api_service("a", "10.96.0.11");
        let ports = service["spec"]["ports"].as_array_mut().unwrap();
        ports[0]["name"] = json!("");
        ports.push(json!({"name": "q", "port": 443, "protocol": "QUIC"}));
        for field in [
            "internalTrafficPolicy",
            "externalTrafficPolicy",
            "sessionAffinity",
        ] {
            service["spec"][field] = json!("Zone");
        }
        service["status"] = json!({"loadBalancer": {"ingress": [
            {"ip": "198.51.100.1", "ipMode": "Tunnel"}, {"ip": "198.51.100.2", "ipMode": "VIP"},
        ]}});
        server.apply(service);
        let mut slice = api_slice("a", 1);
        let ports = slice["ports"].as_array_mut().unwrap();
        ports.push(json!({"name": "q", "port": 8443, "protocol": "QUIC"}));
        server.apply(slice);
        let mut unknown = api_slice("a", 0);
        unknown["metadata"]["name"] = json!("a-8");
        unknown["addressType"] = json!("IPv8");
        server.apply(unknown);

        wait_for_answer(network, "10.96.0.11", "pod1");
        wait_for_answer(network, "198.51.100.2", "pod1");
        for problem in [
            "Service shop/a: spec.ports[1].protocol: \"QUIC\" is not TCP, UDP or SCTP; the port is ignored",
            "Service shop/a: spec.internalTrafficPolicy: \"Zone\" is not Cluster or Local; the default is used",
            "Service shop/a: spec.externalTrafficPolicy: \"Zone\" is not Cluster or Local; the default is used",
            "Service shop/a: spec.sessionAffinity: \"Zone\" is not None or ClientIP; the default is used",
            "Service shop/a: status.loadBalancer.ingress[0].ipMode: \"Tunnel\" is not VIP or Proxy; the address is not served",
            "EndpointSlice shop/a-x: ports[1].protocol: \"QUIC\" is not TCP, UDP or SCTP; the port is ignored",
            "EndpointSlice shop/a-8: addressType: \"IPv8\" is not IPv4, IPv6 or FQDN; the endpoints are ignored",
        ] {
            agent.wait_for(&format!("{problem}; the rest of the object is used"), 1);
        }
        let rules = tools::run("iptables-save", &["-t", "nat"]).unwrap();
        assert!(
            rules.contains("198.51.100.2/32") && !rules.contains("198.51.100.1/32"),
            "{rules}"
        );
        let (_, log) = agent.stop();
        assert!(!log.contains("stays as it was"), "{log}");
    });
}
