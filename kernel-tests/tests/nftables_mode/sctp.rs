//! SCTP associations.

use kernlink_kernel_tests::expectations::on_node_of;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::sctp::{assert_associations, manifests};
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{requires, tools};

use crate::support::{proxier, sync};

/// A kernel with SCTP of its own ends associations of which it has no socket.
fn keep_associations(network: &Network) {
    for namespace in network.pods.iter().chain([&network.client]) {
        namespace.run(|| {
            let rules = "table inet keep {
    chain output { type filter hook output priority 0; sctp chunk abort exists drop; }
}";
            tools::run_with_input("nft", &["-f", "-"], rules).unwrap();
        });
    }
}

#[test]
fn sctp_associations_are_balanced_and_keep_their_source_with_policy_local() {
    requires!(Feature::Conntrack, Feature::SctpRules);
    let network = Network::new(2);
    keep_associations(&network);
    let _on_node = on_node_of(&network);
    sync(&mut proxier(&manifests()));
    assert_associations(&network);
}
