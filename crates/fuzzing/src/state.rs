//! Copies state machines by saving and restoring them in each format of saved states, and compares machines,
//! for the targets that use state machines.

use std::collections::BTreeMap;
use std::convert::Infallible;

use bytes::Bytes;
use machine::image::{self, RunWriter};
use machine::snapshot::{self, SnapshotReader, SnapshotWriter};
use machine::transfer::{Assembly, ReceivedVersion, TransferReader, TransferWriter};
use machine::{Lease, Machine, Rules};
use mvcc::{HashWalk, KeyRange, Version};
use numbers::{ChangeId, LeaseId, Revision};

use crate::journal::Journal;

/// Rules of all state machines in this crate.
pub const RULES: Rules = Rules { learners_max: 1 };

/// All data of a version except the location of its value.
type Told = (Vec<u8>, ChangeId, Revision, i64, LeaseId, u32, u32);

fn told(version: Version<'_>) -> Told {
    (
        version.key().to_vec(),
        version.id(),
        version.create_revision(),
        version.version(),
        version.lease(),
        version.value_len(),
        version.value_crc(),
    )
}

fn leases(machine: &Machine) -> BTreeMap<LeaseId, Lease<'_>> {
    machine.leases.iter().collect()
}

/// Asserts that two state machines are equal except for the locations of their values. First removes all
/// compacted data from both, since one may have removed more than the other.
pub fn assert_same(ours: &mut Machine, theirs: &mut Machine) {
    while !ours.compact_step(1000) {}
    while !theirs.compact_step(1000) {}
    assert_eq!((ours.applied_index, ours.applied_term), (theirs.applied_index, theirs.applied_term));
    assert_eq!(ours.state_hash(), theirs.state_hash());
    assert_eq!(leases(ours), leases(theirs));
    assert_eq!(ours.alarms, theirs.alarms);
    assert_eq!(ours.members, theirs.members);
    assert_eq!(ours.auth, theirs.auth);
    assert_eq!(ours.in_use_bytes(), theirs.in_use_bytes());
    let (view, other) = (ours.store.publish(), theirs.store.publish());
    let (a, b) = (view.snapshot(), other.snapshot());
    assert_eq!((a.current_revision(), a.compact_revision()), (b.current_revision(), b.compact_revision()));
    assert_eq!(a.live_keys(), b.live_keys());
    let histories = |of: &mvcc::Snapshot<'_>| of.histories().map(told).collect::<Vec<_>>();
    assert_eq!(histories(&a), histories(&b));
    let first = a.compact_revision().max(Revision(1));
    let range = |of: &mvcc::Snapshot<'_>, at| {
        of.range(KeyRange::ALL, at).map(|range| range.map(told).collect::<Vec<_>>())
    };
    let hashed = |of: &mvcc::Snapshot<'_>, at| {
        let mut fed = Vec::new();
        let mut walk = HashWalk::new(of, at).expect("not compacted");
        while !walk.step(of, 5, |version| fed.push(version.id())) {}
        fed
    };
    // Compare only the first few revisions and the last one, because a restored state may have any revision,
    // so that there may be too many.
    let current = a.current_revision();
    for at in (first.0..current.0).map(Revision).take(8).chain([current]) {
        assert_eq!(range(&a, at), range(&b, at), "at {at}");
        assert_eq!(hashed(&a, at), hashed(&b, at), "at {at}");
    }
}

/// Copies a state machine by saving it to checkpoint blocks and restoring it.
pub fn through_image(machine: &mut Machine) -> Machine {
    let mut writer = RunWriter::new(machine.store.publish(), machine.head(), Revision(0));
    let blocks = std::iter::from_fn(|| writer.next_block().transpose());
    image::restore(RULES, vec![blocks]).expect("what was written can be read")
}

/// Returns the bytes of a snapshot.
pub fn snapshot_of(machine: &mut Machine, journal: &Journal) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(machine.store.publish(), machine.head());
    let mut bytes = Vec::new();
    while let Some(chunk) = writer.next_chunk(journal).expect("the journal keeps everything") {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// Copies a state machine by saving it to a snapshot and restoring it. The values are appended to the journal
/// again, so the copy refers to other locations.
pub fn through_snapshot(machine: &mut Machine, journal: &Journal) -> Machine {
    let bytes = snapshot_of(machine, journal);
    let reader = SnapshotReader::open(bytes.chunks(1000).map(Ok::<_, Infallible>)).expect("can be read");
    let place = |value: &[u8]| Ok(journal.append(&Bytes::copy_from_slice(value)));
    snapshot::restore(RULES, reader, None, place).expect("what was written can be read")
}

/// Returns the bytes that transfer the whole state to an empty member.
pub fn transfer_of(machine: &mut Machine, journal: &Journal) -> Vec<u8> {
    let mut writer = TransferWriter::new(machine.store.publish(), machine.head(), Revision(0));
    let mut bytes = Vec::new();
    while let Some(chunk) = writer.next_chunk(journal).expect("the journal keeps everything") {
        bytes.extend_from_slice(&chunk);
    }
    bytes
}

/// Copies a state machine by a transfer to an empty member.
pub fn through_transfer(machine: &mut Machine, journal: &Journal) -> Machine {
    let bytes = transfer_of(machine, journal);
    let mut assembly = Assembly::new(RULES, None);
    let mut reader = TransferReader::open(bytes.chunks(777).map(Ok::<_, Infallible>)).expect("can be read");
    assembly.begin(reader.head()).expect("everything follows on nothing");
    while let Some(version) = reader.next().expect("can be read") {
        let location = match version.value {
            [] => mvcc::Location::default(),
            value => journal.append(&Bytes::copy_from_slice(value)),
        };
        assembly.push(&ReceivedVersion::of(&version).expect("fits"), location);
    }
    assembly.finish(reader.finish()).expect("what was written can be read")
}
