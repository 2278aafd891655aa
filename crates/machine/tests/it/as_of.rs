//! Tests that checkpoints, snapshots and transfers, written slice by slice from a changing state, have the
//! same bytes as those written from a frozen view.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use mainstay_machine::image::RunWriter;
use mainstay_machine::snapshot::SnapshotWriter;
use mainstay_machine::transfer::TransferWriter;
use mainstay_machine::{AsOf, Machine, Newest, Overtaken, ReadError};
use mvcc::{Moment, View};
use numbers::Revision;

use crate::commands::Commands;
use crate::image::{RULES, execute, put};
use crate::journal::{Journal, apply};

/// The newest view, and the oldest moment that the reader has asked to keep.
struct Live {
    view: Mutex<Arc<View>>,
    keeps: Mutex<Revision>,
}

impl Newest for Live {
    fn view(&self) -> Option<Arc<View>> {
        Some(Arc::clone(&self.view.lock().unwrap()))
    }

    fn needs(&self, moment: &Moment) {
        *self.keeps.lock().unwrap() = moment.keeps();
    }
}

/// A machine that applies entries while a reader reads an older moment.
pub struct World {
    pub machine: Machine,
    journal: Journal,
    commands: Commands,
    live: Arc<Live>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let (mut machine, journal) = (Machine::new(RULES), Journal::default());
        // Enough data that every output has several blocks.
        for n in 0..6000 {
            execute(
                &mut machine,
                &journal,
                &put(&format!("many/{:05}", n % 5000), &"x".repeat(60 + n % 90), 0),
            );
        }
        let view = Mutex::new(machine.store.publish());
        let live = Arc::new(Live { view, keeps: Mutex::new(Revision::MAX) });
        let mut world = World { machine, journal, commands: Commands::new(seed, 60), live };
        world.go(200);
        world
    }

    /// Applies some entries, overwrites and deletes keys that the reader has not reached yet, and removes all
    /// versions that the reader does not protect.
    pub fn go(&mut self, entries: u64) {
        for _ in 0..entries {
            let placed = self.commands.next(&self.machine, &self.journal);
            apply(&mut self.machine, &placed, &self.journal, false);
            let key = format!("many/{:05}", self.commands.random.below(5200));
            let request = match self.commands.random.percent(50) {
                true => put(&key, "another one", 0),
                false => crate::image::delete(&key),
            };
            execute(&mut self.machine, &self.journal, &request);
        }
        let revision = self.machine.store.current_revision() - self.commands.random.below(30) as i64;
        let _ = self.machine.store.compact(revision);
        let through = *self.live.keeps.lock().unwrap();
        self.machine.compact_step_through(through, 40 + self.commands.random.below(2000));
        self.publish();
    }

    pub fn publish(&mut self) {
        *self.live.view.lock().unwrap() = self.machine.store.publish();
    }

    pub fn as_of(&self, moment: Moment) -> AsOf {
        self.live.needs(&moment);
        AsOf::new(moment, Arc::clone(&self.live) as Arc<dyn Newest>)
    }

    pub fn view(&self) -> Arc<View> {
        self.live.view().unwrap()
    }
}

fn all<T>(mut next: impl FnMut() -> Option<T>) -> Vec<T> {
    std::iter::from_fn(&mut next).collect()
}

#[test]
fn what_is_written_in_slices_is_what_a_frozen_view_gives() {
    let mut longest = 0;
    for seed in 0..6 {
        let mut world = World::new(seed);

        let (view, head) = (world.view(), world.machine.head());
        let mut frozen = SnapshotWriter::new(Arc::clone(&view), head.clone());
        let mut sliced = SnapshotWriter::new(world.as_of(view.moment()), head);
        let expected: Vec<Bytes> = all(|| frozen.next_chunk(&world.journal).unwrap());
        longest = longest.max(expected.len());
        let found = all(|| {
            world.go(20);
            sliced.next_chunk(&world.journal).unwrap()
        });
        assert!(found == expected, "seed {seed}: a snapshot");

        let (view, head) = (world.view(), world.machine.head());
        let mut frozen = RunWriter::new(Arc::clone(&view), head.clone(), Revision(0));
        let mut sliced =
            RunWriter::new(world.as_of(view.moment_of_everything()).of_what_is_readable(), head, Revision(0));
        let expected = all(|| frozen.next_block().unwrap());
        let found = all(|| {
            world.go(20);
            sliced.next_block().unwrap()
        });
        assert!(found == expected, "seed {seed}: a base run");

        for part in [false, true] {
            let (view, head) = (world.view(), world.machine.head());
            let from = head.delta_from_min.max(head.revision - 3000).min(head.revision);
            let mut frozen =
                TransferWriter::new(Arc::clone(&view), head.clone(), if part { from } else { Revision(0) });
            let mut sliced = TransferWriter::new(
                world.as_of(view.moment_of_everything()),
                head.clone(),
                if part { from } else { Revision(0) },
            );
            let expected: Vec<Bytes> = all(|| frozen.next_chunk(&world.journal).unwrap());
            let found = all(|| {
                world.go(20);
                sliced.next_chunk(&world.journal).unwrap()
            });
            assert!(found == expected, "seed {seed}: a transfer");
        }

        let (view, head) = (world.view(), world.machine.head());
        let from = head.delta_from_min.max(head.revision - 3000).min(head.revision);
        let mut frozen = RunWriter::new(Arc::clone(&view), head.clone(), from);
        let mut sliced = RunWriter::new(world.as_of(view.moment_of_everything()), head, from);
        let expected = all(|| frozen.next_block().unwrap());
        let found = all(|| {
            world.go(20);
            sliced.next_block().unwrap()
        });
        assert!(found == expected, "seed {seed}: a delta run");
    }
    assert!(longest > 5, "{longest} chunks");
}

#[test]
fn a_reader_whose_state_was_replaced_can_tell_that_from_a_compaction() {
    let mut world = World::new(3);
    let reader = world.as_of(world.view().moment());
    assert!(reader.slice().is_ok());
    // The moment of another reader, which was removed after a compaction.
    let compacted = world.as_of(world.view().moment());
    *world.live.keeps.lock().unwrap() = Revision::MAX;
    world.go(100);
    assert!(compacted.slice().is_err());
    assert!(!compacted.is_replaced());
    *world.live.view.lock().unwrap() = World::new(3).view();
    assert!(reader.slice().is_err());
    assert!(reader.is_replaced());
}

#[test]
fn a_writer_that_is_overtaken_says_so() {
    let mut world = World::new(3);
    let view = world.view();
    let (moment, head) = (view.moment(), world.machine.head());
    drop(view);
    let mut run = RunWriter::new(world.as_of(moment), head.clone(), Revision(0));
    let mut snapshot = SnapshotWriter::new(world.as_of(moment), head.clone());
    let mut transfer = TransferWriter::new(world.as_of(moment), head, Revision(0));
    assert!(run.next_block().is_ok());
    assert!(snapshot.next_chunk(&world.journal).is_ok());
    assert!(transfer.next_chunk(&world.journal).is_ok());
    *world.live.keeps.lock().unwrap() = Revision::MAX;
    world.go(100);
    assert_eq!(run.next_block(), Err(Overtaken));
    assert_eq!(snapshot.next_chunk(&world.journal), Err(ReadError::Overtaken));
    assert_eq!(transfer.next_chunk(&world.journal), Err(ReadError::Overtaken));
}
