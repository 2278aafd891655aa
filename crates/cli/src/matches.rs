//! Defines [`Matches`], the parsed command line, from which a command reads its flags and arguments.

use std::collections::BTreeMap;

use api::url::Url;

use crate::flag::{Flag, FlagRow};
use crate::go::{self, ValueError};
use crate::value::{FlagValue, Value};

/// A parsed command line: the command, its arguments, and the values of all flags that it accepts.
#[derive(Clone, Debug)]
pub struct Matches {
    /// Names of the command and its parents below the root; empty if no command was named.
    pub path: Vec<&'static str>,
    /// Arguments that are not flags.
    pub args: Vec<Vec<u8>>,
    /// Number of [`Matches::args`] before `--`; `None` without `--`.
    pub dash_at: Option<usize>,
    /// Unknown environment variables with the tool's prefix, as `NAME=VALUE`.
    pub unknown_env: Vec<String>,
    /// Environment variables with the tool's prefix whose values are invalid, with the reasons. Their flags
    /// count as not set.
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
        // A command must read only flags that its table has. If it reads another flag, debug builds panic,
        // and release builds use the default of the flag.
        debug_assert!(found.is_some(), "the table of {:?} leaves out --{}", self.path, flag.name);
        found.map(|(value, _)| value)
    }

    /// Returns the value of a flag from the command line or the environment; otherwise its default. For a
    /// flag that the command does not accept, returns the default.
    pub fn get<T: FlagValue>(&self, flag: Flag<T>) -> T::Ref<'_> {
        let row = flag.row();
        T::of(self.value(&row), row.default)
    }

    /// Returns true if the flag was given, on the command line or in the environment. Returns false for a
    /// flag that the command does not accept.
    pub fn is_given(&self, flag: impl Into<FlagRow>) -> bool {
        self.values.get(flag.into().name).is_some_and(|(_, given)| *given)
    }

    /// Returns the value of a flag as text, as error messages show it: the items of a list are in brackets
    /// and separated by commas.
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
            Some(Value::Urls(urls)) => {
                format!("[{}]", urls.iter().map(Url::as_str).collect::<Vec<_>>().join(","))
            }
        }
    }

    /// Returns the argument at this position as text, with invalid UTF-8 replaced; `None` if there are fewer
    /// arguments.
    pub fn arg_text(&self, at: usize) -> Option<String> {
        self.args.get(at).map(|arg| String::from_utf8_lossy(arg).into_owned())
    }
}
