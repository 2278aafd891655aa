//! Determines the members of directories whose sources contradict each other.

use std::path::Path;

use api::raftpb::{ConfChange, ConfChangeType};
use disk::{Disk as _, MemDisk};
use mainstay_interchange::DataDir;
use mainstay_interchange::backend::{ConfState, Member, Membership, Release};
use prost::Message as _;
use serde_json::{Map, Value, json};

use crate::wal::{DIR, FIRST, Log, identity, make_with};

/// Id of the member that owns the directory.
fn own() -> u64 {
    identity().member_id
}

fn member(id: u64) -> Member {
    Member { id, peer_urls: vec![format!("http://{id:x}:2380")], ..Member::default() }
}

fn membership(ids: &[u64]) -> Membership {
    Membership { members: ids.iter().map(|id| member(*id)).collect(), ..Membership::default() }
}

fn voters(ids: &[u64]) -> ConfState {
    ConfState { voters: ids.to_vec(), learners: Vec::new() }
}

/// An image of the old store at entry `index` of term 4, with these members.
fn image(index: u64, ids: &[u64], raft: Option<&ConfState>) -> Vec<u8> {
    let members: Map<String, Value> = ids
        .iter()
        .map(|id| {
            let raft = json!({ "peerURLs": member(*id).peer_urls }).to_string();
            (format!("{id:x}"), json!({ "Children": { "raftAttributes": { "Value": raft } } }))
        })
        .collect();
    let json =
        json!({ "Root": { "Children": { "0": { "Children": { "members": { "Children": members } } } } } });
    let metadata = api::raftpb::SnapshotMetadata {
        index: Some(index),
        term: Some(4),
        conf_state: raft.map(api::raftpb::ConfState::from),
    };
    let data = api::raftpb::Snapshot { data: Some(json.to_string().into()), metadata: Some(metadata) }
        .encode_to_vec();
    api::snappb::Snapshot { crc: Some(crc32c::crc32c(&data)), data: Some(data.into()) }.encode_to_vec()
}

/// A membership change; `more` is added to the member in its context.
fn change(kind: ConfChangeType, of: &Member, more: &Value) -> ConfChange {
    let mut context = json!({ "id": of.id, "peerURLs": of.peer_urls });
    for (name, value) in more.as_object().into_iter().flatten() {
        context[name] = value.clone();
    }
    ConfChange {
        r#type: Some(kind.into()),
        node_id: Some(of.id),
        context: Some(context.to_string().into()),
        ..ConfChange::default()
    }
}

/// Parts of a directory whose state is at entry 9.
struct Made {
    release: Release,
    bucket: Membership,
    noted: Option<ConfState>,
    images: Vec<(u64, Vec<u8>)>,
    log: Log,
}

impl Made {
    /// Without images, and with an empty log.
    fn new(release: Release, bucket: &[u64]) -> Made {
        let mut log = Log::begin(0);
        log.snapshot(0, 0);
        Made { release, bucket: membership(bucket), noted: None, images: Vec::new(), log }
    }

    /// Adds an image, a snapshot mark for it in the log, and entries up to the tenth, which is not known to
    /// be committed.
    fn with_image(mut self, index: u64, image: Vec<u8>, marked: Option<&ConfState>) -> Made {
        self.images.push((index, image));
        self.log.snapshot_with(index, 4, marked.map(Into::into));
        (index + 1..=10).for_each(|index| self.log.entry(index, 4));
        self
    }

    fn disk(mut self) -> MemDisk {
        self.log.state(4, 9);
        let disk = MemDisk::new(1);
        make_with(&disk, self.release, &self.bucket, self.noted).expect("is made");
        disk.plant(&Path::new(DIR).join(FIRST), self.log.bytes);
        let snap = Path::new("/d/member/snap");
        for name in disk.list(snap).expect("is there") {
            if name.ends_with(".snap") {
                disk.remove(&snap.join(name)).expect("is removed");
            }
        }
        for (index, image) in self.images {
            disk.plant(&snap.join(format!("0000000000000004-{index:016x}.snap")), image);
        }
        disk
    }

    fn open(self) -> Result<DataDir, String> {
        DataDir::open(&self.disk(), Path::new("/d")).map_err(|error| error.to_string())
    }

    fn refused(self, what: &str) {
        let why = self.open().err().unwrap_or_else(|| panic!("{what}: is taken"));
        assert!(why.contains(what), "{what}: {why}");
    }
}

fn ids(dir: &DataDir) -> Vec<u64> {
    dir.membership.members.iter().map(|member| member.id).collect()
}

const UNCERTAIN: &str = "it is not certain who the members are";

#[test]
fn members_of_old_releases_are_those_of_the_image() {
    // A snapshot of a one-member cluster, restored for three members by etcdctl 3.4: the bucket `members` is
    // unchanged.
    let three = [1, 2, own()];
    let restored = |raft: Option<&ConfState>, marked: Option<&ConfState>| {
        Made::new(Release::V3_5, &[own()]).with_image(3, image(3, &three, raft), marked)
    };
    let raft = voters(&[own(), 2, 1]);
    for (raft, marked) in [(Some(&raft), None), (None, Some(&raft))] {
        let dir = restored(raft, marked).open().expect("is sound");
        assert_eq!(ids(&dir), three);
        // The member is not a lone voter, so it must not treat all entries of its own log as committed.
        assert_eq!((dir.voters.iter().copied().collect::<Vec<_>>(), dir.end()), (three.to_vec(), 9));
    }
    // Restored for a single member, so the previous member is no longer a member.
    let alone = voters(&[own()]);
    let dir =
        Made::new(Release::V3_5, &[1, own()]).with_image(3, image(3, &[own()], None), Some(&alone)).open();
    let dir = dir.expect("is sound");
    assert_eq!((ids(&dir), dir.end()), (vec![own()], 10));
    // The members of the image differ from raft's configuration.
    let other = voters(&[1, own()]);
    restored(Some(&other), None).refused(UNCERTAIN);
    restored(None, Some(&other)).refused(UNCERTAIN);
    restored(None, None).refused("the voting members are unknown");
    // The directory of another member.
    Made::new(Release::V3_5, &[own()])
        .with_image(3, image(3, &[1, 2], None), Some(&voters(&[1, 2])))
        .refused("which is not one of the members at entry 9: 1, 2");
}

#[test]
fn changes_behind_the_image_are_followed_as_etcd_does() {
    use ConfChangeType::{ConfChangeAddLearnerNode as Learn, ConfChangeAddNode as Add};
    use ConfChangeType::{ConfChangeRemoveNode as Remove, ConfChangeUpdateNode as Update};
    let moved = Member { peer_urls: vec!["http://moved:2380".to_owned()], ..member(1) };
    let same_url = Member { id: 4, ..member(own()) };
    let nothing = json!({});
    let mut made = Made::new(Release::V3_5, &[]);
    made.bucket = membership(&[1, 2, 3, 4, 5, own()]);
    let log = &mut made.log;
    log.change(1, 4, &change(Add, &member(own()), &nothing));
    log.change(2, 4, &change(Add, &member(1), &nothing));
    log.change(3, 4, &change(Learn, &member(2), &json!({ "isLearner": true })));
    log.change(4, 4, &change(Add, &member(2), &json!({ "isPromote": true })));
    // Every member refuses this change when it applies it, because another member has the URL.
    log.change(5, 4, &change(Add, &same_url, &nothing));
    log.change(6, 4, &change(Update, &moved, &nothing));
    log.change(7, 4, &change(Add, &member(3), &nothing));
    log.change(8, 4, &ConfChange { r#type: Some(Remove.into()), node_id: Some(3), ..ConfChange::default() });
    let id = format!("{:x}", own());
    let path = format!("/0/members/{id}/attributes");
    let value = r#"{"name":"m","clientURLs":["http://c"]}"#;
    let put: Vec<u8> = [(0x12, "PUT"), (0x1a, &path), (0x22, value)]
        .into_iter()
        .flat_map(|(tag, text)| [&[tag, text.len() as u8], text.as_bytes()].concat())
        .collect();
    log.entry_with(9, 4, &put);
    let dir = made.open().expect("is sound");
    assert_eq!(ids(&dir), [1, 2, own()]);
    assert_eq!(dir.membership.members[0].peer_urls, moved.peer_urls);
    let this = &dir.membership.members[2];
    assert_eq!((this.name.as_str(), this.client_urls.as_slice()), ("m", &["http://c".to_owned()][..]));
    assert_eq!(dir.membership.removed.iter().copied().collect::<Vec<_>>(), [3]);
    assert_eq!(dir.voters.len(), 3);
}

#[test]
fn members_of_new_releases_are_held_against_raft() {
    let three = [1, 2, own()];
    let marked = |bucket: &[u64], mark: Option<&ConfState>, raft: Option<&ConfState>| {
        Made::new(Release::V3_6, bucket).with_image(9, image(9, &three, raft), mark)
    };
    let raft = voters(&three);
    // From 3.6 on the bucket counts, and the image is not read.
    let mut torn = marked(&three, Some(&raft), None);
    torn.images[0].1.truncate(100);
    assert_eq!(ids(&torn.open().expect("is sound")), three);
    // etcd 3.4 wrote the mark, so raft's configuration is only in the image.
    assert_eq!(ids(&marked(&three, None, Some(&raft)).open().expect("is sound")), three);
    for (mark, head) in [(Some(&raft), None), (None, Some(&raft))] {
        marked(&[own()], mark, head).refused(UNCERTAIN);
        // The bucket lacks a promotion. With the bucket, this member would count only its own vote.
        let mut forged = marked(&three, mark, head);
        forged.bucket.members[0].is_learner = true;
        forged.bucket.members[1].is_learner = true;
        forged.noted = Some(raft.clone());
        forged.refused(
            "the list of members has 8e9e05c52164694d, 1 (learner), 2 (learner), and raft's configuration",
        );
    }
    // The log alone contains the change too.
    let from_the_first = |bucket: &[u64]| {
        let mut made = Made::new(Release::V3_6, bucket);
        for (index, id) in (1..).zip(three) {
            made.log.change(index, 4, &change(ConfChangeType::ConfChangeAddNode, &member(id), &json!({})));
        }
        (4..=9).for_each(|index| made.log.entry(index, 4));
        made
    };
    assert_eq!(ids(&from_the_first(&three).open().expect("is sound")), three);
    from_the_first(&[own()]).refused(UNCERTAIN);
    // The database stores the configurations that a start passes; any other one is not from this cluster's
    // log.
    let mut noted = from_the_first(&three);
    noted.noted = Some(voters(&[1, 2]));
    assert_eq!(ids(&noted.open().expect("is sound")), three);
    let mut noted = from_the_first(&three);
    noted.noted = Some(voters(&[2, own()]));
    noted.refused("by the database's own note");
}

#[test]
fn a_note_that_was_restored_with_a_snapshot_does_not_count() {
    use ConfChangeType::{ConfChangeAddLearnerNode as Learn, ConfChangeAddNode as Add};
    // Other URLs, another token or another number of members lead to other ids; the stored configuration is
    // that of the saved cluster.
    let three = [1, 2, own()];
    let saved = [voters(&[0x11, 0x12, 0x13]), voters(&[own()]), voters(&[1, 2, 3, 4, own()])];
    let restored = |noted: &ConfState| {
        let mut made = Made::new(Release::V3_6, &three);
        for (index, id) in (1..).zip(three) {
            made.log.change(index, 1, &change(Add, &member(id), &json!({})));
        }
        made.log.snapshot_with(3, 1, Some((&voters(&three)).into()));
        made.noted = Some(noted.clone());
        made
    };
    for noted in &saved {
        let mut made = restored(noted);
        (4..=10).for_each(|index| made.log.entry(index, 4));
        let dir = made.open().expect("is sound");
        assert_eq!((ids(&dir), dir.voters.len(), dir.end()), (three.to_vec(), 3, 9));
        // A change that every member refused has not changed the stored configuration, and neither has one
        // that is not applied yet.
        let mut made = restored(noted);
        let same_url = Member { id: 9, ..member(own()) };
        made.log.change(4, 4, &change(Add, &same_url, &json!({})));
        (5..=9).for_each(|index| made.log.entry(index, 4));
        made.log.change(10, 4, &change(Learn, &member(4), &json!({ "isLearner": true })));
        assert_eq!(ids(&made.open().expect("is sound")), three);
        // A change that is in the database has rewritten the stored configuration, so a foreign one is
        // refused.
        let mut made = restored(noted);
        made.bucket.members.push(Member { is_learner: true, ..member(4) });
        made.log.change(4, 4, &change(Learn, &member(4), &json!({ "isLearner": true })));
        (5..=10).for_each(|index| made.log.entry(index, 4));
        made.refused("by the database's own note");
    }
    // The list of members is still checked against the mark.
    let mut made = restored(&saved[1]);
    made.bucket = membership(&[own()]);
    (4..=10).for_each(|index| made.log.entry(index, 4));
    made.refused(UNCERTAIN);
}

#[test]
fn an_image_counts_if_the_log_names_it_and_it_can_be_read() {
    let raft = voters(&[1, own()]);
    let older = || Made::new(Release::V3_5, &[own()]).with_image(3, image(3, &[own(), 1], None), Some(&raft));
    // The newest image is torn: the one before it is used, with the entries after it.
    let mut made = older();
    made.log.snapshot(8, 4);
    let mut torn = image(8, &[own()], None);
    torn.truncate(100);
    made.images.push((8, torn));
    assert_eq!(ids(&made.open().expect("is sound")), [1, own()]);
    // The newest image is not named by a mark: etcd was killed before the snapshot was recorded.
    let mut made = older();
    made.images.push((8, image(8, &[own()], None)));
    assert_eq!(ids(&made.open().expect("is sound")), [1, own()]);
    // There is neither an image nor a usable log.
    let mut made = Made::new(Release::V3_5, &[own()]);
    (5..=9).for_each(|index| made.log.entry(index, 4));
    made.refused("the list of members is unknown");
}
