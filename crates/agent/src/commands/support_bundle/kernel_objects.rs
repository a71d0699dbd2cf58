//! The kernel objects of kernlink and kube-proxy, in the notation of their tools. Those of other programs are not read, or left out.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use kernlink_base::{ErrorChain, Modules};
use kernlink_proxier::host::IPVS_LINK;
use kernlink_proxier::ipvs_mode::dummylink::{self, DummyLinks, LinkName, Selection};
use kernlink_proxier::ipvs_mode::ipset::{self, IpSets, SetContents, notation};
use kernlink_proxier::ipvs_mode::iptables_restore::{
    Chain, ChainName, ChainReader, Client, Iptables, Save, Table,
};
use kernlink_proxier::ipvs_mode::ipvs::{self, Ipvs};
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::netfilter::name_of_chain;
use kernlink_proxier::nftables_mode::layout::{KUBE_PROXY_TABLE, Slot};
use kernlink_proxier::nftables_mode::nftables::{self, Nftables, TableKey};
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_services::Family;
use kernlink_userspace::data_path::chains::PortalChain;

use crate::modes::Config;

/// The longest time of an iptables tool.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A chain of kube-proxy by which it only notices when tables are flushed.
const CANARY: &str = "KUBE-PROXY-CANARY";
/// How chains of local endpoints began in kube-proxy before 1.23.
const OLD_PREFIX: &str = "KUBE-XLB-";

/// Each file with its text, or why there is none.
///
/// `config`: decides which virtual servers are owned.
pub(super) fn files(config: &Config) -> Vec<(&'static str, Result<String, String>)> {
    let modules = Modules::of_running_kernel();
    let sets = sets(&modules).and_then(|sets| notation::save(&sets).map_err(|error| text(&error)));
    vec![
        ("kernel/nftables.txt", tables()),
        ("kernel/iptables.txt", chains(Family::Ipv4)),
        ("kernel/ip6tables.txt", chains(Family::Ipv6)),
        ("kernel/ipset.txt", sets),
        ("kernel/ipvs.txt", virtual_servers(config, &modules)),
        ("kernel/addresses.txt", addresses()),
    ]
}

fn text(error: &(dyn std::error::Error + 'static)) -> String {
    ErrorChain(error).to_string()
}

/// The tables of nftables mode, as `nft list table` prints them. One that cannot be read is named in a comment.
fn tables() -> Result<String, String> {
    let mut client = nftables::Client::open().map_err(|error| text(&error))?;
    let (mut page, mut failed) = (String::new(), None);
    for family in Family::ALL {
        let keys = Slot::ALL.map(|slot| TableKey::new(family, slot.name()));
        for key in keys.into_iter().chain([TableKey::new(family, KUBE_PROXY_TABLE)]) {
            match client.table_contents(&key) {
                Ok(Some(contents)) => page.push_str(&contents.to_string()),
                Ok(None) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    let why = text(&error);
                    page.push_str(&format!("# {key} cannot be read: {why}\n"));
                    failed.get_or_insert(why);
                }
            }
        }
    }
    match failed {
        Some(why) if page.lines().all(|line| line.starts_with('#')) => Err(why),
        _ => Ok(page),
    }
}

/// Whether a chain is one of kernlink or kube-proxy. `KUBE-FIREWALL` is one of the kubelet too.
fn is_owned(family: Family, table: Table, name: &str) -> bool {
    let in_table = name_of_chain(family, table, name);
    iptables_mode::retire::has_chain(&in_table)
        || ipvs_mode::rules::has_chain(&in_table)
        || PortalChain::ALL.iter().any(|chain| chain.as_str() == name)
        || name == CANARY
        || name.starts_with(OLD_PREFIX)
}

/// Prints owned chains, and of other chains the jumps to them.
struct Print {
    page: String,
    table: Option<Table>,
}

impl ChainReader for Print {
    fn begin(&mut self, _request: &Save, table: Table) {
        if self.table != Some(table) {
            self.table = Some(table);
            // Writing to a string cannot fail.
            let _ = writeln!(self.page, "*{table}");
        }
    }

    fn chain(&mut self, request: &Save, table: Table, name: &ChainName, chain: Chain) -> Option<Chain> {
        let is_owned = |name: &ChainName| is_owned(request.family, table, name.as_str());
        let is_whole = is_owned(name);
        if is_whole {
            let _ = writeln!(self.page, ":{name} - [0:0]");
        }
        for rule in chain.rules() {
            let target = rule.target.as_ref().and_then(|target| target.chain());
            if is_whole || target.is_some_and(is_owned) {
                let _ = writeln!(self.page, "-A {name} {rule}");
            }
        }
        None
    }
}

/// The chains and rules of a family, as `iptables-save` prints them. Only tables that exist are read.
fn chains(family: Family) -> Result<String, String> {
    let mut client = Client::new().with_timeout(TIMEOUT);
    let mut print = Print {
        page: String::new(),
        table: None,
    };
    let outcome = client
        .save_chains(&[Save::all(family).lenient()], &mut print)
        .pop();
    match outcome {
        Some(Ok(_)) => Ok(print.page),
        Some(Err(error)) => Err(text(&error)),
        None => Err("the tool printed nothing".to_owned()),
    }
}

/// The sets. No module is loaded for them.
fn sets(modules: &Modules) -> Result<Vec<SetContents>, String> {
    if !modules.is_loaded("ip_set") {
        return Ok(Vec::new());
    }
    let read = || -> Result<Vec<SetContents>, ipset::Error> {
        let mut client = ipset::Client::open()?;
        let headers = client.headers()?.into_iter();
        let names = headers
            .map(|header| header.set.name)
            .filter(ipvs_mode::sets::is_owned);
        let mut sets = Vec::new();
        for name in names {
            match client.list_set(&name) {
                Ok(contents) => sets.push(contents),
                // It was removed meanwhile.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sets)
    };
    read().map_err(|error| text(&error))
}

/// The virtual servers with their real servers, as `ipvsadm -Sn` prints them, and their connections. No module is loaded for them.
fn virtual_servers(config: &Config, modules: &Modules) -> Result<String, String> {
    // IPVS mode has sets wherever it has virtual servers.
    if !(modules.is_loaded("ip_vs") && modules.is_loaded("ip_set")) {
        return Ok(String::new());
    }
    let links = dummylink::Client::open().map_err(|error| text(&error))?;
    let mut mode = Retiring::new(config.retiring_ipvs(), Box::new(links)).map_err(|error| text(&error))?;
    let owned = mode.owned_servers().map_err(|error| text(&error))?;
    let read = || -> Result<String, ipvs::Error> {
        let mut client = ipvs::Client::open()?;
        let mut page = String::new();
        for status in client.list_virtual_servers()? {
            let key = &status.server.key;
            if !owned.contains(key) {
                continue;
            }
            let _ = writeln!(page, "{}", status.server);
            let real_servers = match client.list_real_servers(key) {
                Ok(servers) => servers,
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            for found in real_servers {
                let counts = found.connections;
                let _ = writeln!(
                    page,
                    "-a {key} {} # {} active, {} inactive",
                    found.server, counts.active, counts.inactive
                );
            }
        }
        Ok(page)
    };
    read().map_err(|error| text(&error))
}

/// The addresses on the link of IPVS mode.
fn bound() -> Result<BTreeSet<IpAddr>, String> {
    let link = LinkName::new(IPVS_LINK).map_err(|error| text(&error))?;
    let read = || -> Result<BTreeSet<IpAddr>, dummylink::Error> {
        let mut links = dummylink::Client::open()?;
        if links.link(&link)?.is_none() {
            return Ok(BTreeSet::new());
        }
        let addresses = links.list(Selection::On(link))?.into_iter();
        Ok(addresses.map(|address| address.address.key.address()).collect())
    };
    read().map_err(|error| text(&error))
}

fn addresses() -> Result<String, String> {
    let bound = bound()?;
    Ok(bound
        .iter()
        .map(|address| format!("{IPVS_LINK} {address}\n"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_other_programs_are_not_owned() {
        for (name, expected) in [
            ("KUBE-SERVICES", true),
            ("KUBE-SVC-NPX46M4PTMTKRN6Y", true),
            ("KUBE-XLB-NPX46M4PTMTKRN6Y", true),
            ("KUBE-NODE-PORT", true),
            ("KUBE-PORTALS-HOST", true),
            ("KUBE-PROXY-CANARY", true),
            ("KUBE-ROUTER-INPUT", false),
            ("KUBE-KUBELET-CANARY", false),
            ("KUBE-POD-FW-A", false),
            ("INPUT", false),
            ("DOCKER", false),
        ] {
            assert_eq!(is_owned(Family::Ipv4, Table::Nat, name), expected, "{name}");
        }
    }
}
