//! Tests of the disk behavior that the log and the checkpoints rely on. Each test runs on the real disk and on
//! the disk in memory.

use std::io::{self, IoSlice};
use std::path::Path;

use mainstay_disk::{Disk, Lock, MemDisk, RealDisk};
use testkit::TempDir;

fn over_both(body: impl Fn(&dyn Disk, &Path)) {
    body(&MemDisk::new(1), Path::new("/data"));
    let dir = TempDir::new("disk");
    body(&RealDisk, &dir.join("data"));
}

#[test]
fn files_are_written_read_renamed_and_removed() {
    over_both(|disk, root| {
        let dir = root.join("a/b");
        disk.create_dir_all(&dir).unwrap();
        let file = disk.create(&dir.join("one")).unwrap();
        assert!(disk.create(&dir.join("one")).is_err(), "create must not take an existing file");
        let _ = file.allocate(0, 8192).unwrap();
        assert_eq!(file.len().unwrap(), 8192);
        // More pieces than one call of the kernel accepts, some of them empty.
        let parts: Vec<Vec<u8>> = (0..3000u32).map(|i| vec![i as u8; (i % 3) as usize]).collect();
        let mut pieces: Vec<IoSlice> = parts.iter().map(|part| IoSlice::new(part)).collect();
        file.write_vectored_at(&mut pieces, 100).unwrap();
        file.sync_data().unwrap();
        let whole = parts.concat();
        let mut back = vec![0; whole.len()];
        file.read_exact_at(&mut back, 100).unwrap();
        assert_eq!(back, whole);
        assert_eq!(file.read_at(&mut [0; 10], 8190).unwrap(), 2);
        assert!(file.read_exact_at(&mut [0; 10], 8190).is_err());
        disk.rename(&dir.join("one"), &dir.join("two")).unwrap();
        disk.sync_dir(&dir).unwrap();
        assert_eq!(disk.list(&dir).unwrap(), ["two"]);
        disk.remove(&dir.join("two")).unwrap();
        assert!(!disk.exists(&dir.join("two")).unwrap());
        file.read_exact_at(&mut back, 100).unwrap();
        assert_eq!(back, whole, "an open file outlives its name");
    });
}

#[test]
fn next_data_never_skips_what_was_written() {
    over_both(|disk, root| {
        disk.create_dir_all(root).unwrap();
        let file = disk.create(&root.join("f")).unwrap();
        let _ = file.allocate(0, 1 << 20).unwrap();
        file.write_at(&[7], 600_000).unwrap();
        assert!(file.next_data(0).unwrap().unwrap() <= 600_000);
        assert_eq!(file.next_data(600_000).unwrap(), Some(600_000));
        assert_eq!(file.next_data(1 << 20).unwrap(), None);
    });
}

/// Constants of Linux: `O_ACCMODE`, `O_RDONLY` and `O_RDWR`.
const ACCESS_MODE: u32 = 3;
const READ_ONLY: u32 = 0;
const READ_WRITE: u32 = 2;

/// Returns the access modes of this process' open descriptors of a file.
fn access_modes(path: &Path) -> Vec<u32> {
    let mut modes = Vec::new();
    for descriptor in std::fs::read_dir("/proc/self/fd").unwrap() {
        let descriptor = descriptor.unwrap();
        // Another test may have closed the descriptor in the meantime.
        if std::fs::read_link(descriptor.path()).is_ok_and(|to| to == path) {
            let info = Path::new("/proc/self/fdinfo").join(descriptor.file_name());
            let info = std::fs::read_to_string(info).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            modes.push(u32::from_str_radix(flags.trim(), 8).unwrap() & ACCESS_MODE);
        }
    }
    modes
}

#[test]
fn a_file_is_locked_as_network_file_systems_want_it() {
    let dir = TempDir::new("disk-lock");
    let path = dir.join("db");
    std::fs::write(&path, "content").unwrap();
    let _lock = RealDisk.lock_read(&path).unwrap();
    assert_eq!(
        access_modes(&path),
        [READ_WRITE],
        "NFS answers EBADF to an exclusive lock by a descriptor for reading"
    );
    // A running program cannot be opened for writing, even by root.
    let program = std::env::current_exe().unwrap();
    assert!(std::fs::OpenOptions::new().write(true).open(&program).is_err());
    RealDisk.lock_read(&program).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"content");
}

#[test]
fn a_lock_is_held_once() {
    over_both(|disk, root| {
        disk.create_dir_all(root).unwrap();
        let lock = disk.lock(&root.join("lock")).unwrap();
        let error = disk.lock(&root.join("lock")).err().expect("taken");
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        drop(lock);
        disk.lock(&root.join("lock")).unwrap();
        assert!(disk.space(root).unwrap().total_bytes > 0);
    });
}

#[test]
fn a_lock_is_shared_by_those_who_only_read() {
    over_both(|disk, root| {
        disk.create_dir_all(root).unwrap();
        let path = root.join("db");
        let is_taken =
            |lock: io::Result<Lock>| lock.err().is_some_and(|e| e.kind() == io::ErrorKind::WouldBlock);
        assert_eq!(disk.lock_shared(&path).err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
        disk.create(&path).unwrap();
        let (one, other) = (disk.lock_shared(&path).unwrap(), disk.lock_shared(&path).unwrap());
        drop(one);
        assert!(is_taken(disk.lock_read(&path)) && is_taken(disk.lock(&path)));
        drop(other);
        let alone = disk.lock_read(&path).unwrap();
        assert!(is_taken(disk.lock_shared(&path)));
        drop(alone);
        disk.lock_shared(&path).unwrap();
    });
    let dir = TempDir::new("disk-shared");
    let path = dir.join("db");
    std::fs::write(&path, "content").unwrap();
    let _lock = RealDisk.lock_shared(&path).unwrap();
    assert_eq!(access_modes(&path), [READ_ONLY]);
}
