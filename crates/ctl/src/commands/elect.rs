//! `elect`: campaigns for leadership, or shows the leader.

use stdx::{First, race};

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};
use client::Client;
use client::concurrency::{Election, ElectionError, Session};

use super::{CONCURRENCY, Run};
use crate::call::Call;
use crate::printer::Answer;

const LISTEN: Flag<bool> = Flag::bool("listen", "observation mode").short('l');

pub(super) const ELECT: Command<Run> = Command {
    name: "elect",
    usage: "elect <election-name> [proposal]",
    about: "Observes and participates in leader election",
    example: "  # Lead until interrupted\n  etcdctl elect scheduler host-1\n\n  # Watch who leads\n  \
              etcdctl elect -l scheduler",
    flags: &[LISTEN.row()],
    group: CONCURRENCY,
    run: Some(Run::asking(|call| Box::pin(elect(call)))),
    ..Command::EMPTY
};

/// TTL of a candidate's lease, in seconds.
const TTL_SECONDS: i64 = 60;

pub(super) async fn elect(call: &Call) -> Result<(), Failure> {
    let (name, proposal) = match call.args() {
        [name] => (name, None),
        [name, proposal] => (name, Some(proposal)),
        _ => {
            return Err(Failure::bad_args(
                "elect takes one election name argument and an optional proposal argument",
            ));
        }
    };
    // Must be called before `connect`, which may start threads: see [`Call::interruption`].
    let interruption = call.interruption();
    let connection = call.connect().await?;
    match (proposal, call.matches.get(LISTEN)) {
        (None, false) => Err(Failure::bad_args("no proposal argument but -l not set")),
        (Some(_), true) => Err(Failure::bad_args("proposal given but -l is set")),
        (None, true) => observe(call, &connection, name, interruption).await,
        (Some(proposal), false) => campaign(call, &connection, name, proposal, interruption).await,
    }
}

async fn observe(
    call: &Call,
    connection: &Client,
    name: &[u8],
    mut interruption: crate::Interruption,
) -> Result<(), Failure> {
    let mut observer = Election::observe_prefix(connection, name);
    loop {
        let leadership = match race(observer.next(), interruption.came()).await {
            First::Left(leadership) => leadership.map_err(|_| Failure::error("elect: observer lost"))?,
            First::Right(()) => return Ok(()),
        };
        let answer = pb::RangeResponse {
            header: Some(leadership.header),
            kvs: vec![leadership.kv],
            ..Default::default()
        };
        call.show(&Answer::Get(&answer))?;
    }
}

async fn campaign(
    call: &Call,
    connection: &Client,
    name: &[u8],
    proposal: &[u8],
    mut interruption: crate::Interruption,
) -> Result<(), Failure> {
    let session = Session::open(connection, TTL_SECONDS).await?;
    let mut election = Election::new(&session, name);
    let elected = match race(election.campaign(proposal.to_vec()), interruption.came()).await {
        First::Left(elected) => elected.map_err(failure),
        First::Right(()) => Err(Failure::error("context canceled")),
    };
    let outcome = match elected {
        Ok(_) => match race(lead(call, connection, &election, &session), interruption.came()).await {
            First::Left(failure) => Err(failure),
            First::Right(()) => Ok(()),
        },
        Err(failure) => Err(failure),
    };
    let resigned = election.resign().await.map_err(failure);
    // Ignore an error: if the lease cannot be revoked, it expires by itself.
    let _ = session.close().await;
    outcome.and(resigned)
}

fn failure(error: ElectionError) -> Failure {
    match error {
        ElectionError::Status(status) => status.into(),
        other => Failure::error(other.to_string()),
    }
}

/// Prints that the candidate leads, and keeps the leadership until the session ends.
async fn lead(call: &Call, connection: &Client, election: &Election, session: &Session) -> Failure {
    if let Err(failure) = show(call, connection, election).await {
        return failure;
    }
    session.done().await;
    Failure::error("elect: session expired")
}

async fn show(call: &Call, connection: &Client, election: &Election) -> Result<(), Failure> {
    let request = pb::RangeRequest { key: election.key().cloned().unwrap_or_default(), ..Default::default() };
    let answer = connection.call(Rpc::KvRange, &request).await?;
    call.show(&Answer::Get(&answer))
}
