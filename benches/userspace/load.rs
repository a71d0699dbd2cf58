//! The client.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::endpoint::{BULK, ECHO, ONCE};

/// Connections that are made at the same time.
const CONCURRENT: usize = 16;

/// UDP flows at the same time.
const FLOWS: usize = 16;

const TIMEOUT: Duration = Duration::from_secs(60);

fn connect(target: SocketAddr, what: u8) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&[what])?;
    Ok(stream)
}

/// Reads from two connections for a time. Returns bytes and seconds.
pub(crate) fn bulk(target: SocketAddr, time: Duration) -> io::Result<(u64, f64)> {
    let start = Instant::now();
    let read = || -> io::Result<u64> {
        let mut stream = connect(target, BULK)?;
        let mut buffer = vec![0; 1 << 20];
        let mut bytes = 0;
        while start.elapsed() < time {
            bytes += u64::try_from(stream.read(&mut buffer)?).unwrap_or(0);
        }
        Ok(bytes)
    };
    sum(2, read, start)
}

/// Makes connections for a time: a byte there, a byte back, the end. Returns their number and seconds.
pub(crate) fn rate(target: SocketAddr, time: Duration) -> io::Result<(u64, f64)> {
    let start = Instant::now();
    let make = || -> io::Result<u64> {
        let mut connections = 0;
        while start.elapsed() < time {
            let mut stream = connect(target, ONCE)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            if answer != b"1" {
                return Err(io::Error::other("the connection ended without an answer"));
            }
            connections += 1;
        }
        Ok(connections)
    };
    sum(CONCURRENT, make, start)
}

/// Sends datagrams of 64 bytes for a time, the next one after the reply. Returns the number of replies and seconds.
pub(crate) fn datagrams(target: SocketAddr, time: Duration) -> io::Result<(u64, f64)> {
    let start = Instant::now();
    let ask = || -> io::Result<u64> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(target)?;
        // A datagram may be lost: it is sent again.
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let mut replies = 0;
        let mut buffer = [0; 128];
        while start.elapsed() < time {
            socket.send(&[b'x'; 64])?;
            if socket.recv(&mut buffer).is_ok() {
                replies += 1;
            }
        }
        Ok(replies)
    };
    sum(FLOWS, ask, start)
}

fn sum(threads: usize, work: impl Fn() -> io::Result<u64> + Sync, start: Instant) -> io::Result<(u64, f64)> {
    let total = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let mut total = 0;
        for thread in running {
            total += thread
                .join()
                .map_err(|_| io::Error::other("a thread of the client failed"))??;
        }
        Ok::<u64, io::Error>(total)
    })?;
    Ok((total, start.elapsed().as_secs_f64()))
}

/// Opens connections to targets in turn, each of which has been used once.
pub(crate) fn hold(targets: &[SocketAddr], count: usize) -> io::Result<Vec<TcpStream>> {
    let mut held = Vec::with_capacity(count);
    for target in targets.iter().cycle().take(count) {
        let mut stream = connect(*target, ECHO)?;
        stream.read_exact(&mut [0])?;
        held.push(stream);
    }
    Ok(held)
}

/// Uses every connection again.
pub(crate) fn ask_all(held: &[TcpStream]) -> Outcome<()> {
    for mut stream in held {
        stream.write_all(b"x")?;
        stream.read_exact(&mut [0])?;
    }
    Ok(())
}
