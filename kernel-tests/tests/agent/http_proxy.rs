//! A proxy between the agent and the API server, in iptables mode.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Network, Protocol};
use serde_json::json;

use crate::api_server::ApiServer;
use crate::cluster::{ADDRESS, add, api_node};
use crate::support::{Agent, Manifests, api_command, wait_for_answer};

const PROXY: &str = "127.0.0.1:3128";
/// A name that only the proxy can resolve.
const SERVER: &str = "api.example:6443";

/// Connects clients to the API server, regardless of the server that they request by CONNECT.
#[derive(Clone, Default)]
struct Proxy(Arc<Mutex<Vec<String>>>);

impl Proxy {
    /// Listens in the network namespace of the calling thread until the test program ends.
    fn start() -> Self {
        let this = Self::default();
        let listener = TcpListener::bind(PROXY).unwrap();
        let shared = this.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                // An error is one of the connection, which ends.
                thread::spawn(move || shared.serve(client).ok());
            }
        });
        this
    }

    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        let mut request = String::new();
        reader.read_line(&mut request)?;
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
        }
        self.0.lock().unwrap().push(request.trim_end().to_owned());
        let mut server = TcpStream::connect(ADDRESS)?;
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        let (mut answers, mut to_client) = (server.try_clone()?, client.try_clone()?);
        thread::spawn(move || {
            let _ = std::io::copy(&mut answers, &mut to_client);
            let _ = to_client.shutdown(Shutdown::Both);
        });
        std::io::copy(&mut reader, &mut server)?;
        server.shutdown(Shutdown::Both)
    }

    /// Removes and returns the requests.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[test]
fn an_api_server_behind_a_proxy_is_reached_as_the_kubeconfig_file_or_the_environment_requires() {
    requires!(Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let files = Manifests::new();
    let kubeconfig = files.0.join("kubeconfig");
    let write = |cluster: &serde_json::Value| {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        files.replace("kubeconfig", &text.to_string());
    };
    network.node.run(|| {
        let server = ApiServer::start(ADDRESS, true);
        let proxy = Proxy::start();
        server.apply(api_node(&["192.0.2.1"]));
        let url = format!("http://{SERVER}");
        let of_environment = ("HTTP_PROXY", format!("http://{PROXY}"));
        let mut next = 1;
        let mut serves = |variables: &[(&str, &str)]| {
            let mut command = api_command(&kubeconfig, &[]);
            for (name, value) in variables {
                command.env(name, value);
            }
            let agent = Agent::spawn(command);
            let address = format!("10.96.0.{next}");
            add(&server, &format!("s{next}"), &address, 0);
            next += 1;
            wait_for_answer(&network, &address, "pod0");
            agent.stop();
            proxy.take()
        };

        write(&json!({"server": url, "proxy-url": format!("http://{PROXY}"), "disable-compression": true}));
        server.take_requests();
        let requests = serves(&[]);
        let is_tunnel = |request: &String| *request == format!("CONNECT {SERVER} HTTP/1.1");
        assert!(
            !requests.is_empty() && requests.iter().all(is_tunnel),
            "{requests:?}"
        );
        // That of the file takes precedence.
        let requests = serves(&[("HTTP_PROXY", "http://127.0.0.1:1"), ("NO_PROXY", "api.example")]);
        assert!(
            !requests.is_empty() && requests.iter().all(is_tunnel),
            "{requests:?}"
        );

        write(&json!({"server": url}));
        let requests = serves(&[
            (of_environment.0, &of_environment.1),
            ("NO_PROXY", "other.example"),
        ]);
        assert!(
            !requests.is_empty() && requests.iter().all(is_tunnel),
            "{requests:?}"
        );

        // Servers that `NO_PROXY` includes, and those of this host, are reached directly. A request of the agent before may still arrive.
        write(&json!({"server": format!("http://{ADDRESS}")}));
        let requests = serves(&[(of_environment.0, &of_environment.1)]);
        assert!(requests.iter().all(is_tunnel), "{requests:?}");

        // What is not supported is an error that names the field, and not ignored.
        write(&json!({"server": url, "proxy-url": "https://user:password@127.0.0.1:3128"}));
        let agent = Agent::spawn(api_command(&kubeconfig, &[]));
        agent.wait_for(
            "clusters[].cluster.proxy-url is not the URL of a supported proxy",
            1,
        );
        assert!(!agent.log().contains("password"), "{}", agent.log());
    });
}
