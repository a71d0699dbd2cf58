//! Names, labels and addresses as text: parsing does not panic, and a parsed value prints as the same text.
#![no_main]

use kernlink_dummylink::{AddressKey, Label, LinkAddress, LinkName};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(name) = LinkName::new(text) {
        assert_eq!(name.to_string(), text);
        assert!(text.len() <= LinkName::MAX_LENGTH);
    }
    if let Ok(label) = Label::new(text) {
        assert_eq!(label.to_string(), text);
    }
    if let Ok(key) = text.parse::<AddressKey>() {
        assert_eq!(key.to_string().parse(), Ok(key));
        let _printed = LinkAddress::new(key).to_string();
    }
});
