//! Prints the IPVS table of this network namespace like `ipvsadm -S -n`, with the connections of each real server.
//!
//! `cargo run --example list_virtual_servers`, as root.

use kernlink_ipvs::{Client, Ipvs};

fn main() -> anyhow::Result<()> {
    let mut ipvs = Client::open()?;
    for virtual_server in ipvs.list_virtual_servers()? {
        let key = virtual_server.server.key;
        println!("{}", virtual_server.server);
        for real_server in ipvs.list_real_servers(&key)? {
            let count = real_server.connections;
            println!(
                "-a {key} {} # {} active, {} inactive",
                real_server.server, count.active, count.inactive
            );
        }
    }
    Ok(())
}
