//! What a command says on standard error while it works: etcd's console lines.

use std::time::{SystemTime, UNIX_EPOCH};

use cli::{Io, Output};
use serde_json::Value;

/// Writes notices on standard error, with the time that a clock tells.
pub struct Notices {
    out: Output,
    clock: fn() -> SystemTime,
}

impl Notices {
    /// Notices on the standard error of `io`, with the time of its clock.
    pub fn new(io: &Io) -> Notices {
        Notices { out: io.err.clone(), clock: io.clock }
    }

    /// Something worth knowing: a message and its fields, in their order.
    pub fn info(&mut self, message: &str, fields: &[(&str, Value)]) {
        self.line("info", message, fields);
    }

    /// Something to think about.
    pub fn warn(&mut self, message: &str, fields: &[(&str, Value)]) {
        self.line("warn", message, fields);
    }

    /// A text as it is.
    pub fn plain(&mut self, text: &str) {
        self.out.notice(text);
    }

    fn line(&mut self, level: &str, message: &str, fields: &[(&str, Value)]) {
        let seconds = (self.clock)().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut line = format!("{}\t{level}\t{message}", utc(seconds));
        if !fields.is_empty() {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}: {value}", Value::from(*key))).collect();
            line.push_str(&format!("\t{{{}}}", fields.join(", ")));
        }
        self.out.notice(format!("{line}\n"));
    }
}

/// RFC 3339, in seconds, UTC. The civil date follows from the days since 1970 by counting years from March on.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_of_etcds_console() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_795_282_288), "2026-11-21T17:31:28Z");
        let (io, printed) = Io::in_memory();
        let mut notices = Notices::new(&Io { clock: || UNIX_EPOCH, ..io });
        notices.info("said", &[("path", "a \"b\"".into()), ("n", 7.into())]);
        assert_eq!(
            printed.err(),
            "1970-01-01T00:00:00Z\tinfo\tsaid\t{\"path\": \"a \\\"b\\\"\", \"n\": 7}\n"
        );
    }
}
