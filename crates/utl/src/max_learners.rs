//! How many learners a cluster may have: a member's option, by which it also applies what others proposed.

use cli::{Failure, Flag, Matches};
use machine::Rules;
use numbers::Index;

/// The option of that name of the member whose directory is read.
pub const FLAG: Flag<u64> = Flag::uint(
    "max-learners",
    "1",
    "Most learners in the cluster, as in the member's options; has to be given if an entry of etcd's adds a second one",
);

/// The rules by which entries of the log are applied.
pub fn rules(given: &Matches) -> Rules {
    Rules { learners_max: usize::try_from(given.get(FLAG)).unwrap_or(usize::MAX) }
}

/// Refuses to leave a learner out by the default, which need not be the member's option. `refused` is the first entry that
/// the rules refused for the number of learners alone. A limit that the caller gave is taken at its word.
///
/// # Errors
///
/// That such an entry is there, and that the option has to be given.
pub fn check(given: &Matches, refused: Option<Index>) -> Result<(), Failure> {
    match refused.filter(|_| !given.is_given(FLAG.row())) {
        None => Ok(()),
        Some(index) => Err(Failure::error(format!(
            "entry {index} adds a learner while there is one already, and whether it was taken depends on the members' option: give \
             --max-learners as the member had it, or --max-learners=1 if it had none"
        ))),
    }
}
