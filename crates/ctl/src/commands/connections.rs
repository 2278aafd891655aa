//! `connections`: counts the connections of clients to a member, and drains a share of them. etcd has no such
//! calls, so the command works with members of Mainstay only.

use std::time::Duration;

use api::{Code, Rpc, mainstaypb as pb};
use cli::{Command, Failure, Flag, Nanoseconds};
use client::{Client, shown};

use super::endpoint::{CLUSTER, endpoints};
use super::{MAINTENANCE, Run};
use crate::call::Call;

const PERCENT: Flag<i64> = Flag::int(
    "percent",
    "-1",
    "share of the open connections to end, from 1 to 100; 0 stops an earlier drain (required)",
);
const OVER: Flag<Nanoseconds> =
    Flag::signed_duration("over", "30s", "time over which the connections are told to end, in waves");
const GRACE: Flag<Nanoseconds> =
    Flag::signed_duration("grace", "10s", "time that the open calls of a connection have to end");

pub(super) const CONNECTIONS: Command<Run> = Command {
    name: "connections",
    usage: "connections <subcommand>",
    about: "Connections of clients to members. Use `etcdctl connections --help` to see subcommands",
    long: "Connections of clients to members of Mainstay; etcd does not have these calls",
    example: "  etcdctl connections drain --percent 30 --over 1m",
    flags: &[CLUSTER.row()],
    subcommands: &[
        Command {
            name: "count",
            usage: "count",
            about: "Counts the open connections of the members with given endpoints",
            example: "  etcdctl connections count --cluster",
            inherited_flags: &[CLUSTER.row()],
            run: Some(Run::asking(|call| Box::pin(count(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "drain",
            usage: "drain --percent <number>",
            about: "Ends a share of the open connections gracefully, so that their clients connect again",
            long: "Tells a share of the open HTTP/2 connections of the members with given endpoints to end (GOAWAY), in \
                   waves.\nOpen requests are answered, and watches and lease renewals continue on the client's next \
                   connection. The command returns at once; `connections count` shows the progress.\n",
            example: "  # Before maintenance: move all clients away within five minutes\n  etcdctl --endpoints \
                      10.0.0.1:2379 connections drain --percent 100 --over 5m",
            flags: &[PERCENT.row(), OVER.row(), GRACE.row()],
            inherited_flags: &[CLUSTER.row()],
            run: Some(Run::asking(|call| Box::pin(drain(call)))),
            ..Command::EMPTY
        },
    ],
    group: MAINTENANCE,
    // The list of commands is that of etcdctl, line by line.
    hidden: true,
    ..Command::EMPTY
};

pub(super) async fn drain(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("connections drain command needs no arguments"));
    }
    let percent = call.matches.get(PERCENT);
    let percent = u32::try_from(percent).ok().filter(|percent| *percent <= 100).ok_or_else(|| {
        Failure::bad_args("connections drain command needs --percent with a number between 0 and 100")
    })?;
    let time = |flag: Flag<Nanoseconds>, name: &str| {
        let Nanoseconds(time) = call.matches.get(flag);
        u64::try_from(time).map(Duration::from_nanos).map_err(|_| {
            let text = format!("connections drain command needs a --{name} that is not negative");
            Failure::bad_args(text)
        })
    };
    let (over, grace) = (time(OVER, "over")?, time(GRACE, "grace")?);
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // For the server, 0 ms means its default.
    let request = pb::DrainRequest { percent, over_ms: ms(over), grace_ms: ms(grace).max(1) };
    of_each(call, async |connection, endpoint| {
        let answer: pb::DrainResponse = connection.call(Rpc::ConnectionsDrain, &request).await?;
        let pb::DrainResponse { open, ending, .. } = answer;
        if percent == 0 {
            return Ok(vec![format!("Stopped draining connections of etcd member[{endpoint}]")]);
        }
        let over = cli::go::duration(over);
        Ok(vec![format!("Draining {ending} of {open} connections of etcd member[{endpoint}] over {over}")])
    })
    .await
}

pub(super) async fn count(call: &Call) -> Result<(), Failure> {
    if !call.args().is_empty() {
        return Err(Failure::bad_args("connections count command needs no arguments"));
    }
    of_each(call, async |connection, endpoint| {
        let answer: pb::CountResponse = connection.call(Rpc::ConnectionsCount, &pb::CountRequest {}).await?;
        let sum = |of: fn(&pb::ShardConnections) -> u64| answer.shards.iter().map(of).sum::<u64>();
        let mut lines = vec![format!(
            "etcd member[{endpoint}]: {} connections, {} of them HTTP/2, {} to drain, {} drained since the start",
            sum(|shard| shard.open),
            sum(|shard| shard.http2),
            sum(|shard| shard.to_drain),
            sum(|shard| shard.drained),
        )];
        lines.extend(answer.shards.iter().enumerate().map(|(number, shard)| {
            let pb::ShardConnections { open, http2, to_drain, drained } = shard;
            format!(
                "  shard {number}: {open} connections, {http2} of them HTTP/2, {to_drain} to drain, {drained} drained"
            )
        }));
        Ok(lines)
    })
    .await
}

/// Calls the member at each endpoint and prints the lines that `ask` returns. Goes on after a failure, and
/// fails at the end.
async fn of_each(
    call: &Call,
    ask: impl AsyncFn(&Client, &str) -> Result<Vec<String>, api::Status>,
) -> Result<(), Failure> {
    let mut failed = false;
    for endpoint in endpoints(call).await? {
        let connection = call.connect_to(&endpoint).await?;
        match call.limit(ask(&connection, &endpoint)).await {
            Ok(lines) => lines.into_iter().try_for_each(|line| call.line(line))?,
            Err(status) => {
                let hint = match status.code {
                    Code::Unimplemented => "; only members of Mainstay answer this call",
                    _ => "",
                };
                call.warn(format!("Failed to ask etcd member[{endpoint}]. ({}{hint})", shown(&status)));
                failed = true;
            }
        }
    }
    if failed { Err(Failure::said(Failure::ERROR)) } else { Ok(()) }
}
