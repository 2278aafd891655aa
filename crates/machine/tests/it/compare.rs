//! Comparison of two machines by everything that is observable.

use std::collections::BTreeMap;

use mainstay_machine::{Lease, Machine, SegmentUse};
use mvcc::{KeyRange, LoadedVersion, Snapshot, hash_versions};
use numbers::{LeaseId, Revision};

fn used(machine: &Machine) -> BTreeMap<u32, SegmentUse> {
    machine.usage().iter().filter(|(_, usage)| usage.values > 0).map(|(id, usage)| (*id, *usage)).collect()
}

fn leases(machine: &Machine) -> BTreeMap<LeaseId, Lease<'_>> {
    machine.leases.iter().collect()
}

fn range<'a>(snapshot: &Snapshot<'a>, revision: Revision) -> Vec<LoadedVersion<'a>> {
    snapshot.range(KeyRange::ALL, revision).expect("readable").map(LoadedVersion::from).collect()
}

/// Asserts that the machines cannot be distinguished by anything observable. First finishes the physical
/// compaction of both, because its progress is not part of the replicated state, but the accounting counts
/// the versions that physically exist.
pub fn assert_same(ours: &mut Machine, theirs: &mut Machine) {
    assert!(ours.state_hash().is_some());
    assert_eq!(ours.state_hash(), theirs.state_hash());
    assert_same_but_hash(ours, theirs);
}

/// Makes the assertions of [`assert_same`], for a machine whose state hash is unknown.
pub fn assert_same_but_hash(ours: &mut Machine, theirs: &mut Machine) {
    while !ours.compact_step(1000) {}
    while !theirs.compact_step(1000) {}
    assert_eq!((ours.applied_index, ours.applied_term), (theirs.applied_index, theirs.applied_term));
    assert_eq!(leases(ours), leases(theirs));
    assert_eq!(ours.alarms, theirs.alarms);
    assert_eq!(ours.members, theirs.members);
    assert_eq!(ours.auth, theirs.auth);
    assert_eq!(used(ours), used(theirs));
    assert_eq!(ours.in_use_bytes(), theirs.in_use_bytes());
    let (view, other) = (ours.store.publish(), theirs.store.publish());
    let (a, b) = (view.snapshot(), other.snapshot());
    assert_eq!((a.current_revision(), a.compact_revision()), (b.current_revision(), b.compact_revision()));
    assert_eq!(a.live_keys(), b.live_keys());
    assert!(a.histories().map(LoadedVersion::from).eq(b.histories().map(LoadedVersion::from)));
    let first = a.compact_revision().max(Revision(1));
    let changes = |s: &Snapshot<'_>| s.changes(first, s.current_revision()).expect("readable").count();
    assert_eq!(changes(&a), changes(&b));
    for revision in (first.0..=a.current_revision().0).map(Revision) {
        assert_eq!(range(&a, revision), range(&b, revision), "at {revision}");
        let mut hashed = Vec::new();
        hash_versions(&view, revision, |version| hashed.push(version.id())).expect("readable");
        let mut others = Vec::new();
        hash_versions(&other, revision, |version| others.push(version.id())).expect("readable");
        assert_eq!(hashed, others, "at {revision}");
    }
}
