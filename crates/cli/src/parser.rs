//! Parses the arguments and environment of a tool into [`Matches`], with the syntax and the error messages of
//! etcd's tools.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt as _;

use crate::command::{Command, Program};
use crate::flag::{FlagRow, Kind};
use crate::go;
use crate::matches::Matches;

/// The action that a command line requests.
#[derive(Clone, Debug)]
pub enum Invocation<R> {
    /// Run a command.
    Run(Matches, R),
    /// Show the help of a group of commands, or of the whole tool, because the arguments name no command in
    /// it.
    Group(Matches),
    /// Print this help text, which was requested.
    Help(String),
}

/// Error for a command line that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError {
    /// Error message, as etcd's tools print it.
    pub message: String,
    /// Path of the command whose usage is shown after the error: an argument of [`Program::usage`].
    pub path: Vec<&'static str>,
    /// True if the error concerns an environment variable that sets the same flag as the command line. etcd's
    /// tools log this error and exit with code 1.
    pub is_env: bool,
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for UsageError {}

impl<R: Copy> Program<R> {
    /// Parses the arguments (without the program's name) and the environment.
    ///
    /// # Errors
    /// Returns the error that etcd's tools report for the arguments.
    pub fn parse(
        &self,
        args: &[OsString],
        env: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Invocation<R>, UsageError> {
        parse(self, args, env)
    }
}

/// Returns the flag with this name, among the flags of the command and the global ones.
fn find<'a, R>(command: &'a Command<R>, globals: &'a [FlagRow], name: &str) -> Option<&'a FlagRow> {
    command.all_flags().chain(globals).find(|flag| flag.name == name)
}

fn find_short<'a, R>(command: &'a Command<R>, globals: &'a [FlagRow], letter: char) -> Option<&'a FlagRow> {
    command.all_flags().chain(globals).find(|flag| flag.short == Some(letter))
}

/// Returns true if `word` is a flag whose value is the next word. Only the flags of this command and the
/// global ones are known: like etcd's parser (cobra), this function treats the flags of subcommands as flags
/// with a value.
fn takes_next<R>(command: &Command<R>, globals: &[FlagRow], word: &str) -> bool {
    if word.contains('=') {
        return false;
    }
    if let Some(name) = word.strip_prefix("--") {
        return name != "help" && find(command, globals, name).is_none_or(|flag| flag.kind != Kind::Bool);
    }
    let mut letters = word.chars().skip(1);
    match (letters.next(), letters.next()) {
        (Some('h'), None) => false,
        (Some(letter), None) => {
            find_short(command, globals, letter).is_none_or(|flag| flag.kind != Kind::Bool)
        }
        _ => false,
    }
}

/// A command, its path, and the remaining words (flags and arguments).
type Located<'a, R> = (&'a Command<R>, Vec<&'static str>, Vec<Vec<u8>>);

/// Finds the command named by the arguments.
fn locate<'a, R: Copy>(program: &'a Program<R>, args: &[Vec<u8>]) -> Result<Located<'a, R>, UsageError> {
    let (mut command, mut path, mut rest) = (&program.root, Vec::new(), Vec::new());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let text = String::from_utf8_lossy(word);
        if text == "--" {
            rest.push(word.clone());
            rest.extend(words.cloned());
            break;
        }
        if text.starts_with('-') && text.len() > 1 {
            rest.push(word.clone());
            if takes_next(command, program.globals, &text) {
                rest.extend(words.next().cloned());
            }
            continue;
        }
        if command.subcommands.is_empty() {
            rest.push(word.clone());
            continue;
        }
        match named(command, &text) {
            Some(below) => {
                command = below;
                path.push(below.name);
            }
            None if path.is_empty() => {
                let mut message =
                    format!("unknown command {} for {}", go::quote(&*text), go::quote(program.root.name));
                message.push_str(&did_you_mean(&near(command, &text)));
                return Err(UsageError { message, path, is_env: false });
            }
            // Keep the word as an argument instead of refusing it: a group of commands shows its help
            // whatever follows its name.
            None => rest.push(word.clone()),
        }
    }
    Ok((command, path, rest))
}

/// Returns the subcommand with this name or alias; otherwise the subcommand whose name begins with the word,
/// if there is exactly one.
fn named<'a, R>(command: &'a Command<R>, word: &str) -> Option<&'a Command<R>> {
    let exact = command.subcommands.iter().find(|below| below.answers_to(word));
    exact.or_else(|| {
        let mut begun =
            command.subcommands.iter().filter(|below| below.name.starts_with(word) && !word.is_empty());
        begun.next().filter(|_| begun.next().is_none())
    })
}

/// Returns the names of the subcommands that the user may have meant with a mistyped word.
fn near<R>(command: &Command<R>, word: &str) -> Vec<&'static str> {
    near_names(word, command.subcommands.iter().filter(|below| !below.hidden).map(|below| below.name))
}

/// Returns the names that the user may have meant with a mistyped word: names at an edit distance of at most
/// two, and names that begin with the word.
pub fn near_names<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let lower = word.to_lowercase();
    let is_near = |name: &&str| distance(&lower, name) <= 2 || name.starts_with(&lower);
    names.into_iter().filter(is_near).collect()
}

/// Returns the question that follows the error about a mistyped name; empty if no name is similar.
pub fn did_you_mean(near: &[&str]) -> String {
    let names: String = near.iter().map(|name| format!("\t{name}\n")).collect();
    if names.is_empty() { names } else { format!("\n\nDid you mean this?\n{names}") }
}

/// Returns the Levenshtein distance of two strings.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, one) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let change = diagonal + usize::from(one != *other);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

pub(crate) fn parse<R: Copy>(
    program: &Program<R>,
    args: &[OsString],
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<Invocation<R>, UsageError> {
    let args: Vec<Vec<u8>> = args.iter().map(|arg| arg.clone().into_vec()).collect();
    if args.first().is_some_and(|word| word == b"help") && named(&program.root, "help").is_none() {
        let (_, path, _) = locate(program, &args[1..])?;
        return Ok(Invocation::Help(program.help(&path)));
    }
    let (command, path, rest) = locate(program, &args)?;
    let refuse = |message: String| UsageError { message, path: path.clone(), is_env: false };
    let mut matches = Matches::new(path.clone(), command.all_flags().chain(program.globals).copied());
    let mut words = rest.into_iter();
    while let Some(word) = words.next() {
        if word == b"--" {
            matches.dash_at = Some(matches.args.len());
            matches.args.extend(words);
            break;
        }
        if word.len() < 2 || word[0] != b'-' {
            matches.args.push(word);
            continue;
        }
        let text = String::from_utf8(word).map_err(|_| refuse("flags must be UTF-8".to_owned()))?;
        let mut value_of = |flag: &FlagRow, given: Option<&str>, shown: &str| match given {
            Some(value) => Ok(value.to_owned()),
            None if flag.kind == Kind::Bool => Ok("true".to_owned()),
            None => {
                let next = words.next().ok_or_else(|| format!("flag needs an argument: {shown}"))?;
                String::from_utf8(next).map_err(|_| format!("the value of {shown} must be UTF-8"))
            }
        };
        if let Some(long) = text.strip_prefix("--") {
            let (name, given) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (long, None),
            };
            if name.is_empty() || name.starts_with('-') {
                return Err(refuse(format!("bad flag syntax: {text}")));
            }
            let Some(flag) = find(command, program.globals, name) else {
                if name == "help" {
                    return Ok(Invocation::Help(program.help(&path)));
                }
                return Err(refuse(format!("unknown flag: --{name}")));
            };
            let value = value_of(flag, given, &format!("--{name}")).map_err(refuse)?;
            set(&mut matches, flag, &value).map_err(refuse)?;
            continue;
        }
        for (at, letter) in text[1..].char_indices() {
            let Some(flag) = find_short(command, program.globals, letter) else {
                if letter == 'h' {
                    return Ok(Invocation::Help(program.help(&path)));
                }
                let all = &text[1..];
                return Err(refuse(format!("unknown shorthand flag: {} in -{all}", go::quote_char(letter))));
            };
            let behind = &text[1 + at + letter.len_utf8()..];
            let given = match behind.strip_prefix('=') {
                Some(value) => Some(value),
                None if flag.kind != Kind::Bool && !behind.is_empty() => Some(behind),
                None => None,
            };
            let shown = format!("{} in -{}", go::quote_char(letter), &text[1..]);
            let value = value_of(flag, given, &shown).map_err(refuse)?;
            set(&mut matches, flag, &value).map_err(refuse)?;
            if given.is_some() || flag.kind != Kind::Bool {
                break;
            }
        }
    }
    from_environment(program, &mut matches, env).map_err(|message| UsageError {
        message,
        path: path.clone(),
        is_env: true,
    })?;
    Ok(match command.run {
        Some(run) => Invocation::Run(matches, run),
        None => Invocation::Group(matches),
    })
}

fn set(matches: &mut Matches, flag: &FlagRow, value: &str) -> Result<(), String> {
    matches
        .set(flag, value)
        .map_err(|why| format!("invalid argument {} for \"{}\" flag: {why}", go::quote(value), flag.shown()))
}

/// Sets global flags from the environment if they are not on the command line. As in etcd's tools, a variable
/// with an empty value counts as unknown, and a variable with an invalid value does not prevent the command
/// from running (COMPAT-441).
fn from_environment<R>(
    program: &Program<R>,
    matches: &mut Matches,
    env: impl IntoIterator<Item = (String, String)>,
) -> Result<(), String> {
    let Some(prefix) = program.env_prefix else { return Ok(()) };
    for (key, value) in env {
        let Some(name) = key.strip_prefix(prefix) else { continue };
        let flag = program.globals.iter().find(|flag| flag.name.replace('-', "_").to_uppercase() == name);
        match flag {
            Some(flag) if matches.is_given(*flag) => {
                return Err(format!(
                    "conflicting environment variable \"{key}\" is shadowed by corresponding command-line flag (either \
                     unset environment variable or disable flag)"
                ));
            }
            Some(flag) if !value.is_empty() => {
                if let Err(why) = matches.set(flag, &value) {
                    let text = format!("invalid value {} for {key}: {why}", go::quote(&value));
                    matches.unusable_env.push(text);
                }
            }
            None if program.env_known.contains(&key.as_str()) => {}
            Some(_) | None => matches.unknown_env.push(format!("{key}={value}")),
        }
    }
    Ok(())
}
