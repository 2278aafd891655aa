//! One change of the membership, and whether the members there are allow it.
//!
//! The same rules hold before a change is proposed and when it is applied: between the two another change may have
//! made it impossible, and then every member refuses it alike. They are those of etcd's
//! `membership.RaftCluster.ValidateConfigurationChange`.

use std::fmt;

use api::raftpb;
use api::{Code, Status, error};
use numbers::MemberId;
use planted::Bug;
use serde_json::{Value, json};

use crate::machine::VoterChange;
use crate::member::{Member, MemberError, Members};
use crate::state_hash::{Effect, StateHash};

/// The change that a `ConfChange` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reconfiguration {
    /// A new member, with or without a vote; for a learner, how many there may be, if who proposed it says so.
    Add(Member, Option<usize>),
    /// A learner gets a vote; the id.
    Promote(u64),
    /// Remove the member with this id for good.
    Remove(u64),
    /// A member is reached elsewhere: its id and all its peer URLs.
    Update(u64, Vec<String>),
}

/// Why a `ConfChange` is no membership change that this version can apply.
#[derive(Debug)]
pub(crate) enum ChangeError {
    /// The change is of a kind that this version does not know.
    UnknownKind,
    /// The change does not describe a member.
    Member(MemberError),
    /// The change names one member and describes another.
    OtherMember {
        /// The member that it is about.
        about: u64,
        /// The member that it describes.
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
    /// Reads a membership change.
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
            // The type says it, since raft uses it.
            _ => {
                let is_learner = kind == raftpb::ConfChangeType::ConfChangeAddLearnerNode;
                let learners_max = if is_learner { learners_max(context) } else { None };
                Reconfiguration::Add(Member { is_learner, ..member }, learners_max)
            }
        })
    }

    /// Checks that the present members allow the change. `learners_max` counts for a change that does not carry its own
    /// limit of learners.
    ///
    /// # Errors
    ///
    /// etcd's answer to the request.
    pub fn check(&self, members: &Members, learners_max: usize) -> Result<(), Status> {
        let id = self.id();
        // 0 stands for nobody in raft.
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
            Reconfiguration::Add(..) => Ok(()),
            _ if known.is_none() => Err(error::MEMBER_NOT_FOUND),
            Reconfiguration::Promote(_) if known.is_some_and(|member| !member.is_learner) => {
                Err(error::MEMBER_NOT_LEARNER)
            }
            Reconfiguration::Update(_, urls) if urls.iter().any(is_used) => Err(error::PEER_URL_EXIST),
            // Raft cannot do without any voter, whatever the options allow.
            Reconfiguration::Remove(id) if members.voters() == [*id] => Err(error::MEMBER_NOT_ENOUGH_STARTED),
            Reconfiguration::Promote(_) | Reconfiguration::Remove(_) | Reconfiguration::Update(..) => Ok(()),
        }
    }

    /// Carries out what was checked.
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
                hash.mix_texts([&member.to_json()]);
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

    /// The member it is about.
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

/// Key in the context of a change that adds a learner: the maximum number of learners, by the option of the member that
/// was asked. etcd's members ignore it.
const LEARNERS_MAX: &str = "mainstayMaxLearners";

fn learners_max(context: &[u8]) -> Option<usize> {
    let value: Value = serde_json::from_slice(context).ok()?;
    usize::try_from(value.get(LEARNERS_MAX)?.as_u64()?).ok()
}

/// The context of a change that adds a learner: the member as etcd writes it, and how many learners there may be. All
/// members judge the change by that number, whatever their own options say.
pub fn learner_json(member: &Member, learners_max: u64) -> String {
    let mut text = member.to_json();
    text.pop();
    text.push_str(&format!(r#","{LEARNERS_MAX}":{learners_max}}}"#));
    text
}

/// The context of a promotion, as etcd writes it: `{"id":N,"peerURLs":null,"isPromote":true}`.
pub fn promotion_json(id: u64) -> String {
    let mut text = json!({ "id": id, "peerURLs": null }).to_string();
    // etcd writes this field last.
    text.pop();
    text.push_str(r#","isPromote":true}"#);
    text
}

/// Carries out a membership change on `members` alone, as applying its entry does; a change that applying refuses
/// changes nothing.
///
/// # Errors
///
/// etcd's answer to a change that is refused; `Internal` for bytes that are no change of members.
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

/// Checks if a membership change would be allowed now; called before it is proposed. Applying checks the same.
///
/// # Errors
///
/// etcd's answer to the request for the change; `Internal` for one that no member proposes.
pub fn validate(members: &Members, change: &raftpb::ConfChange, learners_max: usize) -> Result<(), Status> {
    read(change)?.check(members, learners_max)
}

/// Returns true if applying this membership change is refused for the number of learners alone, by a limit that the change does
/// not carry: a member whose option allows more carries it out.
pub(crate) fn is_refused_by_learners_max(
    members: &Members,
    change: &raftpb::ConfChange,
    learners_max: usize,
) -> bool {
    validate(members, change, learners_max) == Err(error::TOO_MANY_LEARNERS)
        && validate(members, change, usize::MAX).is_ok()
}

/// Reads a membership change.
pub(crate) fn read(change: &raftpb::ConfChange) -> Result<Reconfiguration, Status> {
    Reconfiguration::of(change)
        .map_err(|why| Status::with(Code::Internal, format!("malformed membership change: {why}")))
}
