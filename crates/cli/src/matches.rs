//! The parsed command line.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::flag::{Flag, FlagRow, Kind};
use crate::go::{self, ValueError};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<String>),
    /// A duration in nanoseconds.
    Duration(i64),
}

impl Value {
    /// Parses a value; a list is appended to `before`.
    pub fn read(kind: Kind, text: &str, before: Option<&Value>) -> Result<Value, ValueError> {
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

/// A command with its arguments and flags.
#[derive(Clone, Debug)]
pub struct Matches {
    /// Names of the commands below the root; empty if none was named.
    pub path: Vec<&'static str>,
    /// Arguments that are not flags.
    pub args: Vec<Vec<u8>>,
    /// Number of [`Matches::args`] before `--`; `None` without `--`.
    pub dash_at: Option<usize>,
    /// Unknown environment variables with the tool's prefix, as `NAME=VALUE`.
    pub unknown_env: Vec<String>,
    /// Environment variables of the tool with invalid values, with the reasons. They count as not set.
    pub unusable_env: Vec<String>,
    pub(crate) values: BTreeMap<&'static str, (Value, bool)>,
}

impl Matches {
    pub(crate) fn new(path: Vec<&'static str>, flags: impl Iterator<Item = FlagRow>) -> Matches {
        let default = |flag: FlagRow| {
            let value = Value::read(flag.kind, flag.default, None).expect("tables are sound");
            (flag.name, (value, false))
        };
        let values = flags.map(default).collect();
        let (unknown_env, unusable_env) = (Vec::new(), Vec::new());
        Matches { path, args: Vec::new(), dash_at: None, unknown_env, unusable_env, values }
    }

    pub(crate) fn set(&mut self, flag: &FlagRow, text: &str) -> Result<(), ValueError> {
        let before = self.values.get(flag.name).filter(|(_, is_set)| *is_set).map(|(value, _)| value);
        let value = Value::read(flag.kind, text, before)?;
        self.values.insert(flag.name, (value, true));
        Ok(())
    }

    fn value(&self, flag: &FlagRow) -> Option<&Value> {
        let found = self.values.get(flag.name);
        // A flag that is missing in its command's table has its default, because it cannot be given.
        debug_assert!(found.is_some(), "the table of {:?} leaves out --{}", self.path, flag.name);
        found.map(|(value, _)| value)
    }

    /// Returns the value of a flag, from the command line or the environment, otherwise its default. A flag
    /// that the command does not accept has its default, too.
    pub fn get<T: FlagValue>(&self, flag: Flag<T>) -> T::Ref<'_> {
        let row = flag.row();
        T::of(self.value(&row), row.default)
    }

    /// Returns true if the flag was given, on the command line or in the environment. Returns false for a
    /// flag that the command does not accept.
    pub fn is_given(&self, flag: impl Into<FlagRow>) -> bool {
        self.values.get(flag.into().name).is_some_and(|(_, given)| *given)
    }

    /// Returns the value of a flag as text in the form in which a user writes it: lists in brackets, with
    /// commas.
    pub fn written(&self, flag: &FlagRow) -> String {
        match self.value(flag) {
            None => flag.default.to_owned(),
            Some(Value::Bool(value)) => value.to_string(),
            Some(Value::Int(value)) => value.to_string(),
            Some(Value::Uint(value)) => value.to_string(),
            Some(Value::Float(value)) => value.to_string(),
            Some(Value::List(list)) => format!("[{}]", list.join(",")),
            Some(Value::Duration(nanos)) => go::nanoseconds((*nanos).max(0)),
            Some(Value::Text(text)) => text.clone(),
        }
    }

    /// Returns an argument as text; invalid UTF-8 is replaced.
    pub fn arg_text(&self, at: usize) -> Option<String> {
        self.args.get(at).map(|arg| String::from_utf8_lossy(arg).into_owned())
    }
}

/// A type of flag values.
pub trait FlagValue {
    /// The type in which a command reads the value.
    type Ref<'a>;

    #[doc(hidden)]
    #[allow(private_interfaces)]
    fn of<'a>(value: Option<&'a Value>, default: &'static str) -> Self::Ref<'a>;
}

/// Implements [`FlagValue`] for a type whose values are copied. The last expression reads the default of a
/// flag that the command does not accept.
macro_rules! copied {
    ($type:ty, $kind:ident, $value:ident => $read:expr, $default:ident => $otherwise:expr) => {
        impl FlagValue for $type {
            type Ref<'a> = $type;

            #[allow(private_interfaces)]
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

/// Returns the duration of a flag; a negative one counts as zero.
fn positive(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

impl FlagValue for String {
    type Ref<'a> = &'a str;

    #[allow(private_interfaces)]
    fn of<'a>(value: Option<&'a Value>, default: &'static str) -> &'a str {
        match value {
            Some(Value::Text(text)) => text,
            _ => default,
        }
    }
}

impl FlagValue for Vec<String> {
    type Ref<'a> = &'a [String];

    #[allow(private_interfaces)]
    fn of<'a>(value: Option<&'a Value>, _: &'static str) -> &'a [String] {
        match value {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }
}
