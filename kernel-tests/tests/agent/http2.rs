//! A TLS server that supports HTTP/2 only.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Listens in the network namespace of the calling thread until the test program ends. Each request is passed on to a server without TLS.
pub(crate) fn start(address: &str, target: &'static str, certificate: &Path) {
    let listener = std::net::TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificate).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let mut config = config.with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // An error is one of the connection, which ends.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let service = service_fn(move |request| pass_on(request, target));
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
    });
}

async fn pass_on(
    request: Request<Incoming>,
    target: &str,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(target).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.version = Version::HTTP_11;
    head.uri = head.uri.path_and_query().unwrap().as_str().parse()?;
    head.headers.insert(HOST, target.parse()?);
    let mut answer = sender.send_request(Request::from_parts(head, body)).await?;
    *answer.version_mut() = Version::HTTP_2;
    answer.headers_mut().remove("connection");
    answer.headers_mut().remove("transfer-encoding");
    Ok(answer)
}
