//! Session affinity: the rules that remember the endpoint of a client.

use std::time::Duration;

use kernlink_nftables::{
    ByteOrder, ByteOrderOperation, Compare, CompareOperator, Dynset, DynsetOperation, Register, Value,
};

use super::builder::Builder;
use super::choices::Variant;
use crate::class;
use crate::layout::SetName;
use crate::timeouts;

/// The chain that leads to the rule for the timeout of a service port with session affinity.
const RENEWAL: &str = "affinity-renewal";

/// The number of timeouts whose rules are in one chain.
const RENEWALS: usize = 9;

impl Builder<'_> {
    /// The rules for service ports with session affinity. A client whose endpoint is gone is forgotten, then one that is not known gets an
    /// endpoint, then the entry is renewed and the packet is translated. If the map is full the packet is balanced without an entry.
    pub(super) fn affinity(&mut self) {
        let (endpoint, pool) = (self.after_key(), self.pool());
        let clients = SetName::AffinityClients;
        self.renewals();
        for variant in Variant::ALL {
            let prefix = variant.prefix();
            let forget = format!("{prefix}affinity-forget");
            self.chain(forget.clone());
            let mut rule = self.find_client();
            rule.extend(self.find_endpoint(clients, pool));
            rule.push(self.port(endpoint - 1));
            rule.push(Self::lookup_missing(variant.members(), 0));
            rule.push(
                // The kernel requires a value, and does not use it.
                Dynset::new(clients.text(), DynsetOperation::Delete, Register::data(pool))
                    .with_data(Register::data(endpoint - 1))
                    .into(),
            );
            let comment = format!("unless the endpoint is in @{}", variant.members());
            self.rule_of_client(forget.clone(), rule, &comment);
            for bits in class::all_with_affinity() {
                let choose = format!("{prefix}affinity-try-{bits}");
                self.chain(choose.clone());
                // A lookup in a map for a key that is missing requires Linux 6.5.
                let mut known = self.find_client();
                known.extend(self.find_endpoint(clients, pool));
                known.push(Self::goto(RENEWAL));
                self.rule_of_client(choose.clone(), known, "if there is an endpoint");
                let mut rule = self.find_client();
                rule.push(Self::random(endpoint, bits));
                if self.address > 1 {
                    rule.push(Self::zero(endpoint + 1, self.address_length() - 4));
                }
                rule.extend([
                    Self::zero(endpoint + self.address, 2),
                    Self::value_of(variant.affinity_endpoints(), 0, endpoint - 1),
                    self.port(endpoint - 1),
                    Dynset::new(clients.text(), DynsetOperation::Add, Register::data(pool))
                        .with_data(Register::data(endpoint - 1))
                        .into(),
                ]);
                let comment = format!("the endpoint from @{}", variant.affinity_endpoints());
                self.rule_of_client(choose.clone(), rule, &comment);
                let affinity = format!("{prefix}affinity-{bits}");
                self.rule(affinity.clone(), vec![Self::jump(forget.clone())]);
                for _ in 0..class::tries(bits, class::AFFINITY_TRIES) {
                    self.rule(affinity.clone(), vec![Self::jump(choose.clone())]);
                }
                if let Some(fewer) = bits.checked_sub(class::AFFINITY_STEP) {
                    for next in [fewer, 0] {
                        let next = format!("{prefix}affinity-try-{next}");
                        self.rule(affinity.clone(), vec![Self::jump(next)]);
                    }
                }
                self.rule(affinity.clone(), vec![Self::jump(RENEWAL)]);
                self.rule(
                    affinity.clone(),
                    vec![Self::goto(format!("{prefix}balance-{bits}"))],
                );
            }
        }
    }

    /// The rules that renew the entry of a client, and translate the destination. The timeout of an entry is a part of the rule that writes it, so there is
    /// one for each timeout; that of the default is the first one, and comparisons lead to the others.
    fn renewals(&mut self) {
        self.chain(RENEWAL);
        self.renewal(RENEWAL, timeouts::DEFAULT);
        let timeout = Register::data(self.pool() - 1);
        for (number, group) in (1..).zip(timeouts::ALL.chunks(RENEWALS)) {
            let chain = format!("{RENEWAL}-{number}");
            self.chain(chain.clone());
            for timeout in group.iter().filter(|timeout| **timeout != timeouts::DEFAULT) {
                self.renewal(&chain, *timeout);
            }
            let mut rule = self.find_timeout();
            let last = group.last().copied().unwrap_or_default();
            rule.extend([
                ByteOrder::new(timeout, timeout, ByteOrderOperation::ToNetwork, 4_u32, 4_u32).into(),
                Compare::new(
                    timeout,
                    CompareOperator::LessOrEqual,
                    Value::new(&last.to_be_bytes()),
                )
                .into(),
                Self::goto(chain),
            ]);
            self.rule(RENEWAL, rule);
        }
    }

    /// The rule for clients of Services with this timeout in seconds.
    fn renewal(&mut self, chain: &str, timeout: u32) {
        let (endpoint, pool) = (self.after_key(), self.pool());
        let clients = SetName::AffinityClients;
        let mut rule = self.find_client();
        rule.extend([Compare::new(
            Register::data(pool - 1),
            CompareOperator::Equal,
            Value::host_u32(timeout),
        )
        .into()]);
        rule.extend(self.find_endpoint(clients, pool));
        rule.extend([
            self.port(endpoint - 1),
            Dynset::new(clients.text(), DynsetOperation::Update, Register::data(pool))
                .with_data(Register::data(endpoint - 1))
                .with_timeout(Duration::from_secs(u64::from(timeout)))
                .into(),
            self.translate(endpoint),
        ]);
        self.rule_of_client(chain, rule, &format!("the timeout is {timeout} s"));
    }
}
