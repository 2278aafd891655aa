//! `get`: reads a key or a range of keys.

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use cli::go::quote;
use cli::{Command, Failure, Flag, Matches};
use client::Client;

use super::{KV, Run};
use crate::call::Call;
use crate::printer::{Answer, Format};
use crate::ranges::{OPEN_END, prefix_end};

pub(super) const CONSISTENCY: Flag<String> =
    Flag::text("consistency", "l", "Linearizable(l) or Serializable(s)");
const ORDER: Flag<String> =
    Flag::text("order", "", "Order of results; ASCEND or DESCEND (ASCEND by default)");
const SORT_BY: Flag<String> =
    Flag::text("sort-by", "", "Sort target; CREATE, KEY, MODIFY, VALUE, or VERSION");
const LIMIT: Flag<i64> = Flag::int("limit", "0", "Maximum number of results");
const PREFIX: Flag<bool> = Flag::bool("prefix", "Get keys with matching prefix");
const FROM_KEY: Flag<bool> =
    Flag::bool("from-key", "Get keys that are greater than or equal to the given key using byte compare");
const REV: Flag<i64> = Flag::int("rev", "0", "Specify the kv revision");
const KEYS_ONLY: Flag<bool> = Flag::bool("keys-only", "Get only the keys");
const COUNT_ONLY: Flag<bool> = Flag::bool("count-only", "Get only the count");
const PRINT_VALUE_ONLY: Flag<bool> =
    Flag::bool("print-value-only", "Only write values when using the \"simple\" output format");
const MIN_CREATE_REV: Flag<i64> = Flag::int("min-create-rev", "0", "Minimum create revision");
const MAX_CREATE_REV: Flag<i64> = Flag::int("max-create-rev", "0", "Maximum create revision");
const MIN_MOD_REV: Flag<i64> = Flag::int("min-mod-rev", "0", "Minimum modification revision");
const MAX_MOD_REV: Flag<i64> = Flag::int("max-mod-rev", "0", "Maximum modification revision");
const STREAM: Flag<bool> = Flag::bool("stream", "Use the RangeStream RPC");

pub(super) const GET: Command<Run> = Command {
    name: "get",
    usage: "get [options] <key> [range_end]",
    about: "Gets the key or a range of keys",
    example: "  # One key\n  etcdctl get foo\n\n  # The first ten keys under a prefix, newest first\n  \
              etcdctl get --prefix /registry/ --sort-by=MODIFY --order=DESCEND --limit=10\n\n  # How many keys there are\n  \
              etcdctl get --prefix '' --count-only --write-out=fields\n\n  # As it was at revision 1000\n  \
              etcdctl get foo --rev=1000 -w json",
    flags: &[
        CONSISTENCY.row(),
        ORDER.row(),
        SORT_BY.row(),
        LIMIT.row(),
        PREFIX.row(),
        FROM_KEY.row(),
        REV.row(),
        KEYS_ONLY.row(),
        COUNT_ONLY.row(),
        PRINT_VALUE_ONLY.row(),
        MIN_CREATE_REV.row(),
        MAX_CREATE_REV.row(),
        MIN_MOD_REV.row(),
        MAX_MOD_REV.row(),
        STREAM.row(),
    ],
    group: KV,
    run: Some(Run::asking(|call| Box::pin(get(call)))),
    ..Command::EMPTY
};

pub(super) async fn get(call: &Call) -> Result<(), Failure> {
    let matches = &call.matches;
    let request = range_request(matches)?;
    let connection = call.connect().await?;
    let answer = if matches.get(STREAM) {
        call.limited(streamed(&connection, &request)).await?
    } else {
        call.limited(connection.call(Rpc::KvRange, &request)).await?
    };
    let format = call.printer().format;
    if matches.get(COUNT_ONLY) && format != Format::Fields {
        return Err(Failure::bad_args("--count-only is only for `--write-out=fields`"));
    }
    let value_only = matches.get(PRINT_VALUE_ONLY);
    if value_only && format != Format::Simple {
        return Err(Failure::bad_args("print-value-only is only for `--write-out=simple`"));
    }
    call.show_with(&Answer::Get(&answer), value_only)
}

/// Reads a range with the streaming RPC, and joins the streamed responses into one.
async fn streamed(connection: &Client, request: &pb::RangeRequest) -> Result<pb::RangeResponse, api::Status> {
    let mut stream = connection.open_with::<_, pb::RangeStreamResponse>(Rpc::KvRangeStream, request).await?;
    let mut whole = pb::RangeResponse::default();
    while let Some(piece) = stream.next().await? {
        let Some(piece) = piece.range_response else { continue };
        whole.header = piece.header.or(whole.header);
        whole.kvs.extend(piece.kvs);
        whole.more |= piece.more;
        if piece.count != 0 {
            whole.count = piece.count;
        }
    }
    Ok(whole)
}

/// Returns true if `--consistency` requests a serializable read.
///
/// # Errors
///
/// Returns an error if the value is neither `l` nor `s`.
pub(super) fn serializable(matches: &Matches) -> Result<bool, Failure> {
    match matches.get(CONSISTENCY) {
        "s" => Ok(true),
        "l" => Ok(false),
        unknown => {
            let unknown = quote(unknown.as_bytes());
            Err(Failure::bad_feature(format!("unknown consistency flag {unknown}")))
        }
    }
}

/// Returns the request that the arguments and flags of `get` describe. Also used for `get` in a transaction.
pub(super) fn range_request(matches: &Matches) -> Result<pb::RangeRequest, Failure> {
    let (prefix, from_key) = (matches.get(PREFIX), matches.get(FROM_KEY));
    let Some((key, more)) = matches.args.split_first() else {
        return Err(Failure::bad_args(
            "get command needs one argument as key and an optional argument as range_end",
        ));
    };
    if prefix && from_key {
        return Err(Failure::bad_args(
            "`--prefix` and `--from-key` cannot be set at the same time, choose one",
        ));
    }
    if matches.get(KEYS_ONLY) && matches.get(COUNT_ONLY) {
        return Err(Failure::bad_args(
            "`--keys-only` and `--count-only` cannot be set at the same time, choose one",
        ));
    }
    let serializable = serializable(matches)?;
    if !more.is_empty() && (prefix || from_key) {
        return Err(Failure::bad_args(
            "too many arguments, only accept one argument when `--prefix` or `--from-key` is set",
        ));
    }
    let (order, target) = sort(matches)?;
    let (key, end) = match more.first() {
        _ if (prefix || from_key) && key.is_empty() => (OPEN_END.to_vec(), OPEN_END.to_vec()),
        _ if prefix => (key.clone(), prefix_end(key)),
        _ if from_key => (key.clone(), OPEN_END.to_vec()),
        Some(end) => (key.clone(), end.clone()),
        None => (key.clone(), Vec::new()),
    };
    let (min_create_revision, max_create_revision) =
        bounds(matches, (MIN_CREATE_REV, MAX_CREATE_REV), ("getMinCreateRev", "getMaxCreateRev"))?;
    let (min_mod_revision, max_mod_revision) =
        bounds(matches, (MIN_MOD_REV, MAX_MOD_REV), ("getMinModRev", "getMaxModRev"))?;
    Ok(pb::RangeRequest {
        key: key.into(),
        range_end: end.into(),
        limit: matches.get(LIMIT),
        revision: matches.get(REV).max(0),
        sort_order: order as i32,
        sort_target: target as i32,
        serializable,
        keys_only: matches.get(KEYS_ONLY),
        count_only: matches.get(COUNT_ONLY),
        min_mod_revision,
        max_mod_revision,
        min_create_revision,
        max_create_revision,
    })
}

fn sort(matches: &Matches) -> Result<(SortOrder, SortTarget), Failure> {
    let order = matches.get(ORDER);
    let target = matches.get(SORT_BY);
    let by_order = match &order.to_uppercase()[..] {
        "ASCEND" => SortOrder::Ascend,
        "DESCEND" => SortOrder::Descend,
        "" => SortOrder::None,
        _ => return Err(Failure::bad_feature(format!("bad sort order {order}"))),
    };
    let by_target = match &target.to_uppercase()[..] {
        "CREATE" => SortTarget::Create,
        "KEY" | "" => SortTarget::Key,
        "MODIFY" => SortTarget::Mod,
        "VALUE" => SortTarget::Value,
        "VERSION" => SortTarget::Version,
        _ => return Err(Failure::bad_feature(format!("bad sort target {target}"))),
    };
    // Do not request this order: servers return keys in it anyway, and if a sort is requested, they read all
    // keys before they apply the limit.
    if by_target == SortTarget::Key && by_order == SortOrder::Ascend {
        return Ok((SortOrder::None, by_target));
    }
    Ok((by_order, by_target))
}

fn bounds(
    matches: &Matches,
    flags: (Flag<i64>, Flag<i64>),
    names: (&str, &str),
) -> Result<(i64, i64), Failure> {
    let (min, max) = (matches.get(flags.0), matches.get(flags.1));
    if max > 0 && min > max {
        let (low, high) = names;
        return Err(Failure::bad_feature(format!("{low}(={min}) > {high}(={max})")));
    }
    Ok((min.max(0), max.max(0)))
}
