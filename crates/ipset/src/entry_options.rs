//! Options of entries.

use std::fmt;
use std::str::FromStr;

use crate::name::SetName;
use crate::parse::{self, ParseError};
use crate::uapi::IPSET_MAX_COMMENT_SIZE;

/// The options of an entry. Most of them require that the set was created with their extension.
///
/// Two entries with the same dimensions and different options are the same entry of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryOptions {
    /// Time until the kernel deletes the entry; when listed, the remaining time. Requires a set with timeouts; `None` is the
    /// timeout of the set.
    pub timeout: Option<Timeout>,
    /// Initial value of the packet counter; when listed, its value. Requires a set with counters; `None` starts at 0.
    pub packets: Option<u64>,
    /// Initial value of the byte counter; when listed, its value. Requires a set with counters; `None` starts at 0.
    pub bytes: Option<u64>,
    /// A comment. Requires a set with comments.
    pub comment: Option<Comment>,
    /// Mark that the `SET` target sets on matching packets. Requires a set with skbinfo.
    pub skb_mark: Option<SkbMark>,
    /// Traffic class that the `SET` target sets on matching packets; 0:0 is none. Requires a set with skbinfo.
    pub skb_priority: Option<SkbPriority>,
    /// Hardware queue that the `SET` target sets on matching packets; 0 is none. Requires a set with skbinfo.
    pub skb_queue: Option<u16>,
    /// The entry is an exception: packets that it matches do not match the set. Only for set types with a network.
    pub nomatch: bool,
    /// Position in a `list:set` at which the entry is added; `None` is the end. Not listed.
    pub position: Option<Position>,
}

impl EntryOptions {
    pub(crate) const NONE: EntryOptions = EntryOptions {
        timeout: None,
        packets: None,
        bytes: None,
        comment: None,
        skb_mark: None,
        skb_priority: None,
        skb_queue: None,
        nomatch: false,
        position: None,
    };

    /// Removes the values that are no option for the kernel.
    pub(crate) fn normalised(mut self) -> Self {
        self.skb_mark = self.skb_mark.filter(|mark| *mark != SkbMark { mark: 0, mask: 0 });
        self.skb_priority = self
            .skb_priority
            .filter(|priority| *priority != SkbPriority { major: 0, minor: 0 });
        self.skb_queue = self.skb_queue.filter(|queue| *queue != 0);
        self.comment = self.comment.filter(|comment| !comment.as_bytes().is_empty());
        self
    }

    /// Without the options that change with time: counters and timeout.
    pub(crate) fn configured(&self) -> Self {
        EntryOptions {
            timeout: None,
            packets: None,
            bytes: None,
            ..self.clone()
        }
    }

    /// Parses one option of an entry, with its value from `next`. Returns false if `word` is not the name of an option.
    pub(crate) fn set_word<'a>(
        &mut self,
        word: &str,
        next: &mut dyn FnMut() -> Option<&'a str>,
    ) -> Result<bool, ParseError> {
        let missing = || ParseError::new("option", word, "requires a value");
        match word {
            "nomatch" => self.nomatch = true,
            "timeout" => self.timeout = Some(next().ok_or_else(missing)?.parse()?),
            "packets" => {
                self.packets = Some(parse::number("packets", next().ok_or_else(missing)?, u64::MAX)?)
            }
            "bytes" => self.bytes = Some(parse::number("bytes", next().ok_or_else(missing)?, u64::MAX)?),
            "comment" => self.comment = Some(Comment::new(next().ok_or_else(missing)?)?),
            "skbmark" => self.skb_mark = Some(next().ok_or_else(missing)?.parse()?),
            "skbprio" => self.skb_priority = Some(next().ok_or_else(missing)?.parse()?),
            "skbqueue" => {
                let queue = parse::number("skbqueue", next().ok_or_else(missing)?, u64::from(u16::MAX))?;
                self.skb_queue = Some(u16::try_from(queue).unwrap_or_default());
            }
            "before" | "after" => {
                let text = next().ok_or_else(missing)?;
                let name =
                    SetName::new(text).map_err(|error| ParseError::new("set name", text, error.reason()))?;
                self.position = Some(if word == "before" {
                    Position::Before(name)
                } else {
                    Position::After(name)
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// The options as `ipset save` prints them, each after a space; the position as an argument of `ipset add`.
impl fmt::Display for EntryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl EntryOptions {
    /// Prints the options. `wildcard` is part of the element but is printed between the options.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, wildcard: &str) -> fmt::Result {
        match &self.position {
            Some(Position::Before(name)) => write!(f, " before {name}")?,
            Some(Position::After(name)) => write!(f, " after {name}")?,
            None => {}
        }
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {timeout}")?;
        }
        if self.nomatch {
            f.write_str(" nomatch")?;
        }
        f.write_str(wildcard)?;
        if let Some(packets) = self.packets {
            write!(f, " packets {packets}")?;
        }
        if let Some(bytes) = self.bytes {
            write!(f, " bytes {bytes}")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " comment \"{comment}\"")?;
        }
        if let Some(mark) = self.skb_mark {
            write!(f, " skbmark {mark}")?;
        }
        if let Some(priority) = self.skb_priority {
            write!(f, " skbprio {priority}")?;
        }
        if let Some(queue) = self.skb_queue {
            write!(f, " skbqueue {queue}")?;
        }
        Ok(())
    }
}

/// A timeout in seconds, 0 to 2 147 483; 0 is permanent. The kernel would truncate a longer timeout, so it is an error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timeout(u32);

impl Timeout {
    /// No timeout: the entry is permanent.
    pub const PERMANENT: Timeout = Timeout(0);
    /// The longest timeout: `IPSET_MAX_TIMEOUT` of
    /// [`ip_set.h`](https://elixir.bootlin.com/linux/v6.12/source/include/linux/netfilter/ipset/ip_set.h).
    pub const MAX: Timeout = Timeout(2_147_483);

    /// A timeout in seconds; 0 is permanent.
    ///
    /// # Errors
    ///
    /// If it is more than [`Self::MAX`].
    pub fn from_secs(seconds: u32) -> Result<Self, ParseError> {
        if seconds > Self::MAX.0 {
            return Err(ParseError::new(
                "timeout",
                seconds,
                format_args!("is more than {} seconds", Self::MAX.0),
            ));
        }
        Ok(Timeout(seconds))
    }

    /// A timeout that a kernel listed, without check of the maximum.
    pub(crate) fn listed(seconds: u32) -> Self {
        Timeout(seconds)
    }

    /// Seconds; 0 is permanent.
    #[must_use]
    pub fn as_secs(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Timeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.0)
    }
}

impl FromStr for Timeout {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let seconds = parse::number("timeout", text, u64::from(Self::MAX.0))?;
        Ok(Timeout(u32::try_from(seconds).unwrap_or_default()))
    }
}

/// A comment on an entry: at most 255 bytes without NUL. The kernel accepts any other bytes. The notation of ipset(8) cannot
/// represent a quotation mark, so [`Comment::new`] refuses one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(Box<[u8]>);

impl Comment {
    /// A comment that ipset(8) can print and parse.
    ///
    /// # Errors
    ///
    /// If it is longer than 255 bytes (`IPSET_MAX_COMMENT_SIZE`) or contains a NUL, a quotation mark or a line break.
    pub fn new(text: &str) -> Result<Self, ParseError> {
        if text.contains(['"', '\n', '\r']) {
            return Err(ParseError::new(
                "comment",
                text,
                "must not contain a quotation mark or a line break",
            ));
        }
        Self::from_bytes(text.as_bytes())
    }

    /// Any comment that the kernel accepts.
    ///
    /// # Errors
    ///
    /// If it is longer than 255 bytes (`IPSET_MAX_COMMENT_SIZE`) or contains a NUL.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let error = |reason: &str| Err(ParseError::new("comment", String::from_utf8_lossy(bytes), reason));
        if bytes.len() > IPSET_MAX_COMMENT_SIZE {
            return error("has more than 255 bytes (IPSET_MAX_COMMENT_SIZE)");
        }
        if bytes.contains(&0) {
            return error("must not contain a NUL byte");
        }
        Ok(Comment(bytes.into()))
    }

    /// The bytes, without a NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Debug for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// A packet mark with a mask: `0x1/0xff`, or `0x1` for all bits.
#[doc(alias = "skbmark")]
#[doc(alias = "IPSET_ATTR_SKBMARK")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkbMark {
    /// The mark.
    pub mark: u32,
    /// The bits of the packet's mark that are replaced; `0xffffffff` is all.
    pub mask: u32,
}

impl fmt::Display for SkbMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.mark)?;
        if self.mask == u32::MAX {
            Ok(())
        } else {
            write!(f, "/{:#x}", self.mask)
        }
    }
}

impl fmt::Debug for SkbMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SkbMark {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let part = |part: &str| {
            let digits = part.strip_prefix("0x").or_else(|| part.strip_prefix("0X"))?;
            if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                u32::from_str_radix(digits, 16).ok()
            } else {
                None
            }
        };
        let (mark, mask) = text.split_once('/').map_or((text, "0xffffffff"), |parts| parts);
        part(mark)
            .zip(part(mask))
            .map(|(mark, mask)| SkbMark { mark, mask })
            .ok_or_else(|| {
                ParseError::new(
                    "skbmark",
                    text,
                    "is not a mark such as 0x1, or mark/mask, of 32 bits",
                )
            })
    }
}

/// A traffic class, `major:minor` in hexadecimal.
#[doc(alias = "skbprio")]
#[doc(alias = "IPSET_ATTR_SKBPRIO")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SkbPriority {
    /// Number of the queueing discipline.
    pub major: u16,
    /// Number of the class in it.
    pub minor: u16,
}

impl fmt::Display for SkbPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}:{:x}", self.major, self.minor)
    }
}

impl fmt::Debug for SkbPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SkbPriority {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let part = |part: &str| {
            let plain = part.bytes().all(|byte| byte.is_ascii_hexdigit());
            u16::from_str_radix(part, 16).ok().filter(|_| plain)
        };
        text.split_once(':')
            .and_then(|(major, minor)| {
                Some(SkbPriority {
                    major: part(major)?,
                    minor: part(minor)?,
                })
            })
            .ok_or_else(|| {
                ParseError::new(
                    "skbprio",
                    text,
                    "is not major:minor, each a hexadecimal number of 16 bits",
                )
            })
    }
}

/// The position of a member in a `list:set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Position {
    /// Directly before this member.
    #[doc(alias = "IPSET_FLAG_BEFORE")]
    Before(SetName),
    /// Directly after this member.
    #[doc(alias = "IPSET_ATTR_NAMEREF")]
    After(SetName),
}
