//! A runner with its watcher repairs what another program removes, while full listings are ten minutes apart. The tables have no owner here, as before
//! Linux 6.9.

use std::collections::BTreeSet;
use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{service, slices};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_proxier::Schedule;
use kernlink_proxier::nftables_mode::{Config, Kernel, NftablesMode, Proxier};
use kernlink_proxier::watch::WatchedRunner;
use kernlink_services::{Family, SourceId};

use crate::support::{changes, config, on_network, replace_objects};

fn web(pods: &[(u8, &str)]) -> String {
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    service("web", 1, "type: NodePort", ports, &[]) + &slices("web", pods)
}

fn start(config: &Config) -> WatchedRunner<NftablesMode> {
    let mut kernel = Kernel::open().unwrap();
    kernel.owns_tables = false;
    let mut proxier = Proxier::new(config, kernel).unwrap();
    replace_objects(&mut proxier, &web(&[(0, "node-a")]));
    WatchedRunner::start(proxier, config, Schedule::new(config.intervals()), |_| {}).unwrap()
}

/// Waits until the table of each of these families leads packets to Services, and the others do not exist.
fn await_tables(families: &[Family]) {
    wait::until(|| {
        let mut tables = String::new();
        for family in ["ip", "ip6"] {
            tables += &tools::run("nft", &["-t", "list", "table", family, "kernlink"]).unwrap_or_default();
        }
        // Twice in each of two chains.
        let is_complete = tables.matches("jump services").count() == 2 * 2 * families.len();
        is_complete.then_some(()).ok_or(tables)
    });
}

#[test]
fn what_another_program_deletes_is_written_again_also_in_a_family_of_a_later_configuration() {
    requires!(Feature::Conntrack);
    on_network(2, |_| {
        let mut config = config();
        config.sync_period = Duration::from_secs(600);
        let both = config.clone();
        config.services.families = BTreeSet::from([Family::Ipv4]);
        let runner = start(&config);
        await_tables(&[Family::Ipv4]);
        tools::must("nft", &["delete", "table", "ip", "kernlink"]);
        await_tables(&[Family::Ipv4]);

        let mut invalid = both.clone();
        invalid.service_cidrs = Some(vec!["0.0.0.0/0".parse().unwrap()]);
        let refused = runner.set_config(invalid);
        assert!(refused.is_err());
        // In another network namespace.
        let set = std::thread::scope(|scope| {
            let elsewhere = || {
                let _entered = NetNs::new().enter();
                runner.set_config(both).unwrap();
            };
            scope.spawn(elsewhere).join()
        });
        set.unwrap();
        await_tables(&Family::ALL);
        for family in ["ip6", "ip"] {
            tools::must("nft", &["delete", "table", family, "kernlink"]);
            await_tables(&Family::ALL);
        }
        // The functions of the runner.
        runner.change_all(SourceId(0), changes(&web(&[(1, "node-a")])));
        let count = runner
            .read(|proxier| proxier.services().frontends().count())
            .unwrap();
        assert!(count > 8, "{count} frontends");
        let proxier = runner.stop().unwrap();
        assert_eq!(proxier.services().frontends().count(), count);
    });
}
