//! A peer that expects given bytes and answers given bytes, for tests without a kernel.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CAPPED, NLM_F_MULTIPART, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer};

use crate::message::HEADER_LENGTH;
use crate::transport::{Limits, Transport};
use crate::{Connection, Errno, Error};

/// What a scripted connection is sent and what it answers, in order.
///
/// Sequence numbers are out of the script: those of expected requests are ignored, and those of
/// answers become the number of the request they answer.
#[derive(Clone, Debug, Default)]
pub struct Script {
    steps: VecDeque<Step>,
    requests_per_send: Option<usize>,
}

#[derive(Clone, Debug, Default)]
struct Step {
    /// Whole messages, netlink headers included; `None` takes anything.
    expected: Option<Vec<u8>>,
    answers: VecDeque<Answer>,
}

#[derive(Clone, Debug)]
enum Answer {
    /// A datagram and, per message in it, the index of the request of the send that it answers.
    Datagram {
        bytes: Vec<u8>,
        requests: Vec<usize>,
    },
    Error(Error),
}

impl Script {
    /// An empty script: any request is off script.
    pub fn new() -> Self {
        Script::default()
    }

    /// Batches are cut into sends of at most this many requests. Without it everything goes out
    /// in one send.
    pub fn requests_per_send(mut self, requests: usize) -> Self {
        self.requests_per_send = Some(requests);
        self
    }

    /// The next send must hold exactly these bytes, sequence numbers aside.
    pub fn expect(mut self, messages: &[u8]) -> Self {
        self.steps.push_back(Step {
            expected: Some(messages.to_vec()),
            ..Step::default()
        });
        self
    }

    /// The next send may hold anything.
    pub fn expect_anything(mut self) -> Self {
        self.steps.push_back(Step::default());
        self
    }

    /// Answers the send before with a datagram as the kernel sent it, all of it to the send's
    /// first request.
    pub fn answer(self, datagram: &[u8]) -> Self {
        self.answer_to(0, datagram)
    }

    /// Answers the request of this index in the send before.
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

    /// Acknowledges the request of this index in the send before: done, or refused with a number.
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

    /// Ends a dump.
    pub fn done(self) -> Self {
        let bytes = Self::message(NLMSG_DONE, NLM_F_MULTIPART, &0i32.to_ne_bytes());
        self.push(Answer::Datagram {
            bytes,
            requests: vec![0],
        })
    }

    /// Reading fails at this point, for example with [`Error::Overrun`].
    pub fn fail(self, error: Error) -> Self {
        self.push(Answer::Error(error))
    }

    /// A message with its netlink header, for use in a script.
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

    /// A connection to this script in the kernel's place.
    ///
    /// # Errors
    /// [`Error::Socket`] if `/dev/null` cannot be opened: its file descriptor is the connection's.
    pub fn connect(self) -> Result<Connection, Error> {
        let file = File::open("/dev/null").map_err(|error| Error::Socket {
            call: "open",
            errno: Errno::of(&error),
        })?;
        Ok(Connection::over(Box::new(Player {
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
struct Player {
    script: Script,
    pending: VecDeque<Answer>,
    /// Sequence numbers of the send under way.
    sequences: Vec<u32>,
    /// Gives the connection a file descriptor that is always readable.
    file: File,
}

impl AsFd for Player {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Transport for Player {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Error> {
        let off_script = |expected: Option<&[u8]>| Error::OffScript {
            expected: expected.map_or_else(|| "nothing more".into(), hex),
            sent: hex(datagram),
        };
        let Some(step) = self.script.steps.pop_front() else {
            return Err(off_script(None));
        };
        let mut sent = datagram.to_vec();
        self.sequences = blank_sequences(&mut sent);
        if let Some(mut expected) = step.expected {
            blank_sequences(&mut expected);
            if expected != sent {
                return Err(off_script(Some(&expected)));
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
}

/// Zeroes the sequence numbers of all messages and the acknowledgement flag, which depends on how
/// a batch is cut, and returns the numbers.
fn blank_sequences(messages: &mut [u8]) -> Vec<u32> {
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
