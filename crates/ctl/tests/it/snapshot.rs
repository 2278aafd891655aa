//! snapshot save: the file, its checksum, and the files that remain after a failure.

use std::os::unix::fs::PermissionsExt;

use api::Code;
use api::etcdserverpb as pb;
use sha2::{Digest, Sha256};

use testkit::TempDir;

use crate::fake_server::Script;
use crate::messages::header;
use crate::transcript::{Case, check};

const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";

fn pieces(store: &[u8], checksum: &[u8]) -> Vec<pb::SnapshotResponse> {
    let all = [store, checksum].concat();
    let mut rest = all.len() as u64;
    let piece = |bytes: &[u8]| {
        rest -= bytes.len() as u64;
        pb::SnapshotResponse {
            header: header(),
            remaining_bytes: rest,
            blob: bytes.to_vec().into(),
            version: "3.7.0".to_owned(),
        }
    };
    all.chunks(700).map(piece).collect()
}

#[test]
fn save() {
    let directory = TempDir::new("snapshot");
    let store: Vec<u8> = (0..4096u32).map(|n| n.to_le_bytes()[0]).collect();
    let checksum = Sha256::digest(&store);
    let good = Script::default().streams(SNAPSHOT, &pieces(&store, &checksum), true);
    let old =
        pieces(&store, &checksum).into_iter().map(|p| pb::SnapshotResponse { version: String::new(), ..p });
    let old = Script::default().streams(SNAPSHOT, &old.collect::<Vec<_>>(), true);
    let cut = Script::default().streams(SNAPSHOT, &pieces(&store, b""), true);
    let flipped =
        Script::default().streams(SNAPSHOT, &pieces(&store, &Sha256::digest(b"something else")), true);
    let denied = Script::default().fails(SNAPSHOT, Code::PermissionDenied, "etcdserver: permission denied");
    check(
        "snapshot",
        [
            Case::new("snapshot save /DIR/good.db", &good),
            Case::new("snapshot save /DIR/json.db -w json", &good),
            Case::new("snapshot save /DIR/old.db --command-timeout=20s", &old),
            Case::new("snapshot save /DIR/cut.db", &cut),
            Case::new("snapshot save /DIR/flipped.db", &flipped)
                .ours_alone("real etcdctl does not compare the checksum"),
            Case::new("snapshot save /DIR/denied.db", &denied),
            Case::new("snapshot save /DIR/no/directory.db", &good),
            Case::new("snapshot save", &good),
            Case::new("snapshot save a b", &good),
            Case::new("snapshot save a --endpoints=a:1,b:2", &good),
        ]
        .map(|case| case.within(directory.path()))
        .to_vec(),
    );
    let good = directory.join("good.db");
    assert_eq!(std::fs::read(&good).unwrap(), [&store[..], &checksum[..]].concat());
    assert_eq!(std::fs::metadata(&good).unwrap().permissions().mode() & 0o777, 0o600);
    let mut names: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["good.db", "json.db", "old.db"], "nothing unfinished stays behind");
}
