//! Socket filters: BPF programs that the kernel runs on each datagram before it is queued.

use crate::Error;

/// One instruction of a socket filter in classic BPF (`struct sock_filter`,
/// [`filter.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/filter.h)).
#[doc(alias = "sock_filter")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FilterInstruction {
    /// Operation code: class, size and mode
    /// ([`bpf_common.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf_common.h)).
    pub code: u16,
    /// In a conditional jump, the number of instructions to skip if the condition is true; otherwise 0.
    pub jump_true: u8,
    /// In a conditional jump, the number of instructions to skip if the condition is false; otherwise 0.
    pub jump_false: u8,
    /// Operand: a constant, an offset, or the number of instructions that an unconditional jump skips.
    pub operand: u32,
}

impl FilterInstruction {
    /// An instruction that is not a conditional jump.
    #[must_use]
    pub fn new(code: u16, operand: u32) -> Self {
        FilterInstruction {
            code,
            jump_true: 0,
            jump_false: 0,
            operand,
        }
    }
}

/// The largest number of instructions in a socket filter
/// ([`BPF_MAXINSNS`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf_common.h)).
#[doc(alias = "BPF_MAXINSNS")]
pub const MAX_FILTER_INSTRUCTIONS: usize = 4096;

/// Converts the program for `socket2` after checking its length, which `socket2` casts to 16 bits.
pub(crate) fn checked(program: &[FilterInstruction]) -> Result<Vec<socket2::SockFilter>, Error> {
    if program.is_empty() || program.len() > MAX_FILTER_INSTRUCTIONS {
        return Err(Error::FilterLength {
            instructions: program.len(),
        });
    }
    Ok(program
        .iter()
        .map(|instruction| {
            let FilterInstruction {
                code,
                jump_true,
                jump_false,
                operand,
            } = *instruction;
            socket2::SockFilter::new(code, jump_true, jump_false, operand)
        })
        .collect())
}
