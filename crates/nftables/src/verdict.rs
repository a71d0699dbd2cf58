//! The `netfilter verdict` of a rule or an element.

use std::fmt;

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error};

use crate::uapi::{
    NF_ACCEPT, NF_DROP, NFT_BREAK, NFT_CONTINUE, NFT_GOTO, NFT_JUMP, NFT_RETURN, NFTA_DATA_VALUE,
    NFTA_DATA_VERDICT, NFTA_VERDICT_CHAIN, NFTA_VERDICT_CODE,
};
use crate::value::Value;
use crate::wire::{Field, MISSING, UNKNOWN, text};

/// What happens to a packet: a `netfilter verdict`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// The base chain ends; the packet continues at the next one of the hook.
    Accept,
    /// The packet is dropped at once.
    Drop,
    /// The next rule is evaluated; the default.
    Continue,
    /// The rest of this rule is not evaluated.
    Break,
    /// The chain ends; evaluation continues after the rule that jumped to it, or with the policy of a base chain.
    Return,
    /// Evaluates a chain, then the next rule.
    Jump(Box<str>),
    /// Evaluates a chain instead of the rest of this one.
    Goto(Box<str>),
    /// Another code.
    Unknown(i32),
}

impl Verdict {
    /// [`Verdict::Jump`].
    #[must_use]
    pub fn jump(chain: impl Into<Box<str>>) -> Self {
        Verdict::Jump(chain.into())
    }

    /// [`Verdict::Goto`].
    #[must_use]
    pub fn goto(chain: impl Into<Box<str>>) -> Self {
        Verdict::Goto(chain.into())
    }

    /// The chain of a jump or goto.
    #[must_use]
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// The code in the kernel.
    #[must_use]
    pub fn code(&self) -> i32 {
        match self {
            Verdict::Accept => NF_ACCEPT,
            Verdict::Drop => NF_DROP,
            Verdict::Continue => NFT_CONTINUE,
            Verdict::Break => NFT_BREAK,
            Verdict::Return => NFT_RETURN,
            Verdict::Jump(_) => NFT_JUMP,
            Verdict::Goto(_) => NFT_GOTO,
            Verdict::Unknown(code) => *code,
        }
    }

    pub(crate) fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error> {
        let (mut code, mut chain) = (None, None);
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_VERDICT_CODE => code = Some(attribute.be_u32()? as i32),
                NFTA_VERDICT_CHAIN => chain = Some(text(&attribute)),
                _ => return Err(UNKNOWN),
            }
        }
        match (code.ok_or(MISSING)?, chain) {
            (NF_ACCEPT, None) => Ok(Verdict::Accept),
            (NF_DROP, None) => Ok(Verdict::Drop),
            (NFT_CONTINUE, None) => Ok(Verdict::Continue),
            (NFT_BREAK, None) => Ok(Verdict::Break),
            (NFT_RETURN, None) => Ok(Verdict::Return),
            (NFT_JUMP, Some(chain)) => Ok(Verdict::Jump(chain)),
            (NFT_GOTO, Some(chain)) => Ok(Verdict::Goto(chain)),
            (NFT_JUMP | NFT_GOTO, None) => Err(MISSING),
            (code, None) => Ok(Verdict::Unknown(code)),
            (_, Some(_)) => Err(UNKNOWN),
        }
    }
}

/// As `nft` prints it: `accept`, `jump name`.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Break => f.write_str("break"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Unknown(code) => write!(f, "{code}"),
        }
    }
}

/// What an expression or an element of a map loads: a value, or a `netfilter verdict`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Data {
    /// A value.
    Value(Value),
    /// A `netfilter verdict`.
    Verdict(Verdict),
}

impl From<Value> for Data {
    fn from(value: Value) -> Self {
        Data::Value(value)
    }
}

impl From<Verdict> for Data {
    fn from(verdict: Verdict) -> Self {
        Data::Verdict(verdict)
    }
}

impl Field for Data {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        match self {
            Data::Value(value) => value.write(writer, kind),
            Data::Verdict(verdict) => {
                writer.nested(kind, |writer| {
                    writer.nested(NFTA_DATA_VERDICT, |writer| {
                        writer.be_u32(NFTA_VERDICT_CODE, verdict.code() as u32);
                        if let Some(chain) = verdict.chain() {
                            writer.string(NFTA_VERDICT_CHAIN, chain);
                        }
                    });
                });
            }
        }
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        for attribute in attribute.nested() {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_DATA_VALUE => return Ok(Data::Value(Value::new(attribute.bytes()))),
                NFTA_DATA_VERDICT => return Verdict::decode(attribute.nested()).map(Data::Verdict),
                _ => {}
            }
        }
        Err(MISSING)
    }
}
