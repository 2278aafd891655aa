//! Snapshots in the form of a database file, as members that run etcd send and receive them; here both sides
//! are members of this program.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ::http;
use api::Rpc;
use api::etcdserverpb::{
    AuthRoleAddRequest, AuthRoleAddResponse, AuthUserAddRequest, AuthUserAddResponse,
    AuthUserGrantRoleRequest, AuthUserGrantRoleResponse, CompactionRequest, CompactionResponse,
    DeleteRangeRequest, DeleteRangeResponse, HashKvRequest, HashKvResponse, LeaseGrantRequest,
    LeaseGrantResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, PutRequest, PutResponse,
    RangeRequest, RangeResponse, TxnResponse, compare,
};
use api::raftpb::{ConfState, Message, MessageType, SnapshotMetadata};
use bytes::Bytes;
use disk::{Fault, Operation};
use front::LocalBoxFuture;
use peer::Handler as _;
use replica::transfer::ReceiveError;

use super::world::{Spoiling, World};

const WORN: &[&str] = &["--snapshot-count=20", "--snapshot-catchup-entries=20"];
const LEASE: i64 = 7777;
const EIO: i32 = 5;

/// Starts three members, one of which is cut off and needs a snapshot. Returns the world, the leader's place
/// and the lagging member's place.
fn one_lags(seed: u64) -> (World, usize, usize) {
    let mut world = World::started(3, seed, WORN);
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    world.cut(lagging, true);
    let _: LeaseGrantResponse =
        world.call(leader, Rpc::LeaseGrant, &LeaseGrantRequest { ttl: 600, id: LEASE }).expect("is granted");
    let put = PutRequest { key: "leased".into(), value: "v".into(), lease: LEASE, ..PutRequest::default() };
    let _: PutResponse = world.call(leader, Rpc::KvPut, &put).expect("is put");
    let user = AuthUserAddRequest { name: "bob".into(), password: "p".to_owned(), ..Default::default() };
    let _: AuthUserAddResponse = world.call(leader, Rpc::AuthUserAdd, &user).expect("is added");
    let role = AuthRoleAddRequest { name: "reader".into() };
    let _: AuthRoleAddResponse = world.call(leader, Rpc::AuthRoleAdd, &role).expect("is added");
    let grant = AuthUserGrantRoleRequest { user: "bob".into(), role: "reader".into() };
    let _: AuthUserGrantRoleResponse =
        world.call(leader, Rpc::AuthUserGrantRole, &grant).expect("is granted");
    go_on(&mut world, leader);
    let gone = DeleteRangeRequest { key: "b7".into(), ..DeleteRangeRequest::default() };
    let _: DeleteRangeResponse = world.call(leader, Rpc::KvDeleteRange, &gone).expect("is deleted");
    world.until("the log lets go of what is needed", |world| has_let_go(world, leader, lagging));
    (world, leader, lagging)
}

/// Writes until the leader's log no longer holds the entries that a lagging member needs.
fn go_on(world: &mut World, leader: usize) {
    let write = |world: &mut World| {
        for n in 0..250 {
            world.put(leader, &format!("b{}", n % 50), &[n as u8; 500]).expect("two of three are enough");
        }
    };
    write(world);
    let revision = world.member(leader).probe().revision;
    let compaction = CompactionRequest { revision: revision.0 - 20, physical: true };
    let _: CompactionResponse = world.call(leader, Rpc::KvCompact, &compaction).expect("compacts");
    write(world);
}

fn has_let_go(world: &World, leader: usize, lagging: usize) -> bool {
    world.member(lagging).probe().last_index + 1 < world.member(leader).probe().first_index
}

/// Returns the reasons that start with `begin` for which snapshots were refused after they were examined.
fn refusals(world: &World, begin: &str) -> Vec<String> {
    let post = world.post.lock().expect("nobody panicked");
    let looked_at = post.refused.iter().filter(|reason| !reason.starts_with("refused before"));
    looked_at.filter(|reason| reason.starts_with(begin)).cloned().collect()
}

fn spoil_with(world: &World, spoil: Spoiling) {
    world.post.lock().expect("nobody panicked").databases = Some(spoil);
}

fn until_the_same(world: &mut World, one: usize, other: usize) {
    world.until("they have the same", |world| {
        let [a, b] = [one, other].map(|at| world.member(at).probe());
        a.applied == b.applied && b.applied == b.commit && !b.installing
    });
}

/// Asserts that two members hold the same data: keys at every readable revision, leases, users, members.
fn assert_same(world: &mut World, one: usize, other: usize) {
    let newest = world.member(one).probe().revision.0;
    let compacted = world.member(one).published().view.snapshot().compact_revision().0;
    assert!(compacted > 200 && newest > compacted + 200, "{compacted} {newest}");
    // The compact revision itself is left out: one of the members keeps its hash from before the compaction.
    for revision in (compacted + 1..=newest).rev() {
        let hashes = [one, other].map(|at| {
            let hash: Result<HashKvResponse, _> =
                world.call(at, Rpc::MaintenanceHashKv, &HashKvRequest { revision });
            hash.map(|hash| (hash.hash, hash.compact_revision))
        });
        assert_eq!(hashes[0], hashes[1], "at revision {revision}");
        assert!(hashes[0].is_ok(), "at revision {revision}: {:?}", hashes[0]);
    }
    let ask = LeaseTimeToLiveRequest { id: LEASE, keys: true };
    let leases = [one, other].map(|at| {
        let left: LeaseTimeToLiveResponse = world.call(at, Rpc::LeaseTimeToLive, &ask).expect("is answered");
        (left.granted_ttl, left.keys)
    });
    assert_eq!(leases[0], (600, vec![Bytes::from("leased")]));
    assert_eq!(leases[0], leases[1]);
    let [a, b] = [one, other].map(|at| world.member(at).published());
    assert!(a.auth.users().any(|user| user.name == "bob" && user.roles == ["reader"]));
    assert_eq!((&a.auth, &a.members, &a.alarms), (&b.auth, &b.members, &b.alarms));
    assert!(!a.members.cluster_version.is_empty(), "it has been agreed upon");
}

#[test]
fn a_database_brings_everything_and_its_receiver_can_lead() {
    let (mut world, leader, lagging) = one_lags(31);
    spoil_with(&world, Box::new(|_, _| {}));
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert!(world.text().contains("installed a snapshot"));
    assert_same(&mut world, leader, lagging);
    // A power cut does not lose the state either, and the other members still follow the leader.
    world.crash(lagging);
    world.start(lagging).expect("starts again");
    world.until("it is there again", |world| world.member(lagging).is_ready());
    world.lead(lagging);
    world.put(lagging, "b1", b"of the new leader").expect("is taken");
    until_the_same(&mut world, lagging, leader);
    assert_same(&mut world, lagging, leader);
}

/// Returns all bytes of a database in one piece.
fn joined(pieces: &mut Vec<io::Result<Bytes>>) -> Vec<u8> {
    std::mem::take(pieces).into_iter().flat_map(|piece| piece.expect("is whole")).collect()
}

fn metadata(message: &mut Message) -> &mut SnapshotMetadata {
    message.snapshot.as_mut().and_then(|snapshot| snapshot.metadata.as_mut()).expect("a snapshot has some")
}

fn conf_state(message: &mut Message) -> &mut ConfState {
    metadata(message).conf_state.as_mut().expect("a snapshot has one")
}

#[test]
fn a_database_that_is_none_is_refused_and_nothing_is_lost() {
    let (mut world, leader, lagging) = one_lags(32);
    let disk = world.places[lagging].disk.clone();
    let id = world.places[lagging].id;
    let fault: Arc<Mutex<usize>> = Arc::default();
    let present = Arc::clone(&fault);
    let spoil = move |message: &mut Message, pieces: &mut Vec<io::Result<Bytes>>| {
        disk.set_capacity(None);
        match *present.lock().expect("nobody panicked") {
            1 => {
                pieces.truncate(pieces.len() / 2);
                pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
            }
            2 => {
                let mut all = joined(pieces);
                all.truncate(all.len() / 2);
                pieces.push(Ok(all.into()));
            }
            3 => {
                let mut all = joined(pieces);
                all[5 * 4096..][..64].fill(0xff);
                pieces.push(Ok(all.into()));
            }
            4 => {
                let mut all = joined(pieces);
                all[..8192].fill(0);
                pieces.push(Ok(all.into()));
            }
            5 => pieces.clear(),
            6 => *metadata(message).index.as_mut().expect("is there") += 1,
            7 => conf_state(message).voters.retain(|voter| *voter != id),
            8 => conf_state(message).learners.push(0x77),
            9 => disk.set_capacity(Some(disk.used_bytes() + (4 << 20))),
            // The database is refused before any of it is read.
            10 => {
                let data = message.snapshot.as_mut().and_then(|snapshot| snapshot.data.as_mut());
                let data = data.expect("there is an image of the old store");
                let image = String::from_utf8(data.to_vec()).expect("is JSON");
                *data = image.replace("3.0.0", "9.0.0").replace("3.7.0", "9.0.0").into();
                *pieces = vec![Err(io::ErrorKind::ConnectionReset.into())];
            }
            11 => conf_state(message).auto_leave = Some(true),
            _ => {}
        }
    };
    spoil_with(&world, Box::new(spoil));
    let before = world.member(lagging).probe().applied;
    *fault.lock().expect("nobody panicked") = 1;
    world.cut(lagging, false);
    for (nth, expected) in [
        (1, "connection reset"),
        (2, "the database ends after"),
        (3, "page 5"),
        (4, "no header of the database is valid"),
        (5, ""),
        (6, "holds the state at entry"),
        (7, "is not in its member list"),
        (8, "the database lists the members"),
        (9, "no space left on device"),
        (10, "the state has version 9.0.0"),
        (11, "refused: a snapshot in the middle of a joint conf change"),
    ] {
        let seen = refusals(&world, "").len();
        *fault.lock().expect("nobody panicked") = nth;
        world.until("one more was refused", |world| {
            refusals(world, "")[seen..].iter().any(|reason| reason.contains(expected))
        });
        assert_eq!(world.member(lagging).probe().applied, before, "fault {nth}");
    }
    *fault.lock().expect("nobody panicked") = 0;
    until_the_same(&mut world, leader, lagging);
    let left = world.places[lagging].disk.files();
    assert!(!left.iter().any(|(path, _)| path.ends_with("received.db")), "{left:?}");
    assert_same(&mut world, leader, lagging);
}

#[test]
fn a_database_that_comes_twice_or_late_changes_nothing() {
    type Copies = Vec<(Message, Vec<Bytes>)>;
    let (mut world, leader, lagging) = one_lags(33);
    let kept: Arc<Mutex<Copies>> = Arc::default();
    let copies = Arc::clone(&kept);
    spoil_with(
        &world,
        Box::new(move |message, pieces| {
            let all = joined(pieces);
            let chunks: Vec<Bytes> = all.chunks(10_000).map(Bytes::copy_from_slice).collect();
            copies.lock().expect("nobody panicked").push((message.clone(), chunks));
            // The original never arrives completely, so that the copy can be delivered later.
            pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
        }),
    );
    world.cut(lagging, false);
    world.until("one was sent", |_| kept.lock().is_ok_and(|kept| !kept.is_empty()));
    world.until("it has not come", |world| world.text().contains("could not receive etcd's database"));
    world.until("nothing is under way", |world| !world.member(lagging).says_that_it_takes_a_snapshot());
    let (message, chunks) = kept.lock().expect("nobody panicked")[0].clone();
    let pieces = || chunks.iter().cloned().map(Ok).collect::<Vec<_>>();
    // Of two deliveries at the same time, one is taken.
    let both =
        [pieces(), pieces()].map(|pieces| world.member(lagging).receive_database(message.clone(), pieces));
    let outcomes = world.run_all(both.into());
    let refused: Vec<String> = outcomes.into_iter().filter_map(Result::err).map(|e| e.to_string()).collect();
    assert_eq!(refused, ["not now: etcdserver: too many requests"]);
    until_the_same(&mut world, leader, lagging);
    assert_same(&mut world, leader, lagging);
    // The database is now older than the member's state, so no checkpoint is needed.
    world.places[lagging].checkpointer_held = true;
    let installed = |world: &World| world.text().matches("installed a snapshot").count();
    let before = installed(&world);
    let late = world.member(lagging).receive_database(message.clone(), pieces());
    world.run(late).expect("it is sound");
    world.until("it is passed over", |world| !world.member(lagging).says_that_it_takes_a_snapshot());
    assert_eq!(installed(&world), before);
    world.places[lagging].checkpointer_held = false;
    world.put(leader, "b1", b"goes on").expect("is taken");
    until_the_same(&mut world, leader, lagging);
    assert_same(&mut world, leader, lagging);
}

type Taken = Result<(), ReceiveError>;

/// A database that a member is receiving, and the outcome.
struct Taking {
    coming: LocalBoxFuture<Taken>,
    taken: Option<Taken>,
}

impl Taking {
    /// Polls the transfer as far as possible. Returns true if the sender has its answer.
    fn is_answered(&mut self) -> bool {
        if self.taken.is_none()
            && let Poll::Ready(taken) = self.coming.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.taken = Some(taken);
        }
        self.taken.is_some()
    }

    fn answer(self) -> Result<(), String> {
        self.taken.expect("was answered").map_err(|error| error.to_string())
    }
}

/// Returns the message and the bytes of the database that the leader sends to a lagging member. The database
/// does not arrive, and the member is cut off again.
fn lost(world: &mut World, lagging: usize) -> (Message, Vec<u8>) {
    type Sent = Option<(Message, Vec<u8>)>;
    let kept: Arc<Mutex<Sent>> = Arc::default();
    let copy = Arc::clone(&kept);
    spoil_with(
        world,
        Box::new(move |message, pieces| {
            *copy.lock().expect("nobody panicked") = Some((message.clone(), joined(pieces)));
            pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
        }),
    );
    world.cut(lagging, false);
    world.until("one was sent", |_| kept.lock().is_ok_and(|kept| kept.is_some()));
    world.until("it has not come", |world| !refusals(world, "").is_empty());
    world.cut(lagging, true);
    world.until("nothing is under way", |world| !world.member(lagging).says_that_it_takes_a_snapshot());
    world.settle().expect("all go on");
    kept.lock().expect("nobody panicked").take().expect("was sent")
}

/// Starts three members, one of which has received a database but not saved it in a checkpoint, and is cut
/// off. Returns the world, the places of the leader and of that member, the database's log index and bytes,
/// and the pending answer to its sender.
fn one_holds_what_is_not_durable(seed: u64) -> (World, usize, usize, u64, u64, Taking) {
    let (mut world, leader, lagging) = one_lags(seed);
    let (index, len, taking) = hold_what_is_not_durable(&mut world, lagging);
    (world, leader, lagging, index, len, taking)
}

/// Lets a lagging member receive a database, and holds its checkpointer. Returns the database's log index and
/// bytes, and the pending answer to its sender.
fn hold_what_is_not_durable(world: &mut World, lagging: usize) -> (u64, u64, Taking) {
    let (mut message, bytes) = lost(world, lagging);
    let (index, len) = (metadata(&mut message).index(), bytes.len() as u64);
    world.places[lagging].checkpointer_held = true;
    let coming = world.member(lagging).receive_database(message, vec![Ok(bytes.into())]);
    let mut taking = Taking { coming, taken: None };
    world.until("it is in its place", |world| {
        taking.is_answered() || world.member(lagging).probe().applied.0 >= index
    });
    world.settle().expect("all go on");
    assert!(!taking.is_answered(), "{:?}", taking.answer());
    spoil_with(world, Box::new(|_, _| {}));
    (index, len, taking)
}

#[test]
fn the_sender_of_a_database_is_answered_once_it_is_durable() {
    let (mut world, leader, lagging, index, len, mut taking) = one_holds_what_is_not_durable(40);
    let left = world.places[lagging].disk.unnamed_bytes();
    assert!(left < len, "the file that came takes no room while its sender waits: {left} of {len} bytes");
    world.places[lagging].checkpointer_held = false;
    world.until("it is answered", |_| taking.is_answered());
    assert_eq!(taking.answer(), Ok(()));
    // The state is durable: it survives a crash.
    world.crash(lagging);
    world.start(lagging).expect("starts");
    assert!(world.member(lagging).probe().applied.0 >= index);
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert_same(&mut world, leader, lagging);
}

#[test]
fn the_sender_of_a_database_hears_of_the_first_checkpoint_that_fails() {
    let (mut world, leader, lagging, index, _, mut taking) = one_holds_what_is_not_durable(41);
    let disk = world.places[lagging].disk.clone();
    let could_not = |world: &World| world.text().matches("could not receive etcd's database").count();
    let before = could_not(&world);
    disk.fail_next(Operation::Change, 1, Fault::Once(EIO));
    world.places[lagging].checkpointer_held = false;
    world.until("it is answered", |_| taking.is_answered());
    let refused = taking.answer().expect_err("it is not durable");
    assert!(
        refused.starts_with("the state is in place and not durable yet (") && refused.contains("os error 5"),
        "{refused}"
    );
    // The member must not log that it has to be rebuilt.
    assert_eq!(could_not(&world), before);
    assert!(world.text().contains("received etcd's database file; its state is not durable yet"));
    // The next attempt to save succeeds, and nothing has to be sent again.
    world.until("it is durable", |world| !world.member(lagging).probe().installing);
    world.crash(lagging);
    world.start(lagging).expect("starts");
    assert!(world.member(lagging).probe().applied.0 >= index);
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert_same(&mut world, leader, lagging);
}

/// Before the database arrived, the member had much data, all of which becomes garbage, and nothing was
/// compacted. A checkpoint of only the changes would keep the old runs, and free the segments to which they
/// refer.
#[test]
fn between_two_attempts_to_save_an_installed_state_no_other_checkpoint_is_taken() {
    let mut world = World::started(3, 47, WORN);
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    let write = |world: &mut World, name: &str, keys: usize, value_bytes: usize| {
        for n in 0..keys {
            let value = vec![n as u8; value_bytes];
            world.put(leader, &format!("{name}{n}"), &value).expect("two of three are enough");
        }
    };
    // Much more data than the later changes, so that a run with only the changes pays off.
    write(&mut world, "old", 3000, 500);
    until_the_same(&mut world, leader, lagging);
    world.cut(lagging, true);
    write(&mut world, "new", 45, 2000);
    world.until("the log lets go of what is needed", |world| has_let_go(world, leader, lagging));
    let (.., mut taking) = hold_what_is_not_durable(&mut world, lagging);
    world.places[lagging].disk.fail_next(Operation::Change, 1, Fault::Once(EIO));
    world.places[lagging].checkpointer_held = false;
    world.until("it is answered", |_| taking.is_answered());
    taking.answer().expect_err("it is not durable");
    // Waits until shortly before the next attempt, which is due after a second.
    let until = world.places[lagging].clock.elapsed() + Duration::from_millis(900);
    world.until("time has gone by", |world| world.places[lagging].clock.elapsed() >= until);
    assert!(world.member(lagging).probe().installing);
    world.kill(lagging);
    world.start(lagging).expect("starts");
    let values = |world: &mut World, at: usize| {
        let all = RangeRequest {
            key: "a".into(),
            range_end: Bytes::from_static(&[0]),
            serializable: true,
            ..Default::default()
        };
        let answer: Result<RangeResponse, _> = world.call(at, Rpc::KvRange, &all);
        answer.expect("every value can be read").kvs
    };
    world.until("it is ready", |world| world.member(lagging).is_ready());
    assert!(values(&mut world, lagging).len() >= 3000);
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert_eq!(values(&mut world, lagging), values(&mut world, leader));
}

#[test]
fn the_sender_of_a_database_does_not_wait_for_a_member_that_stops() {
    let (mut world, leader, lagging, _, _, mut taking) = one_holds_what_is_not_durable(42);
    world.member(lagging).stop();
    world.until("it has stopped", |world| world.places[lagging].member.is_none());
    assert!(taking.is_answered());
    assert_eq!(taking.answer(), Err("not now: etcdserver: server stopped".to_owned()));
    // The member still has its old state, and receives the snapshot again.
    world.places[lagging].checkpointer_held = false;
    world.start(lagging).expect("starts");
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert_same(&mut world, leader, lagging);
}

#[test]
fn the_next_database_waits_for_the_checkpoint_of_the_one_before() {
    let (mut world, leader, lagging, _, _, mut taking) = one_holds_what_is_not_durable(43);
    let disk = world.places[lagging].disk.clone();
    disk.fail_next(Operation::Change, 1, Fault::Once(EIO));
    world.places[lagging].checkpointer_held = false;
    world.until("it is answered", |_| taking.is_answered());
    world.places[lagging].checkpointer_held = true;
    // After a refusal, the leader sends a snapshot again with each heartbeat.
    world.cut(lagging, false);
    let until = world.places[lagging].clock.elapsed() + Duration::from_secs(25);
    world.until("time has gone by", |world| world.places[lagging].clock.elapsed() >= until);
    let crowded = |world: &World| refusals(world, "not now: etcdserver: too many requests").len();
    assert_eq!(crowded(&world), 2, "one in ten seconds");
    world.places[lagging].checkpointer_held = false;
    until_the_same(&mut world, leader, lagging);
    assert_same(&mut world, leader, lagging);
}

/// Starts three members, one of which gets a database that it does not need, and is one step from completing
/// it. Returns the world, that member's place, the leader's place and the pending answer. The next committed
/// entries may read a damaged value.
fn one_has_received(seed: u64) -> (World, usize, usize, Taking) {
    let (mut world, leader, lagging) = one_lags(seed);
    let (mut message, bytes) = lost(&mut world, lagging);
    let at = 3 - leader - lagging;
    super::damage_a_value(&mut world, at);
    world.settle().expect("all go on");
    message.to = Some(world.places[at].id);
    let coming = world.member(at).receive_database(message, vec![Ok(bytes.into())]);
    let mut taking = Taking { coming, taken: None };
    // The snapshot is offered, an attempt begins, and its values are written to the log.
    for _ in 0..3 {
        assert!(!taking.is_answered(), "{:?}", taking.answer());
        world.settle().expect("all go on");
    }
    assert!(world.member(at).probe().installing);
    (world, leader, at, taking)
}

const OUT_OF_SERVICE: &str = "not now: mainstay: this member is out of service: ";

/// Sends a transaction that compares the value that is damaged at one member.
fn compare_what_is_damaged(world: &mut World, leader: usize) {
    let compare = super::compare_and_put(compare::CompareResult::Equal, super::DAMAGED, "read");
    let answer: TxnResponse = world.call(leader, Rpc::KvTxn, &compare).expect("two of three are enough");
    assert!(answer.succeeded);
}

#[test]
fn the_sender_of_a_database_hears_that_its_receiver_is_out_of_service() {
    let (mut world, leader, at, mut taking) = one_has_received(44);
    compare_what_is_damaged(&mut world, leader);
    world.until("it is out of service", |world| world.text().contains("OUT OF SERVICE"));
    assert!(!taking.is_answered() && !world.member(at).probe().installing);
    world.until("it is answered", |_| taking.is_answered());
    let refused = taking.answer().expect_err("it was not taken");
    assert!(refused.starts_with(OUT_OF_SERVICE), "{refused}");
}

#[test]
fn the_sender_of_a_database_hears_that_its_receiver_goes_out_of_service_as_it_arrives() {
    let (mut world, leader, at, mut taking) = one_has_received(45);
    world.places[at].disk.set_misses_per_mille(1000);
    world.places[at].member.as_mut().expect("runs").hold_reads(true);
    compare_what_is_damaged(&mut world, leader);
    world.until("it waits for the value", |world| world.member(at).wants_read());
    world.settle().expect("all go on");
    assert!(!world.text().contains("OUT OF SERVICE"));
    // The core learns of the unreadable value and of the received state in the same turn.
    assert!(world.places[at].member.as_mut().expect("runs").read_step());
    assert!(!taking.is_answered());
    world.until("it is answered", |_| taking.is_answered());
    assert!(world.text().contains("OUT OF SERVICE"));
    let refused = taking.answer().expect_err("it was not taken");
    assert!(refused.starts_with(OUT_OF_SERVICE), "{refused}");
}

#[test]
fn a_database_that_arrives_with_a_later_term_is_of_no_use() {
    let (mut world, leader, at, mut taking) = one_has_received(46);
    let mut later = vec![Message {
        r#type: Some(MessageType::MsgHeartbeat as i32),
        from: Some(world.places[leader].id),
        to: Some(world.places[at].id),
        term: Some(world.member(at).probe().term.0 + 1),
        ..Message::default()
    }];
    // The core finds both messages in the same turn.
    world.member(at).peering().received(&mut later);
    assert!(!taking.is_answered());
    world.until("it is answered", |_| taking.is_answered());
    assert_eq!(taking.answer(), Err("not now: etcdserver: leader changed".to_owned()));
}

#[test]
fn the_entries_behind_a_database_are_kept_until_its_receiver_has_them() {
    let (mut world, leader, lagging) = one_lags(36);
    spoil_with(&world, Box::new(|_, _| {}));
    let sent = |world: &World| world.text().matches("sending a snapshot").count();
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    let before = sent(&world);
    // The member is cut off as soon as it has the database.
    world.cut(lagging, true);
    go_on(&mut world, leader);
    world.settle().expect("all go on");
    assert!(!has_let_go(&world, leader, lagging));
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert_eq!(sent(&world), before);
    // After half a minute, the leader no longer keeps a database for the member.
    let until = world.places[leader].clock.elapsed() + Duration::from_secs(31);
    world.until("time has gone by", |world| world.places[leader].clock.elapsed() >= until);
    world.cut(lagging, true);
    go_on(&mut world, leader);
    world.until("the log lets go of what is needed", |world| has_let_go(world, leader, lagging));
    world.cut(lagging, false);
    until_the_same(&mut world, leader, lagging);
    assert_eq!(sent(&world), before + 1);
}

/// Like [`one_lags`], with values of 12 MiB.
fn one_lags_by_much(seed: u64) -> (World, usize, usize) {
    let (mut world, leader, lagging) = one_lags(seed);
    for n in 0..24 {
        world.put(leader, &format!("large{n}"), &[b'a' + n; 512 << 10]).expect("two of three are enough");
    }
    world.until("the log lets go of what is needed", |world| has_let_go(world, leader, lagging));
    (world, leader, lagging)
}

#[test]
fn a_state_that_the_disk_cannot_hold_stops_nobody_and_is_not_written_at_every_heartbeat() {
    let (mut world, leader, lagging) = one_lags_by_much(37);
    let disk = world.places[lagging].disk.clone();
    // The file can be written, since the simulated disk does not count unlinked files; the values do not fit.
    let used = disk.used_bytes();
    disk.set_capacity(Some(used + (11 << 20)));
    let spooled: Arc<Mutex<usize>> = Arc::default();
    let counted = Arc::clone(&spooled);
    spoil_with(&world, Box::new(move |_, _| *counted.lock().expect("nobody panicked") += 1));
    let before = world.member(lagging).probe().applied;
    let begun = world.places[lagging].clock.elapsed();
    world.cut(lagging, false);
    const REFUSED: &str = "no space left on device: the state, including the space that must stay free";

    world.until("it was refused three times", |world| refusals(world, REFUSED).len() >= 3);
    // The second attempt waited one second, the third two more seconds.
    assert!(world.places[lagging].clock.elapsed() - begun >= Duration::from_secs(3));
    let sent = *spooled.lock().expect("nobody panicked");
    assert!(sent > 3, "those between were refused unread: {sent}");
    assert_eq!(world.member(lagging).probe().applied, before);
    for at in [leader, lagging] {
        assert_eq!(world.member(at).published().alarms.list(0, 0), []);
    }
    world.put(leader, "b1", b"nobody is stopped").expect("is taken");
    assert!(disk.used_bytes() < used + (1 << 20), "what was written of it is gone");
    disk.set_capacity(None);
    until_the_same(&mut world, leader, lagging);
    assert_eq!(world.member(lagging).published().alarms.list(0, 0), []);
    assert_same(&mut world, leader, lagging);
}

#[test]
fn a_member_takes_checkpoints_while_a_database_comes_and_stops_when_another_leads() {
    let (mut world, leader, lagging) = one_lags(38);
    let kept: Arc<Mutex<Option<Message>>> = Arc::default();
    let copy = Arc::clone(&kept);
    spoil_with(
        &world,
        Box::new(move |message, pieces| {
            *copy.lock().expect("nobody panicked") = Some(message.clone());
            pieces.clear();
            pieces.push(Err(io::ErrorKind::ConnectionReset.into()));
        }),
    );
    world.cut(lagging, false);
    world.until("one was sent", |_| kept.lock().is_ok_and(|kept| kept.is_some()));
    world.until("it has not come", |world| !refusals(world, "").is_empty());
    let message = kept.lock().expect("nobody panicked").clone().expect("was sent");
    let (pieces, body) = std::sync::mpsc::channel::<io::Result<Bytes>>();
    let (asks, asked) = std::sync::mpsc::channel();
    let peering = Arc::clone(world.member(lagging).peering());
    let taking = std::thread::spawn(move || {
        let mut was_read = false;
        loop {
            let mut body = std::iter::from_fn(|| {
                was_read = true;
                asks.send(()).ok()?;
                body.recv().ok()
            });
            let form = peer::SnapshotForm::Etcd;
            let taken = peering.receive_snapshot(message.clone(), form, &mut body).map_err(|e| e.to_string());
            // A snapshot from the leader itself may be arriving at the same time; then the attempt is repeated.
            if was_read {
                return taken;
            }
        }
    });
    world.until("it reads", |_| asked.try_recv().is_ok());
    assert!(!world.member(lagging).probe().installing);
    pieces.send(Ok(Bytes::from_static(&[0; 4096]))).expect("it reads");
    let other = 3 - leader - lagging;
    world.until("it asks for more", |_| asked.try_recv().is_ok());
    world.lead(other);
    world.until("it has heard of the other leader", |world| {
        world.member(lagging).published().leader == world.places[other].id
    });
    pieces.send(Ok(Bytes::from_static(&[0; 4096]))).expect("it reads");
    let refused = taking.join().expect("does not panic").expect_err("it is of no use");
    assert_eq!(refused, "another member has become leader");
    drop(pieces);
    spoil_with(&world, Box::new(|_, _| {}));
    until_the_same(&mut world, other, lagging);
}

#[test]
fn what_ends_members_of_etcd_3_4_is_not_proposed_while_no_version_is_decided() {
    let mut world = World::new(3, 39, &[]);
    for at in 0..3 {
        world.start(at).expect("starts");
    }
    let old = world.places[1].id;
    world.post.lock().expect("nobody panicked").releases.insert(old, (3, 4));
    world.start_all();
    let leader = world.leader().expect("somebody leads");
    world.put(leader, "k", b"v").expect("is taken");
    let later = world.places[0].clock.elapsed() + Duration::from_secs(20);
    world.until("time has gone by", |world| world.places[0].clock.elapsed() >= later);
    let members = Arc::clone(&world.member(0).published().members);
    assert!(members.cluster_version.is_empty(), "{}", members.cluster_version);
    assert!(members.by_id.values().all(|member| member.client_urls.is_empty()), "{members:?}");
    world.post.lock().expect("nobody panicked").releases.insert(old, (3, 5));
    world.until("a version is decided, and all are known", |world| {
        let members = &world.member(0).published().members;
        !members.cluster_version.is_empty()
            && members.by_id.values().all(|member| !member.client_urls.is_empty())
    });
}

#[test]
fn what_a_power_cut_left_of_a_database_is_removed() {
    let mut world = World::started(1, 34, &[]);
    let path = Path::new("/m1/member/received.db");
    let there = |world: &World, path: &Path| world.places[0].disk.contents(path).is_ok();
    world.kill(0);
    world.places[0].disk.plant(path, vec![1; 1 << 20]);
    assert!(there(&world, path));
    world.start(0).expect("starts");
    assert!(!there(&world, path));
}

#[test]
fn the_question_of_another_member_for_a_hash_is_read() {
    let world = World::started(1, 35, &[]);
    let (head, ()) = http::Request::get("/members/hashkv").body(()).expect("is one").into_parts();
    let question = format!(r#"{{"revision":{}}}"#, i64::MAX);
    assert!(world.member(0).peering().body_bytes_max(&head) >= question.len());
}
