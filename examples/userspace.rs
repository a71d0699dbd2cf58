//! Serves the Services of a manifest file in userspace: portal rules lead to listening ports of this process.
//!
//! As root, in a network namespace of its own, so that the host does not change:
//!
//! ```sh
//! cargo build --example userspace
//! unshare --net sh -c 'ip link set lo up; target/debug/examples/userspace examples/manifests/cluster.yaml; iptables -t nat -S'
//! ```

use std::time::Instant;

use anyhow::{Context, Result};
use kernlink_kubernetes::manifest;
use kernlink_services::SourceId;
use kernlink_userspace::{Config, Kernel, Limits, Proxier};

fn main() -> Result<()> {
    let file = std::env::args().nth(1).context("usage: userspace MANIFESTS")?;
    let text = std::fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
    let objects = manifest::read(&file, &text);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let kernel = Kernel::open(runtime.handle().clone(), Limits::default())?;
    let mut proxier = Proxier::new(&Config::new("node-a"), kernel)?;
    for change in objects.into_changes()? {
        proxier.change(SourceId(0), change);
    }

    let synced = proxier.sync(Instant::now())?;
    print!("{}", synced.plan);
    println!("{synced}");
    // The listening ports exist until the process ends. The rules stay: the next process listens at the same ports.
    println!("serving until standard input ends");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
