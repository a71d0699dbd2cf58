//! `--hand-back`: the node as kube-proxy expects it.

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{requires, tools};

use crate::support::{Manifests, run, service, text};

/// A table as kube-proxy's nftables mode has it.
fn kube_proxy(family: &str, element: &str) -> String {
    let address = if family == "ip" { "ipv4_addr" } else { "ipv6_addr" };
    format!(
        "table {family} kube-proxy {{
    map service-ips {{ type {address} . inet_proto . inet_service : verdict; elements = {{ {element} : drop }} }}
}}
"
    )
}

/// The mode of the agent was changed before, and what it left is still there.
#[test]
fn the_tables_of_nftables_mode_are_handed_back_in_another_mode_once_kube_proxy_serves() {
    requires!(Feature::Conntrack);
    let manifests = Manifests::new();
    manifests.replace("a.yaml", &service("a", "10.96.0.1", &[0]));
    NetNs::new().run(|| {
        let once = run(&manifests.0, &["--proxy-mode", "nftables", "--once"]);
        assert!(once.status.success(), "{}", text(&once));
        let hand_back = |more: &[&str]| {
            let arguments = [&["--proxy-mode", "iptables", "--hand-back"], more].concat();
            run(&manifests.0, &arguments)
        };
        let tables = || tools::must("nft", &["list", "tables"]);
        for more in [&["--dry-run"][..], &[]] {
            let early = hand_back(more);
            assert_eq!(early.status.code(), Some(1), "{}", text(&early));
            assert!(
                text(&early).contains("table ip kernlink stays"),
                "{}",
                text(&early)
            );
            assert!(tables().contains("table ip kernlink\n"), "{}", tables());
        }
        let other = kube_proxy("ip", "10.96.0.1 . tcp . 80") + &kube_proxy("ip6", "fd00::1 . tcp . 80");
        tools::run_with_input("nft", &["-f", "-"], &other).unwrap();
        let planned = hand_back(&["--dry-run"]);
        assert!(planned.status.success(), "{}", text(&planned));
        assert!(
            text(&planned).contains("delete table ip kernlink\n"),
            "{}",
            text(&planned)
        );
        let done = hand_back(&[]);
        assert!(done.status.success(), "{}", text(&done));
        assert!(
            text(&done).contains("removed or changed what kube-proxy does not have: nftables mode ("),
            "{}",
            text(&done)
        );
        assert_eq!(tables(), "table ip kube-proxy\ntable ip6 kube-proxy\n");
    });
}
