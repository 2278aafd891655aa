//! Prepares the log of a member that has no data yet: its identity and its first entries. Also creates the
//! entries that `--force-new-cluster` appends to the log of an existing member.

use std::fmt;

use api::url::Url;
use api::{Status, raftpb};
use bytes::Bytes;
use consensus::{Entry, EntryKind};
use machine::{Member, Members};
use numbers::{Index, Term};
use prost::Message as _;

use crate::identity::Identity;

/// The identity and the first entries of a member without data.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// Ids of the member and its cluster.
    pub identity: Identity,
    /// First entries of the log: the same for all members of a new cluster; empty for a member that joins an
    /// existing cluster.
    pub entries: Vec<Entry>,
    /// Id and peer URLs of each member that the cluster already has.
    pub remotes: Vec<(u64, Vec<String>)>,
}

/// Reason why a member cannot become the only member of its cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum AloneError {
    /// The cluster has removed the member.
    Removed {
        /// Id of the member.
        own: u64,
    },
    /// One of the membership changes would be refused when it is applied.
    Refused {
        /// Id of the member.
        own: u64,
        /// Id of the member that the change adds, promotes or removes.
        changed: u64,
        /// Error with which the change is refused.
        status: Status,
    },
}

impl fmt::Display for AloneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AloneError::Removed { own } => write!(
                f,
                "member {own:x} was removed from its cluster, and cannot form a new cluster: use \
                 --force-new-cluster on a member that was not removed"
            ),
            AloneError::Refused { own, changed, status } => write!(
                f,
                "member {own:x} cannot form a new cluster: this requires a membership change of member {changed:x}, \
                 which is refused: {status}"
            ),
        }
    }
}

impl std::error::Error for AloneError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AloneError::Removed { .. } => None,
            AloneError::Refused { status, .. } => Some(status),
        }
    }
}

/// Returns the URLs as strings.
pub fn texts(urls: &[Url]) -> Vec<String> {
    urls.iter().map(|url| url.as_str().to_owned()).collect()
}

/// Returns, for `--force-new-cluster`, the entries after entry `last` that make this member the only one of
/// its cluster. `members` are the members after all entries up to `last` are applied.
///
/// This member first becomes a voter, because the last voter of a cluster cannot be removed.
///
/// # Errors
///
/// Returns an error if one of the entries would be refused when it is applied. The member would then not be
/// the only member, or not be a voter.
pub fn alone(
    own: u64,
    members: &Members,
    own_urls: &[Url],
    term: Term,
    last: Index,
    learners_max: usize,
) -> Result<Vec<Entry>, AloneError> {
    use raftpb::ConfChangeType as Type;
    if members.removed.contains(&own) {
        return Err(AloneError::Removed { own });
    }
    let mut changes = Vec::new();
    match members.by_id.get(&own) {
        Some(member) if member.is_learner => {
            changes.push((Type::ConfChangeAddNode, own, Some(machine::promotion_json(own))));
        }
        Some(_) => {}
        None => {
            let member = Member { id: own, peer_urls: texts(own_urls), ..Member::default() };
            changes.push((Type::ConfChangeAddNode, own, Some(member.to_json())));
        }
    }
    let others = members.by_id.keys().filter(|id| **id != own);
    changes.extend(others.map(|other| (Type::ConfChangeRemoveNode, *other, None)));
    let mut after = members.clone();
    let mut entries = Vec::new();
    for ((kind, node, context), index) in changes.into_iter().zip((last.0 + 1..).map(Index)) {
        let change = raftpb::ConfChange {
            id: None,
            r#type: Some(kind as i32),
            node_id: Some(node),
            context: context.map(Bytes::from),
        };
        machine::reconfigure(&mut after, &change, learners_max).map_err(|status| AloneError::Refused {
            own,
            changed: node,
            status,
        })?;
        entries.push(Entry { term, index, kind: EntryKind::ConfChange, data: change.encode_to_vec().into() });
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(all: &[(u64, bool)]) -> Members {
        let member = |&(id, is_learner): &(u64, bool)| {
            let peer_urls = vec![format!("http://10.0.0.{id}:2380")];
            (id, Member { id, is_learner, peer_urls, ..Member::default() })
        };
        Members { by_id: all.iter().map(member).collect(), ..Members::default() }
    }

    fn applied(members: &Members, entries: &[Entry]) -> Members {
        let mut members = members.clone();
        for entry in entries {
            let change = raftpb::ConfChange::decode(entry.data.clone()).expect("is a change");
            machine::reconfigure(&mut members, &change, 1).expect("is not refused");
        }
        members
    }

    #[test]
    fn whoever_is_forced_to_be_alone_has_a_vote() {
        for own_is_learner in [false, true] {
            let before = members(&[(1, false), (2, false), (3, own_is_learner)]);
            let entries = alone(3, &before, &[], Term(4), Index(10), 1).expect("it can be");
            assert_eq!(entries.len(), if own_is_learner { 3 } else { 2 });
            assert_eq!(entries.first().map(|entry| (entry.term, entry.index)), Some((Term(4), Index(11))));
            assert_eq!(applied(&before, &entries).voters(), [3]);
        }
        // The only other member is a voter, which can be removed only after this member has become a voter.
        let before = members(&[(1, false), (2, true)]);
        let entries = alone(2, &before, &[], Term(1), Index(0), 1).expect("it can be");
        assert_eq!(applied(&before, &entries).voters(), [2]);
        let mut before = members(&[(1, false)]);
        before.removed.insert(2);
        assert_eq!(alone(2, &before, &[], Term(1), Index(0), 1), Err(AloneError::Removed { own: 2 }));
    }
}
