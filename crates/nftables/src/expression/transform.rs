//! Expressions that compare or compute.

use crate::register::Register;
use crate::value::Value;
use crate::wire::{attributes, open_enum};

open_enum! {
    /// How a register is compared with a constant. The bytes are compared in order, so less and greater need a value in network byte
    /// order.
    CompareOperator: u32 {
        /// Equal.
        Equal = NFT_CMP_EQ "==",
        /// Not equal.
        NotEqual = NFT_CMP_NEQ "!=",
        /// Less than.
        Less = NFT_CMP_LT "<",
        /// Less than or equal.
        LessOrEqual = NFT_CMP_LTE "<=",
        /// Greater than.
        Greater = NFT_CMP_GT ">",
        /// Greater than or equal.
        GreaterOrEqual = NFT_CMP_GTE ">=",
    }
}

attributes! {
    /// `cmp`: the rule ends if the comparison is false.
    Compare {
        /// The first register.
        source: Register = NFTA_CMP_SREG,
        /// The comparison.
        operator: CompareOperator = NFTA_CMP_OP,
        /// The constant. Its length is the number of bytes that are compared.
        value: Value = NFTA_CMP_DATA,
    }
}

attributes! {
    /// `range`: the rule ends if the register is outside of the range, or inside of it with
    /// [`NotEqual`](CompareOperator::NotEqual).
    Range {
        /// The first register.
        source: Register = NFTA_RANGE_SREG,
        /// `Equal` or `NotEqual`.
        operator: CompareOperator = NFTA_RANGE_OP,
        /// The first value of the range.
        from: Value = NFTA_RANGE_FROM_DATA,
        /// The last value of the range.
        to: Value = NFTA_RANGE_TO_DATA,
    }
}

open_enum! {
    /// What is computed.
    BitwiseOperation: u32 {
        /// `(source & mask) ^ xor`.
        MaskXor = NFT_BITWISE_MASK_XOR "&^",
        /// `source << data`, of a value in the host's byte order.
        ShiftLeft = NFT_BITWISE_LSHIFT "<<",
        /// `source >> data`.
        ShiftRight = NFT_BITWISE_RSHIFT ">>",
        /// `source & second_source`, or `& data` (Linux 6.13).
        And = NFT_BITWISE_AND "&",
        /// `source | second_source`, or `| data` (Linux 6.13).
        Or = NFT_BITWISE_OR "|",
        /// `source ^ second_source`, or `^ data` (Linux 6.13).
        Xor = NFT_BITWISE_XOR "^",
    }
}

attributes! {
    /// `bitwise`: a computation with bits.
    Bitwise {
        /// The first register to read.
        source: Register = NFTA_BITWISE_SREG,
        /// The first register to write.
        destination: Register = NFTA_BITWISE_DREG,
        /// Number of bytes.
        length: u32 = NFTA_BITWISE_LEN,
        ;
        /// What is computed.
        with_operation operation: BitwiseOperation = NFTA_BITWISE_OP,
        /// The mask, for [`MaskXor`](BitwiseOperation::MaskXor).
        with_mask mask: Option<Value> = NFTA_BITWISE_MASK,
        /// The bits to invert after that.
        with_xor xor: Option<Value> = NFTA_BITWISE_XOR,
        /// The operand of the other operations: for a shift the number of bits, 4 bytes in the host's byte order.
        with_data data: Option<Value> = NFTA_BITWISE_DATA,
        /// The second operand of And, Or and Xor, if it is a register.
        with_second_source second_source: Option<Register> = NFTA_BITWISE_SREG2,
    }
}

impl Bitwise {
    /// `(register & mask) ^ xor`, in place.
    #[must_use]
    pub fn mask_xor(register: Register, mask: Value, xor: Value) -> Self {
        let length = mask.len() as u32;
        Bitwise::new(register, register, length)
            .with_mask(mask)
            .with_xor(xor)
    }
}

open_enum! {
    /// Which byte order is changed.
    ByteOrderOperation: u32 {
        /// From network byte order to the host's.
        ToHost = NFT_BYTEORDER_NTOH "ntoh",
        /// From the host's byte order to network byte order.
        ToNetwork = NFT_BYTEORDER_HTON "hton",
    }
}

attributes! {
    /// `byteorder`: changes the byte order of numbers.
    ByteOrder {
        /// The first register to read.
        source: Register = NFTA_BYTEORDER_SREG,
        /// The first register to write.
        destination: Register = NFTA_BYTEORDER_DREG,
        /// Which byte order is changed.
        operation: ByteOrderOperation = NFTA_BYTEORDER_OP,
        /// Number of bytes.
        length: u32 = NFTA_BYTEORDER_LEN,
        /// Length of each number: 2, 4 or 8 bytes.
        size: u32 = NFTA_BYTEORDER_SIZE,
    }
}
