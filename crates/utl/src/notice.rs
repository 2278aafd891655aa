//! What a command says on standard error while it works: etcd's console lines.

use std::time::{SystemTime, UNIX_EPOCH};
use stdx::calendar::Utc;

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
        let mut line = format!("{}Z\t{level}\t{message}", Utc::from_unix(seconds));
        if !fields.is_empty() {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}: {value}", Value::from(*key))).collect();
            line.push_str(&format!("\t{{{}}}", fields.join(", ")));
        }
        self.out.notice(format!("{line}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_of_etcds_console() {
        let (io, printed) = Io::in_memory();
        let mut notices = Notices::new(&Io { clock: || UNIX_EPOCH, ..io });
        notices.info("said", &[("path", "a \"b\"".into()), ("n", 7.into())]);
        assert_eq!(
            printed.err(),
            "1970-01-01T00:00:00Z\tinfo\tsaid\t{\"path\": \"a \\\"b\\\"\", \"n\": 7}\n"
        );
    }
}
