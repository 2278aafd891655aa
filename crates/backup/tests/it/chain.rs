//! Chains: one process, two processes, gaps, other histories, clocks.

use std::sync::Arc;

use backup::Fault;
use backup::chain::Chain;
use backup::plan::Moment;
use backup::shipper::{EPOCHS_PER_MANIFEST, Pace, Step};
use backup::source::Source as _;

use crate::model::{Backup, Node, assert_restores, cluster, pace, restore};
use crate::store::MemoryStore;

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::default())
}

#[test]
fn what_is_shipped_is_restored_at_every_revision() {
    let (node, store) = (Node::new(1, "raft"), store());
    node.work(30);
    let mut backup = Backup::start(&node, &store, "one", 0);
    for _ in 0..20 {
        node.work(7);
        backup.settle();
    }
    let name = cluster();
    let head = Chain { store: &*store, cluster: &name }.head().expect("is whole").expect("is there");
    assert!(head.in_catalog > 0 && head.manifest.sequence > 15, "parts were merged");
    assert!(head.in_catalog < 15, "into fewer ones");
    assert_restores(&*store, &node, 200);
}

#[test]
fn a_process_that_is_started_again_goes_on_where_the_chain_ends() {
    let (node, store) = (Node::new(2, "raft"), store());
    let mut now_ms = 0;
    for round in 0..8 {
        let mut backup = Backup::start(&node, &store, "one", now_ms);
        node.work(9);
        backup.settle();
        // Entries that were applied while nobody was there.
        node.work(5);
        now_ms = backup.now_ms;
        let (at, _) = backup.shipper.reached().expect("has shipped");
        assert_eq!(backup.shipper.counts().bases, u64::from(round == 0), "one base is enough: {at:?}");
    }
    Backup::start(&node, &store, "one", now_ms).settle();
    assert_restores(&*store, &node, 40);
}

#[test]
fn of_two_processes_one_ships_and_the_other_takes_over() {
    let (node, store) = (Node::new(3, "raft"), store());
    let mut one = Backup::start(&node, &store, "one", 0);
    node.work(10);
    one.settle();
    let mut two = Backup::start(&node, &store, "two", one.now_ms);
    for _ in 0..30 {
        node.work(3);
        one.settle();
        assert_eq!(two.step(), Ok(Step::StandsBy));
    }
    assert_eq!(two.shipper.counts().manifests, 0);
    // The first one is silent from here on.
    node.work(20);
    two.settle();
    assert_eq!((two.shipper.counts().bases, two.shipper.counts().gaps), (0, 0), "nothing is missing");
    // The first one awakes, fails to append, and stands by.
    node.work(3);
    let steps: Vec<_> = (0..5).map(|_| one.step()).collect();
    assert!(steps.contains(&Ok(Step::StandsBy)), "{steps:?}");
    two.settle();
    assert_restores(&*store, &node, 40);
}

#[test]
fn two_processes_that_append_the_same_number_harm_nothing() {
    let (node, store) = (Node::new(4, "raft"), store());
    node.work(10);
    // Both find an empty place.
    let (mut one, mut two) = (Backup::start(&node, &store, "one", 0), Backup::start(&node, &store, "two", 0));
    for _ in 0..50 {
        node.work(2);
        one.step().expect("the store answers");
        two.step().expect("the store answers");
    }
    one.settle();
    let (ones, twos) = (one.shipper.counts(), two.shipper.counts());
    assert!(ones.manifests > 20 && twos.manifests <= 1, "{ones:?} {twos:?}");
    assert_restores(&*store, &node, 40);
}

#[test]
fn a_copy_with_another_log_begins_an_epoch() {
    let (node, store) = (Node::new(5, "copy-1"), store());
    node.work(20);
    let mut one = Backup::start(&node, &store, "one", 0);
    one.settle();
    let other = Node::new(6, "copy-2");
    other.work(60);
    let mut two = Backup::start(&other, &store, "two", one.now_ms);
    two.settle();
    other.work(20);
    two.settle();
    assert_eq!(two.shipper.counts().bases, 1);
    let (_, hash) = restore(&*store, Moment::Newest).expect("is restored");
    assert_eq!(Some(&hash), other.hashes().values().last());
}

#[test]
fn entries_that_the_log_has_dropped_are_a_gap_that_is_said() {
    let (node, store) = (Node::new(7, "raft"), store());
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    node.work(20);
    backup.settle();
    let shipped = node.position().revision;
    let before = node.hashes();
    store.fail(|_| Some(crate::store::Failing::Before));
    node.work(50);
    node.drop_before(node.position().index - 5);
    let _ = backup.step();
    store.heal();
    backup.settle();
    node.work(10);
    backup.settle();
    assert_eq!((backup.shipper.counts().gaps, backup.shipper.counts().bases), (1, 2));
    for (revision, hash) in before.range(..=shipped).rev().take(3) {
        assert_eq!(restore(&*store, Moment::Revision(*revision)).expect("is there").1, *hash);
    }
    let lost = restore(&*store, Moment::Revision(shipped + 3)).err().expect("is not there");
    assert_eq!(lost.fault, Fault::Refused);
    assert!(lost.text.contains("no moments between") && lost.text.contains("no longer had"), "{lost}");
    let (_, hash) = restore(&*store, Moment::Newest).expect("is there");
    assert_eq!(Some(&hash), node.hashes().values().last());
}

#[test]
fn another_history_of_the_cluster_is_refused() {
    // The cluster is created again under the same name, and has come further.
    let (node, store) = (Node::new(8, "raft"), store());
    node.work(20);
    let mut one = Backup::start(&node, &store, "one", 0);
    one.settle();
    for (id, seed, entries, elections) in [("one", 9, 40, 0), ("one", 10, 40, 3), ("two", 9, 40, 0)] {
        let again = Node::new(seed, "raft");
        (0..elections).for_each(|_| again.elect());
        again.work(entries);
        let mut backup = Backup::start(&again, &store, id, one.now_ms);
        let refused = (0..300).find_map(|_| backup.step().err()).expect("is refused");
        assert_eq!(refused.fault, Fault::Foreign, "{refused}");
        assert!(refused.text.contains("another prefix"), "{refused}");
    }
    // It is behind: that may also be a node that is catching up.
    let again = Node::new(11, "raft");
    again.work(3);
    let mut backup = Backup::start(&again, &store, "one", one.now_ms);
    assert!(matches!(backup.step(), Ok(Step::Waits(_))));
    assert_eq!(backup.shipper.counts().manifests, 0);
    assert_restores(&*store, &node, 5);
}

#[test]
fn the_order_is_that_of_the_chain_whatever_the_clock_says() {
    let (node, store) = (Node::new(12, "raft"), store());
    let mut backup = Backup::start(&node, &store, "one", 0);
    let mut times = Vec::new();
    for hour in [0, 1, -1, 0] {
        backup.wall_offset_ms = 10 * 3_600_000 + hour * 3_600_000;
        node.work(10);
        backup.settle();
        let (at, _) = backup.shipper.reached().expect("has shipped");
        times.push(at.time_ms);
        assert_eq!(backup.collector.behind_ms().is_some(), hour < 1 && times.len() > 2);
    }
    assert!(times.is_sorted(), "{times:?}");
    assert_restores(&*store, &node, 40);
    // A time before the jump is that before the jump.
    let (restored, _) = restore(&*store, Moment::TimeMs(times[1] - 1)).expect("is there");
    assert!(restored.time_ms <= times[0], "{}", restored.time_ms);
}

#[test]
fn nothing_is_claimed_about_a_time_in_which_the_node_heard_nothing() {
    let (node, store) = (Node::new(13, "raft"), store());
    let mut backup = Backup::start(&node, &store, "one", 0);
    node.work(10);
    backup.settle();
    let (at, _) = backup.shipper.reached().expect("has shipped");
    node.set_current(false);
    (0..50).for_each(|_| drop(backup.step()));
    assert_eq!(backup.shipper.reached().map(|(at, _)| at), Some(at), "no manifest");
    node.set_current(true);
    (0..50).for_each(|_| drop(backup.step()));
    let (later, _) = backup.shipper.reached().expect("has shipped");
    assert!(later.time_ms > at.time_ms + 3000 && later.index == at.index);
    assert!(restore(&*store, Moment::TimeMs(at.time_ms + 2000)).is_ok());
    let future = restore(&*store, Moment::TimeMs(later.time_ms + 1)).err().expect("is not there");
    assert!(future.text.contains("reaches only to revision"), "{future}");
}

#[test]
fn a_manifest_lists_a_bounded_number_of_epochs_and_all_are_found() {
    let (node, store) = (Node::new(14, "raft"), store());
    let mut backup = Backup::start_with(&node, &store, "one", 0, Pace { base_ms: 1, ..pace() });
    let (name, mut firsts) = (cluster(), Vec::new());
    let chain = Chain { store: &*store, cluster: &name };
    while firsts.len() < 2 * EPOCHS_PER_MANIFEST + 5 {
        node.work(3);
        backup.settle();
        let head = chain.head_or_refuse().expect("is there");
        assert!(head.first.epochs.len() <= EPOCHS_PER_MANIFEST);
        if firsts.last() != Some(&head.manifest.epoch) {
            firsts.push(head.manifest.epoch);
        }
    }
    let head = chain.head_or_refuse().expect("is there");
    let listed: Vec<u64> = chain.epochs(&head).expect("are listed").into_iter().map(|(at, ..)| at).collect();
    assert_eq!(listed, firsts);
    assert_restores(&*store, &node, 60);
}

#[test]
fn two_bases_have_no_object_in_common() {
    let (node, store) = (Node::new(15, "raft"), store());
    node.work(30);
    let mut backup = Backup::start_with(&node, &store, "one", 0, Pace { base_ms: 3000, ..pace() });
    let (name, mut seen) = (cluster(), std::collections::BTreeSet::new());
    let chain = Chain { store: &*store, cluster: &name };
    let mut epoch = 0;
    for _ in 0..100 {
        // The first chunks of the state stay the same.
        node.put("last", "x");
        backup.settle();
        let head = chain.head_or_refuse().expect("is there");
        if head.manifest.epoch == epoch {
            continue;
        }
        epoch = head.manifest.epoch;
        for chunk in head.first.base.expect("has a base").chunks {
            assert!(seen.insert(chunk.object.name), "prune could delete it beside the process that ships");
        }
    }
    assert!(seen.len() > 2, "{seen:?}");
}
