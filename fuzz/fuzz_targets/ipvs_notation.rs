//! Arbitrary text in the notation of `ipvsadm`: nothing panics, and parsed operations print as text that parses to the same operations.
#![no_main]

use kernlink_ipvs::{Operation, notation};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(operations) = notation::parse(text) else {
        return;
    };
    let printed: String = operations
        .iter()
        .map(|operation| format!("{operation}\n"))
        .collect();
    assert_eq!(notation::parse(&printed).as_ref(), Ok(&operations), "{printed}");
    for operation in &operations {
        assert_eq!(operation.to_string().parse::<Operation>().as_ref(), Ok(operation));
    }
});
