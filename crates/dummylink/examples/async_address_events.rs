//! Prints the changes of links and addresses of the network namespace, on a tokio runtime, as `ip monitor` does.
//!
//!     cargo run -p kernlink-dummylink --features tokio --example async_address_events

use std::error::Error;

use kernlink_dummylink::Events;

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(watch())
}

async fn watch() -> Result<(), Box<dyn Error>> {
    let mut events = Events::open(None)?.into_stream()?;
    while let Some(event) = events.next().await {
        println!("{}", event?);
    }
    Ok(())
}
