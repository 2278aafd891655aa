//! `put`: writes a key.

use api::etcdserverpb as pb;
use cli::Matches;

use crate::call::Call;
use crate::failure::Failure;
use crate::numbers;
use crate::printer::Answer;

const NEEDS_A_VALUE: &str = "put command needs 1 argument and input from stdin or 2 arguments";

pub(super) async fn put(call: &Call) -> Result<(), Failure> {
    let request = put_request(&call.matches, || call.io.input.all().unwrap_or_default())?;
    let connection = call.connect().await?;
    let answer = call.limited(connection.call("/etcdserverpb.KV/Put", &request)).await?;
    call.show(&Answer::Put(&answer))
}

/// The request that arguments and flags of `put` stand for, also within a transaction; a value that is not among
/// them is read by `input`.
pub(super) fn put_request(
    matches: &Matches,
    input: impl FnOnce() -> Vec<u8>,
) -> Result<pb::PutRequest, Failure> {
    let Some((key, more)) = matches.args.split_first() else {
        return Err(Failure::bad_args(NEEDS_A_VALUE));
    };
    let ignore_value = matches.flag("ignore-value");
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
    let lease = numbers::signed(matches.text("lease").as_bytes(), 16)
        .map_err(|error| Failure::bad_args(format!("bad lease ID ({error}), expecting ID in Hex")))?;
    Ok(pb::PutRequest {
        key: key.clone().into(),
        value: value.into(),
        lease,
        prev_kv: matches.flag("prev-kv"),
        ignore_value,
        ignore_lease: matches.flag("ignore-lease"),
    })
}
