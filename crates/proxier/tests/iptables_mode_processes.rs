//! The processes that a sync in iptables mode starts.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kernlink_iptables_restore::{
    Chain, ChainName, Client, Completion, Edit, Error, Fake, Invocation, Iptables,
    Operation as RulesOperation, Restore, Ruleset, Runner, Save, Table, Variant,
};
use kernlink_proxier::iptables_mode::{Key, Proxier};
use kernlink_services::Family;

use crate::iptables_node::{change_endpoints, deliver_numbered, kernel, proxier_on, saved, sync};

/// The programs that were started together, with their last arguments.
type Started = Vec<Vec<String>>;

/// Empty tables, whose tools accept every input.
#[derive(Clone, Default)]
struct Tools(Arc<Mutex<Started>>);

impl Tools {
    fn take(&self) -> Started {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Runner for Tools {
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
        self.run_all(vec![invocation]).remove(0)
    }

    fn run_all(&mut self, invocations: Vec<Invocation>) -> Vec<Result<Completion, Error>> {
        let text = |invocation: &Invocation| {
            let last = invocation.arguments.last().unwrap();
            format!("{} {last}", invocation.program)
        };
        self.0
            .lock()
            .unwrap()
            .push(invocations.iter().map(text).collect());
        let complete = |invocation: &Invocation| {
            let stdout = match invocation.arguments.last().map(String::as_str) {
                Some("--version") => "iptables-restore v1.8.9 (legacy)\n",
                _ => "",
            };
            Ok(Completion {
                status: Some(0),
                signal: None,
                stdout: stdout.into(),
                stderr: Vec::new(),
            })
        };
        invocations.iter().map(complete).collect()
    }
}

/// A proxier that has numbered Services of ten endpoints each, and has synced nothing.
fn proxier(tools: &Tools, variant: Option<Variant>, services: u16) -> Proxier {
    let mut client = Client::with_runner(Box::new(tools.clone()));
    if let Some(variant) = variant {
        client = client.with_variant(variant);
    }
    let mut kernel = kernel();
    kernel.rules = Box::new(client);
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, services, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    proxier
}

#[test]
fn a_first_sync_reads_all_tables_at_once_and_does_not_ask_the_tools_for_their_version() {
    for (variant, infix) in [
        (None, ""),
        (Some(Variant::Legacy), "-legacy"),
        (Some(Variant::Nft), "-nft"),
    ] {
        let tools = Tools::default();
        let mut proxier = proxier(&tools, variant, 20);
        sync(&mut proxier);
        let names = |family: &str, verb: &str| format!("{family}{infix}-{verb}");
        let [ipv4, ipv6] = ["iptables", "ip6tables"];
        let reads = [ipv4, ipv6].map(|family| ["nat", "filter"].map(|table| (family, table)));
        let reads = reads.into_iter().flatten();
        let reads = reads.map(|(family, table)| format!("{} {table}", names(family, "save")));
        let writes =
            [ipv4, ipv6, ipv4].map(|family| vec![format!("{} --counters", names(family, "restore"))]);
        let mut expected = vec![reads.collect::<Vec<_>>()];
        expected.extend(writes);
        assert_eq!(tools.take(), expected);
        change_endpoints(&mut proxier, 3, &[1, 2]);
        sync(&mut proxier);
        assert_eq!(tools.take(), [[format!("{} --counters", names(ipv4, "restore"))]]);
    }
}

#[test]
fn the_variant_is_asked_for_once_if_an_input_would_be_too_large_for_the_nft_tools() {
    let tools = Tools::default();
    let mut proxier = proxier(&tools, None, 120);
    sync(&mut proxier);
    let started = tools.take();
    let versions = started
        .iter()
        .flatten()
        .filter(|program| program.contains("--version"));
    assert_eq!(versions.collect::<Vec<_>>(), ["iptables-restore --version"]);
    // The legacy tools get one input.
    let restores = started
        .iter()
        .flatten()
        .filter(|program| program.contains("--counters"));
    assert_eq!(restores.count(), 3);
}

/// The fake, with the variant of its tools. Records the chains that are listed by themselves.
struct Listed {
    fake: Fake,
    variant: Variant,
    chains: Arc<Mutex<Vec<(Table, ChainName)>>>,
}

impl Iptables for Listed {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), Error>> {
        self.fake.execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        self.fake.save(request)
    }

    fn list_chain(
        &mut self,
        family: Family,
        table: Table,
        chain: &ChainName,
    ) -> Result<Option<Chain>, Error> {
        self.chains.lock().unwrap().push((table, *chain));
        self.fake.list_chain(family, table, chain)
    }

    fn variant(&mut self, _: Family) -> Option<Variant> {
        Some(self.variant)
    }
}

#[test]
fn legacy_tools_read_one_chain_of_a_large_table_at_a_time() {
    for (variant, services, expected) in [
        (Variant::Legacy, 10, 5),
        (Variant::Legacy, 100, 1),
        (Variant::Nft, 100, 5),
    ] {
        let chains = Arc::default();
        let mut kernel = kernel();
        kernel.rules = Box::new(Listed {
            fake: Fake::new(),
            variant,
            chains: Arc::clone(&chains),
        });
        let mut proxier = proxier_on(kernel);
        deliver_numbered(&mut proxier, services, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        sync(&mut proxier);
        let mut read = BTreeSet::new();
        for _ in 0..5 {
            assert!(proxier.recheck([Key::Fixed(Family::Ipv4)]));
            assert!(sync(&mut proxier).plan.is_empty());
            let listed = std::mem::take(&mut *chains.lock().unwrap());
            let of_nat: Vec<_> = listed.iter().filter(|(table, _)| *table == Table::Nat).collect();
            assert_eq!(of_nat.len(), expected, "{variant} {services} {listed:?}");
            assert!(listed.iter().any(|(table, _)| *table == Table::Filter));
            read.extend(of_nat.into_iter().copied());
        }
        assert_eq!(read.len(), 5, "{variant} {services} {read:?}");
        // `iptables -t nat -F` is noticed by the next reading, a removed jump by one of the next five.
        let flush = |chains: &[(Table, ChainName)]| {
            let edits = chains.iter().map(|(_, chain)| Edit::Flush { chain: *chain });
            let mut restore = Restore::new(Family::Ipv4);
            restore.table_mut(Table::Nat).extend(edits);
            restore
        };
        let all: Vec<_> = read.into_iter().collect();
        let prerouting = (Table::Nat, "PREROUTING".parse().unwrap());
        let nat = |proxier: &mut Proxier| saved(proxier, Family::Ipv4).table(Table::Nat).cloned();
        for (removed, readings) in [(flush(&all), 1), (flush(&[prerouting]), 5)] {
            let before = nat(&mut proxier);
            proxier.kernel_mut().rules.restore(&removed).unwrap();
            assert_ne!(nat(&mut proxier), before);
            for _ in 0..readings {
                assert!(proxier.recheck([Key::Fixed(Family::Ipv4)]));
                sync(&mut proxier);
            }
            assert_eq!(nat(&mut proxier), before, "{variant} {services}");
        }
    }
}
