//! Reads and writes images of etcd's v2 store (the store of API version 2) in `.snap` files. Of the store's
//! contents only the list of members is still used: etcd 3.4 and 3.5 read the list when they start.

use std::fmt;
use std::io;
use std::path::Path;

use disk::Disk;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::backend::{ConfState, Member, Membership};
use crate::error::Error;
use crate::json_scan;
use crate::v2_tree::V2Tree;
use crate::wal::Wal;

/// Summary of etcd's v2 store in a member's directory. It shows whether data is lost if the store is deleted.
/// Current releases of etcd no longer use the keys in this store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OldStore {
    /// Number of keys and directories that users have created directly below the root of the store, in its
    /// newest image; 0 without an image.
    pub keys: usize,
    /// True if the image has users, roles or permissions of API version 2.
    pub users: bool,
    /// Index of the last entry that is applied in that image; 0 without an image.
    pub index: u64,
    /// Name of the newest image and the reason why it cannot be read; `None` if it can be read. If set, the
    /// contents of the store are unknown.
    pub unreadable: Option<String>,
    /// Size in bytes of the newest image if the image was not read because it is larger than the reader
    /// accepts; `None` otherwise.
    pub large: Option<u64>,
    /// First entry after the image that writes to the store: its index and a description of the request;
    /// `None` if there is no such entry, or the log was not read.
    pub write: Option<(u64, String)>,
}

impl OldStore {
    fn of(image: &Image) -> Result<OldStore, ImageError> {
        let index = image.index;
        let Some(image) = &image.json else { return Ok(OldStore { index, ..OldStore::default() }) };
        if image.pointer("/Root").is_none() {
            return Err(ImageError::NoRoot);
        }
        let users = image.pointer("/Root/Children/1/Children").and_then(Value::as_object);
        let keys = users.map_or(0, Map::len);
        let spaces = image.pointer("/Root/Children").and_then(Value::as_object);
        let users = spaces.is_some_and(|spaces| spaces.keys().any(|name| name != "0" && name != "1"));
        Ok(OldStore { keys, users, index, ..OldStore::default() })
    }

    /// Returns a description of the data that is lost if the store is deleted; `None` if nothing is lost.
    pub fn loss(&self) -> Option<String> {
        if let Some(why) = &self.unreadable {
            return Some(format!("its image {why} cannot be read, so its content is unknown"));
        }
        if let Some(bytes) = self.large {
            return Some(format!("its image has {bytes} bytes, too many for an image without keys"));
        }
        if self.keys > 0 {
            return Some(format!("it has {} keys or directories directly below its root", self.keys));
        }
        if self.users {
            return Some("it has users, roles or permissions".to_owned());
        }
        self.write.as_ref().map(|(index, what)| {
            format!("entry {index}, which is newer than its newest image, requests {what}")
        })
    }
}

/// Maximum size in bytes of an image that is read. The image is held in memory, and its parsed JSON takes
/// several times as much; etcd holds it in memory as well.
pub(crate) const IMAGE_BYTES_MAX: u64 = 1 << 30;
/// Maximum size in bytes of an image that is read only to find out if it has keys. A larger image counts as
/// one with keys, because an image that contains only members is far smaller.
pub(crate) const IMAGE_BYTES_GLANCE: u64 = 4 << 20;

/// Maximum size in bytes of the data about members in an image sent by another member. It suffices for about
/// 20,000 removed members; an image with more is refused.
const MEMBERS_BYTES_MAX: u64 = 4 << 20;

/// Result of the search for the image of the v2 store from which etcd would start.
pub(crate) enum Newest {
    /// There is no image from which etcd would start. If the log has every entry since the first, none is
    /// needed.
    None,
    /// An image that is named by a snapshot mark of the log.
    Image(Image),
    /// The newest image cannot be read, so the contents of the store are unknown.
    Unreadable {
        /// Name of the file.
        name: String,
        /// Reason why the image cannot be read.
        why: ImageError,
    },
}

/// An image of the v2 store that was read.
pub(crate) struct Image {
    /// Name of the file.
    pub name: String,
    /// Index of the last entry that is applied in the image.
    pub index: u64,
    /// Voters and learners at that entry, from raft's configuration; `None` if the image has none.
    pub conf_state: Option<ConfState>,
    /// JSON of the image; `None` if the image has no JSON because nothing was ever written.
    pub json: Option<Value>,
}

impl OldStore {
    /// Reads the newest image in a member's `snap` directory, for a running member. The log is not read,
    /// because the member is writing it. An image of more than a few MiB is not read, and only its size is
    /// known; see [`OldStore::large`].
    ///
    /// # Errors
    ///
    /// Returns an error if the directory cannot be read.
    pub fn glance(disk: &dyn Disk, snap_dir: &Path) -> io::Result<OldStore> {
        let names = disk.list(snap_dir)?.into_iter();
        let newest = names.filter_map(|name| Some((place_of(&name)?, name))).max();
        let Some((place, name)) = newest else { return Ok(OldStore::default()) };
        Ok(OldStore::of_newest(&match read(disk, &snap_dir.join(&name), IMAGE_BYTES_GLANCE) {
            Ok((read, conf_state, json)) if read == place => {
                Newest::Image(Image { name, index: place.1, conf_state, json })
            }
            Ok(_) => Newest::Unreadable { name, why: ImageError::OtherEntry },
            // For example, the member has written a newer image and removed this file since the directory was
            // listed. Return the error, so that the caller can try again, and do not report the image as
            // unreadable.
            Err(ImageError::Io(error)) => return Err(error),
            Err(why) => Newest::Unreadable { name, why },
        }))
    }

    /// Summarizes the result of the search for the newest image.
    pub(crate) fn of_newest(newest: &Newest) -> OldStore {
        let unreadable = |name: &str, why: &ImageError| OldStore {
            unreadable: Some(format!("{name} ({why})")),
            ..OldStore::default()
        };
        match newest {
            Newest::None => OldStore::default(),
            Newest::Unreadable { why: ImageError::TooLong(bytes), .. } if *bytes <= IMAGE_BYTES_MAX => {
                OldStore { large: Some(*bytes), ..OldStore::default() }
            }
            Newest::Unreadable { name, why } => unreadable(name, why),
            Newest::Image(image) => OldStore::of(image).unwrap_or_else(|why| unreadable(&image.name, &why)),
        }
    }
}

/// Finds the image of the v2 store from which etcd would start: the newest readable `.snap` file that a
/// snapshot mark of the log names, if the log has all entries after that image. The file's name consists of
/// the term and the index of the image's last entry, with 16 hex digits each. An image of more than
/// `bytes_max` bytes is not read.
///
/// # Errors
///
/// Returns an error if the directory cannot be read.
pub(crate) fn newest(disk: &dyn Disk, snap_dir: &Path, wal: &Wal, bytes_max: u64) -> io::Result<Newest> {
    let mut names = disk.list(snap_dir)?;
    names.retain(|name| place_of(name).is_some_and(|place| is_marked(wal, place)));
    names.sort_unstable();
    let mut torn = None;
    for name in names.into_iter().rev() {
        let Some(named) = place_of(&name) else { continue };
        if wal.first() > named.1.saturating_add(1) {
            break;
        }
        let why = match read(disk, &snap_dir.join(&name), bytes_max) {
            Ok((place, conf_state, json)) if place == named => {
                return Ok(Newest::Image(Image { name, index: named.1, conf_state, json }));
            }
            Ok(_) => ImageError::OtherEntry,
            Err(why) => why,
        };
        match why {
            // An interrupted write or a faulty disk has left this image. Continue with the image before it,
            // as etcd does.
            ImageError::Protobuf(_) | ImageError::Checksum | ImageError::OtherEntry => {
                torn.get_or_insert((name, why));
            }
            // Do not skip an image with any other error, because etcd does not either: it uses the image or
            // refuses to start.
            _ => return Ok(Newest::Unreadable { name, why }),
        }
    }
    Ok(match torn {
        Some((name, why)) if wal.first() > 1 => Newest::Unreadable { name, why },
        _ => Newest::None,
    })
}

/// Returns the term and the index in the file name of an image.
fn place_of(name: &str) -> Option<(u64, u64)> {
    let (term, index) = name.strip_suffix(".snap")?.split_once('-')?;
    Some((u64::from_str_radix(term, 16).ok()?, u64::from_str_radix(index, 16).ok()?))
}

fn is_marked(wal: &Wal, (term, index): (u64, u64)) -> bool {
    wal.snapshots.iter().any(|mark| (mark.term, mark.index) == (term, index))
}

/// Reads the whole v2 store from the image that [`newest`] finds. Also returns the index of the last entry
/// applied in the image. Returns `None` if there is no image.
///
/// # Errors
///
/// Returns an error if the directory or the image cannot be read, or the image has a form that etcd does not
/// write.
pub(crate) fn newest_tree(
    disk: &dyn Disk,
    snap_dir: &Path,
    wal: &Wal,
) -> Result<Option<(u64, V2Tree)>, Error> {
    let newest = newest(disk, snap_dir, wal, IMAGE_BYTES_MAX)
        .map_err(|e| Error::io(format!("reading the old store's image in {}", snap_dir.display()), e))?;
    let unreadable = |name: &str, why: String| Error::damaged(0, why).in_file(name);
    let damaged = |name: &str, why: String| {
        unreadable(
            name,
            format!(
                "the image of the old store cannot be read: {why}. etcd uses the previous image instead: \
                 move this file away to do the same, if the log still has the entries after that image"
            ),
        )
    };
    match newest {
        Newest::None => Ok(None),
        // etcd would start from this image, so return an error: without the image, keys would be lost.
        Newest::Unreadable { name, why: why @ ImageError::Depth } => Err(unreadable(
            &name,
            format!(
                "the image of the old store is not read: {why}. Start etcd once more, move deeper keys to \
                 shorter paths, stop etcd, and import again"
            ),
        )),
        Newest::Unreadable { name, why } => Err(damaged(&name, why.to_string())),
        Newest::Image(Image { name, index, json, .. }) => {
            // An image has no JSON if nothing was ever written to the store.
            let tree = json.map_or_else(|| Ok(V2Tree::new()), |json| V2Tree::of_image(&json));
            Ok(Some((index, tree.map_err(|why| damaged(&name, why))?)))
        }
    }
}

/// Term and index of the last entry in an image, the voters and learners at that entry, and the JSON of the
/// image, if it has any.
type Content = ((u64, u64), Option<ConfState>, Option<Value>);

fn read(disk: &dyn Disk, path: &Path, bytes_max: u64) -> Result<Content, ImageError> {
    let file = disk.open_read(path).map_err(ImageError::Io)?;
    let len = file.len().map_err(ImageError::Io)?;
    if len > bytes_max {
        return Err(ImageError::TooLong(len));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0).map_err(ImageError::Io)?;
    read_image(&bytes)
}

/// Error returned when an image of the v2 store cannot be read.
pub(crate) enum ImageError {
    /// The image is longer than the maximum; the variant contains its size in bytes.
    TooLong(u64),
    /// The operating system reported an error.
    Io(io::Error),
    /// The protobuf message of the image cannot be decoded.
    Protobuf(prost::DecodeError),
    /// The checksum of the image does not match.
    Checksum,
    /// The image's last entry differs from the one in its file name.
    OtherEntry,
    /// The image is not JSON.
    Json(serde_json::Error),
    /// The image has directories that are nested deeper than the JSON parser accepts.
    Depth,
    /// The image has no root.
    NoRoot,
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::TooLong(len) => write!(f, "it has {len} bytes"),
            ImageError::Io(error) => error.fmt(f),
            ImageError::Protobuf(error) => error.fmt(f),
            ImageError::Checksum => f.write_str("its checksum does not match"),
            ImageError::OtherEntry => f.write_str("it belongs to a different entry than its name says"),
            ImageError::Json(error) => error.fmt(f),
            ImageError::Depth => {
                f.write_str("it has a key or directory that is more than some 60 directories deep")
            }
            ImageError::NoRoot => f.write_str("it has no root"),
        }
    }
}

fn read_image(framed: &[u8]) -> Result<Content, ImageError> {
    let framed = api::snappb::Snapshot::decode(framed).map_err(ImageError::Protobuf)?;
    let data = framed.data.unwrap_or_default();
    if crc32c::crc32c(&data) != framed.crc.unwrap_or_default() {
        return Err(ImageError::Checksum);
    }
    let snapshot = api::raftpb::Snapshot::decode(data).map_err(ImageError::Protobuf)?;
    let image = snapshot.data.unwrap_or_default();
    let metadata = snapshot.metadata.unwrap_or_default();
    let place = (metadata.term.unwrap_or_default(), metadata.index.unwrap_or_default());
    let conf_state = metadata.conf_state.as_ref().map(ConfState::from);
    if image.is_empty() {
        return Ok((place, conf_state, None));
    }
    let image: Value = serde_json::from_slice(&image).map_err(|error| {
        // Recognize this error by its message, because the parser's error type does not distinguish it from
        // other errors.
        let is_deep = error.to_string().starts_with("recursion limit exceeded");
        if is_deep { ImageError::Depth } else { ImageError::Json(error) }
    })?;
    Ok((place, conf_state, Some(image)))
}

/// Reads the members from an image of etcd's v2 store, which another member has sent with a snapshot.
/// Releases before 3.8 send such an image, and releases before 3.5 store the members only there.
///
/// # Errors
///
/// Returns an error if the text is not an image, or contains an invalid member.
pub fn members_of_image(image: &[u8]) -> Result<Membership, Error> {
    let damaged =
        |what: String| Error::damaged(0, format!("the image of the old store cannot be read: {what}"));
    // The sender decides how long an image is, and parsed JSON takes many times the memory of its text. So
    // find the directory with the members without parsing the rest.
    let cluster =
        json_scan::member_at(image, &["Root", "Children", "0"]).map_err(|why| damaged(why.to_owned()))?;
    if cluster.len() as u64 > MEMBERS_BYTES_MAX {
        return Err(damaged(format!("its data about members has {} bytes", cluster.len())));
    }
    let cluster: Value = serde_json::from_slice(cluster).map_err(|error| damaged(error.to_string()))?;
    members_of_cluster(&cluster).map_err(damaged)
}

/// Reads the members from the JSON of an image. The returned error describes what is wrong with the image.
pub(crate) fn members_in(image: &Value) -> Result<Membership, String> {
    members_of_cluster(image.pointer("/Root/Children/0").unwrap_or(&Value::Null))
}

/// Reads the members from the directory of the image that describes the cluster.
fn members_of_cluster(directory: &Value) -> Result<Membership, String> {
    let cluster = directory.get("Children").and_then(Value::as_object).ok_or("it has no members")?;
    let children = |name: &str| {
        cluster
            .get(name)
            .and_then(|node| node.get("Children"))
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    };
    let id = |name: &str| u64::from_str_radix(name, 16).map_err(|_| format!("{name:?} is not an id"));
    let mut membership = Membership::default();
    for (name, node) in children("members") {
        let parts = |part: &str| {
            let text = node.pointer(&format!("/Children/{part}/Value")).and_then(Value::as_str);
            let part: Option<Value> = text.map(serde_json::from_str).transpose().unwrap_or_default();
            part.filter(Value::is_object)
        };
        let raft = parts("raftAttributes").ok_or_else(|| format!("member {name} has no URLs"))?;
        // A member that has not started yet has no attributes.
        let attributes = parts("attributes").unwrap_or_default();
        let urls = |of: &Value, name: &str| -> Vec<String> {
            let urls = of.get(name).and_then(Value::as_array).into_iter().flatten();
            urls.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        membership.members.push(Member {
            id: id(name)?,
            peer_urls: urls(&raft, "peerURLs"),
            is_learner: raft.get("isLearner").and_then(Value::as_bool).unwrap_or(false),
            name: attributes.get("name").and_then(Value::as_str).unwrap_or_default().to_owned(),
            client_urls: urls(&attributes, "clientURLs"),
        });
    }
    for (name, _) in children("removed_members") {
        membership.removed.insert(id(name)?);
    }
    let version = cluster.get("version").and_then(|node| node.get("Value")).and_then(Value::as_str);
    membership.cluster_version = version.unwrap_or_default().to_owned();
    Ok(membership)
}

/// Returns, as JSON, an image of the v2 store at entry `index` that contains these members and nothing else.
pub fn members_image(membership: &Membership, index: u64) -> String {
    let mut members = Map::new();
    for member in &membership.members {
        let mut fields = Map::new();
        let mut raft = json!({ "peerURLs": member.peer_urls });
        if member.is_learner {
            raft["isLearner"] = true.into();
        }
        let path = format!("/0/members/{:x}", member.id);
        fields.insert("raftAttributes".into(), file(&format!("{path}/raftAttributes"), raft.to_string()));
        if !member.name.is_empty() {
            let attributes = json!({ "name": member.name, "clientURLs": member.client_urls });
            fields.insert("attributes".into(), file(&format!("{path}/attributes"), attributes.to_string()));
        }
        members.insert(format!("{:x}", member.id), directory(&path, fields));
    }
    let mut removed = Map::new();
    for id in &membership.removed {
        let path = format!("/0/removed_members/{id:x}");
        removed.insert(format!("{id:x}"), file(&path, "removed".to_owned()));
    }
    let mut cluster = Map::new();
    cluster.insert("members".into(), directory("/0/members", members));
    if !removed.is_empty() {
        cluster.insert("removed_members".into(), directory("/0/removed_members", removed));
    }
    if !membership.cluster_version.is_empty() {
        cluster.insert("version".into(), file("/0/version", membership.cluster_version.clone()));
    }
    let mut root = Map::new();
    root.insert("0".into(), directory("/0", cluster));
    root.insert("1".into(), directory("/1", Map::new()));
    json!({ "Root": directory("/", root), "CurrentIndex": index, "CurrentVersion": 2 }).to_string()
}

fn directory(path: &str, children: Map<String, Value>) -> Value {
    node(path, String::new(), Value::Object(children))
}

fn file(path: &str, value: String) -> Value {
    node(path, value, Value::Null)
}

fn node(path: &str, value: String, children: Value) -> Value {
    json!({
        "Path": path,
        "CreatedIndex": 0,
        "ModifiedIndex": 0,
        "ExpireTime": "0001-01-01T00:00:00Z",
        "Value": value,
        "Children": children,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_read_as_they_were_written() {
        let voter = Member {
            id: 0x10,
            peer_urls: vec!["http://a:1".to_owned(), "http://b:1".to_owned()],
            is_learner: false,
            name: "<one>".to_owned(),
            client_urls: vec!["http://a:2".to_owned()],
        };
        let learner = Member {
            id: u64::MAX,
            peer_urls: vec!["http://c:1".to_owned()],
            is_learner: true,
            ..Member::default()
        };
        let membership = Membership {
            members: vec![voter, learner],
            removed: [7, 0xabc].into(),
            cluster_version: "3.5.0".to_owned(),
            downgrade_target: None,
        };
        let image = members_image(&membership, 9);
        assert_eq!(members_of_image(image.as_bytes()).ok(), Some(membership));
        for at in 0..image.len() {
            assert!(members_of_image(&image.as_bytes()[..at]).is_err(), "{at}");
        }
        let members_end = image.find(r#","1":"#).expect("is there");
        for rest in ["1".repeat(1 << 20), format!("[{}0]", "0,".repeat(1 << 20))] {
            let large = format!(r#"{},"2":{rest}{}"#, &image[..members_end], &image[members_end..]);
            assert!(members_of_image(large.as_bytes()).is_ok(), "keys of users are passed over");
        }
        let many = format!(r#"{{"{}":"#, "x".repeat(MEMBERS_BYTES_MAX as usize));
        let large = image.replacen(r#"{"members":"#, &format!(r#"{many}0,"members":"#), 1);
        let refused = members_of_image(large.as_bytes()).expect_err("is too long").to_string();
        assert!(refused.contains("its data about members has 4"), "{refused}");
        for (from, to) in [("\"10\"", "\"x\""), ("raftAttributes", "other"), ("\"0\"", "\"9\"")] {
            assert!(members_of_image(image.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }
}
