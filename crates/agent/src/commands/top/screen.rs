//! The terminal.

use std::io::{self, Stdout, Write, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{
    self, Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use crossterm::{execute, queue};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use super::keyboard::Keyboard;
use super::reader::{Reader, pause};
use super::reading::Reading;
use super::view::{HEADER, KEYS, View};
use crate::commands::table;
use crate::signals;

/// How long a new reading waits at most while no key is pressed.
const TICK: Duration = Duration::from_millis(100);
/// The most notes on the screen.
const NOTES: usize = 3;

/// Shows readings until a key ends it.
///
/// # Errors
/// If the terminal cannot be used.
pub(super) fn run(reader: Reader, interval: Duration, mut view: View) -> Result<(), String> {
    let is_ended = end_on_signals().map_err(|error| format!("signals cannot be received: {error}"))?;
    let readings = start(reader, interval)?;
    let used = Screen::open().and_then(|mut screen| show(&mut screen, &readings, &mut view, &is_ended));
    used.map_err(|error| format!("the terminal cannot be used: {error}"))
}

/// Set at SIGTERM, SIGINT and SIGHUP from now on: the terminal is restored before the process ends.
fn end_on_signals() -> io::Result<Arc<AtomicBool>> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let [(_, mut terminate), (_, mut interrupt)] = signals::register(&runtime)?;
    let mut hang_up = {
        let _context = runtime.enter();
        signal(SignalKind::hangup())?
    };
    let is_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&is_ended);
    thread::Builder::new().spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hang_up.recv() => {}
            }
        });
        ended.store(true, Ordering::Relaxed);
    })?;
    Ok(is_ended)
}

/// Reads on a thread of its own, so that keys do not wait for a reading. It ends when the other end of the channel is dropped, or with the process.
fn start(mut reader: Reader, interval: Duration) -> Result<Receiver<Reading>, String> {
    let (sender, readings) = mpsc::sync_channel(1);
    let thread = thread::Builder::new().spawn(move || {
        loop {
            let begin = Instant::now();
            let reading = reader.read();
            let taken = begin.elapsed();
            if sender.send(reading).is_err() {
                return;
            }
            thread::sleep(pause(interval, taken));
        }
    });
    thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(readings)
}

/// The screen of this program. The one before is shown again when it is dropped.
struct Screen(Stdout);

impl Screen {
    fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let mut screen = Self(stdout());
        execute!(screen.0, EnterAlternateScreen, DisableLineWrap, Hide)?;
        Ok(screen)
    }

    /// Writes lines over those that are there, so that nothing flickers.
    fn write(&mut self, lines: &[Shown]) -> io::Result<()> {
        for (row, line) in (0..).zip(lines) {
            queue!(
                self.0,
                MoveTo(0, row),
                SetAttribute(line.attribute),
                Print(&line.text)
            )?;
            queue!(
                self.0,
                SetAttribute(Attribute::Reset),
                Clear(ClearType::UntilNewLine)
            )?;
        }
        queue!(self.0, Clear(ClearType::FromCursorDown))?;
        self.0.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no other place to report that the terminal is gone.
        let _ = execute!(self.0, Show, EnableLineWrap, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn show(
    screen: &mut Screen,
    readings: &Receiver<Reading>,
    view: &mut View,
    is_ended: &AtomicBool,
) -> io::Result<()> {
    let mut keyboard = Keyboard::open()?;
    let (mut reading, mut shown) = (None, None);
    while !view.is_left && !is_ended.load(Ordering::Relaxed) {
        loop {
            match readings.try_recv() {
                Ok(newer) => {
                    reading = Some(newer);
                    shown = None;
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return Err(io::Error::other("nothing is read any more")),
            }
        }
        let size = terminal::size()?;
        if shown != Some(size) {
            let (columns, rows) = size;
            // What follows a line is cleared, which would include a character in the last column.
            let columns = usize::from(columns).saturating_sub(1);
            screen.write(&lines(reading.as_ref(), view, columns, rows.into()))?;
            shown = Some(size);
        }
        for key in keyboard.wait(TICK)? {
            view.on_key(key);
            shown = None;
        }
    }
    Ok(())
}

/// A line of the screen.
#[derive(Debug)]
struct Shown {
    text: String,
    attribute: Attribute,
}

impl Shown {
    /// Text of objects is not trusted: control characters are escaped.
    fn new(text: &str, attribute: Attribute, columns: usize) -> Self {
        let text = table::printable(&text.replace('\n', " "));
        Self {
            text: text.trim_end().chars().take(columns).collect(),
            attribute,
        }
    }
}

/// The lines of a screen of this size, at most as many as it has rows.
fn lines(reading: Option<&Reading>, view: &mut View, columns: usize, rows: usize) -> Vec<Shown> {
    let plain = |text: &str| Shown::new(text, Attribute::Reset, columns);
    let Some(reading) = reading else {
        return vec![plain("kernlink top: the first reading is not complete")];
    };
    let notes = reading
        .notes
        .iter()
        .take(NOTES)
        .map(|note| plain(&format!("note: {note}")));
    let mut end: Vec<Shown> = notes.collect();
    end.push(plain(&if view.is_typing {
        format!("filter: {}_  (Enter ends it, Esc clears it)", view.filter)
    } else {
        KEYS.to_owned()
    }));
    let body = view.lines(reading);
    let page = table::columns(&HEADER, &body);
    let mut page = page.lines();
    let mut shown = vec![plain(&title(reading, view))];
    shown.extend(
        page.next()
            .map(|header| Shown::new(header, Attribute::Reverse, columns)),
    );
    let height = rows.saturating_sub(shown.len() + end.len());
    view.skipped = view.skipped.min(body.len().saturating_sub(height));
    let services = page.zip(&body).skip(view.skipped).take(height);
    shown.extend(services.map(|(line, cells)| {
        let is_service = cells.first().is_some_and(|name| !name.is_empty());
        Shown::new(
            line,
            if is_service {
                Attribute::Bold
            } else {
                Attribute::Reset
            },
            columns,
        )
    }));
    shown.extend(end);
    shown.truncate(rows);
    shown
}

fn title(reading: &Reading, view: &View) -> String {
    let from = match &reading.mode {
        Some(mode) => format!("mode {mode}"),
        None => "virtual servers of the kernel".to_owned(),
    };
    let order = if view.is_reversed { ", reversed" } else { "" };
    let filter = match view.filter.as_str() {
        "" => String::new(),
        filter => format!(", filter {filter}"),
    };
    format!(
        "kernlink top: {from}, {} Services, sorted by {}{order}{filter}",
        reading.services.len(),
        view.sort.name()
    )
}

#[cfg(test)]
mod tests {
    use super::super::reading::CountedTarget;
    use super::super::targets::Target;
    use super::super::view::{Key, Sort};
    use super::*;

    fn reading(services: usize) -> Reading {
        let rows = (0..services).map(|number| {
            let target = Target {
                name: format!("a/{number:02}\u{1b}[2J"),
                frontends: Vec::new(),
                endpoints: Vec::new(),
            };
            let counted = CountedTarget::none(&target);
            (target, counted)
        });
        let mut reading = Reading::new(None, "ipvs", None, rows);
        reading.notes = vec!["a\u{1b}[2Jb\nc".to_owned(); 5];
        reading
    }

    #[test]
    fn text_of_an_object_cannot_control_the_terminal_and_every_size_is_kept() {
        let reading = reading(30);
        for (columns, rows) in [(80, 24), (80, 5), (20, 2), (1, 1), (0, 0)] {
            let mut view = View::new(Sort::default(), String::new());
            view.on_key(Key::Character('/'));
            view.on_key(Key::Character('a'));
            for reading in [None, Some(&reading)] {
                let shown = lines(reading, &mut view, columns, rows);
                assert!(shown.len() <= rows.max(1), "{shown:?}");
                for line in shown {
                    assert!(line.text.chars().count() <= columns, "{line:?}");
                    assert!(!line.text.contains(char::is_control), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn the_last_line_is_the_end_of_what_is_scrolled() {
        let reading = reading(30);
        let mut view = View::new(Sort::Name, String::new());
        view.skipped = 1_000;
        // Below a title and a header, above three notes and the keys.
        let shown = lines(Some(&reading), &mut view, 200, 16);
        assert_eq!((shown.len(), view.skipped), (16, 20));
        assert!(
            shown[2].text.starts_with("a/20") && shown[11].text.starts_with("a/29"),
            "{shown:?}"
        );
        assert_eq!(shown[12].text.split(' ').next(), Some("note:"));
        assert_eq!(shown[15].text, KEYS);
    }
}
