//! Full disks, the reserve, released and recycled segments.

use disk::{Disk, Fault, MemDisk, Operation};
use mainstay_log::{Batch, HardState, Log, LogEvent, Need, Options, ReadError, Refusal, ReleaseError, Space};
use numbers::{Index, MemberId, Term};

use crate::kit::{DIR, entries, open, open_with, options, segment_path};

const ROOM: u64 = 5 * (16 << 10);

#[test]
fn the_alarm_comes_before_the_room_is_gone_and_releasing_makes_room_again() {
    let disk = MemDisk::new(1);
    disk.set_capacity(Some(ROOM));
    fill_and_release(&disk);
}

#[test]
fn a_file_system_that_reserves_nothing_is_full_in_the_same_way() {
    let disk = MemDisk::new(1);
    disk.reserve_nothing();
    disk.set_capacity(Some(ROOM));
    fill_and_release(&disk);
}

#[test]
fn a_quota_that_is_used_up_is_a_full_disk() {
    let disk = MemDisk::new(1);
    disk.set_quota(Some(ROOM));
    fill_and_release(&disk);
}

/// A log of one entry whose segments have holes after that entry. Such files are left by a copy that writes
/// no zeros, and by an old release that took a longer file for reserved space.
fn with_holes() -> MemDisk {
    let disk = MemDisk::new(1);
    disk.reserve_nothing();
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=1, 1, 1000));
    drop(log);
    for (path, _) in disk.files() {
        let bytes = disk.contents(&path).unwrap();
        disk.remove(&path).unwrap();
        let file = disk.create(&path).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        file.write_at(&bytes[..8192], 0).unwrap();
        file.sync_all().unwrap();
        assert!(file.hole_bytes().unwrap() > 0);
    }
    disk.sync_dir(DIR.as_ref()).unwrap();
    disk
}

#[test]
fn holes_in_segments_are_found_when_the_log_is_opened() {
    let disk = with_holes();
    let copied = disk.used_bytes();
    // If it is opened only for reading, nothing is changed.
    let log = open_with(Options { only_read: true, ..options() }, &disk, 1).unwrap();
    assert_eq!((disk.used_bytes(), log.recovered.last_index), (copied, Index(1)));
    drop(log);
    // If the disk has space, the holes are filled.
    let log = open(&disk).unwrap();
    assert!(disk.used_bytes() >= copied + 2 * (8 << 10), "{} bytes, {copied} before", disk.used_bytes());
    assert_eq!((log.log.space(), log.recovered.last_index), (Space::Ample, Index(1)));
}

#[test]
fn a_disk_that_cannot_sync_what_fills_holes_is_refused() {
    const EIO: i32 = 5;
    let mut refused = 0;
    for nth in 1.. {
        let disk = with_holes();
        disk.fail_next(Operation::Sync, nth, Fault::Once(EIO));
        let opened = open(&disk);
        let probe = disk.create(&segment_path(9)).unwrap();
        // If this sync fails, opening has made fewer than `nth` syncs, and the fault is still pending.
        let is_ahead = probe.sync_data().is_err();
        assert_eq!(opened.is_ok(), is_ahead, "sync {nth} fails, and nobody hears of it");
        if is_ahead {
            break;
        }
        refused += 1;
    }
    assert!(refused >= 3, "{refused}");
}

#[test]
fn holes_in_segments_count_for_nothing_on_a_full_disk() {
    let disk = with_holes();
    disk.set_capacity(Some(disk.used_bytes()));
    let mut log = open(&disk).unwrap();
    let mut next = 2;
    for _ in 0..40 {
        next += u64::from(log.log.append(entries(next..=next, 1, 1000)).is_ok());
        log.log.turn();
    }
    log.told(|told| assert!(told.failed.is_empty(), "{:?}", told.failed));
    disk.set_capacity(None);
    for _ in 0..3 {
        log.log.turn();
    }
    log.put(entries(next..=next, 1, 1000));
    log.told(|told| assert_eq!((told.last_index, told.failed.len()), (next, 0)));
}

fn fill_and_release(disk: &MemDisk) {
    let mut log = open(disk).unwrap();
    let mut index = 1;
    let mut at_low = 0;
    let refusal = loop {
        match log.log.append(entries(index..=index, 1, 1000)) {
            Ok(_) => log.log.turn(),
            Err(error) => break error,
        }
        if log.log.space() == Space::Low && at_low == 0 {
            at_low = index;
        }
        log.told(|told| assert_eq!(told.last_index, index, "what was taken is written"));
        index += 1;
    };
    assert_eq!(refusal.reason, Refusal::NoSpace);
    assert!(refusal.batch == entries(index..=index, 1, 1000), "handed back as it was");
    assert!(
        at_low > 0 && index - at_low > 10,
        "a segment's worth of entries after the alarm, {at_low} to {index}"
    );
    log.told(|told| {
        assert_eq!(told.spaces, [Space::Low, Space::Exhausted]);
        assert!(told.failed.is_empty(), "a full disk does not stop the member");
    });
    // Raft can still record a vote.
    log.put(Batch {
        hard_state: Some(HardState { term: Term(9), vote: MemberId(1), commit: Index(3) }),
        ..Batch::default()
    });
    log.told(|told| assert_eq!(told.hard_state.map(|state| state.term), Some(Term(9))));
    let oldest = log.log.segments()[0].seq;
    for seq in [oldest, oldest + 1, oldest + 2] {
        log.log.release(seq).unwrap();
    }
    log.log.turn();
    assert_eq!(log.log.space(), Space::Ample);
    log.put(entries(index..=index + 20, 1, 1000));
    log.told(|told| assert_eq!(told.last_index, index + 20));
    drop(log);
    let log = open(disk).unwrap();
    assert_eq!(log.recovered.last_index, Index(index + 20));
    assert_eq!(log.recovered.hard_state.term, Term(9));
}

#[test]
fn a_batch_that_outruns_the_room_waits_and_goes_on() {
    let disk = MemDisk::new(1);
    disk.set_capacity(Some(5 * (16 << 10)));
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=20, 1, 1000));
    let ticket = log.log.append(entries(21..=90, 1, 1000)).unwrap();
    log.log.turn();
    log.told(|told| {
        assert!(told.ticket < ticket && told.last_index > 20 && told.last_index < 90, "{}", told.last_index);
        assert!(told.failed.is_empty());
    });
    disk.set_capacity(None);
    log.log.turn();
    log.told(|told| assert_eq!((told.ticket, told.last_index), (ticket, 90)));
    assert_eq!(log.log.queued_bytes(), 0);
    assert!(
        log.log.entries().read(Index(1), Index(91), u64::MAX).unwrap() == entries(1..=90, 1, 1000).entries
    );
}

/// A log without threads must return from its turn even if the next segment is ready and does not help.
#[test]
fn a_record_larger_than_a_segment_waits_on_a_full_disk() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=1, 1, 1000));
    disk.set_capacity(Some(disk.used_bytes()));
    let ticket = log.log.append(entries(2..=2, 1, 40 << 10)).unwrap();
    log.log.turn();
    log.told(|told| {
        assert!(told.ticket < ticket && told.last_index == 1);
        assert!(told.failed.is_empty());
    });
    disk.set_capacity(None);
    log.log.turn();
    log.told(|told| assert_eq!((told.ticket, told.last_index), (ticket, 2)));
}

#[test]
fn released_files_are_recycled_and_old_records_never_read_as_new() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    let (mut next, mut recycled) = (1, 0);
    for round in 0..30 {
        log.put(entries(next..=next + 9, 1, 1000));
        next += 10;
        let sealed: Vec<u32> =
            log.log.segments().iter().filter(|one| one.sealed).map(|one| one.seq).collect();
        let values = log.log.values();
        let location = log.told(|told| told.locations[0].location);
        for seq in &sealed {
            log.log.release(*seq).unwrap();
            assert_eq!(log.log.release(*seq), Err(ReleaseError::Unknown), "once is enough");
        }
        log.log.turn();
        if sealed.contains(&location.segment()) {
            assert!(matches!(values.read(location, 1000, 0), Err(ReadError::Moved)), "round {round}");
        }
        let active = log.log.segments().last().unwrap().seq;
        assert_eq!(log.log.release(active), Err(ReleaseError::Active));
        assert_eq!(log.log.release(active + 9), Err(ReleaseError::Unknown));
        // With and without a crash: the old records of a recycled file lie behind the end, at another
        // position in each round.
        let last = log.recovered.last_index.max(Index(log.told(|told| told.last_index)));
        drop(log);
        if round % 2 == 0 {
            disk.crash();
        }
        log = open(&disk).unwrap();
        assert_eq!(log.recovered.last_index, last);
        assert!(log.recovered.repairs.is_empty(), "round {round}: {:?}", log.recovered.repairs);
        let first = log.recovered.first_index;
        assert!(log.entries_from(first.0) == entries(first.0..=last.0, 1, 1000).entries, "round {round}");
        recycled += disk.list(DIR.as_ref()).unwrap().iter().filter(|name| name.ends_with(".free")).count();
        assert!(disk.used_bytes() < 10 * (16 << 10), "round {round}: {} bytes", disk.used_bytes());
        log.put(entries(next..=next, 1, 1));
        next += 1;
    }
    assert!(recycled > 20);
}

/// A caller that removes the directory of a stopping member must not find files in it that were made after
/// the call.
#[test]
fn a_log_that_winds_down_makes_no_file_but_the_segment_that_a_batch_needs() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    log.put(entries(1..=40, 1, 1000));
    let files = || disk.list(DIR.as_ref()).unwrap();
    let numbers = |log: &Log| log.segments().iter().map(|segment| segment.seq).collect::<Vec<_>>();
    log.log.values().wind_down();
    // The file of a released segment is not kept, and nothing is made in its place.
    let (before, oldest) = (files(), numbers(&log.log)[0]);
    log.log.release(oldest).unwrap();
    log.log.turn();
    assert!(files().iter().all(|name| before.contains(name)), "{before:?} {:?}", files());
    // A segment that is ready is used; another one is made only when a record has to be written to it.
    let mut index = 41;
    let (used, made) = (numbers(&log.log).len(), before.len());
    while numbers(&log.log).len() < used + 4 {
        log.put(entries(index..=index, 1, 1000));
        let ready = files().iter().filter(|name| name.ends_with(".seg")).count();
        assert!(ready <= numbers(&log.log).len() + 1 && files().len() <= made + 4, "{:?}", files());
        index += 1;
    }
    assert_eq!(log.log.space(), Space::Ample);
    let ready = files().iter().filter(|name| name.ends_with(".seg")).count();
    assert_eq!(ready, numbers(&log.log).len(), "none is made ahead");
    drop(log);
    assert_eq!(open(&disk).unwrap().recovered.last_index, Index(index - 1));
}

#[test]
fn what_becomes_free_goes_first_to_those_it_is_held_for() {
    let disk = MemDisk::new(1);
    disk.set_capacity(Some(8 * (16 << 10)));
    let mut log = open(&disk).unwrap();
    let values = log.log.values();
    let spares = || disk.list(DIR.as_ref()).unwrap().iter().filter(|name| name.ends_with(".free")).count();
    let mut index = 1;
    while log.log.space() == Space::Ample {
        log.put(entries(index..=index, 1, 1000));
        index += 1;
    }
    assert_eq!(spares(), 0, "the reserve has become the next segment");
    values.hold_room(16 << 10, Need::More);
    let free = disk.space(DIR.as_ref()).unwrap().free_bytes;
    let oldest = log.log.segments()[0].seq;
    log.log.release(oldest).unwrap();
    log.log.turn();
    assert_eq!((log.log.space(), spares()), (Space::Low, 0), "it is neither kept nor made anew");
    assert_eq!(disk.space(DIR.as_ref()).unwrap().free_bytes, free + (16 << 10));
    assert_eq!(log.log.free_bytes(), Some(free));
    // While other parts are about to take the space, the log makes no file and reports no shortage.
    values.hold_room(free + (16 << 10), Need::Passing);
    log.log.turn();
    assert_eq!((log.log.space(), spares()), (Space::Low, 0));
    values.hold_room(0, Need::More);
    log.log.turn();
    assert_eq!((log.log.space(), spares()), (Space::Ample, 1));
}

#[test]
fn a_batch_that_waits_for_held_space_is_written_once_it_is_released() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).unwrap();
    // The reserve becomes the next segment, and no other file can be made.
    log.log.values().hold_room(u64::MAX / 2, Need::Passing);
    let mut index = 1;
    while !log.log.is_starved() {
        log.put(entries(index..=index, 1, 1000));
        index += 1;
        assert!(index < 200, "the log takes space that is held");
    }
    assert_eq!(log.log.space(), Space::Ample, "a shortage is reported only once it is known");
    assert!(!log.log.wants_turn());
    log.log.values().hold_room(0, Need::More);
    log.log.turn();
    log.told(|told| assert_eq!(told.last_index, index - 1));
    assert!(!log.log.is_starved());
}

#[test]
fn a_log_that_cannot_know_what_is_free_gives_up_its_next_segment_for_a_checkpoint() {
    let disk = MemDisk::new(1);
    disk.set_quota(Some(ROOM));
    let mut log = open(&disk).unwrap();
    let mut index = 1;
    while log.log.space() == Space::Ample {
        log.put(entries(index..=index, 1, 1000));
        index += 1;
    }
    assert!(log.log.values().has_hidden_limit());
    let files = || disk.list(DIR.as_ref()).unwrap().len();
    let before = files();
    log.log.values().hold_room(4096, Need::More);
    log.log.turn();
    assert_eq!(files(), before);
    log.log.values().hold_room(4096, Need::Urgent);
    log.log.turn();
    assert_eq!((files(), log.log.space()), (before - 1, Space::Exhausted));
    // The rest of the segment in use still accepts the records that end the shortage.
    log.put(entries(index..=index, 1, 1000));
    log.told(|told| assert_eq!(told.last_index, index));
}

#[test]
fn a_full_queue_hands_the_batch_back() {
    let disk = MemDisk::new(1);
    let options = Options { queued_bytes_max: 3000, ..options() };
    let mut log = open_with(options, &disk, 1).unwrap();
    log.log.append(entries(1..=5, 1, 1000)).expect("a single batch may be larger");
    let error = log.log.append(entries(6..=6, 1, 10)).unwrap_err();
    assert_eq!((error.reason, error.batch), (Refusal::QueueFull, entries(6..=6, 1, 10)));
    log.log.turn();
    log.put(entries(6..=6, 1, 10));
    log.told(|told| assert_eq!(told.last_index, 6));
}

#[test]
fn a_starved_log_thread_goes_on_when_there_is_room() {
    let disk = MemDisk::new(1);
    disk.set_capacity(Some(4 * (16 << 10)));
    let (tell, told) = std::sync::mpsc::channel();
    let on_event = Box::new(move |event| {
        let _ = tell.send(event);
    });
    let options = Options { by_hand: false, ..options() };
    let (mut log, _) =
        Log::open(options, std::sync::Arc::new(disk.clone()), Index(1), &mut |_| (), on_event).unwrap();
    log.append(entries(1..=100, 1, 1000)).unwrap();
    let mut last = 0;
    let mut exhausted = false;
    while last < 100 {
        match told.recv_timeout(std::time::Duration::from_secs(60)).expect("something within a minute") {
            LogEvent::Synced(synced) => last = synced.last_index.0,
            LogEvent::SpaceChanged(Space::Exhausted) => {
                exhausted = true;
                disk.set_capacity(None);
            }
            LogEvent::SpaceChanged(_) => {}
            LogEvent::Failed(fatal) => panic!("{fatal}"),
        }
    }
    assert!(exhausted);
}

#[test]
fn a_quiet_log_gets_its_next_segment_filled_with_zeros() {
    let disk = MemDisk::new(1);
    let options = Options { by_hand: false, quiet_after: std::time::Duration::ZERO, ..options() };
    let (mut log, _) =
        Log::open(options, std::sync::Arc::new(disk.clone()), Index(1), &mut |_| (), Box::new(|_| ()))
            .unwrap();
    log.append(entries(1..=1, 1, 10)).unwrap();
    // Bytes of two headers, and of the next segment behind its header.
    let prepared_bytes = (16 << 10) - 4096 + 2 * 4096;
    testkit::wait_until("the next segment is filled", testkit::TIMEOUT, || {
        (log.figures().prepared_bytes() >= prepared_bytes).then_some(())
    });
    log.append(entries(2..=30, 1, 1000)).unwrap();
    drop(log);
    assert_eq!(open(&disk).unwrap().recovered.last_index, Index(30));
}

#[test]
fn the_owner_writes_by_itself_unless_the_thread_has_to() {
    let disk = MemDisk::new(1);
    let (tell, told) = std::sync::mpsc::channel();
    let on_event = Box::new(move |event| {
        let _ = tell.send((std::thread::current().id(), event));
    });
    let options = Options { by_hand: false, ..options() };
    let (mut log, _) =
        Log::open(options, std::sync::Arc::new(disk.clone()), Index(1), &mut |_| (), on_event).unwrap();
    let own = std::thread::current().id();
    let next = || told.recv_timeout(testkit::TIMEOUT).expect("an event");
    // The log's thread makes the first segment.
    log.append(entries(1..=1, 1, 10)).unwrap();
    assert!(matches!(next(), (thread, LogEvent::Synced(_)) if thread != own));
    let (mut here, mut tries) = (0_u64, 0_u64);
    // An attempt that found the log's thread busy is repeated. That thread may be delayed for a long time.
    testkit::wait_until("the owner writes", testkit::TIMEOUT, || {
        let index = 2 + tries;
        tries += 1;
        log.owner_writes(true);
        log.append(entries(index..=index, 1, 10)).unwrap();
        assert!(told.try_recv().is_err(), "nobody else writes it");
        let wrote = log.write_here(1024).is_some();
        // The owner reports its own write at once. If the log's thread still held the lock, that thread
        // writes and reports the batch.
        let (thread, event) = if wrote { told.try_recv().expect("an event") } else { next() };
        assert_eq!(thread == own, wrote);
        assert!(matches!(event, LogEvent::Synced(synced) if synced.last_index.0 == index));
        here += u64::from(wrote);
        (here >= 3).then_some(())
    });
    let at = |index: u64| index + tries;
    // A batch above the limit, and then batches larger than the segment's free space: the log's thread writes
    // the rest.
    log.owner_writes(true);
    log.append(entries(at(2)..=at(2), 1, 2000)).unwrap();
    assert_eq!(log.write_here(1024), None);
    assert!(matches!(next(), (thread, LogEvent::Synced(_)) if thread != own));
    log.owner_writes(true);
    log.append(entries(at(3)..=at(101), 1, 1000)).unwrap();
    log.write_here(usize::MAX);
    let mut last = 0;
    while last < at(101) {
        if let (_, LogEvent::Synced(synced)) = next() {
            last = synced.last_index.0;
        }
    }
    // A later batch, appended without `owner_writes`, does not wait for the owner either.
    log.append(entries(at(102)..=at(102), 1, 10)).unwrap();
    assert!(matches!(next(), (thread, LogEvent::Synced(_)) if thread != own));
    // After a disk failure, the event is reported and a later append is refused.
    disk.fail_next(Operation::Sync, 1, Fault::Always(5));
    log.owner_writes(true);
    log.append(entries(at(103)..=at(103), 1, 10)).unwrap();
    log.write_here(1024);
    while !matches!(next(), (_, LogEvent::Failed(_))) {}
    assert_eq!(log.append(entries(at(104)..=at(104), 1, 10)).unwrap_err().reason, Refusal::Stopped);
}
