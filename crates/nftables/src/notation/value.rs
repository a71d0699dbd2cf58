//! Values as `nft` prints them.

use std::fmt::{self, Write as _};

use super::form::Form;
use crate::data_type::{DataType, DataTypes};
use crate::value::Value;

/// A value of one field.
pub(super) fn field(data_type: DataType, bytes: &[u8]) -> String {
    Form::of(data_type).text(bytes)
}

/// The fields of a value and their types, with the lengths of the types. The last field has the rest.
pub(super) fn fields(types: DataTypes, value: &Value) -> Vec<(DataType, Vec<u8>)> {
    let types: Vec<DataType> = types.iter().collect();
    if let [one] = *types {
        return vec![(one, value.as_bytes().to_vec())];
    }
    let mut rest = value.as_bytes();
    let mut fields = Vec::new();
    for data_type in types {
        let length = data_type.length().unwrap_or(4) as usize;
        let Some(bytes) = rest.get(..length) else { break };
        fields.push((data_type, bytes.to_vec()));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    if fields.is_empty() {
        fields.push((DataType::Integer, value.as_bytes().to_vec()));
    }
    fields
}

/// A value with all its fields.
pub(super) fn value(types: DataTypes, value: &Value) -> String {
    let fields: Vec<String> = fields(types, value)
        .iter()
        .map(|(data_type, bytes)| field(*data_type, bytes))
        .collect();
    fields.join(" . ")
}

impl DataTypes {
    /// A value of these types as `nft` prints it, such as `192.0.2.1 . tcp . 80`.
    #[must_use]
    pub fn format(self, value: &Value) -> String {
        self::value(self, value)
    }
}

/// The length of the prefix that all values of a range, and no others, have.
pub(super) fn prefix_length(first: &[u8], last: &[u8]) -> Option<u32> {
    let mut length = 0;
    let mut is_host = false;
    for (first, last) in first.iter().zip(last) {
        let different = first ^ last;
        let common = different.leading_zeros();
        let mask = 0xff_u8.checked_shr(common).unwrap_or(0);
        if first & mask != 0 || last & mask != mask || is_host && common != 0 {
            return None;
        }
        length += common;
        is_host |= common < 8;
    }
    Some(length)
}

/// A duration as `nft` prints it: `1d2h3m4s5ms`.
pub(super) fn duration(duration: std::time::Duration) -> String {
    let mut text = String::new();
    let mut rest = duration.as_millis();
    for (unit, name) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
        (1, "ms"),
    ] {
        if rest >= unit {
            let _infallible = write!(text, "{}{name}", rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// Text in quotation marks.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::set::range_text;
    use super::*;

    #[test]
    fn a_range_is_printed_as_a_prefix_if_it_is_one() {
        let form = Form::of(DataType::Ipv4Address);
        let range = |first: [u8; 4], last: [u8; 4]| range_text(&form, &first, &last);
        assert_eq!(range([10, 0, 0, 0], [10, 255, 255, 255]), "10.0.0.0/8");
        assert_eq!(range([10, 0, 4, 0], [10, 0, 7, 255]), "10.0.4.0/22");
        assert_eq!(range([10, 0, 4, 0], [10, 0, 9, 255]), "10.0.4.0-10.0.9.255");
        assert_eq!(range([10, 0, 4, 1], [10, 0, 4, 1]), "10.0.4.1");
        assert_eq!(range([0, 0, 0, 0], [255, 255, 255, 255]), "0.0.0.0/0");
    }

    #[test]
    fn durations_are_printed_in_units() {
        let text = |milliseconds| duration(std::time::Duration::from_millis(milliseconds));
        assert_eq!(text(93_784_005), "1d2h3m4s5ms");
        assert_eq!(text(60_000), "1m");
        assert_eq!(text(0), "0s");
    }
}
