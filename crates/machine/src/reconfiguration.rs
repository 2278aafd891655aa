//! Decodes membership changes, checks whether they are allowed, and applies them.
//!
//! The rules are checked before a change is proposed, and again when it is applied, because another change
//! that is applied in between may make it invalid. Every member then refuses it. The rules are those of
//! etcd's `membership.RaftCluster.ValidateConfigurationChange`.

use std::fmt;

use api::raftpb;
use api::{Code, Status, error};
use numbers::MemberId;
use planted::Bug;
use serde_json::{Value, json};

use crate::member::{Member, MemberError, Members};
use crate::state_hash::{Effect, StateHash};

/// Effect of a membership change on the members that raft knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoterChange {
    /// A voter was added, or a learner promoted.
    AddVoter(MemberId),
    /// A learner was added.
    AddLearner(MemberId),
    /// A member was removed.
    Remove(MemberId),
    /// The attributes of this member have changed, and the set of members has not.
    Update(MemberId),
}

/// A decoded `ConfChange`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reconfiguration {
    /// Adds a member, as a voter or as a learner. For a learner, the second field is the maximum number of
    /// learners, if the proposal contains it.
    Add(Member, Option<usize>),
    /// Makes the learner with this id a voter.
    Promote(u64),
    /// Removes the member with this id permanently.
    Remove(u64),
    /// Replaces the peer URLs of the member with this id.
    Update(u64, Vec<String>),
}

/// Reason why a `ConfChange` is not a membership change that this release can apply.
#[derive(Debug)]
pub(crate) enum ChangeError {
    /// The change is of a kind that this release does not know.
    UnknownKind,
    /// The change does not describe a member.
    Member(MemberError),
    /// The change names one member, and its context describes another.
    OtherMember {
        /// Id of the member that the change names.
        about: u64,
        /// Id of the member that the context describes.
        described: u64,
    },
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeError::UnknownKind => {
                f.write_str("it changes the membership in a way this version does not know")
            }
            ChangeError::Member(error) => error.fmt(f),
            ChangeError::OtherMember { about, described } => {
                write!(f, "it is about member {about:x} and describes member {described:x}")
            }
        }
    }
}

impl std::error::Error for ChangeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ChangeError::Member(error) => error.source(),
            ChangeError::UnknownKind | ChangeError::OtherMember { .. } => None,
        }
    }
}

impl Reconfiguration {
    /// Decodes a membership change.
    pub fn of(change: &raftpb::ConfChange) -> Result<Reconfiguration, ChangeError> {
        let node = change.node_id.unwrap_or(0);
        let kind = raftpb::ConfChangeType::try_from(change.r#type.unwrap_or(0))
            .map_err(|_| ChangeError::UnknownKind)?;
        let context = change.context.as_deref().unwrap_or_default();
        if kind == raftpb::ConfChangeType::ConfChangeRemoveNode {
            return Ok(Reconfiguration::Remove(node));
        }
        let member = Member::from_json(context).map_err(ChangeError::Member)?;
        if member.id != node {
            return Err(ChangeError::OtherMember { about: node, described: member.id });
        }
        Ok(match kind {
            raftpb::ConfChangeType::ConfChangeUpdateNode => Reconfiguration::Update(node, member.peer_urls),
            raftpb::ConfChangeType::ConfChangeAddNode if is_promotion(context) => {
                Reconfiguration::Promote(node)
            }
            // Takes `is_learner` from the type of the change and not from its context, because raft also
            // decides by the type whether the member has a vote.
            _ => {
                let is_learner = kind == raftpb::ConfChangeType::ConfChangeAddLearnerNode;
                let learners_max = if is_learner { learners_max(context) } else { None };
                Reconfiguration::Add(Member { is_learner, ..member }, learners_max)
            }
        })
    }

    /// Checks that the current members allow the change. `learners_max` is used if the change does not
    /// contain its own limit of learners.
    ///
    /// # Errors
    ///
    /// Returns etcd's error if the change is not allowed.
    pub fn check(&self, members: &Members, learners_max: usize) -> Result<(), Status> {
        let id = self.id();
        // Raft uses the id 0 for "no member", so no member can have it.
        if id == 0 || members.removed.contains(&id) {
            return Err(error::MEMBER_NOT_FOUND);
        }
        let known = members.by_id.get(&id);
        let by_member = planted::is(Bug::LearnersByMember);
        let is_used = |url: &String| {
            members.by_id.values().any(|other| other.id != id && other.peer_urls.contains(url))
        };
        match self {
            Reconfiguration::Add(..) if known.is_some() => Err(error::MEMBER_EXIST),
            Reconfiguration::Add(member, _) if member.peer_urls.iter().any(is_used) => {
                Err(error::PEER_URL_EXIST)
            }
            Reconfiguration::Add(member, told)
                if member.is_learner
                    && members.learners().len() >= told.filter(|_| !by_member).unwrap_or(learners_max) =>
            {
                Err(error::TOO_MANY_LEARNERS)
            }
            Reconfiguration::Add(member, _) if member.is_witness => check_witness(member, members),
            Reconfiguration::Add(..) => Ok(()),
            _ if known.is_none() => Err(error::MEMBER_NOT_FOUND),
            Reconfiguration::Promote(_) if known.is_some_and(|member| !member.is_learner) => {
                Err(error::MEMBER_NOT_LEARNER)
            }
            Reconfiguration::Update(_, urls) if urls.iter().any(is_used) => Err(error::PEER_URL_EXIST),
            // Raft needs at least one voter, so the last voter cannot be removed, whatever the options allow. A
            // witness cannot lead, so it does not count.
            Reconfiguration::Remove(id) if members.data_voters() == [*id] => {
                Err(error::MEMBER_NOT_ENOUGH_STARTED)
            }
            Reconfiguration::Promote(_) | Reconfiguration::Remove(_) | Reconfiguration::Update(..) => Ok(()),
        }
    }

    /// Applies a change that [`Self::check`] has accepted.
    pub fn apply(self, members: &mut Members, hash: &mut StateHash) -> VoterChange {
        let effect = match &self {
            Reconfiguration::Add(..) => Effect::MemberAdded,
            Reconfiguration::Promote(_) => Effect::MemberPromoted,
            Reconfiguration::Remove(_) => Effect::MemberRemoved,
            Reconfiguration::Update(..) => Effect::MemberUpdated,
        };
        hash.mix(effect, &[self.id()]);
        match self {
            Reconfiguration::Add(member, _) => {
                let (id, is_learner) = (member.id, member.is_learner);
                hash.mix_texts([&hashed_text(&member)]);
                members.by_id.insert(id, member);
                if is_learner {
                    VoterChange::AddLearner(MemberId(id))
                } else {
                    VoterChange::AddVoter(MemberId(id))
                }
            }
            Reconfiguration::Promote(id) => {
                if let Some(member) = members.by_id.get_mut(&id) {
                    member.is_learner = false;
                }
                VoterChange::AddVoter(MemberId(id))
            }
            Reconfiguration::Remove(id) => {
                members.by_id.remove(&id);
                members.removed.insert(id);
                VoterChange::Remove(MemberId(id))
            }
            Reconfiguration::Update(id, urls) => {
                hash.mix_texts(&urls);
                if let Some(member) = members.by_id.get_mut(&id) {
                    member.peer_urls = urls;
                }
                VoterChange::Update(MemberId(id))
            }
        }
    }

    /// Returns the id of the member that the change concerns.
    pub fn id(&self) -> u64 {
        match self {
            Reconfiguration::Add(member, _) => member.id,
            Reconfiguration::Promote(id) | Reconfiguration::Remove(id) | Reconfiguration::Update(id, _) => {
                *id
            }
        }
    }
}

fn is_promotion(context: &[u8]) -> bool {
    serde_json::from_slice(context)
        .is_ok_and(|value: Value| value.get("isPromote").and_then(Value::as_bool).unwrap_or(false))
}

/// Checks that a witness can be added. Without two members with data it would be of no use: the only one's loss
/// would be the loss of everything. A second witness would make it possible that a majority has no data.
fn check_witness(member: &Member, members: &Members) -> Result<(), Status> {
    if member.is_learner {
        return Err(error::WITNESS_IS_NO_LEARNER);
    }
    if members.witness().is_some() {
        return Err(error::TOO_MANY_WITNESSES);
    }
    if members.data_voters().len() < 2 {
        return Err(error::TOO_FEW_MEMBERS_FOR_WITNESS);
    }
    Ok(())
}

/// JSON field in the context of a change that adds a learner: the `--max-learners` option of the member that
/// proposed the change. Members that run etcd ignore the field.
const LEARNERS_MAX: &str = "mainstayMaxLearners";

fn learners_max(context: &[u8]) -> Option<usize> {
    let value: Value = serde_json::from_slice(context).ok()?;
    usize::try_from(value.get(LEARNERS_MAX)?.as_u64()?).ok()
}

/// Returns the context of a change that adds a learner: the member as etcd writes it, and the maximum number
/// of learners, which Mainstay members then use instead of their own option.
pub fn learner_json(member: &Member, learners_max: u64) -> String {
    let mut text = member.to_json();
    text.pop();
    text.push_str(&format!(r#","{LEARNERS_MAX}":{learners_max}}}"#));
    text
}

/// Returns the text that stands for an added member in the state hash. Unlike [`Member::to_json`] its fields are
/// sorted by name, and it must never change.
fn hashed_text(member: &Member) -> String {
    let mut object = json!({ "id": member.id, "peerURLs": member.peer_urls });
    if let Value::Object(fields) = &mut object {
        if member.is_learner {
            fields.insert("isLearner".to_owned(), true.into());
        }
        if !member.name.is_empty() {
            fields.insert("name".to_owned(), member.name.as_str().into());
        }
        if !member.client_urls.is_empty() {
            fields.insert("clientURLs".to_owned(), member.client_urls.clone().into());
        }
    }
    object.to_string()
}

/// Returns the context of a promotion, as etcd writes it: `{"id":N,"peerURLs":null,"isPromote":true}`.
pub fn promotion_json(id: u64) -> String {
    let mut text = json!({ "id": id, "peerURLs": null }).to_string();
    // etcd writes `isPromote` last, so the field is inserted before the closing brace.
    text.pop();
    text.push_str(r#","isPromote":true}"#);
    text
}

/// Applies a membership change to `members` only, exactly as applying its entry would. A refused change
/// changes nothing.
///
/// # Errors
///
/// Returns etcd's error for a refused change, and `Internal` for a malformed one.
pub fn reconfigure(
    members: &mut Members,
    change: &raftpb::ConfChange,
    learners_max: usize,
) -> Result<(), Status> {
    let change = read(change)?;
    change.check(members, learners_max)?;
    change.apply(members, &mut StateHash::first());
    Ok(())
}

/// Checks that a membership change is allowed now. Called before the change is proposed; applying repeats the
/// check.
///
/// # Errors
///
/// Returns etcd's error for a change that is not allowed, and `Internal` for a malformed one, which no member
/// proposes.
pub fn validate(members: &Members, change: &raftpb::ConfChange, learners_max: usize) -> Result<(), Status> {
    read(change)?.check(members, learners_max)
}

/// Returns true if this membership change would be refused only because of the number of learners, by a limit
/// that the change itself does not contain. A member whose option allows more learners would apply it.
pub(crate) fn is_refused_by_learners_max(
    members: &Members,
    change: &raftpb::ConfChange,
    learners_max: usize,
) -> bool {
    validate(members, change, learners_max) == Err(error::TOO_MANY_LEARNERS)
        && validate(members, change, usize::MAX).is_ok()
}

/// Decodes a membership change.
pub(crate) fn read(change: &raftpb::ConfChange) -> Result<Reconfiguration, Status> {
    Reconfiguration::of(change)
        .map_err(|why| Status::with(Code::Internal, format!("malformed membership change: {why}")))
}
