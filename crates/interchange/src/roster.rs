//! Determines the members of the cluster at an entry of the log, as etcd itself does.
//!
//! Releases up to 3.5 take the members from the newest image of the v2 store that a snapshot mark of the log
//! names, and from the log entries after this image. These releases also write the bucket `members` of the
//! database, but the bucket may lack members or have wrong ones (`etcdctl snapshot restore` of 3.4 leaves it
//! unchanged). Releases from 3.6 on use the bucket. In every release, raft also has a configuration, which
//! decides who has a vote: the configuration in the last snapshot, with the entries after it applied.

use std::collections::{BTreeMap, BTreeSet};

use api::etcdserverpb::InternalRaftRequest;
use api::raftpb::{ConfChange, ConfChangeType};
use prost::Message as _;
use serde_json::Value;

use crate::backend::{ConfState, Member, Membership};
use crate::command::Command;

/// Number of learners that etcd allows in a cluster by default.
const LEARNERS_MAX: usize = 1;

/// The members at an entry of the log. Later entries can be applied, with the same effect as in etcd.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster {
    members: BTreeMap<u64, Member>,
    removed: BTreeSet<u64>,
    /// Cluster version; empty if no entry has set it yet.
    cluster_version: String,
}

impl Roster {
    /// Returns the members that a bucket or an image lists.
    pub fn of(membership: &Membership) -> Roster {
        Roster {
            members: membership.members.iter().map(|member| (member.id, member.clone())).collect(),
            removed: membership.removed.clone(),
            cluster_version: membership.cluster_version.clone(),
        }
    }

    /// Returns the members of raft's configuration. A member that is listed in `known` gets its URLs and its
    /// name from there.
    pub fn of_conf_state(state: &ConfState, known: &Membership) -> Roster {
        let member = |id: u64, is_learner| {
            let known = known.members.iter().find(|member| member.id == id).cloned().unwrap_or_default();
            (id, Member { id, is_learner, ..known })
        };
        let voters = state.voters.iter().map(|id| member(*id, false));
        let members = voters.chain(state.learners.iter().map(|id| member(*id, true))).collect();
        Roster { members, ..Roster::default() }
    }

    /// Returns the voters and learners, sorted by id.
    pub fn conf_state(&self) -> ConfState {
        let ids =
            |learner: bool| self.members.values().filter(move |m| m.is_learner == learner).map(|m| m.id);
        ConfState { voters: ids(false).collect(), learners: ids(true).collect() }
    }

    /// Returns true if the id is that of a member or a removed member.
    pub fn knows(&self, id: u64) -> bool {
        self.members.contains_key(&id) || self.removed.contains(&id)
    }

    /// Returns the members. The downgrade state comes from `bucket` (the database's contents), and so does
    /// the cluster version if no entry has set it.
    pub fn into_membership(self, bucket: &Membership) -> Membership {
        let mut members: Vec<Member> = self.members.into_values().collect();
        members.sort_by_cached_key(|member| format!("{:x}", member.id));
        let cluster_version = match self.cluster_version.is_empty() {
            true => bucket.cluster_version.clone(),
            false => self.cluster_version,
        };
        Membership {
            members,
            removed: self.removed,
            cluster_version,
            downgrade_target: bucket.downgrade_target.clone(),
        }
    }

    /// Applies the command of an entry to the members. A membership change that etcd refuses while applying
    /// it has no effect.
    ///
    /// `was_taken` returns true if etcd has accepted the member with this id, as far as the database shows.
    /// It decides whether the addition of a learner above the default limit of learners has an effect,
    /// because the cluster may have been run with a higher limit.
    ///
    /// # Errors
    ///
    /// Returns an error if the change has a form that etcd does not write.
    pub fn apply(&mut self, command: Command, was_taken: impl Fn(u64) -> bool) -> Result<(), &'static str> {
        match command {
            Command::ConfChange(change) => self.change(&change, was_taken),
            Command::Request(data) => {
                let request = InternalRaftRequest::decode(data).map_err(|_| "an invalid request")?;
                if let Some(set) = request.cluster_version_set {
                    self.cluster_version = set.ver;
                }
                if let Some(set) = request.cluster_member_attr_set
                    && let Some(member) = self.members.get_mut(&set.member_id)
                {
                    let attributes = set.member_attributes.unwrap_or_default();
                    (member.name, member.client_urls) = (attributes.name, attributes.client_urls);
                }
                Ok(())
            }
            Command::Nothing | Command::OldWrite { .. } => Ok(()),
        }
    }

    fn change(&mut self, change: &ConfChange, was_taken: impl Fn(u64) -> bool) -> Result<(), &'static str> {
        let id = change.node_id();
        if self.removed.contains(&id) {
            return Ok(());
        }
        if change.r#type() == ConfChangeType::ConfChangeRemoveNode {
            if self.members.remove(&id).is_some() {
                self.removed.insert(id);
            }
            return Ok(());
        }
        let context: Value = match change.context.as_deref().unwrap_or_default() {
            [] => Value::Null,
            json => serde_json::from_slice(json).map_err(|_| "a membership change with an invalid member")?,
        };
        let wanted = member_of(id, &context);
        let urls = &wanted.peer_urls;
        let is_url_taken = self
            .members
            .values()
            .any(|other| other.id != id && other.peer_urls.iter().any(|url| urls.contains(url)));
        let learners = self.members.values().filter(|member| member.is_learner).count();
        let promotes = context.get("isPromote").and_then(Value::as_bool).unwrap_or_default();
        match (self.members.get_mut(&id), change.r#type()) {
            (Some(member), ConfChangeType::ConfChangeUpdateNode) if !is_url_taken => {
                member.peer_urls = wanted.peer_urls;
            }
            (_, ConfChangeType::ConfChangeUpdateNode) => {}
            (Some(member), _) if promotes => member.is_learner = false,
            (None, kind) if !promotes && !is_url_taken => {
                let is_learner = kind == ConfChangeType::ConfChangeAddLearnerNode;
                if !is_learner || learners < LEARNERS_MAX || was_taken(id) {
                    self.members.insert(id, Member { is_learner, ..wanted });
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Decodes a member in the form used by changes and images.
fn member_of(id: u64, attributes: &Value) -> Member {
    let texts = |name: &str| {
        let texts = attributes.get(name).and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    Member {
        id,
        peer_urls: texts("peerURLs"),
        is_learner: attributes.get("isLearner").and_then(Value::as_bool).unwrap_or_default(),
        name: attributes.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
        client_urls: texts("clientURLs"),
    }
}

/// Returns a list of the members for error messages: ids in hex, with learners marked.
pub(crate) fn named(state: &ConfState) -> String {
    let voters = state.voters.iter().map(|id| format!("{id:x}"));
    let learners = state.learners.iter().map(|id| format!("{id:x} (learner)"));
    let names: Vec<String> = voters.chain(learners).collect();
    if names.is_empty() { "nobody".to_owned() } else { names.join(", ") }
}

/// Returns a copy with the ids of voters and of learners sorted.
pub(crate) fn sorted(state: &ConfState) -> ConfState {
    let ids = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>().into_iter().collect();
    ConfState { voters: ids(&state.voters), learners: ids(&state.learners) }
}
