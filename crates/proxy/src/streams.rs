//! The streams of a client whose answers come from the hub: watches and renewals of leases.

use std::sync::Arc;

use api::etcdserverpb::watch_request::RequestUnion;
use api::etcdserverpb::{LeaseKeepAliveRequest, WatchRequest};
use api::{Code, Status};
use bytes::Bytes;
use front::{First, Head, Inbound, Outbound, race};
use tokio::sync::{Semaphore, oneshot};

use crate::hub::{Command, Hub};
use crate::namespace::decode_request;
use crate::outbox::{Next, Outbox};
use crate::renewals::Renewal;
use crate::upstream;
use crate::watches::{Caller, StreamId};

/// Renewals of one stream that may be under way.
const RENEWALS_MAX: usize = 256;
/// Status of a stream whose hub is gone.
const CLOSING: Status = Status::new(Code::Canceled, "the client connection is closing");

/// Tells the hub that a stream is over.
struct Leaving<'h> {
    hub: &'h Hub,
    stream: StreamId,
    /// In whose name it renews leases; `None` for a stream of watches.
    renews: Option<Arc<Caller>>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.hub.send(match self.renews.take() {
            Some(caller) => Command::LeaveRenewals(self.stream, caller),
            None => Command::Leave(self.stream),
        });
    }
}

/// Who makes this call, as far as rights go.
fn caller_of(head: &Head) -> Arc<Caller> {
    let credential = |name: &'static str| {
        let value = head.metadata.get(name)?;
        Some((name, Bytes::copy_from_slice(value.as_bytes())))
    };
    Arc::new(Caller {
        credentials: upstream::CREDENTIALS.into_iter().filter_map(credential).collect(),
        requires_leader: head.requires_leader,
    })
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
    let caller = caller_of(head);
    let _leaving = Leaving { hub, stream, renews: None };
    let requests = async {
        while let Some(message) = inbound.next().await? {
            let request: WatchRequest = decode_request(&message)?;
            let (done, answered) = oneshot::channel();
            match request.request_union {
                Some(RequestUnion::CreateRequest(request)) => {
                    let (outbox, caller, request) = (outbox.clone(), caller.clone(), Box::new(request));
                    hub.send(Command::Create { stream, outbox, request, caller, done });
                }
                Some(RequestUnion::CancelRequest(request)) => {
                    hub.send(Command::Cancel(stream, request.watch_id, done));
                }
                Some(RequestUnion::ProgressRequest(_)) => {
                    hub.send(Command::AskProgress(stream, done));
                }
                // etcd passes over what it does not know.
                None => continue,
            }
            // Clients take the answers to be in the order of their requests. An error is a refusal, which was answered, too.
            let _ = answered.await;
            // A client that takes no answers is not given more.
            outbox.room().await;
        }
        Ok(())
    };
    let answers = async {
        loop {
            match outbox.next().await {
                Next::Message(message, _) => outbound.send(message).await?,
                Next::Drained => {
                    // What was taken last has to be with the client first, or a client that takes nothing goes round.
                    outbound.ready().await?;
                    hub.send(Command::Drained(stream));
                }
                Next::End(status) => return Err(status),
            }
        }
    };
    match race(std::pin::pin!(requests), std::pin::pin!(answers)).await {
        First::Left(ended) | First::Right(ended) => ended,
    }
}

/// Serves a stream of renewals.
pub(crate) async fn renew(
    hub: &Hub,
    stream: StreamId,
    head: &Head,
    inbound: &mut Inbound,
    outbound: &mut Outbound,
) -> Result<(), Status> {
    let outbox = Arc::new(Outbox::default());
    let caller = caller_of(head);
    let _leaving = Leaving { hub, stream, renews: Some(caller.clone()) };
    let places = Arc::new(Semaphore::new(RENEWALS_MAX));
    let requests = async {
        while let Some(message) = inbound.next().await? {
            let LeaseKeepAliveRequest { id: lease } = decode_request(&message)?;
            let place = places.clone().acquire_owned().await.map_err(|_| CLOSING)?;
            let renewal = Renewal { lease, stream, outbox: outbox.clone(), place };
            if !hub.send(Command::Renew(renewal, caller.clone())) {
                return Err(CLOSING);
            }
        }
        // What was asked for is still answered. A place comes back once its answer is with the client.
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
    match race(std::pin::pin!(requests), std::pin::pin!(answers)).await {
        First::Left(ended) | First::Right(ended) => ended,
    }
}
