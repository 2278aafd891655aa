//! Stores that fail at any operation, and processes that are killed there.

use std::sync::Arc;

use backup::chain::Chain;
use backup::source::Source as _;

use crate::model::{Backup, Node, assert_restores, cluster};
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
