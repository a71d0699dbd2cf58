//! Certificates, and a TLS server that requires one of its clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use kernlink_kernel_tests::tools;
use tokio::io::{copy, copy_bidirectional, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// A folder of files `NAME.pem`, each with a certificate and its key.
pub(crate) struct Certificates(pub(crate) PathBuf);

impl Certificates {
    /// Makes a certificate that may sign others.
    pub(crate) fn authority(&self, name: &str) {
        self.make(name, &[]);
    }

    /// Makes a certificate for a client and for a server at 127.0.0.1.
    pub(crate) fn sign(&self, name: &str, authority: &str) {
        let authority = self.path(authority);
        let authority = authority.to_str().unwrap();
        let leaf = ["-addext", "basicConstraints=critical,CA:FALSE"];
        let address = ["-addext", "subjectAltName=IP:127.0.0.1"];
        let signer = ["-CA", authority, "-CAkey", authority];
        self.make(name, &[&leaf[..], &address, &signer].concat());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.pem"))
    }

    fn make(&self, name: &str, arguments: &[&str]) {
        let [key, certificate] = ["key", "certificate"].map(|part| self.0.join(format!("{name}.{part}")));
        let subject = format!("/CN={name}");
        let files = [&key, &certificate].map(|path| path.to_str().unwrap());
        let kind = [
            "req",
            "-x509",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ];
        let names = [
            "-days", "2", "-subj", &subject, "-keyout", files[0], "-out", files[1],
        ];
        tools::must("openssl", &[&kind[..], &names, arguments].concat());
        let [key, certificate] = [key, certificate].map(|path| fs::read_to_string(path).unwrap());
        fs::write(self.path(name), certificate + &key).unwrap();
    }
}

/// A TLS server that forwards what it receives to a server without TLS.
pub(crate) struct TlsServer(Arc<Mutex<Arc<ServerConfig>>>);

impl TlsServer {
    /// Listens in the network namespace of the calling thread until the test program ends. The server has a certificate, and accepts clients
    /// whose certificates one of the authorities has signed.
    pub(crate) fn start(
        address: &str,
        target: &'static str,
        certificate: &Path,
        authorities: &[&Path],
    ) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Mutex::new(config(certificate, authorities)));
        let config = Arc::clone(&shared);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let config = Arc::clone(&config.lock().unwrap());
                    tokio::spawn(serve(TlsAcceptor::from(config), stream, target));
                }
            });
        });
        Self(shared)
    }

    /// What is required of the next connections.
    pub(crate) fn replace(&self, certificate: &Path, authorities: &[&Path]) {
        *self.0.lock().unwrap() = config(certificate, authorities);
    }
}

/// An error is one of the connection, which ends.
async fn serve(acceptor: TlsAcceptor, stream: TcpStream, target: &str) {
    match acceptor.accept(stream).into_fallible().await {
        Ok(mut stream) => {
            if let Ok(mut server) = TcpStream::connect(target).await {
                let _ = copy_bidirectional(&mut stream, &mut server).await;
            }
        }
        // The client was notified why; closing the connection at once could reset it before that is read.
        Err((_, mut stream)) => _ = copy(&mut stream, &mut sink()).await,
    }
}

fn config(certificate: &Path, authorities: &[&Path]) -> Arc<ServerConfig> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots
            .add(CertificateDer::from_pem_file(authority).unwrap())
            .unwrap();
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificate).unwrap();
    let config = ServerConfig::builder().with_client_cert_verifier(verifier);
    Arc::new(config.with_single_cert(chain, key).unwrap())
}
