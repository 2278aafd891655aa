//! Checkpoints are written completely or not at all, and damage is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::{Disk, Fault, MemDisk};
use mainstay_log::OpenError;
use mainstay_log::checkpoint::{CheckpointStore, Manifest, Run};
use numbers::{BlockPlace, Index, Term};

const DIR: &str = "/data/member/checkpoint";

fn store(disk: &MemDisk) -> Result<CheckpointStore, OpenError> {
    CheckpointStore::open(Arc::new(disk.clone()), DIR)
}

fn write(disk: &MemDisk, generation: u64) -> Result<(), OpenError> {
    let store = store(disk)?;
    let mut manifest = Manifest {
        applied_index: Index(generation),
        term: Term(3),
        metadata: vec![9; 5],
        ..Manifest::default()
    };
    for part in 0..2u64 {
        let mut run =
            store.begin(&format!("{generation}-{part}.run"), Index(generation), Term(3), b"part")?;
        for block in 0..3u64 {
            run.write_block(&[(generation + part + block) as u8; 700])?;
            run.sync()?;
        }
        manifest.runs.push(run.finish()?);
    }
    store.commit(&manifest)?;
    store.prune(&manifest)?;
    Ok(())
}

fn read(disk: &MemDisk) -> Result<Option<(Manifest, Vec<u8>)>, OpenError> {
    let store = store(disk)?;
    let Some(manifest) = store.load()? else { return Ok(None) };
    let mut all = Vec::new();
    for run in &manifest.runs {
        let mut reader = store.read(run)?;
        assert_eq!(
            (reader.applied_index, reader.term, &reader.metadata[..]),
            (manifest.applied_index, Term(3), &b"part"[..])
        );
        while let Some(block) = reader.next_block()? {
            all.extend_from_slice(&block);
        }
    }
    Ok(Some((manifest, all)))
}

fn image(generation: u64) -> Vec<u8> {
    let bytes = (0..2).flat_map(|part| (0..3).map(move |block| (generation + part + block) as u8));
    bytes.flat_map(|byte| [byte; 700]).collect()
}

#[test]
fn what_was_committed_is_read_and_the_rest_is_pruned() {
    let disk = MemDisk::new(3);
    assert!(read(&disk).unwrap().is_none());
    for generation in 1..=3 {
        write(&disk, generation).unwrap();
        let (manifest, bytes) = read(&disk).unwrap().unwrap();
        assert_eq!((manifest.applied_index, bytes), (Index(generation), image(generation)));
        assert_eq!(disk.list(Path::new(DIR)).unwrap().len(), 3);
    }
    // A file server keeps a removed file that is open under another name, under which it cannot be removed.
    disk.plant(&PathBuf::from(DIR).join(".nfs0001"), vec![1]);
    write(&disk, 4).unwrap();
    assert_eq!(disk.list(Path::new(DIR)).unwrap().len(), 4);
    disk.remove(&PathBuf::from(DIR).join(".nfs0001")).unwrap();
    write(&disk, 3).unwrap();
    assert!(
        store(&disk).unwrap().begin("3-0.run", Index(1), Term(1), &[]).is_err(),
        "a run is never overwritten"
    );
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_or_the_new_checkpoint() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..6 {
        for nth in 1.. {
            let disk = MemDisk::new(seed * 1000 + nth);
            if seed % 2 == 1 {
                disk.keep_names_in_any_order();
            }
            write(&disk, 1).unwrap();
            disk.fail_at(disk.ops() + nth, Fault::PowerCut);
            let acknowledged = write(&disk, 2).is_ok();
            disk.crash();
            let (manifest, bytes) = read(&disk).unwrap().expect("the first one was committed");
            assert_eq!(bytes, image(manifest.applied_index.0), "seed {seed}, operation {nth}");
            assert!(!acknowledged || manifest.applied_index == Index(2), "seed {seed}, operation {nth}");
            outcomes.insert(manifest.applied_index);
            // Files left by the failed attempt do not prevent the next one.
            write(&disk, 3).or_else(|_| write(&disk, 4)).unwrap();
            if acknowledged {
                break;
            }
        }
    }
    assert_eq!(outcomes.into_iter().collect::<Vec<_>>(), [Index(1), Index(2)]);
}

#[test]
fn a_failed_operation_is_told_and_never_committed_halfway() {
    for nth in 1.. {
        let disk = MemDisk::new(nth);
        write(&disk, 1).unwrap();
        let target = disk.ops() + nth;
        disk.fail_at(target, Fault::Once(if nth % 2 == 0 { 5 } else { 28 }));
        let outcome = write(&disk, 2);
        let reached = disk.ops() >= target;
        disk.heal();
        let (manifest, bytes) = read(&disk).unwrap().expect("the first one was committed");
        assert_eq!(bytes, image(manifest.applied_index.0));
        match outcome {
            Ok(()) => {
                assert!(!reached, "operation {nth} failed and nobody was told");
                assert_eq!(manifest.applied_index, Index(2));
                break;
            }
            Err(error) => assert!(error.to_string().contains(DIR), "{error}"),
        }
    }
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let disk = MemDisk::new(3);
    write(&disk, 1).unwrap();
    for name in ["MANIFEST", "1-0.run", "1-1.run"] {
        let path = PathBuf::from(DIR).join(name);
        let good = disk.contents(&path).unwrap();
        for at in 0..good.len() {
            for bad in [flipped(&good, at), good[..at].to_vec()] {
                disk.plant(&path, bad);
                let error = read(&disk).err().unwrap_or_else(|| panic!("{name}: byte {at}"));
                assert!(matches!(error, OpenError::Damaged { .. }), "{name}: byte {at}: {error}");
                assert!(error.to_string().contains(name));
            }
        }
        disk.plant(&path, [&good[..], &[0]].concat());
        assert!(read(&disk).is_err());
        disk.plant(&path, good);
    }
    read(&disk).unwrap().unwrap();
    // Two intact runs swapped, and one run removed.
    let (a, b) = (PathBuf::from(DIR).join("1-0.run"), PathBuf::from(DIR).join("1-1.run"));
    let (first, second) = (disk.contents(&a).unwrap(), disk.contents(&b).unwrap());
    disk.plant(&a, second);
    disk.plant(&b, first);
    assert!(read(&disk).is_err());
    disk.remove(&b).unwrap();
    disk.remove(&a).unwrap();
    assert!(matches!(read(&disk), Err(OpenError::Missing { .. })));
}

fn flipped(good: &[u8], at: usize) -> Vec<u8> {
    let mut bad = good.to_vec();
    bad[at] ^= 1 << (at % 8);
    bad
}

/// Writes a run of blocks of different lengths. Returns it with the place and the payload of each block.
fn placed(disk: &MemDisk, name: &str, index: u64, lens: &[usize]) -> (Run, Vec<(BlockPlace, Vec<u8>)>) {
    let mut run = store(disk).unwrap().begin(name, Index(index), Term(3), b"part").unwrap();
    let mut blocks = Vec::new();
    for (at, len) in lens.iter().enumerate() {
        let payload: Vec<u8> = (0..*len).map(|byte| (byte * 7 + at) as u8).collect();
        blocks.push((run.write_block(&payload).unwrap(), payload));
    }
    (run.finish().unwrap(), blocks)
}

/// Opens a run, checks the places against it and reads every block from the last to the first.
fn read_placed(
    disk: &MemDisk,
    run: &Run,
    blocks: &[(BlockPlace, Vec<u8>)],
) -> Result<Vec<Vec<u8>>, OpenError> {
    let reader = store(disk)?.read_blocks(run)?;
    reader.check_places(blocks.iter().map(|(place, _)| *place))?;
    let mut read = Vec::new();
    for (place, _) in blocks.iter().rev() {
        let mut payload = vec![1; 5];
        reader.read(*place, &mut payload)?;
        read.push(payload);
    }
    read.reverse();
    Ok(read)
}

#[test]
fn single_blocks_are_read_at_their_places_by_many_threads() {
    let disk = MemDisk::new(3);
    let (run, blocks) = placed(&disk, "1.run", 1, &[1, 700, 9000, 3, 64]);
    let payloads: Vec<Vec<u8>> = blocks.iter().map(|(_, payload)| payload.clone()).collect();
    assert_eq!(read_placed(&disk, &run, &blocks).unwrap(), payloads);
    let reader = store(&disk).unwrap().read_blocks(&run).unwrap();
    assert_eq!((reader.applied_index, reader.term, &reader.metadata[..]), (Index(1), Term(3), &b"part"[..]));
    let mut at = reader.first();
    for (place, payload) in &blocks {
        assert_eq!(reader.locate(at.number, at.offset).unwrap(), *place);
        assert_eq!(place.next().offset, at.offset + 8 + payload.len() as u64);
        at = place.next();
    }
    assert!(reader.locate(at.number, at.offset).is_err(), "the footer is no block");
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (reader, blocks) = (&reader, &blocks);
            scope.spawn(move || {
                let mut payload = Vec::new();
                for n in 0..400 {
                    let (place, expected) = &blocks[(first + n * 3) % blocks.len()];
                    reader.read(*place, &mut payload).unwrap();
                    assert_eq!(payload, *expected);
                }
            });
        }
    });
}

#[test]
fn a_single_block_is_never_another_one() {
    let disk = MemDisk::new(3);
    let (run, blocks) = placed(&disk, "1.run", 1, &[40, 40, 200, 9]);
    // The same run once more, with the same header, and a run of the same blocks with another header.
    let (twin, twins) = placed(&disk, "2.run", 1, &[40, 41, 199, 9]);
    let (_, others) = placed(&disk, "3.run", 2, &[40, 40, 200, 9]);
    let path = PathBuf::from(DIR).join("1.run");
    let good = disk.contents(&path).unwrap();
    for at in 0..good.len() {
        for bad in [flipped(&good, at), good[..at].to_vec()] {
            disk.plant(&path, bad);
            let error = read_placed(&disk, &run, &blocks).err().unwrap_or_else(|| panic!("byte {at}"));
            assert!(matches!(error, OpenError::Damaged { .. }), "byte {at}: {error}");
            assert!(error.to_string().contains("1.run"), "{error}");
        }
    }
    for other in ["2.run", "3.run"] {
        let other = disk.contents(&PathBuf::from(DIR).join(other)).unwrap();
        disk.plant(&path, other.clone());
        assert!(read_placed(&disk, &run, &blocks).is_err());
        // Only the bytes of one block are those of the other run.
        for (place, payload) in &blocks {
            let (from, to) = (place.offset as usize, place.offset as usize + 8 + payload.len());
            if other[from..to] == good[from..to] {
                continue;
            }
            let mut bad = good.clone();
            bad[from..to].copy_from_slice(&other[from..to]);
            disk.plant(&path, bad);
            assert!(read_placed(&disk, &run, &blocks).is_err());
        }
    }
    disk.plant(&path, good);
    assert!(read_placed(&disk, &run, &blocks).is_ok());
    // Places of other runs, of too few blocks, in another order, or out of bounds.
    let reader = store(&disk).unwrap().read_blocks(&run).unwrap();
    let check =
        |places: &[(BlockPlace, Vec<u8>)]| reader.check_places(places.iter().map(|(place, _)| *place));
    assert!(check(&blocks).is_ok());
    let mut swapped = blocks.clone();
    swapped.swap(0, 1);
    for places in [&twins, &others, &swapped, &blocks[..3].to_vec(), &Vec::new()] {
        assert!(check(places).is_err());
    }
    let place = blocks[1].0;
    let mut payload = Vec::new();
    for wrong in [
        BlockPlace { number: 2, ..place },
        BlockPlace { offset: place.offset + 1, ..place },
        BlockPlace { offset: 3, ..place },
        BlockPlace { offset: u64::MAX - 3, ..place },
        BlockPlace { len: 39, ..place },
        BlockPlace { len: u32::MAX, ..place },
        BlockPlace { len: 0, ..place },
        BlockPlace { crc: place.crc ^ 1, ..place },
    ] {
        assert!(reader.read(wrong, &mut payload).is_err(), "{wrong:?}");
        assert!(
            payload.capacity() < 10_000,
            "no memory is allocated for a length that the file does not have"
        );
    }
    assert!(reader.locate(9, u64::MAX).is_err() && reader.locate(9, 0).is_err());
    let twin = store(&disk).unwrap().read_blocks(&Run { total_crc: run.total_crc, ..twin });
    assert!(twin.is_err(), "the manifest names another run");
}
