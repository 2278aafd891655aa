//! The old store of API version 2, of which nothing is left but what its image says about members: 3.4 and 3.5 read
//! it from a `.snap` file when they start.

use std::io;
use std::path::Path;

use disk::Disk;
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::backend::Membership;

/// How many keys users had right below the root of the old store, by the newest of the images in a directory; 0 if
/// there is none. What is not an image is passed over: no release that has one needs it but for the members.
pub(crate) fn keys(disk: &dyn Disk, snap_dir: &Path) -> io::Result<usize> {
    let mut names = disk.list(snap_dir)?;
    // The name begins with the term and the index in 16 digits each.
    names.retain(|name| name.ends_with(".snap"));
    let Some(newest) = names.pop() else { return Ok(0) };
    let file = disk.open_read(&snap_dir.join(newest))?;
    let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(users_keys(&bytes).unwrap_or(0))
}

fn users_keys(framed: &[u8]) -> Option<usize> {
    let framed = api::snappb::Snapshot::decode(framed).ok()?;
    let snapshot = api::raftpb::Snapshot::decode(framed.data?).ok()?;
    let image: Value = serde_json::from_slice(&snapshot.data?).ok()?;
    image.pointer("/Root/Children/1/Children")?.as_object().map(Map::len)
}

/// The image of a store that knows the members.
pub(crate) fn image(membership: &Membership, index: u64) -> String {
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
