//! Prints the flows that begin and end in the network namespace, on a tokio runtime, as `conntrack -E` does.
//!
//!     cargo run -p kernlink-conntrack --features tokio --example async_flow_events

use std::error::Error;

use kernlink_conntrack::{EventKinds, EventOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(watch())
}

async fn watch() -> Result<(), Box<dyn Error>> {
    let kinds = EventKinds::NEW | EventKinds::DESTROY;
    let mut events = EventOptions::new(kinds).open()?.into_stream()?;
    while let Some(event) = events.next().await {
        println!("{}", event?);
    }
    Ok(())
}
