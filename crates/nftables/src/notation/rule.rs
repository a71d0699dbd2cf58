//! Rules as `nft` lists them.

use super::form::{Form, quoted};
use super::header::{Header, HeaderField};
use super::operand::{Extension, Operand, Origin, Step, View};
use super::protocols::{Protocols, Slice, Subject};
use super::value::ones;
use super::{field, set, stateful, type_of};
use crate::data_type::DataType;
use crate::expression::{
    BitwiseOperation, CompareOperator, ConnectionTrackingKey, Expression, HashKind, LookupFlags, MetaKey,
    PayloadBase,
};
use crate::names::Names;
use crate::register::Register;
use crate::rule::Rule;
use crate::set::{MapData, Set, SetFlags};
use crate::table_family::TableFamily;
use crate::verdict::Data;

/// The sets and chains that rules refer to, with the elements of the anonymous ones, and the names of numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) sets: &'a [crate::SetContents],
    pub(super) chains: &'a [crate::ChainContents],
    pub(super) names: &'a Names,
    /// The number of anonymous chains that the rule is in.
    pub(super) depth: u8,
}

static NO_NAMES: Names = Names::new();

impl Default for Context<'_> {
    fn default() -> Self {
        Context {
            sets: &[],
            chains: &[],
            names: &NO_NAMES,
            depth: 0,
        }
    }
}

/// The largest number of anonymous chains in each other, as that of jumps.
const DEPTH: u8 = 16;

/// A statement of a rule; without text if a later one makes it superfluous.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    pub(super) text: String,
    /// One end of a range: what is compared, how, and with what.
    pub(super) bound: Option<(String, CompareOperator, String)>,
}

/// A rule while it is printed.
pub(super) struct Printer<'a> {
    pub(super) context: Context<'a>,
    pub(super) family: TableFamily,
    registers: [Option<Operand>; 16],
    pub(super) statements: Vec<Statement>,
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

    /// The fields of a key whose constants are values of these forms.
    fn key_of(&mut self, register: Register, length: u32, forms: &[Form]) -> Option<Vec<View>> {
        let operands = self.operands(register, length)?;
        let view = |(index, operand): (usize, &Operand)| {
            let mut view = self.view(operand)?;
            if let (Some(value), Some(form)) = (operand.constant(), forms.get(index)) {
                let bytes = value.as_bytes();
                // A constant may be as long as its registers.
                let bytes = bytes.get(..form.bytes() as usize).unwrap_or(bytes);
                (view.text, view.form) = (form.named_text(bytes, self.context.names), *form);
            }
            Some(view)
        };
        operands.iter().enumerate().map(view).collect()
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
    pub(super) fn condition(&mut self, text: String) -> usize {
        self.statements.push(Statement { text, bound: None });
        self.statements.len() - 1
    }

    pub(super) fn drop_statement(&mut self, statement: Option<usize>) {
        if let Some(statement) = statement.and_then(|index| self.statements.get_mut(index)) {
            *statement = Statement::default();
        }
    }

    pub(super) fn protocols(&mut self, tunnel: Option<Header>) -> &mut Protocols {
        match tunnel {
            Some(_) => &mut self.inner,
            None => &mut self.protocols,
        }
    }

    /// The text of the keys, and the name of the set, or its elements if it is anonymous.
    fn key_and_set(&mut self, register: Register, name: &str) -> Option<(String, String, &Set)> {
        let contents = self.context.set(name)?;
        let forms = set::key_forms(&contents.set, None);
        let key = self.key_of(register, contents.set.key_length, &forms)?;
        let text: Vec<String> = key
            .iter()
            .map(|view| view.full_text(self.context.names))
            .collect();
        let has_steps = key.iter().any(|view| !view.steps.is_empty());
        let is_anonymous = contents.set.flags.contains(SetFlags::ANONYMOUS);
        let set_text = if is_anonymous {
            let forms = type_of::forms(&key);
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
            return Some(form.named_text(bytes, self.context.names));
        }
        Some(self.view(&operand)?.full_text(self.context.names))
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
                let (text, form, length) = field::fib(fib.result, fib.flags)?;
                self.named(fib.destination, text, form, length, None)
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
                let (text, form, length) = field::xfrm(xfrm.key, xfrm.direction, xfrm.number)?;
                self.named(xfrm.destination, text, form, length, None)
            }
            Expression::NumberGenerator(generator) => {
                let text = field::generator(generator.kind, generator.modulus, generator.offset)?;
                self.named(generator.destination, text, Form::host_number(), 4, None)
            }
            Expression::Hash(hash) => {
                let text = match (hash.kind, hash.source) {
                    (HashKind::Symmetric, _) => {
                        field::symmetric_hash(hash.kind, hash.modulus, None, hash.offset)?
                    }
                    (HashKind::Jenkins, Some(source)) => {
                        let key = self.key(source, hash.length?)?;
                        let key: Vec<String> = key
                            .iter()
                            .map(|view| view.full_text(self.context.names))
                            .collect();
                        let (seed, offset) = (field::seed(hash.seed), field::offset(hash.offset));
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
                let names = self.context.names;
                let mut ends = [&range.from, &range.to].map(|end| view.form.end_text(end.as_bytes(), names));
                // Not from one hour to a later one is until the first one of the next day.
                let is_reversed = view.form.data_type == DataType::HourOfDay
                    && range.operator == CompareOperator::NotEqual
                    && view.form.number(range.from.as_bytes()) <= view.form.number(range.to.as_bytes());
                let not = if is_reversed { "" } else { not };
                if is_reversed {
                    ends.reverse();
                }
                let range = ends.join("-");
                self.condition(format!("{} {not}{range}", view.full_text(self.context.names)));
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
                    self.view(&second)?.full_text(self.context.names)
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
        let (data_length, forms) = match set.data {
            Some(MapData::Values { types, length }) => (length, set::data_forms(set, types)),
            _ => (0, Vec::new()),
        };
        let mut text = format!("{} @{} {{ {key}", dynset.operation, dynset.set);
        if let Some(timeout) = dynset.timeout {
            text += &format!(" timeout {}", super::value::duration(timeout));
        }
        for expression in &dynset.expressions {
            text += &format!(" {}", stateful::without_state(expression)?);
        }
        if let Some(data) = dynset.data {
            let data = self.key_of(data, data_length, &forms)?;
            let data: Vec<String> = data
                .iter()
                .map(|view| view.full_text(self.context.names))
                .collect();
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
            if let Some(parts) = self.changed_bits(slice, kept & ones(slice.length), set & ones(slice.length))
            {
                return Some(parts);
            }
        }
        let (view, _) = self.payload(slice, &[]);
        if let Some(Subject::Field(header, field)) = view.subject {
            self.forget(header, &field);
        }
        let value = self.assigned(source, view.form, slice.length.div_ceil(8))?;
        Some((view.text, value))
    }

    /// As [`assigned_bits`](Self::assigned_bits), of bits that are computed from those that are there: kept, and then changed.
    fn changed_bits(&mut self, slice: Slice, kept: u128, xor: u128) -> Option<(String, String)> {
        let (cleared, set) = (ones(slice.length) & !kept, xor & !kept);
        if let Some((header, field, shift)) = self.protocols.containing(slice, cleared | xor) {
            let (operator, number) = match (cleared, xor) {
                (cleared, 0) => ("&", ones(field.length) & !(cleared >> shift)),
                (cleared, xor) if cleared == xor => ("|", set >> shift),
                (0, xor) => ("^", xor >> shift),
                _ => return None,
            };
            let view = View::field(header, field, field.length, "");
            self.forget(header, &field);
            let length = field.length.div_ceil(8) as usize;
            let mut number = view.form.number_text(number, length);
            if view.form.is_flags() && number.contains(',') {
                number = number.replace(',', " | ");
                if operator != "|" {
                    number = format!("({number})");
                }
            }
            return Some((view.text.clone(), format!("{} {operator} {number}", view.text)));
        }
        // Bits that are no field. A bit that is kept and inverted has no notation.
        if xor & kept != 0 {
            return None;
        }
        let is_known = self.protocols.field(slice).is_some();
        let (narrowed, shift) = slice.narrowed(cleared | set).filter(|_| !is_known)?;
        let (view, _) = self.payload(narrowed, &[]);
        let length = narrowed.length.div_ceil(8) as usize;
        Some((view.text, view.form.number_text(set >> shift, length)))
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
