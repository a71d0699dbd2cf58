//! `-j MARK` and `-j CONNMARK`.

use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// A change of the packet's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkTarget {
    /// `--set-xmark value/mask`: clear the bits of the mask, then XOR the value. `None` means all bits.
    SetXmark(u32, Option<u32>),
    /// `--set-mark value/mask`: clear the bits of the mask, then OR the value. `None` means all bits.
    SetMark(u32, Option<u32>),
    /// `--or-mark bits`: set these bits.
    Or(u32),
    /// `--and-mark bits`: clear all other bits.
    And(u32),
    /// `--xor-mark bits`: invert these bits.
    Xor(u32),
}

/// A change of the flow's mark, or a copy between it and the packet's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnmarkTarget {
    /// A change.
    Change(MarkTarget),
    /// A change followed by a shift. Kernel 4.17, tool 1.8.0.
    ChangeAndShift(MarkTarget, MarkShift),
    /// `--save-mark`: from the packet to the flow.
    Save(MarkCopy),
    /// `--restore-mark`: from the flow to the packet.
    Restore(MarkCopy),
}

/// The bits that are copied between packet and flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkCopy {
    /// `--nfmask`: bits of the packet's mark; `None` means all.
    pub packet_mask: Option<u32>,
    /// `--ctmask`: bits of the flow's mark; `None` means all.
    pub flow_mask: Option<u32>,
    /// `--left-shift-mark`, `--right-shift-mark`.
    pub shift: Option<MarkShift>,
}

/// A shift of a mark by a number of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkShift {
    /// To the left.
    Left(u8),
    /// To the right.
    Right(u8),
}

impl MarkShift {
    /// Parses an optional shift.
    fn read(options: &mut Options<'_, '_>) -> Option<Option<Self>> {
        let Some(flag) = options.flag() else {
            return Some(None);
        };
        flag.not_negated()?;
        let shift: fn(u8) -> MarkShift = match flag.name {
            "--left-shift-mark" => MarkShift::Left,
            "--right-shift-mark" => MarkShift::Right,
            _ => return None,
        };
        Some(Some(shift(decimal(options.next()?)?)))
    }

    fn print(self, out: &mut Printer<'_>) {
        match self {
            MarkShift::Left(bits) => out.option("--left-shift-mark", &Some(bits)),
            MarkShift::Right(bits) => out.option("--right-shift-mark", &Some(bits)),
        }
    }

    fn is_none(self) -> bool {
        matches!(self, MarkShift::Left(0) | MarkShift::Right(0))
    }
}

impl MarkTarget {
    fn read_option(name: &str, options: &mut Options<'_, '_>) -> Option<Self> {
        Some(match name {
            "--set-xmark" => {
                let (value, mask) = options.mark()?;
                MarkTarget::SetXmark(value, mask)
            }
            "--set-mark" => {
                let (value, mask) = options.mark()?;
                MarkTarget::SetMark(value, mask)
            }
            "--or-mark" => MarkTarget::Or(options.number()?),
            "--and-mark" => MarkTarget::And(options.number()?),
            "--xor-mark" => MarkTarget::Xor(options.number()?),
            _ => return None,
        })
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let flag = options.flag()?;
        flag.not_negated()?;
        Self::read_option(flag.name, options)
    }

    pub(super) fn print(self, out: &mut Printer<'_>) {
        out.literal("-j MARK");
        self.print_option(out);
    }

    fn print_option(self, out: &mut Printer<'_>) {
        let (option, value, mask) = match self {
            MarkTarget::SetXmark(value, mask) => ("--set-xmark", value, mask),
            MarkTarget::SetMark(value, mask) => ("--set-mark", value, mask),
            MarkTarget::Or(bits) => ("--or-mark", bits, None),
            MarkTarget::And(bits) => ("--and-mark", bits, None),
            MarkTarget::Xor(bits) => ("--xor-mark", bits, None),
        };
        out.literal(option);
        out.mark(value, mask);
    }

    /// The kernel stores all forms as `--set-xmark value/mask`.
    pub(super) fn normal_form(self) -> Self {
        let (value, mask) = match self {
            MarkTarget::SetXmark(value, mask) => (value, mask.unwrap_or(u32::MAX)),
            MarkTarget::SetMark(value, mask) => (value, mask.map_or(u32::MAX, |mask| mask | value)),
            MarkTarget::Or(bits) => (bits, bits),
            MarkTarget::And(bits) => (0, !bits),
            MarkTarget::Xor(bits) => (bits, 0),
        };
        MarkTarget::SetXmark(value, Some(mask))
    }
}

impl ConnmarkTarget {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let flag = options.flag()?;
        flag.not_negated()?;
        Some(match flag.name {
            "--save-mark" => ConnmarkTarget::Save(MarkCopy::read(options)?),
            "--restore-mark" => ConnmarkTarget::Restore(MarkCopy::read(options)?),
            name => {
                let change = MarkTarget::read_option(name, options)?;
                match MarkShift::read(options)? {
                    Some(shift) => ConnmarkTarget::ChangeAndShift(change, shift),
                    None => ConnmarkTarget::Change(change),
                }
            }
        })
    }

    pub(super) fn print(self, out: &mut Printer<'_>) {
        out.literal("-j CONNMARK");
        let (option, copy) = match self {
            ConnmarkTarget::Change(change) => return change.print_option(out),
            ConnmarkTarget::ChangeAndShift(change, shift) => {
                change.print_option(out);
                return shift.print(out);
            }
            ConnmarkTarget::Save(copy) => ("--save-mark", copy),
            ConnmarkTarget::Restore(copy) => ("--restore-mark", copy),
        };
        out.literal(option);
        for (option, mask) in [("--nfmask", copy.packet_mask), ("--ctmask", copy.flow_mask)] {
            if let Some(mask) = mask {
                out.literal(option);
                out.mark(mask, None);
            }
        }
        if let Some(shift) = copy.shift {
            shift.print(out);
        }
    }

    pub(super) fn normal_form(self) -> Self {
        match self {
            ConnmarkTarget::ChangeAndShift(change, shift) if !shift.is_none() => {
                ConnmarkTarget::ChangeAndShift(change.normal_form(), shift)
            }
            ConnmarkTarget::Change(change) | ConnmarkTarget::ChangeAndShift(change, _) => {
                ConnmarkTarget::Change(change.normal_form())
            }
            ConnmarkTarget::Save(copy) => ConnmarkTarget::Save(copy.normal_form()),
            ConnmarkTarget::Restore(copy) => ConnmarkTarget::Restore(copy.normal_form()),
        }
    }
}

impl MarkCopy {
    fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut copy = MarkCopy {
            packet_mask: None,
            flow_mask: None,
            shift: None,
        };
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--nfmask" => set_once(&mut copy.packet_mask, options.number()?)?,
                "--ctmask" => set_once(&mut copy.flow_mask, options.number()?)?,
                "--mask" => {
                    let mask = options.number()?;
                    set_once(&mut copy.packet_mask, mask)?;
                    set_once(&mut copy.flow_mask, mask)?;
                }
                "--left-shift-mark" => set_once(&mut copy.shift, MarkShift::Left(decimal(options.next()?)?))?,
                "--right-shift-mark" => {
                    set_once(&mut copy.shift, MarkShift::Right(decimal(options.next()?)?))?
                }
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(copy)
    }

    fn normal_form(self) -> Self {
        MarkCopy {
            packet_mask: Some(self.packet_mask.unwrap_or(u32::MAX)),
            flow_mask: Some(self.flow_mask.unwrap_or(u32::MAX)),
            shift: self.shift.filter(|shift| !shift.is_none()),
        }
    }
}
