//! Logs built by hand.

use std::path::Path;

use disk::{Disk as _, Fault, MemDisk};
use mainstay_interchange::backend::BackendLayout;
use mainstay_interchange::backend::{ConfState, Member, Membership, Release};
use mainstay_interchange::wal::{HardState, Identity, SegmentStart, SnapshotMark, Wal, segment};
use mainstay_interchange::{DataDir, NewDataDir, NewMember, WriteError};
use prost::Message as _;

pub const DIR: &str = "/d/member/wal";

pub fn identity() -> Identity {
    Identity { member_id: 0x8e9e_05c5_2164_694d, cluster_id: 0xcdf8_181e_3289_0cb2 }
}

/// A log that is built of frames in etcd's format.
pub struct Log {
    pub bytes: Vec<u8>,
    crc: u32,
}

impl Log {
    pub fn begin(crc: u32) -> Log {
        let mut log = Log { bytes: Vec::new(), crc };
        log.record(4, &[]);
        let Identity { member_id, cluster_id } = identity();
        let metadata = api::etcdserverpb::Metadata { node_id: Some(member_id), cluster_id: Some(cluster_id) };
        log.record(1, &metadata.encode_to_vec());
        log
    }

    pub fn record(&mut self, kind: i64, data: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, data);
        let data = (kind != 4).then(|| data.to_vec().into());
        let record = api::walpb::Record { r#type: Some(kind), crc: Some(self.crc), data }.encode_to_vec();
        let padding = (8 - record.len() % 8) % 8;
        let flag = if padding > 0 { 0x80 | padding as u64 } else { 0 };
        self.bytes.extend((record.len() as u64 | flag << 56).to_le_bytes());
        self.bytes.extend(&record);
        self.bytes.extend(vec![0; padding]);
    }

    pub fn entry(&mut self, index: u64, term: u64) {
        self.entry_with(index, term, b"");
    }

    pub fn entry_with(&mut self, index: u64, term: u64, data: &[u8]) {
        let data = Some(data.to_vec().into());
        let entry = api::raftpb::Entry { r#type: Some(0), term: Some(term), index: Some(index), data };
        self.record(2, &entry.encode_to_vec());
    }

    pub fn state(&mut self, term: u64, commit: u64) {
        let state = api::raftpb::HardState { term: Some(term), vote: Some(1), commit: Some(commit) };
        self.record(3, &state.encode_to_vec());
    }

    pub fn snapshot(&mut self, index: u64, term: u64) {
        self.snapshot_with(index, term, None);
    }

    pub fn snapshot_with(&mut self, index: u64, term: u64, conf_state: Option<api::raftpb::ConfState>) {
        let snapshot = api::walpb::Snapshot { index: Some(index), term: Some(term), conf_state };
        self.record(5, &snapshot.encode_to_vec());
    }

    pub fn change(&mut self, index: u64, term: u64, change: &api::raftpb::ConfChange) {
        let data = Some(change.encode_to_vec().into());
        let entry = api::raftpb::Entry { r#type: Some(1), term: Some(term), index: Some(index), data };
        self.record(2, &entry.encode_to_vec());
    }
}

fn open(files: &[(&str, Vec<u8>)]) -> Result<Wal, String> {
    let disk = MemDisk::new(1);
    disk.create_dir_all(Path::new(DIR)).expect("is made");
    for (name, bytes) in files {
        disk.plant(&Path::new(DIR).join(name), bytes.clone());
    }
    Wal::open(&disk, Path::new(DIR)).map_err(|e| e.to_string())
}

fn terms(wal: &Wal) -> Vec<(u64, u64)> {
    (wal.first()..=wal.last()).map(|index| (index, wal.term(index).expect("is there"))).collect()
}

pub const FIRST: &str = "0000000000000000-0000000000000000.wal";
const SECOND: &str = "0000000000000001-0000000000000004.wal";

#[test]
fn a_later_entry_takes_the_place_of_earlier_ones() {
    let mut log = Log::begin(0);
    for index in 1..=5 {
        log.entry(index, 1);
    }
    log.entry(3, 2);
    log.state(2, 2);
    let wal = open(&[(FIRST, log.bytes)]).expect("is sound");
    assert_eq!(terms(&wal), [(1, 1), (2, 1), (3, 2)]);
    assert_eq!(wal.hard_state, HardState { term: 2, vote: 1, commit: 2 });
    assert_eq!(wal.identity, identity());
    assert_eq!(wal.entry(3).expect("reads").map(|e| e.term()), Some(2));
    assert_eq!(wal.entry(4).expect("reads"), None);
}

#[test]
fn a_state_that_was_taken_over_ends_what_the_log_had_instead() {
    let log = |term: u64| {
        let mut log = Log::begin(0);
        for index in 1..=6 {
            log.entry(index, 1);
        }
        log.snapshot(4, term);
        log
    };
    // The member has saved the snapshot itself, so the entries of its log continue.
    let mut own = log(1);
    own.state(1, 4);
    assert_eq!(terms(&open(&[(FIRST, own.bytes)]).expect("is sound")).len(), 6);
    // A leader of another term has sent the snapshot. This member had a different entry 4, and so all its
    // later entries were different too.
    let mut sent = log(3);
    sent.state(3, 4);
    let bytes = sent.bytes.clone();
    assert_eq!(terms(&open(&[(FIRST, bytes)]).expect("is sound")), [(1, 1), (2, 1), (3, 1)]);
    sent.entry(5, 3);
    assert_eq!(terms(&open(&[(FIRST, sent.bytes)]).expect("is sound")), [(5, 3)]);
}

#[test]
fn files_follow_each_other() {
    let mut first = Log::begin(0);
    (1..=3).for_each(|index| first.entry(index, 1));
    let crc = first.crc;
    let second = |crc| {
        let mut second = Log::begin(crc);
        second.state(1, 3);
        second.entry_with(4, 1, &[7; 300_000]);
        second.bytes.extend([0; 4096]);
        second.bytes
    };
    // The preallocated rest of a file is ignored.
    let mut padded = first.bytes.clone();
    padded.extend([0; 100]);
    let wal = open(&[(FIRST, padded), (SECOND, second(crc)), ("0.tmp", vec![1]), ("x.wal", vec![1])]);
    let wal = wal.expect("is sound");
    assert_eq!(terms(&wal), [(1, 1), (2, 1), (3, 1), (4, 1)]);
    assert_eq!(wal.entry(4).expect("reads").map(|e| e.data().len()), Some(300_000));
    let refused = |files: &[(&str, Vec<u8>)], why: &str| {
        let error = open(files).err().unwrap_or_default();
        assert!(error.contains(why), "{error:?} should be about {why}");
    };
    let third = "0000000000000002-0000000000000004.wal";
    refused(&[(FIRST, first.bytes.clone()), (SECOND, second(crc ^ 1))], "does not continue");
    refused(&[(FIRST, first.bytes.clone()), (third, second(crc))], "is missing");
    let torn = first.bytes[..first.bytes.len() - 3].to_vec();
    refused(&[(FIRST, torn.clone()), (SECOND, second(crc))], "longer than what is left");
    // In the last file, and only there, a cut frame is an unfinished write.
    let wal = open(&[(FIRST, torn)]).expect("is sound");
    assert_eq!(terms(&wal).len(), 2);
    assert!(wal.repair.is_some_and(|repair| repair.file == FIRST));
    // The first remaining file may have any sequence number.
    let wal = open(&[(SECOND, second(crc))]).expect("is sound");
    assert_eq!(terms(&wal), [(4, 1)]);
    refused(&[], "does not identify its member");
}

#[test]
fn gaps_are_refused() {
    let mut log = Log::begin(0);
    log.entry(1, 1);
    log.entry(3, 1);
    assert!(open(&[(FIRST, log.bytes)]).is_err_and(|e| e.contains("entry 3 follows entry 1")));
    // This gap is allowed if a whole state was received in between.
    let mut log = Log::begin(0);
    log.entry(1, 1);
    log.snapshot(7, 2);
    log.state(2, 7);
    log.entry(8, 2);
    let wal = open(&[(FIRST, log.bytes)]).expect("is sound");
    assert_eq!(terms(&wal), [(8, 2)]);
    assert_eq!(wal.snapshots, [SnapshotMark { index: 7, term: 2, conf_state: None }]);
    // A snapshot counts only once it is committed.
    let mut log = Log::begin(0);
    log.entry(1, 1);
    log.state(1, 1);
    log.snapshot(7, 2);
    assert_eq!(open(&[(FIRST, log.bytes)]).expect("is sound").snapshots, []);
}

#[test]
fn an_unfinished_write_is_left_out() {
    let mut log = Log::begin(0);
    log.entry(1, 1);
    let sound = log.bytes.len();
    log.entry_with(2, 1, &[5; 3000]);
    // The disk has the first sector of the record, and not the second one.
    let mut bytes = log.bytes.clone();
    bytes[1024..1536].fill(0);
    let wal = open(&[(FIRST, bytes)]).expect("is sound");
    assert_eq!((terms(&wal), wal.repair.map(|r| r.offset)), (vec![(1, 1)], Some(sound as u64)));
    // No sector is all zeros, so this is damage and not an unfinished write.
    let mut bytes = log.bytes;
    bytes[1024..1536].fill(1);
    assert!(open(&[(FIRST, bytes)]).is_err_and(|e| e.contains("checksum")));
}

#[test]
fn a_first_file_comes_back() {
    let conf_state = ConfState { voters: vec![identity().member_id], learners: Vec::new() };
    let snapshot = SnapshotMark { index: 9, term: 4, conf_state: Some(conf_state) };
    let hard_state = HardState { term: 4, vote: identity().member_id, commit: 9 };
    let start =
        SegmentStart { identity: identity(), hard_state, snapshot: snapshot.clone(), entries: Vec::new() };
    let wal = open(&[(FIRST, segment(&start))]).expect("is sound");
    assert_eq!((wal.identity, wal.hard_state), (identity(), hard_state));
    assert_eq!(wal.snapshots, [SnapshotMark::default(), snapshot]);
    assert_eq!(terms(&wal), []);
    let entry = |index, data: &'static [u8]| api::raftpb::Entry {
        r#type: Some(0),
        term: Some(5),
        index: Some(index),
        data: Some(data.into()),
    };
    let entries = vec![entry(10, b""), entry(11, b"x")];
    let wal =
        open(&[(FIRST, segment(&SegmentStart { entries: entries.clone(), ..start }))]).expect("is sound");
    assert_eq!((wal.first(), wal.last(), wal.term(10)), (10, 11, Some(5)));
    assert_eq!(wal.entry(11).expect("is read"), Some(entries[1].clone()));
}

/// Makes a directory for the only member of a cluster.
fn make(disk: &MemDisk) -> Result<(), WriteError> {
    let only = Member { id: identity().member_id, name: "m".to_owned(), ..Member::default() };
    let membership = Membership { members: vec![only], ..Membership::default() };
    make_with(disk, Release::V3_6, &membership, None)
}

/// Makes a directory that stands at entry 9 of term 4. Its database has these members, and stores `noted` as
/// raft's configuration if given.
pub fn make_with(
    disk: &MemDisk,
    release: Release,
    membership: &Membership,
    noted: Option<ConfState>,
) -> Result<(), WriteError> {
    let id = identity();
    let member = NewMember {
        identity: id,
        index: 9,
        term: 4,
        release,
        conf_state: membership.conf_state(),
        newest_term: 4,
        vote: id.member_id,
        entries: Vec::new(),
    };
    let new = NewDataDir::begin(disk, Path::new("/d"), member)?;
    let mut meta = new.meta(None);
    meta.conf_state = noted.or(meta.conf_state);
    let mut layout = BackendLayout::new(release);
    layout.meta(&meta)?;
    layout.membership(membership)?;
    let mut database = new.database(layout.finish()?)?;
    database.meta(&meta)?;
    database.membership(membership)?;
    new.finish(database, membership)
}

#[test]
fn a_directory_cut_off_by_a_power_cut_is_no_member() {
    let whole = MemDisk::new(1);
    make(&whole).expect("is made");
    assert!(make(&whole).is_err_and(|e| e.to_string().contains("already exists")));
    let mut finished = 0;
    for op in 1..=whole.ops() {
        for seed in 0..10 {
            let disk = MemDisk::new(seed * 1000 + op);
            disk.fail_at(op, Fault::PowerCut);
            let made = make(&disk);
            assert!(made.is_err(), "operation {op} counts");
            disk.crash();
            let is_member = disk.exists(&Path::new(DIR).join(FIRST)).expect("says");
            let opened = DataDir::open(&disk, Path::new("/d"));
            // With a log the directory is complete; without a log it counts as empty.
            assert_eq!(
                opened.is_ok(),
                is_member,
                "operation {op}: {:?}",
                opened.err().map(|e| e.to_string())
            );
            finished += u32::from(is_member);
        }
    }
    assert!(finished > 0, "the name may be there before it is known to be");
    whole.crash();
    assert!(DataDir::open(&whole, Path::new("/d")).is_ok(), "what is finished is durable");
}

/// A directory for the only member; `then` appends to its log.
fn new_dir(then: impl FnOnce(&mut Log)) -> MemDisk {
    let disk = MemDisk::new(1);
    make(&disk).expect("is made");
    let path = Path::new(DIR).join(FIRST);
    let bytes = disk.contents(&path).expect("is there");
    // Find the end of the file, to continue there.
    let (mut at, mut crc) = (0, 0);
    while at < bytes.len() {
        let head = u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (len, padding) = ((head & !(0xff << 56)) as usize, (head >> 56 & 7) as usize);
        crc = api::walpb::Record::decode(&bytes[at + 8..at + 8 + len]).expect("is one").crc();
        at += 8 + len + padding;
    }
    let mut log = Log { bytes, crc };
    then(&mut log);
    disk.plant(&path, log.bytes);
    disk
}

#[test]
fn the_only_voter_has_committed_all_it_has() {
    let end = |disk: &MemDisk| {
        let dir = DataDir::open(disk, Path::new("/d")).expect("is sound");
        assert_eq!((dir.base_index(), dir.base_term(), dir.committed()), (9, Some(4), 9));
        assert_eq!(dir.entries().count() as u64, dir.end() - 9);
        dir.end()
    };
    assert_eq!(end(&new_dir(|_| {})), 9);
    assert_eq!(end(&new_dir(|log| (10..=12).for_each(|index| log.entry(index, 4)))), 12);
    // From the entry that adds a second voter on, both must have an entry before it is committed.
    let add_other = |log: &mut Log| {
        log.entry(10, 4);
        let change = api::raftpb::ConfChange { r#type: Some(0), node_id: Some(77), ..Default::default() };
        log.change(11, 4, &change);
        log.entry(12, 4);
    };
    assert_eq!(end(&new_dir(add_other)), 11);
    // Committed entries must exist.
    let disk = new_dir(|log| {
        log.entry(10, 4);
        log.state(4, 12);
    });
    assert!(
        DataDir::open(&disk, Path::new("/d")).is_err_and(|e| e.to_string().contains("entry 11 is committed"))
    );
}

/// An image of the old store with these keys right below the root, after entry `index`, framed as etcd does.
/// This member is the only one.
fn old_image(keys: &str, index: u64) -> Vec<u8> {
    let id = format!("{:x}", identity().member_id);
    let own = r#"{"Children":{"raftAttributes":{"Value":"{}"}}}"#;
    let cluster = format!(r#"{{"Children":{{"members":{{"Children":{{"{id}":{own}}}}}}}}}"#);
    let image = format!(r#"{{"Root":{{"Children":{{"0":{cluster},"1":{{"Children":{keys}}}}}}}}}"#);
    let metadata = api::raftpb::SnapshotMetadata { index: Some(index), term: Some(4), ..Default::default() };
    let snapshot =
        api::raftpb::Snapshot { data: Some(image.into()), metadata: Some(metadata) }.encode_to_vec();
    let crc = crc32c::crc32c(&snapshot);
    api::snappb::Snapshot { crc: Some(crc), data: Some(snapshot.into()) }.encode_to_vec()
}

#[test]
fn nothing_of_the_old_store_is_lost_without_a_word() {
    // The database stands at entry 9, and entry 7 wrote to the old store: fields 2, 3 and 4 are its method,
    // path, value.
    let old_put = b"\x12\x03PUT\x1a\x06/1/foo\x22\x01x";
    let own = api::raftpb::ConfChange { node_id: Some(identity().member_id), ..Default::default() };
    let only = Member { id: identity().member_id, ..Member::default() };
    let membership = Membership { members: vec![only], ..Membership::default() };
    let found = |image: Option<Vec<u8>>, at: u64, first: u64| {
        let disk = MemDisk::new(1);
        make_with(&disk, Release::V3_5, &membership, None).expect("is made");
        let mut log = Log::begin(0);
        log.snapshot(0, 0);
        for index in first..=9 {
            match index {
                1 => log.change(1, 4, &own),
                _ => log.entry_with(index, 4, if index == 7 { old_put } else { b"" }),
            }
        }
        log.snapshot(at, 4);
        log.state(4, 9);
        disk.plant(&Path::new(DIR).join(FIRST), log.bytes);
        for name in disk.list(Path::new("/d/member/snap")).expect("is there") {
            if name.ends_with(".snap") {
                disk.remove(&Path::new("/d/member/snap").join(name)).expect("is removed");
            }
        }
        if let Some(image) = image {
            let name = format!("/d/member/snap/0000000000000004-{at:016x}.snap");
            disk.plant(Path::new(&name), image);
        }
        let opened = DataDir::open(&disk, Path::new("/d"));
        opened.map(|dir| dir.old_store.loss()).map_err(|error| error.to_string())
    };
    let says = |image: Option<Vec<u8>>, at: u64, what: &str| {
        let loss =
            found(image, at, 1).expect("is sound").unwrap_or_else(|| panic!("{what}: nothing is said"));
        assert!(loss.contains(what), "{loss}");
    };
    says(None, 9, "entry 7, which is newer than its newest image, requests PUT /1/foo");
    says(Some(old_image("{}", 6)), 6, "entry 7");
    assert_eq!(found(Some(old_image("{}", 7)), 7, 1), Ok(None), "the image has it, and it is gone again");
    assert_eq!(found(Some(old_image("null", 9)), 9, 1), Ok(None));
    says(Some(old_image(r#"{"foo":{}}"#, 7)), 7, "1 keys or directories");
    // If an image cannot be read, etcd uses the state before it; in this test, that is the log from its first
    // entry on.
    let mut torn = old_image("{}", 9);
    let last = torn.len() - 1;
    torn[last] ^= 1;
    for unreadable in [b"not an image".to_vec(), Vec::new(), torn, old_image("{}", 6)] {
        says(Some(unreadable.clone()), 9, "entry 7");
        // If the log does not reach back that far, the lost image may have contained anything, including
        // members.
        let why = found(Some(unreadable), 9, 3).expect_err("is not certain");
        assert!(why.contains("the list of members is unknown") && why.contains("0009.snap"), "{why}");
    }
    let deep = format!("{}{{}}{}", r#"{"a":{"Children":"#.repeat(200), "}}".repeat(200));
    says(Some(old_image(&deep, 9)), 9, "cannot be read");
}
