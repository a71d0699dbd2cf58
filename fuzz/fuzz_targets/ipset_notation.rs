//! Arbitrary text: parsed operations print as text that parses to the same operations.
#![no_main]

use kernlink_ipset::{SetFamily, SetName, SetType, notation};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    // The last byte of its name determines the type of a set that the text does not create.
    let known = |name: &SetName| {
        let last = usize::from(name.as_bytes().last().copied().unwrap_or_default());
        let set_type = SetType::ALL.get(last % SetType::ALL.len()).copied()?;
        let families = set_type.families();
        Some((
            set_type,
            families
                .get(last / 16 % families.len())
                .copied()
                .unwrap_or(SetFamily::Inet),
        ))
    };
    let Ok(operations) = notation::parse_with(text, known) else {
        return;
    };
    let Ok(printed) = notation::render(&operations) else {
        return;
    };
    match notation::parse_with(&printed, known) {
        Ok(again) => assert_eq!(again, operations, "{printed}"),
        Err(error) => panic!("{error}: {}\n{printed}", error.error),
    }
});
