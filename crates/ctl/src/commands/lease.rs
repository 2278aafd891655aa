//! `lease`: grants, revokes, renews and shows leases.

use std::time::Duration;

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Flag};
use client::{lease, shown};

use super::{KV, Run};
use crate::call::Call;
use crate::numbers;
use crate::printer::{Answer, Format};

const ONCE: Flag<bool> =
    Flag::bool("once", "Resets the keep-alive time to its original value and cobrautl.Exits immediately");
const KEYS: Flag<bool> = Flag::bool("keys", "Get keys attached to this lease");

pub(super) const LEASE: Command<Run> = Command {
    name: "lease",
    usage: "lease <subcommand>",
    about: "Lease related commands. Use `etcdctl lease --help` to see subcommands",
    long: "Lease related commands",
    example: "  etcdctl lease grant 60",
    subcommands: &[
        Command {
            name: "grant",
            usage: "grant <ttl>",
            about: "Creates leases",
            example: "  # For 60 seconds\n  etcdctl lease grant 60",
            run: Some(Run::asking(|call| Box::pin(grant(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "keep-alive",
            usage: "keep-alive [options] <leaseID>",
            about: "Keeps leases alive (renew)",
            example: "  etcdctl lease keep-alive 32695410dcc0ca06",
            flags: &[ONCE.row()],
            run: Some(Run::asking(|call| Box::pin(keep_alive(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "list",
            usage: "list",
            about: "List all active leases",
            example: "  etcdctl lease list",
            run: Some(Run::asking(|call| Box::pin(list(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "revoke",
            usage: "revoke <leaseID>",
            about: "Revokes leases",
            example: "  etcdctl lease revoke 32695410dcc0ca06",
            run: Some(Run::asking(|call| Box::pin(revoke(call)))),
            ..Command::EMPTY
        },
        Command {
            name: "timetolive",
            usage: "timetolive <leaseID> [options]",
            about: "Get lease information",
            example: "  etcdctl lease timetolive 32695410dcc0ca06 --keys",
            flags: &[KEYS.row()],
            run: Some(Run::asking(|call| Box::pin(time_to_live(call)))),
            ..Command::EMPTY
        },
    ],
    group: KV,
    ..Command::EMPTY
};

pub(super) async fn grant(call: &Call) -> Result<(), Failure> {
    let [ttl] = call.args() else {
        return Err(Failure::bad_args("lease grant command needs TTL argument"));
    };
    let ttl = numbers::signed(ttl, 10).map_err(|error| Failure::bad_args(format!("bad TTL ({error})")))?;
    let connection = call.connect().await?;
    let request = pb::LeaseGrantRequest { ttl, id: 0 };
    let answer = call
        .limit(connection.call(Rpc::LeaseGrant, &request))
        .await
        .map_err(|status| Failure::error(format!("failed to grant lease ({})", shown(&status))))?;
    call.show(&Answer::Grant(&answer))
}

pub(super) async fn revoke(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease revoke command needs 1 argument"));
    };
    let id = lease_id(id)?;
    let connection = call.connect().await?;
    let answer = call
        .limit(connection.call(Rpc::LeaseRevoke, &pb::LeaseRevokeRequest { id }))
        .await
        .map_err(|status| Failure::error(format!("failed to revoke lease ({})", shown(&status))))?;
    call.show(&Answer::Revoke(id, &answer))
}

pub(super) async fn time_to_live(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease timetolive command needs lease ID as argument"));
    };
    let keys = call.matches.get(KEYS);
    let connection = call.connect().await?;
    let request = pb::LeaseTimeToLiveRequest { id: lease_id(id)?, keys };
    let answer = connection.call(Rpc::LeaseTimeToLive, &request).await.map_err(no_connection)?;
    call.show(&Answer::TimeToLive(&answer, keys))
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    let connection = call.connect().await?;
    let request = pb::LeaseLeasesRequest {};
    let answer = connection.call(Rpc::LeaseLeases, &request).await.map_err(no_connection)?;
    call.show(&Answer::Leases(&answer))
}

/// Returns the failure for a gRPC status. As in etcdctl, the lease commands exit with code 2, the code of a
/// failed connection, for every status.
fn no_connection(status: api::Status) -> Failure {
    Failure::new(Failure::BAD_CONNECTION, shown(&status))
}

pub(super) async fn keep_alive(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease keep-alive command needs lease ID as argument"));
    };
    let id = lease_id(id)?;
    let connection = call.connect().await?;
    if call.matches.get(ONCE) {
        let answer = lease::keep_alive_once(&connection, id).await.map_err(no_connection)?;
        return call.show(&Answer::KeepAlive(&answer));
    }
    let first_answer = call.globals().await?.dial_timeout + Duration::from_secs(1);
    let mut renewals = lease::KeepAlive::start(&connection, id, first_answer);
    while let Some(answer) = renewals.next().await {
        call.show(&Answer::KeepAlive(&answer))?;
    }
    if call.printer().format == Format::Simple {
        call.line(format!("lease {id:016x} expired or revoked."))?;
    }
    Ok(())
}

fn lease_id(text: &[u8]) -> Result<i64, Failure> {
    numbers::signed(text, 16)
        .map_err(|error| Failure::bad_args(format!("bad lease ID arg ({error}), expecting ID in Hex")))
}
