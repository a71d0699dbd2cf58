//! How long after the start of a sync `default/kubernetes` answers to a client on this node.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_benches::Result;
use kernlink_benches::cluster::{API_SERVER, API_SERVER_PORT, KUBERNETES, NODE};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;

/// A host with an API server, connected to a node.
pub(crate) struct ApiServer {
    _namespace: NetNs,
    address: SocketAddr,
    listener: TcpListener,
}

impl ApiServer {
    /// Connects a new host to a node.
    pub(crate) fn new(node: &NetNs) -> Result<Self> {
        let namespace = NetNs::new();
        node.connect("eth0", &namespace, "eth0");
        node.run(|| tools::ip(&["address", "add", &format!("{NODE}/24"), "dev", "eth0"]));
        let address = SocketAddr::from((API_SERVER, API_SERVER_PORT));
        let listener = namespace.run(|| {
            tools::ip(&["address", "add", &format!("{API_SERVER}/24"), "dev", "eth0"]);
            TcpListener::bind(address)
        })?;
        Ok(Self {
            _namespace: namespace,
            address,
            listener,
        })
    }

    /// Calls `work` in the namespace of the node, which is that of the calling thread. Returns how long it took, and the time until the
    /// first answer.
    pub(crate) fn first_answer(
        &self,
        work: impl FnOnce() -> Result<Duration>,
    ) -> Result<(Duration, Duration)> {
        let is_over = AtomicBool::new(false);
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                // Fails if the client ends the connection first.
                while let Ok((mut stream, _)) = self.listener.accept() {
                    let _ = stream.write_all(b"x");
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let prober = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if answers(KUBERNETES.into()) {
                        return Some(start.elapsed());
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                // The sync may have ended after the last attempt.
                answers(KUBERNETES.into()).then(|| start.elapsed())
            });
            let worked = work();
            is_over.store(true, Ordering::Relaxed);
            let answered = prober.join();
            // Ends the server.
            answers(self.address);
            let answered = answered.map_err(|_| "the client panicked")?;
            let answered = answered.ok_or("default/kubernetes does not answer after the sync")?;
            Ok((worked?, answered))
        })
    }
}

fn answers(address: SocketAddr) -> bool {
    let timeout = Duration::from_millis(500);
    let Ok(mut stream) = TcpStream::connect_timeout(&address, timeout) else {
        return false;
    };
    let mut byte = [0];
    stream.set_read_timeout(Some(timeout)).is_ok() && stream.read(&mut byte).is_ok_and(|length| length == 1)
}
