//! The standard tools as a second opinion. They run in the calling thread's network namespace.

use std::{
    io::{self, Write},
    process::Stdio,
    thread,
};

use crate::{programs, wait};

/// Runs a program of [`programs::PROGRAMS`] to its end and returns its standard output. `Err` says what was run and what
/// it said. Panics if the program is not in the table or not installed.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    run_with_input(program, arguments, "")
}

/// The same, with text on standard input.
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
        // An `Err` would read as if the kernel lacked what the program is for, and skip the test.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let package = programs::find(program).map_or("?", |program| program.package);
            panic!("{program} is not installed: it is in the Debian package {package}")
        }
        Err(error) => return Err(format!("{}: {error}", line())),
    };
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // A program that does not read to the end has its own reason, and says it.
            stdin.map(|mut stdin| stdin.write_all(input.as_bytes()))
        });
        child.wait_with_output()
    })
    .map_err(|error| format!("{}: {error}", line()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}: {}", line(), output.status, said.trim()))
}

/// Runs a program that has to succeed, and returns its standard output. Panics with [`run`]'s error.
pub fn must(program: &str, arguments: &[&str]) -> String {
    run(program, arguments).unwrap_or_else(|error| panic!("{error}"))
}

/// `ip` with these arguments. Panics where it fails.
pub fn ip(arguments: &[&str]) {
    must("ip", arguments);
}

/// `ip -batch`: several `ip` commands, one a line, in one start. Panics at the first that fails.
pub fn ip_batch(commands: &str) {
    run_with_input("ip", &["-batch", "-"], commands)
        .unwrap_or_else(|error| panic!("{error}; of\n{commands}"));
}

/// `ip -j address show`, the links and their addresses as JSON.
pub fn ip_addresses() -> String {
    must("ip", &["-j", "address", "show"])
}

/// `ipvsadm -Sn`: virtual and real servers, one line each, as options of `ipvsadm`.
pub fn ipvsadm_save() -> String {
    ipvsadm_list(&["-Sn"])
}

/// `ipvsadm` with these arguments, which ask for a listing of the virtual servers, until it says the same twice.
///
/// The kernel lists eight virtual servers or so at a time, and finds where to go on by counting those of all namespaces
/// ([`ip_vs_genl_dump_services`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c)): one that comes or
/// goes in any of them meanwhile, such as those of a test that has ended, makes the tool list another twice or not at all.
pub fn ipvsadm_list(arguments: &[&str]) -> String {
    let mut before = must("ipvsadm", arguments);
    wait::until(|| {
        let text = must("ipvsadm", arguments);
        if text == before {
            return Ok(text);
        }
        before = text;
        Err("ipvsadm lists something else each time")
    })
}

/// `ipset save`, all sets.
pub fn ipset_save() -> String {
    must("ipset", &["save"])
}

/// `ipset save` of one set.
pub fn ipset_save_one(set: &str) -> String {
    must("ipset", &["save", set])
}

/// `iptables-save` of one table, without its comment lines, which hold the time.
pub fn iptables_save(table: &str) -> String {
    without_comments(&must("iptables-save", &["-t", table]))
}

/// `ip6tables-save` of one table, without its comment lines.
pub fn ip6tables_save(table: &str) -> String {
    without_comments(&must("ip6tables-save", &["-t", table]))
}

/// `conntrack -L` for a family, `ipv4` or `ipv6`.
pub fn conntrack_list(family: &str) -> String {
    must("conntrack", &["-L", "-f", family])
}

/// Sets a kernel setting of the thread's network namespace by its dotted name.
pub fn set_sysctl(name: &str, value: &str) {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::write(&path, value).unwrap_or_else(|error| panic!("writing {value} to {path}: {error}"));
}

/// Reads a kernel setting of the thread's network namespace by its dotted name.
pub fn sysctl(name: &str) -> String {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    let value = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("reading {path}: {error}"));
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
    fn a_failing_program_is_named_with_what_it_said() {
        let error = run("sh", &["-c", "echo no such thing >&2; exit 3"]).unwrap_err();
        assert!(
            error.starts_with("sh -c") && error.contains("no such thing"),
            "{error}"
        );
    }

    #[test]
    #[should_panic(expected = "undeclared program `kernlink-no-such-program`")]
    fn an_undeclared_program_is_a_panic_and_no_answer() {
        let _ = run("kernlink-no-such-program", &[]);
    }

    #[test]
    fn long_input_and_output_do_not_block() {
        let text = "line\n".repeat(100_000);
        assert_eq!(run_with_input("cat", &[], &text).unwrap(), text);
    }

    #[test]
    fn comments_go_and_rules_stay() {
        assert_eq!(
            without_comments("# Generated\n*nat\nCOMMIT\n# Completed\n"),
            "*nat\nCOMMIT\n"
        );
    }
}
