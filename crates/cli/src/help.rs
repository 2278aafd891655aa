//! Generates help texts in the format of etcd's tools from the tables of commands and flags.

use std::fmt::Write as _;

use crate::command::{Command, Program};
use crate::flag::{Flag, FlagRow, Kind};
use crate::go;

impl<R: Copy> Program<R> {
    /// Returns the help text of the command at `path` (names of commands below the root).
    ///
    /// # Panics
    /// Panics if no command has this path.
    pub fn help(&self, path: &[&str]) -> String {
        help(self, path)
    }

    /// Returns the help text without the description: the part that begins with `Usage:`. Tools print it
    /// after an error in the arguments.
    ///
    /// # Panics
    /// Panics if no command has this path.
    pub fn usage(&self, path: &[&str]) -> String {
        usage(self, path)
    }

    /// Returns the list of the global flags, one per line.
    pub fn global_flags(&self) -> String {
        flag_lines(self.globals)
    }
}

fn help<R: Copy>(program: &Program<R>, path: &[&str]) -> String {
    let chain = program.chain(path);
    let command = chain[chain.len() - 1];
    let about = if command.long.is_empty() { command.about } else { command.long };
    format!("{}\n\n{}", about.trim_end(), usage(program, path))
}

fn usage<R: Copy>(program: &Program<R>, path: &[&str]) -> String {
    let chain = program.chain(path);
    let command = chain[chain.len() - 1];
    let parents = chain[..chain.len() - 1].iter().map(|command| command.name).collect::<Vec<_>>().join(" ");
    let full =
        if parents.is_empty() { command.name.to_owned() } else { format!("{parents} {}", command.name) };
    let mut out = String::from("Usage:\n");
    if command.subcommands.is_empty() {
        let line = if command.usage.is_empty() { command.name } else { command.usage };
        let line = if parents.is_empty() { line.to_owned() } else { format!("{parents} {line}") };
        let is_whole = command.usage_is_whole || line.contains("[flags]");
        let flags = if is_whole { "" } else { " [flags]" };
        line_of(&mut out, format_args!("  {line}{flags}"));
    } else {
        line_of(&mut out, format_args!("  {full} [command]"));
    }
    if !command.aliases.is_empty() {
        line_of(&mut out, format_args!("\nAliases:\n  {}, {}", command.name, command.aliases.join(", ")));
    }
    if !command.example.is_empty() {
        line_of(&mut out, format_args!("\nExamples:\n{}", command.example.trim_end()));
    }
    let is_root = path.is_empty();
    subcommands(&mut out, command, is_root);
    let help = Flag::bool("help", "").short('h').row();
    let text = format!("help for {}", command.name);
    let listed = if program.globals_hint.is_empty() { program.globals } else { &[] };
    let shown = |flag: &&FlagRow| !flag.hidden;
    let mut flags: Vec<(&FlagRow, &str)> = command
        .own_flags()
        .chain(if is_root { listed } else { &[] })
        .filter(shown)
        .map(|flag| (flag, flag.help))
        .collect();
    flags.push((&help, &text));
    line_of(&mut out, format_args!("\nFlags:\n{}", lines(flags).trim_end()));
    // The root has no separate list of global flags, because they are listed as its own flags.
    let globals: Vec<(&FlagRow, &str)> = command
        .inherited_flags
        .iter()
        .chain(if is_root { &[] } else { listed })
        .filter(shown)
        .map(|flag| (flag, flag.help))
        .collect();
    if !globals.is_empty() {
        line_of(&mut out, format_args!("\nGlobal Flags:\n{}", lines(globals).trim_end()));
    }
    if !command.subcommands.is_empty() {
        line_of(
            &mut out,
            format_args!("\nUse \"{full} [command] --help\" for more information about a command."),
        );
    }
    if !program.globals_hint.is_empty() {
        line_of(&mut out, format_args!("{}", program.globals_hint));
    }
    out
}

/// Appends a line.
pub(crate) fn line_of(out: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(out, "{line}").expect("strings take everything");
}

fn subcommands<R>(out: &mut String, command: &Command<R>, is_root: bool) {
    let mut shown: Vec<(&str, &str, &str)> = (command.subcommands.iter().filter(|below| !below.hidden))
        .map(|below| (below.name, below.about, below.group))
        .collect();
    // List the command `help` even if the table does not define it, because the parser handles it.
    if is_root && !shown.is_empty() && shown.iter().all(|(name, ..)| *name != "help") {
        shown.push(("help", "Help about any command", ""));
        shown.sort_by_key(|(name, ..)| *name);
    }
    let width = shown.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).max(11);
    let mut groups: Vec<&str> = Vec::new();
    for (_, _, group) in &shown {
        if !groups.contains(group) {
            groups.push(group);
        }
    }
    // Commands without a heading come last. Their heading depends on whether there are other groups.
    groups.sort_by_key(|group| group.is_empty());
    for group in &groups {
        let heading = match (*group, groups.len()) {
            ("", 1) => "Available Commands:",
            ("", _) => "Additional Commands:",
            (group, _) => group,
        };
        line_of(out, format_args!("\n{heading}"));
        for (name, about, _) in shown.iter().filter(|(_, _, of)| of == group) {
            line_of(out, format_args!("  {name:width$} {about}"));
        }
    }
}

fn flag_lines(flags: &[FlagRow]) -> String {
    lines(flags.iter().filter(|flag| !flag.hidden).map(|flag| (flag, flag.help)).collect())
}

/// Returns one line per flag, sorted by name, with the help texts aligned in one column.
fn lines(mut flags: Vec<(&FlagRow, &str)>) -> String {
    flags.sort_by_key(|(flag, _)| flag.name);
    let rows: Vec<(String, String)> = flags
        .into_iter()
        .map(|(flag, help)| {
            let (word, help) = named_value(flag.kind, help);
            let left = match flag.short {
                Some(letter) => format!("  -{letter}, --{}", flag.name),
                None => format!("      --{}", flag.name),
            };
            let left = if word.is_empty() { left } else { format!("{left} {word}") };
            let right = match flag.kind {
                _ if flag.kind.is_zero(flag.default) => help,
                Kind::Text => format!("{help} (default {})", go::quote(flag.default)),
                Kind::List => format!("{help} (default [{}])", flag.default),
                _ => format!("{help} (default {})", flag.default),
            };
            (left, right)
        })
        .collect();
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for (left, right) in rows {
        let right = right.replace('\n', &format!("\n{}", " ".repeat(width + 3)));
        line_of(&mut out, format_args!("{left:width$}   {right}"));
    }
    out
}

/// Returns the name of the flag's value and the help text. The name is the word in backquotes in the help
/// text, from which the backquotes are removed; without such a word, the name is that of the kind.
fn named_value(kind: Kind, help: &str) -> (String, String) {
    let mut parts = help.splitn(3, '`');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(before), Some(word), Some(after)) => (word.to_owned(), format!("{before}{word}{after}")),
        _ => (kind.word().to_owned(), help.to_owned()),
    }
}
