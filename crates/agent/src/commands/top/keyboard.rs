//! Keys of a terminal in raw mode, as xterm and those like it send them.

use std::fs::File;
use std::io::{self, Read, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::view::Key;

/// What a terminal sends for keys that are no characters.
const SEQUENCES: &[(&[u8], Key)] = &[
    (b"\x1b[A", Key::Up),
    (b"\x1bOA", Key::Up),
    (b"\x1b[B", Key::Down),
    (b"\x1bOB", Key::Down),
    (b"\x1b[5~", Key::PageUp),
    (b"\x1b[6~", Key::PageDown),
];

/// Standard input.
#[derive(Debug)]
pub(super) struct Keyboard {
    input: File,
    /// The beginning of a character whose end was not read yet.
    rest: Vec<u8>,
}

impl Keyboard {
    pub(super) fn open() -> io::Result<Self> {
        let input = File::from(stdin().as_fd().try_clone_to_owned()?);
        Ok(Self {
            input,
            rest: Vec::new(),
        })
    }

    /// The keys that were pressed. Waits this long for the first one.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn wait(&mut self, most: Duration) -> io::Result<Vec<Key>> {
        let mut inputs = [PollFd::new(self.input.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(most).unwrap_or(PollTimeout::ZERO);
        match poll(&mut inputs, timeout) {
            // A signal that the program ignores interrupts it.
            Ok(0) | Err(Errno::EINTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 256];
        let length = self.input.read(&mut bytes)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.rest.extend_from_slice(&bytes[..length]);
        Ok(keys(&mut self.rest))
    }
}

/// Removes keys from what was read. The beginning of a character stays.
fn keys(bytes: &mut Vec<u8>) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes.as_slice();
    while let Some(first) = rest.first() {
        let sequence = SEQUENCES.iter().find(|(sequence, _)| rest.starts_with(sequence));
        if let Some((sequence, key)) = sequence {
            keys.push(*key);
            rest = &rest[sequence.len()..];
            continue;
        }
        if rest.starts_with(b"\x1b[") || rest.starts_with(b"\x1bO") {
            // Another key: its sequence ends with a letter or `~`.
            let end = rest.iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte));
            rest = end.map_or(&[][..], |end| &rest[end + 3..]);
            continue;
        }
        let length = match first {
            0x00..=0x7f => 1,
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf7 => 4,
            // It begins no character.
            _ => {
                rest = &rest[1..];
                continue;
            }
        };
        let Some(character) = rest.get(..length) else {
            break;
        };
        match (first, std::str::from_utf8(character)) {
            (0x03, _) => keys.push(Key::Interrupt),
            (0x0d | 0x0a, _) => keys.push(Key::Enter),
            (0x1b, _) => keys.push(Key::Escape),
            (0x08 | 0x7f, _) => keys.push(Key::Backspace),
            (_, Ok(text)) => keys.extend(
                text.chars()
                    .filter(|found| !found.is_control())
                    .map(Key::Character),
            ),
            (_, Err(_)) => {}
        }
        rest = &rest[length..];
    }
    *bytes = rest.to_vec();
    keys
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &[u8]) -> Vec<Key> {
        keys(&mut text.to_vec())
    }

    #[test]
    fn keys_are_read_from_what_a_terminal_sends() {
        for (text, expected) in [
            (&b"q"[..], vec![Key::Character('q')]),
            (b"\x1b", vec![Key::Escape]),
            (
                b"\x1b[A\x1bOB\x1b[5~\x1b[6~",
                vec![Key::Up, Key::Down, Key::PageUp, Key::PageDown],
            ),
            // F5, and control with an arrow.
            (
                b"\x1b[15~c\x1b[1;5Ac",
                vec![Key::Character('c'), Key::Character('c')],
            ),
            (
                b"\r\n\x7f\x03\x01",
                vec![Key::Enter, Key::Enter, Key::Backspace, Key::Interrupt],
            ),
            (
                "/\u{e9}".as_bytes(),
                vec![Key::Character('/'), Key::Character('\u{e9}')],
            ),
            (b"\xff\xfeq", vec![Key::Character('q')]),
        ] {
            assert_eq!(of(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_character_may_arrive_in_two_parts() {
        let [first, second] = "\u{e9}".as_bytes() else {
            panic!("two bytes");
        };
        let mut bytes = vec![b'a', *first];
        assert_eq!(keys(&mut bytes), [Key::Character('a')]);
        bytes.push(*second);
        assert_eq!(keys(&mut bytes), [Key::Character('\u{e9}')]);
        assert!(bytes.is_empty());
    }

    proptest! {
        #[test]
        fn any_input_leaves_less_than_a_character(bytes: Vec<u8>) {
            let mut rest = bytes;
            keys(&mut rest);
            prop_assert!(rest.len() < 4);
        }
    }
}
