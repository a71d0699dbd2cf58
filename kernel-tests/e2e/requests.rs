//! Requests to the API server, with curl.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kernlink_kernel_tests::{programs, wait};
use serde_json::Value;

/// The token of the test, which may do everything.
pub(crate) const ADMIN: &str = "admin-token";

/// Sends requests of an administrator.
pub(crate) struct Requests {
    /// `https://ADDRESS:PORT`.
    server: &'static str,
    /// A folder for files, in which `certs/apiserver.crt` is the certificate of the server.
    folder: PathBuf,
}

impl Requests {
    pub(crate) fn new(server: &'static str, folder: &Path) -> Self {
        Self {
            server,
            folder: folder.to_owned(),
        }
    }

    /// Sends a request until it succeeds: the server may still be starting.
    pub(crate) fn send(&self, method: &str, path: &str, content_type: &str, body: &str) {
        wait::until(|| match self.request(method, path, content_type, body)? {
            // What an earlier attempt without an answer has done already.
            answer if method == "POST" && answer.ends_with("409") => Ok(()),
            answer if method == "DELETE" && answer.ends_with("404") => Ok(()),
            answer if answer.ends_with("200") || answer.ends_with("201") => Ok(()),
            answer => Err(format!("{method} {path}: {answer}")),
        });
    }

    /// The body of the answer, followed by its status.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &str,
    ) -> Result<String, String> {
        let mut curl = self
            .curl(path)
            .args(["--max-time", "30", "--write-out", "%{http_code}"])
            .args(["--data-binary", "@-", "--request", method])
            .args(["--header", &format!("Content-Type: {content_type}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        curl.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
        let output = curl.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// A command for a request of the administrator, which prints the body of the answer.
    fn curl(&self, path: &str) -> Command {
        let mut command = programs::from_variable("KERNLINK_CURL");
        command
            .args(["--silent", "--show-error"])
            .args(["--header", &format!("Authorization: Bearer {ADMIN}"), "--cacert"])
            .arg(self.certificate())
            .arg(format!("{}{path}", self.server));
        command
    }

    /// The body of the answer to `GET path` in a format. That of a watch is complete when the server ends it.
    pub(crate) fn read(&self, path: &str, accepted: &str) -> Vec<u8> {
        wait::until(|| {
            let output = self
                .curl(path)
                .args(["--fail", "--max-time", "60"])
                .args(["--header", &format!("Accept: {accepted}")])
                .output()
                .unwrap();
            if output.status.success() {
                return Ok(output.stdout);
            }
            Err(format!("GET {path}: {}", String::from_utf8_lossy(&output.stderr)))
        })
    }

    /// Creates objects with few processes, by requests in parallel.
    pub(crate) fn create_all(&self, objects: &[Value]) {
        // A configuration file of curl has a limited size.
        for objects in objects.chunks(1_000) {
            let requests: Vec<_> = objects
                .iter()
                .map(|object| ("POST", collection(object), "application/json", object.to_string()))
                .collect();
            let output = self.batch(&requests).arg("--parallel").output().unwrap();
            assert_all(&output, "201", objects.len());
        }
    }

    /// A command that sends these requests (method, path, content type, body) over one connection, in order, and prints the status of each on
    /// a line.
    pub(crate) fn batch(&self, requests: &[(&str, String, &str, String)]) -> Command {
        let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut config = String::new();
        for (method, path, content_type, body) in requests {
            let options = [
                ("url", format!("{}{path}", self.server)),
                ("request", (*method).to_owned()),
                ("header", format!("Authorization: Bearer {ADMIN}")),
                ("header", format!("Content-Type: {content_type}")),
                ("cacert", self.certificate().display().to_string()),
                ("data-binary", body.clone()),
                ("output", "/dev/null".to_owned()),
                ("write-out", "%{http_code}\\n".to_owned()),
            ];
            if !config.is_empty() {
                config += "next\n";
            }
            for (option, value) in options {
                // The line feed of write-out is an escape of curl.
                let value = if option == "write-out" {
                    format!("\"{value}\"")
                } else {
                    quoted(&value)
                };
                config += &format!("{option} = {value}\n");
            }
        }
        let path = self.folder.join("requests");
        fs::write(&path, config).unwrap();
        let mut curl = programs::from_variable("KERNLINK_CURL");
        curl.args(["--silent", "--show-error", "--config"]).arg(path);
        curl
    }

    fn certificate(&self) -> PathBuf {
        self.folder.join("certs/apiserver.crt")
    }
}

/// Panics unless each of a number of requests had this status.
pub(crate) fn assert_all(output: &Output, status: &str, number: usize) {
    let answers = String::from_utf8_lossy(&output.stdout);
    let good = answers.lines().filter(|line| *line == status).count();
    assert_eq!(
        good,
        number,
        "{answers}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The path to which objects of this kind are posted.
pub(crate) fn collection(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str();
    let (group, name) = match object["kind"].as_str().unwrap() {
        "Namespace" => ("/api/v1", "namespaces"),
        "Node" => ("/api/v1", "nodes"),
        "Service" => ("/api/v1", "services"),
        "EndpointSlice" => ("/apis/discovery.k8s.io/v1", "endpointslices"),
        other => panic!("{other}"),
    };
    match namespace {
        Some(namespace) => format!("{group}/namespaces/{namespace}/{name}"),
        None => format!("{group}/{name}"),
    }
}

pub(crate) fn path(object: &Value) -> String {
    format!(
        "{}/{}",
        collection(object),
        object["metadata"]["name"].as_str().unwrap()
    )
}

/// As [`collection`], for a document of `rbac.yaml`.
pub(crate) fn collection_of(document: &str) -> String {
    let kind = document
        .lines()
        .find_map(|line| line.strip_prefix("kind: "))
        .unwrap();
    let namespace = document
        .lines()
        .find_map(|line| line.strip_prefix("  namespace: "))
        .map_or_else(String::new, |namespace| format!("namespaces/{namespace}/"));
    let group = if kind == "ServiceAccount" {
        "api/v1"
    } else {
        "apis/rbac.authorization.k8s.io/v1"
    };
    let namespace = if kind.starts_with("Cluster") {
        ""
    } else {
        &namespace
    };
    format!("/{group}/{namespace}{}s", kind.to_lowercase())
}
