//! Pairs of processes, one of which stands by for long, and clocks that are set back.

use std::sync::Arc;

use backup::chain::Chain;
use backup::plan::Moment;
use backup::shipper::{Pace, Step};
use backup::source::Source as _;

use crate::model::{Backup, Node, assert_restores, cluster, pace, restore};
use crate::store::{Failing, MemoryStore};

/// Ships some revisions. Returns the time and the revision of each.
fn ship(backup: &mut Backup, count: usize) -> Vec<(u64, i64)> {
    let shipped = (0..count).map(|number| {
        backup.node.put("counter", &number.to_string());
        backup.settle();
        let (at, _) = backup.shipper.reached().expect("has shipped");
        (at.time_ms, backup.node.position().revision)
    });
    shipped.collect()
}

fn assert_times(store: &MemoryStore, expected: &[(u64, i64)]) {
    for (time_ms, revision) in expected {
        let (_, hash) = restore(store, Moment::TimeMs(*time_ms)).expect("is there");
        assert_eq!(hash.revision, *revision, "at {time_ms}");
    }
}

#[test]
fn a_base_that_lost_the_chain_is_of_no_use_when_its_process_takes_over() {
    let (node, store) = (Node::new(31, "raft"), Arc::new(MemoryStore::default()));
    node.work(10);
    // Both find an empty place and make a base; the second one loses.
    let (mut one, mut two) = (Backup::start(&node, &store, "one", 0), Backup::start(&node, &store, "two", 0));
    assert_eq!(one.step(), Ok(Step::Extended));
    store.fail(|number| (number < 2).then_some(Failing::Before));
    let _ = two.step();
    store.heal();
    let _ = two.step();
    let mut times = ship(&mut one, 20);
    two.now_ms = one.now_ms;
    node.put("later", "x");
    two.settle();
    times.extend(ship(&mut two, 5));
    assert_eq!(two.shipper.counts().bases, 0, "the chain was continued");
    assert_times(&store, &times);
    assert_restores(&*store, &node, 30);
}

#[test]
fn a_pair_that_has_nothing_to_ship_keeps_its_roles() {
    let store = Arc::new(MemoryStore::default());
    // Copies, of which each takeover costs a base and a gap.
    let (first, second) = (Node::new(32, "copy-1"), Node::new(32, "copy-2"));
    let mut one = Backup::start_with(&first, &store, "one", 0, Pace::default());
    one.settle();
    let mut two = Backup::start_with(&second, &store, "two", one.now_ms, Pace::default());
    for _ in 0..6000 {
        one.step().expect("the store answers");
        assert_eq!(two.step(), Ok(Step::StandsBy));
    }
    assert_eq!((one.shipper.counts().bases, two.shipper.counts().bases), (1, 0));
    // Nobody takes over who hears nothing from the cluster.
    second.set_current(false);
    for _ in 0..600 {
        assert_eq!(two.step(), Ok(Step::StandsBy));
    }
    second.set_current(true);
    let steps: Vec<_> = (0..600).map(|_| two.step()).collect();
    assert!(steps.contains(&Ok(Step::Extended)), "it takes over");
}

#[test]
fn a_base_is_not_dated_before_what_it_contains() {
    let (node, store) = (Node::new(33, "raft"), Arc::new(MemoryStore::default()));
    let pace = Pace { base_ms: 2000, ..pace() };
    let mut backup = Backup::start_with(&node, &store, "one", 0, pace);
    backup.wall_offset_ms = 10 * 3_600_000;
    backup.settle();
    let times = ship(&mut backup, 30);
    // The clock is set back by an hour, and a base is made.
    backup.wall_offset_ms -= 3_600_000;
    let bases = backup.shipper.counts().bases;
    ship(&mut backup, 30);
    assert!(backup.shipper.counts().bases > bases);
    // All that happens while the clock is behind has the last of these times.
    assert_times(&store, &times[..times.len() - 1]);
    assert_restores(&*store, &node, 30);
}

#[test]
fn nothing_is_dated_before_a_time_that_was_claimed_to_be_complete() {
    let (node, store) = (Node::new(34, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    ship(&mut backup, 5);
    // A silent time, which is said to be complete.
    (0..60).for_each(|_| drop(backup.step().expect("the store answers")));
    let (claimed, _) = backup.shipper.reached().expect("has shipped");
    let before = restore(&*store, Moment::TimeMs(claimed.time_ms)).expect("is there").1;
    backup.wall_offset_ms -= 4000;
    ship(&mut backup, 5);
    let after = restore(&*store, Moment::TimeMs(claimed.time_ms - 1)).expect("is there").1;
    assert_eq!(before, after, "the same time gives the same state for ever");
}

#[test]
fn parts_that_waited_claim_no_time_in_which_nothing_was_heard() {
    let (node, store) = (Node::new(35, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    node.put("a", "1");
    store.fail(|_| Some(Failing::Before));
    let _ = backup.step();
    let collected_ms = backup.now_ms.saturating_add_signed(backup.wall_offset_ms);
    node.set_current(false);
    (0..600).for_each(|_| drop(backup.step()));
    store.heal();
    backup.settle();
    let (at, _) = backup.shipper.reached().expect("has shipped");
    assert_eq!(at.time_ms, collected_ms);
}

#[test]
fn the_first_revision_after_a_gap_is_there() {
    let (node, store) = (Node::new(36, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    ship(&mut backup, 5);
    store.fail(|_| Some(Failing::Before));
    (0..20).for_each(|number| node.put("lost", &number.to_string()));
    node.drop_before(node.position().index);
    let _ = backup.step();
    store.heal();
    backup.settle();
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let head = chain.head_or_refuse().expect("is there");
    let (_, from, _) = chain.epochs(&head).expect("are listed").pop().expect("an epoch");
    let (_, hash) = restore(&*store, Moment::Revision(from.revision)).expect("is there");
    assert_eq!(hash.revision, from.revision);
}

#[test]
fn a_part_that_is_damaged_does_not_end_the_backup() {
    let (node, store) = (Node::new(37, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    ship(&mut backup, 2);
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let head = chain.head_or_refuse().expect("is there");
    let part = head.parts.last().expect("a part").object.name.clone();
    store.replace(&format!("{name}/{part}"), "damaged");
    ship(&mut backup, 20);
    let refused = restore(&*store, Moment::Newest).err().expect("is damaged");
    assert!(refused.text.contains(&part), "{refused}");
}

#[test]
fn a_name_that_leads_out_of_the_backup_is_refused() {
    use backup::object::Object;
    let digest = "a".repeat(64);
    let object = |name: &str| Object { name: name.to_owned(), bytes: 1, sha256: digest.clone() };
    assert!(
        object(&format!("data/aa/{digest}")).is_sound() && object(&format!("data/aa/{digest}-3")).is_sound()
    );
    for name in ["data/aa/x", "../data/aa/x", "data/../../etc/passwd", ""] {
        assert!(!object(name).is_sound(), "{name}");
    }
    assert!(!object(&format!("data/../{digest}")).is_sound());
}
