//! What users who may only write Services can do to nodes, and to Services of others.

use std::fs;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::{requires, tools, wait};
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::cluster::{add, delete, with_api_server};
use crate::hanging_tool::{release, replace, replace_by, wait_until_it_hangs};
use crate::iptables_mode::choose;
use crate::support::{Agent, api_command, ask, get, wait_for_answer};

/// A Service with these external IPs, created in this year.
fn with_external_ips(name: &str, address: &str, external: &[&str], year: u16) -> Value {
    let mut service = api_service(name, address);
    service["metadata"]["creationTimestamp"] = json!(format!("{year}-01-01T00:00:00Z"));
    service["spec"]["externalIPs"] = json!(external);
    service
}

#[test]
fn an_external_ip_of_an_old_service_does_not_take_the_traffic_of_a_cluster_ip() {
    requires!(Feature::Iptables);
    for mode in ["iptables", "userspace"] {
        with_api_server(2, false, |network, server, kubeconfig| {
            // One in advance, and one at an address that another Service has.
            server.apply(api_slice("thief", 1));
            server.apply(with_external_ips(
                "thief",
                "10.96.0.66",
                &["10.96.0.1", "10.96.0.2"],
                2020,
            ));
            server.apply(with_external_ips("b", "10.96.0.2", &[], 2026));
            server.apply(api_slice("b", 0));
            let start = || Agent::spawn(api_command(kubeconfig, &["--proxy-mode", mode]));
            let agent = start();
            wait_for_answer(network, "10.96.0.66", "pod1");
            wait_for_answer(network, "10.96.0.2", "pod0");
            server.apply(with_external_ips("a", "10.96.0.1", &[], 2026));
            server.apply(api_slice("a", 0));
            wait_for_answer(network, "10.96.0.1", "pod0");
            agent.wait_for("external IP 10.96.0.1:80/TCP", 1);

            // A change of the old Service, and the next process, change nothing.
            server.apply(with_external_ips("thief", "10.96.0.66", &["10.96.0.1"], 2020));
            let mut marker = with_external_ips("marker", "10.96.0.9", &[], 2026);
            marker["spec"]["ports"][0]["port"] = json!(80);
            server.apply(marker);
            server.apply(api_slice("marker", 0));
            wait_for_answer(network, "10.96.0.9", "pod0");
            for _ in 0..5 {
                assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");
                assert_eq!(ask(&network.client, "10.96.0.2").unwrap(), "pod0");
            }
            agent.stop();
            let agent = start();
            // Userspace mode opens one port after the other.
            agent.wait_for(" synced done=", 1);
            wait_for_answer(network, "10.96.0.1", "pod0");
            wait_for_answer(network, "10.96.0.66", "pod1");
            assert_eq!(ask(&network.client, "10.96.0.2").unwrap(), "pod0");
        });
    }
}

#[test]
fn what_the_configuration_does_not_permit_to_services_has_no_effect_in_the_kernel() {
    requires!(Feature::Iptables);
    with_api_server(2, false, |network, server, kubeconfig| {
        // With the annotation no endpoint gets connections.
        let mut service = with_external_ips("a", "10.96.0.1", &["198.51.100.1"], 2026);
        service["metadata"]["annotations"] = json!({"kernlink.io/weights": "node=node-a:0"});
        server.apply(service);
        server.apply(api_slice("a", 0));
        add(server, "b", "10.96.0.2", 1);
        let external = || {
            tools::run("iptables-save", &[])
                .unwrap()
                .contains("198.51.100.1/32")
        };
        for arguments in [
            &["--service-annotations", "scheduler"][..],
            &["--service-annotation-namespaces", "kube-system"],
        ] {
            let agent = Agent::spawn(api_command(kubeconfig, arguments));
            wait_for_answer(network, "10.96.0.1", "pod0");
            assert_eq!(ask(&network.client, "198.51.100.1").unwrap(), "pod0");
            agent.wait_for("kernlink.io/weights", 1);
            agent.stop();
        }
        let agent = Agent::spawn(api_command(kubeconfig, &["--ignore-external-ips"]));
        wait_for_answer(network, "10.96.0.2", "pod1");
        wait::until(|| if external() { Err("it is served") } else { Ok(()) });
        agent.wait_for("externalIPs", 1);
        agent.stop();
        // Without a restriction both have an effect.
        let _agent = Agent::spawn(api_command(kubeconfig, &[]));
        wait::until(|| {
            if external() {
                Ok(())
            } else {
                Err("it is not served")
            }
        });
        wait::until(|| match ask(&network.client, "10.96.0.1") {
            Err(_) => Ok(()),
            Ok(pod) => Err(pod),
        });
    });
}

#[test]
fn many_services_with_one_external_ip_are_few_lines_of_the_log_when_one_is_deleted() {
    const SERVICES: u16 = 400;
    requires!(Feature::Iptables);
    let external = "198.51.100.1";
    with_api_server(1, true, |network, server, kubeconfig| {
        for number in 0..SERVICES {
            let address = format!("10.96.{}.{}", number >> 8, number & 255);
            // The first one is the oldest.
            server.apply(with_external_ips(
                &format!("s{number}"),
                &address,
                &[external],
                2000 + number,
            ));
        }
        server.apply(api_slice("s3", 0));
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        agent.wait_for(" synced done=", 1);
        let lines = || agent.log().lines().count();
        let at_first = lines();
        assert!(at_first < 60, "{}", agent.log());
        // Each deletion gives the address to the next one.
        for number in 0..3 {
            delete(server, &format!("s{number}"));
        }
        wait_for_answer(network, external, "pod0");
        assert!(lines() < at_first + 40, "{}", agent.log());
        let before = agent.resident();
        for _ in 0..200 {
            get("127.0.0.1:10256", "/livez").unwrap();
        }
        let after = agent.resident();
        assert!(after < before + (8 << 10), "{before} KiB, then {after} KiB");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}

#[test]
fn an_object_that_changes_all_the_time_while_a_sync_takes_long_does_not_fill_memory() {
    const ENDPOINTS: u16 = 600;
    const CHANGES: usize = 600;
    requires!(Feature::Iptables);
    with_api_server(2, true, |network, server, kubeconfig| {
        choose("iptables-nft");
        replace("iptables-restore", "/run/hangs");
        add(server, "a", "10.96.0.1", 0);
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        wait_for_answer(network, "10.96.0.1", "pod0");
        agent.wait_for(" synced done=", 1);
        let received = || {
            let page = get("127.0.0.1:10249", "/metrics").unwrap();
            let name = "kernlink_api_server_received_bytes_total{kind=\"EndpointSlice\"} ";
            let value = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            value.parse::<f64>().unwrap()
        };

        fs::write("/run/hangs", "").unwrap();
        add(server, "b", "10.96.0.2", 1);
        wait_until_it_hangs();
        // All endpoints but one are not ready.
        let slice = |change: usize| {
            let mut slice = api_slice("a", 1);
            let endpoints = slice["endpoints"].as_array_mut().unwrap();
            for number in 0..ENDPOINTS {
                let address = format!("10.{}.{}.{}", 100 + change % 100, number >> 8, number & 255);
                endpoints.push(json!({"addresses": [address], "conditions": {"ready": false}}));
            }
            slice
        };
        let size = slice(0).to_string().len();
        let (before, bytes) = (agent.resident(), received());
        for change in 0..CHANGES {
            server.apply(slice(change));
        }
        #[expect(clippy::cast_precision_loss, reason = "a size of some megabytes")]
        let expected = bytes + (size * CHANGES) as f64;
        wait::until(|| match received() {
            now if now >= expected => Ok(()),
            now => Err(format!("{now} of {expected} bytes")),
        });
        let after = agent.resident();
        assert!(after < before + (24 << 10), "{before} KiB, then {after} KiB");

        // What was received is not lost.
        fs::remove_file("/run/hangs").unwrap();
        release();
        wait_for_answer(network, "10.96.0.2", "pod1");
        wait_for_answer(network, "10.96.0.1", "pod1");
        let (status, log) = agent.stop();
        assert!(status.success(), "{log}");
    });
}

#[test]
fn services_whose_operations_fail_do_not_use_up_the_events_of_the_node() {
    const SERVICES: u8 = 40;
    requires!(Feature::Iptables);
    with_api_server(1, true, |network, server, kubeconfig| {
        choose("iptables-nft");
        // Each rule with such an address is refused for another reason; with the file, everything.
        let script = "#!/bin/sh
case \"$*\" in *--version*) exec /usr/sbin/iptables-restore \"$@\";; esac
if [ -e /run/refuses ]; then
  echo 'iptables-restore: everything is refused' >&2
  echo 'Error occurred at line: 2' >&2
  exit 1
fi
number=0
input=
while IFS= read -r line; do
  number=$((number + 1))
  input=\"$input$line
\"
  case \"$line\" in
  *'-d 10.96.9.'*)
    address=${line#*-d 10.96.9.}
    echo \"iptables-restore: reason ${address%%/*}\" >&2
    echo \"Error occurred at line: $number\" >&2
    exit 1
    ;;
  esac
done
printf %s \"$input\" | exec /usr/sbin/iptables-restore \"$@\"
";
        replace_by("iptables-restore", script);
        add(server, "good", "10.96.0.1", 0);
        let agent = Agent::spawn(api_command(kubeconfig, &[]));
        wait_for_answer(network, "10.96.0.1", "pod0");
        for number in 1..=SERVICES {
            add(server, &format!("s{number}"), &format!("10.96.9.{number}"), 0);
        }
        agent.wait_for("reason 1", 1);
        wait::until(|| {
            let log = agent.log();
            let reasons = (1..=SERVICES).filter(|number| log.contains(&format!("reason {number}")));
            // The rest is not attempted until the next retry.
            match reasons.count() {
                30.. => Ok(()),
                count => Err(format!("{count} reasons: {log}")),
            }
        });
        let of_failures = || {
            let events = server.node_events();
            let failures = events.iter().filter(|event| event["reason"] == "OperationFailed");
            let notes = failures.map(|event| event["note"].as_str().unwrap().to_owned());
            notes.collect::<Vec<_>>()
        };
        // The log precedes the events.
        wait::until(|| {
            if of_failures().is_empty() {
                Err("no event")
            } else {
                Ok(())
            }
        });
        assert_eq!(of_failures().len(), 1, "{:?}", of_failures());
        assert_eq!(ask(&network.client, "10.96.0.1").unwrap(), "pod0");

        // A failure that is about the host has an event.
        fs::write("/run/refuses", "").unwrap();
        tools::run("iptables", &["-t", "nat", "-F", "PREROUTING"]).unwrap();
        wait::until(|| match of_failures() {
            notes if notes.len() == 2 && notes[1].contains("everything is refused") => Ok(()),
            notes => Err(format!("{notes:?}: {}", agent.log())),
        });
        assert!(!of_failures()[1].contains("Service "), "{:?}", of_failures());
        fs::remove_file("/run/refuses").unwrap();
        wait_for_answer(network, "10.96.0.1", "pod0");
        agent.stop();
    });
}
