//! The API of the cluster, through `kubectl`.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::workspace::output;

/// Where `kubectl proxy` listens, in the namespace of the router. It supports HTTP without TLS and certificates.
const PROXY: (&str, u16) = ("127.0.0.1", 8001);
const TIMEOUT: Duration = Duration::from_secs(30);

/// The programs and files that requests need.
#[derive(Clone, Debug)]
pub(super) struct Api {
    pub(super) kubectl: PathBuf,
    pub(super) kubeconfig: PathBuf,
}

impl Api {
    pub(super) fn new(kubectl: &Path, kubeconfig: &Path) -> Self {
        Self {
            kubectl: kubectl.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        // Otherwise it keeps what it discovers in the home folder.
        command.env("KUBECACHEDIR", self.kubeconfig.with_extension("cache"));
        command
    }

    /// The command that runs as long as requests are made.
    pub(super) fn proxy(&self) -> Command {
        let (address, port) = PROXY;
        let mut command = self.command();
        command.args([
            "proxy",
            &format!("--address={address}"),
            &format!("--port={port}"),
        ]);
        command
    }

    pub(super) fn is_ready(&self) -> bool {
        output(
            self.command()
                .args(["get", "--raw", "/readyz", "--request-timeout=5s"]),
        )
        .is_ok_and(|text| text == "ok")
    }

    /// Creates or changes the objects of a manifest.
    pub(super) fn apply(&self, manifest: &str) -> Result<()> {
        let mut child = self
            .command()
            .args(["apply", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .context("starting kubectl")?;
        let mut input = child.stdin.take().context("the input of kubectl")?;
        input
            .write_all(manifest.as_bytes())
            .context("writing to kubectl")?;
        drop(input);
        let status = child.wait()?;
        ensure!(status.success(), "kubectl apply: {status}");
        Ok(())
    }
}

/// Reads an object or a list through the proxy.
pub(super) fn get(path: &str) -> Result<Value> {
    request("GET", path, None)
}

/// Changes fields of an object through the proxy.
pub(super) fn patch(path: &str, fields: &Value) -> Result<()> {
    request("PATCH", path, Some(fields)).map(|_| ())
}

fn request(method: &str, path: &str, fields: Option<&Value>) -> Result<Value> {
    let body = fields.map(Value::to_string).unwrap_or_default();
    let (status, answer) =
        exchange(PROXY, method, path, &body, TIMEOUT).with_context(|| format!("{method} {path}"))?;
    if status != 200 {
        bail!("{method} {path}: {status}: {}", answer.trim());
    }
    serde_json::from_str(&answer).with_context(|| format!("{method} {path}: invalid JSON"))
}

/// A request in HTTP/1.0: the answer ends with the connection. Returns its status and body.
pub(super) fn exchange(
    server: (&str, u16),
    method: &str,
    path: &str,
    body: &str,
    timeout: Duration,
) -> Result<(u16, String)> {
    let (address, port) = server;
    let address = (
        address
            .parse::<std::net::IpAddr>()
            .with_context(|| format!("invalid address {address}"))?,
        port,
    );
    let mut stream = TcpStream::connect_timeout(&address.into(), timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/merge-patch+json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer))
}

fn parse(answer: &str) -> Result<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n").context("an incomplete answer")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("an answer without a status")?, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = "HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\n{}\r\n\r\n";
        assert_eq!(parse(answer).unwrap(), (503, "{}\r\n\r\n".to_owned()));
        parse("HTTP/1.0 200 OK\r\n").unwrap_err();
        parse("x\r\n\r\n").unwrap_err();
    }
}
