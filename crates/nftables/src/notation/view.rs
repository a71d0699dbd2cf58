//! How the operands of a rule are written: as fields of headers, if they are that.

use super::form::Form;
use super::header::Header;
use super::operand::{Extension, Operand, Origin, Step, View};
use super::protocols::{Slice, Subject};
use super::rule::Printer;
use crate::data_type::DataType;
use crate::expression::{ExtensionHeaderKind, PayloadBase};
use crate::value::Value;

impl Printer<'_> {
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
    pub(super) fn payload<'b>(&mut self, slice: Slice, steps: &'b [Step]) -> (View, &'b [Step]) {
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
        // Bits that are no field, but not the first ones.
        if let [Step::MaskXor(mask, xor), rest @ ..] = steps
            && is_zero(xor)
            && let Some(number) = Form::of(DataType::Integer).number(mask.as_bytes())
            && let Some((narrowed, shift)) = slice.narrowed(number)
            && self.protocols(slice.tunnel).field(slice).is_none()
            && self.protocols(slice.tunnel).containing(slice, number).is_none()
        {
            let (mut view, _) = self.payload(narrowed, &[]);
            view.form.shift = shift;
            return (view, rest);
        }
        let protocols = self.protocols(slice.tunnel);
        let is_unknown = protocols.header(slice.base) == Some(Header::Other);
        let view = match (protocols.field(slice), slice.base, slice.offset, slice.length) {
            (Some((header, field)), ..) => View::field(header, field, slice.length, &prefix),
            (None, PayloadBase::Transport, 0, 16) if !is_unknown => {
                View::new("th sport", Form::of(DataType::Service), 16)
            }
            (None, PayloadBase::Transport, 16, 16) if !is_unknown => {
                View::new("th dport", Form::of(DataType::Service), 16)
            }
            _ => View::new(
                format!("{prefix}@{},{},{}", slice.base, slice.offset, slice.length),
                Form::raw(),
                slice.length,
            ),
        };
        (view, steps)
    }

    /// The field that bits of an extension header are, and the steps after the one that selects it.
    pub(super) fn extension<'b>(
        &self,
        extension: &Extension,
        steps: &'b [Step],
    ) -> Option<(View, &'b [Step])> {
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
}

/// Whether all bytes are 0.
pub(super) fn is_zero(value: &Value) -> bool {
    value.as_bytes().iter().all(|byte| *byte == 0)
}
