//! Moments: the exact one is restored, or it is said which ones there are.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use backup::plan::Moment;
use backup::source::Source as _;

use testkit::TempDir;

use crate::model::{Backup, Node, restore, restore_in};
use crate::store::{Failing, MemoryStore};

#[test]
fn a_time_gives_the_last_state_that_was_applied_by_then() {
    let (node, store) = (Node::new(1, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    let mut expected = Vec::new();
    for number in 0..20 {
        node.put("counter", &number.to_string());
        backup.settle();
        let (at, _) = backup.shipper.reached().expect("has shipped");
        expected.push((at.time_ms, node.position().revision));
    }
    for pair in expected.windows(2) {
        for time_ms in [pair[0].0, pair[1].0 - 1] {
            let (restored, hash) = restore(&*store, Moment::TimeMs(time_ms)).expect("is there");
            assert_eq!(hash.revision, pair[0].1);
            assert_eq!(restored.time_ms, pair[0].0);
            assert!(
                restored.compared > 0,
                "{:?} the state was compared with that of the node",
                backup.shipper.reached()
            );
        }
    }
}

#[test]
fn a_moment_outside_of_the_backup_is_refused_with_the_ones_inside() {
    let (node, store) = (Node::new(2, "raft"), Arc::new(MemoryStore::default()));
    let none = restore(&*store, Moment::Newest).err().expect("there is nothing");
    assert!(none.text.contains("no backup of cluster"), "{none}");
    node.work(30);
    let mut backup = Backup::start(&node, &store, "one", 0);
    backup.settle();
    node.work(5);
    backup.settle();
    let newest = node.position().revision;
    let beyond = restore(&*store, Moment::Revision(newest + 1)).err().expect("is not there");
    assert!(beyond.text.contains(&format!("reaches only to revision {newest}")), "{beyond}");
    let before = restore(&*store, Moment::Revision(2)).err().expect("is not there");
    assert!(before.text.contains("begins only with revision"), "{before}");
    assert!(restore(&*store, Moment::TimeMs(0)).is_err());
}

#[test]
fn a_restore_that_was_interrupted_fetches_only_the_rest() {
    let (node, store) = (Node::new(3, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    for _ in 0..24 {
        node.work(4);
        backup.settle();
    }
    store.is_distant.store(true, Ordering::Relaxed);
    let newest = *node.hashes().values().last().expect("there are revisions");
    store.fail(|_| None);
    assert_eq!(restore(&*store, Moment::Newest).expect("is there").1, newest);
    let all = store.heal();
    let dir = TempDir::new("backup-resumed");
    store.fail(move |number| (number >= all - 1).then_some(Failing::Denied));
    let interrupted = restore_in(dir.path(), &*store, Moment::Newest).err().expect("is interrupted");
    assert!(interrupted.text.contains("403"), "{interrupted}");
    store.fail(|_| None);
    assert_eq!(restore_in(dir.path(), &*store, Moment::Newest).expect("is there").1, newest);
    let rest = store.heal();
    assert!(rest < all, "{rest} of {all} operations");
    // What was kept is verified, too.
    for entry in std::fs::read_dir(dir.path().join("cache")).expect("exists") {
        std::fs::write(entry.expect("is readable").path(), "damaged").expect("is writable");
    }
    assert_eq!(restore_in(dir.path(), &*store, Moment::Newest).expect("is there").1, newest);
}
