//! Prints the changes of the ruleset of the network namespace, on a tokio runtime, as `nft monitor` does.
//!
//!     cargo run -p kernlink-nftables --features tokio --example async_ruleset_events

use std::error::Error;

use kernlink_nftables::{Monitor, MonitorScope};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(watch())
}

async fn watch() -> Result<(), Box<dyn Error>> {
    let mut events = Monitor::open(MonitorScope::Changes, None)?.into_stream()?;
    while let Some(event) = events.next().await {
        println!("{}", event?);
    }
    Ok(())
}
