//! What the keys and data of sets are values of: the `typeof` of `nft`.

use crate::expression::{
    ConnectionTrackingKey, ExtensionHeaderKind, FibFlags, FibResult, HashKind, MetaKey, NumberGeneratorKind,
    PayloadBase, RouteKey, SocketKey, XfrmKey,
};
use crate::user_data::UserData;

/// What one field of a key, or of the data of a map, is a value of. `nft` declares and lists a set that has this with `typeof` instead of
/// `type`, and prints its elements accordingly. The kernel does not read it.
///
/// `Display` writes what `nft` writes: `tcp dport`, `meta mark`, `ct original ip saddr`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TypeOf {
    /// A field of a header. [`TypeOf::field`] finds the numbers by the names.
    Field {
        /// The number of the header for `nft` (`enum proto_desc_id`).
        header: u32,
        /// The number of the field for `nft`.
        field: u32,
        /// The length in bits, of fields that are numbers.
        length: Option<u32>,
        /// The number of the header of the tunnel that the packet is in.
        tunnel: Option<u32>,
    },
    /// Bits of the packet (`@th,16,16`).
    Bits {
        /// The header that the offset is relative to.
        base: PayloadBase,
        /// Offset in bits.
        offset: u32,
        /// Length in bits.
        length: u32,
        /// The number of the header of the tunnel that the packet is in.
        tunnel: Option<u32>,
    },
    /// Metadata.
    Meta {
        /// Which.
        key: MetaKey,
        /// The number of the header of the tunnel that the packet is in.
        tunnel: Option<u32>,
    },
    /// A property of the connection.
    ConnectionTracking {
        /// Which.
        key: ConnectionTrackingKey,
        /// 0 for the original direction, 1 for replies.
        direction: Option<u8>,
    },
    /// A field of an extension header or option. [`TypeOf::extension`] finds the numbers by the names.
    Extension {
        /// Which headers or options are searched.
        kind: ExtensionHeaderKind,
        /// The number of the option; of the header for `nft` (`enum exthdr_desc_id`) in IPv6.
        number: u32,
        /// The number of the field for `nft`.
        field: u32,
    },
    /// A property of the route.
    Route(RouteKey),
    /// A property of the local socket.
    Socket(SocketKey),
    /// The operating system that a SYN packet looks like.
    OsFingerprint,
    /// A result of a route lookup.
    Fib {
        /// What is looked up.
        result: FibResult,
        /// By which fields.
        flags: FibFlags,
    },
    /// A property of the IPsec state.
    Xfrm {
        /// Which.
        key: XfrmKey,
        /// 0 for received packets, 1 for sent ones.
        direction: u8,
        /// The number of the state in the list of the packet.
        number: u32,
    },
    /// A number.
    NumberGenerator {
        /// How numbers are chosen.
        kind: NumberGeneratorKind,
        /// The number of different numbers.
        modulus: u32,
        /// The lowest number.
        offset: u32,
    },
    /// A hash.
    Hash {
        /// What is hashed.
        kind: HashKind,
        /// The number of different hashes.
        modulus: u32,
        /// The lowest hash.
        offset: u32,
        /// The seed.
        seed: Option<u32>,
    },
    /// A queue number.
    Queue,
    /// The data of verdict maps.
    Verdict,
}

/// The numbers of expressions for `nft` (`enum expr_types`).
mod number {
    pub(super) const VERDICT: u32 = 1;
    pub(super) const VALUE: u32 = 4;
    pub(super) const PAYLOAD: u32 = 7;
    pub(super) const EXTHDR: u32 = 8;
    pub(super) const META: u32 = 9;
    pub(super) const SOCKET: u32 = 10;
    pub(super) const OSF: u32 = 11;
    pub(super) const CT: u32 = 12;
    pub(super) const CONCAT: u32 = 13;
    pub(super) const NUMGEN: u32 = 23;
    pub(super) const HASH: u32 = 24;
    pub(super) const RT: u32 = 25;
    pub(super) const FIB: u32 = 26;
    pub(super) const XFRM: u32 = 27;
}

/// The types of the entries that name an expression and contain its data.
const EXPRESSION: u8 = 0;
const DATA: u8 = 1;

/// The largest number of fields of a concatenation.
const FIELDS: usize = 16;

/// The fields of an entry of a set; `None` if it is not one that `nft` reads.
pub(crate) fn decode(entry: &[u8]) -> Option<Vec<TypeOf>> {
    let (expression, data) = decode_expression(entry)?;
    if expression != number::CONCAT {
        return Some(vec![decode_field(expression, &data)?]);
    }
    let fields = UserData::from_bytes(&data);
    let mut found = Vec::new();
    while let Some(field) = u8::try_from(found.len())
        .ok()
        .and_then(|index| fields.entry(index))
    {
        let (expression, data) = decode_expression(field)?;
        found.push(decode_field(expression, &data)?);
    }
    (2..=FIELDS).contains(&found.len()).then_some(found)
}

fn decode_expression(entry: &[u8]) -> Option<(u32, Vec<u8>)> {
    let entry = UserData::from_bytes(entry);
    let data = entry.entry(DATA)?.to_vec();
    Some((entry.u32(EXPRESSION)?, data))
}

fn decode_field(expression: u32, data: &[u8]) -> Option<TypeOf> {
    let data = UserData::from_bytes(data);
    let get = |kind| data.u32(kind);
    Some(match expression {
        number::VERDICT => TypeOf::Verdict,
        number::VALUE if get(0)? == 0 => TypeOf::Queue,
        number::PAYLOAD => {
            let (header, field, tunnel) = (get(0)?, get(1)?, get(5));
            if header == 0 {
                TypeOf::Bits {
                    base: PayloadBase::from_number(get(2)?.checked_sub(1)?),
                    offset: get(3)?,
                    length: get(4)?,
                    tunnel,
                }
            } else {
                TypeOf::Field {
                    header,
                    field,
                    length: get(4),
                    tunnel,
                }
            }
        }
        number::EXTHDR => TypeOf::Extension {
            kind: get(2).map_or(ExtensionHeaderKind::Ipv6, ExtensionHeaderKind::from_number),
            number: get(0)?,
            field: get(1)?,
        },
        number::META => TypeOf::Meta {
            key: MetaKey::from_number(get(0)?),
            tunnel: get(1),
        },
        number::SOCKET => TypeOf::Socket(SocketKey::from_number(get(0)?)),
        number::OSF => TypeOf::OsFingerprint,
        number::CT => TypeOf::ConnectionTracking {
            key: ConnectionTrackingKey::from_number(get(0)?),
            direction: match get(1)? {
                NO_DIRECTION => None,
                direction => Some(u8::try_from(direction).ok()?),
            },
        },
        number::NUMGEN => TypeOf::NumberGenerator {
            kind: NumberGeneratorKind::from_number(get(0)?),
            modulus: get(1)?,
            offset: get(2)?,
        },
        number::HASH => TypeOf::Hash {
            kind: HashKind::from_number(get(0)?),
            offset: get(1)?,
            modulus: get(2)?,
            seed: {
                let seed = get(3)?;
                (get(4)? != 0).then_some(seed)
            },
        },
        number::RT => TypeOf::Route(RouteKey::from_number(get(0)?)),
        number::FIB => TypeOf::Fib {
            result: FibResult::from_number(get(0)?),
            flags: FibFlags::from_bits_retain(get(1)?),
        },
        number::XFRM => TypeOf::Xfrm {
            key: XfrmKey::from_number(get(0)?),
            number: get(1)?,
            direction: u8::try_from(get(2)?).ok()?,
        },
        _ => return None,
    })
}

/// The direction of a property that has none, as `nft` stores it.
const NO_DIRECTION: u32 = u32::MAX;

/// The entry of a set with these fields; `None` if it exceeds 255 bytes or there is no field.
pub(crate) fn encode(fields: &[TypeOf]) -> Option<Vec<u8>> {
    match fields {
        [] => None,
        [field] => encode_expression(field),
        fields => {
            let mut data = UserData::new();
            for (index, field) in fields.iter().enumerate() {
                let field = encode_expression(field)?;
                let index = u8::try_from(index).ok().filter(|_| index < FIELDS)?;
                data.push(index, &field).then_some(())?;
            }
            expression(number::CONCAT, &data)
        }
    }
}

fn expression(number: u32, data: &UserData) -> Option<Vec<u8>> {
    let mut entry = UserData::new();
    entry.push_u32(EXPRESSION, number);
    let is_complete = entry.push(DATA, data.as_bytes()) && entry.as_bytes().len() <= usize::from(u8::MAX);
    is_complete.then(|| entry.as_bytes().to_vec())
}

fn encode_expression(field: &TypeOf) -> Option<Vec<u8>> {
    let mut data = UserData::new();
    let mut put = |entries: &[(u8, Option<u32>)]| {
        for (kind, number) in entries {
            if let Some(number) = number {
                data.push_u32(*kind, *number);
            }
        }
    };
    let number = match field {
        TypeOf::Verdict => number::VERDICT,
        TypeOf::Queue => {
            put(&[(0, Some(0))]);
            number::VALUE
        }
        TypeOf::Field {
            header,
            field,
            length,
            tunnel,
        } => {
            put(&[(0, Some(*header)), (1, Some(*field)), (4, *length), (5, *tunnel)]);
            number::PAYLOAD
        }
        TypeOf::Bits {
            base,
            offset,
            length,
            tunnel,
        } => {
            let base = base.number().checked_add(1)?;
            put(&[(0, Some(0)), (1, Some(0)), (2, Some(base)), (3, Some(*offset))]);
            put(&[(4, Some(*length)), (5, *tunnel)]);
            number::PAYLOAD
        }
        TypeOf::Extension { kind, number, field } => {
            let operation = (*kind != ExtensionHeaderKind::Ipv6).then(|| kind.number());
            put(&[(1, Some(*field)), (2, operation), (0, Some(*number))]);
            number::EXTHDR
        }
        TypeOf::Meta { key, tunnel } => {
            put(&[(0, Some(key.number())), (1, *tunnel)]);
            number::META
        }
        TypeOf::Socket(key) => {
            put(&[(0, Some(key.number()))]);
            number::SOCKET
        }
        TypeOf::OsFingerprint => number::OSF,
        TypeOf::ConnectionTracking { key, direction } => {
            let direction = direction.map_or(NO_DIRECTION, u32::from);
            put(&[(0, Some(key.number())), (1, Some(direction))]);
            number::CT
        }
        TypeOf::NumberGenerator {
            kind,
            modulus,
            offset,
        } => {
            put(&[(0, Some(kind.number())), (1, Some(*modulus)), (2, Some(*offset))]);
            number::NUMGEN
        }
        TypeOf::Hash {
            kind,
            modulus,
            offset,
            seed,
        } => {
            put(&[(0, Some(kind.number())), (1, Some(*offset)), (2, Some(*modulus))]);
            put(&[(3, Some(seed.unwrap_or(0))), (4, Some(seed.is_some().into()))]);
            number::HASH
        }
        TypeOf::Route(key) => {
            put(&[(0, Some(key.number()))]);
            number::RT
        }
        TypeOf::Fib { result, flags } => {
            put(&[(0, Some(result.number())), (1, Some(flags.bits()))]);
            number::FIB
        }
        TypeOf::Xfrm {
            key,
            direction,
            number,
        } => {
            put(&[
                (0, Some(key.number())),
                (1, Some(*number)),
                (2, Some((*direction).into())),
            ]);
            number::XFRM
        }
    };
    expression(number, &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<TypeOf> {
        vec![
            TypeOf::Field {
                header: 12,
                field: 11,
                length: None,
                tunnel: Some(18),
            },
            TypeOf::Bits {
                base: PayloadBase::Transport,
                offset: 16,
                length: 24,
                tunnel: None,
            },
            TypeOf::Meta {
                key: MetaKey::Mark,
                tunnel: None,
            },
            TypeOf::ConnectionTracking {
                key: ConnectionTrackingKey::SourceIp,
                direction: Some(1),
            },
            TypeOf::ConnectionTracking {
                key: ConnectionTrackingKey::Mark,
                direction: None,
            },
            TypeOf::Extension {
                kind: ExtensionHeaderKind::Ipv6,
                number: 6,
                field: 3,
            },
            TypeOf::Extension {
                kind: ExtensionHeaderKind::TcpOption,
                number: 2,
                field: 2,
            },
            TypeOf::Route(RouteKey::NextHop),
            TypeOf::Socket(SocketKey::Mark),
            TypeOf::OsFingerprint,
            TypeOf::Fib {
                result: FibResult::AddressType,
                flags: FibFlags::DESTINATION,
            },
            TypeOf::Xfrm {
                key: XfrmKey::RequestId,
                direction: 1,
                number: 3,
            },
            TypeOf::NumberGenerator {
                kind: NumberGeneratorKind::Random,
                modulus: 4,
                offset: 2,
            },
            TypeOf::Hash {
                kind: HashKind::Symmetric,
                modulus: 8,
                offset: 1,
                seed: Some(9),
            },
            TypeOf::Queue,
            TypeOf::Verdict,
        ]
    }

    #[test]
    fn fields_are_read_as_they_were_written() {
        for field in all() {
            let entry = encode(std::slice::from_ref(&field)).unwrap();
            assert_eq!(decode(&entry), Some(vec![field]));
        }
        let fields = all()[..3].to_vec();
        assert_eq!(decode(&encode(&fields).unwrap()), Some(fields));
    }

    /// `typeof ip saddr . meta mark`, as `nft` 1.0.6 stores it.
    #[test]
    fn a_concatenation_has_an_entry_for_each_field() {
        let u32s = |kind: u8, number: u32| [&[kind, 4][..], &number.to_ne_bytes()].concat();
        let address = [u32s(0, 12), u32s(1, 11)].concat();
        let address = [u32s(0, 7), vec![1, 12], address].concat();
        let mark = [u32s(0, 9), vec![1, 6], u32s(0, 3)].concat();
        let fields = [vec![0, 20], address, vec![1, 14], mark].concat();
        let entry = [u32s(0, 13), vec![1, 38], fields].concat();
        let address = TypeOf::Field {
            header: 12,
            field: 11,
            length: None,
            tunnel: None,
        };
        let mark = TypeOf::Meta {
            key: MetaKey::Mark,
            tunnel: None,
        };
        let decoded = decode(&entry);
        assert_eq!(decoded, Some(vec![address, mark]));
        assert_eq!(encode(&decoded.unwrap()), Some(entry));
    }

    #[test]
    fn what_is_too_long_or_not_known_is_none() {
        assert_eq!(encode(&[]), None);
        assert_eq!(encode(&vec![TypeOf::Queue; 17]), None);
        assert_eq!(encode(&all()), None);
        assert_eq!(decode(&[]), None);
        assert_eq!(decode(&[0, 4, 99, 0, 0, 0, 1, 0]), None);
        let concat = u32::to_ne_bytes(number::CONCAT);
        // A concatenation of nothing.
        assert_eq!(decode(&[&[0, 4][..], &concat, &[1, 0]].concat()), None);
    }
}
