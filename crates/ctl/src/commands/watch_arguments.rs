//! Parses the arguments of `watch`, from the command line or from a line of its interactive mode.

use cli::go::quote;
use cli::{Failure, Io, Matches};

/// Keys to watch, and the program to run for each event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchArguments {
    /// The key, and the range end if one is given.
    pub(super) range: Vec<Vec<u8>>,
    /// The program with its arguments; empty if none is given.
    pub(super) program: Vec<Vec<u8>>,
}

const WRONG_COUNT: &str = "bad number of arguments";

/// Key and range end from environment variables, which are used in place of the first arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeFromEnvironment {
    pub(super) key: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl RangeFromEnvironment {
    /// Reads `ETCDCTL_WATCH_KEY` and `ETCDCTL_WATCH_RANGE_END`.
    ///
    /// # Errors
    /// Returns an error if a range end is given without a key.
    pub(super) fn read(io: &Io) -> Result<RangeFromEnvironment, Failure> {
        use std::os::unix::ffi::OsStrExt;
        let value = |name| io.variable(name).as_bytes().to_vec();
        let (key, end) = (value("ETCDCTL_WATCH_KEY"), value("ETCDCTL_WATCH_RANGE_END"));
        if key.is_empty() && !end.is_empty() {
            let end = quote(&end);
            return Err(Failure::bad_args(format!(
                "ETCDCTL_WATCH_KEY is empty but got ETCDCTL_WATCH_RANGE_END={end}"
            )));
        }
        Ok(RangeFromEnvironment { key, end })
    }

    fn range(&self) -> Vec<Vec<u8>> {
        let parts = [&self.key, &self.end];
        parts.into_iter().filter(|part| !part.is_empty()).cloned().collect()
    }
}

/// Splits the arguments into the keys to watch and, after `--`, the program to run.
///
/// # Errors
/// Returns etcdctl's error if arguments are missing, or if a key is given both in the arguments and in the
/// environment.
pub(super) fn watch_arguments(
    matches: &Matches,
    environment: &RangeFromEnvironment,
) -> Result<WatchArguments, Failure> {
    let dash = matches.dash_at;
    let (given, program) = matches.args.split_at(dash.unwrap_or(matches.args.len()));
    if dash.is_some() && program.is_empty() {
        return Err(Failure::bad_args(format!("{WRONG_COUNT} (found separator --, but no commands)")));
    }
    let mut range = environment.range();
    if !range.is_empty() && !given.is_empty() {
        return Err(Failure::bad_args(format!("{WRONG_COUNT} (found conflicting environment key)")));
    }
    range.extend_from_slice(given);
    if range.is_empty() {
        return Err(Failure::bad_args(WRONG_COUNT));
    }
    Ok(WatchArguments { range, program: program.to_vec() })
}
