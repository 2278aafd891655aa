//! What the flag table says of one flag.

use super::feature_gate;
use super::url::Url;
use cli::go::{ValueError, parse_duration};

/// One server flag. Its environment variable is derived from the name: see [`Flag::env`].
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name without dashes in front.
    pub name: &'static str,
    /// Heading of the help text it stands under.
    pub group: Group,
    /// Grammar of its value.
    pub kind: Kind,
    /// Value when it is not set, in the flag's own grammar.
    pub default: &'static str,
    /// Effect of setting it in this version.
    pub status: Status,
    /// One sentence or two for the help text and the documentation.
    pub help: &'static str,
}

/// Headings of the help text, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// This member: its listeners, storage and limits.
    Member,
    /// The cluster, and how it is formed.
    Clustering,
    /// TLS, and who may connect.
    Security,
    /// Users' passwords and tokens.
    Auth,
    /// Metrics and profiles.
    Profiling,
    /// Level, format and outputs of the log.
    Logging,
    /// Spans for a collector.
    Tracing,
    /// Checks, pacing and other tuning.
    Features,
    /// Options that can lose data.
    Unsafe,
    /// Flags that print something or name a file.
    General,
    /// Names from long ago that etcd accepts and ignores. Not in the help text.
    Legacy,
}

/// Grammar of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `true`, `false` and Go's other spellings; the flag alone means true.
    Bool,
    /// Unsigned, 64 bits.
    Uint,
    /// Unsigned, 32 bits.
    Uint32,
    /// Signed, 64 bits.
    Int,
    /// Go's notation: `1h30m`.
    Duration,
    /// Comma list of URLs; empty leaves the default.
    Urls,
    /// Comma list, each once.
    List,
    /// Comma list as it is written. As in etcd an empty value is a list of one empty word.
    Words,
    /// `*`, or comma list of URLs without paths.
    Origins,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Comma list of these words.
    AnyOf(&'static [&'static str]),
    /// `A=true,B=false`.
    Gates,
    /// Anything, or nothing: the value is not looked at.
    Ignored,
}

/// The effect of setting a flag in this version. No flag is accepted silently and ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The flag works.
    Implemented,
    /// etcd itself ignores it; so do we, and warn with these words.
    Legacy(&'static str),
    /// Harmless for this engine: validated and accepted, and the log says that it has no effect and, in these
    /// words, why.
    NoEffect(&'static str),
    /// Refused at start unless set to this value, which is what this version does anyway.
    NotYet(&'static str),
}

/// A value that has passed its flag's grammar.
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

/// The environment variable of the flag called `name`.
pub fn env_name(name: &str) -> String {
    format!("ETCD_{}", name.to_ascii_uppercase().replace('-', "_"))
}

impl Group {
    /// The heading as the help text has it.
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
    /// True when a flag of this kind may stand without a value.
    pub fn is_switch(self) -> bool {
        matches!(self, Kind::Bool | Kind::Ignored)
    }

    /// Reads a value. The error is the reason etcd prints after `invalid value "…" for flag -…: `.
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

/// The spellings Go takes for a truth value.
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

/// Reads a number as Go does with base 0: decimal, `0x`, `0o`, `0` and `0b`, with underscores between digits.
/// Gives whether a minus stood in front, and the magnitude.
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
    // An underscore may follow a base prefix or a digit and must precede a digit.
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
