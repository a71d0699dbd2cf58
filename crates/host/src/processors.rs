//! The number of processors, on which the limit of tracked connections depends.

/// The number of processors that are online, as kube-proxy counts them (kubernetes issue 99225). It does not depend on the affinity of
/// this process or the limits of its control group.
pub fn processors() -> u32 {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
    let counted = online.as_deref().and_then(count_processors);
    counted.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
    })
}

/// The number of processors in a list such as `0-3,8`; `None` if the list is invalid or empty.
fn count_processors(list: &str) -> Option<u32> {
    let mut count: u32 = 0;
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_from_ranges() {
        assert_eq!(count_processors("0\n"), Some(1));
        assert_eq!(count_processors("0-3,8,10-11\n"), Some(7));
        for text in ["", "\n", "x", "3-1", "0-4294967295"] {
            assert_eq!(count_processors(text), None, "{text}");
        }
    }
}
