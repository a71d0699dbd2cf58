//! The lines of a watch.

/// The longest line, in bytes: 64 MiB. An object has at most a few.
const MAX_LINE: usize = 64 << 20;

/// Splits what is received in parts into lines. An incomplete last line is never returned.
#[derive(Debug, Default)]
pub(super) struct Lines {
    buffer: Vec<u8>,
    /// The start of the next line.
    start: usize,
    /// The part of the buffer, from `start`, that is known to have no line feed.
    searched: usize,
}

/// A line is too long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Lines {
    pub(super) fn push(&mut self, part: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(part);
    }

    /// The next complete line that is not empty. `None` until more was received.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, TooLong> {
        loop {
            let rest = self.buffer.get(self.start..).unwrap_or_default();
            let unknown = rest.get(self.searched..).unwrap_or_default();
            let Some(length) = unknown.iter().position(|byte| *byte == b'\n') else {
                self.searched = rest.len();
                return if rest.len() > MAX_LINE {
                    Err(TooLong)
                } else {
                    Ok(None)
                };
            };
            let line = self.start..self.start + self.searched + length;
            self.start = line.end + 1;
            self.searched = 0;
            if !line.is_empty() {
                return Ok(self.buffer.get(line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines, as far as they are complete, after each part.
    fn lines(parts: &[&str]) -> Vec<Vec<String>> {
        let mut lines = Lines::default();
        let read = |part: &&str| {
            lines.push(part.as_bytes());
            let mut found = Vec::new();
            while let Some(line) = lines.next().unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
            found
        };
        parts.iter().map(read).collect()
    }

    #[test]
    fn lines_are_complete_however_they_are_received() {
        let all = "{\"a\":1}\n\n{\"b\":2}\n{\"c\"";
        let expected = ["{\"a\":1}", "{\"b\":2}"];
        for split in 0..=all.len() {
            let (first, second) = all.split_at(split);
            assert_eq!(lines(&[first, second, ""]).concat(), expected, "{split}");
        }
        let single: Vec<String> = all.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(lines(&single).concat(), expected);
    }

    #[test]
    fn a_line_without_end_is_an_error() {
        let mut lines = Lines::default();
        let part = vec![b'x'; 1 << 20];
        for _ in 0..64 {
            lines.push(&part);
            assert_eq!(lines.next(), Ok(None));
        }
        lines.push(b"x");
        assert_eq!(lines.next(), Err(TooLong));
    }
}
