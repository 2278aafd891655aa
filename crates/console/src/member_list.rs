//! Asks a member for the list of members, and checks which member answers: [`request_list`],
//! [`is_member_at`].

use std::rc::Rc;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode};
use hyper::body::Body as _;
use serde_json::Value;

use crate::request_body::UpstreamBody;
use crate::source::{ENDPOINTS_MAX, Member};
use crate::upstream::{Dialer, Target};

/// Maximum size in bytes of a response; a larger one is ignored.
const LIST_BYTES_MAX: usize = 1 << 20;

/// Answer of a member that was asked for the list of members.
pub(crate) enum ListOutcome {
    List(MemberList),
    /// The member refuses to show the list to this user, or without a user.
    Refused,
    /// There was no valid response.
    NoAnswer,
}

/// Asks a member for the list of members, with the token of a user if there is an `authorization`.
pub(crate) async fn request_list(
    dialer: &Dialer,
    target: &Rc<Target>,
    authorization: Option<HeaderValue>,
) -> ListOutcome {
    let body = UpstreamBody::Whole(Some(Bytes::from_static(b"{}")));
    let request =
        Request::post("/v3/cluster/member/list").header(CONTENT_TYPE, "application/json").body(body);
    let Ok(mut request) = request else { return ListOutcome::NoAnswer };
    if let Some(authorization) = authorization {
        request.headers_mut().insert(AUTHORIZATION, authorization);
    }
    match answer_of(dialer, target, request).await {
        Some((StatusCode::OK, body)) => read_list(&body).map_or(ListOutcome::NoAnswer, ListOutcome::List),
        // etcd's gateway answers with status 400 if a user is required.
        Some((StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => {
            ListOutcome::Refused
        }
        _ => ListOutcome::NoAnswer,
    }
}

/// Returns true if this member of this cluster answers at the target, as far as it can be found out without a
/// token.
pub(crate) async fn is_member_at(
    dialer: &Dialer,
    target: &Rc<Target>,
    member: u64,
    cluster: Option<u64>,
) -> bool {
    match request_list(dialer, target, None).await {
        ListOutcome::List(list) => list.reporter == member && Some(list.cluster) == cluster,
        // The list is refused. The metrics can be read without permission, and contain the member's id. This
        // identifies the cluster too, because members of different clusters have different ids: the id is a
        // hash of the member's peer URLs and of the cluster's token or the time at which the member was
        // added.
        ListOutcome::Refused => {
            let Ok(request) = Request::get("/metrics").body(UpstreamBody::Whole(None)) else { return false };
            let answer = answer_of(dialer, target, request).await;
            let page = answer.filter(|(status, _)| *status == StatusCode::OK);
            page.and_then(|(_, page)| read_id(&page)) == Some(member)
        }
        ListOutcome::NoAnswer => false,
    }
}

/// Sends a request, and returns the status and body of the response; `None` if there was no complete one.
async fn answer_of(
    dialer: &Dialer,
    target: &Rc<Target>,
    request: Request<UpstreamBody>,
) -> Option<(StatusCode, Vec<u8>)> {
    let (link, response) = dialer.send(target, request).await.ok()?;
    let status = response.status();
    let body = whole(response.into_body()).await?;
    target.keep(link, &dialer.limits);
    Some((status, body))
}

/// Returns the id of the member from the text of its metrics.
fn read_id(page: &[u8]) -> Option<u64> {
    let mut lines = page.split(|byte| *byte == b'\n');
    let id = lines.find_map(|line| line.strip_prefix(b"etcd_server_id{server_id=\""))?;
    let id = std::str::from_utf8(id.split(|byte| *byte == b'"').next()?).ok()?;
    u64::from_str_radix(id, 16).ok()
}

/// Returns the body of a response; `None` if it was interrupted or is larger than [`LIST_BYTES_MAX`].
async fn whole(mut incoming: hyper::body::Incoming) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut incoming).poll_frame(cx)).await
    {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if body.len() + data.len() > LIST_BYTES_MAX {
            return None;
        }
        body.extend_from_slice(&data);
    }
    Some(body)
}

/// A list of members, as one of the members reports it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemberList {
    pub(crate) cluster: u64,
    /// Id of the member that reported the list.
    pub(crate) reporter: u64,
    pub(crate) members: Vec<Member>,
}

/// Parses a list of members. Ids are numbers, which protobuf's JSON encoding writes as strings.
fn read_list(body: &[u8]) -> Option<MemberList> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let id = |value: &Value| match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    let header = answer.get("header")?;
    let (cluster, reporter) = (id(header.get("cluster_id")?)?, id(header.get("member_id")?)?);
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let members = answer.get("members")?.as_array()?.iter().take(ENDPOINTS_MAX).filter_map(|member| {
        let urls = member.get("clientURLs").and_then(Value::as_array);
        Some(Member {
            id: id(member.get("ID")?)?,
            name: text(member.get("name")),
            client_urls: urls.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
            is_learner: member.get("isLearner").and_then(Value::as_bool).unwrap_or_default(),
        })
    });
    Some(MemberList { cluster, reporter, members: members.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_members_are_read_as_the_gateway_writes_them() {
        let body = br#"{"header":{"cluster_id":"1","member_id":"10276657743932975437","raft_term":"2"},"members":[
            {"ID":"10276657743932975437","name":"a","peerURLs":["http://h:1"],"clientURLs":["http://h:2","https://h:3"]},
            {"ID":7,"isLearner":true},{"name":"no id"},5]}"#;
        let list = vec![
            Member {
                id: 10276657743932975437,
                name: "a".to_owned(),
                client_urls: vec!["http://h:2".to_owned(), "https://h:3".to_owned()],
                is_learner: false,
            },
            Member { id: 7, name: String::new(), client_urls: Vec::new(), is_learner: true },
        ];
        let expected = MemberList { cluster: 1, reporter: 10276657743932975437, members: list };
        assert_eq!(read_list(body), Some(expected));
        for wrong in [&b""[..], b"{}", b"[]", br#"{"header":{},"members":[]}"#, b"{\"header\":\xff"] {
            assert_eq!(read_list(wrong), None);
        }
    }

    #[test]
    fn a_member_is_known_by_its_metrics() {
        let page = b"# TYPE etcd_server_id gauge\netcd_server_id{server_id=\"8e9e05c52164694d\"} 1\n";
        assert_eq!(read_id(page), Some(0x8e9e05c52164694d));
        for wrong in
            [&b""[..], b"etcd_server_id{server_id=\"", b"etcd_server_id{server_id=\"x\"} 1", b"\xff\n"]
        {
            assert_eq!(read_id(wrong), None);
        }
    }
}
