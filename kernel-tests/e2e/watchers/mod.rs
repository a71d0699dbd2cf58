//! Many watchers of one API server, without a kernel: `cargo xtask bench watchers`.
//!
//! The sources of `kernlink-agent` and reflectors of client-go are measured one after the other. Each watcher follows Services, EndpointSlices and
//! a Node, as kube-proxy does on a node, with connections of its own. All run on this machine, in a few processes, in a network namespace that is
//! connected with the one of the API server: what the API server sends is counted on the device between them.

mod audit;
mod processes;
mod server;

use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::wait;

use self::audit::Audit;
use self::processes::{Program, Watchers, now};
use self::server::{Server, Used};
use crate::connection::AdminConnection;
use crate::figures::{load, mib, number};
use crate::process::{memory, processor_time};

/// The changes that are made one after the other.
const CHANGES: usize = 20;
/// How long the API server is measured without changes.
const IDLE: Duration = Duration::from_secs(60);
/// The Services of a restart.
const RESTART_SERVICES: usize = 200;
/// The longest delay between two attempts of the agent to reach the API server.
const LONGEST_DELAY: Duration = Duration::from_secs(30);
/// How many watchers there are.
const NUMBER: &str = "KERNLINK_E2E_WATCHERS";

/// Prints what `cargo xtask bench` reads.
fn figure(name: &str, value: f64, unit: &str) {
    let decimals = if value.abs() >= 100.0 { 1 } else { 4 };
    println!("figure watchers.{name} {value:.decimals$} {unit}");
}

fn seconds(from: u128, to: u128) -> f64 {
    Duration::from_nanos(u64::try_from(to.saturating_sub(from)).unwrap()).as_secs_f64()
}

/// The value below which a part of them is, of sorted values.
fn at(values: &[f64], percent: usize) -> f64 {
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

fn float(number: u64) -> f64 {
    number as f64
}

/// The processor time that watchers have used.
fn processor(watchers: &Watchers) -> Duration {
    watchers.ids().map(processor_time).sum()
}

/// The resident memory of watchers.
fn resident(watchers: &Watchers) -> u64 {
    watchers.ids().map(|id| memory(id, "VmRSS")).sum()
}

/// Ends watchers, and waits until the API server has none.
fn end(watchers: Watchers, server: &Server) {
    drop(watchers);
    wait::until(|| match server.connections() {
        0 => Ok(()),
        left => Err(format!("{left} connections")),
    });
}

#[test]
#[ignore = "a benchmark: cargo xtask bench watchers"]
fn fan_out() {
    let (services, number) = (number("KERNLINK_E2E_SERVICES", 10_000), number(NUMBER, 1_000));
    let mut server = Server::start(services, number);
    println!(
        "fan-out: {services} Services with 10 endpoints each, {number} watchers; load of the machine: {}",
        load()
    );
    for program in Program::ALL {
        fan_out_to(program, &mut server, services, number);
    }
    println!("load of the machine: {}", load());
}

fn fan_out_to(program: Program, server: &mut Server, services: usize, number: usize) {
    let name = program.name();
    let each = number as f64;
    let print = |what: &str, value: f64, unit: &str| {
        figure(
            &format!("fan_out.{services}x{number}.{}.{what}", program.part()),
            value,
            unit,
        );
    };
    let held = server.held_memory();
    let begin = server.used();
    let (watchers, started) = server.start_watchers(program, number);
    let lists = watchers.wait_for_lists();
    let after = server.used();
    let own = processor(&watchers).as_secs_f64();
    println!(
        "{name}: first lists of all watchers, some at a time, within {:.1} s; the API server has had up to {} MiB",
        seconds(started, lists[lists.len() - 1]),
        server.highest_memory(),
    );
    print("list_mib", mib(after.sent - begin.sent) / each, "MiB");
    print("list_server_ms", (after - begin).processor * 1e3 / each, "ms");
    print("list_watcher_ms", own * 1e3 / each, "ms");

    // Only bookmarks, pings and what the API server does for itself.
    let (idle, time) = (server.used(), Instant::now());
    thread::sleep(IDLE);
    let idle = server.used() - idle;
    let minutes = time.elapsed().as_secs_f64() / 60.0;
    print("idle_bytes", float(idle.sent) / minutes / each, "B");
    print("idle_server_ms", idle.processor * 1e3 / minutes, "ms");

    let mut admin = AdminConnection::open();
    // The first change after a while is not like the others.
    let (address, _) = server.change(&mut admin);
    watchers.wait_for_address(&address);
    let (begin, own, time) = (server.used(), processor(&watchers), Instant::now());
    let mut times = Vec::new();
    for _ in 0..CHANGES {
        let (address, accepted) = server.change(&mut admin);
        let seen = watchers.wait_for_address(&address);
        times.push(seconds(accepted, seen[seen.len() - 1]) * 1e3);
    }
    let (used, own) = (server.used() - begin, processor(&watchers) - own);
    let minutes_of_changes = time.elapsed().as_secs_f64() / 60.0;
    times.sort_unstable_by(f64::total_cmp);
    let changes = CHANGES as f64;
    let sent = float(used.sent) - float(idle.sent) / minutes * minutes_of_changes;
    let processor = used.processor - idle.processor / minutes * minutes_of_changes;
    println!(
        "{name}: all watchers have a change after {:.0} ms (median), {:.0} ms (longest) of {CHANGES}, after the API server has answered",
        at(&times, 50),
        at(&times, 100),
    );
    print("change_bytes", sent / changes / each, "B");
    print("change_server_ms", processor * 1e3 / changes, "ms");
    print(
        "change_watcher_us",
        own.as_secs_f64() * 1e6 / changes / each,
        "us",
    );
    print("change_all_ms", at(&times, 50), "ms");
    print("connections", server.connections() as f64, "connections");
    let more = server.held_memory().saturating_sub(held);
    print("server_kib", float(more) / 1024.0 / each, "KiB");
    println!(
        "{name}: the watchers have {} MiB in {} processes",
        resident(&watchers),
        watchers.ids().count()
    );
    end(watchers, server);
}

#[test]
#[ignore = "a benchmark: cargo xtask bench watchers"]
fn restart() {
    let number = number(NUMBER, 1_000);
    let mut server = Server::start(RESTART_SERVICES, number);
    println!(
        "restart: {RESTART_SERVICES} Services with 10 endpoints each, {number} watchers; load of the machine: {}",
        load()
    );
    // What the API server uses to start.
    server.restart("without");
    let (address, _) = server.change(&mut AdminConnection::open());
    println!(
        "without watchers: {address}; processor of the API server {:.1} s",
        server.used().processor
    );
    let start = server.used().processor;
    for program in Program::ALL {
        restart_with(program, &mut server, number, start);
    }
    println!("load of the machine: {}", load());
}

/// `start` is the processor time of a server without watchers, in seconds.
fn restart_with(program: Program, server: &mut Server, number: usize, start: f64) {
    let name = program.name();
    let print = |what: &str, value: f64, unit: &str| {
        figure(
            &format!("restart.{RESTART_SERVICES}x{number}.{}.{what}", program.part()),
            value,
            unit,
        );
    };
    let begin = server.used();
    let (watchers, started) = server.start_watchers(program, 1);
    let lists = watchers.wait_for_lists();
    let of_one = (server.used() - begin).sent;
    // The process may take longer to start than to read.
    let begun = watchers.begun();
    let rate = float(of_one) / seconds(begun, lists[0]);
    println!(
        "{name}: one watcher: first lists within {:.0} ms, {:.0} ms of them after the start of the process; {:.2} MiB, {:.1} MiB/s",
        seconds(started, lists[0]) * 1e3,
        seconds(begun, lists[0]) * 1e3,
        mib(of_one),
        rate / f64::from(1 << 20),
    );
    end(watchers, server);

    let (watchers, _) = server.start_watchers(program, number);
    watchers.wait_for_lists();
    let sent = server.used().sent;
    let stopped = now();
    let audit: Audit = server.restart(program.part());
    let ready = now();
    let (address, _) = server.change(&mut AdminConnection::open());
    let seen = watchers.wait_for_address(&address);
    let Used {
        processor,
        sent: after,
    } = server.used();
    let times: Vec<f64> = seen.iter().map(|time| seconds(ready, *time)).collect();
    println!(
        "{name}: {:.1} s without an API server; after it is ready, half of the watchers are current after {:.1} s, 99 % after {:.1} s",
        seconds(stopped, ready),
        at(&times, 50),
        at(&times, 99),
    );
    let requests = audit.read();
    println!("{name}: {requests}");
    let all = at(&times, 100);
    let bound = LONGEST_DELAY.as_secs_f64() + float(after - sent) / rate;
    print("lists", requests.lists() as f64, "lists");
    print("lists_in_a_second", requests.most_in_a_second() as f64, "lists");
    print("refused", requests.refused as f64, "requests");
    print("spread_s", requests.spread(), "s");
    print("all_s", all, "s");
    print("bound_s", bound, "s");
    print("sent_mib", mib(after - sent), "MiB");
    print("server_ms", (processor - start) * 1e3, "ms");
    println!(
        "{name}: the API server has had up to {} MiB",
        server.highest_memory()
    );
    end(watchers, server);
}
