//! Defines the values of flags: a [`Value`] is a parsed value of any type, and [`FlagValue`] is implemented
//! by the Rust types in which commands read values.

use std::time::Duration;

use api::url::Url;

use crate::flag::Kind;
use crate::go::{self, ValueError};

/// The value of a flag after parsing, whatever its type.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A floating-point number.
    Float(f64),
    /// A string.
    Text(String),
    /// A list of strings.
    List(Vec<String>),
    /// A duration in nanoseconds.
    Duration(i64),
    /// A list of URLs; an empty list stands for the default.
    Urls(Vec<Url>),
}

impl Value {
    /// Parses a value. If the flag is a list that was given before, `before` is its value, to which the new
    /// items are appended.
    pub(crate) fn read(kind: Kind, text: &str, before: Option<&Value>) -> Result<Value, ValueError> {
        Ok(match kind {
            Kind::Bool => Value::Bool(go::parse_bool(text)?),
            Kind::Int => Value::Int(go::parse_int(text)?),
            Kind::Uint => Value::Uint(go::parse_uint(text)?),
            Kind::Uint32 => Value::Uint(go::parse_uint32(text)?.into()),
            Kind::Float => {
                let why = || format!("strconv.ParseFloat: parsing {}: invalid syntax", go::quote(text));
                Value::Float(text.parse().map_err(|_| ValueError::new(why()))?)
            }
            Kind::Text => Value::Text(text.to_owned()),
            Kind::List => {
                let mut list = match before {
                    Some(Value::List(list)) => list.clone(),
                    _ => Vec::new(),
                };
                if !text.is_empty() {
                    list.extend(text.split(',').map(str::to_owned));
                }
                Value::List(list)
            }
            Kind::Duration => Value::Duration(go::parse_duration(text)?),
        })
    }
}

/// The value of a duration flag in nanoseconds. Unlike [`Duration`], it can be negative, so that a command
/// can refuse negative values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nanoseconds(pub i64);

/// A type of flag values.
pub trait FlagValue {
    /// The type in which a command reads the value.
    type Ref<'a>;

    /// Returns the value. Without a value, or for a value of another type, returns the default of the flag,
    /// parsed from the text `default`. If that text is invalid, returns the default of the type. For a list
    /// of strings, `default` is ignored, and the default is the empty list.
    fn of<'a>(value: Option<&'a Value>, default: &'static str) -> Self::Ref<'a>;
}

/// Implements [`FlagValue`] for a type whose values are copied. The first expression converts the value, and
/// the last one parses the text of the default, which is used if there is no value.
macro_rules! copied {
    ($type:ty, $kind:ident, $value:ident => $read:expr, $default:ident => $otherwise:expr) => {
        impl FlagValue for $type {
            type Ref<'a> = $type;

            fn of(value: Option<&Value>, $default: &'static str) -> $type {
                match value {
                    Some(Value::$kind($value)) => $read,
                    _ => $otherwise,
                }
            }
        }
    };
}

copied!(bool, Bool, value => *value, default => default == "true");
copied!(i64, Int, value => *value, default => go::parse_int(default).unwrap_or_default());
copied!(u64, Uint, value => *value, default => go::parse_uint(default).unwrap_or_default());
copied!(
    u32, Uint,
    value => u32::try_from(*value).unwrap_or(u32::MAX),
    default => go::parse_uint32(default).unwrap_or_default()
);
copied!(f64, Float, value => *value, default => default.parse().unwrap_or_default());
copied!(Duration, Duration, value => positive(*value), default => positive(go::parse_duration(default).unwrap_or(0)));

copied!(
    Nanoseconds, Duration,
    value => Nanoseconds(*value),
    default => Nanoseconds(go::parse_duration(default).unwrap_or(0))
);

/// Converts nanoseconds to a duration; a negative number becomes zero.
fn positive(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

impl FlagValue for String {
    type Ref<'a> = &'a str;

    fn of<'a>(value: Option<&'a Value>, default: &'static str) -> &'a str {
        match value {
            Some(Value::Text(text)) => text,
            _ => default,
        }
    }
}

impl FlagValue for Vec<String> {
    type Ref<'a> = &'a [String];

    fn of<'a>(value: Option<&'a Value>, _: &'static str) -> &'a [String] {
        match value {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }
}

impl FlagValue for Vec<Url> {
    type Ref<'a> = Vec<Url>;

    fn of(value: Option<&Value>, default: &'static str) -> Vec<Url> {
        match value {
            Some(Value::Urls(urls)) if !urls.is_empty() => urls.clone(),
            _ => Url::parse_list(default).unwrap_or_default(),
        }
    }
}
