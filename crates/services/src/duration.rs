//! Durations as the Go language writes them, which is how Kubernetes does.

use std::time::Duration;

/// A duration in the notation of the Go language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoDuration {
    /// Zero or more.
    NonNegative(Duration),
    /// Less than zero.
    Negative,
}

/// Reads `300ms`, `1.5h` or `2h45m`; also a bare `0`.
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
    fn durations_are_go_durations() {
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
