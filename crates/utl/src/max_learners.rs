//! The maximum number of learners in a cluster. It is an option of each member that also affects how the
//! member applies entries proposed by other members.

use cli::{Failure, Flag, Matches};
use machine::Rules;
use numbers::Index;

/// The option `--max-learners` of the member whose directory is read.
pub const FLAG: Flag<u64> = Flag::uint(
    "max-learners",
    "1",
    "Maximum number of learners in the cluster, as in the member's flags; required if an entry written by etcd adds a second one",
);

/// Returns the rules by which the entries of the log are applied, with the limit of this option.
pub fn rules(given: &Matches) -> Rules {
    Rules { learners_max: usize::try_from(given.get(FLAG)).unwrap_or(usize::MAX) }
}

/// Returns an error if a learner was refused because of the default limit, which may differ from the member's
/// option. `refused` is the first entry that was refused only because of the number of learners. A limit that
/// the user has given is trusted.
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
