//! Damaged files. If acknowledged data is lost, the member refuses to start and names the file and the
//! position; it never skips the data. The rest of an interrupted write is cut off.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use testkit::TempDir;

use crate::member::Setup;
use crate::{filler, run};

const KEYS: u32 = 300;
const VALUE_BYTES: usize = 512 << 10;

/// Returns the log segments, oldest first.
fn segments(setup: &Setup) -> Vec<PathBuf> {
    let dir = setup.data_dir.join("member/log");
    let entries = fs::read_dir(dir).expect("the log is there").map(|entry| entry.expect("readable").path());
    let mut paths: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "seg")).collect();
    paths.sort();
    paths
}

/// Returns the offset after the last byte of a file that is not zero.
pub fn end(path: &Path) -> u64 {
    let bytes = fs::read(path).expect("readable");
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1)
}

pub fn open(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).expect("the file can be opened")
}

/// Inverts some bits of a file; a second call restores them.
pub fn flip(path: &Path, offset: u64) {
    let file = open(path);
    let mut bytes = [0; 3];
    file.read_exact_at(&mut bytes, offset).expect("readable");
    file.write_all_at(&bytes.map(|byte| !byte), offset).expect("writable");
}

/// Creates a data directory with several sealed segments, whose member has ended.
fn written(setup: &Setup) {
    run(async {
        let member = setup.start();
        let client = member.client().await;
        for number in 0..KEYS {
            client.put(format!("k/{number:04}"), filler(number, VALUE_BYTES)).await.expect("puts are served");
        }
        member.kill();
    });
}

/// Starts a member, and checks that all keys exist. Returns its log output.
fn assert_whole(setup: &Setup) -> String {
    run(async {
        let member = setup.start();
        let client = member.client().await;
        for number in 0..KEYS {
            let kv = client.get(format!("k/{number:04}")).await.expect("reads are served");
            assert_eq!(kv.expect("the key is there").value, filler(number, VALUE_BYTES));
        }
        let said = member.said();
        member.kill();
        said
    })
}

#[test]
fn damaged_segments_are_refused_by_name_and_offset() {
    let dir = TempDir::new("damage");
    // Without a checkpoint, a start reads the whole log.
    let setup = Setup::new(dir.path()).flag("--snapshot-count=1000000");
    written(&setup);
    let paths = segments(&setup);
    assert!(paths.len() >= 4, "{paths:?}");
    let (first, second) = (&paths[0], &paths[1]);
    for (path, offset) in [(first, 20), (first, 5000), (first, 30 << 20), (second, 4100), (second, 60 << 20)]
    {
        flip(path, offset);
        let said = setup.refused();
        assert!(said.contains(&format!("{} is damaged at offset ", path.display())), "{said}");
        assert!(said.contains("acknowledged"), "{said}");
        flip(path, offset);
    }
    assert_whole(&setup);

    // The segment is cut off in the middle of a record.
    let aside = dir.path().join("aside");
    fs::copy(second, &aside).expect("a copy can be made");
    open(second).set_len(40 << 20).expect("the file can be cut");
    let said = setup.refused();
    assert!(said.contains(&second.display().to_string()), "{said}");
    // The segment is missing.
    fs::remove_file(second).expect("the file can be removed");
    let said = setup.refused();
    assert!(said.contains(&second.display().to_string()), "{said}");
    fs::rename(&aside, second).expect("the copy can be put back");
    assert_whole(&setup);
}

/// Writes one more value that takes several sectors, and kills the member. The last sector is not full.
/// Returns the segment, and the offset at which the log ends.
fn written_last(setup: &Setup) -> (PathBuf, u64) {
    run(async {
        let member = setup.start();
        let client = member.client().await;
        let mut number = 0;
        loop {
            client.put("last", filler(number, 4000 + number as usize)).await.expect("puts are served");
            let paths = segments(setup);
            let last = paths.into_iter().rfind(|path| end(path) > 4096 + 200).expect("a segment in use");
            let at = end(&last).next_multiple_of(8);
            if (8..=400).contains(&(at % 512)) {
                member.kill();
                return (last, at);
            }
            number += 40;
        }
    })
}

#[test]
fn a_torn_tail_is_cut_off() {
    let dir = TempDir::new("torn");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=1000000");
    written(&setup);
    for garbage in [&[0xff; 512][..], &[7; 5000], b"x"] {
        // The header of the last record is intact, but some other sectors of the record are not.
        let (last, at) = written_last(&setup);
        open(&last).write_all_at(garbage, at / 512 * 512).expect("writable");
        let said = assert_whole(&setup);
        assert!(
            said.contains("repaired the end of the log: cut off the remains of an interrupted write"),
            "{said}"
        );
    }
}

#[test]
fn an_end_that_no_interrupted_write_leaves_is_refused() {
    let dir = TempDir::new("no-torn");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=1000000");
    let (last, at) = written_last(&setup);
    // The damage is in the sector in which the last record ends, which was written as a whole or not at all.
    open(&last).write_all_at(b"garbage", at).expect("writable");
    let said = setup.refused();
    assert!(said.contains(&format!("{} is damaged at offset {at}", last.display())), "{said}");
    open(&last).write_all_at(&[0; 7], at).expect("writable");
    setup.start().stop();
}

#[test]
fn a_damaged_checkpoint_is_made_anew_from_a_log_that_holds_everything() {
    let dir = TempDir::new("manifest");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=10").flag("--log-level=debug");
    run(async {
        let member = setup.start();
        let client = member.client().await;
        for number in 0..KEYS {
            client.put(format!("k/{number:04}"), filler(number, VALUE_BYTES)).await.expect("puts are served");
        }
        member.wait_for("saved a checkpoint");
        member.kill();
    });
    assert_whole(&setup);
    let checkpoints = setup.data_dir.join("member/checkpoint");
    let files: Vec<PathBuf> = fs::read_dir(&checkpoints)
        .expect("it is there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    assert!(files.len() >= 2, "{files:?}");
    // The log still holds everything since the first entry, and is read instead of the checkpoint.
    let manifest = checkpoints.join("MANIFEST");
    flip(&manifest, end(&manifest) / 2);
    let said = assert_whole(&setup);
    let words = "the checkpoint is damaged; the log is complete and is read instead";
    assert!(said.contains(words) && said.contains(&manifest.display().to_string()), "{said}");

    // The log is missing while its checkpoint exists.
    let log = setup.data_dir.join("member/log");
    fs::rename(&log, dir.path().join("log")).expect("the log can be moved");
    let said = setup.refused();
    assert!(said.contains(&log.display().to_string()), "{said}");
    let _ = fs::remove_dir_all(&log);
    fs::rename(dir.path().join("log"), &log).expect("the log can be moved back");
    assert_whole(&setup);
}

#[test]
fn a_value_that_is_damaged_is_an_error_for_its_reader_only() {
    let dir = TempDir::new("value");
    let setup = Setup::new(dir.path()).flag("--snapshot-count=10").flag("--log-level=debug");
    run(async {
        let member = setup.start();
        let client = member.client().await;
        for number in 0..KEYS {
            client.put(format!("k/{number:04}"), filler(number, VALUE_BYTES)).await.expect("puts are served");
        }
        member.wait_for("saved a checkpoint");
        // Damage the file under a running member, as a failing disk would.
        flip(&segments(&setup)[0], 10 << 20);
        let mut damaged = Vec::new();
        for number in 0..KEYS {
            match client.get(format!("k/{number:04}")).await {
                Ok(kv) => assert_eq!(kv.expect("it is there").value, filler(number, VALUE_BYTES)),
                Err(status) => {
                    assert_eq!(status.code, api::Code::Internal);
                    assert!(status.message.contains("is damaged at offset"), "{status}");
                    damaged.push(number);
                }
            }
        }
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        client.put("after", "x").await.expect("the member goes on");
        member.stop();
    });
}
