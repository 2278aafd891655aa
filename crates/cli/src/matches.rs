//! What was given on a command line.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::command::{Flag, Kind};
use crate::go;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<String>),
    /// Nanoseconds.
    Duration(i64),
}

impl Value {
    /// Reads a value; a list goes on from `before`.
    pub fn read(kind: Kind, text: &str, before: Option<&Value>) -> Result<Value, String> {
        Ok(match kind {
            Kind::Bool => Value::Bool(go::parse_bool(text)?),
            Kind::Int => Value::Int(go::parse_int(text)?),
            Kind::Uint => Value::Uint(go::parse_uint(text)?),
            Kind::Float => {
                let refused = |_| format!("strconv.ParseFloat: parsing {}: invalid syntax", go::quote(text));
                Value::Float(text.parse().map_err(refused)?)
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

/// A command and what it was given. Asking for a flag that the command's tables do not have, or as another kind than
/// theirs, is a mistake of the program: those methods panic then.
#[derive(Clone, Debug)]
pub struct Matches {
    /// The names of the commands below the root; empty: none was named.
    pub path: Vec<&'static str>,
    /// What was given besides flags.
    pub args: Vec<Vec<u8>>,
    /// How many of [`Matches::args`] came before `--`, if there was one.
    pub dash_at: Option<usize>,
    /// Environment variables that begin like the tool's own and are none of them, as `NAME=VALUE`.
    pub unknown_env: Vec<String>,
    pub(crate) values: BTreeMap<&'static str, (Value, bool)>,
}

impl Matches {
    pub(crate) fn new(path: Vec<&'static str>, flags: impl Iterator<Item = Flag>) -> Matches {
        let default = |flag: Flag| {
            let value = Value::read(flag.kind, flag.default, None).expect("tables are sound");
            (flag.name, (value, false))
        };
        let values = flags.map(default).collect();
        Matches { path, args: Vec::new(), dash_at: None, unknown_env: Vec::new(), values }
    }

    pub(crate) fn set(&mut self, flag: &Flag, text: &str) -> Result<(), String> {
        let before = self.values.get(flag.name).filter(|(_, is_set)| *is_set).map(|(value, _)| value);
        let value = Value::read(flag.kind, text, before)?;
        self.values.insert(flag.name, (value, true));
        Ok(())
    }

    fn value(&self, name: &str) -> &Value {
        match self.values.get(name) {
            Some((value, _)) => value,
            None => panic!("{:?} has no flag --{name}", self.path),
        }
    }

    /// Whether a flag was given, on the command line or in the environment.
    pub fn is_set(&self, name: &str) -> bool {
        self.value(name);
        self.values[name].1
    }

    /// Whether this command has such a flag at all.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// A flag that is on or off.
    pub fn flag(&self, name: &str) -> bool {
        match self.value(name) {
            Value::Bool(value) => *value,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A signed integer.
    pub fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(value) => *value,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// An unsigned integer.
    pub fn uint(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Uint(value) => *value,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A floating-point number.
    pub fn float(&self, name: &str) -> f64 {
        match self.value(name) {
            Value::Float(value) => *value,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A text.
    pub fn text(&self, name: &str) -> &str {
        match self.value(name) {
            Value::Text(value) => value,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A list of texts.
    pub fn list(&self, name: &str) -> &[String] {
        match self.value(name) {
            Value::List(value) => value,
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// A duration; one below zero counts as zero.
    pub fn duration(&self, name: &str) -> Duration {
        match self.value(name) {
            Value::Duration(nanos) => Duration::from_nanos(u64::try_from(*nanos).unwrap_or(0)),
            other => panic!("--{name} is {other:?}"),
        }
    }

    /// An argument as text; bytes that are none are replaced.
    pub fn arg_text(&self, at: usize) -> Option<String> {
        self.args.get(at).map(|arg| String::from_utf8_lossy(arg).into_owned())
    }
}
