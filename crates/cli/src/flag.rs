//! Describes the flags of commands: a [`FlagRow`] is a row of a command's table, and a [`Flag`] is a row
//! together with the Rust type of the flag's value.

use std::marker::PhantomData;
use std::time::Duration;

use crate::value::Nanoseconds;

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A boolean: `--flag`, or `--flag=false`; never takes the next word.
    Bool,
    /// A signed integer, written as in Go (`0x10`, `1_000`).
    Int,
    /// An unsigned integer.
    Uint,
    /// An unsigned integer of 32 bits.
    Uint32,
    /// A floating-point number.
    Float,
    /// Any text.
    Text,
    /// Comma-separated strings. If the flag is given several times, the lists are joined.
    List,
    /// A duration in Go's notation: `1m30s`.
    Duration,
}

impl Kind {
    /// Returns the word that stands for the value in help texts, such as `int` in `--limit int`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Bool => "",
            Kind::Int => "int",
            Kind::Uint => "uint",
            Kind::Uint32 => "uint32",
            Kind::Float => "float",
            Kind::Text => "string",
            Kind::List => "strings",
            Kind::Duration => "duration",
        }
    }

    /// Returns true if this default is the zero value of the type. Help texts do not show such a default.
    pub(crate) fn is_zero(self, default: &str) -> bool {
        match self {
            Kind::Bool => default == "false",
            Kind::Int | Kind::Uint | Kind::Uint32 | Kind::Float => default == "0",
            Kind::Text | Kind::List => default.is_empty(),
            Kind::Duration => default == "0s",
        }
    }
}

/// One flag, as the table of a command lists it.
#[derive(Clone, Copy, Debug)]
pub struct FlagRow {
    /// Name of the flag without dashes.
    pub name: &'static str,
    /// One-letter form of the flag; `None` if it has none.
    pub short: Option<char>,
    /// Type of the value.
    pub kind: Kind,
    /// Default, in the syntax in which a user writes the value; the items of a list are separated by commas.
    pub default: &'static str,
    /// Help text of one line. A word in backquotes is shown as the name of the value.
    pub help: &'static str,
    /// True if help texts leave the flag out.
    pub hidden: bool,
}

impl FlagRow {
    /// Returns the name as error messages show it, such as `-w, --write-out`.
    pub(crate) fn shown(&self) -> String {
        match self.short {
            Some(letter) => format!("-{letter}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

/// A flag whose value has the type `T`. The same constant declares the flag in a table ([`Flag::row`]) and is
/// passed to [`Matches::get`](crate::Matches::get) to read the value, so the name and the type cannot differ.
///
/// `R` is the type of a row: [`FlagRow`] in the tables of the tools. The server's table of flags has its own
/// row type.
#[derive(Debug)]
pub struct Flag<T, R = FlagRow> {
    row: R,
    value: PhantomData<fn() -> T>,
}

impl<T, R: Copy> Clone for Flag<T, R> {
    fn clone(&self) -> Flag<T, R> {
        *self
    }
}

impl<T, R: Copy> Copy for Flag<T, R> {}

impl<T> From<Flag<T>> for FlagRow {
    fn from(flag: Flag<T>) -> FlagRow {
        flag.row
    }
}

impl<T, R: Copy> Flag<T, R> {
    /// Returns the flag with this row. The caller must ensure that the values of the row's kind have the type
    /// `T`.
    pub const fn of_row(row: R) -> Flag<T, R> {
        Flag { row, value: PhantomData }
    }

    /// Returns the flag as a row of its table.
    pub const fn row(self) -> R {
        self.row
    }
}

impl<T> Flag<T> {
    const fn of(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag<T> {
        Flag::of_row(FlagRow { name, short: None, kind, default, help, hidden: false })
    }

    /// Returns the name of the flag without dashes.
    pub const fn name(self) -> &'static str {
        self.row.name
    }

    /// Returns the flag with a one-letter form.
    #[must_use]
    pub const fn short(mut self, letter: char) -> Flag<T> {
        self.row.short = Some(letter);
        self
    }

    /// Returns the flag as a hidden one, which help texts leave out.
    #[must_use]
    pub const fn hidden(mut self) -> Flag<T> {
        self.row.hidden = true;
        self
    }
}

impl Flag<bool> {
    /// Returns a boolean flag that is false by default.
    pub const fn bool(name: &'static str, help: &'static str) -> Flag<bool> {
        Flag::of(name, Kind::Bool, "false", help)
    }

    /// Returns a boolean flag that is true by default.
    pub const fn on(name: &'static str, help: &'static str) -> Flag<bool> {
        Flag::of(name, Kind::Bool, "true", help)
    }
}

impl Flag<String> {
    /// Returns a flag whose value is a string.
    pub const fn text(name: &'static str, default: &'static str, help: &'static str) -> Flag<String> {
        Flag::of(name, Kind::Text, default, help)
    }
}

impl Flag<Vec<String>> {
    /// Returns a flag whose value is a list of strings.
    pub const fn list(name: &'static str, default: &'static str, help: &'static str) -> Flag<Vec<String>> {
        Flag::of(name, Kind::List, default, help)
    }
}

impl Flag<i64> {
    /// Returns a flag whose value is a signed integer.
    pub const fn int(name: &'static str, default: &'static str, help: &'static str) -> Flag<i64> {
        Flag::of(name, Kind::Int, default, help)
    }
}

impl Flag<u64> {
    /// Returns a flag whose value is an unsigned integer.
    pub const fn uint(name: &'static str, default: &'static str, help: &'static str) -> Flag<u64> {
        Flag::of(name, Kind::Uint, default, help)
    }
}

impl Flag<u32> {
    /// Returns a flag whose value is an unsigned integer of 32 bits.
    pub const fn uint32(name: &'static str, default: &'static str, help: &'static str) -> Flag<u32> {
        Flag::of(name, Kind::Uint32, default, help)
    }
}

impl Flag<f64> {
    /// Returns a flag whose value is a floating-point number.
    pub const fn float(name: &'static str, default: &'static str, help: &'static str) -> Flag<f64> {
        Flag::of(name, Kind::Float, default, help)
    }
}

impl Flag<Nanoseconds> {
    /// Returns a flag like [`Flag::duration`], for a command that refuses negative values itself.
    pub const fn signed_duration(
        name: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Flag<Nanoseconds> {
        Flag::of(name, Kind::Duration, default, help)
    }
}

impl Flag<Duration> {
    /// Returns a flag whose value is a duration; the default is written as Go prints it (`0s`).
    pub const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Flag<Duration> {
        Flag::of(name, Kind::Duration, default, help)
    }
}
