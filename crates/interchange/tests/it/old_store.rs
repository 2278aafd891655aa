//! Rebuilds the old store (API version 2) from a directory of real etcd 3.4: an image, and the log entries
//! after it.
//!
//! `golden/3.4-v2-keys.json` is the response of that etcd to `GET /v2/keys/?recursive=true` just before it
//! was stopped.

use std::io::Read as _;
use std::path::Path;

use disk::{Disk as _, MemDisk};
use mainstay_interchange::{Command, DataDir, V2Node};
use prost::Message as _;
use serde_json::Value;

use crate::relog::relogged;

const SNAP: &str = "/d/member/snap/0000000000000002-0000000000000029.snap";
const WAL: &str = "/d/member/wal/0000000000000000-0000000000000000.wal";

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name);
    let bytes = std::fs::read(&path).expect("is there");
    if !name.ends_with(".gz") {
        return bytes;
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut plain).expect("is sound");
    plain
}

/// A data directory of etcd with this image and this log.
fn dir(image: Option<Vec<u8>>, wal: Vec<u8>) -> MemDisk {
    let disk = MemDisk::new(1);
    for dir in ["/d/member/snap", "/d/member/wal"] {
        disk.create_dir_all(Path::new(dir)).expect("is made");
    }
    disk.plant(Path::new("/d/member/snap/db"), golden("3.4-v2-db.gz"));
    disk.plant(Path::new(WAL), wal);
    if let Some(image) = image {
        disk.plant(Path::new(SNAP), image);
    }
    disk
}

fn rebuilt(disk: &MemDisk) -> Result<Vec<V2Node>, String> {
    let dir = DataDir::open(disk, Path::new("/d")).map_err(|error| error.to_string())?;
    let tree = dir.old_keys(disk).map_err(|error| error.to_string())?;
    assert_eq!(tree.other_keys(), 0);
    Ok(tree.user_nodes().collect())
}

/// Collects the keys and empty directories of etcd's response, with the earliest time at which each expires.
fn expected(node: &Value, above: Option<i64>, into: &mut Vec<V2Node>) {
    let nanos = node["expiration"].as_str().map(|text| {
        let time = stdx::calendar::parse_rfc3339(text).expect("a time");
        i64::try_from(time.duration_since(std::time::UNIX_EPOCH).expect("is later").as_nanos()).expect("fits")
    });
    let expires_unix_nanos = nanos.into_iter().chain(above).min();
    let nodes = node["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    for node in nodes {
        expected(node, expires_unix_nanos, into);
    }
    if let (true, Some(path)) = (nodes.is_empty(), node["key"].as_str()) {
        into.push(V2Node {
            path: path.to_owned(),
            value: node["value"].as_str().map(str::to_owned),
            created_index: node["createdIndex"].as_u64().expect("an index"),
            modified_index: node["modifiedIndex"].as_u64().expect("an index"),
            expires_unix_nanos,
        });
    }
}

/// Returns the nodes of etcd's response in order of changes; hidden keys, which etcd does not list, were read
/// one by one.
fn answered() -> Vec<V2Node> {
    let answer: Value = serde_json::from_slice(&golden("3.4-v2-keys.json")).expect("JSON");
    let mut nodes = Vec::new();
    expected(&answer["node"], None, &mut nodes);
    nodes.push(V2Node {
        path: "/_hidden/x".to_owned(),
        value: Some("h".to_owned()),
        created_index: 13,
        modified_index: 13,
        expires_unix_nanos: None,
    });
    nodes.sort_by_key(|node| node.modified_index);
    nodes
}

#[test]
fn an_image_and_the_entries_behind_it_give_what_etcd_answered() {
    let (image, wal) = (golden("3.4-v2-snap.gz"), golden("3.4-v2-wal.gz"));
    let found = rebuilt(&dir(Some(image), wal.clone())).expect("is sound");
    assert_eq!(found, answered());
    // The log reaches back to the first entry, so the image is not needed: every index is the same without
    // it.
    let mut again = rebuilt(&dir(None, wal)).expect("is sound");
    // Expiry times are exact in the log, and the image has lost no precision.
    again.sort_by_key(|node| node.modified_index);
    assert_eq!(again, found);
}

/// Returns the framed image, changed by `change`.
fn changed(change: impl FnOnce(&mut api::raftpb::Snapshot)) -> Vec<u8> {
    let framed = api::snappb::Snapshot::decode(golden("3.4-v2-snap.gz").as_slice()).expect("is sound");
    let mut snapshot = api::raftpb::Snapshot::decode(framed.data.expect("is there")).expect("is sound");
    change(&mut snapshot);
    let data = snapshot.encode_to_vec();
    let crc = Some(crc32c::crc32c(&data));
    api::snappb::Snapshot { crc, data: Some(data.into()) }.encode_to_vec()
}

/// Returns the image with a part of its text replaced.
fn rewritten(from: &str, to: &str) -> Vec<u8> {
    changed(|snapshot| {
        let json = String::from_utf8(snapshot.data.take().expect("is there").to_vec()).expect("is text");
        assert!(json.contains(from), "{json}");
        snapshot.data = Some(json.replacen(from, to, 1).into());
    })
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    let wal = golden("3.4-v2-wal.gz");
    let refused = |image: Vec<u8>, what: &str| {
        let why = rebuilt(&dir(Some(image), wal.clone())).expect_err(what);
        assert!(why.contains(what), "{what}: {why}");
        assert!(!why.contains('\n'), "{why}");
    };
    let mut torn = golden("3.4-v2-snap.gz");
    torn.truncate(torn.len() / 2);
    let mut flipped = golden("3.4-v2-snap.gz");
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    let late = changed(|snapshot| snapshot.metadata.get_or_insert_default().index = Some(100_000));
    for (image, what) in
        [(torn, "0029.snap"), (flipped, "its checksum does not match"), (late, "a different entry")]
    {
        // etcd continues from the image before this one; here the log reaches back to the first entry.
        let mut found = rebuilt(&dir(Some(image.clone()), wal.clone())).expect("is sound");
        found.sort_by_key(|node| node.modified_index);
        let mut whole = rebuilt(&dir(None, wal.clone())).expect("is sound");
        whole.sort_by_key(|node| node.modified_index);
        assert_eq!(found, whole, "{what}");
        let why = rebuilt(&dir(Some(image), later_log(&wal))).expect_err(what);
        assert!(why.contains("the list of members is unknown") && why.contains(what), "{why}");
    }
    refused(changed(|snapshot| snapshot.data = Some("{".into())), "EOF while parsing");
    refused(rewritten("\"CurrentVersion\":2", "\"CurrentVersion\":3"), "it has version 3");
    refused(rewritten("\"CurrentVersion\":2", "\"CurrentVersion\":2.5"), "the image has no CurrentVersion");
    refused(rewritten("\"Root\":{", "\"Root\":null,\"Other\":{"), "it has no members");
    refused(rewritten("\"Root\":{", "\"Roots\":{"), "it has no members");
    refused(
        rewritten("\"/1/plain\",\"CreatedIndex\":", "\"/1/plain\",\"Created\":"),
        "\"/1/plain\" has no CreatedIndex",
    );
    refused(rewritten("\"ExpireTime\":\"2", "\"ExpireTime\":\"x2"), "has no ExpireTime that can be");
    refused(rewritten("\"plain\":", "\"pl/ain\":"), "\"pl/ain\" cannot be the name of a key");
    let deep = format!("{}{{}}{}", "{\"Children\":{\"a\":".repeat(200), "}}".repeat(200));
    let image = changed(|snapshot| snapshot.data = Some(format!("{{\"Root\":{deep}}}").into()));
    let why = rebuilt(&dir(Some(image), wal.clone())).expect_err("is too deep");
    assert!(why.contains("more than some 60 directories deep") && !why.contains("this file away"), "{why}");
}

/// Returns the log without entries that the database already has.
fn later_log(wal: &[u8]) -> Vec<u8> {
    relogged(wal, |entry| entry.index() >= 10)
}

/// Returns the image of a store without keys.
fn empty_image() -> Vec<u8> {
    changed(|snapshot| {
        let json = snapshot.data.take().expect("is there");
        let mut image: Value = serde_json::from_slice(&json).expect("JSON");
        image["Root"]["Children"].as_object_mut().expect("a directory").retain(|name, _| name == "0");
        snapshot.data = Some(image.to_string().into());
    })
}

#[test]
fn what_is_no_text_is_read_as_etcd_shows_it() {
    let wal = golden("3.4-v2-wal.gz");
    let open = |disk: &MemDisk| DataDir::open(disk, Path::new("/d")).expect("is sound");
    let last = open(&dir(None, wal.clone())).end();
    let with_last = |data: &'static [u8]| {
        let wal = relogged(&wal, |entry| {
            if entry.index() > 0x29 {
                entry.data = Some(if entry.index() == last { data.into() } else { Default::default() });
            }
            true
        });
        dir(Some(empty_image()), wal)
    };
    // A request with id 1, `PUT`, a path and a value. Path and value each have one byte that is not UTF-8;
    // the value ends in two bytes of an incomplete character.
    let disk = with_last(b"\x08\x01\x12\x03PUT\x1a\x05/1/r\xfe\x22\x05a\xffb\xe2\x82");
    let source = open(&disk);
    let loss = source.old_store.loss().expect("it would be lost");
    assert_eq!(
        loss,
        format!("entry {last}, which is newer than its newest image, requests PUT /1/r\u{fffd}")
    );
    let entry = source.wal.entry(last).expect("is sound").expect("is there");
    let write = Command::OldWrite { method: "PUT".to_owned(), path: "/1/r\u{fffd}".to_owned() };
    assert_eq!(Command::of(&entry), Ok(write), "it can be left out");
    let nodes: Vec<V2Node> = source.old_keys(&disk).expect("is sound").user_nodes().collect();
    let [node] = &nodes[..] else { panic!("one key: {nodes:?}") };
    assert_eq!(
        (node.path.as_str(), node.value.as_deref()),
        ("/r\u{fffd}", Some("a\u{fffd}b\u{fffd}\u{fffd}"))
    );
    // Bytes that are not a message may also have been a write.
    let loss = open(&with_last(b"\x12\x03PUT\x1a")).old_store.loss().expect("it may be lost");
    assert!(loss.ends_with("requests something that cannot be read (an invalid request)"), "{loss}");
}
