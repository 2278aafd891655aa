//! Makes calls to members on behalf of the proxy's clients. Adds the namespace to the clients' keys, and with
//! `--experimental-serializable-ordering` repeats reads so that their revisions never decrease.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use api::etcdserverpb::ResponseHeader;
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::{CallOptions, Client};
use tokio::time::sleep;

use crate::namespace::{Namespace, decode_answer, decode_txn, writes_of};

/// Number of rounds in which a read is tried at every endpoint before it fails. Source: etcd's ordering of
/// reads.
const ROUNDS: u32 = 5;
/// Pause after a read was tried at all endpoints once, so that lagging members can catch up. The pause
/// doubles after each such round.
const PAUSE: Duration = Duration::from_millis(10);
/// Error that a read returns if all members answer from too low a revision.
const NO_GREATER_REVISION: Status = Status::new(
    Code::Unknown,
    "etcdclient: no cluster members have a revision higher than the previously received revision",
);

/// Highest revision in any response to a read so far. Reads that begin later must not return a lower one. All
/// shards (the proxy's threads) share it.
#[derive(Debug, Default)]
pub(crate) struct Order(AtomicI64);

/// Any response of the KV service, of which only the header is decoded.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Headed {
    /// Header with revision and raft term.
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// The members of the cluster, as the proxy's clients see them. A clone uses the same connections.
#[derive(Clone)]
pub(crate) struct Members {
    /// Client connected to the members.
    pub(crate) client: Client,
    /// Prefix of all keys of clients; `None` if clients use the keys of the cluster directly.
    pub(crate) namespace: Option<Namespace>,
    /// Lowest revision that a read may return; `None` if a response of any revision is accepted.
    pub(crate) order: Option<Arc<Order>>,
}

impl Members {
    /// Forwards a unary call to a member.
    ///
    /// # Errors
    /// Returns the error of the member or of [`Client::forward`]. If reads are ordered, also returns
    /// `etcdclient: no cluster members have a revision higher than the previously received revision`.
    pub(crate) async fn call(
        &self,
        rpc: Rpc,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let message = self.asked(rpc, message)?;
        let answer = match &self.order {
            Some(order) if may_be_asked_again(rpc, &message)? => {
                self.in_order(order, rpc, options, message).await?
            }
            _ => self.client.forward(rpc, options, message).await?,
        };
        self.told(rpc, answer)
    }

    /// Translates a client's request for the cluster, by adding the namespace to its keys.
    ///
    /// # Errors
    /// Returns an error if the request is malformed, has no key, or is a transaction with too many
    /// operations.
    pub(crate) fn asked(&self, rpc: Rpc, message: Bytes) -> Result<Bytes, Status> {
        match &self.namespace {
            Some(namespace) => namespace.request(rpc, message),
            None => Ok(message),
        }
    }

    /// Translates a member's response for the client, by removing the namespace from its keys.
    ///
    /// # Errors
    /// Returns an error if the response is malformed.
    pub(crate) fn told(&self, rpc: Rpc, message: Bytes) -> Result<Bytes, Status> {
        match &self.namespace {
            Some(namespace) => namespace.answer(rpc, message),
            None => Ok(message),
        }
    }

    /// Repeats a read until its revision is not below the highest revision that was returned before this read
    /// began. Fails after [`ROUNDS`] rounds.
    async fn in_order(
        &self,
        order: &Order,
        rpc: Rpc,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let told = order.0.load(Relaxed);
        for round in 0..ROUNDS {
            // The client sends consecutive calls to its endpoints in turn, or passes over those that it
            // prefers, so this loop asks each endpoint about once.
            for passed_over in 0..self.client.endpoints().len().max(1) {
                let options = CallOptions { passed_over, ..options.clone() };
                let answer = self.client.forward(rpc, &options, message.clone()).await?;
                let revision = decode_answer::<Headed>(&answer)?.header.unwrap_or_default().revision;
                if revision >= told {
                    order.0.fetch_max(revision, Relaxed);
                    return Ok(answer);
                }
            }
            if round + 1 < ROUNDS {
                sleep(PAUSE * 2_u32.pow(round)).await;
            }
        }
        Err(NO_GREATER_REVISION)
    }
}

/// Returns true for reads and for transactions without writes, which may be repeated at another member. A
/// write must not be repeated, because it could be carried out twice. It need not be repeated either: its
/// response has a new revision, which is higher than all earlier ones.
fn may_be_asked_again(rpc: Rpc, message: &Bytes) -> Result<bool, Status> {
    Ok(match rpc {
        Rpc::KvRange => true,
        Rpc::KvTxn => {
            let mut written = Vec::new();
            writes_of(&decode_txn(message)?.0, &mut written);
            written.is_empty()
        }
        _ => false,
    })
}
