//! Values as `nft` prints them.

use std::fmt::{self, Write as _};

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

/// A number whose lowest bits are set.
pub(super) fn ones(bits: u32) -> u128 {
    u128::MAX.checked_shr(128_u32.saturating_sub(bits)).unwrap_or(0)
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
    use super::*;

    #[test]
    fn durations_are_printed_in_units() {
        let text = |milliseconds| duration(std::time::Duration::from_millis(milliseconds));
        assert_eq!(text(93_784_005), "1d2h3m4s5ms");
        assert_eq!(text(60_000), "1m");
        assert_eq!(text(0), "0s");
    }
}
