//! `get`: reads a key or a range of keys.

use api::etcdserverpb as pb;
use api::etcdserverpb::range_request::{SortOrder, SortTarget};
use cli::Matches;
use cli::go::quote;

use crate::call::Call;
use crate::failure::Failure;
use crate::printer::{Answer, Format};
use crate::ranges::{OPEN_END, prefix_end};
use client::Client;

pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";

pub(super) async fn get(call: &Call) -> Result<(), Failure> {
    let matches = &call.matches;
    let request = range_request(matches)?;
    let connection = call.connect().await?;
    let answer = if matches.flag("stream") {
        call.limited(streamed(&connection, &request)).await?
    } else {
        call.limited(connection.call(RANGE, &request)).await?
    };
    let format = call.printer().format;
    if matches.flag("count-only") && format != Format::Fields {
        return Err(Failure::bad_args("--count-only is only for `--write-out=fields`"));
    }
    let value_only = matches.flag("print-value-only");
    if value_only && format != Format::Simple {
        return Err(Failure::bad_args("print-value-only is only for `--write-out=simple`"));
    }
    call.show_with(&Answer::Get(&answer), value_only)
}

/// A range that comes in pieces, put together.
async fn streamed(connection: &Client, request: &pb::RangeRequest) -> Result<pb::RangeResponse, api::Status> {
    let mut stream =
        connection.open_with::<_, pb::RangeStreamResponse>("/etcdserverpb.KV/RangeStream", request).await?;
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

/// Whether `--consistency` asks for a serializable read.
///
/// # Errors
/// It is neither `l` nor `s`.
pub(super) fn serializable(matches: &Matches) -> Result<bool, Failure> {
    match matches.text("consistency") {
        "s" => Ok(true),
        "l" => Ok(false),
        unknown => {
            let unknown = quote(unknown.as_bytes());
            Err(Failure::bad_feature(format!("unknown consistency flag {unknown}")))
        }
    }
}

/// The request that arguments and flags of `get` stand for, also within a transaction.
pub(super) fn range_request(matches: &Matches) -> Result<pb::RangeRequest, Failure> {
    let (prefix, from_key) = (matches.flag("prefix"), matches.flag("from-key"));
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
    if matches.flag("keys-only") && matches.flag("count-only") {
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
        bounds(matches, ("min-create-rev", "max-create-rev"), ("getMinCreateRev", "getMaxCreateRev"))?;
    let (min_mod_revision, max_mod_revision) =
        bounds(matches, ("min-mod-rev", "max-mod-rev"), ("getMinModRev", "getMaxModRev"))?;
    Ok(pb::RangeRequest {
        key: key.into(),
        range_end: end.into(),
        limit: matches.int("limit"),
        revision: matches.int("rev").max(0),
        sort_order: order as i32,
        sort_target: target as i32,
        serializable,
        keys_only: matches.flag("keys-only"),
        count_only: matches.flag("count-only"),
        min_mod_revision,
        max_mod_revision,
        min_create_revision,
        max_create_revision,
    })
}

fn sort(matches: &Matches) -> Result<(SortOrder, SortTarget), Failure> {
    let order = matches.text("order");
    let target = matches.text("sort-by");
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
    // Keys come in this order anyway; asked for it, a server would first read all of them.
    if by_target == SortTarget::Key && by_order == SortOrder::Ascend {
        return Ok((SortOrder::None, by_target));
    }
    Ok((by_order, by_target))
}

fn bounds(matches: &Matches, flags: (&str, &str), names: (&str, &str)) -> Result<(i64, i64), Failure> {
    let (min, max) = (matches.int(flags.0), matches.int(flags.1));
    if max > 0 && min > max {
        let (low, high) = names;
        return Err(Failure::bad_feature(format!("{low}(={min}) > {high}(={max})")));
    }
    Ok((min.max(0), max.max(0)))
}
