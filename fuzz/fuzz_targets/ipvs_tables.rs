//! Any bytes as the tables in `/proc`: nothing panics, and there are not more items than lines.
#![no_main]

use kernlink_ipvs::{ConnectionFilter, Connections, proc_net};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let lines = data.split(|byte| *byte == b'\n').count();
    if let Ok(rows) = proc_net::parse(data) {
        let read: usize = rows.iter().map(|row| 1 + row.real_servers.len()).sum();
        assert!(read <= lines);
    }
    assert!(Connections::from_reader(data, ConnectionFilter::all()).count() <= lines);
});
