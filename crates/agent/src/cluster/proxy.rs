//! The proxy between this node and the API server.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tower::{BoxError, Service};

/// The proxy for a server: that of `proxy-url` in the kubeconfig file, otherwise that of the environment, as in client-go: `HTTPS_PROXY`, or for
/// a server without TLS `HTTP_PROXY`, unless `NO_PROXY` includes the server or it is on this host. Names in small letters are the same.
///
/// # Errors
/// If the proxy is not supported, with the field. The URL is not quoted: it may have a password.
pub(super) fn find(
    server: &Uri,
    configured: Option<&str>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Option<Intercept>, String> {
    let variable = |name: &str| {
        let values = [name.to_owned(), name.to_lowercase()].map(|name| environment(&name));
        values.into_iter().flatten().find(|value| !value.is_empty())
    };
    if let Some(url) = configured.filter(|url| !url.is_empty()) {
        return intercept("clusters[].cluster.proxy-url", url, "", server);
    }
    let name = if server.scheme_str() == Some("http") {
        "HTTP_PROXY"
    } else {
        "HTTPS_PROXY"
    };
    match variable(name) {
        Some(url) if !is_this_host(server) => {
            let excluded = variable("NO_PROXY").unwrap_or_default();
            // The library applies it to names only.
            if excluded.split(',').any(|entry| entry.trim() == "*") {
                return Ok(None);
            }
            intercept(name, &url, &without_ports(&excluded, server), server)
        }
        _ => Ok(None),
    }
}

fn intercept(field: &str, url: &str, excluded: &str, server: &Uri) -> Result<Option<Intercept>, String> {
    let invalid = || {
        format!("{field} is not the URL of a supported proxy; valid: http://HOST:PORT, socks5://HOST:PORT")
    };
    let matcher = |excluded: &str| Matcher::builder().all(url).no(excluded).build();
    let proxy = matcher("").intercept(server).ok_or_else(invalid)?;
    match proxy.uri().scheme_str() {
        Some("http" | "socks5" | "socks5h") => Ok(matcher(excluded).intercept(server)),
        _ => Err(invalid()),
    }
}

/// The entries of `NO_PROXY` without their ports; those with another port than the server's are left out.
fn without_ports(excluded: &str, server: &Uri) -> String {
    let default = if server.scheme_str() == Some("http") {
        80
    } else {
        443
    };
    let port = server.port_u16().unwrap_or(default);
    let entries = excluded.split(',').map(str::trim).filter_map(|entry| {
        let Some((host, number)) = entry.rsplit_once(':') else {
            return Some(entry);
        };
        if host.contains(':') && !host.ends_with(']') {
            // An IPv6 address or network.
            return Some(entry);
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (number.parse() == Ok(port)).then_some(host)
    });
    entries.collect::<Vec<_>>().join(",")
}

fn is_this_host(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Connects to the API server, maybe through a proxy.
#[derive(Clone, Debug)]
pub(super) enum Way<C> {
    Direct(C),
    Http(Tunnel<C>),
    Socks(SocksV5<C>),
}

impl<C> Way<C> {
    pub(super) fn new(proxy: Option<&Intercept>, connector: C) -> Self {
        let Some(proxy) = proxy else {
            return Self::Direct(connector);
        };
        let url = proxy.uri().clone();
        if url.scheme_str() == Some("http") {
            let tunnel = Tunnel::new(url, connector);
            return Self::Http(match proxy.basic_auth() {
                Some(credentials) => tunnel.with_auth(credentials.clone()),
                None => tunnel,
            });
        }
        let socks = SocksV5::new(url, connector);
        Self::Socks(match proxy.raw_auth() {
            Some((user, password)) => socks.with_auth(user.to_owned(), password.to_owned()),
            None => socks,
        })
    }
}

impl<C> Service<Uri> for Way<C>
where
    C: Service<Uri> + Clone,
    C::Future: Send + 'static,
    C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Error: Into<BoxError> + Send + 'static,
    Tunnel<C>: Service<Uri, Response = C::Response, Error: Into<BoxError>, Future: Send + 'static>,
    SocksV5<C>: Service<Uri, Response = C::Response, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(connector) => connector.poll_ready(context).map_err(Into::into),
            Self::Http(connector) => connector.poll_ready(context).map_err(Into::into),
            Self::Socks(connector) => connector.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Self::Direct(connector) => boxed(connector.call(server)),
            Self::Http(connector) => boxed(connector.call(server)),
            Self::Socks(connector) => boxed(connector.call(server)),
        }
    }
}

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

fn boxed<T: 'static, E: Into<BoxError>>(
    connecting: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Connecting<T> {
    Box::pin(async { connecting.await.map_err(Into::into) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(server: &str, configured: Option<&str>, environment: &[(&str, &str)]) -> String {
        let variable = |name: &str| {
            let variables = environment.iter().filter(|(variable, _)| *variable == name);
            variables.map(|(_, value)| (*value).to_owned()).next()
        };
        match find(&server.parse().unwrap(), configured, variable) {
            Ok(proxy) => proxy.map_or_else(|| "none".to_owned(), |proxy| proxy.uri().to_string()),
            Err(error) => error,
        }
    }

    #[test]
    fn the_proxy_is_that_of_the_file_or_of_the_environment() {
        let server = "https://192.0.2.1:6443/";
        let both = [("HTTPS_PROXY", "http://a:1"), ("http_proxy", "b:2")];
        assert_eq!(found(server, None, &[]), "none");
        assert_eq!(found(server, None, &both), "http://a:1/");
        assert_eq!(found("http://192.0.2.1:8080/", None, &both), "http://b:2/");
        assert_eq!(found("https://localhost/", None, &both), "none");
        assert_eq!(found("https://[::1]:6443/", None, &both), "none");
        let excluded = |entries| found(server, None, &[both[0], ("NO_PROXY", entries)]);
        for entries in ["192.0.2.1", "example.org, 192.0.2.0/24", "*", "192.0.2.1:6443"] {
            assert_eq!(excluded(entries), "none", "{entries}");
        }
        for entries in ["192.0.2.2", "192.0.2.1:443", "2001:db8::/32"] {
            assert_eq!(excluded(entries), "http://a:1/", "{entries}");
        }
        // `NO_PROXY` does not concern the file, as in client-go.
        let all = [both[0], ("NO_PROXY", "*")];
        assert_eq!(found(server, Some("socks5://c:3"), &all), "socks5://c:3/");
    }

    #[test]
    fn a_proxy_that_is_not_supported_is_an_error_without_its_password() {
        for url in ["https://user:secret@proxy:3128", "ftp://secret@proxy", "a secret"] {
            let server = "https://192.0.2.1:6443/";
            for (error, field) in [
                (found(server, Some(url), &[]), "clusters[].cluster.proxy-url"),
                (found(server, None, &[("HTTPS_PROXY", url)]), "HTTPS_PROXY"),
            ] {
                assert!(
                    error.starts_with(field) && error.contains("http://HOST:PORT"),
                    "{error}"
                );
                assert!(!error.contains("secret"), "{error}");
            }
        }
    }
}
