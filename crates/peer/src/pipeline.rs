use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use prost::Message as _;

use crate::error::PostError;
use crate::local_member::LocalMember;
use crate::paths;
use crate::peer::Peer;

/// etcd's message to a sender that was removed from the cluster, in the body of an answer with status 403.
pub(crate) const REMOVED: &str = "cannot process message from removed member";

/// Posts the messages queued for a peer's pipeline one by one, until the queue is empty.
pub(crate) async fn run(local: Rc<LocalMember>, peer: Rc<Peer>) {
    while let Some(message) = peer.next_piped() {
        let body = Bytes::from(message.encode_to_vec());
        let bytes = body.len() as u64;
        match post(&local, &peer, body).await {
            Ok(()) => {
                peer.account.counters.sent_bytes.add(bytes);
                peer.pipeline_worked(&local);
            }
            Err(error) => peer.pipeline_broke(&local, &error.to_string()),
        }
    }
    peer.pipeline_rests();
}

async fn post(local: &LocalMember, peer: &Peer, body: Bytes) -> Result<(), PostError> {
    let endpoint = peer.endpoint()?;
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::Uri::from_static(paths::MESSAGES);
    local.identity.stamp(request.headers_mut());
    let protobuf = HeaderValue::from_static("application/protobuf");
    request.headers_mut().insert(http::header::CONTENT_TYPE, protobuf);
    let answer = local.client.exchange(&endpoint, request, local.read_timeout).await;
    let answer = answer.inspect_err(|_| peer.endpoint_failed(&endpoint))?;
    if answer.status() == StatusCode::NO_CONTENT {
        return Ok(());
    }
    peer.endpoint_failed(&endpoint);
    let text = String::from_utf8_lossy(answer.body());
    if answer.status() == StatusCode::FORBIDDEN && text.contains(REMOVED) {
        local.report_removal(peer.id);
    }
    Err(PostError::Message(answer.status(), text.trim_end().to_owned()))
}
