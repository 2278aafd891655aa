use std::rc::Rc;
use std::sync::Arc;
use stdx::{First, race};

use api::raftpb::Message;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use tokio::sync::{Notify, mpsc};

use crate::client;
use crate::error::{ExchangeError, PostError};
use crate::frame_buffer::FrameBuffer;
use crate::handler::SnapshotForm;
use crate::identity::MAINSTAY_SNAPSHOT;
use crate::local_member::LocalMember;
use crate::options::{SNAPSHOT_ANSWER_TIMEOUT, SNAPSHOT_TIMEOUTS};
use crate::paths;
use crate::peer::Peer;
use crate::piece::Piece;
use crate::request_body::RequestBody;

/// Maximum number of bytes that are read from the body of an answer that refuses a snapshot.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Posts a snapshot to a peer, and waits for the peer's answer.
pub(crate) async fn post(
    local: &LocalMember,
    peer: &Peer,
    message: Message,
    form: SnapshotForm,
    pieces: mpsc::Receiver<Piece>,
) -> Result<(), PostError> {
    let endpoint = peer.endpoint()?;
    let mut envelope = FrameBuffer::default();
    envelope.put_sized_message(message);
    let handed_over = Rc::new(Notify::new());
    let mut request = Request::new(RequestBody::Snapshot {
        envelope: Some(envelope.take()),
        pieces,
        account: Arc::clone(&peer.account),
        handed_over: Rc::clone(&handed_over),
    });
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(paths::SNAPSHOTS);
    client::name_host(&mut request, &endpoint).map_err(ExchangeError::from)?;
    let headers = request.headers_mut();
    local.identity.stamp(headers);
    headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if form == SnapshotForm::Own {
        headers.insert(MAINSTAY_SNAPSHOT, HeaderValue::from_static("1"));
    }

    let dialed = client::dial(&local.client.dialer, &endpoint, local.write_timeout * SNAPSHOT_TIMEOUTS).await;
    let mut link = dialed.inspect_err(|_| peer.endpoint_failed(&endpoint))?;
    let outcome = async {
        let answer = link.send(request).await.map_err(ExchangeError::from)?;
        let status = answer.status();
        if status == StatusCode::NO_CONTENT {
            return Ok(());
        }
        let body = Limited::new(answer.into_body(), REFUSAL_BYTES_MAX).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        Err(PostError::Snapshot(status, String::from_utf8_lossy(&body).trim_end().to_owned()))
    };
    // The time limit for the answer starts after the last chunk. Sending the chunks has no time limit in
    // total, because snapshots differ in size; the connection's write timeout ends a transfer that makes no
    // progress.
    let patience = async {
        handed_over.notified().await;
        tokio::time::sleep(SNAPSHOT_ANSWER_TIMEOUT).await;
    };
    let outcome = match race(outcome, patience).await {
        First::Left(outcome) => outcome,
        First::Right(()) => Err(ExchangeError::TimedOut(SNAPSHOT_ANSWER_TIMEOUT).into()),
    };
    // Close the connection. If the peer has refused the snapshot before the whole body was sent, this ends
    // the transfer of the rest.
    drop(link);
    outcome
}
