//! Damaged backups: a restore gives the exact state or an error.

use std::sync::Arc;

use backup::Fault;
use backup::chain::Chain;
use backup::manifest::Manifest;
use backup::plan::Moment;
use backup::shipper::Step;
use backup::source::Source as _;
use backup::store::Store as _;

use crate::model::{Backup, Node, assert_restores, cluster, restore};
use crate::store::MemoryStore;

fn backed_up(seed: u64) -> (Arc<Node>, Arc<MemoryStore>) {
    let (node, store) = (Node::new(seed, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start(&node, &store, "one", 0);
    for _ in 0..12 {
        node.work(5);
        backup.settle();
    }
    (node, store)
}

#[test]
fn no_damage_to_any_object_gives_a_wrong_state() {
    let (node, store) = backed_up(1);
    let newest = *node.hashes().values().last().expect("there are revisions");
    for name in store.names() {
        let whole = store.read(&name).expect("answers").expect("is there");
        let damages: Vec<Vec<u8>> = vec![
            whole[..whole.len() / 2].to_vec(),
            Vec::new(),
            [&whole[..], b"x"].concat(),
            flipped(&whole, whole.len() / 3),
            flipped(&whole, whole.len() - 2),
        ];
        for damage in damages {
            store.replace(&name, damage);
            match restore(&*store, Moment::Newest) {
                // The object is not needed for this moment.
                Ok((_, hash)) => assert_eq!(hash, newest, "{name}"),
                Err(trouble) => assert_eq!(trouble.fault, Fault::Damaged, "{name}: {trouble}"),
            }
        }
        store.replace(&name, whole.clone());
    }
    assert_eq!(restore(&*store, Moment::Newest).expect("is whole again").1, newest);
}

fn flipped(whole: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 0x10;
    }
    bytes
}

#[test]
fn an_object_that_is_missing_is_named() {
    let (_, store) = backed_up(2);
    let mut errors = 0;
    for name in store.names() {
        let whole = store.read(&name).expect("answers").expect("is there");
        store.remove(&name).expect("is removed");
        if let Err(trouble) = restore(&*store, Moment::Newest) {
            assert!(matches!(trouble.fault, Fault::Damaged | Fault::Refused), "{trouble}");
            errors += 1;
        }
        store.replace(&name, whole);
    }
    assert!(errors > 3, "{errors}");
}

/// Damages the newest manifest. Returns its number, and the revision of the one before.
fn damage_newest(store: &MemoryStore) -> (u64, i64) {
    let name = cluster();
    let chain = Chain { store, cluster: &name };
    let number = chain.newest().expect("is listed").expect("is there");
    let path = format!("{name}/{}", Manifest::name(number));
    let whole = store.read(&path).expect("answers").expect("is there");
    store.replace(&path, whole[..whole.len() / 2].to_vec());
    let (before, _) = chain.read(number - 1).expect("is whole");
    (number, before.at.revision)
}

#[test]
fn a_damaged_newest_manifest_does_not_end_a_backup() {
    let (node, store) = backed_up(3);
    let (number, before) = damage_newest(&store);
    // Until the backup has gone on, nobody knows what was in there.
    let refused = restore(&*store, Moment::Newest).err().expect("is refused");
    assert_eq!(refused.fault, Fault::Damaged);
    assert!(refused.text.contains(&format!("--to-revision {before}")), "{refused}");
    assert_eq!(restore(&*store, Moment::Revision(before)).expect("is there").1, node.hashes()[&before]);

    let mut backup = Backup::start(&node, &store, "one", 100_000);
    node.work(5);
    backup.settle();
    let notice = backup.shipper.take_notice().expect("it is said");
    assert!(
        notice.contains("shipped again from the log") && notice.contains(&Manifest::name(number)),
        "{notice}"
    );
    assert_eq!((backup.shipper.counts().gaps, backup.shipper.counts().bases), (0, 0));
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let (after, _) = chain.read(number + 1).expect("is whole");
    assert_eq!(after.skipped, [number]);
    assert_eq!(chain.before(&after).expect("the link holds").sequence, number - 1);
    for _ in 0..12 {
        node.work(5);
        backup.settle();
    }
    assert_eq!(backup.shipper.take_notice(), None);
    assert_restores(&*store, &node, 100);
}

#[test]
fn what_a_damaged_manifest_had_is_a_gap_if_the_log_has_dropped_it() {
    let (node, store) = backed_up(4);
    let (_, before) = damage_newest(&store);
    node.drop_before(node.position().index);
    node.work(5);
    let lost = before + 1;
    let mut backup = Backup::start(&node, &store, "one", 100_000);
    backup.settle();
    assert_eq!(backup.shipper.counts().bases, 1);
    let refused = restore(&*store, Moment::Revision(lost)).err().expect("is not there");
    assert!(refused.text.contains("no moments between"), "{refused}");
    let newest = *node.hashes().values().last().expect("there are revisions");
    assert_eq!(restore(&*store, Moment::Newest).expect("is there").1, newest);
}

#[test]
fn another_process_takes_over_after_a_damaged_manifest() {
    let (node, store) = backed_up(5);
    damage_newest(&store);
    let mut other = Backup::start(&node, &store, "two", 100_000);
    assert_eq!(other.step(), Ok(Step::StandsBy), "the first one may still be there");
    node.work(5);
    other.settle();
    assert_restores(&*store, &node, 100);
}

#[test]
fn a_damaged_catalog_is_made_again() {
    let (node, store) = backed_up(6);
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let head = chain.head_or_refuse().expect("is there");
    let catalog = head.manifest.catalog.expect("parts were merged").object;
    store.replace(&format!("{name}/{}", catalog.name), "{");
    let mut backup = Backup::start(&node, &store, "one", 100_000);
    for _ in 0..12 {
        node.work(5);
        backup.settle();
    }
    let again = chain.head_or_refuse().expect("is there").manifest.catalog.expect("parts were merged").object;
    assert_ne!(again, catalog);
    assert_restores(&*store, &node, 100);
}
