//! `kernlink-agent top`: a known load on two Services, by mode, for programs and on the screen of a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{programs, requires, requires_ipvs_mode, tools, wait};
use nix::pty::{Winsize, openpty};
use serde_json::Value;

use crate::iptables_mode::choose;
use crate::support::{Agent, Manifests, service, text, wait_for_answer};
use crate::userspace_mode;

const ACCOUNTING: &str = "net.netfilter.nf_conntrack_acct";

fn run(arguments: &[&str]) -> Output {
    programs::agent().arg("top").args(arguments).output().unwrap()
}

/// A reading. An error if there is none: the agent refuses to answer while a sync takes long.
fn json(arguments: &[&str]) -> Result<Value, String> {
    let output = run(&[&["--output", "json", "--interval", "1"], arguments].concat());
    if !output.status.success() {
        return Err(text(&output));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {}", text(&output)))
}

/// A Service, or a virtual server, of a reading.
#[track_caller]
fn row<'a>(reading: &'a Value, name: &str) -> &'a Value {
    let services = reading["services"].as_array().unwrap();
    let row = services.iter().find(|row| row["service"] == name);
    row.unwrap_or_else(|| panic!("{name} is not in {reading:#}"))
}

/// Open connections to a Service, which answered once each.
fn load(network: &Network, address: &str, number: usize) -> Vec<Connection> {
    let open = || {
        let target = format!("{address}:80").parse().unwrap();
        let mut connection = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
        connection.ask().unwrap();
        connection
    };
    (0..number).map(|_| open()).collect()
}

/// Seven connections to `default/a`, which has two endpoints, and three to `default/b`, which has one.
struct Load {
    a: Vec<Connection>,
    _b: Vec<Connection>,
}

impl Load {
    fn new(network: &Network) -> Self {
        Self {
            a: load(network, "10.96.0.1", 7),
            _b: load(network, "10.96.0.2", 3),
        }
    }
}

/// Runs a test on a node that serves `default/a`, `default/b` and `default/idle` in a mode.
fn with_services(mode: &[&str], test: impl FnOnce(&Network) + Send) {
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let manifests = Manifests::new();
    let objects = [
        service("a", "10.96.0.1", &[0, 1]),
        service("b", "10.96.0.2", &[0]),
        service("idle", "10.96.0.3", &[1]),
    ];
    manifests.replace("a.yaml", &objects.concat());
    network.node.run(|| {
        choose("iptables-nft");
        let agent = Agent::start(&manifests.0, mode);
        agent.wait_for(" synced done=", 1);
        // Closed at once: the connections that it leaves are not active.
        wait_for_answer(&network, "10.96.0.3", "pod1");
        test(&network);
        drop(agent);
    });
}

/// The numbers of active connections of `default/a` and `default/b`, when they are those of the load.
#[track_caller]
fn wait_for_load(arguments: &[&str], names: [&str; 2]) -> Value {
    wait::until(|| {
        let reading = json(arguments)?;
        let active = names.map(|name| row(&reading, name)["active"].clone());
        match active == [7, 3] {
            true => Ok(reading),
            false => Err(format!("{active:?}: {reading:#}")),
        }
    })
}

/// The sum over the endpoints, and their number.
fn sum(row: &Value, field: &str) -> (u64, usize) {
    let endpoints = row["endpoints"].as_array().unwrap();
    (
        endpoints
            .iter()
            .map(|endpoint| endpoint[field].as_u64().unwrap())
            .sum(),
        endpoints.len(),
    )
}

/// Sets a flag when it is dropped, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks over the connections of `default/a` while a condition is awaited.
fn while_it_sends<T>(load: &mut Load, wait: impl FnOnce() -> T) -> T {
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                load.a
                    .iter_mut()
                    .for_each(|connection| _ = connection.ask().unwrap());
            }
        });
        let _ends = Ends(&has_ended);
        wait()
    })
}

/// A mode that counts the flows of connection tracking.
fn count_flows(mode: &str) {
    requires!(Feature::Iptables);
    with_services(
        &["--proxy-mode", mode, "--iptables-sync-period", "10m"],
        |network| {
            tools::set_sysctl(ACCOUNTING, "0");
            let load = Load::new(network);
            let reading = wait_for_load(&[], ["default/a", "default/b"]);
            assert_eq!(
                (&reading["mode"], &reading["source"]),
                (&mode.into(), &"conntrack".into())
            );
            assert_eq!(sum(row(&reading, "default/a"), "active"), (7, 2));
            assert_eq!(sum(row(&reading, "default/b"), "active"), (3, 1));
            assert_eq!(row(&reading, "default/idle")["active"], 0);
            assert_eq!(row(&reading, "default/a")["frontends"][0], "10.96.0.1:80/TCP");
            // Bytes are not counted: they are not 0.
            for service in ["default/a", "default/idle"] {
                assert_eq!(
                    row(&reading, service)["bytesInPerSecond"],
                    Value::Null,
                    "{reading:#}"
                );
            }
            assert!(reading["notes"].to_string().contains(ACCOUNTING), "{reading:#}");
            // A table that is too large is not read.
            let limited = wait::until(|| json(&["--max-flows", "2"]));
            assert_eq!(
                row(&limited, "default/a")["connections"],
                Value::Null,
                "{limited:#}"
            );
            assert!(
                limited["notes"].to_string().contains("more than --max-flows (2)"),
                "{limited:#}"
            );
            let page = wait::until(|| {
                let page = text(&run(&["--once", "--interval", "1", "--filter", "default/b"]));
                match page.starts_with("SERVICE ") {
                    true => Ok(page),
                    false => Err(page),
                }
            });
            let line = page.lines().find(|line| line.starts_with("default/b ")).unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[..3], ["default/b", "10.96.0.2:80/TCP", "3"], "{page}");
            assert_eq!(words[4..], ["-", "-"], "{page}");
            assert!(!page.contains("default/a"), "{page}");

            drop(load);
            tools::set_sysctl(ACCOUNTING, "1");
            // Flows that are older than the accounting have no counters.
            tools::run("conntrack", &["-F"]).unwrap();
            let mut load = Load::new(network);
            while_it_sends(&mut load, || {
                wait::until(|| {
                    let reading = json(&[])?;
                    let rate = |field: &str| row(&reading, "default/a")[field].as_f64().unwrap_or_default();
                    match rate("bytesInPerSecond") > 0.0 && rate("bytesOutPerSecond") > 0.0 {
                        true if row(&reading, "default/b")["bytesInPerSecond"] == 0.0 => Ok(()),
                        _ => Err(format!("{reading:#}")),
                    }
                });
            });
        },
    );
}

#[test]
fn flows_are_counted_in_iptables_mode() {
    count_flows("iptables");
}

#[test]
fn flows_are_counted_in_nftables_mode() {
    count_flows("nftables");
}

#[test]
fn endpoints_are_not_known_in_userspace_mode() {
    requires!(Feature::Iptables);
    with_services(userspace_mode::MODE, |network| {
        let _load = Load::new(network);
        let reading = wait_for_load(&[], ["default/a", "default/b"]);
        let a = row(&reading, "default/a");
        let endpoints = a["endpoints"].as_array().unwrap();
        assert_eq!(endpoints.len(), 2, "{reading:#}");
        for endpoint in endpoints {
            assert_eq!(endpoint["active"], Value::Null, "{reading:#}");
        }
    });
}

#[test]
fn virtual_servers_are_counted_in_ipvs_mode_and_without_an_agent() {
    requires_ipvs_mode!();
    with_services(&[], |network| {
        let mut load = Load::new(network);
        let reading = wait_for_load(&[], ["default/a", "default/b"]);
        assert_eq!(
            (&reading["mode"], &reading["source"]),
            (&"ipvs".into(), &"ipvs".into())
        );
        assert_eq!(sum(row(&reading, "default/a"), "active"), (7, 2));
        let virtual_servers = ["10.96.0.1:80/TCP", "10.96.0.2:80/TCP"];
        // No agent is asked: its socket does not exist in this folder.
        let reading = wait_for_load(&["--kernel"], virtual_servers);
        assert_eq!(reading["mode"], Value::Null);
        assert_eq!(sum(row(&reading, virtual_servers[0]), "active"), (7, 2));
        while_it_sends(&mut load, || {
            wait::until(|| {
                let reading = json(&["--kernel", "--interval", "3"])?;
                match row(&reading, virtual_servers[0])["bytesInPerSecond"].as_f64() {
                    Some(rate) if rate > 0.0 => Ok(()),
                    _ => Err(format!("{reading:#}")),
                }
            });
        });
    });
}

#[test]
fn without_an_agent_and_without_a_terminal_the_reason_is_named() {
    NetNs::new().run(|| {
        let output = run(&["--once"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(
            text(&output).contains("no agent listens on "),
            "{}",
            text(&output)
        );
        let invalid = run(&["--interval", "0"]);
        assert_eq!(invalid.status.code(), Some(2), "{}", text(&invalid));
    });
}

/// A program on a pseudo-terminal.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    /// Starts `top` in the namespace of the calling thread.
    fn start(arguments: &[&str]) -> Self {
        let size = Winsize {
            ws_row: 20,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pty = openpty(&size, None).unwrap();
        let mut command = programs::agent();
        command.arg("top").args(arguments).env("TERM", "xterm");
        let slave = File::from(pty.slave);
        command.stdin(slave.try_clone().unwrap());
        command.stderr(slave.try_clone().unwrap()).stdout(slave);
        let child = command.spawn().unwrap();
        // Its ends of the terminal are closed in this process.
        drop(command);
        let keyboard = File::from(pty.master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size.ws_row, size.ws_col, 0)));
        let writer = Arc::clone(&screen);
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // It fails when the program has ended.
            while let Ok(length) = output.read(&mut bytes)
                && length > 0
            {
                writer.lock().unwrap().process(&bytes[..length]);
            }
        });
        Self {
            child,
            keyboard,
            screen,
        }
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn contents(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the lines that begin with a Service have these words first: name, frontend, active connections.
    #[track_caller]
    fn wait_for(&self, expected: &[[&str; 3]]) {
        wait::until(|| {
            let contents = self.contents();
            let lines: Vec<Vec<&str>> = contents
                .lines()
                .filter(|line| line.starts_with("default/"))
                .map(|line| line.split_whitespace().take(3).collect())
                .collect();
            if lines == expected { Ok(()) } else { Err(contents) }
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_screen_shows_a_known_load_and_keys_sort_and_filter_it() {
    requires!(Feature::Iptables);
    with_services(
        &["--proxy-mode", "iptables", "--iptables-sync-period", "10m"],
        |network| {
            let a = ["default/a", "10.96.0.1:80/TCP", "7"];
            let b = ["default/b", "10.96.0.2:80/TCP", "3"];
            let idle = ["default/idle", "10.96.0.3:80/TCP", "0"];
            // Connections that end leave the table soon.
            for state in ["fin_wait", "close_wait", "last_ack", "time_wait"] {
                tools::set_sysctl(&format!("net.netfilter.nf_conntrack_tcp_timeout_{state}"), "5");
            }
            let mut connections = Load::new(network);
            let mut terminal = Terminal::start(&["--interval", "1"]);
            terminal.wait_for(&[a, b, idle]);
            let contents = terminal.contents();
            assert!(
                contents.starts_with("kernlink top: mode iptables, 3 Services"),
                "{contents}"
            );
            assert!(contents.contains("10.244.0.2:8080"), "an endpoint: {contents}");
            terminal.press("nr");
            terminal.wait_for(&[idle, b, a]);
            terminal.press("/default/b\r");
            terminal.wait_for(&[b]);
            // It follows the load.
            let more = load(network, "10.96.0.2", 2);
            terminal.wait_for(&[["default/b", "10.96.0.2:80/TCP", "5"]]);
            drop(more);
            connections.a.truncate(2);
            let fewer = ["default/a", "10.96.0.1:80/TCP", "2"];
            terminal.press("\u{1b}");
            terminal.wait_for(&[idle, b, fewer]);
            terminal.press("c");
            terminal.wait_for(&[b, fewer, idle]);
            terminal.press("q");
            let status = terminal.child.wait().unwrap();
            assert!(status.success(), "{status}: {}", terminal.contents());
            // The screen is the one before.
            wait::until(|| match terminal.contents() {
                contents if contents.trim().is_empty() => Ok(()),
                contents => Err(contents),
            });
        },
    );
}
