//! Calls of the Cluster service: listing and changing the members.

use std::rc::Rc;

use api::Status;
use api::elements;
use api::error;
use api::etcdserverpb::{
    Member as MemberMessage, MemberAddRequest, MemberAddResponse, MemberListRequest, MemberListResponse,
    MemberPromoteRequest, MemberPromoteResponse, MemberRemoveRequest, MemberRemoveResponse,
    MemberUpdateRequest, MemberUpdateResponse, ResponseHeader,
};
use bytes::Bytes;
use front::{Answer, Head, Unary};
use http::HeaderValue;
use machine::Member;
use numbers::Revision;

use super::principal::presented;
use super::{Services, decode, whole};
use crate::forwarding;
use config::{Url, identity};
use replica::core::{ClientRequest, MemberChange, ReplyBody};
use replica::shared::Published;

fn message_of(member: &Member) -> MemberMessage {
    MemberMessage {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        client_urls: member.client_urls.clone(),
        is_learner: member.is_learner,
    }
}

fn messages_of(state: &Published) -> Vec<MemberMessage> {
    state.members.by_id.values().map(message_of).collect()
}

/// Refuses a request that names very many URLs in this field, before they are made (COMPAT-421).
fn check_urls(message: &[u8], field: u32) -> Result<(), Status> {
    if elements::has_too_many_urls(message, field) { Err(error::MEMBER_BAD_URLS) } else { Ok(()) }
}

/// The URLs as etcd keeps them: checked and sorted.
///
/// `unixs` is refused, since no member can be reached there, and one that has a vote and never comes takes the quorum with it.
/// `unix` is for clusters of which this member is reached so, too (`has_unix`): elsewhere whoever may add a member could make
/// all members connect to any socket of their machines.
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

impl Services {
    /// The URLs of a request that adds or updates a member.
    fn peer_urls(&self, texts: &[String]) -> Result<Vec<String>, Status> {
        let state = self.state();
        let own = state.members.by_id.get(&self.shared.identity.member_id);
        peer_urls(texts, own.is_some_and(is_reached_by_unix))
    }

    pub(super) fn member_list(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let request: MemberListRequest = decode(message)?;
        let principal = self.some_principal()?;
        self.read(!request.linearizable, move |services| {
            // Again, since this member may have heard only now that authentication is enabled.
            services.some_user(&principal)?;
            let state = services.state();
            let header = Some(services.header(Revision(0), &state));
            Ok(Unary::Done(Ok(whole(&MemberListResponse { header, members: messages_of(&state) }))))
        })
    }

    /// Proposes a membership change, and answers with the members once it is applied here.
    fn change_members(
        self: &Rc<Self>,
        change: MemberChange,
        what: &'static str,
        answer: impl FnOnce(ResponseHeader, &Published) -> Result<Answer, Status> + 'static,
    ) -> Result<Unary, Status> {
        self.as_root(move |services, _| services.propose_change(change, what, true, answer))
    }

    /// Proposes it, and once more if it was refused by members that others may have changed already (`is_first`): a member judges
    /// a change by what it has applied, and its client may have heard of more.
    fn propose_change(
        self: &Rc<Self>,
        change: MemberChange,
        what: &'static str,
        is_first: bool,
        answer: impl FnOnce(ResponseHeader, &Published) -> Result<Answer, Status> + 'static,
    ) -> Result<Unary, Status> {
        let again = is_first.then(|| (Rc::clone(self), self.at_hand(), change.clone()));
        self.ask_then(
            |request_id| ClientRequest::ChangeMembers(request_id, change, is_first),
            what,
            move |services, body, header| match body {
                ReplyBody::MembersChanged => {
                    let header = ResponseHeader { revision: 0, ..header };
                    Ok(Unary::Done(answer(header, &services.state())))
                }
                ReplyBody::Outcome(Err(status), _) => {
                    match again.filter(|_| MemberChange::is_of_members(&status)) {
                        Some((services, call, change)) => {
                            services.go_on(call);
                            // Only root's are proposed.
                            services.confirmed_in(None, move |services, _| {
                                services.propose_change(change, what, false, answer)
                            })
                        }
                        None => Err(status),
                    }
                }
                _ => Err(error::STOPPED),
            },
        )
    }

    pub(super) fn member_add(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        check_urls(&message, 1)?;
        let request: MemberAddRequest = decode(message)?;
        let peer_urls = self.peer_urls(&request.peer_urls)?;
        self.root()?;
        let now = i64::try_from(self.shared.clock.unix_seconds()).unwrap_or(i64::MAX);
        let mut id = identity::added_member_id(&peer_urls, now);
        // Added, removed and added again within a second: an id that was removed never comes back.
        let state = self.state();
        for later in 1..=i64::try_from(state.members.removed.len()).unwrap_or(i64::MAX) {
            if state.members.removed.contains(&id) {
                id = identity::added_member_id(&peer_urls, now.saturating_add(later));
            }
        }
        let member = Member { id, peer_urls, is_learner: request.is_learner, ..Member::default() };
        let added = message_of(&member);
        self.change_members(MemberChange::Add(member), "MemberAdd", |header, state| {
            let header = Some(header);
            Ok(whole(&MemberAddResponse { header, member: Some(added), members: messages_of(state) }))
        })
    }

    pub(super) fn member_remove(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        let MemberRemoveRequest { id } = decode(message)?;
        self.root()?;
        self.change_members(MemberChange::Remove(id), "MemberRemove", |header, state| {
            Ok(whole(&MemberRemoveResponse { header: Some(header), members: messages_of(state) }))
        })
    }

    pub(super) fn member_update(self: &Rc<Self>, message: Bytes) -> Result<Unary, Status> {
        check_urls(&message, 2)?;
        let request: MemberUpdateRequest = decode(message)?;
        let peer_urls = self.peer_urls(&request.peer_urls)?;
        let member = Member { id: request.id, peer_urls, ..Member::default() };
        self.root()?;
        self.change_members(MemberChange::Update(member), "MemberUpdate", |header, state| {
            Ok(whole(&MemberUpdateResponse { header: Some(header), members: messages_of(state) }))
        })
    }

    /// Only the leader knows how far a learner has come, so others hand this on to it.
    pub(super) fn member_promote(self: &Rc<Self>, head: &Head, message: Bytes) -> Result<Unary, Status> {
        let MemberPromoteRequest { id } = decode(message)?;
        self.root()?;
        let respond = |header, members| whole(&MemberPromoteResponse { header: Some(header), members });
        let state = self.state();
        if state.leader == self.shared.identity.member_id || state.leader == 0 {
            return self.change_members(MemberChange::Promote(id), "MemberPromote", move |header, state| {
                Ok(respond(header, messages_of(state)))
            });
        }
        let services = Rc::clone(self);
        let mut token = presented(head).and_then(|token| HeaderValue::from_bytes(token).ok());
        token.iter_mut().for_each(|token| token.set_sensitive(true));
        Ok(Unary::Later(Box::pin(async move {
            let members = forwarding::promote(&services.shared, id, token).await?;
            let header = services.header(Revision(0), &services.state());
            Ok(respond(header, members.iter().map(message_of).collect()))
        })))
    }
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
