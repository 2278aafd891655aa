//! Compares HashKV of hand-made histories with the hashes that etcd returned for them.

use mainstay_interchange::backend::{
    Backend, BackendLayout, BackendWriter, Change, ChangeHead, Meta, Release, StoredChangeId,
};
use mainstay_interchange::bolt::Bolt;
use mainstay_interchange::hash_kv;
use numbers::{LeaseId, Revision};

/// A step of a history: revision, sub revision, key and value; a deletion has no value.
type Step<'a> = (i64, i64, &'a str, Option<&'a str>);

fn database(steps: &[Step<'_>], scheduled: Option<i64>, finished: Option<i64>) -> Backend<Vec<u8>> {
    let meta = Meta {
        scheduled_compact_revision: scheduled.map(Revision),
        finished_compact_revision: finished.map(Revision),
        ..Meta::default()
    };
    let changes: Vec<Change<'_>> = steps
        .iter()
        .map(|(main, sub, key, value)| {
            let is_tombstone = value.is_none();
            let put = if is_tombstone { 0 } else { 1 };
            let head = ChangeHead {
                revision: StoredChangeId { main: Revision(*main), sub: *sub },
                is_tombstone,
                key: key.as_bytes(),
                create_revision: Revision(main * put),
                mod_revision: Revision(main * put),
                version: put,
                lease: LeaseId::NONE,
            };
            Change { head, value: value.unwrap_or_default().as_bytes() }
        })
        .collect();
    let mut layout = BackendLayout::new(Release::V3_7);
    layout.meta(&meta).expect("fits");
    changes.iter().for_each(|change| layout.change(&change.head, change.value.len()).expect("fits"));
    let plan = layout.finish().expect("fits");
    let mut writer = BackendWriter::new(Vec::new(), plan, Release::V3_7).expect("begins");
    writer.meta(&meta).expect("fits");
    changes.iter().for_each(|change| writer.change(change).expect("fits"));
    let bytes = writer.finish().expect("is what was measured");
    Backend::new(Bolt::whole(bytes).expect("opens")).expect("is etcd's")
}

fn hash(backend: &Backend<Vec<u8>>, revision: i64) -> (u32, i64, i64) {
    let found = hash_kv(backend, Revision(revision)).expect("is there");
    (found.hash, found.compact_revision.0, found.hash_revision.0)
}

const A: Step<'_> = (2, 0, "a", Some("1"));
const B: Step<'_> = (3, 0, "b", Some("22"));
const NO_A: Step<'_> = (4, 0, "a", None);
const C: Step<'_> = (5, 0, "c", Some("3"));
const NO_B: Step<'_> = (6, 0, "b", None);
const NO_C: Step<'_> = (6, 1, "c", None);

/// etcd 3.7.3: put a 1, put b 22, del a, put c 3, compaction 3, del of all, compaction 6.
#[test]
fn equals_what_etcd_computes() {
    assert_eq!(hash(&database(&[], None, None), 0), (1_084_519_789, -1, 1));
    let three = database(&[A, B, NO_A], None, None);
    assert_eq!(hash(&three, 0), (2_304_249_277, -1, 4));
    assert_eq!(hash(&three, 3), (2_627_027_711, -1, 3));
    // No key is left, but changes at or below the compact revision are still hashed.
    let all = database(&[A, B, NO_A, C, NO_B, NO_C], Some(3), Some(3));
    assert_eq!(hash(&all, 6), (4_080_008_450, 3, 6));
    assert!(hash_kv(&all, Revision(2)).is_err() && hash_kv(&all, Revision(7)).is_err());
}

/// etcd continues a compaction when it starts, so the hash must be the same as after the compaction.
#[test]
fn an_unfinished_compaction_is_a_compaction() {
    let steps = [A, B, (4, 0, "a", Some("4")), (5, 0, "b", None), C, (7, 0, "d", Some("5"))];
    let steps = steps.map(|(main, sub, key, value)| (if key == "c" { 6 } else { main }, sub, key, value));
    let unfinished = database(&steps, Some(6), None);
    let halfway = database(&steps[1..], Some(6), None);
    let finished = database(&[steps[2], steps[4], steps[5]], Some(6), Some(6));
    for revision in [6, 7, 0] {
        let expected = hash(&finished, revision);
        assert_eq!(hash(&unfinished, revision), expected);
        assert_eq!(hash(&halfway, revision), expected);
        assert_eq!(expected.1, 6);
    }
    // A deletion at the compact revision itself stays in the database from 3.5.16 on and is not hashed.
    let steps = [A, B, NO_A, C];
    let with = hash(&database(&[B, NO_A, C], Some(4), Some(4)), 5);
    assert_eq!(hash(&database(&[B, C], Some(4), Some(4)), 5), with);
    assert_eq!(hash(&database(&steps, Some(4), None), 5), with);
}
