//! The kernel objects of kernlink and kube-proxy, in the notation of their tools. Those of other programs are not read, or left out.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use kernlink_base::{ErrorChain, Modules};
use kernlink_proxier::host::IPVS_LINK;
use kernlink_proxier::iptables_mode::FixedChain;
use kernlink_proxier::ipvs_mode::SetId;
use kernlink_proxier::ipvs_mode::dummylink::{self, DummyLinks, LinkName, Selection};
use kernlink_proxier::ipvs_mode::ipset::{self, Element, IpSets, SetContents, SetName, notation};
use kernlink_proxier::ipvs_mode::iptables_restore::{
    Chain, ChainName, ChainReader, Client, Iptables, Save, Table,
};
use kernlink_proxier::ipvs_mode::ipvs::{self, Ipvs, Protocol, VirtualServerKey};
use kernlink_proxier::nftables_mode::layout::{KUBE_PROXY_TABLE, Slot};
use kernlink_proxier::nftables_mode::nftables::{
    self, ChainContents, ChainKey, Nftables, Rule, SetContents as Elements, TableContents, TableKey,
};
use kernlink_services::Family;
use kernlink_userspace::data_path::chains::PortalChain;

/// The longest time of an iptables tool.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Chains that only IPVS mode has, and that of kube-proxy that only notices when tables are flushed.
const OTHER_CHAINS: &[&str] = &[
    "KUBE-IPVS-FILTER",
    "KUBE-IPVS-OUT-FILTER",
    "KUBE-LOAD-BALANCER",
    "KUBE-NODE-PORT",
    "KUBE-PROXY-CANARY",
    "KUBE-SOURCE-RANGES-FIREWALL",
];
/// How the chains of a service port begin, also those of kube-proxy before 1.23.
const CHAIN_PREFIXES: &[&str] = &[
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-XLB-",
];
/// The sets with the deadlines of real servers that drain.
const DRAIN_SETS: &[&str] = &["KERNLINK-DRAIN", "KERNLINK-6-DRAIN"];

/// Each file with its text, or why there is none.
pub(super) fn files() -> Vec<(&'static str, Result<String, String>)> {
    let modules = Modules::of_running_kernel();
    let sets = sets(&modules);
    let virtual_servers = match &sets {
        Ok(sets) => virtual_servers(&modules, sets),
        Err(why) => Err(why.clone()),
    };
    let sets = sets.and_then(|sets| notation::save(&sets).map_err(|error| text(&error)));
    vec![
        ("kernel/nftables.txt", tables()),
        ("kernel/iptables.txt", chains(Family::Ipv4)),
        ("kernel/ip6tables.txt", chains(Family::Ipv6)),
        ("kernel/ipset.txt", sets),
        ("kernel/ipvs.txt", virtual_servers),
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
            match table(&mut client, &key) {
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

fn table(client: &mut nftables::Client, key: &TableKey) -> Result<Option<TableContents>, nftables::Error> {
    let Some(table) = client.table(key)? else {
        return Ok(None);
    };
    let mut contents = TableContents::new(table);
    contents.objects = client.objects(key)?;
    for set in client.sets(key)? {
        match client.list_elements(&set.key) {
            Ok(elements) => contents.sets.push(Elements::new(set, elements)),
            // It was removed meanwhile.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let mut rules: HashMap<ChainKey, Vec<Rule>> = HashMap::new();
    for rule in client.rules(key, None)? {
        rules.entry(rule.chain.clone()).or_default().push(rule);
    }
    for chain in client.chains(key)? {
        let of_chain = rules.remove(&chain.key).unwrap_or_default();
        contents.chains.push(ChainContents::new(chain, of_chain));
    }
    Ok(Some(contents))
}

/// Whether a chain is one of kernlink or kube-proxy. `KUBE-FIREWALL` is one of the kubelet too.
fn is_owned(name: &str) -> bool {
    FixedChain::ALL.iter().any(|chain| chain.text() == name)
        || PortalChain::ALL.iter().any(|chain| chain.as_str() == name)
        || OTHER_CHAINS.contains(&name)
        || CHAIN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
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

    fn chain(&mut self, _request: &Save, _table: Table, name: &ChainName, chain: Chain) -> Option<Chain> {
        let is_whole = is_owned(name.as_str());
        if is_whole {
            let _ = writeln!(self.page, ":{name} - [0:0]");
        }
        for rule in chain.rules() {
            let target = rule.target.as_ref().and_then(|target| target.chain());
            if is_whole || target.is_some_and(|target| is_owned(target.as_str())) {
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

fn is_set_owned(name: &SetName) -> bool {
    SetId::of_name(name).is_some() || DRAIN_SETS.iter().any(|set| name.to_string() == *set)
}

/// The sets. No module is loaded for them.
fn sets(modules: &Modules) -> Result<Vec<SetContents>, String> {
    if !modules.is_loaded("ip_set") {
        return Ok(Vec::new());
    }
    let read = || -> Result<Vec<SetContents>, ipset::Error> {
        let mut client = ipset::Client::open()?;
        let headers = client.headers()?.into_iter();
        let names = headers.map(|header| header.set.name).filter(is_set_owned);
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

/// What identifies virtual servers of kernlink and kube-proxy, see ARCHITECTURE.md.
#[derive(Default)]
struct Identified {
    /// The families with entries in the ledger.
    has_ledger: BTreeSet<Family>,
    in_ledger: BTreeSet<(IpAddr, u8, u16)>,
    in_frontend_set: BTreeSet<(IpAddr, u8, u16)>,
    node_ports: BTreeSet<(Family, u8, u16)>,
    bound: BTreeSet<IpAddr>,
}

impl Identified {
    fn new(sets: &[SetContents], bound: BTreeSet<IpAddr>) -> Self {
        let mut identified = Self {
            bound,
            ..Self::default()
        };
        for contents in sets {
            let Some((family, set)) = SetId::of_name(&contents.header.set.name) else {
                continue;
            };
            for entry in &contents.entries {
                match (set, entry.element()) {
                    (SetId::Ledger, Element::IpPort { ip, port }) => {
                        identified.has_ledger.insert(family);
                        identified.in_ledger.insert((*ip, port.protocol.0, port.port));
                    }
                    (_, Element::IpPort { ip, port }) => {
                        identified
                            .in_frontend_set
                            .insert((*ip, port.protocol.0, port.port));
                    }
                    (SetId::NodePortTcp, Element::Port(port)) => {
                        _ = identified.node_ports.insert((family, 6, *port))
                    }
                    (SetId::NodePortUdp, Element::Port(port)) => {
                        _ = identified.node_ports.insert((family, 17, *port))
                    }
                    _ => {}
                }
            }
        }
        identified
    }

    fn contains(&self, key: &VirtualServerKey) -> bool {
        let (Some(address), Some(port), Some(protocol)) = (key.address(), key.port(), key.protocol()) else {
            return false;
        };
        let protocol = match protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
            _ => return false,
        };
        let family = Family::of(address);
        let entry = (address, protocol, port);
        if self.has_ledger.contains(&family) {
            return self.in_ledger.contains(&entry);
        }
        self.bound.contains(&address)
            || self.in_frontend_set.contains(&entry)
            || self.node_ports.contains(&(family, protocol, port))
    }
}

/// The virtual servers with their real servers, as `ipvsadm -Sn` prints them, and their connections. No module is loaded for them.
fn virtual_servers(modules: &Modules, sets: &[SetContents]) -> Result<String, String> {
    if !modules.is_loaded("ip_vs") {
        return Ok(String::new());
    }
    let identified = Identified::new(sets, bound()?);
    let read = || -> Result<String, ipvs::Error> {
        let mut client = ipvs::Client::open()?;
        let mut page = String::new();
        for status in client.list_virtual_servers()? {
            let key = &status.server.key;
            if !identified.contains(key) {
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
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn chains_of_other_programs_are_not_owned() {
        for (name, expected) in [
            ("KUBE-SERVICES", true),
            ("KUBE-SVC-NPX46M4PTMTKRN6Y", true),
            ("KUBE-NODE-PORT", true),
            ("KUBE-PORTALS-HOST", true),
            ("KUBE-ROUTER-INPUT", false),
            ("KUBE-KUBELET-CANARY", false),
            ("KUBE-POD-FW-A", false),
            ("INPUT", false),
            ("DOCKER", false),
        ] {
            assert_eq!(is_owned(name), expected, "{name}");
        }
    }

    #[test]
    fn virtual_servers_of_other_programs_are_not_identified() {
        let key =
            |text: &str, port| VirtualServerKey::new(text.parse::<IpAddr>().unwrap(), port, Protocol::Tcp);
        let bound = BTreeSet::from(["10.96.0.1".parse().unwrap()]);
        let mut identified = Identified::new(&[], bound);
        assert!(identified.contains(&key("10.96.0.1", 80)));
        assert!(!identified.contains(&key("192.0.2.1", 80)));
        identified.node_ports.insert((Family::Ipv4, 6, 30080));
        assert!(identified.contains(&key("192.0.2.1", 30080)));
        // With a ledger only what it names is owned.
        identified.has_ledger.insert(Family::Ipv4);
        identified.in_ledger.insert(("10.96.0.2".parse().unwrap(), 6, 80));
        assert!(!identified.contains(&key("10.96.0.1", 80)));
        assert!(!identified.contains(&key("192.0.2.1", 30080)));
        assert!(identified.contains(&key("10.96.0.2", 80)));
        assert!(!identified.contains(&VirtualServerKey::mark(Family::Ipv4, NonZeroU32::MIN)));
    }
}
