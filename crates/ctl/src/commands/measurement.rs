//! Provides what the commands below `check` share: flags and functions that choose a workload and free the
//! space of the written keys after the measurement.

use cli::{Failure, Flag};
use client::Client;

use crate::call::Call;
use crate::load::{compact, defragment};

pub(super) const AUTO_COMPACT: Flag<bool> =
    Flag::bool("auto-compact", "Compact storage with last revision after test is finished.");

pub(super) const AUTO_DEFRAG: Flag<bool> =
    Flag::bool("auto-defrag", "Defragment storage after test is finished.");

/// Returns the workload that the value of `--load` names, out of four.
///
/// # Errors
/// Returns an error if the value is not the name of a workload.
pub(super) fn workload<W>(call: &Call, load: Flag<String>, [s, m, l, xl]: [W; 4]) -> Result<W, Failure> {
    match call.matches.get(load) {
        "s" | "small" => Ok(s),
        "m" | "medium" => Ok(m),
        "l" | "large" => Ok(l),
        "xl" | "xLarge" => Ok(xl),
        other => Err(Failure::bad_feature(format!("unknown load option {other}"))),
    }
}

/// Frees the space of the keys that were deleted at `revision`: compacts if `--auto-compact` is given, and
/// defragments if `--auto-defrag` is given.
pub(super) async fn give_back_space(
    call: &Call,
    connection: &Client,
    revision: Option<i64>,
) -> Result<(), Failure> {
    if let Some(revision) = revision.filter(|_| call.matches.get(AUTO_COMPACT)) {
        compact(call, connection, revision).await?;
    }
    if call.matches.get(AUTO_DEFRAG) {
        defragment(call, connection).await?;
    }
    Ok(())
}
