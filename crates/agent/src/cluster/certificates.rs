//! What is wrong with certificates, in the terms of the kubeconfig file.

use std::error::Error;
use std::io;

use kube::client::RustlsTlsError;
use kube::config::{AuthInfo, KubeconfigError};
use rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Why the certificate and key of a user cannot be used, with the field. `None` if they are not the reason.
pub(super) fn describe_identity(error: &kube::Error, user: &AuthInfo) -> Option<String> {
    let certificate = || field("client-certificate", user.client_certificate.as_deref());
    let key = || field("client-key", user.client_key.as_deref());
    Some(match error {
        kube::Error::InferKubeconfig(KubeconfigError::LoadClientCertificate(error)) => {
            format!("users[].user.client-certificate: {error}")
        }
        kube::Error::InferKubeconfig(KubeconfigError::LoadClientKey(error)) => {
            format!("users[].user.client-key: {error}")
        }
        kube::Error::RustlsTls(RustlsTlsError::MissingCertificate) => {
            format!("{}: has no certificate (PEM)", certificate())
        }
        kube::Error::RustlsTls(RustlsTlsError::MissingPrivateKey) => {
            format!("{}: has no private key (PEM)", key())
        }
        kube::Error::RustlsTls(RustlsTlsError::InvalidPrivateKey(TlsError::InconsistentKeys(_))) => {
            format!("{} is not the key of {}", key(), certificate())
        }
        kube::Error::RustlsTls(RustlsTlsError::InvalidPrivateKey(error)) => format!("{}: {error}", key()),
        kube::Error::RustlsTls(RustlsTlsError::InvalidIdentityPem(error)) => {
            format!("{} or {}: {error}", certificate(), key())
        }
        _ => return None,
    })
}

fn field(name: &str, file: Option<&str>) -> String {
    match file {
        Some(file) => format!("users[].user.{name} ({file})"),
        None => format!("users[].user.{name}-data"),
    }
}

/// What an operator has to compare, if certificates are the reason of an error of a connection.
pub(super) fn advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match tls_error(error)? {
        TlsError::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some(
                "the server's certificate is not signed by certificate-authority (without it: by an authority of this system)",
            )
        }
        TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => Some("compare the clock of this node with the times in the certificate of the server"),
        TlsError::AlertReceived(
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            | AlertDescription::DecryptError,
        ) => Some("the server does not accept the client certificate"),
        _ => None,
    }
}

/// The error of TLS in a chain of errors. That of an I/O error is not one of its sources.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a TlsError> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(tls_error_inside).or_else(|| error.downcast_ref()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

fn tls_error_inside<'a>(inner: &'a (dyn Error + Send + Sync + 'static)) -> Option<&'a TlsError> {
    tls_error(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_found_inside_of_errors_of_connections() {
        let unknown = TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        let nested = io::Error::other(io::Error::other(unknown.clone()));
        for error in [
            &unknown as &(dyn Error + 'static),
            &io::Error::other(unknown.clone()),
            &nested,
        ] {
            assert!(
                advice(error).unwrap().contains("certificate-authority"),
                "{error}"
            );
        }
        let refused = TlsError::AlertReceived(AlertDescription::CertificateExpired);
        assert!(advice(&refused).unwrap().contains("client certificate"));
        assert_eq!(advice(&TlsError::DecryptError), None);
        assert_eq!(advice(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }
}
