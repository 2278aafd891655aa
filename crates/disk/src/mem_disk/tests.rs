use super::*;
use crate::{Disk, Reservation};

fn disk(seed: u64) -> (MemDisk, PathBuf) {
    let disk = MemDisk::new(seed);
    disk.create_dir_all(Path::new("/d")).unwrap();
    (disk, PathBuf::from("/d/f"))
}

#[test]
fn what_was_synced_survives_and_the_rest_is_kept_lost_or_zeroed() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let (disk, path) = disk(seed);
        let file = disk.create(&path).unwrap();
        file.write_at(&[1; 3 * SECTOR_BYTES], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        file.write_at(&[2; SECTOR_BYTES], SECTOR_BYTES as u64).unwrap();
        disk.crash();
        assert!(file.sync_data().is_err(), "a file opened before the crash is dead");
        let data = disk.contents(&path).unwrap();
        assert_eq!(data[..SECTOR_BYTES], [1; SECTOR_BYTES]);
        assert_eq!(data[2 * SECTOR_BYTES..], [1; SECTOR_BYTES]);
        let middle = data[SECTOR_BYTES];
        assert!(data[SECTOR_BYTES..2 * SECTOR_BYTES].iter().all(|byte| *byte == middle));
        seen.insert(middle);
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2]));
}

#[test]
fn unsynced_names_survive_as_a_prefix() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let (disk, path) = disk(seed);
        let other = PathBuf::from("/d/g");
        disk.create(&path).unwrap();
        disk.rename(&path, &other).unwrap();
        disk.crash();
        seen.insert((disk.exists(&path).unwrap(), disk.exists(&other).unwrap()));
    }
    assert_eq!(seen, BTreeSet::from([(false, false), (true, false), (false, true)]));
}

#[test]
fn unsynced_names_may_survive_in_any_order() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let (disk, path) = disk(seed);
        disk.keep_names_in_any_order();
        let other = PathBuf::from("/d/g");
        disk.create(&path).unwrap();
        disk.create(&other).unwrap();
        disk.crash();
        seen.insert((disk.exists(&path).unwrap(), disk.exists(&other).unwrap()));
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_failed_sync_is_not_made_good_by_the_next() {
    let (disk, path) = disk(7);
    let file = disk.create(&path).unwrap();
    file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    file.write_at(&[2; SECTOR_BYTES], 0).unwrap();
    disk.fail_at(disk.ops() + 1, Fault::Once(libc::EIO));
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
    file.sync_data().unwrap();
    disk.crash();
    assert_eq!(disk.contents(&path).unwrap(), [1; SECTOR_BYTES]);
}

#[test]
fn a_full_disk_says_so_and_has_room_again_after_a_removal() {
    let (disk, path) = disk(7);
    disk.set_capacity(Some(1000));
    let file = disk.create(&path).unwrap();
    let _ = file.allocate(0, 800).unwrap();
    let other = disk.create(Path::new("/d/g")).unwrap();
    assert_eq!(other.allocate(0, 800).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    disk.remove(&path).unwrap();
    let _ = other.allocate(0, 800).unwrap();
    assert_eq!(disk.space(&path).unwrap(), DiskSpace { free_bytes: 200, total_bytes: 1000 });
}

#[test]
fn where_nothing_is_reserved_only_what_is_written_takes_room() {
    let (disk, path) = disk(7);
    disk.reserve_nothing();
    disk.set_capacity(Some(2 * PAGE_BYTES));
    let file = disk.create(&path).unwrap();
    assert_eq!(file.allocate(0, 4 * PAGE_BYTES).unwrap(), Reservation::NeedsZeros);
    assert_eq!((disk.used_bytes(), file.len().unwrap()), (0, 4 * PAGE_BYTES));
    file.write_at(&[1; 8], PAGE_BYTES - 4).unwrap();
    let error = file.write_at(&[1; 8], 3 * PAGE_BYTES).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    file.write_at(&[2; 8], 0).unwrap();
    file.set_len(2 * PAGE_BYTES).unwrap();
    assert_eq!(file.allocate(0, 2 * PAGE_BYTES).unwrap(), Reservation::Made);
}

#[test]
fn a_quota_is_no_part_of_the_free_space() {
    let (disk, path) = disk(7);
    disk.set_quota(Some(100));
    let free = disk.space(&path).unwrap().free_bytes;
    let file = disk.create(&path).unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    let error = file.write_at(&[1; 8], 100).unwrap_err();
    assert!(crate::is_full(&error) && error.raw_os_error() == Some(libc::EDQUOT), "{error}");
    assert!(disk.space(&path).unwrap().free_bytes + 100 >= free);
}

#[test]
fn a_directory_may_be_a_file_system_of_its_own() {
    let (disk, path) = disk(7);
    disk.set_capacity(Some(1000));
    let file = disk.create(&path).unwrap();
    let _ = file.allocate(0, 800).unwrap();
    let other = Path::new("/other/f");
    disk.create_dir_all(Path::new("/other")).unwrap();
    disk.mount(Path::new("/other"), 500);
    let apart = disk.create(other).unwrap();
    let _ = apart.allocate(0, 400).unwrap();
    assert_eq!(disk.space(&path).unwrap(), DiskSpace { free_bytes: 200, total_bytes: 1000 });
    assert_eq!(disk.space(other).unwrap(), DiskSpace { free_bytes: 100, total_bytes: 500 });
    let _ = file.allocate(800, 200).unwrap();
    for (file, len) in [(&file, 1001), (&apart, 501)] {
        assert_eq!(file.allocate(0, len).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
}

#[test]
fn a_killed_process_leaves_what_it_wrote_to_the_next_but_not_to_a_power_cut() {
    let (disk, path) = disk(7);
    let file = disk.create(&path).unwrap();
    let lock = disk.lock(Path::new("/d/lock")).unwrap();
    file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    disk.kill();
    assert!(file.sync_data().is_err() && disk.open(&path).is_err());
    drop(lock);
    disk.heal();
    assert!(file.sync_data().is_err(), "a file of the killed process is dead");
    let _lock = disk.lock(Path::new("/d/lock")).unwrap();
    assert!(!disk.is_synced(&path, 0));
    let again = disk.open(&path).unwrap();
    let mut read = [0; SECTOR_BYTES];
    again.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, [1; SECTOR_BYTES]);
    again.sync_data().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    assert!(disk.is_synced(&path, 0));
    disk.crash();
    assert_eq!(disk.contents(&path).unwrap(), [1; SECTOR_BYTES]);
}

#[test]
fn faults_wait_for_their_sort_of_operation() {
    let (disk, path) = disk(7);
    let file = disk.create(&path).unwrap();
    disk.fail_next(Operation::Sync, 2, Fault::Once(libc::EIO));
    disk.fail_next(Operation::Read, 1, Fault::Once(libc::EIO));
    file.write_at(&[1; 8], 0).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[1; 8], 0).unwrap();
    assert!(file.read_at(&mut [0; 8], 0).is_err());
    assert!(file.read_at(&mut [0; 8], 0).is_ok());
    assert!(file.sync_data().is_err());
    file.sync_data().unwrap();
    disk.fail_next(Operation::Change, 2, Fault::PowerCut);
    file.write_at(&[2; 8], 0).unwrap();
    assert!(!disk.is_dark());
    assert!(file.sync_data().is_err());
    disk.heal();
    assert!(disk.is_dark() && disk.is_down(), "only a crash brings power back");
    disk.crash();
    assert!(!disk.is_down() && disk.open(&path).is_ok() | !disk.exists(&path).unwrap());
}

#[test]
fn every_sort_of_operation_fails_when_it_is_told_to() {
    let (disk, path) = disk(7);
    let dir = Path::new("/d");
    drop(disk.create(&path).unwrap());
    let other = PathBuf::from("/d/g");
    type Try<'a> = Box<dyn Fn() -> io::Result<()> + 'a>;
    let operations: Vec<(Operation, Try<'_>)> = vec![
        (Operation::Open, Box::new(|| disk.open(&path).map(drop))),
        (Operation::List, Box::new(|| disk.list(dir).map(drop))),
        (Operation::Space, Box::new(|| disk.space(dir).map(drop))),
        (Operation::Lock, Box::new(|| disk.lock(&other).map(drop))),
        (Operation::SyncDir, Box::new(|| disk.sync_dir(dir))),
        (Operation::Sync, Box::new(|| disk.sync_dir(dir))),
        (Operation::Allocate, Box::new(|| disk.open(&path)?.allocate(0, 9).map(drop))),
        (Operation::Allocate, Box::new(|| disk.open(&path)?.set_len(9))),
        (Operation::Rename, Box::new(|| disk.rename(&path, &other))),
        (Operation::Create, Box::new(|| disk.create(&path).map(drop))),
        (Operation::Remove, Box::new(|| disk.remove(&other))),
    ];
    for (operation, attempt) in operations {
        disk.fail_next(operation, 1, Fault::Once(libc::EROFS));
        assert_eq!(attempt().unwrap_err().raw_os_error(), Some(libc::EROFS), "{operation:?}");
        attempt().unwrap_or_else(|error| panic!("{operation:?}: {error}"));
    }
}

#[test]
fn a_removed_file_takes_no_memory_once_it_is_closed_and_the_removal_is_durable() {
    let (disk, path) = disk(7);
    let nodes = || disk.state().nodes.len();
    let file = disk.create(&path).unwrap();
    file.write_at(&[1; SECTOR_BYTES], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    disk.remove(&path).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    assert_eq!(nodes(), 1, "it is open");
    file.read_exact_at(&mut [0; SECTOR_BYTES], 0).unwrap();
    drop(file);
    assert_eq!(nodes(), 0);
    drop(disk.create(&path).unwrap());
    disk.sync_dir(Path::new("/d")).unwrap();
    disk.remove(&path).unwrap();
    assert_eq!(nodes(), 1, "a crash may bring it back");
    disk.crash();
    assert_eq!(nodes(), usize::from(disk.exists(&path).unwrap()));
}

#[test]
fn a_flipped_bit_is_read_and_survives() {
    let (disk, path) = disk(7);
    disk.plant(&path, vec![0; 4]);
    disk.flip_bit(&path, 2, 3).unwrap();
    assert!(disk.flip_bit(&path, 4, 3).is_err());
    disk.crash();
    assert_eq!(disk.contents(&path).unwrap(), [0, 0, 8, 0]);
    assert_eq!(disk.files(), [(path, 4)]);
}

#[test]
fn the_same_seed_loses_the_same() {
    let run = || {
        let (disk, path) = disk(42);
        let file = disk.create(&path).unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        file.write_at(&[9; 40 * SECTOR_BYTES], 0).unwrap();
        disk.crash();
        disk.contents(&path).unwrap()
    };
    assert_eq!(run(), run());
}
