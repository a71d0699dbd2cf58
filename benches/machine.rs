//! How fast the machine is at the moment: two pieces of work that have nothing to do with this project. `cargo xtask bench --check` measures
//! them before each other benchmark.

use std::collections::HashMap;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use kernlink_benches::{figure, median};

const RUNS: usize = 9;
const ENTRIES: u64 = 100_000;
const CONNECTIONS: u32 = 500;

fn main() -> Result<(), String> {
    let map = median(RUNS, || Ok::<_, String>(()), |()| Ok::<_, String>(fill_map()))?;
    figure("machine.map_ms", map.as_secs_f64() * 1e3, "ms")?;
    let connections = median(RUNS, || Ok::<_, io::Error>(()), |()| connect());
    let connection = connections.map_err(|error| error.to_string())? / CONNECTIONS;
    figure("machine.connection_us", connection.as_secs_f64() * 1e6, "us")
}

/// Adds entries with allocated values in no order to a map, and reads each once.
fn fill_map() -> (HashMap<u64, Vec<u8>>, usize) {
    // Odd, so that the products differ.
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let map: HashMap<_, _> = (0..black_box(ENTRIES))
        .map(|number| (key(number), number.to_ne_bytes().repeat(4)))
        .collect();
    let found = (0..ENTRIES).filter_map(|number| map.get(&key(number)));
    let length = found.map(Vec::len).sum();
    (map, length)
}

/// Opens connections to a listening socket of another thread one after the other, each of which carries a byte in both directions.
fn connect() -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            (0..CONNECTIONS).try_for_each(|_| {
                let (mut stream, _) = listener.accept()?;
                let mut byte = [0];
                stream.read_exact(&mut byte)?;
                stream.write_all(&byte)
            })
        });
        let client = (0..CONNECTIONS).try_for_each(|_| {
            let mut stream = TcpStream::connect(address)?;
            // The server may have failed.
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            stream.write_all(&[0])?;
            stream.read_exact(&mut [0])
        });
        if client.is_err() {
            // The server may wait for a connection: without a byte in it, the server fails.
            drop(TcpStream::connect(address));
        }
        let server = server.join();
        client.and(server.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
