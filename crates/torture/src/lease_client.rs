//! Runs a client that creates leases, attaches keys to them, and keeps them alive. It then revokes them or
//! lets them expire.

use std::sync::Arc;
use std::time::Duration;

use oracle::{Outcome, Put, Range, Request, Response};
use tokio::sync::watch;

use crate::phase::{Phase, pause, working};
use crate::rng::Rng;
use crate::session::{ClientContext, Session};

/// Grants a lease. Returns its id and its time to live in seconds; `None` if the request failed.
pub async fn grant(session: &mut Session, ttl: i64, id: i64) -> Option<(i64, i64)> {
    match session.ask(Request::Grant { id, ttl }).await {
        Outcome::Done(_, Response::Granted { id, ttl }) => Some((id, ttl)),
        _ => None,
    }
}

/// Renews a lease three times within its time to live. Ends when the lease no longer exists, or the task is
/// aborted.
pub async fn keep_alive(context: Arc<ClientContext>, client: u64, member: usize, lease: i64, ttl: i64) {
    let mut session = Session::new(&context, client, member);
    let every = Duration::from_millis(u64::try_from(ttl).unwrap_or(1) * 1000 / 3);
    loop {
        tokio::time::sleep(every).await;
        if let Outcome::Done(_, Response::Renewed { ttl: 0 }) =
            session.ask(Request::KeepAlive { id: lease }).await
        {
            return;
        }
    }
}

/// Uses leases, one after the other, until the phase ends.
pub async fn work(
    context: Arc<ClientContext>,
    number: u64,
    member: usize,
    mut rng: Rng,
    mut phase: watch::Receiver<Phase>,
) {
    let mut session = Session::new(&context, number, member);
    let mut lives = 0_u64;
    while working(&phase) {
        lives += 1;
        // Choose an id for some leases, and leave the choice to the server for the others. The chosen ids are
        // all different.
        let wanted = if rng.percent(20) { (number * 1_000_000 + lives) as i64 } else { 0 };
        let ttl = rng.between(3, 7) as i64;
        let Some((lease, ttl)) = grant(&mut session, ttl, wanted).await else {
            pause(&mut phase, Duration::from_millis(200)).await;
            continue;
        };
        live(&mut session, lease, ttl, lives, &mut rng, &mut phase).await;
    }
}

async fn live(
    session: &mut Session,
    lease: i64,
    ttl: i64,
    lives: u64,
    rng: &mut Rng,
    phase: &mut watch::Receiver<Phase>,
) {
    let context = Arc::clone(session.context());
    let prefix = format!("lease/{}/", session.client());
    let prefix_end = format!("lease/{}0", session.client());
    for nth in 0..rng.between(1, 3) {
        let id = context.record.number();
        let key = format!("{prefix}{lives}.{nth}").into_bytes();
        let put = Put { key, value: format!("v{id}").into(), lease, ..Put::default() };
        session.ask_numbered(id, Request::Put(put), None).await;
    }
    for _ in 0..rng.between(0, 4) {
        if !pause(phase, Duration::from_millis(u64::try_from(ttl).unwrap_or(1) * 333)).await {
            break;
        }
        let outcome = session.ask(Request::KeepAlive { id: lease }).await;
        if let Outcome::Done(_, Response::Renewed { ttl: 0 }) = outcome {
            return;
        }
        if rng.percent(30) {
            session.ask(Request::TimeToLive { id: lease, keys: true }).await;
        }
    }
    if rng.percent(5) {
        session.ask(Request::Leases).await;
    }
    if rng.percent(30) || !working(phase) {
        session.ask(Request::Revoke { id: lease }).await;
        return;
    }
    // From now on, do not renew the lease. The lease and its keys must expire, but not before the time to
    // live has passed. The reads below record when the keys disappear, for the oracle.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(u64::try_from(ttl).unwrap_or(1) + 4);
    while tokio::time::Instant::now() < deadline && pause(phase, Duration::from_millis(250)).await {
        let keys =
            Range { key: prefix.clone().into(), range_end: prefix_end.clone().into(), ..Range::default() };
        match session.ask(Request::Range(keys)).await {
            Outcome::Done(_, Response::Range(range)) if range.kvs.iter().all(|kv| kv.lease != lease) => {
                break;
            }
            _ => {}
        }
    }
    session.ask(Request::TimeToLive { id: lease, keys: false }).await;
}
