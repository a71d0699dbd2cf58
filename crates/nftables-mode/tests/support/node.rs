//! A node with fakes of all kernel APIs, whose tables evaluate packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_engine::contract::{Calls, Client, Random, Request};
use kernlink_host::{FakeSysctls, Shared};
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Element, ElementIter, Elements, Error, Fake, Flowtable, Hook, ItemKey,
    Nftables, Object, Operation, Packet, PacketFate, Rule, RuleBuilder, Set, SetKey, Table, TableFamily,
    TableKey, Value, Verdict,
};
use kernlink_nftables_mode::layout::{SECOND_TABLE, TABLE};
use kernlink_nftables_mode::{Config, Kernel};
use kernlink_services::Family;

/// The node's addresses, as the contract requires.
pub(crate) const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Tables that processes share. Each transaction and each listing is a call.
#[derive(Clone, Debug)]
pub(crate) struct SharedTables(pub(crate) Shared<Fake>);

fn fault(attempt: &str) -> Error {
    Error::custom(attempt, "a fault of the contract")
}

fn refused(transaction: &[Operation]) -> Vec<Result<(), Error>> {
    // The kernel names an element, if the operation has any.
    let mut fake = Fake::new();
    let outcomes = fake.execute(transaction);
    if outcomes
        .iter()
        .any(|outcome| matches!(outcome, Err(Error::Refused { .. })))
    {
        let mut is_first = true;
        return outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Err(error @ Error::Refused { .. }) if is_first => {
                    is_first = false;
                    Err(error)
                }
                _ => Err(Error::NotExecuted { refused: 0 }),
            })
            .collect();
    }
    let mut outcomes = vec![Err(Error::NotExecuted { refused: 0 }); transaction.len()];
    outcomes[0] = Err(fault("execute the first operation"));
    outcomes
}

struct Failed(Vec<Result<(), Error>>);

impl Nftables for SharedTables {
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = || {
            let outcomes = self.0.lock().execute_at(generation, transaction);
            if outcomes.iter().all(Result::is_ok) {
                Ok(())
            } else {
                Err(Failed(outcomes))
            }
        };
        let unknown = || {
            let source = kernlink_netlink::Error::TimedOut;
            Failed(vec![Err(Error::Failed { source }); transaction.len()])
        };
        let text: Vec<String> = transaction.iter().take(3).map(ToString::to_string).collect();
        let text = format!("{} operations: {}", transaction.len(), text.join("; "));
        match self
            .0
            .calls()
            .change(&text, execute, || Failed(refused(transaction)), unknown)
        {
            Ok(()) => vec![Ok(()); transaction.len()],
            Err(Failed(outcomes)) => outcomes,
        }
    }

    fn generation(&mut self) -> Result<u32, Error> {
        self.0.lock().generation()
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        let read = || self.0.lock().tables(family);
        self.0.calls().read(&"tables", read, || fault("list tables"))
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
        let read = || self.0.lock().chains(table);
        self.0.calls().read(&"chains", read, || fault("list chains"))
    }

    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        let read = || self.0.lock().rules(table, chain);
        self.0.calls().read(&"rules", read, || fault("list rules"))
    }

    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
        let read = || self.0.lock().sets(table);
        self.0.calls().read(&"sets", read, || fault("list sets"))
    }

    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
        let read = || {
            self.0
                .lock()
                .elements(set)?
                .collect::<Result<Vec<Element>, Error>>()
        };
        let elements = self
            .0
            .calls()
            .read(&format!("elements of {set}"), read, || fault("list elements"))?;
        Ok(Box::new(elements.into_iter().map(Ok)))
    }

    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
        let read = || self.0.lock().find_elements(elements);
        self.0.calls().read(&"elements", read, || fault("find elements"))
    }

    fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
        self.0.lock().objects(table)
    }

    fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error> {
        self.0.lock().flowtables(table)
    }
}

/// A node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) tables: SharedTables,
    links: Shared<kernlink_dummylink::Fake>,
    pub(crate) conntrack: Shared<kernlink_conntrack::Fake>,
    sysctls: Shared<FakeSysctls>,
}

/// A table of another program: it drops what comes from one address.
pub(crate) fn foreign() -> Vec<Operation> {
    let table = TableKey::new(TableFamily::Inet, "foreign");
    let chain = Chain::new(table.chain("input")).with_base(BaseChain::new(ChainType::Filter, Hook::Input, 0));
    let rule = Rule::new(table.chain("input"), Vec::new());
    vec![
        Operation::add(Table::new(table)),
        Operation::add(chain),
        Operation::add(rule),
    ]
}

/// The configuration that the contract requires.
pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.services.node_ips = NODE.map(|address| address.parse().unwrap()).into();
    let pods = ["10.244.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
    config.local_detection = kernlink_host::LocalDetection::ClusterCidr(pods.into());
    config
}

impl Node {
    pub(crate) fn new(calls: &Calls) -> Self {
        let eth0 = LinkName::new("eth0").unwrap();
        let addresses = NODE.map(|address| LinkAddress::host(address.parse().unwrap()).unwrap());
        let links = kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses);
        let mut tables = Fake::new();
        tables.apply(&foreign()).unwrap();
        Self {
            tables: SharedTables(Shared::new(tables, calls)),
            links: Shared::new(links, calls),
            conntrack: Shared::new(kernlink_conntrack::Fake::new(), calls),
            sysctls: Shared::new(FakeSysctls::default(), calls),
        }
    }

    pub(crate) fn kernel(&self) -> Kernel {
        Kernel {
            tables: Box::new(self.tables.clone()),
            links: Box::new(self.links.clone()),
            conntrack: Box::new(self.conntrack.clone()),
            sysctls: Box::new(self.sysctls.clone()),
            owns_tables: false,
        }
    }

    /// The table of a family that packets reach.
    pub(crate) fn table(&self, family: Family) -> Option<TableKey> {
        let mut fake = self.tables.0.lock();
        let tables = [TABLE, SECOND_TABLE].map(|name| TableKey::new(family, name));
        tables.into_iter().find(|table| {
            fake.chains(table)
                .unwrap()
                .iter()
                .any(|chain| chain.base.is_some())
        })
    }

    /// The elements of a set of the table that packets reach.
    pub(crate) fn elements(&self, family: Family, set: &str) -> Vec<Element> {
        let Some(table) = self.table(family) else {
            return Vec::new();
        };
        self.tables
            .0
            .lock()
            .list_elements(&table.set(set))
            .unwrap_or_default()
    }

    /// What is the same for equal Services: without the number of the table, indices of endpoints, numbers of service ports, rules for session
    /// affinity, which stay after the last Service with it, and clients.
    pub(crate) fn owned(&self) -> String {
        let mut lines = Vec::new();
        for family in Family::ALL {
            let all = self.tables.0.lock().tables(Some(family.into())).unwrap();
            let all = all
                .iter()
                .filter(|table| [TABLE, SECOND_TABLE].contains(&&*table.key.name))
                .count();
            lines.push(format!("{family}: {all} tables"));
            let Some(table) = self.table(family) else { continue };
            let mut fake = self.tables.0.lock();
            let is_affinity = |chain: &str| chain.contains("affinity");
            for chain in fake.chains(&table).unwrap() {
                if !is_affinity(&chain.key.name) {
                    lines.push(format!("chain {} {:?}", chain.key.name, chain.base));
                }
            }
            for rule in fake.rules(&table, None).unwrap() {
                if !is_affinity(&rule.chain.name) {
                    lines.push(format!(
                        "rule {} {:?} {:?}",
                        rule.chain.name,
                        rule.expressions,
                        rule.comment()
                    ));
                }
            }
            let sets = fake.sets(&table).unwrap();
            let pools = fake.list_elements(&table.set("affinity-pools")).unwrap();
            let mut numbers: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
            for set in sets {
                lines.push(format!("set {}", set.key.name));
                if &*set.key.name == "affinity-clients" {
                    continue;
                }
                let mut elements = Vec::new();
                for element in fake.list_elements(&set.key).unwrap() {
                    let key = element.key.as_bytes();
                    let has_index = set.key.name.ends_with("endpoints") && set.is_map();
                    let key = if has_index { &key[..key.len() - 4] } else { key };
                    let mut value = format!("{:?}", element.data);
                    if &*set.key.name == "affinity-pools" {
                        value.clear();
                    }
                    elements.push(format!("    {} {value} {:?}", Value::new(key), element.comment()));
                }
                elements.sort();
                lines.extend(elements);
            }
            for pool in pools {
                if let Some(kernlink_nftables::Data::Value(value)) = &pool.data {
                    numbers
                        .entry(value.as_bytes().to_vec())
                        .or_default()
                        .push(pool.key.to_string());
                }
            }
            let mut groups: Vec<Vec<String>> = numbers.into_values().collect();
            groups.iter_mut().for_each(|group| group.sort());
            groups.sort();
            lines.push(format!("frontends with common clients: {groups:?}"));
        }
        lines.join("\n")
    }

    pub(crate) fn foreign(&self) -> String {
        let mut fake = self.tables.0.lock();
        let mut ruleset = fake.ruleset().unwrap();
        ruleset
            .tables
            .retain(|table| ![TABLE, SECOND_TABLE].contains(&&*table.table.key.name));
        ruleset.to_string()
    }

    /// For each request the endpoints that a new connection may reach; none if it may be refused.
    pub(crate) fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        // A copy: the evaluation adds clients of Services with session affinity.
        let mut fake = self.tables.0.lock().clone();
        requests
            .iter()
            .map(|request| self.served_by(&mut fake, request))
            .collect()
    }

    fn served_by(&self, fake: &mut Fake, request: &Request) -> BTreeSet<SocketAddr> {
        let clients = self
            .table(request.frontend.family())
            .map(|table| table.set("affinity-clients"));
        let mut served = BTreeSet::new();
        // Endpoints of the contract are few: these are all indices, each as the first choice.
        for number in 0..8 {
            fake.set_random(Some(number));
            match connect(fake, request) {
                Some(endpoint) => _ = served.insert(endpoint),
                None => return BTreeSet::new(),
            }
            if let Some(clients) = &clients {
                fake.apply(&[Operation::flush_set(clients.clone())]).unwrap();
            }
        }
        served
    }

    /// Removes or changes an object, as another program may do it.
    pub(crate) fn damage(&self, random: &mut Random) -> String {
        let family = random.choose(Family::ALL.into()).unwrap();
        let Some(table) = self.table(family) else {
            return String::new();
        };
        let mut fake = self.tables.0.lock();
        let sets: Vec<Set> = fake.sets(&table).unwrap();
        let mut elements: Vec<(Set, Element)> = Vec::new();
        for set in &sets {
            let of_set = fake.list_elements(&set.key).unwrap();
            elements.extend(of_set.into_iter().map(|element| (set.clone(), element)));
        }
        let mut element = || random.choose(elements.clone());
        let delete = |set: &Set, element: &Element| {
            Operation::delete(ItemKey::Elements(Elements::new(
                set.key.clone(),
                [element.key_only()],
            )))
        };
        let operations = match element() {
            Some((set, element)) if random.chance(50) => match random.below(3) {
                0 => vec![delete(&set, &element)],
                1 => {
                    let mut changed = element.clone();
                    if let Some(kernlink_nftables::Data::Value(value)) = &mut changed.data {
                        let mut bytes = value.as_bytes().to_vec();
                        bytes[0] ^= 1;
                        *value = Value::new(&bytes);
                    }
                    vec![
                        delete(&set, &element),
                        Operation::add(Elements::new(set.key, [changed])),
                    ]
                }
                _ => {
                    let mut bytes = element.key.as_bytes().to_vec();
                    let last = bytes.len() - 1;
                    bytes[last] = bytes[last].wrapping_add(77);
                    let mut stray = element.clone();
                    stray.key = Value::new(&bytes);
                    vec![Operation::add(Elements::new(set.key, [stray]))]
                }
            },
            _ => {
                let rules = fake.rules(&table, None).unwrap();
                match random.below(4) {
                    0 => {
                        let rule = random.choose(rules).unwrap();
                        let key = kernlink_nftables::RuleKey::new(rule.chain.clone(), rule.handle.unwrap());
                        vec![Operation::delete(key)]
                    }
                    1 => vec![Operation::add(
                        RuleBuilder::new(table.chain("services"))
                            .verdict(Verdict::Drop)
                            .build()
                            .unwrap(),
                    )],
                    2 => vec![Operation::flush_chain(random.choose(rules).unwrap().chain)],
                    _ => vec![Operation::delete(table)],
                }
            }
        };
        let text: Vec<String> = operations.iter().map(ToString::to_string).collect();
        // A set may be full of such elements, or a key out of its range: nothing is damaged then.
        match fake.apply(&operations) {
            Ok(()) => text.join("; "),
            Err(error) => format!("nothing, {}: {error}", text.join("; ")),
        }
    }
}

/// The bit of a connection whose destination was translated.
const DNAT: u32 = 0x20;

/// Where the first packet of a connection ends. `None`: it is refused, or not translated.
pub(crate) fn connect(fake: &mut Fake, request: &Request) -> Option<SocketAddr> {
    let local: Vec<IpAddr> = NODE.map(|address| address.parse().unwrap()).into();
    let frontend = request.frontend;
    let (hook, source) = match request.client {
        Client::Node => (Hook::Output, local[Family::of(frontend.address).index()]),
        Client::Host(address) => (Hook::Prerouting, address),
    };
    let protocol = kernlink_nftables::Protocol::from(frontend.protocol);
    let mut packet = Packet::new(source, frontend.address, protocol.0, frontend.port);
    packet.local_addresses.clone_from(&local);
    let mut hooks = vec![hook];
    loop {
        let hook = hooks.pop()?;
        let outcome = fake.evaluate(hook, packet);
        if outcome.fate != PacketFate::Accepted {
            return None;
        }
        packet = outcome.packet;
        let is_local = local.contains(&packet.destination);
        match (hook, request.client) {
            (Hook::Prerouting, _) if is_local => hooks.push(Hook::Input),
            (Hook::Prerouting, _) => hooks.push(Hook::Forward),
            (Hook::Output | Hook::Forward, _) => hooks.push(Hook::Postrouting),
            _ => break,
        }
    }
    let is_translated = packet.status & DNAT != 0;
    is_translated.then(|| SocketAddr::new(packet.destination, packet.destination_port))
}
