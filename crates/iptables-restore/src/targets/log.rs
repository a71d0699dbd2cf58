//! `-j LOG` and `-j NFLOG`.

use crate::text::{LogPrefix, NflogPrefix};
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// A line in the kernel log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Log {
    /// `--log-prefix`: prefix of the line.
    pub prefix: Option<LogPrefix>,
    /// `--log-level`: 0 (emergency) to 7 (debug); `None` means 4 (warning).
    pub level: Option<u8>,
    /// `--log-tcp-sequence`: log TCP sequence numbers.
    pub tcp_sequence: bool,
    /// `--log-tcp-options`: log TCP options.
    pub tcp_options: bool,
    /// `--log-ip-options`: log IP options.
    pub ip_options: bool,
    /// `--log-uid`: log the user ID of the local socket.
    pub uid: bool,
    /// `--log-macdecode`: log link-layer addresses.
    pub mac_decode: bool,
}

const LEVELS: [&[&str]; 8] = [
    &["emerg", "panic"],
    &["alert"],
    &["crit"],
    &["err", "error"],
    &["warning", "warn"],
    &["notice"],
    &["info"],
    &["debug"],
];

fn read_level(text: &str) -> Option<u8> {
    let named = LEVELS.iter().position(|names| names.contains(&text));
    // At most 7.
    named
        .map(|level| level as u8)
        .or_else(|| decimal(text).filter(|level| *level < 8))
}

impl Log {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut log = Log::default();
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--log-prefix" => set_once(&mut log.prefix, options.value()?)?,
                "--log-level" => set_once(&mut log.level, read_level(options.next()?)?)?,
                "--log-tcp-sequence" => set_flag_once(&mut log.tcp_sequence)?,
                "--log-tcp-options" => set_flag_once(&mut log.tcp_options)?,
                "--log-ip-options" => set_flag_once(&mut log.ip_options)?,
                "--log-uid" => set_flag_once(&mut log.uid)?,
                "--log-macdecode" => set_flag_once(&mut log.mac_decode)?,
                _ => return None,
            }
        }
        Some(log)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-j LOG");
        if let Some(prefix) = &self.prefix {
            out.literal("--log-prefix");
            out.text(prefix.as_str());
        }
        out.option("--log-level", &self.level);
        out.flag("--log-tcp-sequence", self.tcp_sequence);
        out.flag("--log-tcp-options", self.tcp_options);
        out.flag("--log-ip-options", self.ip_options);
        out.flag("--log-uid", self.uid);
        out.flag("--log-macdecode", self.mac_decode);
    }

    /// An empty prefix and the default level are not printed.
    pub(super) fn normal_form(&self) -> Self {
        Log {
            prefix: self.prefix.clone().filter(|prefix| !prefix.as_str().is_empty()),
            level: self.level.filter(|level| *level != 4),
            ..self.clone()
        }
    }
}

/// A message to processes that listen on a netlink group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nflog {
    /// `--nflog-prefix`: prefix of the message.
    pub prefix: Option<NflogPrefix>,
    /// `--nflog-group`; `None` means 0.
    pub group: Option<u16>,
    /// `--nflog-range`: never had an effect (iptables-extensions(8)), and nft does not store it. It is parsed because legacy saves contain
    /// it, but is not part of the [normal form](crate::Rule::normal_form).
    pub range: Option<u32>,
    /// `--nflog-size`: bytes of the packet to copy; `None` means all.
    pub size: Option<u32>,
    /// `--nflog-threshold`: packets to collect before sending; `None` or 0 means the setting of the listener.
    pub threshold: Option<u16>,
}

impl Nflog {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut log = Nflog::default();
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            match flag.name {
                "--nflog-prefix" => set_once(&mut log.prefix, options.value()?)?,
                "--nflog-group" => set_once(&mut log.group, decimal(options.next()?)?)?,
                "--nflog-range" => set_once(&mut log.range, decimal(options.next()?)?)?,
                "--nflog-size" => set_once(&mut log.size, decimal(options.next()?)?)?,
                "--nflog-threshold" => set_once(&mut log.threshold, decimal(options.next()?)?)?,
                _ => return None,
            }
        }
        Some(log)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-j NFLOG");
        if let Some(prefix) = &self.prefix {
            out.literal("--nflog-prefix");
            out.text(prefix.as_str());
        }
        out.option("--nflog-group", &self.group);
        out.option("--nflog-range", &self.range);
        out.option("--nflog-size", &self.size);
        out.option("--nflog-threshold", &self.threshold);
    }

    /// Defaults are not printed. The range has no effect: the kernel uses the length only with the flag that `--nflog-size` sets. nft
    /// does not store it and legacy prints it.
    pub(super) fn normal_form(&self) -> Self {
        Nflog {
            prefix: self.prefix.clone().filter(|prefix| !prefix.as_str().is_empty()),
            group: self.group.filter(|group| *group != 0),
            range: None,
            threshold: self.threshold.filter(|threshold| *threshold != 0),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Family, Rule};

    #[test]
    fn a_range_that_has_no_effect_makes_no_difference() {
        let read = |text: &str| text.parse::<Rule>().unwrap();
        let with_range = read("-j NFLOG --nflog-group 3 --nflog-range 20");
        assert_eq!(
            with_range.to_string(),
            "-j NFLOG --nflog-group 3 --nflog-range 20"
        );
        assert!(with_range.is_equivalent(&read("-j NFLOG --nflog-group 3"), Family::Ipv4));
        assert!(!with_range.is_equivalent(&read("-j NFLOG --nflog-group 3 --nflog-size 20"), Family::Ipv4));
    }
}
