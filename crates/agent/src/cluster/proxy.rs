//! The proxy between this node and the API server.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use ipnet::IpNet;
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
        return intercept("clusters[].cluster.proxy-url", url, server);
    }
    let name = if server.scheme_str() == Some("http") {
        "HTTP_PROXY"
    } else {
        "HTTPS_PROXY"
    };
    match variable(name) {
        Some(url)
            if !is_this_host(server) && !excludes(&variable("NO_PROXY").unwrap_or_default(), server) =>
        {
            intercept(name, &url, server)
        }
        _ => Ok(None),
    }
}

fn intercept(field: &str, url: &str, server: &Uri) -> Result<Option<Intercept>, String> {
    let proxy = Matcher::builder().all(url).build().intercept(server);
    let schemes = ["http", "socks5", "socks5h"];
    match proxy {
        Some(proxy)
            if proxy
                .uri()
                .scheme_str()
                .is_some_and(|scheme| schemes.contains(&scheme)) =>
        {
            Ok(Some(proxy))
        }
        _ => Err(format!(
            "{field} is not the URL of a supported proxy; valid: http://HOST:PORT, socks5://HOST:PORT"
        )),
    }
}

/// Whether `NO_PROXY` includes a server. An entry is `*`, a network, or an address or domain, which may have a port. A domain includes those below
/// it; one that begins with `.` or `*.` is only those below it.
fn excludes(entries: &str, server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().to_ascii_lowercase();
    let address = address(&host);
    let port = port(server).to_string();
    entries
        .to_ascii_lowercase()
        .split(',')
        .map(str::trim)
        .any(|entry| {
            if entry == "*" {
                return true;
            }
            if let Ok(network) = entry.parse::<IpNet>() {
                return address.is_some_and(|address| network.contains(&address));
            }
            let (name, number) = split_port(entry);
            if !number.is_empty() && number != port {
                return false;
            }
            if let Ok(excluded) = name.parse::<IpAddr>() {
                return address == Some(excluded.to_canonical());
            }
            address.is_none() && !name.is_empty() && is_in_domain(&host, name)
        })
}

/// An entry of `NO_PROXY`, and its port, which is empty if there is none.
fn split_port(entry: &str) -> (&str, &str) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') => (name, port),
        Some((name, port)) => match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(name) => (name, port),
            None => (entry, ""),
        },
        None => (entry, ""),
    }
}

fn is_in_domain(host: &str, domain: &str) -> bool {
    let domain = domain
        .strip_prefix('*')
        .filter(|rest| rest.starts_with('.'))
        .unwrap_or(domain);
    if domain.starts_with('.') {
        return host.ends_with(domain);
    }
    let above = host.strip_suffix(domain);
    above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

fn is_this_host(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    host == "localhost" || address(host).is_some_and(|address| address.is_loopback())
}

/// The address if a host is one. An IPv4 address that is mapped to IPv6 is the IPv4 address.
fn address(host: &str) -> Option<IpAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = host.parse().ok()?;
    Some(address.to_canonical())
}

/// The port of a server or proxy, which is that of its scheme if the URL has none.
fn port(url: &Uri) -> u16 {
    url.port_u16().unwrap_or(match url.scheme_str() {
        Some("http") => 80,
        Some("socks5" | "socks5h") => 1080,
        _ => 443,
    })
}

/// The URL with its port: the connectors assume 443 for a server behind a proxy, and 80 for a proxy.
fn with_port(url: Uri) -> Uri {
    if url.port().is_some() {
        return url;
    }
    let port = port(&url);
    let mut parts = url.clone().into_parts();
    parts.authority = parts
        .authority
        .and_then(|authority| format!("{authority}:{port}").parse().ok());
    Uri::from_parts(parts).unwrap_or(url)
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
        let url = with_port(proxy.uri().clone());
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
            Self::Http(connector) => boxed(connector.call(with_port(server))),
            Self::Socks(connector) => boxed(connector.call(with_port(server))),
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
        // A proxy that is not used may be one that is not supported.
        let other = [("HTTPS_PROXY", "https://a:1"), ("NO_PROXY", "192.0.2.1")];
        assert_eq!(found(server, None, &other), "none");
        // `NO_PROXY` does not concern the file, as in client-go.
        let all = [both[0], ("NO_PROXY", "*")];
        assert_eq!(found(server, Some("socks5://c:3"), &all), "socks5://c:3/");
    }

    #[test]
    fn no_proxy_excludes_the_servers_that_it_excludes_for_client_go() {
        // Whether Go's `http.ProxyFromEnvironment` returns the proxy.
        let cases = [
            (".example.org", "https://example.org/", true),
            (".example.org", "https://api.example.org/", false),
            ("*.example.org", "https://example.org/", true),
            ("*.example.org", "https://api.example.org/", false),
            ("example.org", "https://API.Example.org:6443/", false),
            ("example.org", "https://anexample.org/", true),
            (".Example.ORG:6443", "https://api.example.org:6443/", false),
            ("[2001:db8::1]", "https://[2001:db8::1]:6443/", true),
            ("[2001:db8::1]:6443", "https://[2001:db8::1]:6443/", false),
            ("2001:db8::1", "https://[2001:db8::1]:6443/", false),
            ("2001:db8::/64", "https://[2001:db8::1]:6443/", false),
            ("192.0.2.1:", "https://192.0.2.1:6443/", false),
            (":6443", "https://192.0.2.1:6443/", true),
            ("org", "https://example.org/", false),
            ("a*", "https://a/", true),
            ("*:6443", "https://a.b:6443/", true),
            ("192.0.2.1/24:6443", "https://192.0.2.1:6443/", true),
            ("192.0.2.1/24", "https://192.0.2.9:6443/", false),
            ("other", "https://[::ffff:127.0.0.1]/", false),
            ("x,*", "https://192.0.2.1/", false),
            ("192.0.2.1", "https://[::ffff:192.0.2.1]/", false),
            ("192.0.2.0/24", "https://[::ffff:192.0.2.1]/", false),
            ("0.0.0.0/0", "https://[2001:db8::1]/", true),
            ("example.org:x", "https://example.org/", true),
            ("example.org:443", "https://example.org/", false),
            (" , ,", "https://example.org/", true),
        ];
        let proxy = ("HTTPS_PROXY", "http://a:1");
        let differs = cases.iter().filter(|(entries, server, expected)| {
            (found(server, None, &[proxy, ("NO_PROXY", entries)]) != "none") != *expected
        });
        assert_eq!(differs.collect::<Vec<_>>(), Vec::<&(&str, &str, bool)>::new());
    }

    #[test]
    fn a_url_without_a_port_has_that_of_its_scheme() {
        for (url, expected) in [
            ("http://a/", "http://a:80/"),
            ("https://a/b", "https://a:443/b"),
            ("https://[2001:db8::1]/", "https://[2001:db8::1]:443/"),
            ("https://a:6443/", "https://a:6443/"),
            ("socks5://a/", "socks5://a:1080/"),
        ] {
            assert_eq!(with_port(url.parse().unwrap()).to_string(), expected);
        }
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
