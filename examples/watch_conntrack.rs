//! Prints events of the connection table like `conntrack -E`.
//!
//! `cargo run --example watch_conntrack [-- NUMBER]`, as root; ends after NUMBER events.

use anyhow::{Context, Result};
use kernlink_conntrack::{Event, EventKinds, EventOptions};

fn main() -> Result<()> {
    let number = std::env::args().nth(1).map(|number| number.parse());
    let number: Option<usize> = number.transpose().context("usage: watch_conntrack [NUMBER]")?;

    let events = EventOptions::new(EventKinds::all()).open()?;
    for event in events.take(number.unwrap_or(usize::MAX)) {
        match event? {
            Event::New(flow) => println!("[NEW] {flow}"),
            Event::Update(flow) => println!("[UPDATE] {flow}"),
            Event::Destroy(flow) => println!("[DESTROY] {flow}"),
            // The receive buffer was full; a program that keeps a copy of the table lists it again.
            Event::Overrun => println!("[OVERRUN]"),
            _ => {}
        }
    }
    Ok(())
}
