//! Runs a client that takes a lock again and again, in the same way as etcd's `concurrency.Mutex`. It writes
//! while it believes that it holds the lock.

use std::sync::Arc;
use std::time::Duration;

use oracle::{
    Action, ActionResult, Compare, Delete, Fence, Holding, Order, Outcome, Put, Range, Relation, Request,
    Response, SortTarget, Target, Txn,
};
use tokio::sync::watch;

use crate::lease_client::{grant, keep_alive};
use crate::phase::{Phase, pause, working};
use crate::rng::Rng;
use crate::session::{ClientContext, Session};

const PREFIX: &str = "lock/a/";
const PREFIX_END: &str = "lock/a0";
/// Key that only the holder of the lock may write.
const FENCED: &str = "fence/a";
/// Time to live of the lock's lease, in seconds. A holder that is cut off may believe for about this long
/// that it still holds the lock. So each of its writes is a transaction that checks that its lock key still
/// exists.
const TTL: i64 = 4;
/// Longest time for which a client waits for the lock.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Interval at which a waiting client checks whether it holds the lock.
const LOOK_EVERY: Duration = Duration::from_millis(60);

/// Takes the lock again and again until the phase ends.
pub async fn work(
    context: Arc<ClientContext>,
    number: u64,
    member: usize,
    mut rng: Rng,
    mut phase: watch::Receiver<Phase>,
) {
    let mut session = Session::new(&context, number, member);
    while working(&phase) {
        let Some((lease, ttl)) = grant(&mut session, TTL, 0).await else {
            pause(&mut phase, Duration::from_millis(200)).await;
            continue;
        };
        let keeper = tokio::task::spawn_local(keep_alive(Arc::clone(&context), number, member, lease, ttl));
        for _ in 0..5 {
            if !working(&phase) || !hold(&mut session, lease, &mut rng, &mut phase).await {
                break;
            }
        }
        keeper.abort();
        // Ignore the outcome: if the revocation fails, the lease expires later.
        session.ask(Request::Revoke { id: lease }).await;
    }
}

fn first_of_all() -> Range {
    Range {
        key: PREFIX.into(),
        range_end: PREFIX_END.into(),
        limit: 1,
        order: Order::Ascend,
        target: SortTarget::Create,
        ..Range::default()
    }
}

/// Takes the lock, writes, and releases the lock. Returns false if the lease must not be used any more.
async fn hold(session: &mut Session, lease: i64, rng: &mut Rng, phase: &mut watch::Receiver<Phase>) -> bool {
    let context = Arc::clone(session.context());
    let key = format!("{PREFIX}{lease:x}").into_bytes();
    let id = context.record.number();
    let own = || Range { key: key.clone(), ..Range::default() };
    let take = Txn {
        compare: vec![Compare {
            key: key.clone(),
            range_end: Vec::new(),
            relation: Relation::Equal,
            target: Target::Create(0),
        }],
        success: vec![
            Action::Put(Put { key: key.clone(), value: format!("v{id}").into(), lease, ..Put::default() }),
            Action::Range(first_of_all()),
        ],
        failure: vec![Action::Range(own()), Action::Range(first_of_all())],
    };
    let outcome = session.ask_numbered(id, Request::Txn(take), None).await;
    let Outcome::Done(header, Response::Txn(result)) = outcome else { return false };
    let read = |nth: usize| match result.results.get(nth) {
        Some(ActionResult::Range(range)) => range.kvs.first(),
        _ => None,
    };
    let created = match (result.succeeded, read(0)) {
        (true, _) => header.revision,
        (false, Some(kv)) => kv.create_revision,
        (false, None) => return false,
    };
    let mut is_first = read(1).is_some_and(|kv| kv.key == key);
    let deadline = tokio::time::Instant::now() + WAIT_MAX;
    while !is_first {
        if tokio::time::Instant::now() > deadline || !pause(phase, LOOK_EVERY).await {
            return release(session, &key).await;
        }
        match session.ask(Request::Range(first_of_all())).await {
            Outcome::Done(_, Response::Range(range)) => match range.kvs.first() {
                // There is no lock key at all, not even this client's own. So its lease has expired.
                None => return false,
                Some(kv) => is_first = kv.key == key && kv.create_revision == created,
            },
            _ => continue,
        }
    }

    let from = context.record.now();
    let fence = Fence { prefix: PREFIX.into(), key: key.clone(), create_revision: created };
    let mut holds = true;
    for _ in 0..3 {
        if !pause(phase, Duration::from_millis(rng.between(5, 40))).await {
            break;
        }
        let id = context.record.number();
        let write = Txn {
            compare: vec![Compare {
                key: key.clone(),
                range_end: Vec::new(),
                relation: Relation::Equal,
                target: Target::Create(created),
            }],
            success: vec![Action::Put(Put {
                key: FENCED.into(),
                value: format!("v{id}").into(),
                ..Put::default()
            })],
            failure: Vec::new(),
        };
        match session.ask_numbered(id, Request::Txn(write), Some(fence.clone())).await {
            Outcome::Done(_, Response::Txn(result)) => holds = result.succeeded,
            _ => holds = false,
        }
        if !holds {
            break;
        }
    }
    let until = context.record.now();
    context.record.lock().holdings.push(Holding { client: session.client(), fence, lease, from, until });
    release(session, &key).await && holds
}

async fn release(session: &mut Session, key: &[u8]) -> bool {
    let delete = Delete { key: key.to_vec(), ..Delete::default() };
    matches!(session.ask(Request::Delete(delete)).await, Outcome::Done(..))
}
