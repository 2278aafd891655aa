//! Stores the members of the cluster, as log entries have configured them: [`Members`]. The voters that raft
//! uses are stored separately, in the raft node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Value, json};

use crate::codec::{Input, Malformed, put_bytes, put_u64};

/// JSON field of a member that is a witness. Members that run etcd ignore the field, so none may be in a cluster
/// with a witness.
const WITNESS: &str = "mainstayWitness";

/// One configured member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Id of the member.
    pub id: u64,
    /// URLs at which the other members reach this member.
    pub peer_urls: Vec<String>,
    /// True if the member has no vote.
    pub is_learner: bool,
    /// True if the member is the cluster's witness: a voter without keys. Never together with `is_learner`.
    pub is_witness: bool,
    /// Name of the member; empty until it has started.
    pub name: String,
    /// URLs at which clients reach this member.
    pub client_urls: Vec<String>,
}

impl Member {
    /// Returns the JSON that etcd puts into the context of a membership change, byte for byte: each member of a
    /// new cluster writes the first entries of its log itself, and they must be equal.
    pub fn to_json(&self) -> String {
        let mut text = format!(r#"{{"id":{},"peerURLs":{}"#, self.id, json!(self.peer_urls));
        if self.is_learner {
            text.push_str(r#","isLearner":true"#);
        }
        if self.is_witness {
            text.push_str(&format!(r#","{WITNESS}":true"#));
        }
        if !self.name.is_empty() {
            text.push_str(&format!(r#","name":{}"#, json!(self.name)));
        }
        if !self.client_urls.is_empty() {
            text.push_str(&format!(r#","clientURLs":{}"#, json!(self.client_urls)));
        }
        text.push('}');
        // Go escapes these characters, which can only be in strings.
        for (character, escape) in [
            ('<', r"\u003c"),
            ('>', r"\u003e"),
            ('&', r"\u0026"),
            ('\u{2028}', r"\u2028"),
            ('\u{2029}', r"\u2029"),
        ] {
            if text.contains(character) {
                text = text.replace(character, escape);
            }
        }
        text
    }

    /// Reads a member from the JSON in the context of a membership change. As in etcd, unknown fields are
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a JSON object, or if a field does not have the type that etcd
    /// writes.
    pub fn from_json(text: &[u8]) -> Result<Member, MemberError> {
        let value: Value = serde_json::from_slice(text).map_err(MemberError::Json)?;
        let Value::Object(fields) = value else { return Err(MemberError::NotAnObject) };
        let urls = |name: &'static str| -> Result<Vec<String>, MemberError> {
            match fields.get(name) {
                None | Some(Value::Null) => Ok(Vec::new()),
                Some(Value::Array(list)) => list
                    .iter()
                    .map(|url| url.as_str().map(str::to_owned).ok_or(MemberError::NoText(name)))
                    .collect(),
                Some(_) => Err(MemberError::NoList(name)),
            }
        };
        Ok(Member {
            id: fields.get("id").and_then(Value::as_u64).ok_or(MemberError::NoId)?,
            peer_urls: urls("peerURLs")?,
            is_learner: fields.get("isLearner").and_then(Value::as_bool).unwrap_or(false),
            is_witness: fields.get(WITNESS).and_then(Value::as_bool).unwrap_or(false),
            name: fields.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            client_urls: urls("clientURLs")?,
        })
    }
}

/// Reason why a text is not the JSON of a member.
#[derive(Debug)]
pub enum MemberError {
    /// The text is not JSON.
    Json(serde_json::Error),
    /// The text is JSON, but not an object.
    NotAnObject,
    /// The object has no id.
    NoId,
    /// The field with this name is not a list.
    NoList(&'static str),
    /// The list in the field with this name contains values that are not strings.
    NoText(&'static str),
}

impl fmt::Display for MemberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberError::Json(error) => error.fmt(f),
            MemberError::NotAnObject => f.write_str("a member has to be an object"),
            MemberError::NoId => f.write_str("a member without an id"),
            MemberError::NoList(name) => write!(f, "{name} is no list"),
            MemberError::NoText(name) => write!(f, "{name} holds no text"),
        }
    }
}

impl std::error::Error for MemberError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MemberError::Json(error) => error.source(),
            _ => None,
        }
    }
}

/// All members, the ids of removed members, and the version of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Members by id.
    pub by_id: BTreeMap<u64, Member>,
    /// Ids of removed members, which must never be reused.
    pub removed: BTreeSet<u64>,
    /// Cluster version, such as `3.7.0`; empty until it is set.
    pub cluster_version: String,
    /// Target version of a downgrade, while a downgrade is running.
    pub downgrade_target: Option<String>,
}

impl Members {
    /// Returns the version of etcd that defines the format of the stored data: the cluster version, once the
    /// members have agreed on one.
    pub fn storage_version(&self) -> Option<&str> {
        let decided = self.cluster_version.as_str();
        (!decided.is_empty() && decided != api::MIN_CLUSTER_VERSION).then_some(decided)
    }

    /// Returns true if the cluster version is set and is before 3.5. Some members may then run etcd 3.4 or
    /// older. Such a member exits when it applies a request that 3.5 has introduced, and would store an empty
    /// password for a user with a hashed password.
    pub fn are_before_3_5(&self) -> bool {
        let mut numbers = self.cluster_version.split('.').map(str::parse::<u32>);
        let decided = self.cluster_version != api::MIN_CLUSTER_VERSION;
        matches!((numbers.next(), numbers.next()), (Some(Ok(major)), Some(Ok(minor))) if decided && (major, minor) < (3, 5))
    }

    /// Returns the ids of the voters.
    pub fn voters(&self) -> Vec<u64> {
        self.by_id.values().filter(|m| !m.is_learner).map(|m| m.id).collect()
    }

    /// Returns the id of the witness, a voter without keys; `None` if the cluster has none.
    pub fn witness(&self) -> Option<u64> {
        self.by_id.values().find(|m| m.is_witness).map(|m| m.id)
    }

    /// Returns true if the member with this id is the witness.
    pub fn is_witness(&self, id: u64) -> bool {
        self.by_id.get(&id).is_some_and(|m| m.is_witness)
    }

    /// Returns the ids of the voters that have keys: all but the witness.
    pub fn data_voters(&self) -> Vec<u64> {
        self.by_id.values().filter(|m| !m.is_learner && !m.is_witness).map(|m| m.id).collect()
    }

    /// Returns the number of members that have keys: voters and learners, but not the witness.
    pub fn with_data(&self) -> usize {
        self.by_id.values().filter(|m| !m.is_witness).count()
    }

    /// Returns the ids of the learners.
    pub fn learners(&self) -> Vec<u64> {
        self.by_id.values().filter(|m| m.is_learner).map(|m| m.id).collect()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.by_id.len() as u64);
        for member in self.by_id.values() {
            put_bytes(out, member.to_json().as_bytes());
        }
        put_u64(out, self.removed.len() as u64);
        for id in &self.removed {
            put_u64(out, *id);
        }
        put_bytes(out, self.cluster_version.as_bytes());
        put_u64(out, u64::from(self.downgrade_target.is_some()));
        put_bytes(out, self.downgrade_target.as_deref().unwrap_or_default().as_bytes());
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Members, Malformed> {
        let mut members = Members::default();
        for _ in 0..input.u64()? {
            let member =
                Member::from_json(input.bytes()?).map_err(|_| Malformed("a member that is not one"))?;
            members.by_id.insert(member.id, member);
        }
        for _ in 0..input.u64()? {
            members.removed.insert(input.u64()?);
        }
        members.cluster_version = input.text()?;
        let downgrading = input.bool()?;
        let target = input.text()?;
        members.downgrade_target = downgrading.then_some(target);
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_the_json_that_etcd_writes() {
        let member = Member {
            id: 10_276_657_743_932_975_437,
            peer_urls: vec!["http://localhost:2380".to_owned()],
            name: "default".to_owned(),
            ..Member::default()
        };
        let text = r#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#;
        assert_eq!(member.to_json(), text);
        assert_eq!(Member::from_json(text.as_bytes()).ok(), Some(member));
        let learner = Member {
            id: 1,
            peer_urls: vec!["http://h:1/<a>&b".to_owned(), "http://h:2".to_owned()],
            is_learner: true,
            name: "a\u{2028}\"b\"".to_owned(),
            client_urls: vec!["http://h:3".to_owned()],
            ..Member::default()
        };
        let text = r#"{"id":1,"peerURLs":["http://h:1/\u003ca\u003e\u0026b","http://h:2"],"isLearner":true,"name":"a\u2028\"b\"","clientURLs":["http://h:3"]}"#;
        assert_eq!(learner.to_json(), text);
        assert_eq!(Member::from_json(text.as_bytes()).ok(), Some(learner));
        let promoted = Member::from_json(br#"{"id":1,"peerURLs":null,"isPromote":true}"#);
        assert_eq!(promoted.ok().map(|member| member.id), Some(1));
        let witness = Member { id: 5, is_witness: true, ..Member::default() };
        assert_eq!(witness.to_json(), r#"{"id":5,"peerURLs":[],"mainstayWitness":true}"#);
        assert_eq!(Member::from_json(witness.to_json().as_bytes()).ok(), Some(witness));
        assert!(Member::from_json(b"[]").is_err());
        assert!(Member::from_json(b"{}").is_err());
    }

    #[test]
    fn a_cluster_tells_what_its_members_know() {
        let old = |version: &str| {
            Members { cluster_version: version.to_owned(), ..Members::default() }.are_before_3_5()
        };
        assert!(old("3.4.0") && old("3.4") && old("2.3.8") && old("3.1.0"));
        assert!(!["", "3.0.0", "3.5.0", "3.7.1", "4.0.0", "new"].into_iter().any(old));
    }

    #[test]
    fn members_come_back() {
        let mut members = Members { cluster_version: "3.7.0".to_owned(), ..Members::default() };
        members.by_id.insert(3, Member { id: 3, is_learner: true, ..Member::default() });
        members.removed.insert(9);
        members.downgrade_target = Some("3.6.0".to_owned());
        let mut out = Vec::new();
        members.encode(&mut out);
        assert_eq!(Members::decode(&mut Input(&out)), Ok(members));
        for len in 0..out.len() {
            assert!(Members::decode(&mut Input(&out[..len])).is_err(), "{len}");
        }
    }
}
