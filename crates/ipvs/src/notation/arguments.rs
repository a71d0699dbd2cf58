//! Splitting a line into options and arguments.

use super::Problem;

/// The words of a line, split into options and arguments as `popt` does for `ipvsadm`.
pub(super) struct Arguments<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    /// The text attached to the last option: `80` of `-w80`, `rr` of `--scheduler=rr`.
    attached: Option<&'a str>,
    /// One-letter options that follow the last one in the same word: `n` of `-Sn`.
    grouped: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        let mut words = line.split_whitespace().peekable();
        words.next_if_eq(&"ipvsadm");
        Self {
            words,
            attached: None,
            grouped: None,
        }
    }

    /// The next option in its long or one-letter form, with its dashes.
    pub(super) fn next_option(&mut self) -> Result<Option<String>, Problem> {
        if let Some(argument) = self.attached.take() {
            // The option took no argument, so the attached text is further options.
            self.grouped = Some(argument);
        }
        if let Some(grouped) = self.grouped.take() {
            let mut letters = grouped.chars();
            if let Some(letter) = letters.next() {
                self.attached = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                return Ok(Some(format!("-{letter}")));
            }
        }
        let Some(word) = self.words.next() else {
            return Ok(None);
        };
        if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
            let (name, argument) = match long.split_once('=') {
                Some((name, argument)) => (name, Some(argument)),
                None => (long, None),
            };
            self.attached = argument;
            return Ok(Some(format!("--{name}")));
        }
        let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
        match letters.next() {
            Some(letter) => {
                self.attached = Some(letters.as_str()).filter(|rest| !rest.is_empty());
                Ok(Some(format!("-{letter}")))
            }
            None => Err(Problem::NotAnOption {
                argument: word.to_owned(),
            }),
        }
    }

    pub(super) fn argument(&mut self, option: &str) -> Result<&'a str, Problem> {
        self.attached
            .take()
            .or_else(|| self.words.next())
            .ok_or_else(|| Problem::NoArgument {
                option: option.to_owned(),
            })
    }

    /// An optional argument. A word that begins with a dash is the next option.
    pub(super) fn optional_argument(&mut self) -> Option<&'a str> {
        self.attached
            .take()
            .or_else(|| self.words.next_if(|word| !word.starts_with('-')))
    }
}
