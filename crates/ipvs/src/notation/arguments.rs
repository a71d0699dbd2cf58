//! A line to options and arguments.

use super::Problem;

/// The words of a line, options told from arguments as `popt` does for `ipvsadm`.
pub(super) struct Arguments<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    /// What is stuck to the last option: `80` of `-w80`, `rr` of `--scheduler=rr`.
    attached: Option<&'a str>,
    /// Options stuck together behind the last one: `n` of `-Sn`.
    stuck: Option<&'a str>,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        let mut words = line.split_whitespace().peekable();
        words.next_if_eq(&"ipvsadm");
        Self {
            words,
            attached: None,
            stuck: None,
        }
    }

    /// The next option in its long or its one-letter form, dashes included.
    pub(super) fn next_option(&mut self) -> Result<Option<String>, Problem> {
        if let Some(argument) = self.attached.take() {
            // The option took no argument: what is stuck to it are further options.
            self.stuck = Some(argument);
        }
        if let Some(stuck) = self.stuck.take() {
            let mut letters = stuck.chars();
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

    /// An argument that may be left out: a word that begins with a dash is the next option.
    pub(super) fn optional_argument(&mut self) -> Option<&'a str> {
        self.attached
            .take()
            .or_else(|| self.words.next_if(|word| !word.starts_with('-')))
    }
}
