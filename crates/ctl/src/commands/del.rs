//! `del`: deletes a key or a range of keys.

use std::time::Duration;

use api::Rpc;
use api::etcdserverpb as pb;
use cli::go::quote;
use cli::{Command, Failure, Flag, Matches};

use super::{KV, Run};
use crate::call::Call;
use crate::printer::Answer;
use crate::ranges::{OPEN_END, prefix_end};

const PREFIX: Flag<bool> = Flag::bool("prefix", "delete keys with matching prefix");
const PREV_KV: Flag<bool> = Flag::bool("prev-kv", "return deleted key-value pairs");
const FROM_KEY: Flag<bool> =
    Flag::bool("from-key", "delete keys that are greater than or equal to the given key using byte compare");
const RANGE: Flag<bool> = Flag::bool("range", "delete range of keys");

pub(super) const DEL: Command<Run> = Command {
    name: "del",
    usage: "del [options] <key> [range_end]",
    about: "Removes the specified key or range of keys [key, range_end)",
    example: "  etcdctl del foo\n\n  # Everything under a prefix, printing the deleted pairs\n  \
              etcdctl del --prefix /locks/ --prev-kv\n\n  # From one key up to another\n  \
              etcdctl del --range a c",
    flags: &[PREFIX.row(), PREV_KV.row(), FROM_KEY.row(), RANGE.row()],
    group: KV,
    run: Some(Run::asking(|call| Box::pin(del(call)))),
    ..Command::EMPTY
};

/// Time to wait before the deletion of a range that the user has possibly not intended, so that the user can
/// interrupt the command.
const SECOND_THOUGHTS: Duration = Duration::from_secs(2);

pub(super) async fn del(call: &Call) -> Result<(), Failure> {
    let request = delete_request(&call.matches)?;
    hesitate(call, &call.matches).await;
    let connection = call.connect().await?;
    let answer = call.limited(connection.call(Rpc::KvDeleteRange, &request)).await?;
    call.show(&Answer::Del(&answer))
}

/// Warns if a second argument makes this a deletion of a range, and waits so that the user can interrupt the
/// command. With `--range` the range is intended, so there is no warning.
pub(super) async fn hesitate(call: &Call, matches: &Matches) {
    let [key, end] = &matches.args[..] else { return };
    if matches.get(RANGE) {
        return;
    }
    let (key, end) = (quote(key), quote(end));
    call.warn(format!(
        "Warning: Keys between {key} and {end} will be deleted. Please interrupt the command within next 2 seconds to \
         cancel. You can provide `--range` flag to avoid the delay."
    ));
    tokio::time::sleep(SECOND_THOUGHTS).await;
}

/// Returns the request that the arguments and flags of `del` describe. Also used for `del` in a transaction.
pub(super) fn delete_request(matches: &Matches) -> Result<pb::DeleteRangeRequest, Failure> {
    let (prefix, from_key) = (matches.get(PREFIX), matches.get(FROM_KEY));
    let (key, end) = match &matches.args[..] {
        [key] => (key, None),
        [key, end] => (key, Some(end)),
        _ => {
            return Err(Failure::bad_args(
                "del command needs one argument as key and an optional argument as range_end",
            ));
        }
    };
    if prefix && from_key {
        return Err(Failure::bad_args(
            "`--prefix` and `--from-key` cannot be set at the same time, choose one",
        ));
    }
    if end.is_some() && (prefix || from_key) {
        return Err(Failure::bad_args(
            "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
        ));
    }
    let (key, end) = match end {
        _ if (prefix || from_key) && key.is_empty() => (OPEN_END.to_vec(), OPEN_END.to_vec()),
        _ if prefix => (key.clone(), prefix_end(key)),
        _ if from_key => (key.clone(), OPEN_END.to_vec()),
        Some(end) => (key.clone(), end.clone()),
        None => (key.clone(), Vec::new()),
    };
    Ok(pb::DeleteRangeRequest { key: key.into(), range_end: end.into(), prev_kv: matches.get(PREV_KV) })
}
