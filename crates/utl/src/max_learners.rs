//! How many learners a cluster may have: a member's option, by which it also applies what others proposed.

use cli::{Flag, Matches};
use machine::Rules;

/// The option of that name of the member whose directory is read.
pub const FLAG: Flag<u64> = Flag::uint(
    "max-learners",
    "1",
    "Most learners in the cluster, as in the member's options: an entry of etcd's that adds one more changes nothing",
);

/// The rules by which entries of the log are applied.
pub fn rules(given: &Matches) -> Rules {
    Rules { learners_max: usize::try_from(given.get(FLAG)).unwrap_or(usize::MAX) }
}
