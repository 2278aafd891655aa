//! Tests of saving the whole state with its values, and of restoring it.

use std::cell::RefCell;

use bytes::Bytes;
use mainstay_machine::image::RestoreError;
use mainstay_machine::snapshot::{CHUNK_BYTES_MAX, SnapshotReader, SnapshotWriter, restore};
use mainstay_machine::{Machine, Malformed, ReadError, Values};
use mvcc::{Snapshot, Value};
use numbers::Revision;

use testkit::Random;

use crate::commands::Commands;
use crate::image::{RULES, execute, specimen};
use crate::journal::{Journal, apply};

fn save(machine: &mut Machine, values: &dyn Values) -> Vec<Bytes> {
    let (view, head) = (machine.store.publish(), machine.head());
    let mut writer = SnapshotWriter::new(view, head);
    let (mut chunks, mut bounds) = (Vec::new(), vec![writer.remaining_bytes_max()]);
    while let Some(chunk) = writer.next_chunk(values).unwrap() {
        assert!(!chunk.is_empty() && chunk.len() <= CHUNK_BYTES_MAX);
        chunks.push(chunk);
        bounds.push(writer.remaining_bytes_max());
    }
    assert_eq!(writer.remaining_bytes_max(), 0);
    assert!(writer.next_chunk(values).unwrap().is_none(), "it stays at its end");
    let mut left: u64 = chunks.iter().map(|chunk| chunk.len() as u64).sum();
    assert_eq!(left % 512, 0);
    for (at, bound) in bounds.iter().enumerate() {
        assert!(*bound >= left, "{bound} bytes were promised before chunk {at}, and {left} came");
        left -= chunks.get(at).map_or(0, |chunk| chunk.len() as u64);
    }
    chunks
}

fn load(chunks: &[Bytes], journal: &Journal) -> Result<Machine, RestoreError<String>> {
    let reader = SnapshotReader::open(chunks.iter().map(|chunk| Ok::<_, String>(chunk.clone())))?;
    restore(RULES, reader, None, |value| Ok(journal.append(&Bytes::copy_from_slice(value))))
}

pub type Row = (Vec<u8>, [i64; 5], Bytes);

pub fn rows(snapshot: &Snapshot<'_>, journal: &Journal) -> Vec<Row> {
    let row = |v: mvcc::Version<'_>| {
        let numbers = [v.main().0, i64::from(v.sub()), v.create_revision().0, v.version(), v.lease().0];
        (v.key().to_vec(), numbers, journal.value(v.value()))
    };
    snapshot.histories().map(row).collect()
}

pub fn used(machine: &Machine) -> (u64, u64) {
    machine
        .usage()
        .values()
        .fold((0, 0), |(values, bytes), usage| (values + usage.values, bytes + usage.bytes))
}

#[test]
fn a_snapshot_holds_everything() {
    for seed in 1..=6 {
        let (mut machine, journal) = (Machine::new(RULES), Journal::default());
        let mut commands = Commands::new(seed, [6, 40, 300][seed as usize % 3]);
        for _ in 0..500 {
            let placed = commands.next(&machine, &journal);
            apply(&mut machine, &placed, &journal, true);
        }
        let chunks = save(&mut machine, &journal);
        let other = Journal::default();
        let mut back = load(&chunks, &other).unwrap();
        while !machine.compact_step(100) {}
        while !back.compact_step(100) {}
        assert_eq!(rows(&machine.store.snapshot(), &journal), rows(&back.store.snapshot(), &other));
        assert_eq!(used(&machine), used(&back));
        assert_eq!(machine.in_use_bytes(), back.in_use_bytes());
        assert_eq!(machine.state_hash(), back.state_hash());
        assert_eq!((machine.applied_index, machine.applied_term), (back.applied_index, back.applied_term));
        assert_eq!(machine.store.compact_revision(), back.store.compact_revision());
        assert_eq!(machine.store.current_revision(), back.store.current_revision());
        assert_eq!((&machine.alarms, &machine.members), (&back.alarms, &back.members));
        assert_eq!(machine.leases.len(), back.leases.len());
        for (id, lease) in machine.leases.iter() {
            assert_eq!(back.leases.get(id), Some(lease));
        }
        // Equal states have equal bytes, regardless of the locations of the values.
        assert_eq!(save(&mut back, &other).concat(), chunks.concat());
    }
}

#[test]
fn large_values_come_in_bounded_chunks() {
    let (mut machine, journal) = (Machine::new(RULES), Journal::default());
    let mut random = Random::new(9);
    for n in 0..40 {
        let len = [0, 1000, 200_000, 1_500_000][random.below(4) as usize];
        let value: Bytes = (0..len).map(|at| (at * n) as u8).collect::<Vec<u8>>().into();
        let put = api::etcdserverpb::PutRequest { key: format!("{n}").into(), value, ..Default::default() };
        let request = api::etcdserverpb::InternalRaftRequest { put: Some(put), ..Default::default() };
        execute(&mut machine, &journal, &request);
    }
    let chunks = save(&mut machine, &journal);
    let other = Journal::default();
    let back = load(&chunks, &other).unwrap();
    assert_eq!(rows(&machine.store.snapshot(), &journal), rows(&back.store.snapshot(), &other));
    // The result does not depend on how the stream is cut into chunks.
    let whole = Bytes::from(chunks.concat());
    let mut cut = Vec::new();
    let mut at = 0;
    while at < whole.len() {
        let end = (at + random.below(9000) as usize).min(whole.len());
        cut.push(whole.slice(at..end));
        at = end;
    }
    let again = load(&cut, &Journal::default()).unwrap();
    assert_eq!(used(&back), used(&again));
}

#[test]
fn the_digest_behind_it_is_handed_on() {
    let journal = Journal::default();
    let mut chunks = save(&mut specimen(&journal), &journal);
    chunks.push(Bytes::from_static(&[0xab; 32]));
    let mut reader = SnapshotReader::open(chunks.iter().map(|c| Ok::<_, String>(c.clone()))).unwrap();
    assert_eq!((reader.head().revision, reader.head().leases.len()), (Revision(6), 1));
    assert_eq!(reader.head().members.cluster_version, "3.7.0");
    let mut values = Vec::new();
    while let Some(version) = reader.next().unwrap() {
        values.push((version.main, version.value.to_vec()));
    }
    let expected: [(i64, &[u8]); 5] = [(2, b"one"), (4, b"three"), (3, b"two"), (5, b""), (6, b"")];
    assert_eq!(values, expected.map(|(main, value)| (Revision(main), value.to_vec())));
    assert_eq!(reader.digest(), Some([0xab; 32]));
    assert_eq!(reader.next(), Ok(None));
}

/// The specimen with a head of format 4, without the zero bytes at the end.
const GOLDEN: &str = "4d41494e534e415001000000000000004b000000dce90ecc0104000601060100010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f2390001000028000000ce8f231002440003666f6f02036f6e654902057468726565640303626172030e0374776f03022405017a060e650100006a364b020305";

/// The specimen with a head of format 2, with a hash of another function and without users and roles.
const GOLDEN_2: &str = "4d41494e534e415001000000000000004700000000665b1f0102000601060100010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e300000014d267fc3ba64f23928000000ce8f231002440003666f6f02036f6e654902057468726565640303626172030e0374776f03022405017a060e690100004c5f7f3b0305";

/// The specimen with a head of format 1, without a hash.
const GOLDEN_1: &str = "4d41494e534e415001000000000000003e0000000c4541b20101000601060100010e78000001257b226964223a332c227065657255524c73223a5b22687474703a2f2f613a32333830225d7d010405332e372e30000028000000ce8f231002440003666f6f02036f6e654902057468726565640303626172030e0374776f03022405017a060e720100007d245a640305";

#[test]
fn old_snapshots_open_for_ever() {
    let journal = Journal::default();
    let mut machine = specimen(&journal);
    let bytes = save(&mut machine, &journal).concat();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let text: String = bytes[..used].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(text, GOLDEN);
    for (text, hash) in [(GOLDEN, machine.state_hash()), (GOLDEN_2, None), (GOLDEN_1, None)] {
        let mut golden: Vec<u8> = (0..text.len() / 2)
            .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        golden.resize(golden.len().next_multiple_of(512), 0);
        let other = Journal::default();
        let back = load(&[golden.into()], &other).unwrap();
        assert_eq!(rows(&machine.store.snapshot(), &journal), rows(&back.store.snapshot(), &other));
        assert_eq!(back.state_hash(), hash);
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let journal = Journal::default();
    let whole = Bytes::from(save(&mut specimen(&journal), &journal).concat());
    assert!(load(std::slice::from_ref(&whole), &Journal::default()).is_ok());
    for len in 0..whole.len() {
        assert!(load(&[whole.slice(..len)], &Journal::default()).is_err(), "cut to {len}");
    }
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(load(&[damaged.into()], &Journal::default()).is_err(), "bit {bit}");
    }
    for more in [1, 31, 33, 512] {
        let chunks = [whole.clone(), Bytes::from(vec![0; more])];
        assert!(load(&chunks, &Journal::default()).is_err(), "{more} bytes more");
    }
    // A damaged length must not cause a large allocation.
    let mut huge = whole.to_vec();
    huge[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    let expected = RestoreError::Malformed(Malformed("a snapshot without its end"));
    assert_eq!(load(&[huge.into()], &Journal::default()).err(), Some(expected));
}

/// Values that have moved again at each read, or cannot be read at all.
struct Unsteady<'a> {
    journal: &'a Journal,
    looks: RefCell<u32>,
    broken: bool,
}

impl Values for Unsteady<'_> {
    fn read_into(&self, value: Value, out: &mut bytes::BytesMut) -> Result<(), ReadError> {
        *self.looks.borrow_mut() += 1;
        if self.broken {
            return Err(ReadError::Failed("the disk is gone".to_owned()));
        }
        if !self.looks.borrow().is_multiple_of(3) {
            return Err(ReadError::Moved);
        }
        self.journal.read_into(value, out)
    }
}

#[test]
fn moved_values_are_looked_for_and_broken_ones_reported() {
    let journal = Journal::default();
    let mut machine = specimen(&journal);
    let steady = save(&mut machine, &journal);
    let mut unsteady = Unsteady { journal: &journal, looks: RefCell::new(0), broken: false };
    assert_eq!(save(&mut machine, &unsteady), steady);
    unsteady.broken = true;
    let (view, head) = (machine.store.publish(), machine.head());
    let mut writer = SnapshotWriter::new(view, head);
    assert!(writer.next_chunk(&unsteady).is_ok(), "the head needs no values");
    assert_eq!(writer.next_chunk(&unsteady), Err(ReadError::Failed("the disk is gone".to_owned())));
}
