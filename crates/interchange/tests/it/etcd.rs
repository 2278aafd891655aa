//! Exchanges data with real etcd in both directions.

use std::collections::BTreeMap;
use std::path::Path;

use disk::RealDisk;
use mainstay_interchange::backend::{Backend, Copy, Membership, Release};
use mainstay_interchange::{Command, DataDir, NewDataDir, NewMember, Source, Status, hash_kv, snapshot};
use numbers::Revision;
use prost::Message as _;
use serde_json::{Value, json};

use testkit::{Random, TempDir};

use crate::kit::{copy, transcript};
use crate::server::{Etcd, Programs};

const KEYS: u64 = 20_000;
const PER_TXN: usize = 100;

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let n = chunk.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for i in 0..4 {
            let digit = DIGITS[(n >> (18 - 6 * i)) as usize & 63] as char;
            out.push(if i > chunk.len() { '=' } else { digit });
        }
    }
    out
}

fn put(key: &str, value: &[u8], lease: i64) -> Value {
    json!({ "request_put": { "key": base64(key.as_bytes()), "value": base64(value), "lease": lease } })
}

fn txn(etcd: &Etcd, ops: Vec<Value>) {
    etcd.call("/v3/kv/txn", &json!({ "success": ops }));
}

/// Writes keys, several versions of some, deletions, large values, leases, a compaction in the middle, users
/// and roles. Returns revisions for which a hash can be requested.
fn fill(programs: &Programs, etcd: &mut Etcd) -> Vec<i64> {
    let mut random = Random::new(7);
    for id in 1..=50 {
        etcd.call("/v3/lease/grant", &json!({ "ID": id * 1_000_003, "TTL": 3600 + id }));
    }
    let mut ops = Vec::new();
    for i in 0..KEYS + KEYS / 4 {
        let key = format!("key/{:08}", if i < KEYS { i } else { random.below(KEYS) });
        if i >= KEYS && random.below(3) == 0 {
            let key = base64(key.as_bytes());
            etcd.call("/v3/kv/deleterange", &json!({ "key": key }));
            continue;
        }
        let len = if random.below(2000) == 0 { 100_000 } else { random.below(200) };
        let lease = if random.below(20) == 0 { (1 + random.below(50)) as i64 * 1_000_003 } else { 0 };
        // A transaction may put a key only once.
        if i >= KEYS {
            txn(etcd, vec![put(&key, &vec![i as u8; len as usize], lease)]);
            continue;
        }
        ops.push(put(&key, &vec![i as u8; len as usize], lease));
        if ops.len() == PER_TXN {
            txn(etcd, std::mem::take(&mut ops));
        }
    }
    for name in ["root", "reader"] {
        etcd.call("/v3/auth/user/add", &json!({ "name": name, "password": "secret" }));
        etcd.call("/v3/auth/role/add", &json!({ "name": name }));
        etcd.call("/v3/auth/user/grant", &json!({ "user": name, "role": name }));
    }
    let perm = json!({ "permType": "READWRITE", "key": base64(b"key/"), "range_end": base64(b"key0") });
    etcd.call("/v3/auth/role/grant", &json!({ "name": "reader", "perm": perm }));
    let current = etcd.hash_kv(programs, 0).2;
    let compacted = current - 1000;
    etcd.call("/v3/kv/compaction", &json!({ "revision": compacted, "physical": true }));
    etcd.call("/v3/auth/enable", &json!({}));
    etcd.log_in("root", "secret");
    // At the compact revision itself a member returns the hash that it computed during the compaction, until
    // it restarts.
    vec![compacted + 1, compacted + 2, current - 500, current - 1, current, 0]
}

fn our_hash<S: Source>(backend: &Backend<S>, revision: i64) -> (u32, i64, i64) {
    let found = hash_kv(backend, Revision(revision)).expect("can be hashed");
    (found.hash, found.compact_revision.0, found.hash_revision.0)
}

fn open(path: &Path) -> Backend<std::fs::File> {
    let (backend, parts) = snapshot::open(std::fs::File::open(path).expect("opens")).expect("is sound");
    assert!(parts.has_digest, "{}", path.display());
    backend
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// Checks that etcdutl prints the same figures as [`Status`].
fn same_status<S: Source>(programs: &Programs, path: &Path, backend: &Backend<S>) {
    let ours = Status::of(backend).expect("is sound");
    for release in ["3.6", "3.7"] {
        let theirs = programs.run("etcdutl", release, &["snapshot", "status", text(path), "-w", "json"]);
        let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
        assert_eq!(theirs["hash"], ours.hash, "etcdutl-{release}");
        assert_eq!(theirs["revision"], ours.revision.0);
        assert_eq!(theirs["totalSize"], ours.total_size_bytes);
        assert_eq!(theirs["totalKey"], ours.total_keys);
        assert_eq!(theirs["version"], ours.version.as_str());
    }
}

/// Checks that etcd starts on a directory and returns the same HashKV as before.
fn serves(
    programs: &Programs,
    release: &'static str,
    dir: &Path,
    hashes: &[(u32, i64, i64)],
    at_compaction: (u32, i64, i64),
) {
    let mut etcd = Etcd::start(programs, release, dir);
    etcd.log_in("root", "secret");
    for hash in hashes {
        assert_eq!(etcd.hash_kv(programs, hash.2), *hash, "etcd-{release} on {}", dir.display());
    }
    // etcd 3.4 has no hash at that revision.
    if release != "3.4" {
        assert_eq!(etcd.hash_kv(programs, at_compaction.2), at_compaction, "etcd-{release}");
    }
    let count = etcd.call(
        "/v3/kv/range",
        &json!({ "key": base64(b"key/"), "range_end": base64(b"key0"), "count_only": true }),
    );
    assert!(
        count["count"].as_str().and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > KEYS * 9 / 10),
        "{count}"
    );
    let leases = etcd.call("/v3/lease/leases", &json!({}));
    assert_eq!(leases["leases"].as_array().map(Vec::len), Some(50));
    // The restored member can also write and defragment.
    etcd.call("/v3/kv/put", &json!({ "key": base64(b"key/new"), "value": "" }));
    let defragment = etcd.try_call("/v3/maintenance/defragment", &json!({}));
    assert!(defragment.is_some_and(|answer| answer.get("error").is_none()));
    etcd.kill();
}

#[test]
fn snapshots_of_every_release_both_ways() {
    let Some(programs) = Programs::find("snapshots_of_every_release_both_ways") else { return };
    for release in programs.releases() {
        let dir = TempDir::new("snapshots");
        let mut etcd = Etcd::start(&programs, release, &dir.join("data"));
        let revisions = fill(&programs, &mut etcd);
        let saved = dir.join("saved.db");
        let url = format!("http://{}", etcd.client);
        let args = ["--endpoints", &url, "--user", "root:secret", "snapshot", "save", text(&saved)];
        programs.run("etcdctl", release, &args);
        let hashes: Vec<_> = revisions.iter().map(|revision| etcd.hash_kv(&programs, *revision)).collect();
        etcd.kill();

        let backend = open(&saved);
        for (revision, hash) in revisions.iter().zip(&hashes) {
            assert_eq!(our_hash(&backend, *revision), *hash, "of etcd-{release} at {revision}");
        }
        same_status(&programs, &saved, &backend);
        let auth = backend.auth().expect("is there");
        assert!(auth.enabled && auth.revision > 1);
        assert_eq!((auth.users.len(), auth.roles.len()), (2, 2));
        let mut leases = backend.leases().expect("are there");
        let mut ids = Vec::new();
        while let Some(lease) = leases.step().expect("is sound") {
            assert_eq!(lease.ttl, 3600 + lease.id / 1_000_003);
            ids.push(lease.id);
        }
        assert_eq!(ids.len(), 50);

        let at_compaction = our_hash(&backend, hashes[0].1);
        // Write the same snapshot with this crate.
        let written = dir.join("written.db");
        let release_written = Release::of_cluster_version(release).expect("is known");
        std::fs::write(&written, copy(&backend, release_written)).expect("is written");
        let again = open(&written);
        assert_eq!(transcript(&again).expect("reads"), transcript(&backend).expect("reads"));
        same_status(&programs, &written, &again);
        // etcd 3.6 cannot read what 3.7 wrote.
        for utl in ["3.6", "3.7"].into_iter().filter(|utl| *utl >= release) {
            let restored = dir.join(format!("restored-{utl}"));
            programs.run(
                "etcdutl",
                utl,
                &["snapshot", "restore", text(&written), "--data-dir", text(&restored)],
            );
            // A state written by 3.4 to 3.6 is upgraded one release at a time.
            let serving = if utl == "3.6" || release == "3.7" { utl } else { "3.6" };
            serves(&programs, serving, &restored, &hashes, at_compaction);
        }
        println!("etcd-{release}: both ways, {} bytes", again.bolt().size_bytes());
    }
}

#[test]
fn data_directories_of_every_release_both_ways() {
    let Some(programs) = Programs::find("data_directories_of_every_release_both_ways") else { return };
    for release in programs.releases() {
        let dir = TempDir::new("data");
        let data = dir.join("data");
        let mut etcd = Etcd::start(&programs, release, &data);
        let revisions = fill(&programs, &mut etcd);
        let hashes: Vec<_> = revisions.iter().map(|revision| etcd.hash_kv(&programs, *revision)).collect();
        // More than the backend writes in one batch, followed at once by the kill.
        for i in 0..300 {
            etcd.call(
                "/v3/kv/put",
                &json!({ "key": base64(format!("late/{i:04}").as_bytes()), "value": "" }),
            );
        }
        let locked = DataDir::open(&RealDisk, &data);
        assert!(locked.is_err_and(|e| e.to_string().contains("locking")), "a running member is left alone");
        etcd.kill();

        let found = DataDir::open(&RealDisk, &data).expect("is sound");
        assert_eq!(found.wal.identity.member_id, found.membership.members[0].id);
        assert_eq!(found.wal.repair, None);
        assert!(found.base_term().is_some());
        assert!(found.voters.contains(&found.wal.identity.member_id));
        // State and log together have every acknowledged key.
        let mut late = BTreeMap::new();
        let mut history = found.base.history().expect("is there");
        while let Some(change) = history.step().expect("is sound") {
            if change.head.key.starts_with(b"late/") {
                *late.entry(change.head.key.to_vec()).or_insert(0) += 1;
            }
        }
        let mut index = found.base_index();
        for entry in found.entries() {
            let entry = entry.expect("is sound");
            index += 1;
            assert_eq!(entry.index(), index);
            if let Command::Request(bytes) = Command::of(&entry).expect("is one") {
                let request = api::etcdserverpb::InternalRaftRequest::decode(bytes).expect("is one");
                if let Some(put) = request.put.filter(|put| put.key.starts_with(b"late/")) {
                    *late.entry(put.key.to_vec()).or_insert(0) += 1;
                }
            }
        }
        assert_eq!(index, found.end());
        assert_eq!((late.len(), late.values().max()), (300, Some(&1)), "of etcd-{release}");
        let (base, end) = (found.base_index(), found.end());
        for (revision, hash) in revisions.iter().zip(&hashes).filter(|(revision, _)| **revision > 0) {
            assert_eq!(our_hash(&found.base, *revision), *hash, "of etcd-{release} at {revision}");
        }

        let at_compaction = our_hash(&found.base, hashes[0].1);
        // A directory made by this crate, for each release.
        for to in programs.releases() {
            let made = dir.join(format!("made-{to}"));
            make(&found.base, to, &made);
            let etcd_hashes: Vec<_> = hashes[..hashes.len() - 1].to_vec();
            serves(&programs, to, &made, &etcd_hashes, at_compaction);
            // The directory can be read again after etcd has run on it.
            let again = DataDir::open(&RealDisk, &made).expect("is sound");
            assert!(again.end() > again.wal.snapshots[1].index);
        }
        println!("etcd-{release}: data directory read, entries {base} to {end}, and made for all");
    }
}

fn make<S: Source>(from: &Backend<S>, release: &str, dir: &Path) {
    let mut copy = Copy::of(from, Release::of_cluster_version(release).expect("is known")).expect("reads");
    copy.membership = Membership {
        members: copy.membership.members.clone(),
        cluster_version: format!("{release}.0"),
        ..Membership::default()
    };
    let member = NewMember {
        identity: mainstay_interchange::wal::Identity {
            member_id: copy.membership.members[0].id,
            cluster_id: 0xc1,
        },
        index: copy.meta.consistent_index,
        term: 7,
        release: copy.release,
        conf_state: copy.membership.conf_state(),
        newest_term: 7,
        vote: copy.membership.members[0].id,
        entries: Vec::new(),
    };
    let new = NewDataDir::begin(&RealDisk, dir, member).expect("begins");
    copy.meta = new.meta(copy.meta.compact_revision());
    let mut database = new.database(copy.plan().expect("is measured")).expect("begins");
    copy.write(&mut database).expect("is written");
    new.finish(database, &copy.membership).expect("is written");
}
