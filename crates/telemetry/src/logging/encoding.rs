//! Encodes a log line as JSON or in the console format.

use std::fmt::{self, Write as _};
use std::panic::Location;
use std::time::Duration;
use stdx::calendar::Utc;
use stdx::go::write_nanoseconds;
use stdx::log_text::{is_unprintable, write_text};

use super::settings::{Format, Level};

/// Value of a field. It borrows its data, so that nothing is copied if the line is not written.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// Text.
    Str(&'a str),
    /// A signed number.
    Int(i64),
    /// An unsigned number.
    Uint(u64),
    /// A number with a fraction.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A duration, written as a string in Go's notation, such as `1.5s`.
    Duration(Duration),
    /// An id, written as a string in hexadecimal.
    Id(u64),
    /// A list of strings.
    List(&'a [&'a str]),
    /// Any value, written as a string by its `Display`.
    Display(&'a dyn fmt::Display),
}

pub(super) struct Line<'a> {
    pub level: Level,
    /// Time of the line in microseconds since 1970.
    pub now_us: u64,
    pub caller: &'a Location<'a>,
    pub message: &'a str,
    pub fields: &'a [(&'a str, Value<'a>)],
    /// Number of lines with the same message that were left out before this one, because there were too many.
    pub suppressed: u64,
}

impl Line<'_> {
    /// Returns the encoded line, with its line feed.
    pub(super) fn encode(&self, format: Format) -> String {
        let mut out = String::with_capacity(256);
        match format {
            Format::Json => self.encode_json(&mut out),
            Format::Console => self.encode_console(&mut out),
        }
        out.push('\n');
        out
    }

    fn encode_json(&self, out: &mut String) {
        let _ = write!(out, "{{\"level\":\"{}\",\"ts\":\"", self.level);
        write_timestamp(out, self.now_us);
        out.push_str("\",\"caller\":");
        write_text(out, &short_caller(self.caller));
        out.push_str(",\"msg\":");
        write_text(out, self.message);
        for (key, value) in self.fields {
            out.push(',');
            write_field(out, key, value);
        }
        if self.suppressed > 0 {
            out.push(',');
            write_field(out, "suppressed", &Value::Uint(self.suppressed));
        }
        out.push('}');
    }

    fn encode_console(&self, out: &mut String) {
        write_timestamp(out, self.now_us);
        let _ = write!(out, "\t{}\t{}\t", self.level, short_caller(self.caller));
        // Replace control characters: a line feed in a message would look like the start of another line, and
        // a tab like another column.
        out.extend(self.message.chars().map(|c| if is_unprintable(c) { ' ' } else { c }));
        if self.fields.is_empty() && self.suppressed == 0 {
            return;
        }
        out.push_str("\t{");
        let suppressed = ("suppressed", Value::Uint(self.suppressed));
        let more = (self.suppressed > 0).then_some(&suppressed);
        for (i, (key, value)) in self.fields.iter().chain(more).enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            write_text(out, key);
            out.push_str(": ");
            write_value(out, value);
        }
        out.push('}');
    }
}

fn write_field(out: &mut String, key: &str, value: &Value<'_>) {
    write_text(out, key);
    out.push(':');
    write_value(out, value);
}

fn write_value(out: &mut String, value: &Value<'_>) {
    // Ignore errors. Writing to a `String` cannot fail. Only the `Display` of a caller's value can, and in
    // that case this value is incomplete.
    match value {
        Value::Str(text) => write_text(out, text),
        Value::Int(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Uint(number) => {
            let _ = write!(out, "{number}");
        }
        // JSON has no NaN and no infinities. Write them as strings, as etcd's logger (zap) does.
        Value::Float(number) if number.is_nan() => out.push_str("\"NaN\""),
        Value::Float(number) if number.is_infinite() => {
            out.push_str(if *number > 0.0 { "\"+Inf\"" } else { "\"-Inf\"" });
        }
        Value::Float(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Bool(truth) => {
            let _ = write!(out, "{truth}");
        }
        Value::Duration(duration) => {
            out.push('"');
            write_nanoseconds(out, i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX));
            out.push('"');
        }
        Value::Id(id) => {
            let _ = write!(out, "\"{id:x}\"");
        }
        Value::List(texts) => {
            out.push('[');
            for (i, text) in texts.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_text(out, text);
            }
            out.push(']');
        }
        Value::Display(shown) => {
            let mut text = String::new();
            let _ = write!(text, "{shown}");
            write_text(out, &text);
        }
    }
}

/// Returns the last directory, the file and the line of a position in the source, such as
/// `config/parser.rs:12`.
fn short_caller(caller: &Location<'_>) -> String {
    let file = caller.file();
    let start = file.rmatch_indices('/').nth(1).map_or(0, |(slash, _)| slash + 1);
    format!("{}:{}", &file[start..], caller.line())
}

/// Writes a time such as `2026-11-21T07:44:36.123456Z`.
fn write_timestamp(out: &mut String, us: u64) {
    let _ = write!(out, "{}.{:06}Z", Utc::from_unix(us / 1_000_000), us % 1_000_000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_right_around_leap_days_and_centuries() {
        for (us, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399_999_999, "2000-02-28T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_200_000_001, "2024-03-01T00:00:00.000001Z"),
            (1_795_247_076_123_456, "2026-11-21T07:44:36.123456Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
        ] {
            let mut out = String::new();
            write_timestamp(&mut out, us);
            assert_eq!(out, text);
        }
    }
}
