//! Any text as a manifest: it is read, and what it holds goes through the model and the desired state to the listings.
#![no_main]

use kernlink_proxier::config::Config;
use kernlink_proxier::desired::{DesiredState, KernelVersion};
use kernlink_proxier::model::{InterfaceAddress, Model};
use kernlink_proxier::source::{SourceId, manifest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let objects = manifest::read("fuzz", text);
    for error in &objects.errors {
        assert!(!error.to_string().is_empty());
        assert!(error.line >= 1 && error.document >= 1);
    }
    let mut model = Model::new(Config::new("node-a"));
    model.set_interface_addresses(vec![InterfaceAddress::new("eth0", [192, 0, 2, 1].into())]);
    for change in objects.into_changes() {
        model.change(SourceId(0), change);
    }
    assert!(model.is_ready());
    let mut desired = DesiredState::new(&model);
    let touched = model.take_touched();
    desired.fold(&model, &touched);
    let listings = desired.listings(KernelVersion::new(6, 1), 2);
    assert_eq!(listings, desired.clone().listings(KernelVersion::new(6, 1), 2));
    assert!(desired.events().iter().all(|event| !event.to_string().is_empty()));
});
