//! Rules.

use std::fmt;

use crate::chain::ChainKey;
use crate::expression::Expression;
use crate::user_data::{self, UserData};

/// A rule: chain and handle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct RuleKey {
    /// The chain.
    pub chain: ChainKey,
    /// The kernel's number of the rule, unique in the table.
    pub handle: u64,
}

impl RuleKey {
    /// The rule with this handle.
    #[must_use]
    pub fn new(chain: ChainKey, handle: u64) -> Self {
        RuleKey { chain, handle }
    }
}

/// As in `nft` commands: `ip filter input handle 4`.
impl fmt::Display for RuleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} handle {}", self.chain, self.handle)
    }
}

/// Protocol and inversion of a rule that iptables wrote, for its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleCompat {
    /// The protocol of the transport layer.
    pub protocol: u32,
    /// 2 (`NFT_RULE_COMPAT_F_INV`): every other protocol.
    pub flags: u32,
}

impl RuleCompat {
    /// Rules for this protocol.
    #[must_use]
    pub fn new(protocol: u32, flags: u32) -> Self {
        RuleCompat { protocol, flags }
    }
}

/// A rule: expressions that are evaluated in order until one of them ends the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rule {
    /// The chain.
    pub chain: ChainKey,
    /// The expressions.
    pub expressions: Vec<Expression>,
    /// User data, at most 256 bytes.
    pub user_data: UserData,
    /// For rules of iptables.
    pub compat: Option<RuleCompat>,
    /// The handle of the rule after which an added rule is placed, or before which an inserted one is. When read: that of the rule before.
    pub position: Option<u64>,
    /// A number by which a later rule of the same transaction is placed relative to this one; not read.
    pub id: Option<u32>,
    /// The number of an earlier rule of the same transaction and chain, which is taken instead of `position`. A command of `nft` cannot say
    /// this.
    pub position_id: Option<u32>,
    /// The kernel's number of the rule; only read.
    pub handle: Option<u64>,
}

impl Rule {
    /// A rule of these expressions.
    #[must_use]
    pub fn new(chain: ChainKey, expressions: Vec<Expression>) -> Self {
        Rule {
            chain,
            expressions,
            user_data: UserData::new(),
            compat: None,
            position: None,
            id: None,
            position_id: None,
            handle: None,
        }
    }

    /// Sets the number by which later rules of the same transaction are placed relative to this one.
    #[must_use]
    pub fn with_id(mut self, id: u32) -> Self {
        self.id = Some(id);
        self
    }

    /// Places the rule after the earlier rule of the same transaction that has this number, or before it if it is inserted.
    #[must_use]
    pub fn with_position_id(mut self, id: u32) -> Self {
        self.position_id = Some(id);
        self
    }

    /// Sets `position`.
    #[must_use]
    pub fn with_position(mut self, handle: u64) -> Self {
        self.position = Some(handle);
        self
    }

    /// Adds a comment, of at most 128 bytes for `nft`. One of more than 254 bytes is not added.
    #[must_use]
    pub fn with_comment(mut self, comment: &str) -> Self {
        self.user_data.push_text(user_data::COMMENT, comment);
        self
    }

    /// The comment.
    #[must_use]
    pub fn comment(&self) -> Option<&str> {
        self.user_data.text(user_data::COMMENT)
    }

    /// The key; `None` for a rule that was not read.
    #[must_use]
    pub fn key(&self) -> Option<RuleKey> {
        Some(RuleKey::new(self.chain.clone(), self.handle?))
    }

    /// What was configured, without handle and position, and with counters of 0.
    #[must_use]
    pub fn configuration(mut self) -> Self {
        self.handle = None;
        self.position = None;
        self.id = None;
        self.position_id = None;
        for expression in &mut self.expressions {
            expression.reset();
        }
        self
    }
}

impl Expression {
    /// Sets what the kernel counts to 0.
    fn reset(&mut self) {
        match self {
            Expression::Counter(counter) => {
                counter.bytes = 0;
                counter.packets = 0;
            }
            Expression::Quota(quota) => {
                quota.consumed = 0;
                quota.flags.remove(crate::QuotaFlags::DEPLETED);
            }
            Expression::Last(last) => {
                last.set = 0;
                last.milliseconds = 0;
            }
            _ => {}
        }
    }
}
