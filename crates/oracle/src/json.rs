//! The file format: one JSON object on each line, with a field `is` that says what it is. Unknown fields are passed
//! over, absent ones have their zero. Keys and values are strings where they are UTF-8 that does not begin with `hex:`,
//! otherwise `hex:` and their bytes in hexadecimal.

mod history;
mod request;
mod response;
mod value;

use std::fmt;

use serde_json::{Map, Value};

use crate::{Final, History, Holding, Note, Operation, Settings, Watch};
use value::{Json, field};

/// A line that is no part of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for Malformed {}

impl History {
    /// The history as lines of JSON.
    pub fn to_lines(&self) -> String {
        let mut text = String::new();
        let mut line = |is: &str, value: Value| {
            let mut whole = Map::new();
            whole.insert("is".to_owned(), is.into());
            if let Value::Object(fields) = value {
                whole.extend(fields);
            }
            text.push_str(&Value::Object(whole).to_string());
            text.push('\n');
        };
        line("settings", self.settings.write());
        self.operations.iter().for_each(|operation| line("operation", operation.write()));
        self.watches.iter().for_each(|watch| line("watch", watch.write()));
        self.holdings.iter().for_each(|holding| line("holding", holding.write()));
        self.finals.iter().for_each(|last| line("final", last.write()));
        self.notes.iter().for_each(|note| line("note", note.write()));
        text
    }

    /// Reads what [`History::to_lines`] wrote; blank lines are passed over.
    pub fn from_lines(text: &str) -> Result<History, Malformed> {
        let mut history = History::default();
        for (number, line) in text.lines().enumerate() {
            if !line.trim().is_empty() {
                history.take(line).map_err(|text| Malformed { line: number + 1, text })?;
            }
        }
        Ok(history)
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let is: String = field(&value, "is")?;
        match is.as_str() {
            "settings" => self.settings = Settings::read(&value)?,
            "operation" => self.operations.push(Operation::read(&value)?),
            "watch" => self.watches.push(Watch::read(&value)?),
            "holding" => self.holdings.push(Holding::read(&value)?),
            "final" => self.finals.push(Final::read(&value)?),
            "note" => self.notes.push(Note::read(&value)?),
            _ => return Err(format!("there is no kind of line {is:?}")),
        }
        Ok(())
    }
}
