//! Calls to members as clients of the proxy see them: their keys stand below the namespace, and with
//! `--experimental-serializable-ordering` the revisions of their reads never go back.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use api::etcdserverpb::ResponseHeader;
use api::{Code, Rpc, Status};
use bytes::Bytes;
use client::{CallOptions, Client};
use tokio::time::sleep;

use crate::namespace::{Namespace, decode_answer, decode_txn};
use crate::service::writes_of;

/// Rounds through all endpoints in which a read is asked again. Source: etcd's ordering of reads.
const ROUNDS: u32 = 5;
/// Pause after the first round, in which members that are behind may catch up. It doubles with each round.
const PAUSE: Duration = Duration::from_millis(10);
/// Error of a read that every member answers with a revision of the past.
const NO_GREATER_REVISION: Status = Status::new(
    Code::Unknown,
    "etcdclient: no cluster members have a revision higher than the previously received revision",
);

/// The highest revision that the answer to a read had. All shards share it.
#[derive(Debug, Default)]
pub(crate) struct Order(AtomicI64);

/// The header of any answer of the KV service.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Headed {
    /// Revision and term when it was answered.
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
}

/// The members of the cluster, as clients of the proxy see them. A clone uses the same connections.
#[derive(Clone)]
pub(crate) struct Members {
    /// Client of the members.
    pub(crate) client: Client,
    /// Prefix of all keys; `None`: keys of clients are those of the cluster.
    pub(crate) namespace: Option<Namespace>,
    /// Order of reads; `None`: an answer is given whatever its revision is.
    pub(crate) order: Option<Arc<Order>>,
}

impl Members {
    /// Has a member answer a unary call.
    ///
    /// # Errors
    /// Those of the member and of [`Client::forward`]; with an order, `etcdclient: no cluster members have a revision higher
    /// than the previously received revision`.
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

    /// A request as the cluster has to see it.
    ///
    /// # Errors
    /// It is malformed, or has no key.
    pub(crate) fn asked(&self, rpc: Rpc, message: Bytes) -> Result<Bytes, Status> {
        match &self.namespace {
            Some(namespace) => namespace.request(rpc, message),
            None => Ok(message),
        }
    }

    /// An answer as the client has to see it.
    ///
    /// # Errors
    /// It is malformed.
    pub(crate) fn told(&self, rpc: Rpc, message: Bytes) -> Result<Bytes, Status> {
        match &self.namespace {
            Some(namespace) => namespace.answer(rpc, message),
            None => Ok(message),
        }
    }

    /// Has members answer a read until its revision is no lower than those that were told when it began.
    async fn in_order(
        &self,
        order: &Order,
        rpc: Rpc,
        options: &CallOptions,
        message: Bytes,
    ) -> Result<Bytes, Status> {
        let told = order.0.load(Relaxed);
        for round in 0..ROUNDS {
            // Calls go to one endpoint after the other.
            for _ in 0..self.client.endpoints().len().max(1) {
                let answer = self.client.forward(rpc, options, message.clone()).await?;
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

/// True for calls that only read. What writes has a new revision anyway, and must not be done twice.
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
