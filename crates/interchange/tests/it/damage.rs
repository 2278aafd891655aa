//! Damaged files cause an error or return the same contents, and never a panic or an endless walk.

use std::path::Path;

use api::raftpb::Entry;
use mainstay_interchange::bolt::Bolt;
use mainstay_interchange::wal::Wal;
use mainstay_interchange::{DataDir, Error, Status, hash_kv, snapshot};
use numbers::Revision;

use testkit::Random;

use crate::bolt::{contents, read, write};
use crate::golden::{WAL_NAME, data_dir, golden};
use crate::kit::transcript;

/// Reads everything that a database contains, valid or not.
fn read_all(bytes: &[u8]) -> Result<String, Error> {
    let (backend, _) = snapshot::open_unverified(bytes)?;
    let text = transcript(&backend)?;
    backend.bolt().check()?;
    Status::of(&backend)?;
    let _ = hash_kv(&backend, Revision(6));
    Ok(text)
}

#[test]
fn a_snapshot_with_its_digest_says_all_or_nothing() {
    let bytes = golden("3.6-snapshot");
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(snapshot::open(damaged.as_slice()).is_err(), "byte {at}");
    }
    for len in (0..bytes.len()).filter(|len| len % 512 == 32 || len % 97 == 0) {
        assert!(snapshot::open(&bytes[..len]).is_err(), "{len} bytes");
    }
    // A database copied out of a data directory has no digest.
    let (_, parts) = snapshot::open(&bytes[..bytes.len() - 32]).expect("is sound");
    assert!(!parts.has_digest);
}

#[test]
fn a_database_without_a_digest_never_panics() {
    let bytes = golden("3.7-snapshot");
    let whole = read_all(&bytes).expect("is sound");
    let (mut same, mut other) = (0, 0);
    for at in 0..bytes.len() - 32 {
        let flips: &[u8] = if at % 5 == 0 { &[1, 0xff] } else { &[1 << (at % 8)] };
        for flip in flips {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            match read_all(&damaged) {
                Ok(text) if text == whole => same += 1,
                // The format has checksums only for its meta pages.
                Ok(_) => other += 1,
                Err(_) => {}
            }
        }
    }
    assert!(same > 0 && other > 0);
}

#[test]
fn trees_with_many_levels_never_panic() {
    let bytes = write(&contents(5, 60));
    let whole = read(&Bolt::whole(bytes.as_slice()).expect("opens")).expect("is sound");
    let mut refused = 0;
    for seed in 0..4000 {
        let mut random = Random::new(seed + 1);
        let mut damaged = bytes.clone();
        let pages = bytes.len() as u64 / 4096;
        for _ in 0..1 + random.below(4) {
            // Mostly damage page headers, where pages refer to others.
            let page = random.below(pages) * 4096;
            let at = page + if random.below(4) == 0 { random.below(4096) } else { random.below(64) };
            let value = match random.below(3) {
                0 => random.below(256) as u8,
                1 => random.below(pages) as u8,
                _ => damaged[at as usize] ^ (1 << random.below(8)),
            };
            damaged[at as usize] = value;
        }
        if random.below(8) == 0 {
            // Swap the contents of two pages.
            let (a, b) = (2 + random.below(pages - 2), 2 + random.below(pages - 2));
            let page = bytes[a as usize * 4096..][..4096].to_vec();
            damaged[b as usize * 4096..][..4096].copy_from_slice(&page);
        }
        let Ok(bolt) = Bolt::whole(damaged.as_slice()) else {
            refused += 1;
            continue;
        };
        let found = read(&bolt);
        let checked = bolt.check();
        refused += u32::from(found.is_err());
        if let (Ok(found), Err(error)) = (&found, &checked) {
            // Only `check` finds this damage, because no cursor visits it: lost pages, or the free list.
            assert!(*found != whole || error.to_string().contains("page"), "seed {seed}: {error}");
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_tree_in_a_circle_ends() {
    let bytes = write(&contents(5, 300));
    let pages = bytes.len() / 4096;
    let is_branch = |page: &usize| {
        let head = &bytes[page * 4096..][..16];
        head[..8] == (*page as u64).to_le_bytes() && head[8..10] == [1, 0]
    };
    let branches = (3..pages).filter(is_branch);
    let mut tried = 0;
    for branch in branches {
        let count = usize::from(bytes[branch * 4096 + 10]);
        for element in 0..count {
            for target in [branch, branch + 1, 3] {
                let mut damaged = bytes.clone();
                let at = branch * 4096 + 16 + element * 16 + 8;
                damaged[at..at + 8].copy_from_slice(&(target as u64).to_le_bytes());
                if damaged == bytes {
                    continue;
                }
                let bolt = Bolt::whole(damaged.as_slice()).expect("opens");
                // A leaf that was copied from another bucket may by chance fit between the keys around it.
                // Then one page is used twice.
                let error = read(&bolt).err().or(bolt.check().err());
                let error = error.map(|e| e.to_string()).unwrap_or_default();
                assert!(error.contains("page ") && error.contains("byte "), "{error}");
                tried += 1;
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

/// Returns all entries, and true if something at the end was left out.
fn read_log(wal: Vec<u8>) -> Result<(Vec<Entry>, bool), Error> {
    let disk = data_dir(Vec::new(), wal);
    let wal = Wal::open(&disk, Path::new("/d/member/wal"))?;
    let entries = (wal.first()..=wal.last()).map(|index| Ok(wal.entry(index)?.expect("is there")));
    Ok((entries.collect::<Result<_, Error>>()?, wal.repair.is_some()))
}

#[test]
fn a_damaged_log_says_less_or_nothing() {
    for release in ["3.4", "3.7"] {
        let bytes = golden(&format!("{release}-wal"));
        let (whole, repaired) = read_log(bytes.clone()).expect("is sound");
        assert!(!repaired);
        let (mut same, mut refused, mut shorter) = (0, 0, 0);
        for at in 0..bytes.len() {
            for flip in [1 << (at % 8), 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                match read_log(damaged) {
                    Err(error) => {
                        refused += 1;
                        // The error names the file, or the directory if no file identifies the owner.
                        let error = error.to_string();
                        assert!(
                            error.contains(WAL_NAME)
                                || error.contains("does not identify its member")
                                || error.contains("invalid data about its member"),
                            "{error}"
                        );
                    }
                    Ok((entries, _)) if entries == whole => same += 1,
                    // A shorter log must be reported as repaired, as etcd does.
                    Ok((entries, repaired)) => {
                        shorter += 1;
                        assert!(repaired, "byte {at} of {release}");
                        assert!(whole.starts_with(&entries), "byte {at} of {release}");
                    }
                }
            }
        }
        assert!(same > 0 && shorter > 0 && refused > bytes.len(), "{same} {shorter} {refused}");
    }
}

#[test]
fn a_log_cut_anywhere_is_a_prefix() {
    let bytes = golden("3.5-wal");
    let (whole, _) = read_log(bytes.clone()).expect("is sound");
    let mut lengths = Vec::new();
    for len in 0..bytes.len() {
        let Ok((entries, _)) = read_log(bytes[..len].to_vec()) else { continue };
        assert!(whole.starts_with(&entries), "{len} bytes");
        lengths.push(entries.len());
    }
    assert!(lengths.is_sorted() && lengths.last() == Some(&whole.len()));
    // The log contained everything that is in the database. If those entries are missing, later promises may
    // be missing too.
    let disk = data_dir(golden("3.5-db"), bytes[..bytes.len() / 4].to_vec());
    let why = DataDir::open(&disk, Path::new("/d")).err().map(|error| error.to_string());
    assert!(why.as_ref().is_some_and(|why| why.contains("a part of the log is missing")), "{why:?}");
}

#[test]
fn random_bytes_are_no_log_and_no_database() {
    for seed in 0..2000 {
        let mut random = Random::new(seed + 99);
        let mut wal = golden_prefix(&mut random);
        for _ in 0..random.below(200) {
            wal.push(random.below(256) as u8);
        }
        let _ = read_log(wal.clone());
        let _ = read_all(&wal);
    }
}

fn golden_prefix(random: &mut Random) -> Vec<u8> {
    thread_local! {
        static WAL: Vec<u8> = golden("3.6-wal");
    }
    WAL.with(|wal| wal[..random.below(wal.len() as u64) as usize / 8 * 8].to_vec())
}
