//! Arbitrary attributes: reading ends, stays inside the input, and does not panic.
#![no_main]

use kernlink_netlink::AttributeReader;
use libfuzzer_sys::fuzz_target;

fn walk(attributes: AttributeReader<'_>, depth: usize) -> usize {
    let mut bytes = 0;
    for attribute in attributes {
        let Ok(attribute) = attribute else { continue };
        bytes += 4 + attribute.bytes().len();
        let _values = (
            attribute.u8(),
            attribute.be_u16(),
            attribute.ne_u32(),
            attribute.be_u64(),
            attribute.string(),
            attribute.address(),
        );
        if depth > 0 {
            assert!(walk(attribute.nested(), depth - 1) <= attribute.bytes().len());
        }
    }
    bytes
}

fuzz_target!(|data: &[u8]| {
    assert!(walk(AttributeReader::new(data), 4) <= data.len());
});
