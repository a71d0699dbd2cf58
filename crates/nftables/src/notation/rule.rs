//! Rules as `nft` lists them.

use super::form::{Form, quoted};
use super::header::{Header, HeaderField};
use super::operand::{Extension, Operand, Origin, Step, View, ones};
use super::protocols::{Protocols, Slice, Subject};
use super::{field, set, stateful};
use crate::data_type::DataType;
use crate::expression::{
    BitwiseOperation, CompareOperator, ConnectionTrackingKey, Expression, ExtensionHeaderKind, FibFlags,
    FibResult, HashKind, LookupFlags, MetaKey, NumberGeneratorKind, PayloadBase,
};
use crate::register::Register;
use crate::rule::Rule;
use crate::set::{MapData, Set, SetFlags};
use crate::table_family::TableFamily;
use crate::value::Value;
use crate::verdict::Data;

/// The sets and chains that rules refer to, with the elements of the anonymous ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Context<'a> {
    pub(super) sets: &'a [crate::SetContents],
    pub(super) chains: &'a [crate::ChainContents],
    /// The number of anonymous chains that the rule is in.
    pub(super) depth: u8,
}

/// The largest number of anonymous chains in each other, as that of jumps.
const DEPTH: u8 = 16;

/// A statement of a rule; without text if a later one makes it superfluous.
#[derive(Clone, Debug, Default)]
struct Statement {
    text: String,
    /// One end of a range: what is compared, how, and with what.
    bound: Option<(String, CompareOperator, String)>,
}

/// A rule while it is printed.
pub(super) struct Printer<'a> {
    pub(super) context: Context<'a>,
    pub(super) family: TableFamily,
    registers: [Option<Operand>; 16],
    statements: Vec<Statement>,
    pub(super) protocols: Protocols,
    /// Those of the packet in a tunnel.
    inner: Protocols,
}

impl<'a> Context<'a> {
    /// The statements of a rule, and its comment.
    pub(super) fn rule(&self, rule: &Rule) -> String {
        let family = rule.chain.table.family;
        let mut printer = Printer {
            context: *self,
            family,
            registers: std::array::from_fn(|_| None),
            statements: Vec::new(),
            protocols: Protocols::new(family),
            inner: Protocols::new(TableFamily::Bridge),
        };
        for expression in &rule.expressions {
            if printer.print(expression).is_none() {
                printer.say(format!("[ {expression:?} ]"));
            }
        }
        let mut text: Vec<String> = printer
            .statements
            .into_iter()
            .map(|statement| statement.text)
            .filter(|text| !text.is_empty())
            .collect();
        text.extend(
            rule.comment()
                .map(|comment| format!("comment {}", quoted(comment))),
        );
        text.join(" ")
    }

    /// An expression with a state, which needs no register.
    pub(super) fn expression(&self, expression: &Expression) -> String {
        stateful::text(expression).unwrap_or_else(|| format!("[ {expression:?} ]"))
    }

    fn set(&self, name: &str) -> Option<&'a crate::SetContents> {
        self.sets.iter().find(|contents| *contents.set.key.name == *name)
    }
}

/// Whether all bytes are 0.
fn is_zero(value: &Value) -> bool {
    value.as_bytes().iter().all(|byte| *byte == 0)
}

impl Printer<'_> {
    fn store(&mut self, register: Register, operand: Operand) -> Option<()> {
        *self.registers.get_mut(register.index()? as usize)? = Some(operand);
        Some(())
    }

    fn named(
        &mut self,
        register: Register,
        text: impl Into<String>,
        form: Form,
        length: u32,
        meta: Option<MetaKey>,
    ) -> Option<()> {
        let text = text.into();
        let origin = Origin::Named {
            text,
            form,
            meta,
            tunnel: None,
        };
        self.store(register, Operand::new(origin, length))
    }

    pub(super) fn operand(&self, register: Register) -> Option<&Operand> {
        self.registers.get(register.index()? as usize)?.as_ref()
    }

    /// The operands in adjacent registers.
    fn operands(&self, register: Register, length: u32) -> Option<Vec<Operand>> {
        let mut index = register.index()?;
        let end = index + length.div_ceil(4);
        let mut operands = Vec::new();
        while index < end {
            let operand = self.registers.get(index as usize)?.as_ref()?;
            index += operand.length.div_ceil(4).max(1);
            operands.push(operand.clone());
        }
        Some(operands)
    }

    /// The fields of a key.
    fn key(&mut self, register: Register, length: u32) -> Option<Vec<View>> {
        let operands = self.operands(register, length)?;
        operands.iter().map(|operand| self.view(operand)).collect()
    }

    /// A statement with an effect: the comparisons before it stay.
    pub(super) fn say(&mut self, text: impl Into<String>) {
        self.statements.push(Statement {
            text: text.into(),
            bound: None,
        });
        self.protocols.keep_all();
        self.inner.keep_all();
    }

    /// A statement that is a condition.
    fn condition(&mut self, text: String) -> usize {
        self.statements.push(Statement { text, bound: None });
        self.statements.len() - 1
    }

    pub(super) fn drop_statement(&mut self, statement: Option<usize>) {
        if let Some(statement) = statement.and_then(|index| self.statements.get_mut(index)) {
            *statement = Statement::default();
        }
    }

    fn protocols(&mut self, tunnel: Option<Header>) -> &mut Protocols {
        match tunnel {
            Some(_) => &mut self.inner,
            None => &mut self.protocols,
        }
    }

    /// How an operand is written. Makes the comparisons superfluous that its header implies.
    pub(super) fn view(&mut self, operand: &Operand) -> Option<View> {
        let mut steps = operand.steps.as_slice();
        let mut view = match &operand.origin {
            Origin::Constant(value) => View::new(
                value.to_string(),
                Form::of(DataType::Integer),
                operand.length.saturating_mul(8),
            ),
            Origin::Payload(slice) => {
                let (view, rest) = self.payload(*slice, steps);
                steps = rest;
                if let Some(Subject::Field(header, field)) = view.subject {
                    let superfluous = self.protocols(slice.tunnel).superfluous(header, &field);
                    self.drop_statement(superfluous);
                }
                view
            }
            Origin::Extension(extension) => {
                let (view, rest) = self.extension(extension, steps)?;
                steps = rest;
                let base = match extension.kind {
                    ExtensionHeaderKind::TcpOption => Some(PayloadBase::Transport),
                    ExtensionHeaderKind::Ipv6 | ExtensionHeaderKind::Ipv4Option => Some(PayloadBase::Network),
                    _ => None,
                };
                let superfluous = base.and_then(|base| self.protocols.superfluous_layer(base));
                self.drop_statement(superfluous);
                view
            }
            Origin::Named {
                text,
                form,
                meta,
                tunnel,
            } => {
                let mut view = View::new(text.clone(), *form, operand.length.saturating_mul(8));
                view.subject = meta.map(Subject::Meta);
                view.tunnel = *tunnel;
                view
            }
            Origin::Map { text, types } => {
                let data_type = types.iter().next()?;
                View::new(
                    text.clone(),
                    Form::of(data_type),
                    operand.length.saturating_mul(8),
                )
            }
        };
        view.loaded = operand.length;
        for step in steps {
            match step {
                Step::ByteOrder => view.form.is_host = !view.form.is_host,
                step => view.steps.push(step.clone()),
            }
        }
        Some(view)
    }

    /// The field that bits of the packet are, and the steps after the one that selects it.
    fn payload<'b>(&mut self, slice: Slice, steps: &'b [Step]) -> (View, &'b [Step]) {
        let prefix = slice
            .tunnel
            .map_or_else(String::new, |tunnel| format!("{} ", tunnel.name()));
        if let (Some(tunnel), PayloadBase::Tunnel) = (slice.tunnel, slice.base) {
            let mut fields = tunnel.fields().iter();
            if let Some(field) =
                fields.find(|field| field.offset == slice.offset && field.length == slice.length)
            {
                return (View::field(tunnel, *field, slice.length, &prefix), steps);
            }
        }
        // The conversion of the byte order before a shift belongs to the field.
        let masked: Vec<&Step> = steps
            .iter()
            .filter(|step| !matches!(step, Step::ByteOrder))
            .collect();
        if let Some(Step::MaskXor(mask, xor)) = masked.first()
            && is_zero(xor)
            && let Some(number) = Form::of(DataType::Integer).number(mask.as_bytes())
        {
            let protocols = self.protocols(slice.tunnel);
            if let Some((narrowed, header, field, shift)) = protocols.masked(slice, number) {
                let mut view = View::field(header, field, narrowed.length, &prefix);
                let position = |wanted: fn(&Step) -> bool| steps.iter().position(wanted);
                let end = match masked.get(1) {
                    Some(Step::Right(bits)) if *bits == shift => {
                        position(|step| matches!(step, Step::Right(_)))
                    }
                    _ => {
                        view.form.shift = shift;
                        position(|step| matches!(step, Step::MaskXor(..)))
                    }
                };
                let rest = end.and_then(|end| steps.get(end + 1..)).unwrap_or(&[]);
                return (view, rest);
            }
        }
        let protocols = self.protocols(slice.tunnel);
        let view = match (protocols.field(slice), slice.base, slice.offset, slice.length) {
            (Some((header, field)), ..) => View::field(header, field, slice.length, &prefix),
            (None, PayloadBase::Transport, 0, 16) => View::new("th sport", Form::of(DataType::Service), 16),
            (None, PayloadBase::Transport, 16, 16) => View::new("th dport", Form::of(DataType::Service), 16),
            _ => View::new(
                format!("{prefix}@{},{},{}", slice.base, slice.offset, slice.length),
                Form::raw(),
                slice.length,
            ),
        };
        (view, steps)
    }

    /// The field that bits of an extension header are, and the steps after the one that selects it.
    fn extension<'b>(&self, extension: &Extension, steps: &'b [Step]) -> Option<(View, &'b [Step])> {
        if let [Step::MaskXor(mask, xor), rest @ ..] = steps
            && is_zero(xor)
            && let Some(number) = Form::of(DataType::Integer).number(mask.as_bytes())
            && let Some((narrowed, shift)) = extension.masked(number)
        {
            let mut view = narrowed.view()?;
            if let [Step::Right(bits), rest @ ..] = rest
                && *bits == shift
            {
                return Some((view, rest));
            }
            view.form.shift = shift;
            return Some((view, rest));
        }
        Some((extension.view()?, steps))
    }

    /// The text of the keys, and the name of the set, or its elements if it is anonymous.
    fn key_and_set(&mut self, register: Register, name: &str) -> Option<(String, String, &Set)> {
        let contents = self.context.set(name)?;
        let key = self.key(register, contents.set.key_length)?;
        let text: Vec<String> = key.iter().map(View::full_text).collect();
        let has_steps = key.iter().any(|view| !view.steps.is_empty());
        let is_anonymous = contents.set.flags.contains(SetFlags::ANONYMOUS);
        let set_text = if is_anonymous {
            let forms: Vec<Form> = key
                .iter()
                .map(|view| Form {
                    length: view.loaded,
                    ..view.form
                })
                .collect();
            if let [
                View {
                    subject: Some(subject @ Subject::Field(Header::Icmp | Header::Icmp6, _)),
                    ..
                },
            ] = key.as_slice()
                && let Some([message]) = contents.elements.first().map(|element| element.key.as_bytes())
            {
                self.protocols.learn(*subject, u64::from(*message));
            }
            let elements = set::elements(&contents.set, &contents.elements, &self.context, Some(&forms));
            format!("{{ {} }}", elements.join(", "))
        } else {
            format!("@{name}")
        };
        let mut text = text.join(" . ");
        let is_comparison = contents.set.data.is_none() && key.len() == 1;
        if is_comparison && has_steps {
            text += " ==";
        }
        Some((text, set_text, &contents.set))
    }

    /// A register as the right side of an assignment to a field of this form and length in bytes.
    pub(super) fn assigned(&mut self, register: Register, form: Form, length: u32) -> Option<String> {
        let operand = self.operand(register)?.clone();
        if let Some(value) = operand.constant() {
            let bytes = value.as_bytes();
            let bytes = if length == 0 {
                bytes
            } else {
                bytes.get(..length as usize).unwrap_or(bytes)
            };
            return Some(form.text(bytes));
        }
        Some(self.view(&operand)?.full_text())
    }

    /// `None` if there is no notation for the expression, or a register has something without one.
    fn print(&mut self, expression: &Expression) -> Option<()> {
        if let Some(text) = stateful::text(expression) {
            self.say(text);
            return Some(());
        }
        match expression {
            Expression::Immediate(immediate) => match &immediate.data {
                Data::Verdict(verdict) => {
                    let text = self.verdict(verdict);
                    self.say(text);
                    Some(())
                }
                Data::Value(value) => self.store(
                    immediate.destination,
                    Operand::new(Origin::Constant(value.clone()), value.len() as u32),
                ),
            },
            Expression::Payload(payload) => {
                let slice = Slice {
                    base: payload.base,
                    offset: payload.offset.checked_mul(8)?,
                    length: payload.length.checked_mul(8)?,
                    tunnel: None,
                };
                self.store(
                    payload.destination,
                    Operand::new(Origin::Payload(slice), payload.length),
                )
            }
            Expression::Inner(inner) => self.inner_expression(inner),
            Expression::Meta(meta) => {
                let (text, form, length) = field::meta(meta.key)?;
                self.named(meta.destination, text, form, length, Some(meta.key))
            }
            Expression::ConnectionTracking(ct) => {
                let family = self.network_family();
                let (text, form, length) = field::connection(ct.key, ct.direction, family)?;
                let is_address = matches!(
                    ct.key,
                    ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination
                );
                if is_address && self.family == TableFamily::Inet {
                    let superfluous = self.protocols.superfluous_layer(PayloadBase::Network);
                    self.drop_statement(superfluous);
                }
                self.named(ct.destination, text, form, length, None)
            }
            Expression::ExtensionHeader(header) => {
                let is_presence = header.flags & 1 != 0;
                let extension = Extension {
                    kind: header.kind,
                    number: header.number,
                    offset: header.offset.checked_mul(8)?,
                    length: header.length.checked_mul(8)?,
                    is_presence,
                };
                let length = if is_presence { 1 } else { header.length };
                self.store(
                    header.destination,
                    Operand::new(Origin::Extension(extension), length),
                )
            }
            Expression::Fib(fib) => {
                let names = [
                    (FibFlags::SOURCE, "saddr"),
                    (FibFlags::DESTINATION, "daddr"),
                    (FibFlags::MARK, "mark"),
                    (FibFlags::INPUT_INTERFACE, "iif"),
                    (FibFlags::OUTPUT_INTERFACE, "oif"),
                ];
                let flags: Vec<&str> = names
                    .iter()
                    .filter(|(flag, _)| fib.flags.contains(*flag))
                    .map(|(_, name)| *name)
                    .collect();
                let is_presence = fib.flags.contains(FibFlags::PRESENT);
                let (data_type, length) = match fib.result {
                    _ if is_presence => (DataType::Boolean, 1),
                    FibResult::AddressType => (DataType::AddressType, 4),
                    FibResult::OutputIndex => (DataType::InterfaceIndex, 4),
                    FibResult::OutputName => (DataType::InterfaceName, 16),
                    FibResult::Unknown(_) => return None,
                };
                let check = if is_presence { "check" } else { "" };
                let result = if is_presence {
                    check.to_owned()
                } else {
                    fib.result.to_string()
                };
                let text = format!("fib {} {result}", flags.join(" . "));
                self.named(fib.destination, text, Form::of(data_type), length, None)
            }
            Expression::Route(route) => {
                let (text, form, length) = field::route(route.key)?;
                self.named(route.destination, text, form, length, None)
            }
            Expression::Socket(socket) => {
                let (text, form, length) = field::socket(socket.key, socket.level)?;
                self.named(socket.destination, text, form, length, None)
            }
            Expression::OsFingerprint(fingerprint) => {
                let text = field::os_fingerprint(fingerprint)?;
                self.named(
                    fingerprint.destination,
                    text,
                    Form::of(DataType::String),
                    16,
                    None,
                )
            }
            Expression::Tunnel(tunnel) => {
                let (text, form, length) = field::tunnel(tunnel.key)?;
                self.named(tunnel.destination, text, form, length, None)
            }
            Expression::Xfrm(xfrm) => {
                let (text, form, length) = field::xfrm(xfrm)?;
                self.named(xfrm.destination, text, form, length, None)
            }
            Expression::NumberGenerator(generator) => {
                let kind = match generator.kind {
                    NumberGeneratorKind::Incremental => "inc",
                    NumberGeneratorKind::Random => "random",
                    NumberGeneratorKind::Unknown(_) => return None,
                };
                let offset = offset(generator.offset);
                let text = format!("numgen {kind} mod {}{offset}", generator.modulus);
                self.named(generator.destination, text, Form::host_number(), 4, None)
            }
            Expression::Hash(hash) => {
                let offset = offset(hash.offset);
                let text = match (hash.kind, hash.source) {
                    (HashKind::Symmetric, _) => format!("symhash mod {}{offset}", hash.modulus),
                    (HashKind::Jenkins, Some(source)) => {
                        let key = self.key(source, hash.length?)?;
                        let key: Vec<String> = key.iter().map(View::full_text).collect();
                        let seed = hash
                            .seed
                            .map_or_else(String::new, |seed| format!(" seed 0x{seed:x}"));
                        format!("jhash {} mod {}{seed}{offset}", key.join(" . "), hash.modulus)
                    }
                    _ => return None,
                };
                self.named(hash.destination, text, Form::host_number(), 4, None)
            }
            Expression::Bitwise(bitwise) => self.bitwise(bitwise),
            Expression::ByteOrder(order) => {
                let mut operand = self.operand(order.source)?.clone();
                // One byte has no order, and a constant was written in the order that is needed.
                if order.length > 1 && operand.constant().is_none() {
                    operand.steps.push(Step::ByteOrder);
                }
                self.store(order.destination, operand)
            }
            Expression::Compare(compare) => self.compare(compare.source, compare.operator, &compare.value),
            Expression::Range(range) => {
                let operand = self.operand(range.source)?.clone();
                let view = self.view(&operand)?;
                let not = if range.operator == CompareOperator::NotEqual {
                    "!= "
                } else {
                    ""
                };
                let ends = [&range.from, &range.to].map(|end| view.form.end_text(end.as_bytes()));
                let range = ends.join("-");
                self.condition(format!("{} {not}{range}", view.full_text()));
                Some(())
            }
            Expression::Lookup(lookup) => self.lookup(lookup),
            expression => self.effect(expression),
        }
    }

    fn lookup(&mut self, lookup: &crate::Lookup) -> Option<()> {
        let (key, name, set) = self.key_and_set(lookup.source, &lookup.set)?;
        let data = set.data;
        match (lookup.destination, data) {
            (None, _) => {
                let not = if lookup.flags.contains(LookupFlags::INVERT) {
                    "!= "
                } else {
                    ""
                };
                self.condition(format!("{key} {not}{name}"));
                Some(())
            }
            (Some(_), Some(MapData::Verdicts)) => {
                self.say(format!("{key} vmap {name}"));
                Some(())
            }
            (Some(register), Some(MapData::Values { types, length })) => {
                let text = format!("{key} map {name}");
                self.store(register, Operand::new(Origin::Map { text, types }, length))
            }
            _ => None,
        }
    }

    fn bitwise(&mut self, bitwise: &crate::Bitwise) -> Option<()> {
        let mut operand = self.operand(bitwise.source)?.clone();
        let shift = || -> Option<u32> {
            let bytes = bitwise.data.as_ref()?.as_bytes();
            Some(u32::from_ne_bytes(bytes.try_into().ok()?))
        };
        let mut combined = |name| -> Option<Step> {
            let text = match (bitwise.second_source, &bitwise.data) {
                (Some(second), _) => {
                    let second = self.operand(second)?.clone();
                    self.view(&second)?.full_text()
                }
                (None, Some(data)) => data.to_string(),
                (None, None) => return None,
            };
            Some(Step::Combine(name, text))
        };
        let step = match bitwise.operation {
            BitwiseOperation::MaskXor => Step::MaskXor(bitwise.mask.clone()?, bitwise.xor.clone()?),
            BitwiseOperation::ShiftLeft => Step::Left(shift()?),
            BitwiseOperation::ShiftRight => Step::Right(shift()?),
            BitwiseOperation::And => combined("&")?,
            BitwiseOperation::Or => combined("|")?,
            BitwiseOperation::Xor => combined("^")?,
            BitwiseOperation::Unknown(_) => return None,
        };
        operand.steps.push(step);
        self.store(bitwise.destination, operand)
    }

    fn compare(&mut self, source: Register, operator: CompareOperator, expected: &Value) -> Option<()> {
        let operand = self.operand(source)?.clone();
        let is_equality = matches!(operator, CompareOperator::Equal | CompareOperator::NotEqual);
        if let (Origin::Payload(slice), []) = (&operand.origin, operand.steps.as_slice())
            && is_equality
        {
            self.compare_fields(*slice, operator, expected.as_bytes());
            return Some(());
        }
        let view = self.view(&operand)?;
        self.compare_view(&view, operator, expected.as_bytes());
        Some(())
    }

    /// Bits of the packet that may be several fields.
    fn compare_fields(&mut self, slice: Slice, operator: CompareOperator, bytes: &[u8]) {
        // Fewer bytes of a value are compared if the others have no effect.
        let slice = Slice {
            length: slice.length.min(bytes.len() as u32 * 8),
            ..slice
        };
        let prefix = slice
            .tunnel
            .map_or_else(String::new, |tunnel| format!("{} ", tunnel.name()));
        let (fields, rest) = self.protocols(slice.tunnel).split(slice);
        let mut offset = 0;
        for (header, field, length) in fields {
            let value = bits(bytes, offset, length);
            offset += length;
            let view = View::field(header, field, length, &prefix);
            let missing = field.length - length;
            let text = if missing > 0 {
                let shifted = view.form.number(&value).unwrap_or(0) << missing;
                let text = view.form.number_text(shifted, field.length.div_ceil(8) as usize);
                format!("{text}/{length}")
            } else {
                view.form.text(&value)
            };
            let number = view
                .form
                .number(&value)
                .and_then(|number| u64::try_from(number).ok());
            let equal = if operator == CompareOperator::Equal && view.form.is_flags() {
                "== "
            } else {
                operator_text(operator)
            };
            let subject = Subject::Field(header, field);
            let is_equal = operator == CompareOperator::Equal;
            let protocols = self.protocols(slice.tunnel);
            if let Some(number) = number.filter(|_| is_equal) {
                protocols.learn(subject, number);
            }
            let superfluous = protocols.superfluous(header, &field);
            self.drop_statement(superfluous);
            let statement = self.condition(format!("{} {equal}{text}", view.text));
            if let Some(number) = number.filter(|_| is_equal) {
                self.protocols(slice.tunnel).store(subject, number, statement);
            }
        }
        if rest.length > 0 {
            let (view, _) = self.payload(rest, &[]);
            let value = bits(bytes, offset, rest.length);
            let text = view.form.text(&value);
            self.condition(format!("{} {}{text}", view.text, operator_text(operator)));
        }
    }

    fn compare_view(&mut self, view: &View, operator: CompareOperator, bytes: &[u8]) {
        let form = &view.form;
        let text = &view.text;
        let is_equality = matches!(operator, CompareOperator::Equal | CompareOperator::NotEqual);
        if let ([Step::MaskXor(mask, xor)], true) = (view.steps.as_slice(), is_zero_of(&view.steps))
            && is_equality
            && is_zero(xor)
        {
            if form.is_flags() {
                let statement = flag_comparison(view, operator, mask, bytes);
                self.condition(statement);
                return;
            }
            if form.has_prefixes()
                && let Some(number) = form.number(mask.as_bytes())
                && let Some(length) = prefix(number, mask.len() as u32 * 8)
            {
                let value = form.text(bytes);
                self.condition(format!("{text} {}{value}/{length}", operator_text(operator)));
                return;
            }
        }
        // A comparison of the first bytes of an address is one of a prefix.
        if view.steps.is_empty() && is_equality && form.has_prefixes() && (bytes.len() as u32) < view.loaded {
            let mut address = bytes.to_vec();
            address.resize(view.loaded as usize, 0);
            let value = form.text(&address);
            let length = bytes.len() * 8;
            self.condition(format!("{text} {}{value}/{length}", operator_text(operator)));
            return;
        }
        if !view.steps.is_empty() {
            let value = form.text(bytes);
            let operator = if operator == CompareOperator::Equal {
                "==".to_owned()
            } else {
                operator.to_string()
            };
            self.condition(format!("{} {operator} {value}", view.full_text()));
            return;
        }
        let value = form.text(bytes);
        let end = form.end_text(bytes);
        // `nft` writes a range of numbers as two comparisons.
        let merged = match (
            self.statements.last().and_then(|last| last.bound.as_ref()),
            operator,
        ) {
            (Some((left, CompareOperator::GreaterOrEqual, first)), CompareOperator::LessOrEqual)
                if left == text =>
            {
                Some(format!("{text} {first}-{end}"))
            }
            (Some((left, CompareOperator::Less, first)), CompareOperator::Greater) if left == text => {
                Some(format!("{text} != {first}-{end}"))
            }
            _ => None,
        };
        if let (Some(merged), Some(last)) = (merged, self.statements.last_mut()) {
            *last = Statement {
                text: merged,
                bound: None,
            };
            return;
        }
        let equal = if operator == CompareOperator::Equal && form.is_flags() {
            "== "
        } else {
            operator_text(operator)
        };
        let statement = self.condition(format!("{text} {equal}{value}"));
        if !is_equality && let Some(last) = self.statements.last_mut() {
            last.bound = Some((text.clone(), operator, end));
        }
        let number = form.number(bytes).and_then(|number| u64::try_from(number).ok());
        if operator == CompareOperator::Equal
            && let Some(subject) = view.subject
            && let Some(number) = number
        {
            let protocols = self.protocols(view.tunnel);
            protocols.learn(subject, number);
            if let Subject::Meta(key) = subject {
                let superfluous = protocols.superfluous_for_meta(key, number);
                protocols.store(subject, number, statement);
                self.drop_statement(superfluous);
            }
        }
    }

    /// The family of the packet's network layer, if it is known.
    pub(super) fn network_family(&self) -> TableFamily {
        match self.protocols.header(PayloadBase::Network) {
            Some(Header::Ip) => TableFamily::Ip,
            Some(Header::Ip6) => TableFamily::Ip6,
            _ => self.family,
        }
    }

    fn inner_expression(&mut self, inner: &crate::Inner) -> Option<()> {
        let tunnel = match inner.kind {
            1 => Header::Vxlan,
            2 => Header::Geneve,
            3 => Header::Gre,
            4 => Header::Gretap,
            _ => return None,
        };
        if matches!(tunnel, Header::Gre | Header::Gretap) {
            let superfluous = self.protocols.superfluous_layer(PayloadBase::Transport);
            self.drop_statement(superfluous);
        }
        match &*inner.expression {
            Expression::Payload(payload) => {
                let slice = Slice {
                    base: payload.base,
                    offset: payload.offset.checked_mul(8)?,
                    length: payload.length.checked_mul(8)?,
                    tunnel: Some(tunnel),
                };
                self.store(
                    payload.destination,
                    Operand::new(Origin::Payload(slice), payload.length),
                )
            }
            Expression::Meta(meta) => {
                let (text, form, length) = field::meta(meta.key)?;
                let origin = Origin::Named {
                    text: format!("{} {text}", tunnel.name()),
                    form,
                    meta: Some(meta.key),
                    tunnel: Some(tunnel),
                };
                self.store(meta.destination, Operand::new(origin, length))
            }
            _ => None,
        }
    }

    /// The key, its timeout, and the expressions of a dynamic element.
    pub(super) fn dynset(&mut self, dynset: &crate::Dynset) -> Option<()> {
        let (key, _, set) = self.key_and_set(dynset.key, &dynset.set)?;
        let data_length = match set.data {
            Some(MapData::Values { length, .. }) => length,
            _ => 0,
        };
        let mut text = format!("{} @{} {{ {key}", dynset.operation, dynset.set);
        if let Some(timeout) = dynset.timeout {
            text += &format!(" timeout {}", super::value::duration(timeout));
        }
        for expression in &dynset.expressions {
            text += &format!(" {}", stateful::without_state(expression)?);
        }
        if let Some(data) = dynset.data {
            let data = self.key(data, data_length)?;
            let data: Vec<String> = data.iter().map(View::full_text).collect();
            text += &format!(" : {}", data.join(" . "));
        }
        self.say(text + " }");
        Some(())
    }

    /// `counter name ip saddr map ...`.
    pub(super) fn object_map(&mut self, map: &crate::ObjectMap) -> Option<()> {
        let (key, name, set) = self.key_and_set(map.source, &map.set)?;
        let Some(MapData::Objects(kind)) = set.data else {
            return None;
        };
        self.say(format!(
            "{} {key} map {name}",
            super::effect::object_map_verb(kind)
        ));
        Some(())
    }

    /// The field that an assignment to bits of the packet is of, and the value.
    pub(super) fn assigned_bits(&mut self, slice: Slice, source: Register) -> Option<(String, String)> {
        let operand = self.operand(source)?.clone();
        if let (Origin::Payload(loaded), [Step::MaskXor(mask, xor)]) =
            (&operand.origin, operand.steps.as_slice())
            && *loaded == slice
        {
            let number = Form::of(DataType::Integer);
            let kept = number.number(mask.as_bytes())?;
            let set = number.number(xor.as_bytes())?;
            // If all bits are set, none is cleared before.
            let changed = !kept & ones(slice.length) | set & ones(slice.length);
            if let Some((narrowed, header, field, shift)) = self.protocols.masked(slice, changed) {
                let view = View::field(header, field, narrowed.length, "");
                self.forget(header, &field);
                let value = view
                    .form
                    .number_text(set >> shift, narrowed.length.div_ceil(8) as usize);
                return Some((view.text, value));
            }
        }
        let (view, _) = self.payload(slice, &[]);
        if let Some(Subject::Field(header, field)) = view.subject {
            self.forget(header, &field);
        }
        let value = self.assigned(source, view.form, slice.length.div_ceil(8))?;
        Some((view.text, value))
    }

    fn forget(&mut self, header: Header, field: &HeaderField) {
        let superfluous = self.protocols.superfluous(header, field);
        self.drop_statement(superfluous);
    }

    fn verdict(&self, verdict: &crate::Verdict) -> String {
        let target = verdict.chain().filter(|_| self.context.depth < DEPTH);
        let anonymous = target.and_then(|name| {
            let mut chains = self.context.chains.iter();
            chains.find(|contents| contents.chain.is_anonymous() && *contents.chain.key.name == *name)
        });
        let Some(contents) = anonymous else {
            return verdict.to_string();
        };
        let verb = match verdict {
            crate::Verdict::Goto(_) => "goto",
            _ => "jump",
        };
        let context = Context {
            depth: self.context.depth + 1,
            ..self.context
        };
        let rules: Vec<String> = contents
            .rules
            .iter()
            .map(|rule| format!("\t\t\t{}\n", context.rule(rule)))
            .collect();
        format!("{verb} {{\n{}\t\t}}", rules.concat())
    }
}

fn is_zero_of(steps: &[Step]) -> bool {
    matches!(steps, [Step::MaskXor(_, xor)] if is_zero(xor))
}

fn offset(offset: u32) -> String {
    if offset > 0 {
        format!(" offset {offset}")
    } else {
        String::new()
    }
}

/// The operator with a space after it; nothing for equality.
fn operator_text(operator: CompareOperator) -> &'static str {
    match operator {
        CompareOperator::Equal => "",
        CompareOperator::NotEqual => "!= ",
        CompareOperator::Less => "< ",
        CompareOperator::LessOrEqual => "<= ",
        CompareOperator::Greater => "> ",
        CompareOperator::GreaterOrEqual => ">= ",
        CompareOperator::Unknown(_) => "? ",
    }
}

/// A comparison of flags that a mask selects.
fn flag_comparison(view: &View, operator: CompareOperator, mask: &Value, bytes: &[u8]) -> String {
    let text = &view.text;
    let flags = view.form.text(mask.as_bytes());
    let value = view.form.text(bytes);
    let is_equal = operator == CompareOperator::Equal;
    if bytes.iter().all(|byte| *byte == 0) {
        return if is_equal {
            format!("{text} ! {flags}")
        } else {
            format!("{text} {flags}")
        };
    }
    let operator = if is_equal { "==" } else { "!=" };
    let value = value.replace(',', " | ");
    if mask.as_bytes().iter().all(|byte| *byte == 0xff) {
        return format!("{text} {operator} {value}");
    }
    let masked = if flags.contains(',') {
        format!("({})", flags.replace(',', " | "))
    } else {
        flags
    };
    format!("{text} & {masked} {operator} {value}")
}

/// Bits of a value from an offset on, as the lowest bits of bytes.
fn bits(bytes: &[u8], offset: u32, length: u32) -> Vec<u8> {
    if offset.is_multiple_of(8) && length.is_multiple_of(8) {
        let (start, end) = (offset as usize / 8, (offset + length) as usize / 8);
        return bytes.get(start..end).unwrap_or(&[]).to_vec();
    }
    let bit = |index: u32| {
        let byte = bytes.get(index as usize / 8).copied().unwrap_or(0);
        byte >> (7 - index % 8) & 1
    };
    let mut found = vec![0; length.div_ceil(8) as usize];
    let unused = found.len() as u32 * 8 - length;
    for index in 0..length {
        let position = index + unused;
        if let Some(byte) = found.get_mut(position as usize / 8) {
            *byte |= bit(offset + index) << (7 - position % 8);
        }
    }
    found
}

/// The length of the prefix that a mask is.
fn prefix(mask: u128, bits: u32) -> Option<u32> {
    let length = mask.count_ones();
    let shift = bits.checked_sub(length)?;
    (mask >> shift.min(127) == ones(length) && (length == 0 || mask.trailing_zeros() == shift))
        .then_some(length)
}
