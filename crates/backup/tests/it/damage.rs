//! Damaged backups: a restore gives the exact state or an error.

use std::sync::Arc;

use backup::Fault;
use backup::plan::Moment;
use backup::store::Store as _;

use crate::model::{Backup, Node, restore};
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
