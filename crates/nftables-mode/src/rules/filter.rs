//! The chains that refuse packets: by source, for want of endpoints, and to cluster IPs.

use kernlink_nftables::{Bitwise, Immediate, Register, Value, Verdict};

use super::builder::Builder;
use super::{CHECK_ENDPOINTS, CHECK_SERVICES, LOOKUPS, RESTRICTIONS};
use crate::layout::SetName;
use crate::ranges;

impl Builder<'_> {
    /// The chains that look for the source of a packet in the ranges of a frontend.
    pub(super) fn firewall(&mut self) {
        let value = self.after_key();
        let bits = u8::try_from(self.address_length() * 8).unwrap_or(u8::MAX);
        let mut dispatch = Vec::new();
        for group in ranges::groups(self.parameters.family) {
            let chain = format!("source-ranges-{group}");
            self.chain(chain.clone());
            for length in ranges::lengths(group) {
                let mut rule = self.key();
                rule.push(Immediate::new(Register::data(value), Value::host_u32(u32::from(length))).into());
                rule.push(self.source(value + 1));
                if length < bits {
                    let mask = ranges::mask(self.parameters.family, length);
                    let zero = Value::new(&vec![0; mask.len()]);
                    rule.push(Bitwise::mask_xor(Register::data(value + 1), mask, zero).into());
                }
                rule.push(Self::lookup(SetName::AllowedSources, 0));
                rule.push(Self::verdict(Verdict::Accept));
                self.rule(chain.clone(), rule);
            }
            let mut rule = self.key();
            rule.push(Self::value_of(SetName::RestrictedFrontends, 0, value));
            rule.extend(Self::has_bits(value, 1 << group));
            rule.push(Self::jump(chain));
            dispatch.push(rule);
        }
        self.chain("source-ranges");
        for _ in 0..LOOKUPS {
            for rule in &dispatch {
                self.rule("source-ranges", rule.clone());
            }
        }
        self.rule("source-ranges", vec![Self::verdict(Verdict::Drop)]);
        self.chain(RESTRICTIONS);
        for _ in 0..LOOKUPS {
            let mut rule = self.has_value(SetName::RestrictedFrontends, Value::host_u32(0));
            rule.push(Self::goto("source-ranges"));
            self.rule(RESTRICTIONS, rule);
        }
    }

    /// The chains that refuse connections, after destination addresses were translated.
    pub(super) fn checks(&mut self) {
        self.chain(CHECK_ENDPOINTS);
        let mut rule = self.key();
        rule.push(Self::lookup(SetName::NoEndpoints, 0));
        rule.push(self.reject());
        self.rule(CHECK_ENDPOINTS, rule);
        let mut rule = self.key();
        rule.push(Self::lookup(SetName::NoLocalEndpoints, 0));
        rule.push(Self::verdict(Verdict::Drop));
        self.rule(CHECK_ENDPOINTS, rule);
        self.chain(CHECK_SERVICES);
        self.rule(CHECK_SERVICES, vec![Self::jump(CHECK_ENDPOINTS)]);
        let rule = vec![
            self.destination(0),
            Self::lookup(SetName::ClusterIps, 0),
            self.reject(),
        ];
        self.rule(CHECK_SERVICES, rule);
        let rule = vec![
            self.destination(0),
            Self::lookup(SetName::ServiceCidrs, 0),
            Self::verdict(Verdict::Drop),
        ];
        self.rule(CHECK_SERVICES, rule);
    }
}
