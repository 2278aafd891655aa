//! Holds log entries that are made before the log is open, for example while the options are parsed.

use std::fmt;

use super::settings::Level;

/// A log entry that is kept until the log is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Severity of the entry.
    pub level: Level,
    /// Message of the entry.
    pub message: String,
    /// Fields of the entry, each with its name and its value as text.
    pub fields: Vec<(&'static str, String)>,
}

impl Entry {
    /// Returns an entry without fields.
    pub fn new(level: Level, message: impl Into<String>) -> Entry {
        Entry { level, message: message.into(), fields: Vec::new() }
    }

    /// Returns the entry with one more field.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Entry {
        self.fields.push((key, value.into()));
        self
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.level, self.message)?;
        self.fields.iter().try_for_each(|(key, value)| write!(f, "\n  {key}: {value}"))
    }
}
