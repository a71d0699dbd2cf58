//! SCTP associations.

use kernlink_iptables_restore::Variant;
use kernlink_kernel_tests::expectations::on_node_of;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::sctp::{assert_associations, manifests};
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{requires, tools};

use crate::support::{proxier, sync, tool};

/// A kernel with SCTP of its own ends associations of which it has no socket.
fn keep_associations(variant: Variant, network: &Network) {
    for namespace in network.pods.iter().chain([&network.client]) {
        namespace.run(|| {
            for program in ["iptables", "ip6tables"] {
                let rule = "-w -A OUTPUT -p sctp -m sctp --chunk-types any ABORT -j DROP";
                let words: Vec<&str> = rule.split(' ').collect();
                tools::must(&tool(variant, program), &words);
            }
        });
    }
}

#[test]
fn sctp_associations_are_balanced_and_keep_their_source_with_policy_local() {
    requires!(Feature::SctpRules);
    for variant in [Variant::Legacy, Variant::Nft] {
        let network = Network::new(2);
        keep_associations(variant, &network);
        let _on_node = on_node_of(&network);
        sync(&mut proxier(variant, &manifests()));
        assert_associations(&network);
    }
}
