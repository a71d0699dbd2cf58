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

use std::sync::{Arc, Mutex};

use kernlink_iptables_restore::{Client, Completion, Error, Invocation, Runner, Variant};
use kernlink_proxier::iptables_mode::Proxier;

use crate::iptables_node::{change_endpoints, deliver_numbered, kernel, proxier_on, sync};

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
fn proxier(tools: &Tools, variant: Option<Variant>, services: u8) -> Proxier {
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
