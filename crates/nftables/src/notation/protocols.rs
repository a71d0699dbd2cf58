//! Which headers a packet has according to the comparisons of a rule, and which comparisons a later one makes superfluous.

use super::header::{Header, HeaderField};
use super::value::ones;
use crate::expression::{MetaKey, PayloadBase};
use crate::table_family::TableFamily;

/// Bits of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) base: PayloadBase,
    /// In bits.
    pub(super) offset: u32,
    /// In bits.
    pub(super) length: u32,
    /// The tunnel whose packet it is of.
    pub(super) tunnel: Option<Header>,
}

impl Slice {
    /// The bits that a mask selects, without those before them, and the number of bits below them.
    pub(super) fn narrowed(self, mask: u128) -> Option<(Slice, u32)> {
        if mask == 0 {
            return None;
        }
        let shift = mask.trailing_zeros();
        let end = 128 - mask.leading_zeros();
        if mask.count_ones() != end - shift || end >= self.length {
            return None;
        }
        let narrowed = Slice {
            offset: self.offset.saturating_add(self.length - end),
            length: end - shift,
            ..self
        };
        Some((narrowed, shift))
    }
}

/// What a comparison is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Meta(MetaKey),
    Field(Header, HeaderField),
}

/// A comparison that says which header follows.
#[derive(Clone, Copy, Debug)]
struct Dependency {
    statement: usize,
    subject: Subject,
    value: u64,
}

/// The layers, in order. The first one is for the kind of device.
const LAYERS: usize = 5;

fn layer(base: PayloadBase) -> usize {
    match base {
        PayloadBase::Link => 1,
        PayloadBase::Network => 2,
        PayloadBase::Transport => 3,
        _ => 4,
    }
}

/// The largest number of headers of the link layer.
const STACKED: usize = 8;

const LINK: usize = 1;
const NETWORK: usize = 2;
const TRANSPORT: usize = 3;

/// The headers of a packet, and the comparisons that say so.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    family: TableFamily,
    headers: [Option<Header>; LAYERS],
    /// Headers of the link layer before the last one.
    stacked: Vec<Header>,
    /// The type of ICMP message that is required.
    message: Option<u8>,
    dependencies: [Option<Dependency>; LAYERS],
    /// The type of ICMP message of a comparison that may be superfluous.
    superfluous_message: Option<u8>,
}

impl Protocols {
    pub(super) fn new(family: TableFamily) -> Self {
        let mut headers = [None; LAYERS];
        match family {
            TableFamily::Ip => headers[NETWORK] = Some(Header::Ip),
            TableFamily::Ip6 => headers[NETWORK] = Some(Header::Ip6),
            TableFamily::Arp => headers[NETWORK] = Some(Header::Arp),
            TableFamily::Inet => headers[LINK] = Some(Header::Inet),
            TableFamily::Bridge => headers[LINK] = Some(Header::Ethernet),
            TableFamily::Netdev => headers[LINK] = Some(Header::Netdev),
            TableFamily::Unknown(_) => {}
        }
        Protocols {
            family,
            headers,
            stacked: Vec::new(),
            message: None,
            dependencies: [None; LAYERS],
            superfluous_message: None,
        }
    }

    pub(super) fn header(&self, base: PayloadBase) -> Option<Header> {
        self.headers.get(layer(base)).copied().flatten()
    }

    /// The header that the bits are of, and their offset in it.
    fn located(&self, slice: Slice) -> Option<(Header, u32)> {
        let header = self.header(slice.base)?;
        let mut skipped = 0;
        if slice.base == PayloadBase::Link {
            for stacked in &self.stacked {
                if slice.offset < stacked.length().saturating_add(skipped) {
                    return Some((*stacked, slice.offset - skipped));
                }
                skipped = stacked.length().saturating_add(skipped);
            }
        }
        Some((header, slice.offset.checked_sub(skipped)?))
    }

    fn fits(&self, header: Header, field: &HeaderField) -> bool {
        let types = header.message_types(field.name);
        match self.message {
            Some(message) if !types.is_empty() => types.contains(&message),
            _ => true,
        }
    }

    /// The field that the bits are.
    pub(super) fn field(&self, slice: Slice) -> Option<(Header, HeaderField)> {
        let (header, offset) = self.located(slice)?;
        let mut fields = header.fields().iter();
        let field = fields.find(|field| {
            field.offset == offset && field.length == slice.length && self.fits(header, field)
        })?;
        Some((header, *field))
    }

    /// The fields that the bits begin with. The last one may be longer than the bits. What no field is of remains.
    pub(super) fn split(&self, slice: Slice) -> (Vec<(Header, HeaderField, u32)>, Slice) {
        let mut rest = slice;
        let mut found = Vec::new();
        let Some((header, mut offset)) = self.located(slice) else {
            return (found, rest);
        };
        for field in header.fields() {
            if rest.length == 0 || field.offset != offset || !self.fits(header, field) {
                continue;
            }
            let length = field.length.min(rest.length);
            found.push((header, *field, length));
            rest.offset = rest.offset.saturating_add(length);
            rest.length -= length;
            offset += length;
            if length < field.length {
                break;
            }
        }
        (found, rest)
    }

    /// The field that a mask selects, and the number of bits below it.
    pub(super) fn masked(&self, slice: Slice, mask: u128) -> Option<(Slice, Header, HeaderField, u32)> {
        if mask == 0 {
            return None;
        }
        let shift = mask.trailing_zeros();
        let end = 128 - mask.leading_zeros();
        if mask.count_ones() != end - shift || end > slice.length || end - shift == slice.length {
            return None;
        }
        let narrowed = Slice {
            offset: slice.offset.saturating_add(slice.length - end),
            length: end - shift,
            ..slice
        };
        let (header, field) = self.field(narrowed)?;
        Some((narrowed, header, field, shift))
    }

    /// The field that has all bits of a mask, and the number of bits below it.
    pub(super) fn containing(&self, slice: Slice, mask: u128) -> Option<(Header, HeaderField, u32)> {
        let (header, offset) = self.located(slice)?;
        let found = |field: &HeaderField| -> Option<u32> {
            let from = field.offset.checked_sub(offset)?;
            let shift = slice.length.checked_sub(from.checked_add(field.length)?)?;
            let bits = ones(field.length).checked_shl(shift)?;
            (mask & !bits == 0 && self.fits(header, field)).then_some(shift)
        };
        let mut fields = header.fields().iter();
        fields.find_map(|field| Some((header, *field, found(field)?)))
    }

    /// Records that a subject has a value.
    pub(super) fn learn(&mut self, subject: Subject, value: u64) {
        match subject {
            Subject::Field(header, field) if field.is_protocol(header) => {
                if matches!(header, Header::Icmp | Header::Icmp6) {
                    self.message = Some(match (header, value) {
                        (Header::Icmp, 0) => 8,
                        (Header::Icmp6, 129) => 128,
                        (_, value) => value as u8,
                    });
                    return;
                }
                let Some(next) = header.next(value) else { return };
                let is_stacked = next.base() == header.base() && next.base() == PayloadBase::Link;
                if is_stacked && self.stacked.len() < STACKED {
                    self.stacked.push(header);
                }
                self.set(next.base(), next);
            }
            Subject::Field(..) => {}
            Subject::Meta(MetaKey::NetworkProtocol) => match (value, self.family) {
                (2, TableFamily::Ip) | (10, TableFamily::Ip6) => {}
                _ => {
                    let next = self.headers[LINK].and_then(|link| link.next(value));
                    self.set(PayloadBase::Network, next.unwrap_or(Header::Other));
                }
            },
            Subject::Meta(MetaKey::TransportProtocol) => {
                let next = Header::of_protocol(value).unwrap_or(Header::Other);
                self.set(PayloadBase::Transport, next);
            }
            Subject::Meta(MetaKey::Protocol)
                if matches!(self.family, TableFamily::Netdev | TableFamily::Bridge) =>
            {
                let next = Header::of_ether_type(value).unwrap_or(Header::Other);
                self.set(PayloadBase::Network, next);
            }
            Subject::Meta(MetaKey::InputType)
                if matches!(self.family, TableFamily::Inet | TableFamily::Netdev)
                    || self.headers[NETWORK].is_some() =>
            {
                let next = if value == 1 {
                    Header::Ethernet
                } else {
                    Header::Other
                };
                self.set(PayloadBase::Link, next);
            }
            Subject::Meta(_) => {}
        }
    }

    fn set(&mut self, base: PayloadBase, header: Header) {
        if let Some(known) = self.headers.get_mut(layer(base)) {
            *known = Some(header);
        }
    }

    /// Records that later comparisons of the header that follows make this statement superfluous.
    pub(super) fn store(&mut self, subject: Subject, value: u64, statement: usize) {
        let index = match subject {
            Subject::Meta(MetaKey::NetworkProtocol | MetaKey::Protocol) => NETWORK,
            Subject::Meta(MetaKey::TransportProtocol) => TRANSPORT,
            Subject::Meta(MetaKey::InputType) => LINK,
            Subject::Meta(_) => return,
            Subject::Field(header, field) => {
                if !field.is_protocol(header) {
                    return;
                }
                match (header, value) {
                    (Header::Icmp, 0 | 8) | (Header::Icmp6, 128 | 129) => {
                        self.superfluous_message = Some(if header == Header::Icmp { 8 } else { value as u8 });
                        return;
                    }
                    (Header::Icmp | Header::Icmp6, value) => self.superfluous_message = Some(value as u8),
                    _ => {}
                }
                let is_stacked = header
                    .next(value)
                    .is_some_and(|next| next.base() == header.base());
                layer(header.base()) + usize::from(!is_stacked)
            }
        };
        if let Some(dependency) = self.dependencies.get_mut(index) {
            *dependency = Some(Dependency {
                statement,
                subject,
                value,
            });
        }
    }

    /// Forgets which statements may become superfluous: one with an effect follows.
    pub(super) fn keep_all(&mut self) {
        self.dependencies = [None; LAYERS];
        self.superfluous_message = None;
    }

    /// The statement that a use of this field makes superfluous.
    pub(super) fn superfluous(&mut self, header: Header, field: &HeaderField) -> Option<usize> {
        let mut index = layer(header.base());
        if self.dependencies.get(index)?.is_none() {
            if index != TRANSPORT {
                return None;
            }
            index += 1;
        }
        let dependency = self.dependencies.get(index).copied().flatten()?;
        if !self.may_drop(&dependency, header, field) {
            return None;
        }
        self.take(index)
    }

    fn may_drop(&self, dependency: &Dependency, header: Header, field: &HeaderField) -> bool {
        let Subject::Field(earlier, _) = dependency.subject else {
            return true;
        };
        let is_mixed = matches!(
            self.family,
            TableFamily::Inet | TableFamily::Bridge | TableFamily::Netdev
        );
        if is_mixed {
            if matches!(earlier, Header::Ip | Header::Ip6) && header.base() == PayloadBase::Transport {
                return false;
            }
            if earlier.base() == header.base() {
                if field.is_protocol(header) {
                    return false;
                }
                if header.base() == PayloadBase::Link {
                    return match earlier {
                        Header::Vlan => false,
                        Header::Ethernet => dependency.value == 0x8100,
                        _ => true,
                    };
                }
            }
        }
        if matches!(earlier, Header::Icmp | Header::Icmp6) && header.base() == PayloadBase::Transport {
            let types = header.message_types(field.name);
            return earlier == header
                && !types.is_empty()
                && !matches!(field.name, "id" | "sequence" | "taddr")
                && self
                    .superfluous_message
                    .is_some_and(|message| types.contains(&message));
        }
        true
    }

    fn take(&mut self, index: usize) -> Option<usize> {
        let dependency = self.dependencies.get_mut(index)?.take()?;
        Some(dependency.statement)
    }

    /// The statement that the comparison of metadata with a value makes superfluous.
    pub(super) fn superfluous_for_meta(&mut self, key: MetaKey, value: u64) -> Option<usize> {
        let index = match key {
            MetaKey::TransportProtocol => NETWORK,
            MetaKey::NetworkProtocol | MetaKey::Protocol => LINK,
            _ => return None,
        };
        self.dependencies.get(index)?.as_ref()?;
        if self.may_drop_for_meta(key, value) {
            self.take(index)
        } else {
            None
        }
    }

    fn may_drop_for_meta(&self, key: MetaKey, value: u64) -> bool {
        let Some(network) = self.dependencies[NETWORK] else {
            return true;
        };
        let family = match network.subject {
            Subject::Meta(MetaKey::NetworkProtocol) => match network.value {
                2 => Some(TableFamily::Ip),
                10 => Some(TableFamily::Ip6),
                _ => None,
            },
            Subject::Meta(MetaKey::Protocol) | Subject::Field(Header::Ethernet | Header::Vlan, _) => {
                match network.value {
                    0x0800 => Some(TableFamily::Ip),
                    0x86dd => Some(TableFamily::Ip6),
                    _ => None,
                }
            }
            _ => return true,
        };
        match self.family {
            TableFamily::Inet | TableFamily::Netdev | TableFamily::Bridge => {}
            TableFamily::Ip | TableFamily::Ip6 => return Some(self.family) == family,
            _ => return true,
        }
        if key != MetaKey::TransportProtocol {
            return true;
        }
        matches!(
            (value, family),
            (1, Some(TableFamily::Ip)) | (58, Some(TableFamily::Ip6)) | (1 | 58, None)
        )
    }

    /// The statement that an expression for a layer makes superfluous, for any value.
    pub(super) fn superfluous_layer(&mut self, base: PayloadBase) -> Option<usize> {
        let index = layer(base);
        self.take(index).or_else(|| {
            if index == TRANSPORT {
                self.take(index + 1)
            } else {
                None
            }
        })
    }
}
