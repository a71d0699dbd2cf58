//! Arbitrary datagrams as the reply to a request, a dump and a batch: each has an outcome, no item has more bytes than were sent, and
//! nothing panics.
#![no_main]

use kernlink_netlink::nftables::{self, Notification};
use kernlink_netlink::{Batch, Error, Script};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let connect = || Script::new().expect_anything().answer(data).connect();
    let Ok(mut connection) = connect() else { return };
    let copy = |message: kernlink_netlink::Message<'_>| {
        if let Ok(Some(Notification::Change(change))) = nftables::decode(message) {
            let chain = change.chain.map_or(0, |chain| chain.len());
            assert!(change.table.len() + chain <= message.payload.len());
        }
        Ok::<_, Error>(Some(message.payload.len()))
    };
    if let Ok(items) = connection.request(0x20, 0, |_| {}, copy) {
        assert!(items.iter().sum::<usize>() <= data.len());
    }
    let Ok(mut connection) = connect() else { return };
    if let Ok(items) = connection.dump_all(0x20, 0, |_| {}, copy) {
        assert!(items.iter().sum::<usize>() <= data.len());
    }
    let Ok(mut connection) = connect() else { return };
    let mut batch = Batch::new();
    for value in 0..3 {
        let _small = batch.push(0x20, 0, |w| {
            w.ne_u32(1, value);
        });
    }
    assert_eq!(connection.execute(&mut batch).len(), 3);
});
