//! `txn`: reads conditions and requests from standard input, and sends them as one transaction.

use api::Rpc;
use api::etcdserverpb as pb;
use api::etcdserverpb::request_op::Request;
use cli::{Command, Failure, Flag, Matches};

use super::del::{delete_request, hesitate};
use super::get::range_request;
use super::put::put_request;
use super::{KV, Run};
use crate::call::Call;
use crate::commands;
use crate::comparison::{comparison, invalid};
use crate::printer::Answer;
use crate::words::{trimmed, words};

const INTERACTIVE: Flag<bool> = Flag::bool("interactive", "Input transaction in interactive mode").short('i');

pub(super) const TXN: Command<Run> = Command {
    name: "txn",
    usage: "txn [options]",
    about: "Txn processes all the requests in one transaction",
    long: "Txn reads multiple etcd requests from standard input and applies them as a single atomic transaction.\n\n\
           A transaction consists of three components:\n1) a list of conditions,\n\
           2) a list of requests to apply if all the conditions are true,\n\
           3) a list of requests to apply if any condition is false.\n\nExample interactive stdin usage:\n\n---\n\
           etcdctl txn -i\n# compares:\nmod(\"key1\") > \"0\"\n\n# success requests (get, put, delete):\n\
           put key1 \"overwrote-key1\"\n\n# failure requests (get, put, delete):\nput key1 \"created-key1\"\n\
           put key2 \"some extra key\"\n---\n\n\
           Refer to https://github.com/etcd-io/etcd/blob/main/etcdctl/README.md#txn-options.",
    example: "  # Create a key unless it exists\n  \
              printf 'create(\"foo\") = \"0\"\\n\\nput foo bar\\n\\nget foo\\n\\n' | etcdctl txn",
    flags: &[INTERACTIVE.row()],
    group: KV,
    run: Some(Run::asking(|call| Box::pin(txn(call)))),
    ..Command::EMPTY
};

/// Runs the command. Reads three blocks of lines, each of which ends with an empty line: the conditions, the
/// requests to run if all conditions hold, and the requests to run otherwise.
pub(super) async fn txn(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("txn command does not accept argument"));
    }
    let connection = call.connect().await?;
    prompt(call, "compares:")?;
    let mut compare = Vec::new();
    while let Some(line) = next_line(call)? {
        compare.push(comparison(&line)?);
    }
    prompt(call, "success requests (get, put, del):")?;
    let success = requests(call).await?;
    prompt(call, "failure requests (get, put, del):")?;
    let failure = requests(call).await?;
    let request = pb::TxnRequest { compare, success, failure };
    let answer: pb::TxnResponse = connection.call(Rpc::KvTxn, &request).await?;
    call.show(&Answer::Txn(&answer))
}

fn prompt(call: &Call, text: &str) -> Result<(), Failure> {
    if call.matches.get(INTERACTIVE) { call.line(text) } else { Ok(()) }
}

/// Returns the next line of a block; `None` at the end of the block. Returns an error if the input ends
/// before the block does.
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
        // A `put` without a value is an error: the value cannot be read from standard input, which contains
        // the transaction.
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
