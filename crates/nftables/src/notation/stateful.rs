//! Expressions with a state, which need no register.

use super::value::duration;
use crate::expression::{Expression, InvertFlags, LimitKind, QuotaFlags};

/// The expression of each element that a rule adds, which has no state yet.
pub(super) fn without_state(expression: &Expression) -> Option<String> {
    match expression {
        Expression::Counter(_) => Some("counter".into()),
        Expression::Last(_) => Some("last".into()),
        expression => text(expression),
    }
}

/// `None` if it is another expression.
pub(super) fn text(expression: &Expression) -> Option<String> {
    Some(match expression {
        Expression::Counter(counter) => {
            format!("counter packets {} bytes {}", counter.packets, counter.bytes)
        }
        Expression::Limit(limit) => {
            let over = over(limit.flags.contains(InvertFlags::INVERT));
            let unit = match limit.unit {
                1 => "second",
                60 => "minute",
                3600 => "hour",
                86_400 => "day",
                604_800 => "week",
                _ => return None,
            };
            match limit.kind {
                LimitKind::Packets => format!(
                    "limit rate {over}{}/{unit} burst {} packets",
                    limit.rate, limit.burst
                ),
                LimitKind::Bytes => {
                    let (rate, name) = bytes(limit.rate);
                    let mut text = format!("limit rate {over}{rate} {name}/{unit}");
                    if limit.burst > 0 {
                        let (burst, name) = bytes(limit.burst.into());
                        text += &format!(" burst {burst} {name}");
                    }
                    text
                }
                LimitKind::Unknown(_) => return None,
            }
        }
        Expression::Quota(quota) => {
            let over = over(quota.flags.contains(QuotaFlags::INVERT));
            let (number, unit) = bytes(quota.bytes);
            let mut text = format!("quota {over}{number} {unit}");
            if quota.consumed > 0 {
                let (number, unit) = bytes(quota.consumed);
                text += &format!(" used {number} {unit}");
            }
            text
        }
        Expression::ConnectionLimit(limit) => {
            let over = over(limit.flags.contains(InvertFlags::INVERT));
            format!("ct count {over}{}", limit.count)
        }
        Expression::Last(last) if last.set == 0 => "last used never".into(),
        Expression::Last(last) => {
            let time = duration(std::time::Duration::from_millis(last.milliseconds));
            format!("last used {time}")
        }
        _ => return None,
    })
}

fn over(is_inverted: bool) -> &'static str {
    if is_inverted { "over " } else { "" }
}

/// A number of bytes in the largest unit that divides it.
pub(super) fn bytes(number: u64) -> (u64, &'static str) {
    let units = [(1 << 20, "mbytes"), (1 << 10, "kbytes")];
    let found = units
        .iter()
        .find(|(unit, _)| number > 0 && number.is_multiple_of(*unit));
    found.map_or((number, "bytes"), |(unit, name)| (number / unit, *name))
}
