//! Compares a snapshot with the naive model: every kind of read, at one revision.

use mainstay_mvcc::{HashWalk, KeyRange, RevisionError, Snapshot, Version};
use numbers::Revision;

use crate::naive::{Naive, Record, within};
use crate::random::Random;

pub const KEYS: u64 = 400;

pub fn records<'a>(versions: impl Iterator<Item = Version<'a>>) -> Vec<Record> {
    versions.map(Record::of).collect()
}

/// Runs some random reads at a random revision.
pub fn spot_check(snapshot: &Snapshot<'_>, model: &Naive, random: &mut Random) {
    assert_eq!(snapshot.current_revision(), model.current);
    assert_eq!(snapshot.compact_revision(), model.compacted);
    let asked = Revision(random.below(model.current.0 as u64 + 3) as i64 - 1);
    let key = random.key(KEYS);
    let (start, end) = (random.key(KEYS), random.key(KEYS));
    let end = (random.below(4) > 0).then_some(&end[..]);
    let range = match end {
        Some(end) => KeyRange::half_open(&start, end),
        None => KeyRange::from(&start),
    };
    let rev = match model.resolve(asked) {
        Ok(rev) => rev,
        Err(error) => {
            assert_eq!(snapshot.get(&key, asked).err(), Some(error));
            assert_eq!(snapshot.range(range, asked).err(), Some(error));
            assert_eq!(snapshot.count(range, asked), Err(error));
            assert_eq!(HashWalk::new(snapshot, asked).err(), Some(error));
            return;
        }
    };
    if asked < Revision(0) {
        let mut walk = HashWalk::new(snapshot, asked).unwrap();
        assert_eq!((walk.revision(), walk.compact_revision()), (asked, model.compacted));
        assert!(walk.step(snapshot, 1, |version| panic!("{version:?} is not before revision 0")));
    }
    let got = snapshot.get(&key, asked).unwrap();
    assert_eq!(got.map(Record::of), model.get(&key, rev).cloned());
    let single = snapshot.range(KeyRange::single(&key), asked).unwrap();
    assert_eq!(records(single), Vec::from_iter(model.get(&key, rev).cloned()));
    if let Some(version) = got {
        match snapshot.previous(version) {
            Ok(previous) => {
                assert_eq!(previous.map(Record::of), model.get(&key, version.main() - 1).cloned())
            }
            Err(error) => {
                assert_eq!(error, RevisionError::Compacted);
                assert!(version.main() - 1 < model.compacted);
            }
        }
        assert_eq!(snapshot.version_at(version.id()), Some(version));
    }

    let expected = model.range(&start, end, rev);
    assert_eq!(snapshot.count(range, asked), Ok(expected.len() as u64));
    let upwards = snapshot.range(range, asked).unwrap();
    if rev == model.current {
        assert_eq!(upwards.size_hint(), (expected.len(), Some(expected.len())));
    }
    assert_eq!(records(upwards), expected);
    let mut downwards = records(snapshot.range(range, asked).unwrap().rev());
    downwards.reverse();
    assert_eq!(downwards, expected);
    // Iterates from both ends at the same time.
    let mut both = snapshot.range(range, asked).unwrap();
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    loop {
        if random.below(2) == 0 {
            let Some(version) = both.next() else { break };
            head.push(Record::of(version));
        } else {
            let Some(version) = both.next_back() else { break };
            tail.push(Record::of(version));
        }
    }
    assert!(both.next().is_none() && both.next_back().is_none());
    head.extend(tail.into_iter().rev());
    assert_eq!(head, expected);
    // Resumes in the middle, at a key that may not exist.
    let middle = random.key(KEYS);
    let (below, above): (Vec<_>, Vec<_>) = expected.into_iter().partition(|record| record.key < middle);
    let above = above.into_iter().filter(|record| record.key != middle).collect::<Vec<_>>();
    let after = range.after(&middle);
    assert_eq!(records(snapshot.range(after, asked).unwrap()), above);
    assert_eq!(snapshot.count(after, asked), Ok(above.len() as u64));
    assert_eq!(records(snapshot.range(range.before(&middle), asked).unwrap()), below);
}

/// Runs every kind of read at one revision, and the reads that do not depend on a revision.
pub fn full_check(snapshot: &Snapshot<'_>, model: &Naive, random: &mut Random) {
    let live = model.range(b"", None, model.current);
    assert_eq!(snapshot.live_keys(), live.len() as u64);
    let oldest = model.compacted.max(Revision::FIRST);
    let rev = oldest + random.below((model.current - oldest + 1) as u64) as i64;
    assert_eq!(records(snapshot.range(KeyRange::ALL, rev).unwrap()), model.range(b"", None, rev));
    assert_eq!(records(snapshot.range(KeyRange::ALL, Revision::CURRENT).unwrap()), live);

    let stored = model.stored();
    let mut histories = stored.clone();
    histories.sort_by(|a, b| (&a.key, a.main, a.sub).cmp(&(&b.key, b.main, b.sub)));
    assert_eq!(records(snapshot.histories()), histories);
    let behind = random.key(KEYS);
    histories.retain(|record| record.key > behind);
    assert_eq!(records(snapshot.histories_after(Some(&behind))), histories);

    let from = oldest + random.below((model.current - oldest + 2) as u64) as i64;
    let through = from + random.below(20) as i64;
    let mut changes = stored;
    changes.retain(|record| record.main >= from && record.main <= through);
    assert_eq!(records(snapshot.changes(from, through).unwrap()), changes);
    if let Some(first) = changes.first() {
        let rest = snapshot.changes_after(first.id(), through).unwrap();
        assert_eq!(records(rest), changes[1..]);
    }
    if model.compacted < Revision(0) {
        assert_eq!(records(snapshot.changes(Revision::MIN, Revision::MAX).unwrap()), model.stored());
    } else {
        assert_eq!(
            snapshot.changes(model.compacted - 1, Revision::MAX).err(),
            Some(RevisionError::Compacted)
        );
    }

    for rev in [rev, model.current, oldest] {
        let mut walk = HashWalk::new(snapshot, rev).unwrap();
        assert_eq!((walk.revision(), walk.compact_revision()), (rev, model.compacted));
        let mut fed = Vec::new();
        let budget = 1 + random.below(50) as usize;
        while !walk.step(snapshot, budget, |version| fed.push(Record::of(version))) {}
        assert_eq!(fed, model.hash_versions(rev), "hash at {rev}, compacted {}", model.compacted);
    }
    assert!(live.iter().all(|record| within(&record.key, b"", None)));
}
