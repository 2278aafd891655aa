//! The maximum number of learners in a cluster: an option of members that also affects how they apply entries
//! proposed by others.

use cli::{Failure, Flag, Matches};
use machine::Rules;
use numbers::Index;

/// The option `--max-learners` of the member whose directory is read.
pub const FLAG: Flag<u64> = Flag::uint(
    "max-learners",
    "1",
    "Maximum number of learners in the cluster, as in the member's flags; required if an entry written by etcd adds a second one",
);

/// Returns the rules by which entries of the log are applied.
pub fn rules(given: &Matches) -> Rules {
    Rules { learners_max: usize::try_from(given.get(FLAG)).unwrap_or(usize::MAX) }
}

/// Refuses to drop a learner because of the default limit, which may differ from the member's option.
/// `refused` is the first entry that was refused only because of the number of learners. A limit given by the
/// user is trusted.
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
