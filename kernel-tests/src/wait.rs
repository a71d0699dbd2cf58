//! Waiting for what the kernel does in its own time, as long as the slowest machine may take, and no longer than needed.

use std::{
    fmt::Display,
    fs, thread,
    time::{Duration, Instant},
};

/// How long until something that comes by itself is given up. The tests' verdict does not depend on it: what does not
/// come fails, and what comes is not waited for any longer.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Asks again and again until there is an answer. Panics with the last refusal after [`LIMIT`].
#[track_caller]
pub fn until<T, E: Display>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(refusal) if start.elapsed() >= LIMIT => {
                panic!("after {} s still: {refusal}", LIMIT.as_secs())
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Returns when all IPv6 addresses of the calling thread's namespace, but for link-local ones, can be used.
///
/// Also without duplicate address detection the kernel makes an address usable on a thread of its own, after the program
/// that adds it has ended (`addrconf_dad_work` in
/// [`addrconf.c`](https://github.com/torvalds/linux/blob/v6.1/net/ipv6/addrconf.c)). Until then no neighbour gets an answer, no
/// packet to the address is taken in, and no event tells of it. The local route comes last.
#[track_caller]
pub fn for_ipv6_addresses() {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
    until(|| {
        let addresses = read("/proc/thread-self/net/if_inet6");
        match unusable(&addresses, &read("/proc/thread-self/net/ipv6_route")) {
            Some(line) => Err(format!("an address that cannot be used yet: {line}")),
            None => Ok(()),
        }
    });
}

/// The first line of `if_inet6` with an address that has no local route in `ipv6_route`, link-local ones aside.
fn unusable<'a>(addresses: &'a str, routes: &str) -> Option<&'a str> {
    let has_route = |address: &str| {
        routes.lines().any(|route| {
            let words: Vec<_> = route.split_whitespace().collect();
            matches!(words[..], [destination, "80", .., flags, _device]
                if destination == address && is_local(flags))
        })
    };
    addresses.lines().find(|line| {
        let address = line.split_whitespace().next().unwrap_or_default();
        !address.starts_with("fe80") && !has_route(address)
    })
}

/// Whether the flags of a route have `RTF_LOCAL`.
fn is_local(flags: &str) -> bool {
    u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & 0x8000_0000 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_comes_later_is_waited_for() {
        let mut asked = 0;
        let answer = until(|| {
            asked += 1;
            if asked == 3 { Ok(asked) } else { Err("not yet") }
        });
        assert_eq!(answer, 3);
    }

    #[test]
    fn an_address_is_usable_once_it_has_its_local_route() {
        let addresses = "00000000000000000000000000000001 01 80 10 80       lo\n\
             fd000000000000000000000000000001 03 80 00 82       v0\n\
             fe800000000000000000000000000001 03 40 20 c0       v0\n";
        let route = |address: &str, flags: &str| {
            let zero = "00000000000000000000000000000000";
            format!("{address} 80 {zero} 00 {zero} 00000000 00000002 00000000 {flags}       v0\n")
        };
        let lo = route("00000000000000000000000000000001", "80200001");
        // The route of the prefix is there at once.
        let first = lo.clone() + &route("fd000000000000000000000000000001", "00000001");
        assert!(unusable(addresses, &first).is_some_and(|line| line.starts_with("fd00")));
        let then = first + &route("fd000000000000000000000000000001", "80200001");
        assert_eq!(unusable(addresses, &then), None);
    }
}
