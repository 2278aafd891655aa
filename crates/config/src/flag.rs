//! The description of a flag in the flag table.

use super::feature_gate;
use super::url::Url;
use cli::go::{ValueError, parse_duration};

/// A server flag. Its environment variable is derived from its name: see [`Flag::env`].
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name without leading dashes.
    pub name: &'static str,
    /// Heading in the help text under which the flag is listed.
    pub group: Group,
    /// Syntax of the value.
    pub kind: Kind,
    /// Default value, in the flag's own syntax.
    pub default: &'static str,
    /// Effect of setting the flag in this version.
    pub status: Status,
    /// One or two sentences for the help text and the documentation.
    pub help: &'static str,
}

/// Headings of the help text, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// This member: its listeners, storage and limits.
    Member,
    /// The cluster and its formation.
    Clustering,
    /// TLS and access control of connections.
    Security,
    /// Passwords and tokens of users.
    Auth,
    /// Metrics and profiles.
    Profiling,
    /// Level, format and outputs of the log.
    Logging,
    /// Tracing spans that are sent to a collector.
    Tracing,
    /// Checks, pacing and other tuning.
    Features,
    /// Options that can lose data.
    Unsafe,
    /// Flags that print information or name a file.
    General,
    /// Obsolete names that etcd accepts and ignores. Not in the help text.
    Legacy,
}

/// Syntax of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `true`, `false` and Go's other spellings; a flag without value means true.
    Bool,
    /// Unsigned integer of 64 bits.
    Uint,
    /// Unsigned integer of 32 bits.
    Uint32,
    /// Signed integer of 64 bits.
    Int,
    /// Duration in Go's notation: `1h30m`.
    Duration,
    /// Comma-separated list of URLs; empty keeps the default.
    Urls,
    /// Comma-separated list without duplicates.
    List,
    /// Comma-separated list, unchanged. As in etcd, an empty value is a list with one empty word.
    Words,
    /// `*`, or a comma-separated list of URLs without paths.
    Origins,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Comma-separated list of these words.
    AnyOf(&'static [&'static str]),
    /// List of gates: `A=true,B=false`.
    Gates,
    /// Any value or none: the value is ignored.
    Ignored,
}

/// The effect of setting a flag in this version. No flag is accepted silently and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The flag works.
    Implemented,
    /// etcd ignores the flag; so does Mainstay, with this warning.
    Legacy(&'static str),
    /// The flag has no meaning for this implementation: its value is validated, and the log says that it has
    /// no effect and gives this reason.
    NoEffect(&'static str),
    /// Refused at start unless set to this value, which is the fixed behavior of this version.
    NotYet(&'static str),
}

/// A value that was parsed with its flag's syntax.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// A value of [`Kind::Text`], [`Kind::OneOf`] or [`Kind::Ignored`].
    Text(String),
    /// A value of [`Kind::Bool`].
    Bool(bool),
    /// A value of [`Kind::Uint`] or [`Kind::Uint32`].
    Uint(u64),
    /// A value of [`Kind::Int`].
    Int(i64),
    /// A value of [`Kind::Duration`], in nanoseconds.
    Duration(i64),
    /// A value of [`Kind::Urls`]; `None` if it was empty.
    Urls(Option<Vec<Url>>),
    /// A value of [`Kind::List`], [`Kind::Words`], [`Kind::Origins`], [`Kind::AnyOf`] or [`Kind::Gates`].
    List(Vec<String>),
}

impl Flag {
    /// Returns the name of the environment variable: `ETCD_` and the flag's name in upper case with underscores.
    pub fn env(&self) -> String {
        env_name(self.name)
    }
}

/// Returns the environment variable of the flag with this name.
pub fn env_name(name: &str) -> String {
    format!("ETCD_{}", name.to_ascii_uppercase().replace('-', "_"))
}

impl Group {
    /// Returns the heading in the help text.
    pub fn title(self) -> &'static str {
        match self {
            Group::Member => "Member",
            Group::Clustering => "Clustering",
            Group::Security => "Security",
            Group::Auth => "Auth",
            Group::Profiling => "Profiling and Monitoring",
            Group::Logging => "Logging",
            Group::Tracing => "Distributed tracing",
            Group::Features => "Features",
            Group::Unsafe => "Unsafe feature",
            Group::General => "General",
            Group::Legacy => "Legacy",
        }
    }
}

impl Kind {
    /// Returns true if a flag of this kind may be given without a value.
    pub fn is_switch(self) -> bool {
        matches!(self, Kind::Bool | Kind::Ignored)
    }

    /// Parses a value. The error is the reason that etcd prints after `invalid value "…" for flag -…: `.
    pub fn parse(self, text: &str) -> Result<Setting, ValueError> {
        let malformed = || ValueError::new("parse error");
        let out_of_range = || ValueError::new("value out of range");
        match self {
            Kind::Text | Kind::Ignored => Ok(Setting::Text(text.to_string())),
            Kind::Bool => parse_go_bool(text).map(Setting::Bool).ok_or_else(malformed),
            Kind::Uint => match parse_go_integer(text) {
                Ok((false, value)) => Ok(Setting::Uint(value)),
                Ok((true, _)) => Err(malformed()),
                Err(error) => Err(ValueError::new(error.flag_text())),
            },
            Kind::Uint32 => {
                let failed = |reason| {
                    let text = cli::go::quote(text);
                    ValueError::new(format!("strconv.ParseUint: parsing {text}: {reason}"))
                };
                match parse_go_integer(text) {
                    Ok((false, value)) if value <= u64::from(u32::MAX) => Ok(Setting::Uint(value)),
                    Ok((true, _)) | Err(IntegerError::Syntax) => Err(failed("invalid syntax")),
                    Ok(_) | Err(IntegerError::Range) => Err(failed("value out of range")),
                }
            }
            Kind::Int => match parse_go_integer(text) {
                Ok((false, value)) => i64::try_from(value).map(Setting::Int).map_err(|_| out_of_range()),
                Ok((true, value)) => {
                    0i64.checked_sub_unsigned(value).map(Setting::Int).ok_or_else(out_of_range)
                }
                Err(error) => Err(ValueError::new(error.flag_text())),
            },
            Kind::Duration => parse_duration(text).map(Setting::Duration).map_err(|_| malformed()),
            Kind::Urls if text.is_empty() => Ok(Setting::Urls(None)),
            Kind::Urls => {
                let urls = Url::parse_list(text).map_err(|error| ValueError::new(error.to_string()))?;
                Ok(Setting::Urls(Some(urls)))
            }
            Kind::List => Ok(Setting::List(unique_words(text))),
            Kind::Words => Ok(Setting::List(text.split(',').map(str::to_string).collect())),
            Kind::Origins if text == "*" => Ok(Setting::List(vec![text.to_string()])),
            Kind::Origins => {
                let urls = Url::parse_list(text).map_err(|error| ValueError::new(error.to_string()))?;
                let mut origins: Vec<String> = urls.iter().map(Url::to_string).collect();
                origins.sort();
                origins.dedup();
                Ok(Setting::List(origins))
            }
            Kind::OneOf(words) if words.contains(&text) => Ok(Setting::Text(text.to_string())),
            Kind::OneOf(_) => Err(ValueError::new("invalid value")),
            Kind::AnyOf(words) => match text.split(',').find(|word| !words.contains(word)) {
                Some(word) => Err(ValueError::new(format!("invalid value {}", cli::go::quote(word)))),
                None => Ok(Setting::List(unique_words(text))),
            },
            Kind::Gates => {
                feature_gate::parse(text)?;
                Ok(Setting::List(vec![text.to_string()]))
            }
        }
    }
}

fn unique_words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = text.split(',').map(str::to_string).collect();
    words.sort();
    words.dedup();
    if words == [""] { Vec::new() } else { words }
}

/// Parses Go's spellings of a boolean.
pub(super) fn parse_go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IntegerError {
    Syntax,
    Range,
}

impl IntegerError {
    fn flag_text(self) -> &'static str {
        match self {
            IntegerError::Syntax => "parse error",
            IntegerError::Range => "value out of range",
        }
    }
}

/// Parses a number as Go does with base 0: decimal, `0x`, `0o`, `0` and `0b`, with underscores between
/// digits. Returns true if the number has a minus sign, and its magnitude.
fn parse_go_integer(text: &str) -> Result<(bool, u64), IntegerError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = if let Some(body) = lower.strip_prefix("0x") {
        (16, body)
    } else if let Some(body) = lower.strip_prefix("0b") {
        (2, body)
    } else if let Some(body) = lower.strip_prefix("0o") {
        (8, body)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    // An underscore must follow a base prefix or a digit, and must precede a digit.
    let misplaced = body.ends_with('_') || body.contains("__") || (radix == 10 && body.starts_with('_'));
    let body = body.replace('_', "");
    if body.is_empty() || misplaced || !body.chars().all(|c| c.is_digit(radix)) {
        return Err(IntegerError::Syntax);
    }
    let magnitude = u64::from_str_radix(&body, radix).map_err(|_| IntegerError::Range)?;
    Ok((negative, magnitude))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, value) in [
            ("0", Ok((false, 0))),
            ("100", Ok((false, 100))),
            ("+7", Ok((false, 7))),
            ("-7", Ok((true, 7))),
            ("0x10", Ok((false, 16))),
            ("0b11", Ok((false, 3))),
            ("010", Ok((false, 8))),
            ("0o10", Ok((false, 8))),
            ("1_000", Ok((false, 1000))),
            ("", Err(IntegerError::Syntax)),
            ("0x", Err(IntegerError::Syntax)),
            ("1_", Err(IntegerError::Syntax)),
            ("_1", Err(IntegerError::Syntax)),
            ("1 ", Err(IntegerError::Syntax)),
            ("1.5", Err(IntegerError::Syntax)),
            ("18446744073709551615", Ok((false, u64::MAX))),
            ("18446744073709551616", Err(IntegerError::Range)),
        ] {
            assert_eq!(parse_go_integer(text), value, "{text}");
        }
        assert_eq!(Kind::Int.parse("-9223372036854775808"), Ok(Setting::Int(i64::MIN)));
        assert_eq!(Kind::Int.parse("-9223372036854775809"), Err(ValueError::new("value out of range")));
    }
}
