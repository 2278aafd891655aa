//! Shows the progress of a long operation to a user at a terminal.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::go;

/// Minimum interval between two updates of the line.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);
const BAR_CELLS: u64 = 24;

/// A progress line on standard error. Nothing is written if standard error is not a terminal.
#[derive(Debug)]
pub struct Progress {
    what: String,
    unit: Unit,
    total: Option<u64>,
    began: Instant,
    drawn: Option<Instant>,
    is_seen: bool,
}

#[derive(Clone, Copy, Debug)]
enum Unit {
    Bytes,
    Things,
}

impl Progress {
    fn new(what: &str, unit: Unit, total: Option<u64>) -> Progress {
        let is_seen = std::io::stderr().is_terminal();
        Progress { what: what.to_owned(), unit, total, began: Instant::now(), drawn: None, is_seen }
    }

    /// Returns the progress line of an operation that is measured in bytes; `total` is `None` if the number
    /// of bytes is unknown.
    pub fn of_bytes(what: &str, total: Option<u64>) -> Progress {
        Progress::new(what, Unit::Bytes, total)
    }

    /// Returns the progress line of an operation that is measured in items; `total` is `None` if the number
    /// of items is unknown.
    pub fn of_things(what: &str, total: Option<u64>) -> Progress {
        Progress::new(what, Unit::Things, total)
    }

    /// Sets the total amount once it is known.
    pub fn set_total(&mut self, total: u64) {
        self.total = Some(total);
    }

    /// Shows that `done` bytes or items are finished, followed by the text `note`. Does nothing if standard
    /// error is not a terminal, or if the line was updated a moment ago (see `DRAW_INTERVAL`).
    pub fn at(&mut self, done: u64, note: &str) {
        let now = Instant::now();
        if !self.is_seen || self.drawn.is_some_and(|drawn| now < drawn + DRAW_INTERVAL) {
            return;
        }
        self.drawn = Some(now);
        let line = self.line(done, now.duration_since(self.began), note);
        // Ignore an error, because it could only be reported on standard error, which has just failed.
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }

    /// Returns the progress line.
    fn line(&self, done: u64, took: Duration, note: &str) -> String {
        let amount = |count: u64| match self.unit {
            Unit::Bytes => go::bytes(count),
            Unit::Things => count.to_string(),
        };
        let rate = (done as f64 / took.as_secs_f64().max(1e-3)) as u64;
        let note = if note.is_empty() { String::new() } else { format!("  {note}") };
        match self.total.filter(|total| *total > 0) {
            None => format!("{}  {}  {}/s{note}", self.what, amount(done), amount(rate)),
            Some(total) => {
                let share = (done as f64 / total as f64).min(1.0);
                let full = (share * BAR_CELLS as f64) as usize;
                let bar =
                    format!("{}{}", "\u{2588}".repeat(full), "\u{2591}".repeat(BAR_CELLS as usize - full));
                let left = match rate {
                    0 => String::new(),
                    rate => format!("  {} s left", total.saturating_sub(done).div_ceil(rate)),
                };
                format!(
                    "{}  {bar} {:3.0}%  {} of {}  {}/s{left}{note}",
                    self.what,
                    share * 100.0,
                    amount(done),
                    amount(total),
                    amount(rate)
                )
            }
        }
    }

    /// Removes the progress line.
    pub fn finish(&mut self) {
        if self.drawn.take().is_some() {
            // Ignore an error, because it could only be reported on standard error, which has just failed.
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_how_fast_and_how_long() {
        let progress = Progress::of_bytes("restoring", Some(4_000_000));
        let line = progress.line(1_000_000, Duration::from_secs(2), "values");
        assert_eq!(
            line,
            "restoring  ██████░░░░░░░░░░░░░░░░░░  25%  1.0 MB of 4.0 MB  500 kB/s  6 s left  values"
        );
        let counted = Progress::of_things("mirroring", None).line(30, Duration::from_secs(3), "");
        assert_eq!(counted, "mirroring  30  10/s");
    }
}
