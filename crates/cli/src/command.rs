//! Defines the types of the tables that describe a command-line tool: its commands and their flags.

use crate::flag::{FlagRow, Kind};
use crate::go;
use crate::value::Value;

/// A command, or a group of commands. `R` is the type of the field that runs a command, usually a function
/// pointer.
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
    /// Flags inherited from the parent command. Help texts list them together with the global flags.
    pub inherited_flags: &'static [FlagRow],
    /// Function that runs the command. `None` for a group of commands, which only shows its help.
    pub run: Option<R>,
    /// Subcommands.
    pub subcommands: &'static [Command<R>],
    /// Heading in the parent's help under which the command is listed. Commands with an empty heading are
    /// listed last.
    pub group: &'static str,
    /// True if help texts leave the command out.
    pub hidden: bool,
}

impl<R> Command<R> {
    /// A command in which all fields are empty. Tables use it as the base of a struct update
    /// (`..Command::EMPTY`), so that they name only the other fields.
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
    /// Prefix of the environment variables that set global flags (`ETCDCTL_`); `None` if the tool reads no
    /// environment variables.
    pub env_prefix: Option<&'static str>,
    /// Names of environment variables that begin with `env_prefix` but set no flag. They cause no warning
    /// about unknown variables.
    pub env_known: &'static [&'static str],
    /// A line that replaces the list of global flags at the end of help texts. If it is empty, the global
    /// flags are listed.
    pub globals_hint: &'static str,
}

impl<R: Copy> Program<R> {
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

    /// Asserts the properties of the tables on which the parser relies: names are unique, each default can be
    /// parsed as a value of the flag's kind, and every command has either a function to run or subcommands.
    /// Each tool calls this function in a test.
    ///
    /// # Panics
    ///
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
                    Value::read(flag.kind, flag.default, None).is_ok(),
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
