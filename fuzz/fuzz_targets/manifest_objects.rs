//! Arbitrary text as a manifest: its objects are resolved, arbitrated and compiled to the listings of IPVS mode.
#![no_main]

use kernlink_kubernetes::manifest;
use kernlink_proxier::ipvs_mode::{Config, KernelRelease, State};
use kernlink_proxier::services::{InterfaceAddress, Services, SourceId};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let objects = manifest::read("fuzz", text);
    for error in &objects.errors {
        assert!(!error.to_string().is_empty());
        assert!(error.line >= 1 && error.document >= 1);
    }
    let config = Config::new("node-a");
    let mut services = Services::new(config.services.clone());
    services.set_interface_addresses(vec![InterfaceAddress::new("eth0", [192, 0, 2, 1].into())]);
    for change in objects.into_changes_without_missing() {
        services.change(SourceId(0), change);
    }
    assert!(services.has_synced());
    services.update();
    let changes = services.take_changes();
    let mut state = State::new(&config);
    let events = state.compile(&services, &changes);
    assert!(
        events
            .iter()
            .chain(&services.events())
            .all(|event| !event.to_string().is_empty())
    );
    let listings = state.listings(KernelRelease::new(6, 1), 2);
    // Compiled again, nothing changes.
    assert_eq!(state.compile(&services, &changes), []);
    assert_eq!(state.listings(KernelRelease::new(6, 1), 2), listings);
});
