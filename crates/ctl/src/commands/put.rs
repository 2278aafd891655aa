//! `put`: writes a key.

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag, Matches};

use super::{KV, Run};
use crate::call::Call;
use crate::numbers;
use crate::printer::Answer;

const LEASE: Flag<String> = Flag::text("lease", "0", "lease ID (in hexadecimal) to attach to the key");
const PREV_KV: Flag<bool> = Flag::bool("prev-kv", "return the previous key-value pair before modification");
const IGNORE_VALUE: Flag<bool> = Flag::bool("ignore-value", "updates the key using its current value");
const IGNORE_LEASE: Flag<bool> = Flag::bool("ignore-lease", "updates the key using its current lease");

pub(super) const PUT: Command<Run> = Command {
    name: "put",
    usage: "put [options] <key> <value> (<value> can also be given from stdin)",
    about: "Puts the given key into the store",
    long: "\nPuts the given key into the store.\n\nWhen <value> begins with '-', <value> is interpreted as a flag.\n\
           Insert '--' for workaround:\n\n$ put <key> -- <value>\n$ put -- <key> <value>\n\n\
           If <value> isn't given as a command line argument and '--ignore-value' is not specified,\n\
           this command tries to read the value from standard input.\n\n\
           If <lease> isn't given as a command line argument and '--ignore-lease' is not specified,\n\
           this command tries to read the value from standard input.\n\n\
           For example,\n$ cat file | put <key>\nwill store the content of the file to <key>.\n",
    example: "  # A key that is deleted when its lease ends\n  etcdctl put foo bar --lease=1234abcd\n\n  \
              # The value from a file\n  etcdctl put foo < value.bin",
    flags: &[LEASE.row(), PREV_KV.row(), IGNORE_VALUE.row(), IGNORE_LEASE.row()],
    group: KV,
    run: Some(Run::asking(|call| Box::pin(put(call)))),
    ..Command::EMPTY
};

const NEEDS_A_VALUE: &str = "put command needs 1 argument and input from stdin or 2 arguments";

pub(super) async fn put(call: &Call) -> Result<(), Failure> {
    let request = put_request(&call.matches, || call.io.input.all().unwrap_or_default())?;
    let connection = call.connect().await?;
    let answer = call.limited(connection.call(Rpc::KvPut, &request)).await?;
    call.show(&Answer::Put(&answer))
}

/// Returns the request that the arguments and flags of `put` describe. Also used for `put` in a transaction.
/// If the value is not among the arguments, it is the result of `input`.
pub(super) fn put_request(
    matches: &Matches,
    input: impl FnOnce() -> Vec<u8>,
) -> Result<pb::PutRequest, Failure> {
    let Some((key, more)) = matches.args.split_first() else {
        return Err(Failure::bad_args(NEEDS_A_VALUE));
    };
    let ignore_value = matches.get(IGNORE_VALUE);
    if ignore_value && !more.is_empty() {
        return Err(Failure::bad_args("put command needs only 1 argument when 'ignore-value' is set"));
    }
    let value = match more.first() {
        _ if ignore_value => Vec::new(),
        Some(value) => value.clone(),
        None => {
            let value = input();
            if value.is_empty() {
                return Err(Failure::bad_args(NEEDS_A_VALUE));
            }
            value
        }
    };
    let lease = numbers::signed(matches.get(LEASE).as_bytes(), 16)
        .map_err(|error| Failure::bad_args(format!("bad lease ID ({error}), expecting ID in Hex")))?;
    Ok(pb::PutRequest {
        key: key.clone().into(),
        value: value.into(),
        lease,
        prev_kv: matches.get(PREV_KV),
        ignore_value,
        ignore_lease: matches.get(IGNORE_LEASE),
    })
}
