//! Values that are compressed in the background (`--value-compression=zstd`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use api::Rpc;
use api::etcdserverpb::{
    CompactionRequest, CompactionResponse, HashKvRequest, HashKvResponse, RangeRequest, RangeResponse,
};
use disk::{Disk as _, Fault};
use testkit::pods::{pod, pod_key};

use super::world::World;

const RAW: &[&str] = &["--snapshot-count=20", "--snapshot-catchup-entries=20"];
const ZSTD: &[&str] = &["--snapshot-count=20", "--snapshot-catchup-entries=20", "--value-compression=zstd"];

/// Number of pods that are written; they fill some forty segments.
const PODS: u64 = 300;

/// Writes pods, and returns what was acknowledged.
fn fill(world: &mut World, at: usize) -> BTreeMap<String, Vec<u8>> {
    let mut known = BTreeMap::new();
    for number in 0..PODS {
        let (key, value) = (pod_key(number), pod(number, 1, 2000));
        world.put(at, &key, &value).expect("is taken");
        known.insert(key, value);
    }
    known
}

/// Returns the number of compressed values, and of all values.
fn compressed(world: &World, at: usize) -> (usize, usize) {
    let state = world.member(at).published();
    let snapshot = state.view.snapshot();
    let values: Vec<_> = snapshot.histories().filter(|version| version.value_len() > 0).collect();
    let compressed = values.iter().filter(|version| version.location().is_compressed());
    (compressed.count(), values.len())
}

fn segments(world: &World, at: usize) -> Vec<PathBuf> {
    let files = world.places[at].disk.files().into_iter().map(|(path, _)| path);
    files.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).collect()
}

fn dictionaries(world: &World, at: usize) -> Vec<PathBuf> {
    let files = world.places[at].disk.files().into_iter().map(|(path, _)| path);
    files.filter(|path| path.extension().is_some_and(|extension| extension == "dict")).collect()
}

/// Reads everything, one by one and at once.
fn assert_reads(world: &mut World, at: usize, known: &BTreeMap<String, Vec<u8>>) {
    for (key, value) in known {
        assert!(world.get(at, key).as_ref() == Some(value), "{key} is wrong");
    }
    let request = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let all: RangeResponse = world.call(at, Rpc::KvRange, &request).expect("is read");
    let all =
        all.kvs.into_iter().map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), kv.value.to_vec()));
    assert!(all.collect::<BTreeMap<_, _>>() == *known);
}

fn hash(world: &mut World, at: usize) -> u32 {
    let answer: HashKvResponse =
        world.call(at, Rpc::MaintenanceHashKv, &HashKvRequest { revision: 0 }).expect("is hashed");
    answer.hash
}

fn until_compressed(world: &mut World, at: usize) {
    world.until("most values are compressed", |world| {
        let (compressed, all) = compressed(world, at);
        compressed * 10 >= all * 8
    });
}

#[test]
fn old_values_are_compressed_once_and_read_as_they_were() {
    let mut world = World::started(1, 7, ZSTD);
    let known = fill(&mut world, 0);
    let before = (segments(&world, 0).len(), hash(&mut world, 0));
    until_compressed(&mut world, 0);
    assert_reads(&mut world, 0, &known);
    world.until("the old segments are deleted", |world| segments(world, 0).len() * 2 < before.0);
    assert_eq!(dictionaries(&world, 0).len(), 1);
    assert_eq!(hash(&mut world, 0), before.1);
    // Then nothing is rewritten any more.
    let settled = [(); 2].map(|()| {
        for _ in 0..3000 {
            if !world.work().expect("all goes well") {
                world.wait();
            }
        }
        (segments(&world, 0), compressed(&world, 0))
    });
    assert_eq!(settled[0], settled[1]);
    let settled = &settled[0];

    // After a restart, with and without the option.
    for options in [ZSTD, RAW] {
        world.set_options(0, options);
        world.crash(0);
        world.start_all();
        assert_eq!(compressed(&world, 0), settled.1);
        assert_reads(&mut world, 0, &known);
        assert_eq!(hash(&mut world, 0), before.1);
    }
    // Without the option, values that are moved stay compressed, and a compaction frees their old segments.
    let mut newest = BTreeMap::new();
    for number in (0..PODS).filter(|number| number % 3 != 0) {
        world.put(0, &pod_key(number), b"small").expect("is taken");
        newest.insert(pod_key(number), b"small".to_vec());
    }
    let before = segments(&world, 0);
    let revision = world.member(0).probe().revision;
    let request = CompactionRequest { revision: revision.0, physical: true };
    let _: CompactionResponse = world.call(0, Rpc::KvCompact, &request).expect("compacts");
    world.until("values are moved", |world| {
        segments(world, 0).iter().filter(|segment| before.contains(segment)).count() * 2 < before.len()
    });
    let (kept, _) = compressed(&world, 0);
    assert!(kept * 10 >= PODS as usize / 3 * 8, "{kept} values are compressed");
    let known = known.into_iter().chain(newest).collect();
    assert_reads(&mut world, 0, &known);
}

/// If moved values were decompressed once the option is off, emptying a segment would take more space than it
/// frees.
#[test]
fn a_small_disk_has_room_for_moved_values_after_compression_was_switched_off() {
    for options in [ZSTD, RAW] {
        let mut world = World::started(1, 7, ZSTD);
        fill(&mut world, 0);
        until_compressed(&mut world, 0);
        let turns = |world: &mut World| {
            for _ in 0..3000 {
                if !world.work().expect("all goes well") {
                    world.wait();
                }
            }
        };
        turns(&mut world);
        world.crash(0);
        world.set_options(0, options);
        let used = world.places[0].disk.used_bytes();
        world.places[0].disk.set_capacity(Some(used + 14 * (16 << 10)));
        world.start_all();
        for number in (0..PODS).filter(|number| number % 3 != 0) {
            world.put(0, &pod_key(number), b"small").expect("is taken");
        }
        for _ in 0..3 {
            let revision = world.member(0).probe().revision;
            let request = CompactionRequest { revision: revision.0, physical: true };
            let _: CompactionResponse = world.call(0, Rpc::KvCompact, &request).expect("compacts");
            turns(&mut world);
            world.put(0, "probe", &[1; 700]).expect("there is room");
        }
        let now = world.places[0].disk.used_bytes();
        assert!(now < used + 4 * (16 << 10), "{options:?}: {now} bytes, {used} before");
        assert!(world.member(0).published().alarms.list(0, 0).is_empty());
    }
}

#[test]
fn values_that_do_not_compress_stay_where_they_are() {
    let mut world = World::started(1, 7, ZSTD);
    let mut random = testkit::Random::new(1);
    let mut known = BTreeMap::new();
    for number in 0..200 {
        let (key, value) = (format!("/random/bytes/{number}"), random.bytes(2000));
        world.put(0, &key, &value).expect("is taken");
        known.insert(key, value);
    }
    let before = segments(&world, 0);
    for _ in 0..5000 {
        if !world.work().expect("all goes well") {
            world.wait();
        }
    }
    assert_eq!((segments(&world, 0), compressed(&world, 0).0), (before, 0));
    assert!(dictionaries(&world, 0).is_empty());
    assert_reads(&mut world, 0, &known);
}

#[test]
fn a_follower_gets_compressed_values_as_they_were() {
    let mut world = World::started(3, 7, ZSTD);
    let leader = world.leader().expect("somebody leads");
    let lagging = (leader + 1) % 3;
    world.cut(lagging, true);
    let known = fill(&mut world, leader);
    until_compressed(&mut world, leader);
    world.until("the log lets go of what is needed", |world| {
        world.member(lagging).probe().last_index + 1 < world.member(leader).probe().first_index
    });
    world.cut(lagging, false);
    world.until("it has caught up", |world| {
        world.member(lagging).probe().applied == world.member(leader).probe().applied
    });
    assert_reads(&mut world, lagging, &known);
    assert_eq!(hash(&mut world, lagging), hash(&mut world, leader));
    until_compressed(&mut world, lagging);
    assert_reads(&mut world, lagging, &known);
}

#[test]
fn a_damaged_dictionary_fails_the_reads_that_need_it_and_nothing_else() {
    let mut world = World::started(1, 7, ZSTD);
    let known = fill(&mut world, 0);
    until_compressed(&mut world, 0);
    world.settle().expect("all goes well");
    world.put(0, "new", b"raw").expect("is taken");
    let dictionary = dictionaries(&world, 0).pop().expect("there is one");
    world.crash(0);
    world.places[0].disk.flip_bit(&dictionary, 500, 1).expect("is there");
    for what in ["checksum of the dictionary does not match", "the file does not exist"] {
        world.start_all();
        let mut failed = 0;
        for (key, value) in &known {
            let request = RangeRequest { key: key.clone().into(), ..RangeRequest::default() };
            match world.call::<RangeRequest, RangeResponse>(0, Rpc::KvRange, &request) {
                Ok(answer) => assert!(answer.kvs[0].value == *value, "{key} is wrong"),
                Err(status) => {
                    let named = status.message.contains(&dictionary.display().to_string());
                    assert!(named && status.message.contains(what), "{status:?}");
                    failed += 1;
                }
            }
        }
        assert!(failed > 200, "{failed}");
        assert_eq!(world.get(0, "new"), Some(b"raw".to_vec()));
        world.put(0, "new", b"raw").expect("writes are served");
        world.crash(0);
        let _ = world.places[0].disk.remove(&dictionary);
    }
}

#[test]
fn a_power_cut_at_any_operation_loses_no_compressed_value() {
    let known: BTreeMap<String, Vec<u8>> =
        (0..PODS).map(|number| (pod_key(number), pod(number, 1, 2000))).collect();
    let fill = |seed: u64| {
        let mut world = World::started(1, seed, RAW);
        for (key, value) in &known {
            world.put(0, key, value).expect("is taken");
        }
        world.settle().expect("all goes well");
        world.crash(0);
        world.set_options(0, ZSTD);
        world
    };
    let mut whole = fill(1);
    let before = whole.places[0].disk.ops();
    whole.start_all();
    until_compressed(&mut whole, 0);
    whole.settle().expect("all goes well");
    let operations = whole.places[0].disk.ops() - before;
    assert!(operations > 60, "{operations}");
    let (mut cuts, mut compressed_after) = (0, 0);
    for nth in (1..=operations).step_by((operations / 40).max(1) as usize) {
        let mut world = fill(nth);
        world.places[0].disk.fail_next(disk::Operation::Change, nth, Fault::PowerCut);
        if world.start(0).is_ok() {
            let mut steps = 0..20_000;
            while steps.next().is_some() && world.work().is_ok() && !world.places[0].disk.is_down() {
                world.wait();
            }
        }
        cuts += u32::from(world.places[0].disk.is_down());
        world.crash(0);
        world.start_all();
        compressed_after += usize::from(compressed(&world, 0).0 > 0);
        assert_reads(&mut world, 0, &known);
        until_compressed(&mut world, 0);
        assert_reads(&mut world, 0, &known);
    }
    assert!(cuts > 30 && compressed_after > 5, "{cuts} {compressed_after}");
}
