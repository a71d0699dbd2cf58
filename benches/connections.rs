//! New connections to Services in nftables mode and in IPVS mode, in turn, on the kernel of the VM.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kernlink_benches::cluster::{self, Cluster};
use kernlink_benches::traffic::{Node, measure};
use kernlink_benches::{Result, exit_code, figure};
use kernlink_proxier::{ipvs_mode, nftables_mode};

const SIZES: [u32; 2] = [10, 10_000];
const ROUNDS: u32 = 9;
/// How long connections are opened at each node in a round.
const TIME: Duration = Duration::from_secs(2);
/// The group of the figures.
const GROUP: &str = "connections";
const NFTABLES: &str = "nftables_mode";
const IPVS: &str = "ipvs_mode";

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> Result<()> {
    let mut nodes = Vec::new();
    for size in SIZES {
        let cluster = Cluster::new(size);
        nodes.push(Node::new(NFTABLES, size, || nftables(&cluster))?);
        nodes.push(Node::new(IPVS, size, || ipvs(&cluster))?);
    }
    let all = measure(&nodes, ROUNDS, TIME)?;
    for one in &all {
        println!("{}", one.text()?);
    }
    for one in all.iter().filter(|one| one.name == NFTABLES) {
        let of_ipvs = all
            .iter()
            .filter(|peer| peer.name == IPVS && peer.size == one.size);
        for peer in of_ipvs {
            figure(
                &format!("{GROUP}.nftables_over_ipvs.{}", one.size),
                one.rate_over(peer),
                "ratio",
            )?;
        }
    }
    Ok(())
}

fn nftables(cluster: &Cluster) -> Result<nftables_mode::Proxier> {
    let kernel = nftables_mode::Kernel::open()?;
    let mut proxier: nftables_mode::Proxier = cluster.proxier(&cluster::nftables_config()?, kernel)?;
    proxier.set_clock(Instant::now);
    cluster::sync(&mut proxier)?;
    // Its socket is the owner of the tables.
    Ok(proxier)
}

fn ipvs(cluster: &Cluster) -> Result<ipvs_mode::Proxier> {
    let kernel = ipvs_mode::Kernel::open()?;
    let mut proxier: ipvs_mode::Proxier = cluster.proxier(&cluster::ipvs_config()?, kernel)?;
    cluster::sync(&mut proxier)?;
    Ok(proxier)
}
