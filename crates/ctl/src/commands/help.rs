//! `help`: prints the help texts of commands.

use cli::{Command, Failure, Io, Matches};

use super::{PROGRAM, Run, UTILITY};
use crate::tool::{self, plain_usage, say};

pub(super) const HELP: Command<Run> = Command {
    name: "help",
    usage: "help [command]",
    about: "Help about any command",
    long: "Help provides help for any command in the application.\n\
           Simply type etcdctl help [path to command] for full details.",
    example: "  etcdctl help member add",
    group: UTILITY,
    run: Some(Run::here(help)),
    ..Command::EMPTY
};

fn help(matches: &Matches, io: &Io) -> Result<(), Failure> {
    let mut path = Vec::new();
    let mut at = &PROGRAM.root;
    for word in &matches.args {
        let mut begun = at.subcommands.iter().filter(|below| below.name.as_bytes().starts_with(word));
        let exact = at.subcommands.iter().find(|below| below.name.as_bytes() == &word[..]);
        match exact.or_else(|| begun.next().filter(|_| begun.next().is_none())) {
            Some(below) => {
                path.push(below.name);
                at = below;
            }
            None if path.is_empty() => {
                let topics: Vec<String> = matches.args.iter().map(|topic| topic_shown(topic)).collect();
                let text = format!("Unknown help topic [{}]\n{}", topics.join(" "), plain_usage(&[]));
                io.err.notice(text);
                return Ok(());
            }
            None => break,
        }
    }
    say(io, &tool::help(&path))
}

/// Quotes a word as Go's `%#q` does: in backquotes if possible, otherwise, for example if the word contains a
/// backquote, in double quotes.
fn topic_shown(word: &[u8]) -> String {
    match std::str::from_utf8(word) {
        Ok(text) if !text.contains(|c: char| c.is_control() || c == '`') => format!("`{text}`"),
        _ => cli::go::quote(word),
    }
}
