//! What other programs removed or changed in the kernel, at random, is restored by one sync that reads the kernel.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/host.rs"]
mod host;
mod support;

use kernlink_dummylink::Selection;
use kernlink_iptables_restore::{Edit, Family as TablesFamily, Restore, Save};
use kernlink_ipvs::Weight;
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::host::{config, foreign_servers, host, now, state};
use crate::support::clusters::{Step, apply, step};

/// A proxier with these steps, before its first sync.
fn proxier(kernel: Kernel, steps: &[Step]) -> Proxier {
    let mut proxier = Proxier::new(&config(), kernel).unwrap();
    apply(&mut proxier, steps);
    proxier
}

/// A change by another program, of one of the owned objects of its kind.
#[derive(Clone, Debug)]
enum Damage {
    DeleteVirtualServer(Index),
    DeleteRealServer(Index),
    /// Sets the weight; 0 as if a predecessor had ended while the real server drained.
    Weight(Index, u16),
    DeleteEntry(Index),
    FlushSet(Index),
    DeleteAddress(Index),
    DeleteLink,
    FlushChain(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        3 => any::<Index>().prop_map(Damage::DeleteVirtualServer),
        3 => any::<Index>().prop_map(Damage::DeleteRealServer),
        3 => (any::<Index>(), 0..3_u16).prop_map(|(index, weight)| Damage::Weight(index, weight)),
        3 => any::<Index>().prop_map(Damage::DeleteEntry),
        1 => any::<Index>().prop_map(Damage::FlushSet),
        3 => any::<Index>().prop_map(Damage::DeleteAddress),
        1 => Just(Damage::DeleteLink),
        3 => any::<Index>().prop_map(Damage::FlushChain),
    ]
}

/// An element, unless there is none.
fn choose<T>(mut from: Vec<T>, index: &Index) -> Option<T> {
    let position = (!from.is_empty()).then(|| index.index(from.len()))?;
    Some(from.swap_remove(position))
}

impl Damage {
    fn apply(&self, kernel: &mut Kernel) {
        let is_owned_set = |name: &str| name.starts_with("KUBE-");
        let mut servers = kernel.ipvs.list_all().unwrap();
        servers.retain(|(server, _)| !foreign_servers().contains(&server.key));
        let real_servers = servers.iter().flat_map(|(server, real_servers)| {
            let key = server.key;
            real_servers
                .iter()
                .map(move |real_server| (key, real_server.clone()))
        });
        let real_servers: Vec<_> = real_servers.collect();
        let mut sets = kernel.sets.list().unwrap();
        sets.retain(|set| is_owned_set(&set.header.set.name.to_string()));
        let link = "kube-ipvs0".parse().unwrap();
        match self {
            Damage::DeleteVirtualServer(index) => {
                if let Some((server, _)) = choose(servers, index) {
                    kernel.ipvs.delete_virtual_server(&server.key).unwrap();
                }
            }
            Damage::DeleteRealServer(index) => {
                if let Some((server, real_server)) = choose(real_servers, index) {
                    kernel.ipvs.delete_real_server(&server, &real_server.key).unwrap();
                }
            }
            Damage::Weight(index, weight) => {
                if let Some((server, real_server)) = choose(real_servers, index) {
                    let weight = Weight::new(u32::from(*weight)).unwrap();
                    kernel.ipvs.set_weight(&server, &real_server.key, weight).unwrap();
                }
            }
            Damage::DeleteEntry(index) => {
                let entries = sets.into_iter().flat_map(|set| {
                    let name = set.header.set.name;
                    set.entries.into_iter().map(move |entry| (name, entry))
                });
                if let Some((set, entry)) = choose(entries.collect(), index) {
                    kernel.sets.delete(&set, &entry).unwrap();
                }
            }
            Damage::FlushSet(index) => {
                if let Some(set) = choose(sets, index) {
                    kernel.sets.flush(&set.header.set.name).unwrap();
                }
            }
            Damage::DeleteAddress(index) => {
                // The link may be gone.
                let addresses = kernel.links.list(Selection::On(link)).unwrap_or_default();
                if let Some(address) = choose(addresses, index) {
                    kernel.links.delete(&link, &address.address.key).unwrap();
                }
            }
            Damage::DeleteLink => _ = kernel.links.delete_link(&link),
            Damage::FlushChain(index) => {
                let mut chains = Vec::new();
                for family in TablesFamily::ALL {
                    let rules = kernel.rules.save(&Save::all(family)).unwrap();
                    for (table, of_table) in rules.tables() {
                        let owned = of_table.chains().filter(|(name, _)| is_owned_set(name.as_str()));
                        chains.extend(owned.map(|(name, _)| (family, table, *name)));
                    }
                }
                if let Some((family, table, chain)) = choose(chains, index) {
                    let flush = Restore::new(family).with(table, Edit::declare(chain));
                    kernel.rules.restore(&flush).unwrap();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn damage_by_other_programs_is_repaired_by_one_sync(
        steps in vec(step(), 0..25),
        damage in vec(damage(), 1..8),
        is_restarted in any::<bool>(),
    ) {
        let mut proxier = proxier(host(), &steps);
        proxier.sync(now()).unwrap();
        let undamaged = state(proxier.kernel_mut());
        for damage in &damage {
            damage.apply(proxier.kernel_mut());
        }
        if is_restarted {
            proxier = self::proxier(proxier.into_kernel(), &steps);
        }
        proxier.resync();
        let synced = proxier.sync(now()).unwrap();
        prop_assert!(synced.is_success(), "{}", synced);
        prop_assert_eq!(state(proxier.kernel_mut()), undamaged);
    }
}
