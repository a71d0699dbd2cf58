//! The base chains, and the chains from a frontend to the choice of an endpoint.

use kernlink_nftables::{
    BaseChain, Bitwise, Chain, ChainType, CompareOperator, Expression, Hook, Masquerade, Meta, MetaKey,
    MetaSet, NatFlags, Register, Value,
};

use super::builder::Builder;
use super::{CHECK_ENDPOINTS, CHECK_SERVICES, LOOKUPS, RESTRICTIONS};
use crate::layout::SetName;

/// The base chains: name, type, hook and priority.
const BASE_CHAINS: [(&str, ChainType, Hook, i32); 8] = [
    (
        "filter-prerouting-pre-dnat",
        ChainType::Filter,
        Hook::Prerouting,
        BaseChain::DSTNAT - 10,
    ),
    (
        "filter-output-pre-dnat",
        ChainType::Filter,
        Hook::Output,
        BaseChain::DSTNAT - 10,
    ),
    ("filter-input", ChainType::Filter, Hook::Input, BaseChain::FILTER),
    (
        "filter-forward",
        ChainType::Filter,
        Hook::Forward,
        BaseChain::FILTER,
    ),
    (
        "filter-output",
        ChainType::Filter,
        Hook::Output,
        BaseChain::FILTER,
    ),
    (
        "nat-prerouting",
        ChainType::Nat,
        Hook::Prerouting,
        BaseChain::DSTNAT,
    ),
    ("nat-output", ChainType::Nat, Hook::Output, BaseChain::DSTNAT),
    (
        "nat-postrouting",
        ChainType::Nat,
        Hook::Postrouting,
        BaseChain::SRCNAT,
    ),
];

impl Builder<'_> {
    /// The chains from a frontend to its class.
    pub(super) fn kinds(&mut self) {
        self.chain("local-traffic");
        if let Some(mut rule) = self.is_from_pods(CompareOperator::Equal) {
            rule.push(Self::goto("short-sizes"));
            self.rule("local-traffic", rule);
        }
        let mut rule: Vec<Expression> = Self::is_from_node().into();
        rule.extend(self.set_mark());
        rule.push(Self::goto("short-sizes"));
        self.rule("local-traffic", rule);
        self.rule("local-traffic", vec![Self::goto("sizes")]);
        self.chain("external-traffic");
        let mut rule = self.is_in(SetName::LocalFrontends);
        rule.push(Self::goto("local-traffic"));
        self.rule("external-traffic", rule);
        let rule = self.set_mark();
        self.rule("external-traffic", rule);
        self.rule("external-traffic", vec![Self::goto("sizes")]);
        self.chain("services");
        let mut rule = self.is_in(SetName::ExternalFrontends);
        rule.push(Self::goto("external-traffic"));
        self.rule("services", rule);
        let marked = if self.parameters.masquerade_all {
            Some(Vec::new())
        } else {
            self.is_from_pods(CompareOperator::NotEqual)
        };
        if let Some(mut rule) = marked {
            rule.extend(self.set_mark());
            self.rule("services", rule);
        }
        self.rule("services", vec![Self::goto("sizes")]);
    }

    /// The base chains.
    pub(super) fn hooks(&mut self) {
        for (name, chain_type, hook, priority) in BASE_CHAINS {
            let chain = Chain::new(self.table.chain(name));
            let chain = chain.with_base(BaseChain::new(chain_type, hook, priority));
            self.part.chains.push(chain);
        }
        for chain in ["filter-prerouting-pre-dnat", "filter-output-pre-dnat"] {
            let mut rule = Self::is_new();
            rule.push(Self::jump(RESTRICTIONS));
            self.rule(chain, rule);
        }
        for (chain, to) in [
            ("filter-input", CHECK_ENDPOINTS),
            ("filter-forward", CHECK_SERVICES),
            ("filter-output", CHECK_SERVICES),
        ] {
            // A translated packet is to an endpoint, which is not expected to be a frontend.
            let mut rule = Self::is_new();
            rule.extend(Self::is_translated(false));
            rule.push(Self::jump(to));
            self.rule(chain, rule);
        }
        for chain in ["nat-prerouting", "nat-output"] {
            for _ in 0..LOOKUPS {
                // 0 is a value: of a frontend with policy `Local` without an endpoint of this node, at which pods and the node use all endpoints.
                let mut rule = self.has_value(SetName::Frontends, Value::port(u16::MAX));
                rule.push(Self::jump("services"));
                self.rule(chain, rule);
            }
        }
        self.postrouting();
    }

    fn postrouting(&mut self) {
        let (register, mark) = (Register::data(0), self.parameters.mark);
        let masquerade: Expression = Masquerade::new().with_flags(NatFlags::FULLY_RANDOM).into();
        let mut marked: Vec<Expression> = vec![Meta::new(MetaKey::Mark, register).into()];
        marked.extend(Self::has_bits(0, mark));
        marked.extend([
            Meta::new(MetaKey::Mark, register).into(),
            Bitwise::mask_xor(register, Value::host_u32(!mark), Value::host_u32(0)).into(),
            MetaSet::new(MetaKey::Mark, register).into(),
            masquerade.clone(),
        ]);
        self.rule("nat-postrouting", marked);
        let mut hairpin = Self::is_translated(true);
        hairpin.push(self.source(0));
        hairpin.push(self.destination(self.address));
        hairpin.extend(self.protocol_and_port(self.address * 2));
        hairpin.push(Self::lookup(SetName::HairpinEndpoints, 0));
        hairpin.push(masquerade);
        self.rule("nat-postrouting", hairpin);
    }
}
