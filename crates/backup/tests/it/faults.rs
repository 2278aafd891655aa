//! Stores that fail at any operation, and processes that are killed there.

use std::sync::Arc;

use backup::chain::Chain;
use backup::shipper::Pace;
use backup::source::Source as _;

use crate::model::{Backup, Node, assert_restores, cluster, pace};
use crate::store::{Failing, MemoryStore};

/// Runs a backup with a process that is killed at the nth operation of the store. Returns true if that operation was
/// reached.
fn killed_at(nth: u64, failing: Failing) -> bool {
    let (node, store) = (Node::new(nth, "raft"), Arc::new(MemoryStore::default()));
    store
        .fail(move |number| (number >= nth).then_some(if number == nth { failing } else { Failing::Before }));
    let mut backup = Backup::start(&node, &store, "one", 0);
    let mut was_reached = false;
    for _ in 0..14 {
        node.work(3);
        if backup.step().is_err() {
            was_reached = true;
            break;
        }
    }
    store.heal();
    let now_ms = backup.now_ms;
    drop(backup);
    node.work(3);
    let mut backup = Backup::start(&node, &store, "one", now_ms);
    backup.settle();
    assert_eq!(backup.shipper.counts().gaps, 0);
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let numbers = chain.all().expect("are listed");
    for number in numbers.iter().skip(1) {
        let (manifest, _) = chain.read(*number).expect("is whole");
        chain.before(&manifest).expect("the links hold");
    }
    assert_restores(&*store, &node, 4);
    was_reached
}

#[test]
fn a_process_may_be_killed_at_every_operation() {
    for failing in [Failing::Before, Failing::After, Failing::Half] {
        let reached = (1..200).take_while(|nth| killed_at(*nth, failing)).count();
        assert!((30..199).contains(&reached), "{reached} operations");
    }
}

#[test]
fn a_store_that_often_fails_gets_everything() {
    for seed in 1..6_u64 {
        let (node, store) = (Node::new(seed, "raft"), Arc::new(MemoryStore::default()));
        let mut random = seed;
        store.fail(move |_| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            match (random >> 33) % 10 {
                0 => Some(Failing::Before),
                1 => Some(Failing::After),
                2 => Some(Failing::Half),
                _ => None,
            }
        });
        let (mut one, mut two) =
            (Backup::start(&node, &store, "one", 0), Backup::start(&node, &store, "two", 0));
        for _ in 0..60 {
            node.work(3);
            let _ = one.step();
            let _ = two.step();
        }
        store.heal();
        // One of the two extends the chain now; the other one only watches.
        for _ in 0..400 {
            let _ = (one.step(), two.step());
        }
        let index = node.position().index;
        let name = cluster();
        let head = Chain { store: &*store, cluster: &name }.head().expect("is whole").expect("is there");
        assert_eq!(head.manifest.at.index, index, "seed {seed}");
        assert_restores(&*store, &node, 12);
    }
}

/// Number of seeds in a normal run. `MAINSTAY_SEEDS` sets another number.
const SEEDS: u64 = 30;

/// Two processes, of which each may be killed, suspended or cut off from the cluster, and a store that loses, repeats,
/// delays, cuts and answers late. One seed decides everything.
fn hard_times(seed: u64) {
    let (node, store) = (Node::new(seed + 1, "raft"), Arc::new(MemoryStore::default()));
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) % below
    };
    let (mut of_store, worse) = (draw(u64::MAX) | 1, 8 + draw(30));
    store.fail(move |_| {
        of_store = of_store.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        match (of_store >> 33) % worse {
            0 => Some(Failing::Before),
            1 => Some(Failing::After),
            2 => Some(Failing::Half),
            3 | 4 => Some(Failing::Late(1 + (of_store >> 40) % 12)),
            5 => Some(Failing::Twice),
            _ => None,
        }
    });
    let pace = Pace { base_ms: 2000 + 1000 * draw(20), ..pace() };
    let start = |id: &str, now_ms| Backup::start_with(&node, &store, id, now_ms, pace.clone());
    let ids = ["one", "two"];
    let mut all = ids.map(|id| start(id, 0));
    for _ in 0..80 {
        node.work(1 + draw(4) as usize);
        for (at, backup) in all.iter_mut().enumerate() {
            match draw(40) {
                // Killed, with what it had in memory.
                0 => *backup = start(ids[at], backup.now_ms),
                // Suspended, so that the other one may take over.
                1 => backup.now_ms += 12_000,
                2..8 => continue,
                _ => {}
            }
            // Errors are tried again.
            let _ = backup.step();
        }
    }
    store.heal();
    // One of the two extends the chain now; the other one only watches.
    for _ in 0..400 {
        all.iter_mut().for_each(|backup| drop(backup.step()));
    }
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let head = chain.head().expect("is whole").expect("is there");
    assert_eq!((head.manifest.at.index, &*head.damaged), (node.position().index, &[][..]), "seed {seed}");
    let numbers = chain.all().expect("are listed");
    for number in numbers.iter().skip(1) {
        let (manifest, _) = chain.read(*number).expect("is whole");
        chain.before(&manifest).unwrap_or_else(|trouble| panic!("seed {seed}: {trouble}"));
    }
    for (sequence, ..) in chain.epochs(&head).expect("are listed") {
        let epoch = chain.epoch(&head, sequence).expect("is whole");
        assert_eq!(epoch.gap, None, "seed {seed}: the log has dropped nothing");
    }
    assert_restores(&*store, &node, 5);
}

#[test]
fn nothing_is_lost_by_a_store_that_loses_repeats_delays_and_answers_late() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("MAINSTAY_SEED") {
        Some(seed) => hard_times(seed),
        None => (0..number("MAINSTAY_SEEDS").unwrap_or(SEEDS)).for_each(hard_times),
    }
}
