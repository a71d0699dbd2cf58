//! Waiting for asynchronous work of the kernel, with a limit that is long enough for the slowest machine.

use std::{
    fmt::Display,
    fs, thread,
    time::{Duration, Instant},
};

/// Time limit of [`until`]. A test that passes does not wait longer than necessary.
pub const LIMIT: Duration = Duration::from_secs(300);

/// Calls `check` every 20 ms until it succeeds, and returns its value. Panics with the last error after [`LIMIT`].
#[track_caller]
pub fn until<T, E: Display>(mut check: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match check() {
            Ok(value) => return value,
            Err(error) if start.elapsed() >= LIMIT => {
                panic!("timeout after {} s: {error}", LIMIT.as_secs())
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Waits until all IPv6 addresses of the calling thread's namespace, except link-local ones, are usable.
///
/// Even without duplicate address detection the kernel makes an address usable asynchronously, after the program
/// that adds it has exited (`addrconf_dad_work` in
/// [`addrconf.c`](https://github.com/torvalds/linux/blob/v6.1/net/ipv6/addrconf.c)). Until then the kernel does not answer
/// neighbour solicitations, drops packets to the address, and has sent no event for it. The local route is added last.
#[track_caller]
pub fn for_ipv6_addresses() {
    let read =
        |file: &str| fs::read_to_string(file).unwrap_or_else(|error| panic!("cannot read {file}: {error}"));
    until(|| {
        let addresses = read("/proc/thread-self/net/if_inet6");
        match unusable(&addresses, &read("/proc/thread-self/net/ipv6_route")) {
            Some(line) => Err(format!("address is not usable yet: {line}")),
            None => Ok(()),
        }
    });
}

/// The first line of `if_inet6` with an address that has no local route in `ipv6_route`, except link-local ones.
fn unusable<'a>(addresses: &'a str, routes: &str) -> Option<&'a str> {
    let has_route = |address: &str| {
        routes.lines().any(|route| {
            let fields: Vec<_> = route.split_whitespace().collect();
            matches!(fields[..], [destination, "80", .., flags, _device]
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
    fn a_check_is_repeated_until_it_succeeds() {
        let mut calls = 0;
        let value = until(|| {
            calls += 1;
            if calls == 3 { Ok(calls) } else { Err("not yet") }
        });
        assert_eq!(value, 3);
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
        // The route of the prefix is added at once.
        let first = lo.clone() + &route("fd000000000000000000000000000001", "00000001");
        assert!(unusable(addresses, &first).is_some_and(|line| line.starts_with("fd00")));
        let then = first + &route("fd000000000000000000000000000001", "80200001");
        assert_eq!(unusable(addresses, &then), None);
    }
}
