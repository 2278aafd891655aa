//! Answers the calls of `v3lockpb.Lock`. The owner of the oldest key `name/<lease>` holds the lock. A call
//! that wants the lock creates such a key and waits until all older keys are gone.

use api::etcdserverpb::response_op::Response;
use api::etcdserverpb::{RangeRequest, ResponseHeader, TxnRequest, request_op::Request};
use api::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use api::{Code, Status};
use bytes::Bytes;
use front::Answer;

use super::call::Call;
use super::principal::Asker;
use super::steps::{Line, Place, Steps, get, is_created_at, op, put};
use super::{decode, whole};

/// Error of a call whose lease, and with it the key, expired while the call waited.
const SESSION_EXPIRED: Status = Status::new(Code::Unknown, "mutex: session is expired");

/// Answers a Lock.
pub(super) async fn lock(call: &mut Call, asker: Asker, message: Bytes) -> Result<Answer, Status> {
    let LockRequest { name, lease } = decode(message)?;
    // The whole call counts as one expensive call, because finding its place among the keys of all waiting
    // calls may visit many keys. The steps are not counted: the rate limit must not refuse a step of a call
    // that already waits.
    call.expensive()?;
    let steps = Steps::new(&call.services, call.rpc, asker);
    let (header, key) = locked(&steps, name, lease).await.map_err(|status| steps.failed(status))?;
    Ok(whole(&LockResponse { header, key }))
}

/// Answers an Unlock.
pub(super) async fn unlock(call: &mut Call, asker: Asker, message: Bytes) -> Result<Answer, Status> {
    let UnlockRequest { key } = decode(message)?;
    let deleted = Steps::new(&call.services, call.rpc, asker).delete(key).await?;
    Ok(whole(&UnlockResponse { header: deleted.header }))
}

/// Takes the lock of this name with this lease, or with a new one if `lease` is 0.
async fn locked(steps: &Steps, name: Bytes, lease: i64) -> Result<(Option<ResponseHeader>, Bytes), Status> {
    let lease = steps.session(lease).await?;
    let (line, key) = Line::with_key(&name, lease);
    drop(name);
    // etcd reads the oldest key here. Counting is enough, because only the number of other keys matters.
    let all = || op(Request::RequestRange(RangeRequest { count_only: true, limit: 1, ..line.all() }));
    let request = TxnRequest {
        compare: vec![is_created_at(&key, 0)],
        success: vec![put(&key, Bytes::new(), lease), all()],
        failure: vec![get(&key), all()],
    };
    let made = steps.txn(&request).await?;
    drop(request);
    let mut created = made.header.unwrap_or_default().revision;
    let mut others = true;
    for response in made.responses.into_iter().filter_map(|op| op.response) {
        match response {
            Response::ResponseRange(range) if range.count == 1 && range.kvs.is_empty() => others = false,
            Response::ResponseRange(range) => {
                created = range.kvs.first().map_or(created, |kv| kv.create_revision);
            }
            _ => {}
        }
    }
    if !others {
        return Ok((made.header, key));
    }
    let mut place = Place::new(steps, &key, (created, made.succeeded));
    let waited = match steps.turn(&line, &mut place).await {
        Ok(()) => {
            let own = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
            steps.range(&own).await
        }
        Err(status) => Err(status),
    };
    let own = match waited {
        Ok(own) => own,
        Err(status) => {
            place.leave().await;
            return Err(status);
        }
    };
    place.keep();
    if own.kvs.first().is_none_or(|kv| kv.create_revision != created) {
        return Err(SESSION_EXPIRED);
    }
    Ok((own.header, key))
}
