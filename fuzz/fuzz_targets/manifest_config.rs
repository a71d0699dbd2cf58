//! Arbitrary text as a KubeProxyConfiguration.
#![no_main]

use kernlink_kubernetes::kube_proxy_config::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match read("fuzz", text) {
        Ok(read) => {
            assert!(read.iptables.masquerade_bit < 32);
            assert!(read.ipvs.min_sync_period <= read.ipvs.sync_period && !read.ipvs.sync_period.is_zero());
            assert!(!read.ipvs.scheduler.is_empty() && read.cluster_cidr.len() <= 2);
            let servers = [read.healthz_bind_address, read.metrics_bind_address];
            assert!(servers.iter().flatten().all(|address| address.port() > 0));
            for warning in &read.warnings {
                assert!(!warning.to_string().contains('\n'));
            }
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            assert!(!error.to_string().contains('\n'));
        }
    }
});
