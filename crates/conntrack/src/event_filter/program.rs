//! Instructions of a socket filter.

use ipnet::IpNet;
use kernlink_netlink::{FilterInstruction, netfilter};

use crate::error::InvalidOperation;
use crate::filter::Filter;
use crate::uapi::*;
use crate::wire;

// Operation codes, of `linux/bpf_common.h` and `linux/filter.h`.
const LD_W_ABS: u16 = 0x20;
pub(super) const LD_B_ABS: u16 = 0x30;
const LD_W_IND: u16 = 0x40;
const LD_B_IND: u16 = 0x50;
const LD_IMM: u16 = 0x00;
const LD_MEM: u16 = 0x60;
const LDX_IMM: u16 = 0x01;
const LDX_MEM: u16 = 0x61;
const ST: u16 = 0x02;
const AND_K: u16 = 0x54;
const JEQ_K: u16 = 0x15;
pub(super) const RET_K: u16 = 0x06;
const TAX: u16 = 0x07;

/// `SKF_AD_OFF`, -0x1000, below which the offsets are extensions.
const SKF_AD_OFF: u32 = 0xffff_f000;
const SKF_AD_NLATTR: u32 = SKF_AD_OFF + 12;
const SKF_AD_NLATTR_NEST: u32 = SKF_AD_OFF + 16;

pub(super) const ACCEPT: u32 = u32::MAX;
pub(super) const DROP: u32 = 0;

/// Length of `struct nlmsghdr` and of `struct nlattr`, in bytes.
const NLMSG_HDRLEN: u32 = 16;
const NLA_HDRLEN: u32 = 4;

/// Offset of the byte of `nlmsg_type` with the subsystem. `nlmsg_type` is in host byte order.
pub(super) const SUBSYSTEM: u32 = if cfg!(target_endian = "little") { 5 } else { 4 };
/// `nfgen_family`.
const FAMILY: u32 = NLMSG_HDRLEN;
const ATTRIBUTES: u32 = NLMSG_HDRLEN + netfilter::HEADER_LENGTH as u32;

// Cells of the program's memory: offsets of attributes, and the protocol's number.
const TUPLE: u32 = 0;
const ADDRESSES: u32 = 1;
const SOURCE: u32 = 2;
const DESTINATION: u32 = 3;
const PROTOCOL: u32 = 4;

#[derive(Default)]
pub(super) struct Program {
    pub(super) instructions: Vec<FilterInstruction>,
}

impl Program {
    pub(super) fn load(&mut self, code: u16, operand: u32) {
        self.instructions.push(FilterInstruction::new(code, operand));
    }

    fn jump(&mut self, value: u32, jump_true: u8, jump_false: u8) {
        self.instructions.push(FilterInstruction {
            code: JEQ_K,
            jump_true,
            jump_false,
            operand: value,
        });
    }

    pub(super) fn accept_unless_equal(&mut self, value: u32) {
        self.jump(value, 1, 0);
        self.load(RET_K, ACCEPT);
    }

    /// Accepts if A is 0, the result for a missing attribute.
    fn accept_if_missing(&mut self) {
        self.jump(0, 0, 1);
        self.load(RET_K, ACCEPT);
    }

    pub(super) fn find_tuple(&mut self) {
        self.load(LDX_IMM, u32::from(CTA_TUPLE_ORIG));
        self.load(LD_IMM, ATTRIBUTES);
        self.load(LD_W_ABS, SKF_AD_NLATTR);
        self.accept_if_missing();
        self.load(ST, TUPLE);
    }

    pub(super) fn find_addresses(&mut self) {
        self.load(LDX_IMM, u32::from(CTA_TUPLE_IP));
        self.load(LD_MEM, TUPLE);
        self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
        self.accept_if_missing();
        self.load(ST, ADDRESSES);
        for (ipv4, ipv6, cell) in [
            (CTA_IP_V4_SRC, CTA_IP_V6_SRC, SOURCE),
            (CTA_IP_V4_DST, CTA_IP_V6_DST, DESTINATION),
        ] {
            self.load(LDX_IMM, u32::from(ipv4));
            self.load(LD_MEM, ADDRESSES);
            self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
            self.jump(0, 0, 5);
            self.load(LDX_IMM, u32::from(ipv6));
            self.load(LD_MEM, ADDRESSES);
            self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
            self.accept_if_missing();
            self.load(ST, cell);
        }
    }

    pub(super) fn find_protocol(&mut self) {
        self.load(LDX_IMM, u32::from(CTA_TUPLE_PROTO));
        self.load(LD_MEM, TUPLE);
        self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
        self.accept_if_missing();
        self.load(LDX_IMM, u32::from(CTA_PROTO_NUM));
        self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
        self.accept_if_missing();
        self.load(TAX, 0);
        self.load(LD_B_IND, NLA_HDRLEN);
        self.load(ST, PROTOCOL);
    }

    /// Accepts if every condition of a filter is fulfilled, otherwise continues after the block. A block has at most 31
    /// instructions and no jump leaves it, so the 8 bits of a jump do not limit the number of filters.
    pub(super) fn block(&mut self, filter: &Filter) -> Result<(), InvalidOperation> {
        let mut block = Program::default();
        if let Some(family) = filter.implied_family() {
            block.load(LD_B_ABS, FAMILY);
            block.require(u32::from(wire::family_number(family)));
        }
        if let Some(protocol) = filter.protocol {
            block.load(LD_MEM, PROTOCOL);
            block.require(u32::from(protocol.0));
        }
        for (network, cell) in [
            (filter.original.source, SOURCE),
            (filter.original.destination, DESTINATION),
        ] {
            if let Some(network) = network {
                block.require_address(network, cell);
            }
        }
        block.load(RET_K, ACCEPT);
        let length = block.instructions.len();
        for (index, instruction) in block.instructions.iter_mut().enumerate() {
            if instruction.code == JEQ_K {
                // The offset counts from the next instruction.
                instruction.jump_false =
                    u8::try_from(length - index - 1).map_err(|_| InvalidOperation::KernelFilterTooLong {
                        filters: 1,
                        instructions: length,
                    })?;
            }
        }
        self.instructions.append(&mut block.instructions);
        Ok(())
    }

    /// Continues if A has this value. [`block`](Self::block) sets the other jump offset.
    fn require(&mut self, value: u32) {
        self.jump(value, 0, 0);
    }

    fn require_address(&mut self, network: IpNet, cell: u32) {
        let network = network.trunc();
        // The program loads four bytes at a time.
        let words = |address: u128| [96, 64, 32, 0].map(|shift| (address >> shift) as u32);
        let (values, masks) = match network {
            IpNet::V4(network) => {
                let word = |address: std::net::Ipv4Addr| vec![u32::from(address)];
                (word(network.addr()), word(network.netmask()))
            }
            IpNet::V6(network) => {
                let word = |address: std::net::Ipv6Addr| words(u128::from(address)).to_vec();
                (word(network.addr()), word(network.netmask()))
            }
        };
        self.load(LDX_MEM, cell);
        let mut offset = NLA_HDRLEN;
        for (value, mask) in values.into_iter().zip(masks) {
            if mask != 0 {
                self.load(LD_W_IND, offset);
                if mask != u32::MAX {
                    self.load(AND_K, mask);
                }
                self.require(value);
            }
            offset += 4;
        }
    }
}
