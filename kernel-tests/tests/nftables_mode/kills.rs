//! Processes that are killed at any of their messages to the kernel. The next one converges, and meanwhile every connection is served.

use std::os::unix::process::ExitStatusExt;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::load::Load;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::{Network, Protocol};
use kernlink_kernel_tests::{programs, requires};

use crate::support::{on_network, proxier, sync, sync_once};

/// Set for a process that is to be killed: the index of the state that it syncs.
const PROCESS: &str = "KERNLINK_PROCESS_TO_KILL";

/// Every kind of object. The endpoints of `web` are others in each state but the first one.
fn state(index: usize) -> String {
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    let web = |pods: &[(u8, &str)], more: &str| {
        service(
            "web",
            1,
            &format!("type: LoadBalancer{more}"),
            ports,
            &["203.0.113.10", "2001:db8:ff::10"],
        ) + &slices("web", pods)
    };
    let ranges = ", loadBalancerSourceRanges: ['198.51.100.0/24', '2001:db8:5::/48']";
    let other = |number: u8, spec: &str| {
        let name = format!("other{number}");
        service(&name, number, spec, ["", ""], &[]) + &slices(&name, &[(1, "node-a"), (2, "node-b")])
    };
    let sticky = "type: ClusterIP, sessionAffinity: ClientIP";
    match index {
        0 => web(&[(0, "node-a"), (1, "node-a")], "") + &other(2, sticky) + &other(3, "type: ClusterIP"),
        1 => web(&[(0, "node-a"), (2, "node-b"), (1, "node-a")], ranges) + &other(3, sticky),
        _ => {
            web(
                &[(0, "node-a")],
                ", externalTrafficPolicy: Local, healthCheckNodePort: 32000",
            ) + &service("empty", 4, "type: ClusterIP", ["", ""], &[])
                + &other(2, "type: ClusterIP, internalTrafficPolicy: Local")
        }
    }
}

/// In a process that [`kill_at`] started, syncs.
fn sync_if_started() -> bool {
    let Ok(index) = std::env::var(PROCESS) else {
        return false;
    };
    sync_once(&mut proxier(&state(index.parse().unwrap())));
    true
}

/// Runs the test of this name, which calls [`sync_if_started`] first, in a process that is killed when it sends its nth message to the kernel.
/// Whether it was: a process that sends fewer messages ends by itself.
fn kill_at(message: usize, index: usize, test: &str) -> bool {
    let program = programs::this_program().get_program().to_owned();
    let output = programs::command("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=sendto,sendmsg", "-e"])
        .arg(format!("inject=sendto,sendmsg:signal=KILL:when={message}"))
        .arg(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(PROCESS, index.to_string())
        .output()
        .unwrap();
    let is_killed = output.status.signal() == Some(9) || output.status.code() == Some(137);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(is_killed || output.status.success(), "{}: {text}", output.status);
    is_killed
}

fn load(network: &Network) -> Load {
    let [v4, v6] = cluster_ips(1).map(|address| std::net::SocketAddr::new(address, 80));
    Load::start(&[
        (&network.client, Protocol::Tcp, v4),
        (&network.pods[1], Protocol::Tcp, v6),
    ])
}

#[test]
fn a_process_killed_at_any_message_loses_no_connection_and_the_next_one_converges() {
    const TEST: &str =
        "kills::a_process_killed_at_any_message_loses_no_connection_and_the_next_one_converges";
    if sync_if_started() {
        return;
    }
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        sync(&mut proxier(&state(0)));
        let load = load(network);
        // From the state that the process before left to another one.
        for index in [1, 2] {
            let mut message = 1;
            loop {
                sync_once(&mut proxier(&state(0)));
                if !kill_at(message, index, TEST) {
                    break;
                }
                message += 1;
            }
            assert!(message > 3, "{message} messages");
            sync(&mut proxier(&state(index)));
            eprintln!("{} processes were killed", message - 1);
        }
        load.assert_all_served();
    });
}

#[test]
fn a_node_whose_first_process_is_killed_at_any_message_is_served_by_the_next_one() {
    const TEST: &str = "kills::a_node_whose_first_process_is_killed_at_any_message_is_served_by_the_next_one";
    if sync_if_started() {
        return;
    }
    requires!(Feature::Conntrack);
    let mut message = 1;
    loop {
        let mut is_killed = true;
        on_network(3, |network| {
            is_killed = kill_at(message, 0, TEST);
            sync(&mut proxier(&state(0)));
            load(network).assert_all_served();
        });
        if !is_killed {
            break;
        }
        message += 1;
    }
    assert!(message > 3, "{message} messages");
}
