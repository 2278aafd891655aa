//! Writes the messages of a command: to standard error, in the format of etcd's console log, or to a member's
//! log if the command is run by the start of that member.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use stdx::calendar::Utc;

use cli::{Io, Output};
use serde_json::Value;
use telemetry::logging::{self, Logger};

/// Writer of notices (messages of a command that are not results). It writes to standard error, with the time
/// of a clock, or to the log of a member.
pub struct Notices(Sink);

enum Sink {
    Console { out: Output, clock: fn() -> SystemTime },
    Log(Arc<Logger>),
}

impl Notices {
    /// Returns a writer to the standard error of `io`, with the time of the clock of `io`.
    pub fn new(io: &Io) -> Notices {
        Notices(Sink::Console { out: io.err.clone(), clock: io.clock })
    }

    /// Returns a writer to a member's log.
    pub fn in_log(logger: &Arc<Logger>) -> Notices {
        Notices(Sink::Log(Arc::clone(logger)))
    }

    /// Writes a notice at the info level: a message, followed by fields in the given order.
    pub fn info(&mut self, message: &str, fields: &[(&str, Value)]) {
        match &self.0 {
            Sink::Console { out, clock } => out.notice(line(clock(), "info", message, fields)),
            Sink::Log(logger) => logger.info(message, &logged(fields)),
        }
    }

    /// Writes a notice at the warning level: a message, followed by fields in the given order.
    pub fn warn(&mut self, message: &str, fields: &[(&str, Value)]) {
        match &self.0 {
            Sink::Console { out, clock } => out.notice(line(clock(), "warn", message, fields)),
            Sink::Log(logger) => logger.warn(message, &logged(fields)),
        }
    }

    /// Writes a text without time, level and fields to standard error; in a member's log, the text is an
    /// entry at the info level.
    pub fn plain(&mut self, text: &str) {
        match &self.0 {
            Sink::Console { out, .. } => out.notice(text),
            Sink::Log(logger) => logger.info(text, &[]),
        }
    }
}

fn line(now: SystemTime, level: &str, message: &str, fields: &[(&str, Value)]) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut line = format!("{}Z\t{level}\t{message}", Utc::from_unix(seconds));
    if !fields.is_empty() {
        let fields: Vec<String> =
            fields.iter().map(|(key, value)| format!("{}: {value}", Value::from(*key))).collect();
        line.push_str(&format!("\t{{{}}}", fields.join(", ")));
    }
    line.push('\n');
    line
}

fn logged<'f>(fields: &'f [(&'f str, Value)]) -> Vec<(&'f str, logging::Value<'f>)> {
    fields
        .iter()
        .map(|(key, value)| match value.as_str() {
            Some(text) => (*key, logging::Value::Str(text)),
            None => (*key, logging::Value::Display(value)),
        })
        .collect()
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
