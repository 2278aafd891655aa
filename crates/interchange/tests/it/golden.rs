//! Files made by real etcd: for each release a snapshot, and the database and log of a killed member.
//!
//! Each of those members, with `--snapshot-count 20`, executed: lease grant; put a 1; put b 2 with the lease;
//! put a 3; del b; put c with 5000 bytes; txn put d 4, put e 5; users root and ann, role reader; compact 4;
//! put d 6; del e; put e 7; HashKV at revisions 5 to 10; snapshot save; 30 times put late; kill -9. The
//! `.txt` files list what this crate reads from them; `MAINSTAY_REWRITE_GOLDEN=1` rewrites them, to be
//! reviewed before they are committed.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use disk::{Disk as _, MemDisk};
use mainstay_interchange::backend::{Copy, Release};
use mainstay_interchange::bolt::{Bolt, Cursor};
use mainstay_interchange::wal::Wal;
use mainstay_interchange::{Command, DataDir, Error, Source, Status, hash_kv, snapshot};
use numbers::Revision;

use crate::kit::{copy, transcript, write_copy};

pub const RELEASES: [&str; 4] = ["3.4", "3.5", "3.6", "3.7"];
/// HashKV of all four members for revisions 5 to 10; the compact revision is 4.
const HASHES: [u32; 6] =
    [1_468_967_122, 2_897_024_621, 222_074_713, 486_260_849, 3_310_584_188, 2_237_637_283];
/// Hash and size printed by etcdutl 3.7.
const STATUS: [(u32, u64); 4] =
    [(1_321_923_996, 49_152), (666_127_637, 49_152), (2_098_270_980, 49_152), (3_661_467_887, 49_152)];

pub const WAL_NAME: &str = "0000000000000000-0000000000000000.wal";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name)
}

pub fn golden(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(path(&format!("{name}.gz"))).expect("is there");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).expect("is sound");
    bytes
}

fn expect(name: &str, found: &str) {
    let path = path(name);
    if std::env::var_os("MAINSTAY_REWRITE_GOLDEN").is_some() {
        std::fs::write(&path, found).expect("can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("is there");
    assert!(expected == found, "{name} should say\n{expected}\nand what is found is\n{found}");
}

/// A member's directory on a disk in memory.
pub fn data_dir(db: Vec<u8>, wal: Vec<u8>) -> MemDisk {
    let disk = MemDisk::new(1);
    disk.create_dir_all(Path::new("/d/member/wal")).expect("is made");
    disk.create_dir_all(Path::new("/d/member/snap")).expect("is made");
    disk.plant(Path::new("/d/member/snap/db"), db);
    disk.plant(&Path::new("/d/member/wal").join(WAL_NAME), wal);
    disk
}

pub fn describe(wal: &Wal) -> Result<String, Error> {
    let mut out = String::new();
    let _ = writeln!(out, "{:?}\n{:?}\n{:?}", wal.identity, wal.hard_state, wal.repair);
    for snapshot in &wal.snapshots {
        let _ = writeln!(out, "{snapshot:?}");
    }
    for index in wal.first()..=wal.last() {
        let Some(entry) = wal.entry(index)? else { continue };
        let _ = write!(out, "{} {} ", entry.index(), entry.term());
        match Command::of(&entry) {
            Ok(Command::Request(bytes)) => {
                let request: api::etcdserverpb::InternalRaftRequest =
                    prost::Message::decode(bytes).expect("was looked at");
                let _ = writeln!(out, "{}", brief(&request));
            }
            Ok(Command::ConfChange(change)) => {
                let context = String::from_utf8_lossy(change.context()).into_owned();
                let _ = writeln!(out, "{:?} {:x} {context}", change.r#type(), change.node_id());
            }
            command => {
                let _ = writeln!(out, "{command:?}");
            }
        }
    }
    Ok(out)
}

/// Prints the fields that are set; a password's hash and long values are shortened.
fn brief(request: &api::etcdserverpb::InternalRaftRequest) -> String {
    let mut text = format!("{request:?}").replace("InternalRaftRequest { ", "");
    while let Some(at) = text.find(": None") {
        let from = text[..at].rfind(' ').map_or(0, |from| from + 1);
        let to = at + ": None".len();
        let to = if text[to..].starts_with(", ") { to + 2 } else { to };
        text.replace_range(from..to, "");
    }
    match text.find("xxxxxxxx") {
        Some(at) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[test]
fn snapshots() {
    for (release, status) in RELEASES.into_iter().zip(STATUS) {
        let bytes = golden(&format!("{release}-snapshot"));
        let (backend, parts) = snapshot::open(bytes).expect("is sound");
        assert!(parts.has_digest);
        let found = Status::of(&backend).expect("is sound");
        let version = if release < "3.6" { String::new() } else { format!("{release}.0") };
        let (hash, total_size_bytes) = status;
        assert_eq!(
            found,
            Status { hash, revision: Revision(10), total_keys: 4, total_size_bytes, version },
            "{release}"
        );
        for (revision, hash) in (5..).zip(HASHES) {
            let found = hash_kv(&backend, Revision(revision)).expect("is there");
            assert_eq!(
                (found.hash, found.compact_revision, found.hash_revision),
                (hash, Revision(4), Revision(revision))
            );
        }
        assert!(hash_kv(&backend, Revision(3)).is_err_and(|e| e.to_string().contains("compacted, up to 4")));
        assert!(hash_kv(&backend, Revision(11)).is_err_and(|e| e.to_string().contains("the newest is 10")));
        expect(&format!("{release}-snapshot.txt"), &transcript(&backend).expect("is sound"));
    }
}

#[test]
fn a_copy_says_the_same() {
    for release in RELEASES {
        let (backend, _) = snapshot::open(golden(&format!("{release}-snapshot"))).expect("is sound");
        let bytes = copy(&backend, Release::of_cluster_version(release).expect("is known"));
        let (again, parts) = snapshot::open(bytes).expect("is sound");
        assert!(parts.has_digest);
        assert_eq!(transcript(&again).expect("reads"), transcript(&backend).expect("reads"));
        assert_eq!(hash_kv(&again, Revision(0)).expect("reads").hash, HASHES[5]);
        // Every byte of every key and value equals the original.
        let (was, mut is) = (Status::of(&backend).expect("sound"), Status::of(&again).expect("sound"));
        is.total_size_bytes = was.total_size_bytes;
        assert_eq!(was, is);
        // The format of 3.4 has fewer fields.
        let copy = Copy::of(&backend, Release::V3_4).expect("reads");
        let (older, _) = snapshot::open(write_copy(&copy).expect("copies")).expect("is sound");
        let meta = older.meta().expect("reads");
        assert_eq!((meta.term, meta.conf_state, meta.storage_version), (None, None, None));
    }
}

#[test]
fn data_directories() {
    for release in RELEASES {
        let db = golden(&format!("{release}-db"));
        let disk = data_dir(db, golden(&format!("{release}-wal")));
        let dir = DataDir::open(&disk, Path::new("/d")).expect("is sound");
        let again = DataDir::open(&disk, Path::new("/d"));
        assert!(again.is_err_and(|e| e.to_string().contains("locking")));
        let mut text = transcript(&dir.base).expect("is sound");
        text.push('\n');
        text.push_str(&describe(&dir.wal).expect("is sound"));
        let (base, term) = (dir.base_index(), dir.base_term());
        let _ = writeln!(text, "\nbase {base} {term:?}, committed {}, end {}", dir.committed(), dir.end());
        expect(&format!("{release}-data.txt"), &text);
        // The last 30 requests were acknowledged.
        let indexes: Vec<u64> = dir.entries().map(|entry| entry.expect("is sound").index()).collect();
        assert_eq!(indexes, (base + 1..=dir.end()).collect::<Vec<_>>());
        let mut newest = Revision(0);
        let mut history = dir.base.history().expect("reads");
        while let Some(change) = history.step().expect("reads") {
            newest = change.head.revision.main;
        }
        assert_eq!(newest + (dir.end() - base) as i64, Revision(40), "{release}");
    }
}

#[test]
fn a_state_that_was_sent_is_found() {
    let (db, old, wal) = (golden("3.6-db"), golden("3.6-snapshot"), golden("3.6-wal"));
    let disk = data_dir(old, wal);
    let refused = DataDir::open(&disk, Path::new("/d"));
    assert!(refused.is_err_and(|e| e.to_string().contains("000000000000002a.snap.db")));
    disk.plant(Path::new("/d/member/snap/000000000000002a.snap.db"), db);
    let dir = DataDir::open(&disk, Path::new("/d")).expect("is sound");
    assert_eq!((dir.base_index(), dir.end()), (51, 53));
}

/// Prints for each key of a database its path, the key in hex, and length and FNV-1a of its value.
fn dump<S: Source>(
    path: &str,
    bolt: &Bolt<S>,
    mut cursor: Cursor<'_, S>,
    out: &mut String,
) -> Result<(), Error> {
    while let Some(item) = cursor.step()? {
        if let Some(bucket) = item.bucket {
            let name = String::from_utf8_lossy(item.key);
            let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
            dump(&path, bolt, bolt.walk(&bucket), out)?;
            continue;
        }
        let hex: String = item.key.iter().map(|byte| format!("{byte:02x}")).collect();
        let hash = item.value.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let _ = writeln!(out, "{path} {hex} {} {hash:016x}", item.value.len());
    }
    Ok(())
}

/// Databases made by Go's bbolt 1.4 in several transactions of puts and deletions, with three page sizes,
/// with and without a free list in the file. Each has a bucket of several pages, one of long values, an
/// inline one and a nested one. The expected dump was also made by Go.
#[test]
fn databases_of_bbolt() {
    let expected = String::from_utf8(golden("bolt-dump")).expect("text");
    for page_bytes in [4096u32, 16_384, 65_536] {
        for kind in ["freelist", "nofreelist"] {
            let bytes = golden(&format!("bolt-{page_bytes}-{kind}"));
            let bolt = Bolt::whole(bytes.as_slice()).expect("opens");
            let meta = bolt.meta();
            assert_eq!((meta.page_bytes, meta.freelist.is_some()), (page_bytes, kind == "freelist"));
            let mut found = String::new();
            dump("", &bolt, bolt.root(), &mut found).expect("is sound");
            assert!(found == expected, "{page_bytes} {kind}");
            let checked = bolt.check().expect("is sound");
            assert_eq!((checked.buckets, checked.keys), (5, expected.lines().count() as u64));
            assert!(checked.free_pages > 0 && checked.used_pages + checked.free_pages == meta.high_water);
            // Without the newer meta page, the older one is used, at whichever position it is. Without both,
            // the database is refused.
            let mut damaged = bytes.clone();
            let newer = (meta.transaction % 2) as usize * page_bytes as usize;
            damaged[newer + 20] ^= 1;
            let older = Bolt::whole(damaged.as_slice()).expect("opens").meta();
            assert_eq!((older.page_bytes, older.transaction), (page_bytes, meta.transaction - 1));
            damaged[page_bytes as usize - newer + 20] ^= 1;
            let error = Bolt::whole(damaged.as_slice()).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("no header of the database is valid: it has a format version"), "{error}");
        }
    }
}
