//! One EndpointSlice through the program, with the values at each stage, then an operation that the kernel refuses.
//!
//! `cargo run --example tour`; no privileges, nothing is changed: the kernel is the in-memory one. `docs/tour.md` explains its output.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kernlink_kubernetes::manifest;
use kernlink_nftables::{
    Chain, Element, ElementIter, Elements, Error, Fake, Flowtable, Nftables, Object, Operation, Rule, Set,
    SetKey, Table, TableFamily, TableKey,
};
use kernlink_proxier::nftables_mode::{Config, Kernel, Proxier};
use kernlink_services::{Change, Endpoint, EndpointSlice, ObjectChange, Services, SourceId};

const SOURCE: SourceId = SourceId(0);

/// What an API server would send, or a file would have.
const MANIFEST: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.12.80
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4n8dz, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.20], nodeName: node-a, conditions: {ready: true}}
- {addresses: [10.244.2.20], nodeName: node-b, conditions: {ready: true}}
- {addresses: [10.244.2.21], nodeName: node-b, conditions: {ready: false}}
";

fn main() -> Result<()> {
    let mut out = io::stdout().lock();
    let mut config = Config::new("node-a");
    // The plan is the same on every machine: without the limits of connection tracking, which depend on the number of processors.
    config.conntrack.max_per_core = 0;
    config.conntrack.tcp_established = Duration::ZERO;
    config.conntrack.tcp_close_wait = Duration::ZERO;

    let objects = manifest::read("web.yaml", MANIFEST);
    ensure!(objects.errors.is_empty(), "{:?}", objects.errors);
    let slice = objects.endpoint_slices.first().context("a slice")?.clone();
    print_slice(&mut out, &slice)?;

    let changes = objects.into_changes()?;
    let mut services = Services::new(config.services.clone());
    for change in changes.clone() {
        services.change(SOURCE, change);
    }
    services.update();
    print_resolved(&mut out, &services)?;
    print_changes(&mut out, &mut services)?;

    let tables = Shared(Arc::new(Mutex::new(Fake::new())));
    let mut kernel = Kernel::fake();
    kernel.tables = Box::new(tables.clone());
    // As on Linux 6.9 and later.
    kernel.owns_tables = true;
    let mut proxier = Proxier::new(&config, kernel)?;
    for change in changes {
        proxier.change(SOURCE, change);
    }
    let start = Instant::now();
    writeln!(out, "\n== The plan ==")?;
    for line in proxier.plan(start)?.to_string().lines() {
        // The lines of the table are the same for all Services.
        if line.starts_with('#') || line.contains("10.96.12.80") {
            writeln!(out, "{line}")?;
        }
    }
    let synced = proxier.sync(start)?;
    writeln!(out, "\n== The first sync ==\n{synced}")?;
    print_elements(&mut out, &tables)?;

    writeln!(out, "\n== The endpoint 10.244.2.21 is ready ==")?;
    let ready = with_ready(&slice, "10.244.2.21");
    let change = Change::EndpointSlices(ObjectChange::Upsert(ready));
    services.change(SOURCE, change.clone());
    services.update();
    print_changes(&mut out, &mut services)?;
    proxier.change(SOURCE, change);
    let now = start + Duration::from_secs(1);
    write!(out, "\n{}", proxier.plan(now)?)?;
    writeln!(out, "{}", proxier.sync(now)?)?;
    print_elements(&mut out, &tables)?;

    writeln!(out, "\n== An operation is refused ==")?;
    // From now on changes come from another socket than the one that owns the tables, as if another process owned them.
    tables.lock().set_client(2);
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
    let now = start + Duration::from_secs(2);
    let synced = proxier.sync(now)?;
    writeln!(out, "{synced}")?;
    for event in &synced.events {
        writeln!(out, "event: {event}")?;
    }
    for failing in proxier.failing() {
        let (key, attempts) = (failing.key, failing.attempts);
        let delay = failing.due - now;
        writeln!(
            out,
            "waits: {key}, attempts: {attempts}, due within {} s",
            delay.as_secs_f64().ceil()
        )?;
    }
    let before_due = proxier.sync(now)?;
    writeln!(out, "before it is due: {before_due}")?;

    writeln!(out, "\n== The other process ended ==")?;
    tables.lock().set_client(1);
    let synced = proxier.sync(now + Duration::from_secs(1))?;
    writeln!(out, "{synced}")?;
    for event in &synced.events {
        writeln!(out, "event: {event}")?;
    }
    print_elements(&mut out, &tables)
}

fn print_slice(out: &mut impl Write, slice: &EndpointSlice) -> Result<()> {
    writeln!(out, "== The objects ==")?;
    let service = slice.service.as_deref().unwrap_or_default();
    writeln!(out, "EndpointSlice {} of Service {service}", slice.name)?;
    for Endpoint {
        address,
        node,
        conditions,
        ..
    } in &slice.endpoints
    {
        let node = node.as_deref().unwrap_or_default();
        writeln!(out, "  {address} on {node}, ready: {}", conditions.ready)?;
    }
    Ok(())
}

/// What the model and the arbitration made of the objects.
fn print_resolved(out: &mut impl Write, services: &Services) -> Result<()> {
    writeln!(out, "\n== Resolved ==")?;
    for (_, port) in services.ports() {
        writeln!(out, "ServicePort {}", port.key)?;
        for frontend in &port.frontends {
            let (kind, policy) = (frontend.kind, frontend.policy);
            let (address, port, protocol) = (frontend.address, frontend.port, frontend.protocol);
            writeln!(
                out,
                "  frontend {address}:{port}/{protocol}, {kind}, policy {policy}"
            )?;
        }
        let explained = services.explain_endpoints(&port.key).context("a service port")?;
        for endpoint in explained.endpoints {
            let decision = match endpoint.cluster {
                None => "chosen".to_owned(),
                Some(reason) => format!("not chosen: {reason}"),
            };
            writeln!(
                out,
                "  endpoint {}:{}, {decision}",
                endpoint.address, endpoint.port
            )?;
        }
    }
    Ok(())
}

/// What a data path is given: keys that changed, and their owners.
fn print_changes(out: &mut impl Write, services: &mut Services) -> Result<()> {
    writeln!(out, "\nChanges:")?;
    for key in services.take_changes().frontends {
        let owner = services.frontend(&key).map(|frontend| frontend.owner);
        let owner = owner.map_or_else(|| "none".to_owned(), |owner| owner.key.to_string());
        writeln!(out, "  frontend {key}, owner {owner}")?;
    }
    Ok(())
}

/// The elements of the two maps that serve the frontend, as `nft list ruleset` prints them.
fn print_elements(out: &mut impl Write, tables: &Shared) -> Result<()> {
    let listing = tables.lock().ruleset()?.to_string();
    writeln!(out, "In the kernel:")?;
    for map in ["frontends", "endpoints"] {
        let (_, content) = listing
            .split_once(&format!("map {map} {{"))
            .context("the map exists")?;
        let elements = content
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("elements"));
        writeln!(out, "  map {map}: {}", elements.unwrap_or_default())?;
    }
    Ok(())
}

fn with_ready(slice: &EndpointSlice, address: &str) -> EndpointSlice {
    let mut slice = slice.clone();
    for endpoint in &mut slice.endpoints {
        if endpoint.address.to_string() == address {
            endpoint.conditions.ready = true;
        }
    }
    slice
}

/// The in-memory ruleset, which this program keeps while the proxier changes it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Fake>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Fake> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nftables for Shared {
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        self.lock().execute_at(generation, transaction)
    }

    fn generation(&mut self) -> Result<u32, Error> {
        self.lock().generation()
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        self.lock().tables(family)
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
        self.lock().chains(table)
    }

    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        self.lock().rules(table, chain)
    }

    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
        self.lock().sets(table)
    }

    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
        let elements: Vec<_> = self.lock().elements(set)?.collect();
        Ok(Box::new(elements.into_iter()))
    }

    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
        self.lock().find_elements(elements)
    }

    fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
        self.lock().objects(table)
    }

    fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error> {
        self.lock().flowtables(table)
    }
}
