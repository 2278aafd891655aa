//! Defines the flag `--max-learners` of the commands that apply log entries. When a member applies an entry
//! that adds a learner, its own limit decides whether the entry is accepted, so a command must apply the
//! entry with the same limit.

use cli::{Failure, Flag, Matches};
use machine::Rules;
use numbers::Index;

/// The option `--max-learners` of the member whose directory is read.
pub const FLAG: Flag<u64> = Flag::uint(
    "max-learners",
    "1",
    "Maximum number of learners in the cluster, as in the member's flags; required if an entry written by etcd adds a second one",
);

/// Returns the rules for applying entries of the log, with the limit that this flag gives.
pub fn rules(given: &Matches) -> Rules {
    Rules { learners_max: usize::try_from(given.get(FLAG)).unwrap_or(usize::MAX) }
}

/// Returns an error if an entry that adds a learner was refused because of the default limit: the member may
/// have had a higher one. `refused` is the index of the first entry that was refused only because of the
/// number of learners. If the user has given the limit, there is no error.
///
/// # Errors
///
/// Returns an error that names the entry and the required option, if an entry was refused and no limit was
/// given.
pub fn check(given: &Matches, refused: Option<Index>) -> Result<(), Failure> {
    match refused.filter(|_| !given.is_given(FLAG.row())) {
        None => Ok(()),
        Some(index) => Err(Failure::error(format!(
            "entry {index} adds a learner while there already is one, and whether it was accepted depends \
             on the members' flag: give the member's --max-learners, or --max-learners=1 if it had none"
        ))),
    }
}
