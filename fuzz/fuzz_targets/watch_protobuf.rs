//! Lists, events of watches, errors and frames of an API server in protobuf.
#![no_main]

use kernlink_kubernetes::Converter;
use kernlink_kubernetes::kernlink_services::Kind;
use kernlink_kubernetes::watch::protobuf::{Frames, read_event, read_page, read_status};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut frames = Frames::new();
    // In parts, so that lengths are cut too.
    for part in data.chunks(7) {
        frames.push(part);
        while let Ok(Some(frame)) = frames.next_frame() {
            for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
                let _ = read_event(kind, frame.clone(), &mut Converter::new());
            }
        }
    }
    let bytes = bytes::Bytes::copy_from_slice(data);
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        let _ = read_page(kind, bytes.clone(), &mut Converter::new());
    }
    let _ = read_status(500, bytes);
});
