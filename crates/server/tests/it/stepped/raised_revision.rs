//! A store whose revision was raised at its restore. etcd keeps a trace of this, a pair without a key; the
//! pair is replicated to every member with the state, and no client sees it.

use std::path::PathBuf;
use std::sync::Arc;

use api::Rpc;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, HashKvRequest,
    HashKvResponse, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest, watch_request,
};
use bytes::Bytes;
use disk::Disk;
use machine::auth::Auth;
use machine::snapshot::SnapshotVersion;
use numbers::{ChangeId, Index, LeaseId, MemberId, Revision, Term};
use storage::restoration::{Restoration, RestoredHead};

use super::world::{Stream, World};

const WORN: &[&str] = &["--snapshot-count=20", "--snapshot-catchup-entries=20"];
/// Revision to which the store was raised: that of one put, plus 1000.
const RAISED: Revision = Revision(1002);

/// Starts three members, each restored with a raised revision.
fn raised(seed: u64) -> World {
    // A cluster whose ids and members the restored cluster takes.
    let model = World::started(3, seed, WORN);
    let members = model.member(0).published().members.as_ref().clone();
    let mut world = World::new(3, seed, WORN);
    for at in 0..3 {
        let identity = model.member(at).identity().clone();
        let disk: Arc<dyn Disk> = Arc::new(world.places[at].disk.clone());
        let data_dir = PathBuf::from(format!("/m{}", at + 1));
        let mut restoration =
            Restoration::begin_sized(&disk, &data_dir, identity, 16 << 10).expect("nothing is there");
        let head = RestoredHead {
            compact_revision: Revision::NEVER_COMPACTED,
            index: Index(3),
            term: Term(1),
            leases: Vec::new(),
            alarms: Vec::new(),
            members: members.clone(),
            auth: Auth::default(),
            is_shared: true,
        };
        let mut filling = restoration.fill(head).expect("it is one");
        let main = Revision(2);
        let put = SnapshotVersion {
            key: b"k",
            main,
            sub: 0,
            create_revision: main,
            version: 1,
            lease: LeaseId::NONE,
            value: b"v",
        };
        filling.push(&put).expect("is taken");
        let mut machine = filling.finish(Some(1000)).expect("is sound");
        let hard_state = log::HardState { term: Term(1), vote: MemberId::NONE, commit: Index(3) };
        let terms = restoration
            .follow(&mut machine, hard_state, None, &mut std::iter::empty())
            .expect("nothing follows");
        restoration.finish(machine, &terms).expect("is written");
    }
    world.start_all();
    world
}

/// Returns the pair without a key, if the member holds it.
fn pair(world: &World, at: usize) -> Option<ChangeId> {
    let view = Arc::clone(&world.member(at).published().view);
    let snapshot = view.snapshot();
    snapshot.histories().next().filter(|version| version.key().is_empty()).map(|version| version.id())
}

fn hash(world: &mut World, at: usize, revision: Revision) -> (u32, i64) {
    let asked = HashKvRequest { revision: revision.0 };
    let hash: HashKvResponse = world.call(at, Rpc::MaintenanceHashKv, &asked).expect("can be hashed");
    (hash.hash, hash.compact_revision)
}

fn until_the_same(world: &mut World) {
    world.until("they have the same", |world| {
        let probes: Vec<_> = world.members().map(|member| member.probe()).collect();
        probes.iter().all(|one| one.applied == probes[0].commit && !one.installing)
    });
}

fn assert_same(world: &mut World) {
    let newest = world.member(0).probe().revision;
    let compacted = world.member(0).published().view.snapshot().compact_revision();
    for revision in [compacted + 1, compacted + 2, newest] {
        let hashes = [0, 1, 2].map(|at| hash(world, at, revision));
        assert!(hashes.iter().all(|one| *one == hashes[0]), "at {revision}: {hashes:?}");
    }
    let pairs = [0, 1, 2].map(|at| pair(world, at));
    assert_eq!(pairs, [Some(ChangeId::first_of(RAISED)); 3]);
}

fn writes(world: &mut World, at: usize) {
    for n in 0..250 {
        world.put(at, &format!("b{}", n % 50), &[n as u8; 500]).expect("two of three are enough");
    }
    let revision = world.member(at).probe().revision;
    let compaction = CompactionRequest { revision: revision.0 - 20, physical: true };
    let _: CompactionResponse = world.call(at, Rpc::KvCompact, &compaction).expect("compacts");
}

#[test]
fn it_goes_with_the_state_to_members_of_both_kinds() {
    for as_database in [true, false] {
        let mut world = raised(61);
        until_the_same(&mut world);
        assert_eq!(world.member(0).probe().revision, RAISED);
        let hashes = [0, 1, 2].map(|at| hash(&mut world, at, RAISED));
        assert_eq!(hashes, [(hashes[0].0, RAISED.0); 3]);
        if as_database {
            world.post.lock().expect("nobody panicked").databases = Some(Box::new(|_, _| {}));
        }
        let leader = world.leader().expect("somebody leads");
        let lagging = (leader + 1) % 3;
        world.cut(lagging, true);
        writes(&mut world, leader);
        writes(&mut world, leader);
        world.until("the log lets go of what is needed", |world| {
            world.member(lagging).probe().last_index + 1 < world.member(leader).probe().first_index
        });
        world.cut(lagging, false);
        until_the_same(&mut world);
        assert!(world.text().contains("installed a snapshot"));
        assert_same(&mut world);
        // The pair is in checkpoints, too.
        for at in 0..3 {
            world.kill(at);
        }
        world.start_all();
        until_the_same(&mut world);
        assert_same(&mut world);
        // The pair survives every compaction.
        let leader = world.leader().expect("somebody leads");
        writes(&mut world, leader);
        until_the_same(&mut world);
        assert_same(&mut world);
    }
}

#[test]
fn no_client_sees_it() {
    let mut world = raised(62);
    until_the_same(&mut world);
    let everything = || (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
    let (key, range_end) = everything();
    let history = WatchCreateRequest { key, range_end, start_revision: RAISED.0, ..Default::default() };
    let stream = Stream::default();
    stream.ask(&WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(history)) });
    let member = world.member(0);
    let watching = member.watch(true, stream.clone(), stream.clone(), std::future::pending());
    member.spawn(async move { drop(watching.await) });
    let keys = |world: &mut World| {
        let (key, range_end) = everything();
        let all = RangeRequest { key, range_end, ..RangeRequest::default() };
        let found: RangeResponse = world.call(0, Rpc::KvRange, &all).expect("is answered");
        let counted = RangeRequest { count_only: true, ..all };
        let count: RangeResponse = world.call(0, Rpc::KvRange, &counted).expect("is answered");
        let keys: Vec<Bytes> = found.kvs.into_iter().map(|kv| kv.key).collect();
        assert_eq!((found.count, count.count), (keys.len() as i64, keys.len() as i64));
        keys
    };
    assert_eq!(keys(&mut world), ["k"]);
    world.put(0, "l", b"v").expect("is taken");
    let (key, range_end) = everything();
    let all = DeleteRangeRequest { key, range_end, prev_kv: true };
    let gone: DeleteRangeResponse = world.call(0, Rpc::KvDeleteRange, &all).expect("is answered");
    assert_eq!(gone.prev_kvs.iter().map(|kv| &*kv.key).collect::<Vec<_>>(), [b"k", b"l"]);
    assert_eq!(keys(&mut world), [""; 0]);
    let told = |stream: &Stream| -> Vec<Bytes> {
        let responses = stream.responses.borrow();
        let events = responses.iter().flat_map(|response| &response.events);
        events.map(|event| event.kv.as_ref().expect("has one").key.clone()).collect()
    };
    world.until("the deletions were told", |_| told(&stream).len() >= 3);
    assert_eq!(told(&stream), ["l", "k", "l"]);
    assert_eq!(pair(&world, 0), Some(ChangeId::first_of(RAISED)), "it is not deleted either");
}
