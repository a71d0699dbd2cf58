//! Durations in the notation of Go's `time.ParseDuration`, which Kubernetes uses.

use std::time::Duration;

/// A duration in Go's notation. Negative values have no meaning for a service proxy, so their size is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoDuration {
    /// Zero or more.
    NonNegative(Duration),
    /// Less than zero.
    Negative,
}

/// Parses `300ms`, `1.5h`, `2h45m` or `0`. `None` if the text is not a duration, or exceeds 2⁶³ - 1 ns (about 292 years).
#[must_use]
pub fn parse_go_duration(text: &str) -> Option<GoDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(GoDuration::NonNegative(Duration::ZERO));
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: f64 = 0.0;
    let mut whole: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|&end| end > 0)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let scale: u32 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "h" => 0,
            _ => return None,
        };
        let scale: u64 = match unit {
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => scale.into(),
        };
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        if integer.is_empty() && fraction.is_empty() {
            return None;
        }
        if !integer.is_empty() {
            whole = whole.checked_add(u128::from(integer.parse::<u64>().ok()?) * u128::from(scale))?;
        }
        if !fraction.is_empty() {
            nanos += format!("0.{fraction}").parse::<f64>().ok()? * scale as f64;
        }
        rest = tail;
    }
    let total = whole.checked_add(nanos as u128)?;
    // Go's durations are 64-bit nanoseconds.
    let total = u64::try_from(total)
        .ok()
        .filter(|total| *total <= i64::MAX.unsigned_abs())?;
    if negative && total > 0 {
        return Some(GoDuration::Negative);
    }
    Some(GoDuration::NonNegative(Duration::from_nanos(total)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_notation_of_go() {
        let positive = |text| match parse_go_duration(text) {
            Some(GoDuration::NonNegative(duration)) => Some(duration),
            _ => None,
        };
        assert_eq!(positive("1h15m30.5s"), Some(Duration::from_millis(4_530_500)));
        assert_eq!(positive("1µs"), Some(Duration::from_micros(1)));
        assert_eq!(positive(".5s"), Some(Duration::from_millis(500)));
        assert_eq!(positive("0"), Some(Duration::ZERO));
        assert_eq!(parse_go_duration("-1s"), Some(GoDuration::Negative));
        for text in ["", "1", "s", "1x", "1s1", ".s", "-", "99999999999h"] {
            assert_eq!(parse_go_duration(text), None, "{text}");
        }
    }
}
