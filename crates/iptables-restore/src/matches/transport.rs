//! `-m tcp`, `-m udp`, `-m sctp`: ports and flags.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::network::PortRange;
use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// Ports, flags and options of TCP. All tests are optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpMatch {
    /// `--sport`: source ports.
    pub source_ports: Option<Condition<PortRange>>,
    /// `--dport`: destination ports.
    pub destination_ports: Option<Condition<PortRange>>,
    /// `--tcp-option`: number of an option in the header, 1 to 255.
    pub option: Option<Condition<u8>>,
    /// `--tcp-flags`; `--syn` is one such test.
    pub flags: Option<Condition<TcpFlagsTest>>,
}

/// The flags that are examined, and those of them that must be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlagsTest {
    /// Examined flags.
    pub examined: TcpFlags,
    /// Flags that must be set. The other examined flags must be clear.
    pub set: TcpFlags,
}

impl TcpFlagsTest {
    /// `--syn`: SYN set; RST, ACK and FIN clear.
    pub const SYN: TcpFlagsTest = TcpFlagsTest {
        examined: TcpFlags(0x17),
        set: TcpFlags(0x02),
    };
}

/// A set of [`TcpFlag`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u8);

/// A flag of the TCP header. The number is its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TcpFlag {
    /// FIN
    Fin = 0x01,
    /// SYN
    Syn = 0x02,
    /// RST
    Rst = 0x04,
    /// PSH
    Psh = 0x08,
    /// ACK
    Ack = 0x10,
    /// URG
    Urg = 0x20,
}

const FLAGS: [(TcpFlag, &str); 6] = [
    (TcpFlag::Fin, "FIN"),
    (TcpFlag::Syn, "SYN"),
    (TcpFlag::Rst, "RST"),
    (TcpFlag::Psh, "PSH"),
    (TcpFlag::Ack, "ACK"),
    (TcpFlag::Urg, "URG"),
];

impl TcpFlags {
    /// A set of flags.
    pub fn new(flags: impl IntoIterator<Item = TcpFlag>) -> Self {
        TcpFlags(flags.into_iter().fold(0, |bits, flag| bits | flag as u8))
    }

    /// Whether `flag` is in the set.
    #[must_use]
    pub fn contains(self, flag: TcpFlag) -> bool {
        self.0 & flag as u8 != 0
    }
}

impl fmt::Display for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("NONE");
        }
        let mut separator = "";
        for (flag, name) in FLAGS {
            if self.contains(flag) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for TcpFlags {
    type Err = Error;

    /// Parses names separated by commas, `ALL` or `NONE`, in any case.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut flags = TcpFlags::default();
        for word in text.split(',') {
            match FLAGS.iter().find(|(_, name)| name.eq_ignore_ascii_case(word)) {
                Some((flag, _)) => flags.0 |= *flag as u8,
                None if word.eq_ignore_ascii_case("ALL") => flags.0 = 0x3f,
                None if word.eq_ignore_ascii_case("NONE") => {}
                None => {
                    return Err(Error::invalid(
                        "tcp flags",
                        text,
                        "expected FIN, SYN, RST, PSH, ACK, URG, ALL or NONE, separated by commas",
                    ));
                }
            }
        }
        Ok(flags)
    }
}

impl TcpMatch {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut tcp = TcpMatch::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--sport" | "--source-port" => {
                    set_once(&mut tcp.source_ports, flag.condition(options.value()?))?
                }
                "--dport" | "--destination-port" => {
                    set_once(&mut tcp.destination_ports, flag.condition(options.value()?))?;
                }
                "--tcp-option" => set_once(&mut tcp.option, flag.condition(decimal(options.next()?)?))?,
                "--tcp-flags" => {
                    let test = TcpFlagsTest {
                        examined: options.value()?,
                        set: options.value()?,
                    };
                    set_once(&mut tcp.flags, flag.condition(test))?;
                }
                "--syn" => set_once(&mut tcp.flags, flag.condition(TcpFlagsTest::SYN))?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(tcp)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m tcp");
        out.test("--sport", &self.source_ports);
        out.test("--dport", &self.destination_ports);
        out.test("--tcp-option", &self.option);
        out.condition("--tcp-flags", &self.flags, |out, test| {
            out.value(test.examined);
            out.value(test.set);
        });
    }

    /// The tools do not print a test of all ports and a test without examined flags.
    pub(super) fn normal_form(mut self) -> Self {
        self.source_ports = restricting(self.source_ports);
        self.destination_ports = restricting(self.destination_ports);
        self.flags = self
            .flags
            .filter(|test| *test != Condition::Is(TcpFlagsTest::default()));
        self
    }
}

/// The test; `None` if all ports match.
fn restricting(ports: Option<Condition<PortRange>>) -> Option<Condition<PortRange>> {
    ports.filter(|test| {
        *test
            != Condition::Is(PortRange {
                first: 0,
                last: u16::MAX,
            })
    })
}

macro_rules! ports_only {
    ($(#[$doc:meta])* $name:ident, $option:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name {
            /// `--sport`: source ports.
            pub source_ports: Option<Condition<PortRange>>,
            /// `--dport`: destination ports.
            pub destination_ports: Option<Condition<PortRange>>,
        }

        impl $name {
            pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
                let mut ports = $name::default();
                while let Some(flag) = options.flag() {
                    match flag.name {
                        "--sport" | "--source-port" => {
                            set_once(&mut ports.source_ports, flag.condition(options.value()?))?;
                        }
                        "--dport" | "--destination-port" => {
                            set_once(&mut ports.destination_ports, flag.condition(options.value()?))?;
                        }
                        _ => {
                            options.put_back(&flag);
                            break;
                        }
                    }
                }
                Some(ports)
            }

            pub(super) fn print(&self, out: &mut Printer<'_>) {
                out.literal($option);
                out.test("--sport", &self.source_ports);
                out.test("--dport", &self.destination_ports);
            }
        }
    };
}

ports_only! {
    /// Ports of UDP. Both tests are optional.
    UdpMatch, "-m udp"
}

impl UdpMatch {
    /// The tools do not print a test of all ports.
    pub(super) fn normal_form(mut self) -> Self {
        self.source_ports = restricting(self.source_ports);
        self.destination_ports = restricting(self.destination_ports);
        self
    }
}

ports_only! {
    /// Ports of SCTP. Both tests are optional; a match with a test of chunks is kept verbatim. Unlike for TCP and UDP, the tools
    /// print a test of all ports.
    SctpMatch, "-m sctp"
}
