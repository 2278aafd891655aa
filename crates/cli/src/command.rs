//! The tables that a tool is described by.

use std::marker::PhantomData;
use std::time::Duration;

use crate::{go, parser};

/// The type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--flag`, or `--flag=false`; never takes the next word.
    Bool,
    /// A signed integer; Go's literals (`0x10`, `1_000`).
    Int,
    /// An unsigned integer.
    Uint,
    /// An unsigned integer of 32 bits.
    Uint32,
    /// A floating-point number.
    Float,
    /// Any text.
    Text,
    /// Texts with commas between them; may be given several times.
    List,
    /// Go's durations: `1m30s`.
    Duration,
}

impl Kind {
    /// The word for a value in help texts.
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

    /// Returns true if a default is the one that help texts leave out.
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
    /// The default as one would give it; for lists with commas.
    pub default: &'static str,
    /// One line; a word in backquotes stands for the value.
    pub help: &'static str,
    /// Left out of help texts.
    pub hidden: bool,
}

impl FlagRow {
    /// The name as errors give it: `-w, --write-out`.
    pub(crate) fn shown(&self) -> String {
        match self.short {
            Some(letter) => format!("-{letter}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

/// One flag whose value is a `T`. A constant of this type declares the flag in a command's table ([`Flag::row`]) and reads
/// its value ([`Matches::get`](crate::Matches::get)), so that neither the name nor the kind can be mistaken.
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

    /// The flag as a command's table lists it.
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

    /// Left out of help texts.
    #[must_use]
    pub const fn hidden(mut self) -> Flag<T> {
        self.row.hidden = true;
        self
    }
}

impl Flag<bool> {
    /// A flag that is off by default.
    pub const fn bool(name: &'static str, help: &'static str) -> Flag<bool> {
        Flag::of(name, Kind::Bool, "false", help)
    }

    /// A flag that is on by default.
    pub const fn on(name: &'static str, help: &'static str) -> Flag<bool> {
        Flag::of(name, Kind::Bool, "true", help)
    }
}

impl Flag<String> {
    /// A text.
    pub const fn text(name: &'static str, default: &'static str, help: &'static str) -> Flag<String> {
        Flag::of(name, Kind::Text, default, help)
    }
}

impl Flag<Vec<String>> {
    /// A list of texts.
    pub const fn list(name: &'static str, default: &'static str, help: &'static str) -> Flag<Vec<String>> {
        Flag::of(name, Kind::List, default, help)
    }
}

impl Flag<i64> {
    /// A signed integer.
    pub const fn int(name: &'static str, default: &'static str, help: &'static str) -> Flag<i64> {
        Flag::of(name, Kind::Int, default, help)
    }
}

impl Flag<u64> {
    /// An unsigned integer.
    pub const fn uint(name: &'static str, default: &'static str, help: &'static str) -> Flag<u64> {
        Flag::of(name, Kind::Uint, default, help)
    }
}

impl Flag<u32> {
    /// An unsigned integer of 32 bits.
    pub const fn uint32(name: &'static str, default: &'static str, help: &'static str) -> Flag<u32> {
        Flag::of(name, Kind::Uint32, default, help)
    }
}

impl Flag<f64> {
    /// A floating-point number.
    pub const fn float(name: &'static str, default: &'static str, help: &'static str) -> Flag<f64> {
        Flag::of(name, Kind::Float, default, help)
    }
}

impl Flag<Duration> {
    /// A duration; the default as Go prints it (`0s`).
    pub const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Flag<Duration> {
        Flag::of(name, Kind::Duration, default, help)
    }
}

/// A command, or a group of commands. `R` is what the tool calls to run a command, mostly a function pointer.
#[derive(Clone, Copy, Debug)]
pub struct Command<R: 'static = ()> {
    /// The word it is called by.
    pub name: &'static str,
    /// Other names of the command.
    pub aliases: &'static [&'static str],
    /// The line of use behind the path of its parents: `put [options] <key> <value>`.
    pub usage: &'static str,
    /// True if the line of use is whole without `[flags]` behind it.
    pub usage_is_whole: bool,
    /// One line about it.
    pub about: &'static str,
    /// More about it; empty: the one line serves.
    pub long: &'static str,
    /// Lines to try, each indented by two blanks.
    pub example: &'static str,
    /// Flags of the command itself.
    pub flags: &'static [FlagRow],
    /// Flags that it has in common with other commands of the tool.
    pub shared_flags: &'static [FlagRow],
    /// Flags that it has from the command above it, which help texts list with the global ones.
    pub inherited_flags: &'static [FlagRow],
    /// Runs it. `None` for a group of commands, which only shows its help.
    pub run: Option<R>,
    /// Commands below it.
    pub subcommands: &'static [Command<R>],
    /// The heading it stands under in its parent's help; empty: the last heading.
    pub group: &'static str,
    /// Left out of help texts.
    pub hidden: bool,
}

impl<R> Command<R> {
    /// A command without anything, for the fields that most commands leave empty.
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

    /// Returns all flags but the global ones.
    pub(crate) fn all_flags(&self) -> impl Iterator<Item = &FlagRow> {
        self.own_flags().chain(self.inherited_flags)
    }

    /// Returns its own flags, and those that it shares with other commands.
    pub(crate) fn own_flags(&self) -> impl Iterator<Item = &FlagRow> {
        self.flags.iter().chain(self.shared_flags)
    }

    pub(crate) fn answers_to(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }
}

/// A tool.
#[derive(Clone, Copy, Debug)]
pub struct Program<R: 'static = ()> {
    /// Root command with all others; its name is the one in help texts and errors (`etcdctl`).
    pub root: Command<R>,
    /// Flags that every command takes.
    pub globals: &'static [FlagRow],
    /// The beginning of the environment variables that stand for the global flags (`ETCDCTL_`).
    pub env_prefix: Option<&'static str>,
    /// Environment variables with that beginning that are no flags and yet known.
    pub env_known: &'static [&'static str],
    /// A line at the end of help texts instead of the global flags; empty: those flags are listed.
    pub globals_hint: &'static str,
}

impl<R: Copy> Program<R> {
    /// Reads the arguments (without the program's own name) and the environment.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(
        &self,
        args: &[std::ffi::OsString],
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<parser::Invocation<R>, parser::UsageError> {
        parser::parse(self, args, env)
    }

    /// The commands from the root to the one at `path`, the root first.
    ///
    /// # Panics
    /// There is no such command.
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

    /// The help text of the command at `path` (names of commands below the root).
    ///
    /// # Panics
    /// There is no such command.
    pub fn help(&self, path: &[&str]) -> String {
        crate::help::help(self, path)
    }

    /// The part of the help text from `Usage:` on, as it follows an error.
    ///
    /// # Panics
    /// There is no such command.
    pub fn usage(&self, path: &[&str]) -> String {
        crate::help::usage(self, path)
    }

    /// The list of the global flags, one per line.
    pub fn global_flags(&self) -> String {
        crate::help::flag_lines(self.globals)
    }

    /// Asserts what the parser relies on: names are unique, defaults are values of their kind, and every command either runs
    /// or has commands below it. For a test of each tool.
    ///
    /// # Panics
    /// The tables are wrong.
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
