//! The tables that describe a tool.

use std::marker::PhantomData;
use std::time::Duration;

use crate::{go, parser};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A boolean: `--flag`, or `--flag=false`; never takes the next word.
    Bool,
    /// A signed integer with Go's literals (`0x10`, `1_000`).
    Int,
    /// An unsigned integer.
    Uint,
    /// An unsigned integer of 32 bits.
    Uint32,
    /// A floating-point number.
    Float,
    /// Any text.
    Text,
    /// Comma-separated texts; the flag may be given several times.
    List,
    /// A duration in Go's notation: `1m30s`.
    Duration,
}

impl Kind {
    /// Returns the word that stands for a value in help texts.
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

    /// Returns true if help texts leave this default out.
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
    /// One-letter form of the flag.
    pub short: Option<char>,
    /// Type of the value.
    pub kind: Kind,
    /// Default in the form in which a user writes the value; lists with commas.
    pub default: &'static str,
    /// Help text of one line; a word in backquotes stands for the value.
    pub help: &'static str,
    /// True if help texts leave the flag out.
    pub hidden: bool,
}

impl FlagRow {
    /// Returns the name as error texts show it: `-w, --write-out`.
    pub(crate) fn shown(&self) -> String {
        match self.short {
            Some(letter) => format!("-{letter}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

/// A flag whose value has the type `T`. A constant of this type both declares the flag in a command's table
/// ([`Flag::row`]) and reads its value ([`Matches::get`](crate::Matches::get)), so name and kind always
/// match.
#[derive(Debug)]
pub struct Flag<T> {
    row: FlagRow,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for Flag<T> {
    fn clone(&self) -> Flag<T> {
        *self
    }
}

impl<T> Copy for Flag<T> {}

impl<T> From<Flag<T>> for FlagRow {
    fn from(flag: Flag<T>) -> FlagRow {
        flag.row
    }
}

impl<T> Flag<T> {
    const fn of(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag<T> {
        Flag { row: FlagRow { name, short: None, kind, default, help, hidden: false }, value: PhantomData }
    }

    /// Returns the flag as a row of a command's table.
    pub const fn row(self) -> FlagRow {
        self.row
    }

    /// Returns the name of the flag without dashes.
    pub const fn name(self) -> &'static str {
        self.row.name
    }

    /// Adds a one-letter form.
    #[must_use]
    pub const fn short(mut self, letter: char) -> Flag<T> {
        self.row.short = Some(letter);
        self
    }

    /// Hides the flag in help texts.
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
    /// Returns a flag whose value is a text.
    pub const fn text(name: &'static str, default: &'static str, help: &'static str) -> Flag<String> {
        Flag::of(name, Kind::Text, default, help)
    }
}

impl Flag<Vec<String>> {
    /// Returns a flag whose value is a list of texts.
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

impl Flag<Duration> {
    /// Returns a flag whose value is a duration; the default is written as Go prints it (`0s`).
    pub const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Flag<Duration> {
        Flag::of(name, Kind::Duration, default, help)
    }
}

/// A command, or a group of commands. `R` is what the tool uses to run a command, usually a function pointer.
#[derive(Clone, Copy, Debug)]
pub struct Command<R: 'static = ()> {
    /// Name of the command.
    pub name: &'static str,
    /// Other names of the command.
    pub aliases: &'static [&'static str],
    /// Usage line after the path of the parent commands: `put [options] <key> <value>`.
    pub usage: &'static str,
    /// True if the usage line is complete without `[flags]` at its end.
    pub usage_is_whole: bool,
    /// Description in one line.
    pub about: &'static str,
    /// Longer description; if empty, the one-line description is used.
    pub long: &'static str,
    /// Example lines, each indented by two blanks.
    pub example: &'static str,
    /// Flags of the command itself.
    pub flags: &'static [FlagRow],
    /// Flags that the command shares with other commands of the tool.
    pub shared_flags: &'static [FlagRow],
    /// Flags inherited from the parent command, which help texts list with the global ones.
    pub inherited_flags: &'static [FlagRow],
    /// Function that runs the command. `None` for a group of commands, which only shows its help.
    pub run: Option<R>,
    /// Subcommands.
    pub subcommands: &'static [Command<R>],
    /// Heading in the parent's help under which the command is listed; if empty, the last heading.
    pub group: &'static str,
    /// True if help texts leave the command out.
    pub hidden: bool,
}

impl<R> Command<R> {
    /// An empty command, for the fields that most commands leave empty.
    pub const EMPTY: Command<R> = Command {
        name: "",
        aliases: &[],
        usage: "",
        usage_is_whole: false,
        about: "",
        long: "",
        example: "",
        flags: &[],
        shared_flags: &[],
        inherited_flags: &[],
        run: None,
        subcommands: &[],
        group: "",
        hidden: false,
    };

    /// Returns all flags except the global ones.
    pub(crate) fn all_flags(&self) -> impl Iterator<Item = &FlagRow> {
        self.own_flags().chain(self.inherited_flags)
    }

    /// Returns the command's own flags, and those that it shares with other commands.
    pub(crate) fn own_flags(&self) -> impl Iterator<Item = &FlagRow> {
        self.flags.iter().chain(self.shared_flags)
    }

    pub(crate) fn answers_to(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }
}

/// A command-line tool.
#[derive(Clone, Copy, Debug)]
pub struct Program<R: 'static = ()> {
    /// Root command with all subcommands; its name appears in help texts and errors (`etcdctl`).
    pub root: Command<R>,
    /// Flags that every command accepts.
    pub globals: &'static [FlagRow],
    /// Prefix of the environment variables that set global flags (`ETCDCTL_`).
    pub env_prefix: Option<&'static str>,
    /// Environment variables with that prefix that are known but set no flag.
    pub env_known: &'static [&'static str],
    /// A line at the end of help texts in place of the global flags; if empty, the global flags are listed.
    pub globals_hint: &'static str,
}

impl<R: Copy> Program<R> {
    /// Parses the arguments (without the program's name) and the environment.
    ///
    /// # Errors
    /// Returns the error that etcd's tools report for the arguments.
    pub fn parse(
        &self,
        args: &[std::ffi::OsString],
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<parser::Invocation<R>, parser::UsageError> {
        parser::parse(self, args, env)
    }

    /// Returns the commands from the root to the one at `path`, the root first.
    ///
    /// # Panics
    /// Panics if no command has this path.
    pub(crate) fn chain(&self, path: &[&str]) -> Vec<&Command<R>> {
        let mut chain = vec![&self.root];
        let mut at = &self.root;
        for name in path {
            at = at
                .subcommands
                .iter()
                .find(|command| command.name == *name)
                .expect("paths are of this program");
            chain.push(at);
        }
        chain
    }

    /// Returns the help text of the command at `path` (names of commands below the root).
    ///
    /// # Panics
    /// Panics if no command has this path.
    pub fn help(&self, path: &[&str]) -> String {
        crate::help::help(self, path)
    }

    /// Returns the part of the help text from `Usage:` on, which is shown after an error.
    ///
    /// # Panics
    /// Panics if no command has this path.
    pub fn usage(&self, path: &[&str]) -> String {
        crate::help::usage(self, path)
    }

    /// Returns the list of the global flags, one per line.
    pub fn global_flags(&self) -> String {
        crate::help::flag_lines(self.globals)
    }

    /// Asserts what the parser relies on: names are unique, defaults are values of their kind, and every
    /// command either runs or has subcommands. Each tool calls it in a test.
    ///
    /// # Panics
    /// Panics if the tables are invalid.
    pub fn assert_sound(&self) {
        fn check<R>(command: &Command<R>, globals: &[FlagRow]) {
            let all: Vec<&FlagRow> = command.all_flags().chain(globals).collect();
            for (at, flag) in all.iter().enumerate() {
                assert!(
                    all[..at].iter().all(|other| other.name != flag.name),
                    "{}: --{} twice",
                    command.name,
                    flag.name
                );
                let shorts = flag.short.is_some() && all[..at].iter().any(|other| other.short == flag.short);
                assert!(!shorts, "{}: -{:?} twice", command.name, flag.short);
                assert!(flag.short != Some('h') && flag.name != "help", "help is every command's own");
                assert!(
                    crate::matches::Value::read(flag.kind, flag.default, None).is_ok(),
                    "{}: default of --{}",
                    command.name,
                    flag.name
                );
                let is_written = flag.kind != Kind::Duration
                    || go::parse_duration(flag.default)
                        .is_ok_and(|nanos| go::nanoseconds(nanos) == flag.default);
                assert!(is_written, "{}: --{} as Go prints it", command.name, flag.name);
            }
            assert_eq!(
                command.run.is_some(),
                command.subcommands.is_empty(),
                "{}: runs, or is a group",
                command.name
            );
            for (at, below) in command.subcommands.iter().enumerate() {
                let taken = command.subcommands[..at].iter().any(|other| other.answers_to(below.name));
                assert!(!taken, "{} twice", below.name);
                assert!(!below.about.is_empty(), "{}: a line about it", below.name);
                check(below, globals);
            }
        }
        check(&self.root, self.globals);
    }
}
