//! Where the API server is, and the credentials.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use hyper::Uri;
use hyper_util::client::proxy::matcher::Intercept;
use jiff::Timestamp;
use kernlink_base::ErrorChain;
use kube::Config;
use kube::config::AuthInfo;

use super::files::Files;
use super::{kubeconfig, plugin, proxy, token};

/// Where the API server is, and the credentials. With neither a file nor an address: those of the pod, from its environment and the
/// files of its service account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The kubeconfig file; its current context is used.
    pub kubeconfig: Option<PathBuf>,
    /// The address of the server, which replaces that of the file.
    pub master: Option<String>,
}

/// What was read.
#[derive(Debug)]
pub(super) struct Credentials {
    pub(super) config: Config,
    pub(super) proxy: Option<Intercept>,
    /// Until when a plugin's credentials are valid. `None`: without a limit.
    pub(super) expiry: Option<Timestamp>,
    /// What they were read from.
    pub(super) files: Files,
    /// Whether a credential plugin gave them.
    pub(super) has_plugin: bool,
}

/// What a credential plugin gave.
#[derive(Clone, Debug)]
pub(super) struct Login {
    pub(super) user: AuthInfo,
    pub(super) expiry: Option<Timestamp>,
}

impl Access {
    /// Reads the files, and runs a credential plugin unless there is an earlier `login` with the same files. `has_former` is whether earlier
    /// credentials work.
    ///
    /// # Errors
    /// What cannot be read, with the reason.
    pub(super) async fn read(&self, has_former: bool, login: Option<Login>) -> Result<Credentials, String> {
        let mut files = Files::default();
        let (mut config, proxy) = self.config(&mut files).await?;
        config.cluster_url = complete(config.cluster_url.clone(), has_tls(&config))
            .map_err(|reason| format!("{}: {reason}", self.address_field()))?;
        let proxy = proxy::find(&config.cluster_url, proxy.as_deref(), |name| {
            std::env::var(name).ok()
        });
        let proxy = proxy.map_err(|problem| format!("{}: {problem}", self.place()))?;
        let user = &mut config.auth_info;
        let of_user = [&user.client_certificate, &user.client_key];
        of_user.into_iter().flatten().for_each(|path| files.add(path));
        // Of a pod. The client library reads it again when the client is built.
        config.root_cert_file.iter().for_each(|path| files.add(path));
        let of_token = token::read(user, has_former, &mut files);
        of_token.map_err(|problem| format!("{}: {problem}", self.place()))?;
        let has_plugin = user.exec.is_some();
        let expiry = match login.filter(|_| has_plugin) {
            Some(login) => {
                *user = login.user;
                login.expiry
            }
            None => plugin::log_in(user, plugin::LIMIT).await?,
        };
        token::check(user).map_err(|problem| format!("{}: {problem}", self.place()))?;
        Ok(Credentials {
            config,
            proxy,
            expiry,
            files,
            has_plugin,
        })
    }

    /// Where the server and the credentials are written.
    pub(super) fn place(&self) -> String {
        match (&self.kubeconfig, &self.master) {
            (Some(path), _) => path.display().to_string(),
            (None, Some(_)) => "--master".to_owned(),
            (None, None) => "the service account of this pod".to_owned(),
        }
    }

    /// Why the server may have refused a request as unauthorized.
    pub(super) fn advice(&self) -> String {
        match (&self.kubeconfig, &self.master) {
            (None, Some(_)) => "with --master alone there are no credentials; use --kubeconfig".to_owned(),
            _ => format!("the credentials of {} are not accepted", self.place()),
        }
    }

    /// Where the address of the server is written.
    fn address_field(&self) -> String {
        match (&self.kubeconfig, &self.master) {
            (Some(path), None) => format!("{}: clusters[].cluster.server", path.display()),
            (_, Some(_)) => "--master".to_owned(),
            (None, None) => "KUBERNETES_SERVICE_HOST".to_owned(),
        }
    }

    /// The configuration, and the proxy of the kubeconfig file.
    async fn config(&self, files: &mut Files) -> Result<(Config, Option<String>), String> {
        let Some(path) = &self.kubeconfig else {
            let Some(master) = &self.master else {
                return Config::incluster().map(|config| (config, None)).map_err(|error| {
                    let error = describe(&error);
                    format!("neither --kubeconfig nor --master is given, and this is not a pod with a service account: {error}")
                });
            };
            let url = master
                .parse()
                .map_err(|error| format!("--master: {master:?} is not a URL: {error}"))?;
            return Ok((Config::new(url), None));
        };
        let config = kubeconfig::read(path, self.master.as_deref(), files).await;
        config.map_err(|problem| format!("{}: {problem}", path.display()))
    }
}

impl fmt::Display for Access {
    /// The file and the address, or `this pod`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kubeconfig, &self.master) {
            (Some(path), None) => write!(f, "{}", path.display()),
            (Some(path), Some(master)) => write!(f, "{master} ({})", path.display()),
            (None, Some(master)) => f.write_str(master),
            (None, None) => f.write_str("that of this pod"),
        }
    }
}

/// Whether a server without a scheme is asked by HTTPS, as by client-go: something about TLS is configured.
fn has_tls(config: &Config) -> bool {
    let user = &config.auth_info;
    config.root_cert.is_some()
        || config.accept_invalid_certs
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some()
}

/// The address with a scheme. Without one, it is a host with or without a port.
fn complete(address: Uri, has_tls: bool) -> Result<Uri, String> {
    let invalid = || {
        format!(
            "{address} is not the address of an API server; valid: http://HOST:PORT, https://HOST:PORT, HOST:PORT"
        )
    };
    match (address.scheme_str(), address.authority()) {
        (Some("http" | "https"), Some(_)) => Ok(address),
        (None, Some(host)) => {
            let scheme = if has_tls { "https" } else { "http" };
            format!("{scheme}://{host}/").parse().map_err(|_| invalid())
        }
        _ => Err(invalid()),
    }
}

/// An error of the client library. Its messages contain their causes already.
pub(super) fn describe(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Service(cause)) => describe_chain(&**cause),
        Some(kube::Error::HyperError(cause)) => describe_chain(cause),
        _ => error.to_string(),
    }
}

/// An error of the HTTP library, whose messages do not contain their causes.
pub(super) fn describe_chain(error: &(dyn Error + 'static)) -> String {
    ErrorChain(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_scheme_gets_that_of_client_go() {
        let completed =
            |text: &str, has_tls| complete(text.parse().unwrap(), has_tls).map(|url| url.to_string());
        assert_eq!(
            completed("127.0.0.1:8001", false).unwrap(),
            "http://127.0.0.1:8001/"
        );
        assert_eq!(
            completed("[fd00::1]:6443", true).unwrap(),
            "https://[fd00::1]:6443/"
        );
        assert_eq!(completed("server", true).unwrap(), "https://server/");
        assert_eq!(
            completed("https://server/base", false).unwrap(),
            "https://server/base"
        );
        for text in ["/path", "ftp://server", "*"] {
            assert!(completed(text, true).unwrap_err().starts_with(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_an_error_that_names_the_field() {
        let access = Access {
            kubeconfig: None,
            master: Some("ftp://server".to_owned()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let error = runtime.block_on(access.read(false, None)).unwrap_err();
        assert!(error.starts_with("--master: ftp://server/ is not"), "{error}");
    }
}
