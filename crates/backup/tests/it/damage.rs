//! Damaged backups: a restore gives the exact state or an error.

use std::sync::Arc;

use backup::Fault;
use backup::chain::Chain;
use backup::command::prune_list;
use backup::manifest::Manifest;
use backup::plan::Moment;
use backup::shipper::{EPOCHS_PER_MANIFEST, Pace, Step};
use backup::source::Source as _;
use backup::store::Store as _;

use crate::model::{Backup, Node, assert_restores, cluster, pace, restore};
use crate::store::{Failing, MemoryStore};

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
                // JSON with another field may be of another release.
                Err(trouble) => {
                    assert!(matches!(trouble.fault, Fault::Damaged | Fault::Refused), "{name}: {trouble}");
                }
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

/// Lets a running process find that the newest manifest is damaged: an operation fails, and it reads the chain again.
fn interrupted(store: &MemoryStore, backup: &mut Backup) {
    store.fail(|_| Some(Failing::Before));
    let failed = (0..30).any(|_| backup.step().is_err());
    assert!(failed, "it asks the store");
    store.heal();
}

#[test]
fn a_running_process_ships_again_what_a_manifest_had_that_was_damaged() {
    for writes_later in [false, true] {
        let (node, store) = (Node::new(7, "raft"), Arc::new(MemoryStore::default()));
        let mut backup = Backup::start(&node, &store, "one", 0);
        for _ in 0..7 {
            node.work(5);
            backup.settle();
        }
        damage_newest(&store);
        interrupted(&store, &mut backup);
        if writes_later {
            node.work(5);
        }
        let newest = *node.hashes().values().last().expect("there are revisions");
        for _ in 0..60 {
            backup.step().expect("the store answers");
            // Whenever the newest moment can be restored, it is the newest.
            if let Ok((_, hash)) = restore(&*store, Moment::Newest) {
                assert_eq!(hash.revision, newest.revision);
            }
        }
        assert_eq!((backup.shipper.counts().gaps, backup.shipper.counts().bases), (0, 1));
        assert_restores(&*store, &node, 100);
    }
}

#[test]
fn a_standby_ships_what_a_manifest_had_that_was_damaged_after_it_had_seen_it() {
    for writes_later in [false, true] {
        let (node, store) = (Node::new(8, "raft"), Arc::new(MemoryStore::default()));
        let mut one = Backup::start(&node, &store, "one", 0);
        node.work(5);
        one.settle();
        let mut two = Backup::start(&node, &store, "two", 0);
        for _ in 0..30 {
            node.work(1);
            one.settle();
            assert_eq!(two.step(), Ok(Step::StandsBy));
        }
        // It looks at the chain once more.
        (0..30).for_each(|_| drop(two.step()));
        damage_newest(&store);
        if writes_later {
            node.work(5);
        }
        let newest = *node.hashes().values().last().expect("there are revisions");
        (0..300).for_each(|_| drop(two.step()));
        assert_eq!(restore(&*store, Moment::Newest).expect("is there").1.revision, newest.revision);
        assert_eq!((two.shipper.counts().gaps, two.shipper.counts().bases), (0, 0));
        assert_restores(&*store, &node, 100);
    }
}

#[test]
fn a_manifest_of_another_release_is_not_taken_for_damaged() {
    let (node, store) = backed_up(9);
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let number = chain.newest().expect("is listed").expect("is there");
    let path = format!("{name}/{}", Manifest::name(number));
    let whole = store.read(&path).expect("answers").expect("is there");
    let text = String::from_utf8(whole.to_vec()).expect("is text");
    for newer in [text.replacen("\"format\":1", "\"format\":3", 1), text.replacen('{', "{\"new\":{},", 1)] {
        assert_ne!(newer, text);
        store.replace(&path, newer);
        assert_eq!(chain.head().err().map(|trouble| trouble.fault), Some(Fault::Refused));
        let mut backup = Backup::start(&node, &store, "one", 100_000);
        node.work(5);
        let refused = (0..30).find_map(|_| backup.step().err()).expect("is refused");
        assert_eq!(refused.fault, Fault::Refused, "{refused}");
        assert_eq!(chain.newest(), Ok(Some(number)), "nothing is written after it");
    }
}

#[test]
fn a_prune_may_be_interrupted_after_every_deletion() {
    let (node, store) = (Node::new(10, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start_with(&node, &store, "one", 0, Pace { base_ms: 1, ..pace() });
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let mut times = Vec::new();
    let mut behind = 0;
    // A list, and as many epochs behind it as a manifest lists.
    while behind < 20 {
        node.work(2);
        backup.settle();
        times.push(backup.shipper.reached().expect("has shipped").0);
        let head = chain.head_or_refuse().expect("is there");
        behind +=
            usize::from(head.first.earlier.is_some() && head.first.epochs.len() > EPOCHS_PER_MANIFEST / 2);
    }
    let head = chain.head_or_refuse().expect("is there");
    let earlier = head.first.earlier.clone().expect("has a list");
    // All epochs of the list go, and some of those behind it.
    let from = times[times.len() - 10];
    let list = prune_list(&chain, from.time_ms).expect("is listed");
    assert!(list.names.contains(&format!("{name}/{}", earlier.object.name)), "the list goes, too");
    assert!(list.oldest.index <= from.index);
    for (at, object) in list.names.iter().enumerate() {
        store.remove(object).expect("is removed");
        for moment in [Moment::Newest, Moment::Revision(from.revision), Moment::TimeMs(from.time_ms)] {
            chain.plan(moment).unwrap_or_else(|trouble| panic!("{moment:?} after deletion {at}: {trouble}"));
        }
        if at % 20 == 0 {
            prune_list(&chain, from.time_ms)
                .unwrap_or_else(|trouble| panic!("after deletion {at}: {trouble}"));
        }
    }
    let rest = prune_list(&chain, from.time_ms).expect("is listed");
    // Small parts that were merged are named by manifests that stay.
    assert!(rest.names.iter().all(|object| store.read(object) == Ok(None)), "nothing is left over");
    assert_eq!(
        restore(&*store, Moment::Revision(from.revision)).expect("is there").1,
        node.hashes()[&from.revision]
    );
}

#[test]
fn a_damaged_manifest_that_others_follow_does_not_end_a_backup() {
    let (node, store) = (Node::new(11, "raft"), Arc::new(MemoryStore::default()));
    let long = Pace { manifests_per_catalog: 64, ..pace() };
    let mut backup = Backup::start_with(&node, &store, "one", 0, long.clone());
    for _ in 0..10 {
        node.work(5);
        backup.settle();
    }
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let broken = chain.newest().expect("is listed").expect("is there") - 3;
    let (before, _) = chain.read(broken - 1).expect("is whole");
    for damage in [Some("{"), None] {
        let path = format!("{name}/{}", Manifest::name(broken));
        match damage {
            Some(text) => store.replace(&path, text),
            None => store.remove(&path).expect("is removed"),
        }
        let refused = restore(&*store, Moment::Newest).err().expect("is refused");
        assert_eq!(refused.fault, Fault::Damaged);
        let revision = before.at.revision;
        let restored = restore(&*store, Moment::Revision(revision)).expect("is there").1;
        assert_eq!(restored.revision, revision);
    }
    let mut again = Backup::start_with(&node, &store, "one", 100_000, long);
    node.work(5);
    again.settle();
    assert_eq!((again.shipper.counts().gaps, again.shipper.counts().bases), (0, 0));
    let (newest, _) = chain.read(broken + 4).expect("is whole");
    assert_eq!(newest.skipped, (broken..broken + 4).collect::<Vec<u64>>());
    assert_restores(&*store, &node, 100);
}

#[test]
fn a_closed_epoch_is_restored_without_its_catalog() {
    let (node, store) = (Node::new(12, "raft"), Arc::new(MemoryStore::default()));
    let mut backup = Backup::start_with(&node, &store, "one", 0, Pace { base_ms: 3000, ..pace() });
    for _ in 0..80 {
        node.work(2);
        backup.settle();
    }
    let name = cluster();
    let chain = Chain { store: &*store, cluster: &name };
    let head = chain.head_or_refuse().expect("is there");
    assert!(head.first.epochs.len() > 1);
    for epoch in &head.first.epochs {
        store.replace(&format!("{name}/{}", epoch.catalog.name), "{");
    }
    assert_restores(&*store, &node, 60);
}
