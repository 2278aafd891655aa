//! Serves the clients' streams of watches and of lease renewals: passes each request to the hub, which
//! answers it, and sends the hub's responses to the client.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use accounting::Account;
use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{LeaseKeepAliveRequest, WatchRequest};
use api::{Code, Status, elements};
use bytes::Bytes;
use front::{First, Head, Inbound, Outbound, race};
use tokio::sync::{Semaphore, oneshot};

use crate::hub::{Command, Hub};
use crate::namespace::decode_request;
use crate::outbox::{Next, Outbox};
use crate::renewals::Renewal;
use crate::upstream;
use crate::watches::{Caller, StreamId};

/// Maximum number of unanswered renewals of one client stream. While there are so many, no further renewal of
/// the stream is passed to the hub.
const RENEWALS_MAX: usize = 256;
/// Status with which a stream ends if the hub has ended.
const CLOSING: Status = Status::new(Code::Canceled, "the client connection is closing");

/// Returns the caller of a stream: its credentials, and whether it requires a leader.
fn caller_of(head: &Head) -> Arc<Caller> {
    let credential = |name: &'static str| {
        let value = head.metadata.get(name)?;
        Some((name, Bytes::copy_from_slice(value)))
    };
    Arc::new(Caller {
        credentials: upstream::CREDENTIALS.into_iter().filter_map(credential).collect(),
        requires_leader: head.requires_leader,
    })
}

/// Keeps the memory reservation for the queued responses in the account of the client's connection up to date
/// while this future is polled. The future never ends.
async fn keep_charged(outbox: &Outbox, account: Rc<Account>) -> Infallible {
    let held = account.hold(0);
    loop {
        held.set(outbox.to_charge().await);
    }
}

/// Serves a stream of watches.
pub(crate) async fn watch(
    hub: &Hub,
    stream: StreamId,
    head: &Head,
    inbound: &mut Inbound,
    outbound: &mut Outbound,
) -> Result<(), Status> {
    let outbox = Arc::new(Outbox::default());
    let charged = keep_charged(&outbox, outbound.account());
    let caller = caller_of(head);
    let _leaving = hub.begin(Command::Leave(stream)).await.ok_or(CLOSING)?;
    let requests = async {
        while let Some(message) = inbound.next().await? {
            if elements::has_too_many_filters(&message) {
                return Err(elements::TOO_MANY_FILTERS);
            }
            let request: WatchRequest = decode_request(&message)?;
            let (done, answered) = oneshot::channel();
            match request.request_union {
                Some(RequestUnion::CreateRequest(request)) => {
                    let (outbox, caller, request) = (outbox.clone(), caller.clone(), Box::new(request));
                    hub.send(Command::Create { stream, outbox, request, caller, done }).await;
                }
                Some(RequestUnion::CancelRequest(request)) => {
                    hub.send(Command::Cancel(stream, request.watch_id, done)).await;
                }
                Some(RequestUnion::ProgressRequest(_)) => {
                    hub.send(Command::AskProgress(stream, done)).await;
                }
                // An unknown request is ignored, as in etcd.
                None => continue,
            }
            // Wait until the hub has handled this request, because clients expect answers in the order of
            // their requests. An error only means that the hub dropped the sender, for example after it has
            // refused the request.
            let _ = answered.await;
            // Read no more requests of a client that takes no answers, so that its queue stays bounded.
            outbox.room().await;
        }
        Ok(())
    };
    let answers = async {
        loop {
            match outbox.next().await {
                Next::Message(message, _) => outbound.send(message).await?,
                Next::Drained => {
                    // Wait until the client has taken the last response. Otherwise the hub would fill the
                    // queue again and again for a client that takes nothing.
                    outbound.ready().await?;
                    hub.send(Command::Drained(stream)).await;
                }
                Next::End(status) => return Err(status),
            }
        }
    };
    match race(race(requests, answers), charged).await {
        First::Left(First::Left(ended) | First::Right(ended)) => ended,
        First::Right(never) => match never {},
    }
}

/// Serves a stream of lease renewals.
pub(crate) async fn renew(
    hub: &Hub,
    stream: StreamId,
    head: &Head,
    inbound: &mut Inbound,
    outbound: &mut Outbound,
) -> Result<(), Status> {
    let outbox = Arc::new(Outbox::default());
    let charged = keep_charged(&outbox, outbound.account());
    let caller = caller_of(head);
    let _leaving = hub.begin(Command::LeaveRenewals(stream, caller.clone())).await.ok_or(CLOSING)?;
    let places = Arc::new(Semaphore::new(RENEWALS_MAX));
    let requests = async {
        while let Some(message) = inbound.next().await? {
            let LeaseKeepAliveRequest { id: lease } = decode_request(&message)?;
            let place = places.clone().acquire_owned().await.map_err(|_| CLOSING)?;
            let renewal = Renewal { lease, stream, outbox: outbox.clone(), place };
            if !hub.send(Command::Renew(renewal, caller.clone())).await {
                return Err(CLOSING);
            }
        }
        // The client sends no more requests. Wait until all its renewals are answered: each returns its
        // permit when its response has been sent to the client.
        let all = u32::try_from(RENEWALS_MAX).unwrap_or(u32::MAX);
        let _ = places.acquire_many(all).await;
        Ok(())
    };
    let answers = async {
        loop {
            match outbox.next().await {
                Next::Message(message, place) => {
                    outbound.send(message).await?;
                    drop(place);
                }
                Next::Drained => {}
                Next::End(status) => return Err(status),
            }
        }
    };
    match race(race(requests, answers), charged).await {
        First::Left(First::Left(ended) | First::Right(ended)) => ended,
        First::Right(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use accounting::Budget;

    use super::*;
    use crate::outbox::CHARGE_STEP_BYTES;

    #[test]
    fn what_waits_for_a_client_is_charged_to_its_connection() {
        let budget = Budget::new(64 << 20);
        let account = budget.open(std::net::Ipv4Addr::LOCALHOST.into());
        let before = account.held_bytes();
        let outbox = Outbox::default();
        let mut charged = pin!(keep_charged(&outbox, account.clone()));
        let mut charge = || {
            assert!(charged.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            account.held_bytes() - before
        };
        assert_eq!(charge(), 0);
        let message = Bytes::from(vec![0; CHARGE_STEP_BYTES]);
        (0..10).for_each(|_| assert!(outbox.offer(&message)));
        assert_eq!(charge(), 10 * CHARGE_STEP_BYTES);
        outbox.answer(message);
        assert_eq!(charge(), 11 * CHARGE_STEP_BYTES);
        // A small message does not change the reservation yet.
        outbox.answer(Bytes::from_static(b"small"));
        assert_eq!(charge(), 11 * CHARGE_STEP_BYTES);
        while outbox.rest().is_some() {}
        assert!(charge() < CHARGE_STEP_BYTES);
    }
}
