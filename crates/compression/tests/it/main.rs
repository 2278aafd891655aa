//! Tests of compression: values come back as they were, whatever else the bytes, lengths and files are fails.

use std::path::Path;
use std::sync::Arc;

use disk::{Disk, Fault, MemDisk, Operation};
use mainstay_compression::{
    Compressor, DICTIONARIES_MAX, DICTIONARY_BYTES_MAX, DecompressError, Dictionaries, NO_DICTIONARY,
    prefix_of,
};
use testkit::Random;
use testkit::pods::pod;

const DIR: &str = "/log";

fn disk() -> MemDisk {
    let disk = MemDisk::new(1);
    disk.create_dir_all(Path::new(DIR)).expect("a disk in memory");
    disk
}

fn open(disk: &MemDisk) -> Dictionaries {
    Dictionaries::open(Arc::new(disk.clone()), Path::new(DIR)).expect("the disk is good")
}

/// Returns a dictionary for pods, as zstd makes it.
fn trained() -> Vec<u8> {
    let samples: Vec<Vec<u8>> = (0..200).map(|number| pod(number, 1, 6000)).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    Compressor::train(&samples).expect("pods have much in common")
}

/// The only dictionary's file.
fn file(disk: &MemDisk) -> std::path::PathBuf {
    let names = disk.list(Path::new(DIR)).expect("lists");
    let name = names.iter().find(|name| name.ends_with(".dict")).expect("there is one");
    Path::new(DIR).join(name)
}

#[test]
fn pods_take_less_than_a_third_and_come_back_as_they_were() {
    let disk = disk();
    let dictionaries = open(&disk);
    let dictionary = dictionaries.store(b"/registry/pods/", &trained()).expect("writes").expect("is taken");
    let mut compressor = Compressor::new().expect("there is memory");
    let again = open(&disk);
    for bytes in [2_000, 10_000, 70_000] {
        let (mut raw, mut stored) = (0, 0);
        for number in 1000..1050 {
            let value = pod(number, 7, bytes);
            let (frame, id) = compressor.compress(Some(&dictionary), &value).expect("compresses");
            let mut out = vec![0; value.len()];
            again.decompress(id, frame, &mut out).expect("it is the same dictionary");
            assert_eq!(out, value);
            raw += value.len();
            stored += frame.len();
        }
        println!("pods of {bytes} bytes: {:.3}", stored as f64 / raw as f64);
        assert!(stored * 100 <= raw * 35, "{stored} of {raw}");
    }
    assert_eq!(again.of_prefix(prefix_of(b"/registry/pods/a/b")).map(|it| it.id()), Some(dictionary.id()));
    assert!(again.of_prefix(b"/registry/").is_none() && again.damaged().is_empty());
}

#[test]
fn a_frame_has_exactly_the_expected_length_or_fails() {
    let dictionaries = open(&disk());
    let mut compressor = Compressor::new().expect("there is memory");
    // A megabyte of zeros in some 60 bytes.
    let (bomb, id) = compressor.compress(None, &vec![0; 1 << 20]).expect("compresses");
    assert!(bomb.len() < 100 && id == NO_DICTIONARY);
    let mut out = vec![1; 4096];
    let failed = dictionaries.decompress(id, bomb, &mut out);
    assert!(matches!(failed, Err(DecompressError::Frame(_))), "{failed:?}");
    let mut out = vec![1; (1 << 20) + 1];
    assert_eq!(dictionaries.decompress(id, bomb, &mut out), Err(DecompressError::Short(1 << 20)));
    let mut out = vec![1; 1 << 20];
    dictionaries.decompress(id, bomb, &mut out).expect("the length is right");
    assert!(out.iter().all(|byte| *byte == 0));
}

#[test]
fn garbage_and_cut_frames_fail() {
    let disk = disk();
    let dictionaries = open(&disk);
    let dictionary = dictionaries.store(b"", &trained()).expect("writes").expect("is taken");
    let mut compressor = Compressor::new().expect("there is memory");
    let value = pod(1, 1, 3000);
    let frame = compressor.compress(Some(&dictionary), &value).expect("compresses").0.to_vec();
    let mut out = vec![0; value.len()];
    for cut in 0..frame.len() {
        assert!(dictionaries.decompress(dictionary.id(), &frame[..cut], &mut out).is_err(), "{cut}");
    }
    assert!(dictionaries.decompress(NO_DICTIONARY, &frame, &mut out).is_err(), "it needs its dictionary");
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let len = random.below(200) as usize;
        let garbage = random.bytes(len);
        assert!(dictionaries.decompress(dictionary.id(), &garbage, &mut out).is_err());
        // A flipped bit may go unnoticed here; the caller verifies a checksum. But nothing else may happen.
        let mut flipped = frame.clone();
        let at = random.below(frame.len() as u64) as usize;
        flipped[at] ^= 1 << random.below(8);
        let _ = dictionaries.decompress(dictionary.id(), &flipped, &mut out);
    }
    dictionaries.decompress(dictionary.id(), &frame, &mut out).expect("the context is still good");
    assert_eq!(out, value);
}

#[test]
fn a_damaged_or_missing_dictionary_is_named_and_others_are_good() {
    let disk = disk();
    let pods = open(&disk).store(b"/registry/pods/", &trained()).expect("writes").expect("is taken");
    let path = file(&disk);
    let value = pod(1, 1, 3000);
    let mut compressor = Compressor::new().expect("there is memory");
    let frame = compressor.compress(Some(&pods), &value).expect("compresses").0.to_vec();
    let plain = compressor.compress(None, &value).expect("compresses").0.to_vec();
    let mut out = vec![0; value.len()];
    let len = disk.contents(&path).expect("is there").len() as u64;
    for offset in (0..len).step_by(997).chain([8, 12, len - 1]) {
        disk.flip_bit(&path, offset, 3).expect("is there");
        let damaged = open(&disk);
        let error = damaged.decompress(pods.id(), &frame, &mut out).expect_err("it is damaged").to_string();
        assert!(error.contains(&path.display().to_string()), "{error}");
        assert_eq!((damaged.damaged().len(), damaged.count()), (1, 1));
        assert!(damaged.of_prefix(b"/registry/pods/").is_none(), "nothing more is compressed with it");
        damaged.decompress(NO_DICTIONARY, &plain, &mut out).expect("needs no dictionary");
        disk.flip_bit(&path, offset, 3).expect("is there");
    }
    open(&disk).decompress(pods.id(), &frame, &mut out).expect("it is whole again");
    // A dictionary with the name of another one is not used.
    let other = format!("{DIR}/{:08x}.dict", pods.id() ^ 1);
    disk.rename(&path, Path::new(&other)).expect("renames");
    let renamed = open(&disk);
    let error = renamed.decompress(pods.id(), &frame, &mut out).expect_err("it is missing").to_string();
    assert!(error.contains("does not exist"), "{error}");
    let error = renamed.decompress(pods.id() ^ 1, &frame, &mut out).expect_err("it is another").to_string();
    assert!(error.contains("another dictionary than its name says"), "{error}");
}

#[test]
fn a_dictionary_is_durable_before_it_is_used_whatever_fails() {
    let trained = trained();
    let (mut stored, mut failed) = (0, 0);
    for nth in 1..12 {
        for fault in [Fault::Once(5), Fault::PowerCut] {
            let disk = disk();
            disk.sync_dir(Path::new(DIR)).expect("the disk is good");
            let dictionaries = open(&disk);
            disk.fail_next(Operation::Change, nth, fault);
            let used = dictionaries.store(b"/registry/pods/", &trained).ok().flatten();
            assert_eq!(dictionaries.of_prefix(b"/registry/pods/").is_some(), used.is_some());
            let is_down = disk.is_down();
            if used.is_some() || is_down {
                // What was used is there after a power cut. What was not used is there as a whole or not at all.
                disk.crash();
                disk.heal();
                let again = open(&disk);
                assert_eq!(again.damaged(), []);
                let found = again.of_prefix(b"/registry/pods/").map(|it| it.id());
                assert!(used.as_ref().is_none_or(|used| found == Some(used.id())), "{nth}");
            } else {
                disk.heal();
                let again = dictionaries.store(b"/registry/pods/", &trained).expect("the disk is good");
                assert!(again.is_some(), "the next attempt succeeds");
            }
            stored += u32::from(used.is_some());
            failed += u32::from(used.is_none());
        }
    }
    assert!(stored > 0 && failed >= 8, "{stored} {failed}");
}

#[test]
fn the_number_and_size_of_dictionaries_are_limited() {
    let disk = disk();
    let dictionaries = open(&disk);
    let trained = trained();
    for nth in 0..DICTIONARIES_MAX {
        let prefix = format!("/registry/{nth}/");
        assert!(dictionaries.store(prefix.as_bytes(), &trained).expect("writes").is_some());
    }
    assert!(dictionaries.store(b"/one/more/", &trained).expect("writes nothing").is_none());
    assert_eq!((dictionaries.count(), open(&disk).count()), (DICTIONARIES_MAX, DICTIONARIES_MAX));
    let dictionaries = open(&self::disk());
    let large = vec![7; DICTIONARY_BYTES_MAX + 1];
    assert!(dictionaries.store(b"", &large).expect("writes nothing").is_none());
    // The same dictionary is not written twice.
    assert!(dictionaries.store(b"", &trained).expect("writes").is_some());
    assert!(dictionaries.store(b"", &trained).expect("writes nothing").is_none());
}

#[test]
fn few_or_different_samples_make_no_dictionary() {
    let samples: Vec<Vec<u8>> = (0..20).map(|number| pod(number, 1, 6000)).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    assert!(Compressor::train(&samples).is_none());
    let large: Vec<Vec<u8>> = (0..120).map(|number| pod(number, 1, 70_000)).collect();
    let large: Vec<&[u8]> = large.iter().map(Vec::as_slice).collect();
    assert!(Compressor::train(&large).is_some(), "large values have one, too");
    assert!(Compressor::train(&vec![b"tiny".as_slice(); 500]).is_none());
    assert!(Compressor::train(&vec![b"".as_slice(); 500]).is_none());
}

#[test]
fn prefixes_end_with_the_third_slash() {
    for (key, prefix) in [
        ("/registry/pods/default/web-0", "/registry/pods/"),
        ("/registry/example.com/widgets/x", "/registry/example.com/"),
        ("/registry/ranges", "/registry/"),
        ("//", "//"),
        ("/a", ""),
        ("", ""),
        ("a/b/c/d", "a/b/c/"),
    ] {
        assert_eq!(prefix_of(key.as_bytes()), prefix.as_bytes(), "{key}");
        assert_eq!(prefix_of(prefix.as_bytes()), prefix.as_bytes(), "{prefix}");
    }
    let long = format!("/{}/pods/x", "r".repeat(300));
    assert_eq!(prefix_of(long.as_bytes()), b"");
}
