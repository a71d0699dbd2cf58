//! Registers.

use std::fmt;

use kernlink_netlink::{Attribute, AttributeWriter, Error};

use crate::uapi::{NFT_REG_1, NFT_REG_4, NFT_REG_VERDICT, NFT_REG32_00};
use crate::wire::Field;

/// A register of the rule that is evaluated. There are sixteen of 4 bytes for data, which are adjacent: a longer value occupies the
/// following ones too. Registers do not keep their values from one rule to the next.
///
/// The kernel also has names for four registers of 16 bytes, which are the same memory. They are read as the first register of 4 bytes in
/// them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(u32);

/// Number of registers of 4 bytes.
const COUNT: u32 = 16;

impl Register {
    /// The register with the `netfilter verdict`.
    pub const VERDICT: Register = Register(NFT_REG_VERDICT);

    /// The data register with this index, which must be 0 to 15. The kernel refuses others with `ERANGE`.
    #[must_use]
    pub const fn data(index: u32) -> Self {
        Register(NFT_REG32_00.saturating_add(index))
    }

    /// A register by its number in the kernel.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            NFT_REG_1..=NFT_REG_4 => Register(NFT_REG32_00 + 4 * (number - NFT_REG_1)),
            number => Register(number),
        }
    }

    /// The number in the kernel (`NFT_REG32_00` and following, or `NFT_REG_VERDICT`).
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The index of a data register; `None` for the register of the `netfilter verdict`, and for numbers that the kernel
    /// does not have.
    #[must_use]
    pub const fn index(self) -> Option<u32> {
        match self.0.checked_sub(NFT_REG32_00) {
            Some(index) if index < COUNT => Some(index),
            _ => None,
        }
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As `nft --debug=netlink` prints it: `reg 8`.
impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reg {}", self.0)
    }
}

impl Field for Register {
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        self.0.write(writer, kind);
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        u32::read(attribute).map(Register::from_number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_of_16_bytes_is_read_as_its_first_register_of_4_bytes() {
        assert_eq!(Register::from_number(1), Register::data(0));
        assert_eq!(Register::from_number(4), Register::data(12));
        assert_eq!(Register::from_number(0), Register::VERDICT);
        assert_eq!(Register::data(15).index(), Some(15));
        assert_eq!(Register::data(16).index(), None);
        assert_eq!(Register::VERDICT.index(), None);
    }
}
