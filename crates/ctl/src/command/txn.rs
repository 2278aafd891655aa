//! `txn`: several requests at once, under conditions, read from standard input.

use api::etcdserverpb as pb;
use api::etcdserverpb::request_op::Request;
use cli::Matches;

use super::del::{delete_request, hesitate};
use super::get::range_request;
use super::put::put_request;
use crate::call::Call;
use crate::commands;
use crate::comparison::comparison;
use crate::failure::Failure;
use crate::printer::Answer;
use crate::words::{trimmed, words};

/// Three blocks of lines, each closed by an empty one: conditions, requests if all hold, requests if not.
pub(super) async fn txn(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("txn command does not accept argument"));
    }
    let connection = call.connect().await?;
    prompt(call, "compares:")?;
    let mut compare = Vec::new();
    while let Some(line) = next_line(call)? {
        compare.push(comparison(&line).map_err(invalid)?);
    }
    prompt(call, "success requests (get, put, del):")?;
    let success = requests(call).await?;
    prompt(call, "failure requests (get, put, del):")?;
    let failure = requests(call).await?;
    let request = pb::TxnRequest { compare, success, failure };
    let answer: pb::TxnResponse = connection.call("/etcdserverpb.KV/Txn", &request).await?;
    call.show(&Answer::Txn(&answer))
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(Failure::INVALID_INPUT, text)
}

fn prompt(call: &Call, text: &str) -> Result<(), Failure> {
    if call.matches.flag("interactive") { call.line(text) } else { Ok(()) }
}

/// The next line of a block, or `None` at its end. The input has to close all three blocks.
fn next_line(call: &Call) -> Result<Option<Vec<u8>>, Failure> {
    let line = call.io.input.line().map_err(|error| invalid(error.to_string()))?;
    let line = line.ok_or_else(|| invalid("EOF"))?;
    let line = trimmed(&line);
    Ok((!line.is_empty()).then(|| line.to_vec()))
}

async fn requests(call: &Call) -> Result<Vec<pb::RequestOp>, Failure> {
    let mut requests = Vec::new();
    while let Some(line) = next_line(call)? {
        requests.push(pb::RequestOp { request: Some(request(call, &line).await?) });
    }
    Ok(requests)
}

async fn request(call: &Call, line: &[u8]) -> Result<Request, Failure> {
    let shown = String::from_utf8_lossy(line);
    let words = words(line)?;
    if words.len() < 2 {
        return Err(invalid(format!("invalid txn compare request: {shown}")));
    }
    let matches: Matches =
        commands::parse_request(&words).ok_or_else(|| invalid(format!("invalid txn request: {shown}")))?;
    Ok(match matches.path.last() {
        // Standard input holds the transaction, not values.
        Some(&"put") => Request::RequestPut(put_request(&matches, Vec::new)?),
        Some(&"del") => {
            let request = delete_request(&matches)?;
            hesitate(call, &matches).await;
            Request::RequestDeleteRange(request)
        }
        Some(&"get") => Request::RequestRange(range_request(&matches)?),
        _ => return Err(invalid(format!("invalid txn request: {shown}"))),
    })
}
