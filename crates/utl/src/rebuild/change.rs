//! Decides which errors of a membership change are temporary, so that the request is repeated, and which ones
//! prove that the cluster has not changed its members.

use std::cell::Cell;

use api::etcdserverpb::{Member, MemberAddResponse};
use api::{Code, Status, error};
use replica::other_members;

use super::RebuildError;

/// Returns true if the error is temporary: the cluster did not answer in time, or has no leader that accepts
/// a change now.
pub(super) fn is_passing(status: &Status) -> bool {
    matches!(status.code, Code::Unavailable | Code::DeadlineExceeded)
}

/// Returns true if the cluster refused the change because too few of its members are started. A new member
/// counts as started once the cluster knows its name.
pub(super) fn is_short_of_started(status: &Status) -> bool {
    status.message.starts_with(&*error::MEMBER_NOT_ENOUGH_STARTED.message)
}

/// Returns true if the cluster has possibly made the change despite this error. Returns false only for errors
/// that a cluster returns before it begins a change.
pub(super) fn may_be_done(status: &Status) -> bool {
    let is_refused = |refusal: &Status| status.message == refusal.message;
    let is_of_cluster = status.message.starts_with("etcdserver: ") && !is_passing(status);
    !is_of_cluster && !is_refused(&error::UNHEALTHY) && !is_refused(&error::NO_LEADER)
}

/// Adds the ids of the voters that are not started to an error which says that too few members are started.
/// Other errors are returned unchanged.
pub(super) fn naming_unstarted(status: Status, members: &[Member]) -> Status {
    if !is_short_of_started(&status) {
        return status;
    }
    let unnamed = members.iter().filter(|member| member.name.is_empty() && !member.is_learner);
    let ids: Vec<String> = unnamed.map(|member| format!("{:x}", member.id)).collect();
    Status::with(status.code, format!("{}; start or remove: {}", status.message, ids.join(", ")))
}

/// A request to add a member, repeated until the cluster has carried it out.
pub(super) struct Adding {
    pub peer_urls: Vec<String>,
    pub is_learner: bool,
    /// True after the response to a request was lost, so that the cluster has possibly added the member.
    asked: Cell<bool>,
}

impl Adding {
    pub fn new(peer_urls: Vec<String>, is_learner: bool) -> Adding {
        Adding { peer_urls, is_learner, asked: Cell::new(false) }
    }

    /// Returns true if the request should be repeated after this error.
    pub fn goes_by(&self, status: &Status) -> bool {
        // A member at this address exists. Repeat the request: the member may be the one that an earlier
        // request, whose response was lost, has added. In that case the next attempt finds it in the list of
        // members.
        let is_there = self.asked.get() && status.message == error::PEER_URL_EXIST.message;
        is_passing(status) || is_short_of_started(status) || is_there
    }

    /// Makes one attempt to add the member. `members` is the list that a quorum has just confirmed. Returns
    /// the id of the new member, and all members.
    ///
    /// # Errors
    ///
    /// Returns the cluster's refusal, or `FailedPrecondition` if another process has added a member at this
    /// address.
    pub fn attempt(
        &self,
        members: Vec<Member>,
        add: impl FnOnce() -> Result<MemberAddResponse, Status>,
        refuse_alive: impl FnOnce(&Member) -> Result<(), RebuildError>,
    ) -> Result<(u64, Vec<Member>), Status> {
        if let Some(here) = other_members::member_at(&members, |member| &member.peer_urls, &self.peer_urls) {
            // The listed member is the one that an earlier request with a lost response has added if it has
            // no name, since it has never run, and has the requested role. Any other member at this address
            // was added by another process.
            let is_own = self.asked.get() && here.name.is_empty() && here.is_learner == self.is_learner;
            let refused = |what| Err(Status::with(Code::FailedPrecondition, what));
            if !is_own {
                return refused(format!("member {:x} was added at this address meanwhile", here.id));
            }
            return match refuse_alive(here) {
                Ok(()) => Ok((here.id, members)),
                Err(error) => refused(error.to_string()),
            };
        }
        match add() {
            Ok(added) => Ok((added.member.map_or(0, |member| member.id), added.members)),
            Err(status) => {
                if may_be_done(&status) {
                    self.asked.set(true);
                }
                Err(naming_unstarted(status, &members))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://10.0.0.9:2380";

    fn here(name: &str) -> Vec<Member> {
        let (peer_urls, name) = (vec![URL.to_owned()], name.to_owned());
        vec![Member { id: 1, ..Member::default() }, Member { id: 9, name, peer_urls, ..Member::default() }]
    }

    /// Makes one attempt per step. A step is the list of members before the attempt, and the cluster's
    /// response. Returns for each attempt the id of the new member, or the error's message and whether it
    /// will be retried.
    fn attempts(steps: Vec<(Vec<Member>, Status)>) -> Vec<Result<u64, (String, bool)>> {
        let adding = Adding::new(vec![URL.to_owned()], false);
        let attempt = |(members, answer)| {
            let made = adding.attempt(members, || Err(answer), |_| Ok(()));
            made.map(|(id, _)| id).map_err(|status| (status.message.to_string(), adding.goes_by(&status)))
        };
        steps.into_iter().map(attempt).collect()
    }

    fn meanwhile() -> Result<u64, (String, bool)> {
        Err(("member 9 was added at this address meanwhile".to_owned(), false))
    }

    #[test]
    fn a_member_is_taken_for_ones_own_only_after_an_answer_that_was_lost() {
        let lost = || Status::with(Code::DeadlineExceeded, "no answer in time".to_owned());
        let asked_after = |refusal: Status, name: &str| {
            attempts(vec![(here("")[..1].to_vec(), refusal), (here(name), lost())])
        };
        assert_eq!(asked_after(lost(), ""), [Err(("no answer in time".to_owned(), true)), Ok(9)]);
        assert_eq!(asked_after(lost(), "m")[1], meanwhile(), "it has run");
        for refusal in [error::UNHEALTHY, error::NO_LEADER, error::MEMBER_NOT_ENOUGH_STARTED] {
            let seen = asked_after(refusal.clone(), "");
            assert!(seen[0].as_ref().is_err_and(|(_, goes_by)| *goes_by), "{refusal}");
            assert_eq!(seen[1], meanwhile(), "nothing was done after {refusal}");
        }
        assert_eq!(attempts(vec![(here(""), lost())]), [meanwhile()], "it was there before");
    }

    #[test]
    fn only_what_the_cluster_itself_refuses_is_certain() {
        for code in [Code::Internal, Code::Canceled, Code::Unknown, Code::Unavailable, Code::DeadlineExceeded]
        {
            assert!(may_be_done(&Status::with(code, "the stream ended".to_owned())), "{code:?}");
        }
        assert!(may_be_done(&error::TIMEOUT) && may_be_done(&error::LEADER_CHANGED));
        for refusal in [error::PERMISSION_DENIED, error::UNHEALTHY, error::MEMBER_NOT_FOUND, error::NO_LEADER]
        {
            assert!(!may_be_done(&refusal), "{refusal}");
        }
        let named = naming_unstarted(error::MEMBER_NOT_ENOUGH_STARTED, &here(""));
        assert!(!may_be_done(&named) && named.message.ends_with("start or remove: 1, 9"), "{named}");
    }

    /// The first request is carried out after the second attempt has listed the members.
    #[test]
    fn one_that_is_added_late_is_waited_for() {
        let lost = || Status::with(Code::DeadlineExceeded, "no answer in time".to_owned());
        for late in [error::PEER_URL_EXIST, error::MEMBER_NOT_ENOUGH_STARTED] {
            let nobody = || here("")[..1].to_vec();
            let seen = attempts(vec![(nobody(), lost()), (nobody(), late.clone()), (here(""), lost())]);
            assert!(seen[1].as_ref().is_err_and(|(_, goes_by)| *goes_by), "{late}");
            assert_eq!(seen[2], Ok(9), "{late}");
        }
        let seen = attempts(vec![(here("")[..1].to_vec(), error::PEER_URL_EXIST)]);
        assert!(seen[0].as_ref().is_err_and(|(_, goes_by)| !goes_by), "another member has the address");
    }

    #[test]
    fn one_that_runs_is_not_taken_over() {
        let adding = Adding::new(vec![URL.to_owned()], false);
        adding.asked.set(true);
        let alive = |_: &Member| Err(RebuildError::Refused("it runs".to_owned()));
        let refused = adding.attempt(here(""), || Err(error::UNHEALTHY), alive).expect_err("it runs");
        assert!(refused.message.contains("it runs") && !adding.goes_by(&refused), "{refused}");
    }
}
