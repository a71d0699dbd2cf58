//! Prints the numbers of notifications about links of the network namespace, on a tokio runtime.
//!
//!     cargo run -p kernlink-netlink --features tokio --example async_link_events

use std::error::Error;

use kernlink_netlink::{Event, Message, Protocol, Subscription};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(watch())
}

async fn watch() -> Result<(), Box<dyn Error>> {
    // RTNLGRP_LINK.
    let subscription = Subscription::open(Protocol::Route, &[1])?;
    let decode = |message: Message<'_>| Ok::<_, kernlink_netlink::Error>(Some(message.message_type));
    let mut events = subscription.events(None, decode).into_stream()?;
    while let Some(event) = events.next().await {
        match event? {
            Event::Notification(kind) => println!("message type {kind}"),
            _ => println!("notifications were lost"),
        }
    }
    Ok(())
}
