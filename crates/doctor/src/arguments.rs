//! Checks the arguments of commands that accept only flags.

use cli::{Failure, Matches};

/// Returns an error if there is a positional argument, that is, a word that is neither a command nor a flag.
pub(crate) fn no_arguments(matches: &Matches) -> Result<(), Failure> {
    match matches.arg_text(0) {
        Some(extra) => Err(Failure::error(format!("unknown argument {}", cli::go::quote(extra)))),
        None => Ok(()),
    }
}
