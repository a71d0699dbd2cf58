//! What registers have, and how it is written.

use super::form::{Form, quoted};
use super::header::{Header, HeaderField, extension, routing};
use super::protocols::{Slice, Subject};
use super::value::ones;
use crate::data_type::{DataType, DataTypes};
use crate::expression::{ExtensionHeaderKind, MetaKey};
use crate::names::Names;
use crate::value::Value;

/// Bits of an extension header or option. Offset and length are in bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub(super) kind: ExtensionHeaderKind,
    pub(super) number: u8,
    pub(super) offset: u32,
    pub(super) length: u32,
    /// Whether there is such a header.
    pub(super) is_presence: bool,
}

/// Where the value of a register is from.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Constant(Value),
    Payload(Slice),
    Extension(Extension),
    /// A field that needs no context.
    Named {
        text: String,
        form: Form,
        meta: Option<MetaKey>,
        tunnel: Option<Header>,
    },
    /// The data of a map.
    Map {
        text: String,
        types: DataTypes,
    },
}

/// A step of a computation.
#[derive(Clone, Debug)]
pub(super) enum Step {
    MaskXor(Value, Value),
    Left(u32),
    Right(u32),
    ByteOrder,
    /// With the value of another register, which is written so.
    Combine(&'static str, String),
}

/// What a register has.
#[derive(Clone, Debug)]
pub(super) struct Operand {
    pub(super) origin: Origin,
    /// In bytes.
    pub(super) length: u32,
    pub(super) steps: Vec<Step>,
}

/// How an operand is written.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) text: String,
    pub(super) form: Form,
    /// In bits.
    pub(super) length: u32,
    /// The length in bytes in the registers.
    pub(super) loaded: u32,
    pub(super) subject: Option<Subject>,
    /// The tunnel whose packet it is of.
    pub(super) tunnel: Option<Header>,
    /// The steps that remain to be written.
    pub(super) steps: Vec<Step>,
}

impl Operand {
    pub(super) fn new(origin: Origin, length: u32) -> Self {
        Operand {
            origin,
            length,
            steps: Vec::new(),
        }
    }

    pub(super) fn constant(&self) -> Option<&Value> {
        match &self.origin {
            Origin::Constant(value) => Some(value),
            _ => None,
        }
    }
}

impl View {
    pub(super) fn new(text: impl Into<String>, form: Form, length: u32) -> Self {
        View {
            text: text.into(),
            form,
            length,
            loaded: length.div_ceil(8),
            subject: None,
            tunnel: None,
            steps: Vec::new(),
        }
    }

    /// A field of a header.
    pub(super) fn field(header: Header, field: HeaderField, length: u32, prefix: &str) -> Self {
        let prefix = if prefix.trim_end() == header.name() {
            ""
        } else {
            prefix
        };
        let is_hexadecimal = header == Header::Ip && field.name == "frag-off";
        let form = Form {
            is_hexadecimal,
            is_host: false,
            ..Form::of(field.data_type)
        };
        let mut view = View::new(format!("{prefix}{} {}", header.name(), field.name), form, length);
        view.subject = Some(Subject::Field(header, field));
        view
    }

    /// The text with the steps that remain.
    pub(super) fn full_text(&self, names: &Names) -> String {
        let mut text = self.text.clone();
        let mut precedence = 9;
        for step in &self.steps {
            // What was shifted is no longer a value of the field.
            let has_names = !matches!(step, Step::MaskXor(..)) || precedence != 4;
            text = match step {
                Step::MaskXor(mask, xor) => {
                    self.masked(text, mask, xor, &mut precedence, has_names.then_some(names))
                }
                Step::Left(bits) => wrapped(text, &mut precedence, 4, "<<", &bits.to_string()),
                Step::Right(bits) => wrapped(text, &mut precedence, 4, ">>", &bits.to_string()),
                Step::ByteOrder => text,
                Step::Combine(operator, other) => format!("{text} {operator} {other}"),
            };
        }
        text
    }

    /// A mask and inverted bits are at most three operations: and, xor, or.
    fn masked(
        &self,
        text: String,
        mask: &Value,
        xor: &Value,
        precedence: &mut u8,
        names: Option<&Names>,
    ) -> String {
        let bytes = mask.as_bytes();
        // Bits beyond the field are those of a number of the host.
        let form = Form {
            is_host: self.form.is_host || bytes.len() as u32 * 8 > self.length.next_multiple_of(8),
            ..if names.is_some() {
                self.form
            } else {
                self.form.without_names()
            }
        };
        let (Some(mask), Some(xor)) = (form.number(bytes), form.number(xor.as_bytes())) else {
            return format!("{text} & {mask} ^ {xor}");
        };
        let all = ones(bytes.len() as u32 * 8);
        let set = xor & !mask;
        let flipped = xor & mask;
        let kept = mask | set;
        let number = |number: u128| {
            let name = names.and_then(|names| names.name(form.data_type, number));
            let text = name.map_or_else(|| form.number_text(number, bytes.len()), quoted);
            if self.form.is_flags() && text.contains(',') {
                format!("({})", text.replace(',', " | "))
            } else {
                text
            }
        };
        let mut text = text;
        if kept != all || set | flipped == 0 {
            text = wrapped(text, precedence, 3, "&", &number(kept));
        }
        if flipped != 0 {
            text = wrapped(text, precedence, 2, "^", &number(flipped));
        }
        if set != 0 {
            text = wrapped(text, precedence, 1, "|", &number(set));
        }
        text
    }
}

/// Kinds of options of Multipath TCP.
const MULTIPATH_SUBTYPES: &[(u64, &str)] = &[
    (0, "mp-capable"),
    (1, "mp-join"),
    (2, "dss"),
    (3, "add-addr"),
    (4, "remove-addr"),
    (5, "mp-prio"),
    (6, "mp-fail"),
    (7, "mp-fastclose"),
    (8, "mp-tcprst"),
];

/// The names of the values of a field.
pub(super) fn names(field: &str) -> &'static [(u64, &'static str)] {
    match field {
        "subtype" => MULTIPATH_SUBTYPES,
        _ => &[],
    }
}

/// The operand of an operation is in parentheses if its own one binds less.
fn wrapped(text: String, precedence: &mut u8, new: u8, operator: &str, right: &str) -> String {
    let text = if *precedence < new {
        format!("({text}) {operator} {right}")
    } else {
        format!("{text} {operator} {right}")
    };
    *precedence = new;
    text
}

impl Extension {
    /// How the bits are written; with the mask of one byte if they are a part of it.
    pub(super) fn view(&self) -> Option<View> {
        let prefix = match self.kind {
            ExtensionHeaderKind::Ipv6 => "",
            ExtensionHeaderKind::TcpOption => "tcp option ",
            ExtensionHeaderKind::Ipv4Option => "ip option ",
            ExtensionHeaderKind::SctpChunk => "sctp chunk ",
            ExtensionHeaderKind::DccpOption => "dccp option ",
            ExtensionHeaderKind::Unknown(_) => return None,
        };
        let known = extension(self.kind, self.number);
        if self.is_presence {
            let name = known.map_or_else(|| self.number.to_string(), |(name, _)| name.to_owned());
            let prefix = if self.kind == ExtensionHeaderKind::Ipv6 {
                "exthdr "
            } else {
                prefix
            };
            return Some(View::new(
                format!("{prefix}{name}"),
                Form::of(DataType::Boolean),
                8,
            ));
        }
        if let Some((name, fields)) = known {
            let mut fields = fields.iter();
            if let Some(field) =
                fields.find(|field| field.offset == self.offset && field.length == self.length)
            {
                let form = Form {
                    is_host: false,
                    names: names(field.name),
                    ..Form::of(field.data_type)
                };
                // The ranges of a selective acknowledgement have numbers.
                let number = match (self.kind, self.number, self.offset / 64) {
                    (ExtensionHeaderKind::TcpOption, 5, number @ 1..) => number.to_string(),
                    _ => String::new(),
                };
                return Some(View::new(
                    format!("{prefix}{name}{number} {}", field.name),
                    form,
                    self.length,
                ));
            }
        }
        if self.kind == ExtensionHeaderKind::Ipv6
            && self.number == 43
            && let Some((name, field)) = routing(self.offset, self.length)
        {
            return Some(View::new(
                format!("{name} {}", field.name),
                Form::of(field.data_type),
                self.length,
            ));
        }
        (self.kind == ExtensionHeaderKind::TcpOption).then(|| {
            View::new(
                format!("tcp option @{},{},{}", self.number, self.offset, self.length),
                Form::of(DataType::Integer),
                self.length,
            )
        })
    }

    /// The bits that a mask selects, and the number of bits below them.
    pub(super) fn masked(&self, mask: u128) -> Option<(Extension, u32)> {
        if mask == 0 {
            return None;
        }
        let shift = mask.trailing_zeros();
        let end = 128 - mask.leading_zeros();
        if mask.count_ones() != end - shift || end > self.length {
            return None;
        }
        let narrowed = Extension {
            offset: self.offset.saturating_add(self.length - end),
            length: end - shift,
            ..*self
        };
        let (_, fields) = extension(self.kind, self.number)?;
        let is_field = fields
            .iter()
            .any(|field| field.offset == narrowed.offset && field.length == narrowed.length);
        is_field.then_some((narrowed, shift))
    }
}
