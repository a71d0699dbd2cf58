//! Comparisons in rules.

use super::operand::{Origin, Step, View};
use super::protocols::{Slice, Subject};
use super::rule::{Printer, Statement};
use super::value::ones;
use super::view::is_zero;
use crate::expression::CompareOperator;
use crate::register::Register;
use crate::value::Value;

impl Printer<'_> {
    pub(super) fn compare(
        &mut self,
        source: Register,
        operator: CompareOperator,
        expected: &Value,
    ) -> Option<()> {
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
        let names = self.context.names;
        let value = if is_equality {
            form.named_text(bytes, names)
        } else {
            form.ordered_text(bytes, names)
        };
        if !view.steps.is_empty() {
            let operator = if operator == CompareOperator::Equal {
                "==".to_owned()
            } else {
                operator.to_string()
            };
            self.condition(format!(
                "{} {operator} {value}",
                view.full_text(self.context.names)
            ));
            return;
        }
        let end = form.end_text(bytes, names);
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
}

fn is_zero_of(steps: &[Step]) -> bool {
    matches!(steps, [Step::MaskXor(_, xor)] if is_zero(xor))
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
