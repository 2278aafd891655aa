//! The small things in a database.

use std::collections::BTreeSet;
use std::fmt;

use numbers::Revision;
use serde_json::Value;

/// A minor release of etcd, by what it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the releases")]
pub enum Release {
    V3_4,
    V3_5,
    V3_6,
    V3_7,
}

/// The content of the bucket `meta`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The last raft entry whose effects are in the state.
    pub consistent_index: u64,
    /// The term of that entry; etcd writes it from 3.5 on.
    pub term: Option<u64>,
    /// Voters and learners; etcd writes them from 3.5 on.
    pub conf_state: Option<ConfState>,
    /// Version for which the data is written, such as `3.7.0`; etcd writes it from 3.6 on.
    pub storage_version: Option<String>,
    /// Compacted there as far as anybody may see.
    pub scheduled_compact_revision: Option<Revision>,
    /// Compacted there in the database too.
    pub finished_compact_revision: Option<Revision>,
}

/// The voters and learners of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Ids with a vote.
    pub voters: Vec<u64>,
    /// Ids without one.
    pub learners: Vec<u64>,
}

/// A member, as the bucket `members` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Id of the member.
    pub id: u64,
    /// URLs at which the other members reach it.
    pub peer_urls: Vec<String>,
    /// True if it has no vote.
    pub is_learner: bool,
    /// Name of the member; empty until it has started.
    pub name: String,
    /// URLs at which clients reach it.
    pub client_urls: Vec<String>,
}

/// The members of the cluster and what they agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// In the order of their ids in hex.
    pub members: Vec<Member>,
    /// Ids that may never come back.
    pub removed: BTreeSet<u64>,
    /// Such as `3.7.0`; empty until it is decided.
    pub cluster_version: String,
    /// The version a downgrade goes to, while one is under way.
    pub downgrade_target: Option<String>,
}

/// Users and roles.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auth {
    /// True if clients have to say who they are.
    pub enabled: bool,
    /// Number of changes of users, roles or permissions; 0 if it was never written.
    pub revision: u64,
    /// In the order of names; passwords are hashed.
    pub users: Vec<api::authpb::User>,
    /// In the order of names.
    pub roles: Vec<api::authpb::Role>,
}

impl Meta {
    /// The revision below which nothing may be read; `None` before any compaction. etcd goes on at its start with a
    /// compaction that did not finish.
    pub fn compact_revision(&self) -> Option<Revision> {
        self.scheduled_compact_revision.max(self.finished_compact_revision)
    }
}

/// An error in a key or value of etcd's database: etcd does not write it so.
#[derive(Debug)]
pub(crate) enum ContentError {
    /// The value is no JSON, or JSON of another form.
    Json(serde_json::Error),
    /// This field of its JSON, and what is wrong with it.
    Field(&'static str, &'static str),
    /// The value has another form.
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
    /// The JSON of the bucket `meta`, byte by byte as etcd has it.
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
                ids.ok_or(ContentError::Field(name, "holds something that is no id"))
            }
            Some(_) => Err(ContentError::Field(name, "is no list")),
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
    /// The JSON of the bucket `members`, byte by byte as etcd has it.
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
                urls.ok_or(ContentError::Field(name, "holds something that is no text"))
            }
            Some(_) => Err(ContentError::Field(name, "is no list")),
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

/// A text as Go writes it: fit for HTML too.
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

/// Go's empty list is null.
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
    /// The release that a cluster version such as `3.6.0` stands for; `None` if it is none of these.
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
