use std::pin::Pin;
use std::task::{Context, Poll};

use disk::MemDisk;

use numbers::{ClusterId, Index, MemberId, Revision};

use super::reading::TAKEN_BACK_MAX;
use super::*;

/// Returns readers of an empty log, in which every value has moved.
fn readers() -> (Arc<Readers>, log::Log) {
    let options = log::Options { by_hand: true, ..log::Options::new("/log", ClusterId(1), MemberId(2)) };
    let disk = Arc::new(MemDisk::new(1));
    let (log, _) = log::Log::open(options, disk, Index(1), &mut |_| {}, Box::new(|_| {})).expect("opens");
    (Readers::by_hand(log.values()), log)
}

fn value(segment: u32, len: u32) -> Value {
    Value { location: mvcc::Location::new(segment, 1 << 20), len, crc: 0 }
}

fn poll(reading: &mut Reading) -> Poll<Vec<ReadValue>> {
    Pin::new(reading).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the number of admitted portions and their bytes, including those that were read.
fn admitted(readers: &Readers) -> (usize, usize) {
    let state = readers.inner.state();
    let bytes = state.admitted_bytes + state.untaken_bytes + state.staying_bytes;
    (state.portions.len() - state.waiting.len(), bytes)
}

#[test]
fn what_does_not_fit_waits_and_all_come_to_their_turn() {
    let (readers, _log) = readers();
    // Each call has three portions, which together have far more bytes than may be held at a time.
    let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
    let mut readings: Vec<Option<Reading>> = (0..200).map(|_| Some(readers.read(&values))).collect();
    // A call that is dropped while it waits, or while its values are read, does not delay others.
    for (at, place) in readings.iter_mut().enumerate() {
        assert!(place.as_mut().is_some_and(|reading| poll(reading).is_pending()));
        if at % 9 == 4 {
            *place = None;
        }
    }
    let mut rounds = 0;
    while readings.iter().any(Option::is_some) {
        let (_, bytes) = admitted(&readers);
        assert!(bytes <= 2 * ADMITTED_BYTES_MAX && bytes > 0, "{bytes}");
        assert!(readers.step(), "somebody waits, and nothing is read");
        for place in &mut readings {
            if let Some(reading) = place
                && let Poll::Ready(arrived) = poll(reading)
            {
                assert_eq!(arrived.len(), 3);
                assert!(arrived.iter().all(|(_, outcome)| *outcome == Err(ReadError::Moved)));
                *place = None;
            }
        }
        rounds += 1;
        assert!(rounds <= 600);
    }
    assert_eq!(admitted(&readers), (0, 0));
    assert!(!readers.has_work());
}

#[test]
fn what_is_read_is_charged_and_keeps_to_its_part_of_the_budget() {
    let (readers, _log) = readers();
    let budget = Budget::new(64 << 20);
    readers.charge_to(&budget);
    let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
    let mut readings: Vec<Option<Reading>> = (0..40).map(|_| Some(readers.read(&values))).collect();
    let (mut rounds, mut most) = (0, 0);
    while readings.iter().any(Option::is_some) {
        for (at, place) in readings.iter_mut().enumerate() {
            if place.as_mut().is_some_and(|reading| poll(reading).is_ready()) || at == 7 + rounds {
                *place = None;
            }
        }
        let (_, bytes) = admitted(&readers);
        // Taken values are charged for as long as they are held.
        let taken: usize = readings.iter().flatten().map(|reading| reading.through * 900_000).sum();
        assert_eq!(budget.held_bytes(), bytes + taken);
        most = most.max(bytes);
        readers.step();
        rounds += 1;
        assert!(rounds <= 600);
    }
    assert!(most > 3 << 20 && most <= 4 << 20, "{most}");
    assert_eq!((budget.held_bytes(), budget.connections_shed()), (0, 0));
}

#[test]
fn the_core_waits_for_nobody_who_reads() {
    let (readers, _log) = readers();
    let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
    let mut readings: Vec<Reading> = (0..200).map(|_| readers.read(&values)).collect();
    assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
    // Clients that do not take their portions, and others that wait behind them.
    assert!((0..10).all(|_| readers.step()));
    let (_, held) = admitted(&readers);
    assert!(held > 22 << 20 && !readers.inner.state().waiting.is_empty());
    let (values, mut more) = ([value(7, 900_000), value(8, 900_000)], readers.read(&[value(9, 10)]));
    assert!(poll(&mut more).is_pending());
    let mut first = readers.read_first(&values);
    let mut steps = 0;
    let arrived = loop {
        if let Poll::Ready(arrived) = poll(&mut first) {
            break arrived;
        }
        assert!(readers.step(), "it is read at once");
        steps += 1;
    };
    assert_eq!((arrived.len(), steps), (2, 2));
    // The core is also ahead of clients that were admitted earlier.
    readings.truncate(100);
    assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
    let mut first = readers.read_first(&values[..1]);
    assert!(poll(&mut first).is_pending() && readers.step() && poll(&mut first).is_ready());
    drop(readings);
    drop(more);
    while readers.step() {}
    assert_eq!(admitted(&readers), (0, 0));
}

#[test]
fn a_reading_that_nobody_polls_holds_up_no_other() {
    let (readers, _log) = readers();
    let budget = Budget::new(64 << 20);
    readers.charge_to(&budget);
    let values: Vec<Value> = (100..103).map(|segment| value(segment, 900_000)).collect();
    let mut kept: Vec<Reading> = (0..150).map(|_| readers.read(&values)).collect();
    let mut polled: Vec<Reading> = (0..50).map(|_| readers.read(&values)).collect();
    // The kept calls wait in front of the others. They are never polled again, neither when their portions
    // are admitted nor when they are read.
    assert!(kept.iter_mut().chain(&mut polled).all(|reading| poll(reading).is_pending()));
    let mut rounds = 0;
    while !polled.is_empty() {
        assert!(readers.step(), "somebody waits, and nothing is read");
        polled.retain_mut(|reading| poll(reading).is_pending());
        let (_, bytes) = admitted(&readers);
        let taken: usize = polled.iter().map(|reading| reading.through * 900_000).sum();
        assert!(budget.held_bytes() == bytes + taken && bytes <= 8 << 20, "{bytes}");
        rounds += 1;
        assert!(rounds <= 150 + 3 * 50, "{rounds}");
    }
    while readers.step() {}
    drop(kept);
    assert_eq!((admitted(&readers), budget.held_bytes()), ((0, 0), 0));
}

#[test]
fn a_reading_that_is_polled_late_comes_to_its_end() {
    let (readers, _log) = readers();
    let mut late = readers.read(&[value(7, 900_000), value(8, 900_000)]);
    let mut others: Vec<Reading> = Vec::new();
    let (mut rounds, mut again) = (0, 0);
    let arrived = loop {
        if let Poll::Ready(arrived) = poll(&mut late) {
            break arrived;
        }
        again = again.max(late.taken_back);
        // Before the late call is polled again, other calls read more than may stay untaken.
        others.extend((0..40).map(|n| readers.read(&[value(100 + n, 900_000)])));
        assert!(others.iter_mut().rev().take(40).all(|reading| poll(reading).is_pending()));
        while readers.step() {}
        rounds += 1;
        assert!(rounds <= 2 * (TAKEN_BACK_MAX + 1), "it is taken back without end");
    };
    assert_eq!((arrived.len(), again), (2, TAKEN_BACK_MAX));
    let (portions, bytes) = admitted(&readers);
    assert!(bytes <= ADMITTED_BYTES_MAX && portions == bytes / 900_000, "{portions} {bytes}");
    drop(others);
    assert_eq!(admitted(&readers), (0, 0));
}

#[test]
fn those_that_stay_and_are_not_taken_hold_up_no_other() {
    let (readers, _log) = readers();
    let mut kept: Vec<Reading> = (100..160).map(|segment| readers.read(&[value(segment, 900_000)])).collect();
    assert!(kept.iter_mut().all(|reading| poll(reading).is_pending()));
    while readers.step() {}
    // Most portions were revoked, and stay when they are read again; their calls are not polled any more.
    kept.retain_mut(|reading| poll(reading).is_pending());
    assert!(kept.len() > 40 && kept.iter().all(|reading| reading.taken_back == 1));
    let mut other = readers.read(&[value(7, 900_000)]);
    let mut steps = 0;
    while poll(&mut other).is_pending() {
        assert!(readers.step(), "it waits, and nothing is read");
        steps += 1;
    }
    assert!(steps <= kept.len() + 1, "{steps}");
    let state = readers.inner.state();
    assert!(state.staying_bytes > ADMITTED_BYTES_MAX / 2 && state.staying_bytes <= ADMITTED_BYTES_MAX);
    assert!(state.admitted_bytes == 0 && state.untaken_bytes <= ADMITTED_BYTES_MAX);
    drop(state);
    drop(kept);
    assert_eq!(admitted(&readers), (0, 0));
}

#[test]
fn where_few_threads_can_be_started_one_is_left_for_either_lane() {
    let (readers, _log) = readers();
    let values: Vec<Value> = (100..120).map(|segment| value(segment, 10)).collect();
    let (mut reading, mut first) = (readers.read(&values), readers.read_first(&values));
    for (threads, of_each) in [(4, 3), (2, 1)] {
        {
            let mut state = readers.inner.state();
            (state.threads, state.start_failed) = (threads, true);
            (state.core.threads, state.clients.threads) = (0, 0);
        }
        let begun = || std::iter::from_fn(|| readers.inner.state().next_run()).count();
        assert!(poll(&mut reading).is_pending());
        assert_eq!(begun(), of_each);
        assert!(poll(&mut first).is_pending());
        assert_eq!(begun(), of_each);
        (reading, first) = (readers.read(&values), readers.read_first(&values));
    }
}

#[test]
fn without_threads_a_call_reads_until_it_has_its_own() {
    let (by_hand, log) = readers();
    drop(by_hand);
    let readers = Readers::of(log.values(), false, 0);
    let values: Vec<Value> = (100..200).map(|segment| value(segment, 10)).collect();
    let (mut long, mut short) = (readers.read(&values), readers.read(&values[..1]));
    // The state is as if a thread had been started to read the portion and had ended.
    readers.inner.state().threads = 1;
    assert!(poll(&mut long).is_pending());
    readers.inner.state().threads = 0;
    assert!(poll(&mut short).is_ready());
    let left = |readers: &Readers| -> usize {
        readers.inner.state().portions.values().map(|portion| portion.left.len()).sum()
    };
    assert!(left(&readers) >= 98, "it reads for another");
    assert!(poll(&mut long).is_ready() && left(&readers) == 0);
}

#[test]
fn neither_the_core_nor_its_clients_keep_a_thread_from_the_other() {
    let (readers, _log) = readers();
    let values: Vec<Value> = (100..120).map(|segment| value(segment, 10)).collect();
    let mut readings: Vec<Reading> = (0..20).map(|_| readers.read(&values)).collect();
    assert!(readings.iter_mut().all(|reading| poll(reading).is_pending()));
    // Threads that wait for a slow disk.
    let begun = || std::iter::from_fn(|| readers.inner.state().next_run());
    assert_eq!(begun().count(), THREADS_MAX - 1, "one is left for the core");
    assert!(!readers.has_work());
    let mut first = readers.read_first(&values);
    assert!(poll(&mut first).is_pending() && readers.has_work());
    assert_eq!(begun().count(), THREADS_MAX - 1, "one would be left for clients");
    assert!(!readers.has_work());
}

#[test]
fn one_that_is_larger_than_all_room_is_read_alone() {
    let (readers, _log) = readers();
    let (mut large, mut small) =
        (readers.read(&[value(1, ADMITTED_BYTES_MAX as u32 + 1)]), readers.read(&[value(2, 1)]));
    assert!(poll(&mut large).is_pending() && poll(&mut small).is_pending());
    assert_eq!(admitted(&readers).0, 1);
    assert!(readers.step());
    assert!(poll(&mut large).is_ready() && poll(&mut small).is_pending());
    assert!(readers.step());
    assert!(poll(&mut small).is_ready());
}

#[test]
fn runs_that_counted_on_a_thread_that_was_notified_for_another_get_one() {
    let (by_hand, log) = readers();
    drop(by_hand);
    let readers = Readers::new(log.values());
    let (mut one, mut other) = (readers.read(&[value(1, 10)]), readers.read(&[value(2, 10)]));
    // A thread that waits, is notified, and does not wake before both portions are queued.
    readers.inner.state().idle = 1;
    assert!(poll(&mut one).is_pending() && poll(&mut other).is_pending());
    assert_eq!(readers.inner.state().threads, 0);
    readers.inner.state().idle = 0;
    assert!(readers.step());
    assert_eq!(readers.inner.state().threads, 1, "nobody reads the other");
    assert_eq!(crate::block_on::block_on(other).len(), 1);
    assert!(poll(&mut one).is_ready());
}

#[test]
fn threads_read_and_end_with_their_readers() {
    let (by_hand, log) = readers();
    drop(by_hand);
    let readers = Readers::new(log.values());
    let values: Vec<Value> = (0..100).map(|segment| value(segment, 10)).collect();
    let arrived = crate::block_on::block_on(readers.read(&values));
    assert_eq!(arrived.len(), 100);
    let inner = Arc::downgrade(&readers.inner);
    assert!(readers.inner.state().threads <= THREADS_MAX);
    drop(readers);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while inner.strong_count() > 0 {
        assert!(std::time::Instant::now() < deadline, "a thread goes on");
        thread::yield_now();
    }
}

/// Settled blocks of one key each.
struct Few(std::sync::atomic::AtomicU64);

impl mvcc::Blocks for Few {
    fn settled(&self) -> Revision {
        Revision(9)
    }

    fn key_blocks(&self) -> u32 {
        4
    }

    fn change_blocks(&self) -> u32 {
        0
    }

    fn key_block(&self, number: u32) -> mvcc::KeyBlock<'_> {
        mvcc::KeyBlock { first_key: &FEW_KEYS[number as usize..][..1], versions: 1, is_settled: true }
    }

    fn change_block(&self, _number: u32) -> mvcc::ChangeBlock {
        unreachable!("there are none")
    }

    fn read(
        &self,
        block: mvcc::BlockId,
        visit: &mut dyn FnMut(&mvcc::LoadedVersion<'_>, u32),
    ) -> Result<(), String> {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mvcc::BlockId::Keys(number) = block else { return Err("there are none".to_owned()) };
        let main = Revision(2 + i64::from(number));
        let version = mvcc::LoadedVersion {
            key: self.key_block(number).first_key,
            main,
            sub: 0,
            create_revision: main,
            version: 1,
            lease: numbers::LeaseId::NONE,
            value: Value::default(),
        };
        visit(&version, mvcc::NO_BLOCK);
        Ok(())
    }

    fn describe(&self, block: mvcc::BlockId) -> String {
        format!("{block:?}")
    }
}

const FEW_KEYS: &[u8] = b"aceg";

#[test]
fn blocks_are_loaded_by_the_threads_unless_their_call_is_dropped() {
    let (readers, _log) = readers();
    let few = Arc::new(Few(std::sync::atomic::AtomicU64::new(0)));
    let base = mvcc::Base::new(Arc::<Few>::clone(&few), mvcc::Cache::new(1 << 20));
    let mut loader = mvcc::Loader::with_base(0, Revision(20), base);
    (0..4).for_each(|number| loader.push_block(number).expect("in order"));
    let current = Revision(20);
    let mut store = loader.finish(current, current).expect("is whole");
    let view = store.publish();
    let absent = |max| view.snapshot().absent(mvcc::KeyRange::ALL, max);
    let reads = || few.0.load(std::sync::atomic::Ordering::Relaxed);
    let poll =
        |loading: &mut Loading| Pin::new(loading).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(poll(&mut readers.load(Vec::new())));
    // A call that goes away does not let its blocks be read.
    let mut dropped = readers.load(absent(2));
    assert!(!poll(&mut dropped));
    drop(dropped);
    let mut loading = readers.load(absent(3));
    assert!(!poll(&mut loading) && readers.has_work());
    // A value of the core goes first.
    let mut first = readers.read_first(&[value(100, 10)]);
    assert!(poll_reading(&mut first));
    assert!(readers.step());
    assert!(!poll_reading(&mut first) && reads() == 0);
    for step in 0..5 {
        assert!(!poll(&mut loading), "step {step}");
        assert!(readers.step());
    }
    assert!(poll(&mut loading) && !readers.has_work());
    assert_eq!(reads(), 3);
    assert_eq!(absent(9).len(), 1);
}

/// Returns true if the reading is pending.
fn poll_reading(reading: &mut Reading) -> bool {
    poll(reading).is_pending()
}
