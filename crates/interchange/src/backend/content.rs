//! Types for the contents of the small buckets in a database (all except keys and leases), and their JSON.

use std::collections::BTreeSet;
use std::fmt;

use numbers::Revision;
use serde_json::Value;

/// A minor release of etcd. It determines which fields a database written for this release has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the releases")]
pub enum Release {
    V3_4,
    V3_5,
    V3_6,
    V3_7,
}

/// Contents of the bucket `meta`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Index of the last raft entry that is applied in the state.
    pub consistent_index: u64,
    /// Raft term of the entry at `consistent_index`; `None` in databases from before 3.5.
    pub term: Option<u64>,
    /// Voters and learners of the cluster; `None` in databases from before 3.5.
    pub conf_state: Option<ConfState>,
    /// Version of the data's format, such as `3.7.0`; `None` in databases from before 3.6.
    pub storage_version: Option<String>,
    /// Revision of the last compaction that was started, below which clients can read nothing; `None` before
    /// the first compaction.
    pub scheduled_compact_revision: Option<Revision>,
    /// Revision of the last compaction that was finished in the database; `None` if none was.
    pub finished_compact_revision: Option<Revision>,
}

/// The voters and learners of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Ids of the members that have a vote.
    pub voters: Vec<u64>,
    /// Ids of the members that have no vote.
    pub learners: Vec<u64>,
}

/// A member, as stored in the bucket `members`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Id of the member.
    pub id: u64,
    /// URLs at which the other members reach this member.
    pub peer_urls: Vec<String>,
    /// True if the member has no vote.
    pub is_learner: bool,
    /// Name of the member; empty until it has started.
    pub name: String,
    /// URLs at which clients reach this member.
    pub client_urls: Vec<String>,
}

/// The members of the cluster, with the cluster's version and downgrade state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Members, sorted by their ids in hex.
    pub members: Vec<Member>,
    /// Ids of removed members, which can never be used again.
    pub removed: BTreeSet<u64>,
    /// Cluster version, such as `3.7.0`; empty until it is decided.
    pub cluster_version: String,
    /// Target version of the downgrade that is in progress; `None` without a downgrade.
    pub downgrade_target: Option<String>,
}

/// Users and roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auth {
    /// True if clients have to authenticate.
    pub enabled: bool,
    /// Counter of changes of users, roles or permissions; 0 if it was never written.
    pub revision: u64,
    /// Users, sorted by name; their passwords are hashed.
    pub users: Vec<api::authpb::User>,
    /// Roles, sorted by name.
    pub roles: Vec<api::authpb::Role>,
}

impl Meta {
    /// Returns the compact revision, below which clients can read nothing; `None` before the first
    /// compaction. An unfinished compaction counts, because etcd finishes it at its next start.
    pub fn compact_revision(&self) -> Option<Revision> {
        self.scheduled_compact_revision.max(self.finished_compact_revision)
    }
}

/// Error returned for a key or value of etcd's database that has a form etcd never writes.
#[derive(Debug)]
pub(crate) enum ContentError {
    /// The value is not JSON, or JSON of an unexpected form.
    Json(serde_json::Error),
    /// Name of a field in the value's JSON, and a description of the field's error.
    Field(&'static str, &'static str),
    /// The key or value has a form that etcd never writes. Contains a description of the error.
    Form(&'static str),
}

impl From<&'static str> for ContentError {
    fn from(what: &'static str) -> ContentError {
        ContentError::Form(what)
    }
}

impl fmt::Display for ContentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContentError::Json(error) => error.fmt(f),
            ContentError::Field(name, what) => write!(f, "{name} {what}"),
            ContentError::Form(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ContentError {}

impl ConfState {
    /// Returns the JSON that etcd writes into the bucket `meta`, byte for byte.
    pub(crate) fn to_json(&self) -> String {
        let mut text = "{".to_owned();
        for (name, ids) in [("voters", &self.voters), ("learners", &self.learners)] {
            if !ids.is_empty() {
                let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
                text.push_str(&format!("\"{name}\":[{}],", ids.join(",")));
            }
        }
        text.push_str("\"auto_leave\":false}");
        text
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<ConfState, ContentError> {
        let value: Value = serde_json::from_slice(text).map_err(ContentError::Json)?;
        let ids = |name: &'static str| match value.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(ids)) => {
                let ids: Option<Vec<u64>> = ids.iter().map(Value::as_u64).collect();
                ids.ok_or(ContentError::Field(name, "contains an invalid id"))
            }
            Some(_) => Err(ContentError::Field(name, "is not a list")),
        };
        if !value.is_object() {
            return Err(ContentError::Form("a conf state has to be an object"));
        }
        if !ids("voters_outgoing")?.is_empty() || !ids("learners_next")?.is_empty() {
            let what = "the members are between two configurations, which etcd never is";
            return Err(ContentError::Form(what));
        }
        Ok(ConfState { voters: ids("voters")?, learners: ids("learners")? })
    }
}

impl From<&api::raftpb::ConfState> for ConfState {
    fn from(state: &api::raftpb::ConfState) -> ConfState {
        ConfState { voters: state.voters.clone(), learners: state.learners.clone() }
    }
}

impl From<&ConfState> for api::raftpb::ConfState {
    fn from(state: &ConfState) -> api::raftpb::ConfState {
        api::raftpb::ConfState {
            voters: state.voters.clone(),
            learners: state.learners.clone(),
            auto_leave: Some(false),
            ..Default::default()
        }
    }
}

impl Member {
    /// Returns the JSON that etcd writes into the bucket `members`, byte for byte.
    pub(crate) fn to_json(&self) -> String {
        let mut text = format!("{{\"id\":{},\"peerURLs\":{}", self.id, json_list(&self.peer_urls));
        if self.is_learner {
            text.push_str(",\"isLearner\":true");
        }
        if !self.name.is_empty() {
            text.push_str(&format!(",\"name\":{}", json_string(&self.name)));
        }
        if !self.client_urls.is_empty() {
            text.push_str(&format!(",\"clientURLs\":{}", json_list(&self.client_urls)));
        }
        text.push('}');
        text
    }

    pub(crate) fn from_json(text: &[u8]) -> Result<Member, ContentError> {
        let value: Value = serde_json::from_slice(text).map_err(ContentError::Json)?;
        let urls = |name: &'static str| match value.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                let urls: Option<Vec<String>> =
                    list.iter().map(|url| url.as_str().map(str::to_owned)).collect();
                urls.ok_or(ContentError::Field(name, "contains something that is not text"))
            }
            Some(_) => Err(ContentError::Field(name, "is not a list")),
        };
        Ok(Member {
            id: value
                .get("id")
                .and_then(Value::as_u64)
                .ok_or(ContentError::Form("a member without an id"))?,
            peer_urls: urls("peerURLs")?,
            is_learner: value.get("isLearner").and_then(Value::as_bool).unwrap_or(false),
            name: value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            client_urls: urls("clientURLs")?,
        })
    }
}

/// Returns a JSON string with the escapes that Go writes, which include those for HTML.
fn json_string(text: &str) -> String {
    let mut json = Value::from(text).to_string();
    for (plain, escaped) in [
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u{2028}", "\\u2028"),
        ("\u{2029}", "\\u2029"),
    ] {
        json = json.replace(plain, escaped);
    }
    json
}

/// Returns a JSON list of strings; `null` for an empty list, because Go encodes a nil slice like this.
fn json_list(texts: &[String]) -> String {
    if texts.is_empty() {
        return "null".to_owned();
    }
    let texts: Vec<String> = texts.iter().map(|text| json_string(text)).collect();
    format!("[{}]", texts.join(","))
}

impl Membership {
    /// Returns the voters and learners that follow from these members.
    pub fn conf_state(&self) -> ConfState {
        let ids = |learner: bool| {
            let ids: BTreeSet<u64> =
                self.members.iter().filter(|m| m.is_learner == learner).map(|m| m.id).collect();
            ids.into_iter().collect()
        };
        ConfState { voters: ids(false), learners: ids(true) }
    }
}

impl Release {
    /// Returns the release for a cluster version such as `3.6.0`; `None` if the version is not supported.
    pub fn of_cluster_version(version: &str) -> Option<Release> {
        let (major, rest) = version.split_once('.')?;
        let minor = rest.split('.').next()?;
        match (major, minor) {
            ("3", "4") => Some(Release::V3_4),
            ("3", "5") => Some(Release::V3_5),
            ("3", "6") => Some(Release::V3_6),
            ("3", "7") => Some(Release::V3_7),
            _ => None,
        }
    }

    /// Returns the storage version that this release writes, if it writes one.
    pub fn storage_version(self) -> Option<&'static str> {
        match self {
            Release::V3_4 | Release::V3_5 => None,
            Release::V3_6 => Some("3.6.0"),
            Release::V3_7 => Some("3.7.0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_what_etcd_writes() {
        let full = Member {
            id: 10_276_657_743_932_975_437,
            peer_urls: vec!["http://a:2380".to_owned(), "http://b:2380?x=1&y=2".to_owned()],
            is_learner: true,
            name: "<\"ä\">".to_owned(),
            client_urls: vec!["unix://c".to_owned()],
        };
        let text = r#"{"id":10276657743932975437,"peerURLs":["http://a:2380","http://b:2380?x=1\u0026y=2"],"isLearner":true,"name":"\u003c\"ä\"\u003e","clientURLs":["unix://c"]}"#;
        assert_eq!(full.to_json(), text);
        assert_eq!(Member::from_json(text.as_bytes()).ok(), Some(full));
        let bare = Member { id: 1, ..Member::default() };
        assert_eq!(bare.to_json(), r#"{"id":1,"peerURLs":null}"#);
        assert_eq!(Member::from_json(bare.to_json().as_bytes()).ok(), Some(bare));
        assert!(Member::from_json(b"[]").is_err() && Member::from_json(br#"{"id":-1}"#).is_err());
        let state = ConfState { voters: vec![1, u64::MAX], learners: vec![7] };
        assert_eq!(
            state.to_json(),
            r#"{"voters":[1,18446744073709551615],"learners":[7],"auto_leave":false}"#
        );
        assert_eq!(ConfState::from_json(state.to_json().as_bytes()).ok(), Some(state));
        assert!(ConfState::from_json(br#"{"voters_outgoing":[1]}"#).is_err());
    }
}
