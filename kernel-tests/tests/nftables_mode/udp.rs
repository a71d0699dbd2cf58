//! Clients that send UDP packets from one socket all the time, while endpoints, Services and node ports come and go.

use std::time::Instant;

use kernlink_kernel_tests::expectations::on_node_of;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::udp_clients::{assert_flows_follow, assert_new_processes_delete_flows};
use kernlink_proxier::nftables_mode::Proxier;

use crate::support::{proxier, replace_objects};

fn sync(proxier: &mut Proxier) {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
}

#[test]
fn the_first_udp_packet_after_a_sync_reaches_a_current_endpoint() {
    requires!(Feature::Conntrack);
    let network = Network::new(3);
    let _on_node = on_node_of(&network);
    let mut proxier = proxier("");
    assert_flows_follow(&network, |manifests| {
        replace_objects(&mut proxier, manifests);
        sync(&mut proxier);
    });
}

#[test]
fn a_new_process_deletes_the_flows_that_the_one_before_left() {
    requires!(Feature::Conntrack);
    let network = Network::new(3);
    let _on_node = on_node_of(&network);
    assert_new_processes_delete_flows(&network, |manifests| sync(&mut proxier(manifests)));
}
