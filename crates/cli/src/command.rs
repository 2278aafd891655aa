//! The tables that a tool is described by.

use crate::{go, parser};

/// What a flag's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--flag`, or `--flag=false`; never takes the next word.
    Bool,
    /// A signed integer; Go's literals (`0x10`, `1_000`).
    Int,
    /// An unsigned integer.
    Uint,
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
            Kind::Float => "float",
            Kind::Text => "string",
            Kind::List => "strings",
            Kind::Duration => "duration",
        }
    }

    /// Whether a default is the one that help texts leave out.
    pub(crate) fn is_zero(self, default: &str) -> bool {
        match self {
            Kind::Bool => default == "false",
            Kind::Int | Kind::Uint | Kind::Float => default == "0",
            Kind::Text | Kind::List => default.is_empty(),
            Kind::Duration => default == "0s",
        }
    }
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// Its one-letter form.
    pub short: Option<char>,
    /// What its value is.
    pub kind: Kind,
    /// The default as one would give it; for lists with commas.
    pub default: &'static str,
    /// One line; a word in backquotes stands for the value.
    pub help: &'static str,
    /// Left out of help texts.
    pub hidden: bool,
}

impl Flag {
    const fn of(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Flag {
        Flag { name, short: None, kind, default, help, hidden: false }
    }

    /// A flag that is off by default.
    pub const fn bool(name: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Bool, "false", help)
    }

    /// A flag that is on by default.
    pub const fn on(name: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Bool, "true", help)
    }

    /// A text.
    pub const fn text(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Text, default, help)
    }

    /// A list of texts.
    pub const fn list(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::List, default, help)
    }

    /// A signed integer.
    pub const fn int(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Int, default, help)
    }

    /// An unsigned integer.
    pub const fn uint(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Uint, default, help)
    }

    /// A floating-point number.
    pub const fn float(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Float, default, help)
    }

    /// A duration; the default as Go prints it (`0s`).
    pub const fn duration(name: &'static str, default: &'static str, help: &'static str) -> Flag {
        Flag::of(name, Kind::Duration, default, help)
    }

    /// With a one-letter form.
    #[must_use]
    pub const fn short(mut self, letter: char) -> Flag {
        self.short = Some(letter);
        self
    }

    /// Left out of help texts.
    #[must_use]
    pub const fn hidden(mut self) -> Flag {
        self.hidden = true;
        self
    }

    /// The name as errors give it: `-w, --write-out`.
    pub(crate) fn shown(&self) -> String {
        match self.short {
            Some(letter) => format!("-{letter}, --{}", self.name),
            None => format!("--{}", self.name),
        }
    }
}

/// A command, or a group of commands.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// The word it is called by.
    pub name: &'static str,
    /// Other words for it.
    pub aliases: &'static [&'static str],
    /// The line of use behind the path of its parents: `put [options] <key> <value>`.
    pub usage: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// More about it; empty: the one line serves.
    pub long: &'static str,
    /// Lines to try, each indented by two blanks.
    pub example: &'static str,
    /// Its own flags.
    pub flags: &'static [Flag],
    /// Commands below it. With any, it does nothing by itself but show its help.
    pub subcommands: &'static [Command],
    /// The heading it stands under in its parent's help; empty: the last heading.
    pub group: &'static str,
    /// Left out of help texts.
    pub hidden: bool,
}

impl Command {
    /// What most commands leave empty.
    pub const EMPTY: Command = Command {
        name: "",
        aliases: &[],
        usage: "",
        about: "",
        long: "",
        example: "",
        flags: &[],
        subcommands: &[],
        group: "",
        hidden: false,
    };

    pub(crate) fn answers_to(&self, word: &str) -> bool {
        self.name == word || self.aliases.contains(&word)
    }
}

/// A tool.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its commands; the name is the one that help texts and errors give (`etcdctl`).
    pub root: Command,
    /// Flags that every command takes.
    pub globals: &'static [Flag],
    /// The beginning of the environment variables that stand for the global flags (`ETCDCTL_`).
    pub env_prefix: Option<&'static str>,
    /// Environment variables with that beginning that are no flags and yet known.
    pub env_known: &'static [&'static str],
    /// A line at the end of help texts instead of the global flags; empty: those flags are listed.
    pub globals_hint: &'static str,
}

impl Program {
    /// Reads the arguments (without the program's own name) and the environment.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(
        &self,
        args: &[std::ffi::OsString],
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<parser::Invocation, parser::UsageError> {
        parser::parse(self, args, env)
    }

    /// The commands from the root to the one at `path`, the root first.
    ///
    /// # Panics
    /// There is no such command.
    pub(crate) fn chain(&self, path: &[&str]) -> Vec<&Command> {
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

    /// Asserts what the parser relies on: names are unique, defaults are values of their kind. For a test of each tool.
    ///
    /// # Panics
    /// The tables are wrong.
    pub fn assert_sound(&self) {
        fn check(command: &Command, globals: &[Flag]) {
            let all: Vec<&Flag> = command.flags.iter().chain(globals).collect();
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
