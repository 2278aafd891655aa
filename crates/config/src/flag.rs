//! Defines the types of the flag table: a [`FlagRow`] describes a flag, and a [`Flag`] is a row together with
//! the Rust type of the flag's value.

use super::feature_gate;
use super::url::Url;
use cli::Value;
use cli::go::{IntegerError, ValueError, parse_bool, parse_duration, parse_magnitude};

/// A server flag whose value has the type `T`. Code reads the value of a flag by passing this constant.
pub type Flag<T> = cli::Flag<T, FlagRow>;

/// For each variant of [`Kind`], a type alias with the same name: the type of the values of such flags.
pub(super) mod value {
    use super::Url;

    pub(crate) type Text = String;
    pub(crate) type Bool = bool;
    pub(crate) type Uint = u64;
    pub(crate) type Uint32 = u32;
    pub(crate) type Int = i64;
    pub(crate) type Duration = cli::Nanoseconds;
    pub(crate) type Urls = Vec<Url>;
    pub(crate) type UrlsInOrder = Vec<Url>;
    pub(crate) type List = Vec<String>;
    pub(crate) type Words = Vec<String>;
    pub(crate) type Origins = Vec<String>;
    pub(crate) type OneOf = String;
    pub(crate) type AnyOf = Vec<String>;
    pub(crate) type Gates = String;
    pub(crate) type Ignored = String;
}

/// A server flag as the table lists it. The environment variable is derived from the name: see
/// [`FlagRow::env`].
#[derive(Clone, Copy, Debug)]
pub struct FlagRow {
    /// Name without leading dashes.
    pub name: &'static str,
    /// Heading in the help text under which the flag is listed.
    pub group: Group,
    /// Syntax of the value.
    pub kind: Kind,
    /// Default value, in the flag's own syntax.
    pub default: &'static str,
    /// Effect of setting the flag in this release of Mainstay.
    pub status: Status,
    /// One or two sentences for the help text and the documentation.
    pub help: &'static str,
}

/// Headings of the help text, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Listeners, storage and limits of this member.
    Member,
    /// Formation of the cluster, and its addresses.
    Clustering,
    /// TLS and access control of connections.
    Security,
    /// User tokens and password hashes.
    Auth,
    /// Metrics and profiles.
    Profiling,
    /// Level, format and outputs of the log.
    Logging,
    /// Distributed tracing.
    Tracing,
    /// Consistency checks, compaction speed, thresholds of slow requests, and other tuning.
    Features,
    /// Options that can lose data.
    Unsafe,
    /// Flags that print information or name a file.
    General,
    /// Obsolete flags that etcd accepts and ignores. Not in the help text.
    Legacy,
}

/// Syntax of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// `true`, `false` and Go's other spellings of them. A flag without a value means true.
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
    /// Like `Urls`, but the order is kept, and so are duplicates.
    UrlsInOrder,
    /// Comma-separated list from which duplicates are removed.
    List,
    /// Comma-separated list that may have duplicates. As in etcd, an empty value is a list with one empty
    /// word.
    Words,
    /// `*`, or a comma-separated list of origins (URLs without paths).
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

/// The effect of setting a flag in this release of Mainstay. If a flag has no effect, setting it is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The flag has the effect that its help text describes.
    Implemented,
    /// The flag is ignored with this warning, as in etcd.
    Legacy(&'static str),
    /// The flag concerns something that Mainstay does not have. The value is validated, and the log says that
    /// the flag has no effect and gives this reason.
    NoEffect(&'static str),
    /// The flag is not supported. The member refuses to start unless the flag has this value, which describes
    /// the fixed behavior of this release.
    NotYet(&'static str),
}

impl FlagRow {
    /// Returns the name of the flag's environment variable: `ETCD_` followed by the flag's name in upper
    /// case, with underscores for dashes.
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

    /// Parses a value. The error is the message that etcd prints after `invalid value "…" for flag -…: `.
    pub fn parse(self, text: &str) -> Result<Value, ValueError> {
        let malformed = || ValueError::new("parse error");
        let out_of_range = || ValueError::new("value out of range");
        match self {
            Kind::Text | Kind::Ignored => Ok(Value::Text(text.to_string())),
            Kind::Bool => parse_bool(text).map(Value::Bool).map_err(|_| malformed()),
            // As in Go, an unsigned number must have no sign, not even `+`.
            Kind::Uint => parse_magnitude(text).map(Value::Uint).map_err(flag_error),
            Kind::Uint32 => {
                let failed = |reason| {
                    let text = cli::go::quote(text);
                    ValueError::new(format!("strconv.ParseUint: parsing {text}: {reason}"))
                };
                match parse_magnitude(text) {
                    Ok(value) if value <= u64::from(u32::MAX) => Ok(Value::Uint(value)),
                    Err(IntegerError::Syntax) => Err(failed("invalid syntax")),
                    Ok(_) | Err(IntegerError::Range) => Err(failed("value out of range")),
                }
            }
            Kind::Int => match parse_go_integer(text) {
                Ok((false, value)) => i64::try_from(value).map(Value::Int).map_err(|_| out_of_range()),
                Ok((true, value)) => {
                    0i64.checked_sub_unsigned(value).map(Value::Int).ok_or_else(out_of_range)
                }
                Err(error) => Err(flag_error(error)),
            },
            Kind::Duration => parse_duration(text).map(Value::Duration).map_err(|_| malformed()),
            Kind::Urls | Kind::UrlsInOrder if text.is_empty() => Ok(Value::Urls(Vec::new())),
            Kind::Urls => {
                let urls = Url::parse_list(text).map_err(|error| ValueError::new(error.to_string()))?;
                Ok(Value::Urls(urls))
            }
            Kind::UrlsInOrder => {
                let urls = text.split(',').map(Url::parse).collect::<Result<Vec<Url>, _>>();
                urls.map(Value::Urls).map_err(|error| ValueError::new(error.to_string()))
            }
            Kind::List => Ok(Value::List(unique_words(text))),
            Kind::Words => Ok(Value::List(text.split(',').map(str::to_string).collect())),
            Kind::Origins if text == "*" => Ok(Value::List(vec![text.to_string()])),
            Kind::Origins => {
                let urls = Url::parse_list(text).map_err(|error| ValueError::new(error.to_string()))?;
                let mut origins: Vec<String> = urls.iter().map(Url::to_string).collect();
                origins.sort();
                origins.dedup();
                Ok(Value::List(origins))
            }
            Kind::OneOf(words) if words.contains(&text) => Ok(Value::Text(text.to_string())),
            Kind::OneOf(_) => Err(ValueError::new("invalid value")),
            Kind::AnyOf(words) => match text.split(',').find(|word| !words.contains(word)) {
                Some(word) => Err(ValueError::new(format!("invalid value {}", cli::go::quote(word)))),
                None => Ok(Value::List(unique_words(text))),
            },
            Kind::Gates => {
                feature_gate::parse(text)?;
                Ok(Value::Text(text.to_string()))
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

/// Parses a number with an optional sign. Returns the magnitude, and true if the sign is a minus.
fn parse_go_integer(text: &str) -> Result<(bool, u64), IntegerError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    Ok((negative, parse_magnitude(digits)?))
}

/// Returns the message that etcd prints when a flag refuses a number.
fn flag_error(error: IntegerError) -> ValueError {
    ValueError::new(match error {
        IntegerError::Syntax => "parse error",
        IntegerError::Range => "value out of range",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsigned_number_has_no_sign() {
        for text in ["+7", "-7", "+0"] {
            assert!(Kind::Uint.parse(text).is_err(), "{text}");
            assert!(Kind::Uint32.parse(text).is_err(), "{text}");
        }
        assert_eq!(Kind::Int.parse("+7"), Ok(Value::Int(7)));
    }

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
        assert_eq!(Kind::Int.parse("-9223372036854775808"), Ok(Value::Int(i64::MIN)));
        assert_eq!(Kind::Int.parse("-9223372036854775809"), Err(ValueError::new("value out of range")));
    }
}
