//! The endpoint: the first byte of a connection says what it does.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Stdio};

use kernlink_kernel_tests::programs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

use super::Outcome;

/// The port for TCP and UDP.
pub(crate) const PORT: u16 = 8080;

/// Sends data until the client ends.
pub(crate) const BULK: u8 = b'b';
/// Sends one byte and ends.
pub(crate) const ONCE: u8 = b'o';
/// Returns every byte.
pub(crate) const ECHO: u8 = b'e';

/// A process that ends with this value.
#[derive(Debug)]
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts this program in another role in the calling thread's namespace, and waits until it is ready.
pub(crate) fn start_role(arguments: &[&str]) -> Outcome<Process> {
    let mut command = programs::this_program();
    let child = command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut process = Process(child);
    let output = process.0.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim_end() != "ready" {
        return Err(format!("{} did not start: {line:?}", arguments.join(" ")).into());
    }
    Ok(process)
}

pub(crate) fn start() -> Result<Process, String> {
    start_role(&["endpoint"]).map_err(|error| error.to_string())
}

pub(crate) fn run() -> Outcome<()> {
    kernlink_userspace::limits::raise_descriptor_limit(65_536)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::UNSPECIFIED, PORT).into())?;
        let listener: TcpListener = socket.listen(16_384)?;
        println!("ready");
        tokio::spawn(async move {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, client)) = udp.recv_from(&mut buffer).await {
                let _ = udp
                    .send_to(buffer.get(..length).unwrap_or_default(), client)
                    .await;
            }
        });
        loop {
            let (client, _) = listener.accept().await?;
            tokio::spawn(async move {
                // A client may end at any time.
                let _ = serve(client).await;
            });
        }
    })
}

async fn serve(mut client: TcpStream) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    match client.read_u8().await? {
        BULK => {
            let data = vec![7; 256 * 1024];
            loop {
                client.write_all(&data).await?;
            }
        }
        ONCE => client.write_all(b"1").await,
        _ => {
            let mut byte = [0];
            loop {
                client.write_all(b"1").await?;
                client.read_exact(&mut byte).await?;
            }
        }
    }
}
