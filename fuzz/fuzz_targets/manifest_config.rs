//! Any text as a KubeProxyConfiguration.
#![no_main]

use kernlink_proxier::kube_proxy_config;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match kube_proxy_config::read("fuzz", text) {
        Ok(read) => assert!(read.config.masquerade_bit.mark() != 0),
        Err(error) => assert!(!error.problems.is_empty()),
    }
});
