//! `lease`: leases and their time.

use std::time::Duration;

use api::etcdserverpb as pb;

use crate::call::Call;
use crate::failure::Failure;
use crate::numbers;
use crate::printer::{Answer, Format};
use client::{lease, shown};

pub(super) async fn grant(call: &Call) -> Result<(), Failure> {
    let [ttl] = call.args() else {
        return Err(Failure::bad_args("lease grant command needs TTL argument"));
    };
    let ttl = numbers::signed(ttl, 10).map_err(|error| Failure::bad_args(format!("bad TTL ({error})")))?;
    let connection = call.connect().await?;
    let request = pb::LeaseGrantRequest { ttl, id: 0 };
    let answer = call
        .limit(connection.call("/etcdserverpb.Lease/LeaseGrant", &request))
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
        .limit(connection.call("/etcdserverpb.Lease/LeaseRevoke", &pb::LeaseRevokeRequest { id }))
        .await
        .map_err(|status| Failure::error(format!("failed to revoke lease ({})", shown(&status))))?;
    call.show(&Answer::Revoke(id, &answer))
}

pub(super) async fn time_to_live(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease timetolive command needs lease ID as argument"));
    };
    let keys = call.matches.flag("keys");
    let connection = call.connect().await?;
    let request = pb::LeaseTimeToLiveRequest { id: lease_id(id)?, keys };
    let answer =
        connection.call("/etcdserverpb.Lease/LeaseTimeToLive", &request).await.map_err(no_connection)?;
    call.show(&Answer::TimeToLive(&answer, keys))
}

pub(super) async fn list(call: &Call) -> Result<(), Failure> {
    let connection = call.connect().await?;
    let request = pb::LeaseLeasesRequest {};
    let answer = connection.call("/etcdserverpb.Lease/LeaseLeases", &request).await.map_err(no_connection)?;
    call.show(&Answer::Leases(&answer))
}

/// What goes wrong in these commands is taken for a failed connection: exit code 2.
fn no_connection(status: api::Status) -> Failure {
    Failure::new(Failure::BAD_CONNECTION, shown(&status))
}

pub(super) async fn keep_alive(call: &Call) -> Result<(), Failure> {
    let [id] = call.args() else {
        return Err(Failure::bad_args("lease keep-alive command needs lease ID as argument"));
    };
    let id = lease_id(id)?;
    let connection = call.connect().await?;
    if call.matches.flag("once") {
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
