//! Adds violations and open questions to a verdict, and formats them for people.

use std::fmt::{Display, Write};

use crate::{Kind, Operation, Outcome, Undecided, Verdict, Violation, Watch};

/// Maximum number of violations of each kind, and of open questions, that are kept. Further ones are dropped,
/// because they usually have the same cause.
const OF_A_KIND_MAX: usize = 100;

impl Verdict {
    pub(crate) fn add(&mut self, violation: Violation) {
        let of_kind = self.violations.iter().filter(|known| known.kind == violation.kind).count();
        if of_kind < OF_A_KIND_MAX && !self.violations.contains(&violation) {
            self.violations.push(violation);
        }
    }

    pub(crate) fn leave_open(&mut self, operations: Vec<u64>, text: String) {
        if self.undecided.len() < OF_A_KIND_MAX {
            self.undecided.push(Undecided { operations, text });
        }
    }
}

impl Violation {
    pub(crate) fn of(kind: Kind, operations: &[&Operation], text: String) -> Violation {
        Violation { kind, operations: operations.iter().map(|op| op.id).collect(), watches: Vec::new(), text }
    }

    pub(crate) fn of_watch(kind: Kind, watch: &Watch, text: String) -> Violation {
        let text = format!("watch {} of client {} at member {} {text}", watch.id, watch.client, watch.member);
        Violation { kind, operations: Vec::new(), watches: vec![watch.id], text }
    }
}

/// Describes an operation in a few words.
pub(crate) fn brief(op: &Operation) -> String {
    let outcome = match &op.outcome {
        Outcome::Done(header, _) => format!("answered at revision {}", header.revision),
        Outcome::Refused(refusal) => format!("refused: {refusal:?}"),
        Outcome::Unknown(error) => format!("outcome unknown: {error}"),
    };
    let request = shorten(format_args!("{:?}", op.request));
    format!(
        "operation {} of client {} at member {} [{} to {}] {request} ({outcome})",
        op.id, op.client, op.member, op.call, op.returned
    )
}

/// Formats a key or value for people.
pub(crate) fn show(bytes: &[u8]) -> String {
    shorten(bytes.escape_ascii())
}

/// Formats a value, and cuts the string off after 300 characters. The rest is not even formatted, which saves
/// time: responses contain large values, and the search formats many messages that are never shown.
pub(crate) fn shorten(text: impl Display) -> String {
    let mut short = Short { text: String::new(), left: 300 };
    if write!(short, "{text}").is_err() {
        short.text.push('…');
    }
    short.text
}

/// A string buffer that accepts `left` more characters, and returns an error for the rest.
struct Short {
    text: String,
    left: usize,
}

impl Write for Short {
    fn write_str(&mut self, piece: &str) -> std::fmt::Result {
        for char in piece.chars() {
            self.left = self.left.checked_sub(1).ok_or(std::fmt::Error)?;
            self.text.push(char);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut() {
        assert_eq!(shorten("x".repeat(300)), "x".repeat(300));
        assert_eq!(shorten("x".repeat(301)), "x".repeat(300) + "…");
        assert_eq!(shorten(format_args!("{:?}", vec![0; 1 << 20])).chars().count(), 301);
    }
}
