//! Names of services for ports, from `/etc/services`.

use std::collections::HashMap;
use std::sync::OnceLock;

use kernlink_base::Protocol;

/// The port of a service in this host's `/etc/services`, by name or alias and protocol, as `getservbyname(3)` finds it. The file
/// is read once, at the first look-up. `None` if the file is missing or does not have the name.
pub(crate) fn port(name: &str, protocol: Protocol) -> Option<u16> {
    static SERVICES: OnceLock<Services> = OnceLock::new();
    let services = SERVICES.get_or_init(|| {
        let bytes = std::fs::read("/etc/services").unwrap_or_default();
        Services::parse(&String::from_utf8_lossy(&bytes))
    });
    services.port(name, protocol)
}

#[derive(Default)]
struct Services(HashMap<String, Vec<(String, u16)>>);

impl Services {
    /// Parses lines such as `smtp 25/tcp mail # comment`; others are skipped.
    fn parse(text: &str) -> Self {
        let mut services = Services::default();
        for line in text.lines() {
            let mut words = line
                .split('#')
                .next()
                .unwrap_or_default()
                .split_ascii_whitespace();
            let (Some(name), Some(number)) = (words.next(), words.next()) else {
                continue;
            };
            let Some((port, protocol)) = number.split_once('/') else {
                continue;
            };
            let Ok(port) = port.parse() else { continue };
            for name in [name].into_iter().chain(words) {
                let ports = services.0.entry(name.to_owned()).or_default();
                ports.push((protocol.to_owned(), port));
            }
        }
        services
    }

    fn port(&self, name: &str, protocol: Protocol) -> Option<u16> {
        let protocol = protocol.to_string();
        let ports = self.0.get(name)?.iter();
        ports
            .filter(|(of, _)| *of == protocol)
            .map(|(_, port)| *port)
            .next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_with_the_name_and_protocol_is_used() {
        let services = Services::parse(
            "# comment\nsmtp\t25/tcp\tmail # x\nbroken\nbroken x/tcp\nbroken 5\nntp 123/udp\nmail 26/tcp\nmail 27/udp\n",
        );
        assert_eq!(services.port("smtp", Protocol::TCP), Some(25));
        assert_eq!(services.port("mail", Protocol::TCP), Some(25));
        assert_eq!(services.port("mail", Protocol::UDP), Some(27));
        assert_eq!(services.port("ntp", Protocol::TCP), None);
        assert_eq!(services.port("broken", Protocol::TCP), None);
        assert_eq!(Services::parse("").port("smtp", Protocol::TCP), None);
    }
}
