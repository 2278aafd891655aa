//! Answers the calls of the Cluster service, which list and change members.

use std::sync::Arc;

use api::Status;
use api::elements;
use api::error;
use api::etcdserverpb::{
    Member as MemberMessage, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse, ResponseHeader,
};
use api::identity;
use api::url::Url;
use bytes::Bytes;
use front::{Answer, Head};
use http::HeaderValue;
use machine::Member;
use numbers::Revision;

use super::call::Call;
use super::principal::presented;
use super::{decode, whole};
use crate::forwarding;
use replica::core::{ChangeAttempt, ClientRequest, MemberChange, ReplyBody};
use replica::observing::ObserverCard;
use replica::shared::{Published, Shared};
use stdx::zones::ZoneMemberList;

fn message_of(member: &Member) -> MemberMessage {
    MemberMessage {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        // COMPAT-510: clients that take the endpoints from the list must not ask a witness for keys.
        client_urls: if member.is_witness { Vec::new() } else { member.client_urls.clone() },
        is_learner: member.is_learner,
        is_witness: member.is_witness,
    }
}

fn messages_of(state: &Published) -> Vec<MemberMessage> {
    state.members.by_id.values().map(message_of).collect()
}

/// Refuses a request with too many URLs in this field, before they are decoded (COMPAT-421).
fn check_urls(message: &[u8], field: u32) -> Result<(), Status> {
    if elements::has_too_many_urls(message, field) { Err(error::MEMBER_BAD_URLS) } else { Ok(()) }
}

/// Checks and sorts the URLs, as etcd stores them.
///
/// `unixs` is refused, because no member can be reached at such a URL: the new member would have a vote but
/// never answer, and the cluster might lose its quorum. `unix` is allowed only if this member is reached
/// through a Unix socket too (`has_unix`): otherwise anyone who may add a member could make all members
/// connect to any socket on their machines.
fn peer_urls(texts: &[String], has_unix: bool) -> Result<Vec<String>, Status> {
    if texts.is_empty() {
        return Err(error::MEMBER_BAD_URLS);
    }
    let mut urls = Vec::with_capacity(texts.len());
    for text in texts {
        let url = Url::parse(text).map_err(|_| error::MEMBER_BAD_URLS)?;
        if url.scheme().is_unix() && (url.scheme().is_secure() || !has_unix) {
            return Err(error::MEMBER_BAD_URLS);
        }
        urls.push(url);
    }
    urls.sort();
    Ok(urls.iter().map(|url| url.as_str().to_owned()).collect())
}

/// Returns true if a member is reached through a Unix socket.
fn is_reached_by_unix(member: &Member) -> bool {
    member.peer_urls.iter().any(|url| Url::parse(url).is_ok_and(|url| url.scheme().is_unix()))
}

/// Returns the checked URLs of a request that adds or updates a member.
fn checked_peer_urls(call: &Call, texts: &[String]) -> Result<Vec<String>, Status> {
    let state = call.services.state();
    let own = state.members.by_id.get(&call.shared().member.identity.member_id);
    peer_urls(texts, own.is_some_and(is_reached_by_unix))
}

/// Answers a MemberList.
pub(super) async fn member_list(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let request: MemberListRequest = decode(message)?;
    call.some_user()?;
    let read = call.readable(!request.linearizable).await?;
    // Checked again: this member may have learned only during the wait that authentication is enabled.
    call.some_user()?;
    call.reads(read);
    let state = call.services.state();
    let header = Some(call.services.header(Revision(0), &state));
    let (networks, list) = &call.shared().clients.zones;
    let members = match networks.zone_of(call.peer.ip()).filter(|_| *list != ZoneMemberList::Off) {
        Some(zone) => zone_members(call.shared(), messages_of(&state), zone, *list),
        None => messages_of(&state),
    };
    Ok(whole(&MemberListResponse { header, members }))
}

/// Returns the list for a client in this zone: the members of its zone and the observers there that this node
/// knows, those that are connected first; then all others, unless these are wanted alone and one is connected.
fn zone_members(
    shared: &Shared,
    members: Vec<MemberMessage>,
    zone: &str,
    list: ZoneMemberList,
) -> Vec<MemberMessage> {
    let own = &shared.member;
    let peers = shared.cluster.peers();
    let zone_of = |id: u64| match peers {
        _ if id == own.identity.member_id => own.zone.as_str().into(),
        Some(peers) => peers.zone(id),
        None => Arc::from(""),
    };
    let is_connected =
        |id: u64| id == own.identity.member_id || peers.is_some_and(|peers| peers.active_since(id).is_some());
    let (mut near, far): (Vec<_>, Vec<_>) =
        members.into_iter().partition(|member| *zone_of(member.id) == *zone);
    let observers = shared.cluster.observers();
    let there = observers.iter().filter(|observer| observer.card.zone == zone && observer.is_active);
    near.extend(there.map(|observer| observer_message(&observer.card)));
    near.extend(shared.cluster.own_card().filter(|card| card.zone == zone).map(observer_message));
    // A client of an observer connects to members whose connections only the feeders see.
    near.sort_by_key(|member| !(own.observes || is_connected(member.id)));
    // Clients that sync their endpoints skip learners and members that have not started.
    let is_usable = |member: &MemberMessage| !member.is_learner && !member.client_urls.is_empty();
    let has_near = near.iter().any(|member| is_usable(member) && (own.observes || is_connected(member.id)));
    if list == ZoneMemberList::First || !has_near {
        near.extend(far);
    }
    near
}

fn observer_message(card: &ObserverCard) -> MemberMessage {
    MemberMessage {
        id: card.id,
        name: card.name.clone(),
        peer_urls: card.peer_urls.clone(),
        client_urls: card.client_urls.clone(),
        // Clients that sync their endpoints skip learners, and one that finds nothing but learners is left
        // without endpoints.
        is_learner: false,
        is_witness: false,
    }
}

/// Proposes a membership change on behalf of root, and waits until it is applied here. `what` is etcd's name
/// for the request.
async fn change_members(
    call: &mut Call,
    change: MemberChange,
    what: &'static str,
) -> Result<ResponseHeader, Status> {
    call.as_root().await?;
    match propose_change(call, change.clone(), what, ChangeAttempt::Tentative).await {
        // This member has refused the change, but its applied state may be out of date: members may have been
        // changed through another member. So it catches up, and then tries the change once more.
        Err(status) if MemberChange::is_of_members(&status) => {
            // No slot for unauthenticated callers is needed: while authentication is enabled, only root gets
            // here.
            call.confirmed(None).await?;
            propose_change(call, change, what, ChangeAttempt::Final).await
        }
        proposed => proposed,
    }
}

/// Proposes a membership change, without a retry.
async fn propose_change(
    call: &mut Call,
    change: MemberChange,
    what: &'static str,
    attempt: ChangeAttempt,
) -> Result<ResponseHeader, Status> {
    let ask = |request_id| ClientRequest::ChangeMembers(request_id, change, attempt);
    match call.ask(what, ask).await? {
        (ReplyBody::MembersChanged, header) => Ok(ResponseHeader { revision: 0, ..header }),
        (ReplyBody::Outcome(Err(status), _), _) => Err(status),
        _ => Err(error::STOPPED),
    }
}

/// Answers a MemberAdd.
pub(super) async fn member_add(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    check_urls(&message, 1)?;
    let request: MemberAddRequest = decode(message)?;
    let peer_urls = checked_peer_urls(call, &request.peer_urls)?;
    call.root()?;
    let now = i64::try_from(call.shared().member.clock.unix_seconds()).unwrap_or(i64::MAX);
    let mut id = identity::added_member_id(&peer_urls, now);
    // The id depends on the URLs and the time in seconds. If the same member was added and removed within
    // this second, the removed member has this id, and ids are never used again. So the ids of the next
    // seconds are tried.
    let removed = Arc::clone(&call.services.state().members);
    let removed = &removed.removed;
    for later in 1..=i64::try_from(removed.len()).unwrap_or(i64::MAX) {
        if removed.contains(&id) {
            id = identity::added_member_id(&peer_urls, now.saturating_add(later));
        }
    }
    // A request for a witness also says that it is a learner, for servers that know no witnesses.
    let (is_witness, is_learner) = (request.is_witness, request.is_learner && !request.is_witness);
    let member = Member { id, peer_urls, is_learner, is_witness, ..Member::default() };
    let added = Some(message_of(&member));
    let header = Some(change_members(call, MemberChange::Add(member), "MemberAdd").await?);
    let members = messages_of(&call.services.state());
    Ok(whole(&MemberAddResponse { header, member: added, members }))
}

/// Answers a MemberRemove.
pub(super) async fn member_remove(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    let MemberRemoveRequest { id } = decode(message)?;
    call.root()?;
    let header = Some(change_members(call, MemberChange::Remove(id), "MemberRemove").await?);
    Ok(whole(&MemberRemoveResponse { header, members: messages_of(&call.services.state()) }))
}

/// Answers a MemberUpdate.
pub(super) async fn member_update(call: &mut Call, message: Bytes) -> Result<Answer, Status> {
    check_urls(&message, 2)?;
    let request: MemberUpdateRequest = decode(message)?;
    let peer_urls = checked_peer_urls(call, &request.peer_urls)?;
    let member = Member { id: request.id, peer_urls, ..Member::default() };
    call.root()?;
    let header = Some(change_members(call, MemberChange::Update(member), "MemberUpdate").await?);
    Ok(whole(&MemberUpdateResponse { header, members: messages_of(&call.services.state()) }))
}

/// Answers a MemberPromote; `token` is the token of the caller. Only the leader knows how far a learner lags,
/// so other members forward the request to the leader.
pub(super) async fn member_promote(
    call: &mut Call,
    token: Option<HeaderValue>,
    message: Bytes,
) -> Result<Answer, Status> {
    let MemberPromoteRequest { id } = decode(message)?;
    call.root()?;
    let leader = call.services.state().leader;
    let (header, members) = if leader == call.shared().member.identity.member_id || leader == 0 {
        let header = change_members(call, MemberChange::Promote(id), "MemberPromote").await?;
        (header, messages_of(&call.services.state()))
    } else {
        let members = forwarding::promote(call.shared(), id, token).await?;
        let header = call.services.header(Revision(0), &call.services.state());
        (header, members.iter().map(message_of).collect())
    };
    Ok(whole(&MemberPromoteResponse { header: Some(header), members }))
}

/// Returns the token that a call presents, marked as sensitive.
pub(super) fn token_of(head: &Head) -> Option<HeaderValue> {
    let mut token = presented(head).and_then(|token| HeaderValue::from_bytes(token).ok())?;
    token.set_sensitive(true);
    Some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_for_clusters_whose_members_are_reached_so() {
        let read = |url: &str, has_unix| peer_urls(&[url.to_owned()], has_unix);
        let by =
            |url: &str| is_reached_by_unix(&Member { peer_urls: vec![url.to_owned()], ..Member::default() });
        assert!(by("unix:///run/m1.sock") && !by("http://m1:2380"));
        assert_eq!(read("unix:///run/m1.sock", true), Ok(vec!["unix:///run/m1.sock".to_owned()]));
        assert_eq!(read("unix:///run/m1.sock", false), Err(error::MEMBER_BAD_URLS));
        for has_unix in [false, true] {
            assert_eq!(read("unixs:///run/m1.sock", has_unix), Err(error::MEMBER_BAD_URLS));
            assert_eq!(read("https://m1:2380", has_unix), Ok(vec!["https://m1:2380".to_owned()]));
        }
    }
}
