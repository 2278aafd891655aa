//! Translates entries of etcd's log into commands of the current API.

use api::etcdserverpb::{InternalRaftRequest, RequestHeader};
use api::membershippb::{Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest};
use api::raftpb::{ConfChange, Entry, EntryType};
use bytes::Bytes;
use prost::Message as _;

use crate::wire::{Field, Fields};

/// The command that an entry of the raft log contains.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// An entry without a current effect: the empty entry of a new leader, or a request that only advances
    /// the clock of the API version 2 store or reads from this store.
    Nothing,
    /// A request, encoded as `InternalRaftRequest`.
    Request(Bytes),
    /// A membership change.
    ConfChange(ConfChange),
    /// A write to the store of API version 2, which exists only in etcd 3.4 and 3.5.
    OldWrite {
        /// HTTP method of the write, such as `PUT`.
        method: String,
        /// Path of the key that is written.
        path: String,
    },
}

/// Error returned for an entry that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Raft index of the entry.
    pub index: u64,
    /// Description of the error.
    pub what: &'static str,
}

/// A request to the store of API version 2. etcd 3.4 and 3.5 also use such requests to publish a member's
/// name and the cluster version.
#[derive(Clone, Debug, Default)]
pub(crate) struct OldRequest {
    pub id: u64,
    pub method: String,
    pub path: String,
    pub value: String,
    /// True if the path is a directory.
    pub dir: bool,
    /// Value that the key must currently have; empty for any.
    pub prev_value: String,
    /// Store index that the key's last change must have; 0 for any.
    pub prev_index: u64,
    /// `Some(true)` if the key must exist, `Some(false)` if it must not exist, `None` if either is allowed.
    pub prev_exist: Option<bool>,
    /// Time at which the key expires, in nanoseconds since 1970; 0 for never.
    pub expiration: i64,
    /// True if a directory is to be deleted with its contents.
    pub recursive: bool,
    /// New time of the store's clock, in nanoseconds since 1970, for a request that moves the clock.
    pub time: i64,
    /// True if only the expiry time changes and the value stays.
    pub refresh: bool,
}

impl Command {
    /// Decodes the command of an entry. A request to the API version 2 store that publishes a member's name
    /// or the cluster version is translated to the request that newer releases use for this.
    ///
    /// # Errors
    ///
    /// Returns an error if etcd never writes an entry of this form.
    pub fn of(entry: &Entry) -> Result<Command, Malformed> {
        let wrong = |what| Malformed { index: entry.index(), what };
        let data = entry.data.clone().unwrap_or_default();
        match entry.r#type() {
            EntryType::EntryConfChange => {
                let change = ConfChange::decode(data).map_err(|_| wrong("an invalid membership change"))?;
                return Ok(Command::ConfChange(change));
            }
            EntryType::EntryConfChangeV2 => {
                return Err(wrong("a membership change of a kind that etcd does not make"));
            }
            EntryType::EntryNormal => {}
        }
        if data.is_empty() {
            return Ok(Command::Nothing);
        }
        if let Some(old) = OldRequest::find(&data).map_err(|()| wrong("an invalid request"))? {
            return old.command().map_err(wrong);
        }
        InternalRaftRequest::decode(data.clone()).map_err(|_| wrong("an invalid request"))?;
        Ok(Command::Request(data))
    }
}

impl OldRequest {
    /// Finds a request of API version 2 in the data of an entry. The data is either this request, with an
    /// HTTP method such as `PUT` in field 2, or a newer request that contains this request in field 2.
    /// Returns `None` if the data has no field 2.
    pub fn find(data: &[u8]) -> Result<Option<OldRequest>, ()> {
        let mut fields = Fields(data);
        while let Some(field) = fields.next()? {
            if let (2, Field::Bytes(bytes)) = field {
                let is_method = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_uppercase);
                return OldRequest::decode(if is_method { data } else { bytes }).map(Some);
            }
        }
        Ok(None)
    }

    fn decode(data: &[u8]) -> Result<OldRequest, ()> {
        let mut request = OldRequest::default();
        let mut fields = Fields(data);
        while let Some(field) = fields.next()? {
            match field {
                (1, Field::Varint(id)) => request.id = id,
                (2, Field::Bytes(bytes)) => request.method = text(bytes),
                (3, Field::Bytes(bytes)) => request.path = text(bytes),
                (4, Field::Bytes(bytes)) => request.value = text(bytes),
                (5, Field::Varint(dir)) => request.dir = dir != 0,
                (6, Field::Bytes(bytes)) => request.prev_value = text(bytes),
                (7, Field::Varint(index)) => request.prev_index = index,
                (8, Field::Varint(exists)) => request.prev_exist = Some(exists != 0),
                (9, Field::Varint(nanos)) => request.expiration = nanos.cast_signed(),
                (12, Field::Varint(recursive)) => request.recursive = recursive != 0,
                (15, Field::Varint(nanos)) => request.time = nanos.cast_signed(),
                (17, Field::Varint(refresh)) => request.refresh = refresh != 0,
                _ => {}
            }
        }
        Ok(request)
    }

    fn command(self) -> Result<Command, &'static str> {
        if self.method == "SYNC" || self.method == "QGET" {
            return Ok(Command::Nothing);
        }
        let mut request = InternalRaftRequest {
            header: Some(RequestHeader { id: self.id, ..RequestHeader::default() }),
            ..InternalRaftRequest::default()
        };
        let member = self.path.strip_prefix("/0/members/").and_then(|rest| rest.strip_suffix("/attributes"));
        match (self.method.as_str(), self.path.as_str(), member) {
            ("PUT", "/0/version", _) => {
                request.cluster_version_set = Some(ClusterVersionSetRequest { ver: self.value });
            }
            ("PUT", _, Some(id)) => {
                let wrong = "invalid attributes of a member";
                let member_id = u64::from_str_radix(id, 16).map_err(|_| wrong)?;
                let attributes = attributes(&self.value).ok_or(wrong)?;
                let set = ClusterMemberAttrSetRequest { member_id, member_attributes: Some(attributes) };
                request.cluster_member_attr_set = Some(set);
            }
            _ => return Ok(Command::OldWrite { method: self.method, path: self.path }),
        }
        Ok(Command::Request(request.encode_to_vec().into()))
    }
}

/// Translates the data of a normal entry to a current request if it is a request to the API version 2 store:
/// members of 3.5 publish their names with such requests, and members of 3.4 also the cluster version.
/// Returns empty data for a request without a current meaning, and `None` if the data is not such a request
/// or is malformed.
pub fn in_todays_words(data: &Bytes) -> Option<Bytes> {
    // Return quickly for most entries: a request of API version 2 begins with the tag of its id field.
    const ID_TAG: u8 = 1 << 3;
    if data.first() != Some(&ID_TAG) {
        return None;
    }
    let old = OldRequest::find(data).ok().flatten()?;
    match old.command().ok()? {
        Command::Request(request) => Some(request),
        _ => Some(Bytes::new()),
    }
}

/// Converts bytes to text as the API version 2 store does: it accepts any bytes, and its responses and images
/// have U+FFFD in place of each byte that is not UTF-8.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

fn attributes(text: &str) -> Option<Attributes> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let urls = match value.get("clientURLs") {
        None | Some(serde_json::Value::Null) => Some(Vec::new()),
        Some(urls) => urls.as_array()?.iter().map(|url| url.as_str().map(str::to_owned)).collect(),
    };
    let name = value.get("name").and_then(serde_json::Value::as_str).unwrap_or_default();
    Some(Attributes { name: name.to_owned(), client_urls: urls? })
}

#[cfg(test)]
mod tests {
    use api::wire::{put_bytes, put_number};

    use super::*;

    fn old(method: &str, path: &str, value: &str) -> Bytes {
        let mut data = Vec::new();
        put_number(&mut data, 1, 77);
        put_bytes(&mut data, 2, method.as_bytes());
        put_bytes(&mut data, 3, path.as_bytes());
        put_bytes(&mut data, 4, value.as_bytes());
        data.into()
    }

    #[test]
    fn what_members_of_3_5_tell_of_themselves_is_put_into_todays_words() {
        let path = "/0/members/ab/attributes";
        let told = old("PUT", path, r#"{"name":"one","clientURLs":["http://a:1"]}"#);
        let request = in_todays_words(&told).and_then(|data| InternalRaftRequest::decode(data).ok());
        let set = request.and_then(|request| request.cluster_member_attr_set).expect("is such a request");
        let attributes = set.member_attributes.expect("has some");
        assert_eq!((set.member_id, attributes.name.as_str()), (0xab, "one"));
        assert_eq!(attributes.client_urls, ["http://a:1"]);
        let version = in_todays_words(&old("PUT", "/0/version", "3.5.0"));
        let version = version.and_then(|data| InternalRaftRequest::decode(data).ok());
        assert_eq!(
            version.and_then(|request| request.cluster_version_set).map(|set| set.ver),
            Some("3.5.0".into())
        );
        for nothing in [old("PUT", "/1/a", "v"), old("SYNC", "", ""), old("DELETE", "/1/a", "")] {
            assert_eq!(in_todays_words(&nothing), Some(Bytes::new()));
        }
        assert_eq!(in_todays_words(&old("PUT", path, "{")), None);
        let today = InternalRaftRequest { id: 9, ..InternalRaftRequest::default() }.encode_to_vec();
        assert_eq!(in_todays_words(&today.into()), None);
        for len in 0..told.len() {
            // Decoding a truncated request must not panic.
            let _ = in_todays_words(&told.slice(..len));
        }
    }
}
