//! `lock`: holds a lock, or runs a program while it holds the lock.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use stdx::{First, race};

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};
use client::Client;
use client::concurrency::{Mutex, MutexError, Session};

use super::{CONCURRENCY, Run};
use crate::call::Call;
use crate::printer::Answer;
use crate::program::{Program, ProgramError};

const TTL: Flag<i64> = Flag::int("ttl", "10", "timeout for session");

pub(super) const LOCK: Command<Run> = Command {
    name: "lock",
    usage: "lock <lockname> [exec-command arg1 arg2 ...]",
    about: "Acquires a named lock",
    example: "  # Hold it until interrupted\n  etcdctl lock backup\n\n  # Hold it while a program runs\n  \
              etcdctl lock backup -- sh -c 'echo $ETCD_LOCK_KEY'",
    flags: &[TTL.row()],
    group: CONCURRENCY,
    run: Some(Run::asking(|call| Box::pin(lock(call)))),
    ..Command::EMPTY
};

/// Runs the command. Unlike etcdctl, revokes the lease of the lock at the end, so that the lease does not
/// remain until it expires.
pub(super) async fn lock(call: &Call) -> Result<(), Failure> {
    let Some((name, program)) = call.args().split_first() else {
        return Err(Failure::bad_args("lock takes a lock name argument and an optional command to execute"));
    };
    // Must be called before `connect`, which may start threads: see [`Call::interruption`].
    let mut interruption = call.interruption();
    let connection = call.connect().await?;
    let ttl_seconds = call.matches.get(TTL);
    if ttl_seconds <= 0 {
        call.warn("Warning: --ttl must be above 0; using 60 seconds instead");
    }
    let session = Session::open(&connection, ttl_seconds).await?;
    let mut mutex = Mutex::new(&session, name);
    let locked = match race(mutex.lock(), interruption.came()).await {
        First::Left(locked) => locked.map_err(failure),
        First::Right(()) => Err(Failure::error("context canceled")),
    };
    let outcome = match locked {
        Ok(header) => match program.split_first() {
            Some((program, arguments)) => under(call, &mutex, &header, program, arguments).await,
            None => match race(hold(call, &connection, &mutex, &session), interruption.came()).await {
                First::Left(failure) => Err(failure),
                First::Right(()) => Ok(()),
            },
        },
        Err(failure) => Err(failure),
    };
    let unlocked = match mutex.key() {
        Some(_) => mutex.unlock().await.map_err(failure),
        None => Ok(()),
    };
    // Ignore an error: if the lease cannot be revoked, it expires by itself.
    let _ = session.close().await;
    outcome.and(unlocked)
}

fn failure(error: MutexError) -> Failure {
    match error {
        MutexError::Status(status) => status.into(),
        other => Failure::error(other.to_string()),
    }
}

/// Prints the key of the lock, and holds the lock until the session expires, which is a failure.
async fn hold(call: &Call, connection: &Client, mutex: &Mutex, session: &Session) -> Failure {
    if let Err(failure) = show(call, connection, mutex).await {
        return failure;
    }
    session.done().await;
    Failure::error("session expired")
}

async fn show(call: &Call, connection: &Client, mutex: &Mutex) -> Result<(), Failure> {
    let request = pb::RangeRequest { key: mutex.key().cloned().unwrap_or_default(), ..Default::default() };
    let answer: pb::RangeResponse = connection.call(Rpc::KvRange, &request).await?;
    if answer.kvs.is_empty() {
        return Err(Failure::error("lock lost on init"));
    }
    call.show(&Answer::Get(&answer))
}

async fn under(
    call: &Call,
    mutex: &Mutex,
    header: &pb::ResponseHeader,
    program: &[u8],
    arguments: &[Vec<u8>],
) -> Result<(), Failure> {
    let mut run = Program::new(program, arguments);
    let key = mutex.key().cloned().unwrap_or_default();
    run.variable("ETCD_LOCK_KEY", OsString::from_vec(key.to_vec()));
    run.variable("ETCD_LOCK_REV", header.revision.to_string().into());
    run.run(&call.io).await.map_err(|error| {
        let code = match &error {
            ProgramError::NotStarted(_) => Failure::ERROR,
            // Exit with the code of the program. If a signal has killed the program, it has no exit code, and
            // this tool exits with 255, as etcdctl does.
            ProgramError::Ended(status) => {
                status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(u8::MAX)
            }
        };
        Failure::new(code, error.to_string())
    })
}
