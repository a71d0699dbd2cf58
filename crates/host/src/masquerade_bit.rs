//! The bit of the packet mark that requests masquerading.

use std::fmt;

/// A bit of the packet mark, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasqueradeBit(u8);

impl MasqueradeBit {
    /// The bit with this number.
    ///
    /// # Errors
    /// [`InvalidMasqueradeBit`] for numbers above 31: a packet mark has 32 bits.
    pub fn new(bit: u8) -> Result<Self, InvalidMasqueradeBit> {
        if bit < 32 {
            Ok(Self(bit))
        } else {
            Err(InvalidMasqueradeBit { bit })
        }
    }

    /// The mark with only this bit set.
    #[must_use]
    pub fn mark(self) -> u32 {
        1 << self.0
    }
}

impl Default for MasqueradeBit {
    /// Bit 14, as in kube-proxy.
    fn default() -> Self {
        Self(14)
    }
}

impl fmt::Display for MasqueradeBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a bit that a packet mark does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid masquerade bit {bit}; valid: 0 to 31")]
pub struct InvalidMasqueradeBit {
    /// The number.
    pub bit: u8,
}
