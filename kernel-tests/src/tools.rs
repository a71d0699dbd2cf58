//! The standard tools, to compare results with. They run in the calling thread's network namespace.

use std::{
    io::{self, Write},
    process::Stdio,
    thread,
};

use crate::{programs, wait};

/// Runs a program of [`programs::PROGRAMS`] and returns its standard output. `Err` contains the command, the exit status and
/// standard error. Panics if the program is not in the table or not installed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    run_with_input(program, arguments, "")
}

/// As [`run`], with text on standard input.
pub fn run_with_input(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let line = || format!("{program} {}", arguments.join(" "));
    let mut child = match programs::command(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        // Not an `Err`: callers would take it for a missing kernel feature and skip the test.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let package = programs::find(program).map_or("?", |program| program.package);
            panic!("{program} is not installed; install the Debian package {package}")
        }
        Err(error) => return Err(format!("{}: {error}", line())),
    };
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // Ignored: a program that does not read all its input reports the reason itself.
            stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
        });
        child.wait_with_output()
    })
    .map_err(|error| format!("{}: {error}", line()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}: {}", line(), output.status, stderr.trim()))
}

/// As [`run`]. Panics if the program fails.
#[allow(
    clippy::must_use_candidate,
    reason = "many programs are started for their effect only"
)]
pub fn must(program: &str, arguments: &[&str]) -> String {
    run(program, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// `ip` with these arguments. Panics if it fails.
pub fn ip(arguments: &[&str]) {
    must("ip", arguments);
}

/// `ip -batch`: several `ip` commands, one in each line. Panics at the first that fails.
pub fn ip_batch(commands: &str) {
    run_with_input("ip", &["-batch", "-"], commands)
        .unwrap_or_else(|error| panic!("{error}\ncommands:\n{commands}"));
}

/// `ip -j address show`, the links and their addresses as JSON.
#[must_use]
pub fn ip_addresses() -> String {
    must("ip", &["-j", "address", "show"])
}

/// `ipvsadm -Sn`: virtual and real servers, one line each, as options of `ipvsadm`.
#[must_use]
pub fn ipvsadm_save() -> String {
    ipvsadm_list(&["-Sn"])
}

/// `ipvsadm` with these arguments, which list virtual servers. Repeated until two listings in a row are the same.
///
/// The kernel lists about eight virtual servers at a time, and finds the next position by counting those of all namespaces
/// ([`ip_vs_genl_dump_services`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c)). If one is
/// added or deleted in any namespace in between, for example at the end of another test, a listing can contain duplicates or gaps.
#[must_use]
pub fn ipvsadm_list(arguments: &[&str]) -> String {
    let mut before = must("ipvsadm", arguments);
    wait::until(|| {
        let text = must("ipvsadm", arguments);
        if text == before {
            return Ok(text);
        }
        before = text;
        Err("the output of ipvsadm changes with each call")
    })
}

/// `ipset save`, all sets.
#[must_use]
pub fn ipset_save() -> String {
    must("ipset", &["save"])
}

/// `ipset save` of one set.
#[must_use]
pub fn ipset_save_one(set: &str) -> String {
    must("ipset", &["save", set])
}

/// `iptables-save` of one table, without comment lines, which contain the time.
#[must_use]
pub fn iptables_save(table: &str) -> String {
    without_comments(&must("iptables-save", &["-t", table]))
}

/// `ip6tables-save` of one table, without comment lines.
#[must_use]
pub fn ip6tables_save(table: &str) -> String {
    without_comments(&must("ip6tables-save", &["-t", table]))
}

/// Removes all rules and chains of the tables `nat` and `filter` at once, as a firewall that reloads does, with the program `iptables-restore` or
/// another of that kind. Several commands would meet a process that repairs the rules meanwhile.
pub fn flush_tables(restore: &str) {
    let empty = "*nat\nCOMMIT\n*filter\nCOMMIT\n";
    run_with_input(restore, &["-w"], empty).unwrap_or_else(|error| panic!("{restore}: {error}"));
}

/// `conntrack -L` for a family, `ipv4` or `ipv6`.
#[must_use]
pub fn conntrack_list(family: &str) -> String {
    must("conntrack", &["-L", "-f", family])
}

/// Sets a sysctl of the calling thread's network namespace, given by its dotted name.
pub fn set_sysctl(name: &str, value: &str) {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::write(&path, value).unwrap_or_else(|error| panic!("cannot write {value} to {path}: {error}"));
}

/// Lets the kernel send every ICMP error about an address or a port that cannot be reached, in the calling thread's network namespace. By default a
/// client gets six at once and then one per second, and before Linux 6.12 all namespaces share a limit, which holds for the types in a mask.
pub fn permit_icmp_errors() {
    set_sysctl("net.ipv4.icmp_ratemask", "0");
    set_sysctl("net.ipv6.icmp.ratemask", "3-127");
}

/// Reads a sysctl of the calling thread's network namespace, given by its dotted name.
#[must_use]
pub fn sysctl(name: &str) -> String {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let value = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    value.trim().to_owned()
}

fn without_comments(text: &str) -> String {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(|line| [line, "\n"])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_program_contains_its_command_and_stderr() {
        let error = run("sh", &["-c", "echo no such thing >&2; exit 3"]).unwrap_err();
        assert!(
            error.starts_with("sh -c") && error.contains("no such thing"),
            "{error}"
        );
    }

    #[test]
    #[should_panic(expected = "undeclared program `kernlink-no-such-program`")]
    fn an_undeclared_program_is_a_panic_and_not_an_error() {
        let _ = run("kernlink-no-such-program", &[]);
    }

    #[test]
    fn long_input_and_output_do_not_block() {
        let text = "line\n".repeat(100_000);
        assert_eq!(run_with_input("cat", &[], &text).unwrap(), text);
    }

    #[test]
    fn comment_lines_are_removed() {
        assert_eq!(
            without_comments("# Generated\n*nat\nCOMMIT\n# Completed\n"),
            "*nat\nCOMMIT\n"
        );
    }
}
