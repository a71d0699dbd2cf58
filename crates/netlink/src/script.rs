//! A mock of the kernel that follows a script, for tests.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CAPPED, NLM_F_MULTIPART, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};

use crate::message::HEADER_LENGTH;
use crate::transport::{Limits, Transport};
use crate::{Connection, Errno, Error};

/// Expected requests and their answers, in order.
///
/// Sequence numbers are not compared: those of expected requests are ignored, and each answer gets
/// the sequence number of the request it answers. `NLM_F_ACK` is not compared either.
#[derive(Clone, Debug, Default)]
pub struct Script {
    steps: VecDeque<Step>,
    requests_per_send: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Step {
    /// Messages including netlink headers; `None` accepts any.
    expected: Option<Vec<u8>>,
    answers: VecDeque<Answer>,
}

#[derive(Clone, Debug)]
enum Answer {
    /// A datagram and, for each message in it, the index of the answered request within its send.
    Datagram {
        bytes: Vec<u8>,
        requests: Vec<usize>,
    },
    Error(Error),
}

impl Script {
    /// An empty script: every request fails with [`Error::UnexpectedRequest`].
    #[must_use]
    pub fn new() -> Self {
        Script::default()
    }

    /// Limits the number of requests in one send of a batch. Default: no limit.
    #[must_use]
    pub fn requests_per_send(mut self, requests: usize) -> Self {
        self.requests_per_send = Some(requests);
        self
    }

    /// The next send must contain exactly these messages, apart from sequence numbers and `NLM_F_ACK`.
    #[must_use]
    pub fn expect(mut self, messages: &[u8]) -> Self {
        self.steps.push_back(Step {
            expected: Some(messages.to_vec()),
            ..Step::default()
        });
        self
    }

    /// The next send may contain anything.
    #[must_use]
    pub fn expect_anything(mut self) -> Self {
        self.steps.push_back(Step::default());
        self
    }

    /// Answers the first request of the preceding send with a datagram.
    #[must_use]
    pub fn answer(self, datagram: &[u8]) -> Self {
        self.answer_to(0, datagram)
    }

    /// Answers the request with this index in the preceding send with a datagram.
    #[must_use]
    pub fn answer_to(self, request: usize, datagram: &[u8]) -> Self {
        let mut messages = 0;
        let mut rest = datagram;
        while let Some(length) = NetlinkBuffer::new_checked(rest)
            .ok()
            .map(|buffer| buffer.length().next_multiple_of(4) as usize)
        {
            messages += 1;
            rest = rest.get(length..).unwrap_or(&[]);
        }
        self.push(Answer::Datagram {
            bytes: datagram.to_vec(),
            requests: vec![request; messages],
        })
    }

    /// Acknowledges the request with this index in the preceding send, or refuses it with an error number.
    #[must_use]
    pub fn acknowledge(self, request: usize, outcome: Result<(), Errno>) -> Self {
        let code = outcome.map_or_else(|errno| -errno.0, |()| 0);
        let mut payload = code.to_ne_bytes().to_vec();
        payload.extend_from_slice(&[0; HEADER_LENGTH]);
        let bytes = Self::message(NLMSG_ERROR, NLM_F_CAPPED, &payload);
        self.push(Answer::Datagram {
            bytes,
            requests: vec![request],
        })
    }

    /// Answers with the end of a dump (`NLMSG_DONE`).
    #[must_use]
    pub fn done(self) -> Self {
        let bytes = Self::message(NLMSG_DONE, NLM_F_MULTIPART, &0i32.to_ne_bytes());
        self.push(Answer::Datagram {
            bytes,
            requests: vec![0],
        })
    }

    /// The next receive fails, for example with [`Error::Overrun`].
    #[must_use]
    pub fn fail(self, error: Error) -> Self {
        self.push(Answer::Error(error))
    }

    /// Encodes a message with its netlink header, sequence number 0.
    #[must_use]
    pub fn message(message_type: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LENGTH];
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let length = u32::try_from(HEADER_LENGTH + payload.len()).unwrap_or(u32::MAX);
        let mut header = NetlinkBuffer::new(&mut bytes[..]);
        header.set_length(length);
        header.set_message_type(message_type);
        header.set_flags(flags);
        bytes
    }

    /// A connection to this script.
    ///
    /// # Errors
    /// [`Error::Socket`] if `/dev/null` cannot be opened, whose file descriptor the connection returns.
    pub fn connect(self) -> Result<Connection, Error> {
        let file = File::open("/dev/null").map_err(|error| Error::Socket {
            call: "open",
            errno: Errno::from_io(&error),
        })?;
        Ok(Connection::with_transport(Box::new(ScriptedTransport {
            script: self,
            pending: VecDeque::new(),
            sequences: Vec::new(),
            file,
        })))
    }

    fn push(mut self, answer: Answer) -> Self {
        if self.steps.is_empty() {
            self.steps.push_back(Step::default());
        }
        if let Some(step) = self.steps.back_mut() {
            step.answers.push_back(answer);
        }
        self
    }
}

#[derive(Debug)]
struct ScriptedTransport {
    script: Script,
    pending: VecDeque<Answer>,
    /// Sequence numbers of the requests in the last send.
    sequences: Vec<u32>,
    /// `/dev/null`, a file descriptor that is always readable.
    file: File,
}

impl AsFd for ScriptedTransport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Transport for ScriptedTransport {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Error> {
        let unexpected = |expected: Option<&[u8]>| Error::UnexpectedRequest {
            expected: expected.map_or_else(|| "nothing more".into(), hex),
            sent: hex(datagram),
        };
        let Some(step) = self.script.steps.pop_front() else {
            return Err(unexpected(None));
        };
        let mut sent = datagram.to_vec();
        self.sequences = clear_sequences(&mut sent);
        if let Some(mut expected) = step.expected {
            clear_sequences(&mut expected);
            if expected != sent {
                return Err(unexpected(Some(&expected)));
            }
        }
        self.pending = step.answers;
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], _timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        match self.pending.pop_front() {
            None => Ok(None),
            Some(Answer::Error(error)) => Err(error),
            Some(Answer::Datagram { mut bytes, requests }) => {
                let mut rest = &mut bytes[..];
                for request in requests {
                    let sequence = self.sequences.get(request).copied().unwrap_or(0);
                    let mut header = NetlinkBuffer::new(&mut *rest);
                    header.set_sequence_number(sequence);
                    let length = (header.length().next_multiple_of(4) as usize).min(rest.len());
                    rest = rest.get_mut(length..).unwrap_or(&mut []);
                }
                let capacity = buffer.len();
                let target = buffer.get_mut(..bytes.len()).ok_or(Error::Truncated {
                    size: bytes.len(),
                    capacity,
                })?;
                target.copy_from_slice(&bytes);
                Ok(Some(bytes.len()))
            }
        }
    }

    fn limits(&self) -> Limits {
        Limits {
            requests: self.script.requests_per_send.unwrap_or(usize::MAX),
            bytes: usize::MAX,
        }
    }

    fn reserve_send(&mut self, _bytes: usize) -> Result<(), Error> {
        Ok(())
    }
}

/// Clears the sequence numbers and `NLM_F_ACK` of all messages, and returns the sequence numbers. `NLM_F_ACK` depends on
/// how a batch is divided into sends.
fn clear_sequences(messages: &mut [u8]) -> Vec<u32> {
    let mut sequences = Vec::new();
    let mut rest = messages;
    while NetlinkBuffer::new_checked(&*rest).is_ok() {
        let mut header = NetlinkBuffer::new(&mut *rest);
        sequences.push(header.sequence_number());
        header.set_sequence_number(0);
        header.set_flags(header.flags() & !NLM_F_ACK);
        let length = (header.length().next_multiple_of(4) as usize).min(rest.len());
        rest = rest.get_mut(length..).unwrap_or(&mut []);
    }
    sequences
}

fn hex(bytes: &[u8]) -> Box<str> {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _infallible = write!(text, "{byte:02x}");
            text
        })
        .into_boxed_str()
}
