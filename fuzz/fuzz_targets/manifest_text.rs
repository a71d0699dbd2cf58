//! Arbitrary text as a manifest: each error has its position, and no object is lost without an error.
#![no_main]

use kernlink_kubernetes::manifest::{Objects, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let objects = read("fuzz", text);
    for error in &objects.errors {
        assert!(!error.to_string().contains('\n'));
        assert!(error.line >= 1 && error.document >= 1 && !error.reason.is_empty());
    }
    assert!(objects.missing.is_empty() || !objects.errors.is_empty());
    // Reading the same text again changes nothing.
    let mut again = objects.clone();
    again.keep_from(&objects);
    assert_eq!(again, objects);
    // With the valid objects of an earlier text, no object is missing.
    let valid = read("fuzz", "");
    again.keep_from(&valid);
    assert!(again.missing.is_empty());
    let mut all = Objects::default();
    all.extend(objects.clone());
    assert_eq!(all, objects);
    assert_eq!(objects.missing.is_empty(), objects.into_changes().is_ok());
});
