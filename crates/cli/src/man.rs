//! Generates manual pages, with the macros of man(7), from the same [`Tree`] as the completion scripts.

use crate::completion::{Tree, Word};
use crate::help::line_of;

/// The parts of a manual page that are not derived from the table of commands and flags.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// Command line that runs the command, such as `mainstay ctl`. The name of the page is the same with
    /// hyphens in place of spaces.
    pub called: &'a str,
    /// Description of the command in one line.
    pub about: &'a str,
    /// Section of the manual: 1 for commands, 8 for administration commands.
    pub section: u8,
    /// Release, such as `Mainstay 0.1.0`.
    pub release: &'a str,
    /// Paragraphs of the description.
    pub description: &'a [&'a str],
    /// Related pages, with their sections.
    pub see_also: &'a [(&'a str, u8)],
}

impl Page<'_> {
    /// Returns the page for a command with the flags and subcommands in `tree`.
    pub fn of(&self, tree: &Tree) -> String {
        let name = self.called.replace(' ', "-");
        let mut out = String::new();
        // No date, so that the same release always generates the same page.
        line_of(
            &mut out,
            format_args!(
                ".TH {} {} \"\" \"{}\"",
                quoted(&name.to_uppercase()),
                self.section,
                text(self.release)
            ),
        );
        line_of(&mut out, format_args!(".SH NAME\n{} \\- {}", text(&name), text(self.about)));
        let command = if tree.below.is_empty() { "" } else { " [\\fIcommand\\fR]" };
        line_of(
            &mut out,
            format_args!(".SH SYNOPSIS\n\\fB{}\\fR{command} [\\fIflags\\fR]", text(self.called)),
        );
        line_of(&mut out, format_args!(".SH DESCRIPTION"));
        for paragraph in self.description {
            line_of(&mut out, format_args!(".PP\n{}", line(paragraph)));
        }
        if !tree.flags.is_empty() {
            line_of(&mut out, format_args!(".SH OPTIONS"));
            flags(&mut out, &tree.flags);
        }
        if !tree.below.is_empty() {
            line_of(&mut out, format_args!(".SH COMMANDS"));
            commands(&mut out, &tree.below, "", &tree.flags);
        }
        if !self.see_also.is_empty() {
            let pages =
                self.see_also.iter().map(|(page, section)| format!("\\fB{}\\fR({section})", text(page)));
            line_of(&mut out, format_args!(".SH SEE ALSO\n{}", pages.collect::<Vec<_>>().join(",\n")));
        }
        out
    }
}

/// Writes each command below the root with its flags, except the flags in `known`, which are those of the
/// root and are listed there.
fn commands(out: &mut String, below: &[Tree], path: &str, known: &[Word]) {
    for command in below {
        let path = if path.is_empty() { command.name.to_owned() } else { format!("{path} {}", command.name) };
        line_of(out, format_args!(".SS {}\n{}", quoted(&path), line(command.about)));
        let own: Vec<Word> = (command.flags.iter())
            .filter(|flag| known.iter().all(|other| other.name != flag.name))
            .copied()
            .collect();
        flags(out, &own);
        commands(out, &command.below, &path, known);
    }
}

fn flags(out: &mut String, flags: &[Word]) {
    for flag in flags {
        let short = flag.short.map_or(String::new(), |letter| format!("\\fB\\-{letter}\\fR, "));
        let value = if flag.takes_value { " \\fIVALUE\\fR" } else { "" };
        line_of(
            out,
            format_args!(".TP\n{short}\\fB\\-\\-{}\\fR{value}\n{}", text(flag.name), line(flag.help)),
        );
    }
}

/// Escapes the characters of a text that roff would interpret.
fn text(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\n' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// Escapes a text that is put at the start of a line, where a dot or an apostrophe would begin a roff
/// request.
fn line(words: &str) -> String {
    let text = text(words.trim());
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// Quotes a text as one argument of a roff macro.
fn quoted(words: &str) -> String {
    format!("\"{}\"", text(words).replace('"', "\\(dq"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lists_flags_and_commands_and_escapes_what_roff_reads() {
        let flag = |name, help| Word { name, short: None, takes_value: true, help };
        let root = flag("endpoints", "'quoted', with a back\\slash");
        let own = Word { name: "prefix", short: Some('p'), takes_value: false, help: ".dotted" };
        let get = Tree { name: "get", about: "Read keys", flags: vec![root, own], below: Vec::new() };
        let tree = Tree { name: "ctl", about: "", flags: vec![root], below: vec![get] };
        let page = Page {
            called: "mainstay ctl",
            about: "the client",
            section: 1,
            release: "Mainstay 1.0",
            description: &["One.", "Two."],
            see_also: &[("mainstay", 8)],
        };
        let expected = ".TH \"MAINSTAY\\-CTL\" 1 \"\" \"Mainstay 1.0\"\n\
                        .SH NAME\nmainstay\\-ctl \\- the client\n\
                        .SH SYNOPSIS\n\\fBmainstay ctl\\fR [\\fIcommand\\fR] [\\fIflags\\fR]\n\
                        .SH DESCRIPTION\n.PP\nOne.\n.PP\nTwo.\n\
                        .SH OPTIONS\n.TP\n\\fB\\-\\-endpoints\\fR \\fIVALUE\\fR\n\\&'quoted', with a back\\eslash\n\
                        .SH COMMANDS\n.SS \"get\"\nRead keys\n.TP\n\\fB\\-p\\fR, \\fB\\-\\-prefix\\fR\n\\&.dotted\n\
                        .SH SEE ALSO\n\\fBmainstay\\fR(8)\n";
        assert_eq!(page.of(&tree), expected);
    }
}
