//! Compressed values: they are read as they were written, in every way; damage to them, or to their dictionary,
//! is reported and never a wrong value.

use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use disk::{Disk, Fault, MemDisk, Operation};
use mainstay_log::compression::{Compressor, Dictionary, NO_DICTIONARY};
use mainstay_log::{
    Batch, COMPRESSED_LEN_MAX, Compressed, ReadError, Replayed, Value, ValueId, Wanted, runs,
};
use testkit::pods::pod;

use crate::kit::{DIR, Opened, entries, open, segment_path};

/// Stores a dictionary for pods.
fn store_dictionary(log: &Opened) -> std::sync::Arc<Dictionary> {
    let samples: Vec<Vec<u8>> = (0..200).map(|number| pod(number, 1, 3000)).collect();
    let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
    let trained = Compressor::train(&samples).expect("pods have much in common");
    let values = log.log.values();
    let stored = values.dictionaries().store(b"/registry/pods/", &trained);
    stored.expect("the disk is good").expect("it is taken")
}

/// Returns a value of the log, compressed if a dictionary is given.
fn value_of(number: u64, data: &[u8], dictionary: Option<&Dictionary>) -> Value {
    let id = ValueId { main: number as i64, sub: 0 };
    let Some(dictionary) = dictionary else {
        return Value { id, data: Bytes::copy_from_slice(data), compressed: None };
    };
    let mut compressor = Compressor::new().expect("there is memory");
    let (frame, used) = compressor.compress(Some(dictionary), data).expect("compresses");
    let compressed = Compressed::new(data.len(), frame.len(), used).expect("it pays");
    Value { id, data: Bytes::copy_from_slice(frame), compressed: Some(compressed) }
}

/// A log whose values are compressed, every third one excepted, and the values with their locations.
fn written(disk: &MemDisk) -> (Opened, Vec<(Wanted, Vec<u8>)>) {
    let mut log = open(disk).expect("opens");
    let dictionary = store_dictionary(&log);
    let mut values = Vec::new();
    log.put(entries(1..=3, 1, 500));
    for number in 0..60 {
        let data = pod(number, 1, [2000, 5000, 20_000][number as usize % 3]);
        let with = (number % 3 != 1).then_some(&*dictionary);
        log.put(Batch { values: vec![value_of(number, &data, with)], ..Batch::default() });
        let (id, location) = log.told(|told| *told.values.last().expect("is synced"));
        assert_eq!((id.main, location.is_compressed()), (number as i64, with.is_some()));
        let wanted = Wanted { location, len: data.len() as u32, crc: crc32c::crc32c(&data) };
        assert!(location.stored_bytes(wanted.len) <= data.len() as u64);
        values.push((wanted, data));
    }
    (log, values)
}

/// Reads a value in every way.
fn assert_reads(log: &Opened, wanted: Wanted, data: &[u8]) {
    let values = log.log.values();
    assert_eq!(&values.read(wanted.location, wanted.len, wanted.crc).expect("is intact")[..], data);
    let mut out = BytesMut::from("before");
    let is_cached = values.read_cached_into(wanted.location, wanted.len, wanted.crc, &mut out);
    assert!(is_cached.expect("is intact") && &out[..6] == b"before" && &out[6..] == data);
    assert!(values.check(wanted, &mut [0; 512], true).expect("is intact"));
    let mut part = [0; 100];
    assert!(values.read_part(wanted, 777, &mut part, false).expect("is intact"));
    assert_eq!(part, data[777..877]);
    let mut ahead = vec![0; 64 << 10];
    let read = values.read_ahead(wanted.location, &mut ahead, true);
    let mut out = BytesMut::new();
    assert!(values.take_from(&wanted, &ahead[..read], &mut out) && out == data);
    let mut out = BytesMut::from("before");
    assert!(!values.take_from(&wanted, &ahead[..40], &mut out), "the bytes end too early");
    assert_eq!(&out[..], b"before");
}

#[test]
fn compressed_values_are_read_in_every_way_and_after_a_restart() {
    let disk = MemDisk::new(1);
    let (log, values) = written(&disk);
    values.iter().for_each(|(wanted, data)| assert_reads(&log, *wanted, data));
    let mut wanted: Vec<Wanted> = values.iter().map(|(wanted, _)| *wanted).collect();
    let lens = runs(&mut wanted);
    assert!(lens.iter().any(|len| *len > 2), "some values are read together");
    let (mut rest, mut read) = (wanted.as_slice(), 0);
    for len in lens {
        let (run, behind) = rest.split_at(len);
        rest = behind;
        log.log.values().read_run(run, |wanted, outcome| {
            let (_, data) = values.iter().find(|(other, _)| *other == wanted).expect("it is one of them");
            assert_eq!(&outcome.expect("is intact")[..], &data[..]);
            read += 1;
        });
    }
    assert_eq!(read, values.len());
    // Nothing is in memory.
    disk.set_cached_bytes_max(0);
    let (first, _) = &values[0];
    let mut out = BytesMut::new();
    let cached = log.log.values().read_cached_into(first.location, first.len, first.crc, &mut out);
    assert!(!cached.expect("is intact") && out.is_empty());
    disk.set_cached_bytes_max(usize::MAX);

    drop(log);
    let log = open(&disk).expect("opens");
    let mut replayed = log.replayed.iter().filter_map(|item| match item {
        Replayed::Value(id, location, len) => Some((id.main as usize, *location, *len)),
        _ => None,
    });
    for (number, (wanted, data)) in values.iter().enumerate() {
        assert_eq!(replayed.next(), Some((number, wanted.location, wanted.len)));
        assert_reads(&log, *wanted, data);
    }
    assert_eq!(replayed.next(), None);
}

#[test]
fn only_values_for_which_it_pays_are_stored_compressed() {
    assert!(Compressed::new(1000, 700, 1).is_some() && Compressed::new(1000, 735, 1).is_none());
    assert!(Compressed::new(0, 0, 1).is_none() && Compressed::new(20, 0, 1).is_none());
    let max = COMPRESSED_LEN_MAX as usize;
    assert!(Compressed::new(max, 10, 1).is_some() && Compressed::new(max + 1, 10, 1).is_none());
}

#[test]
fn damage_to_a_compressed_value_is_reported_with_its_place() {
    let disk = MemDisk::new(1);
    let (log, values) = written(&disk);
    let read = |wanted: &Wanted| log.log.values().read(wanted.location, wanted.len, wanted.crc);
    for (wanted, data) in values.iter().filter(|(wanted, _)| wanted.location.is_compressed()).take(2) {
        let offset = u64::from(wanted.location.offset());
        let path = segment_path(wanted.location.segment());
        let mut failures = 0;
        for at in (0..600).step_by(7) {
            disk.flip_bit(&path, offset + at, (at % 8) as u8).expect("is there");
            match read(wanted) {
                Err(ReadError::Damaged { path: named, offset: place, .. }) => {
                    assert_eq!((&named, place), (&path, offset));
                    failures += 1;
                }
                // The flipped bit is behind the record.
                Ok(value) => assert_eq!(&value[..], &data[..]),
                Err(error) => panic!("{error}"),
            }
            disk.flip_bit(&path, offset + at, (at % 8) as u8).expect("is there");
        }
        assert!(failures > 20, "{failures}");
    }
    // Locations that are wrong, such as those of a damaged index.
    let (one, _) = &values[0];
    let (other, _) = &values[2];
    let wrong = [
        Wanted { crc: one.crc ^ 1, ..*one },
        Wanted { len: one.len - 1, ..*one },
        Wanted { len: one.len + 1, ..*one },
        Wanted { len: u32::MAX, ..*one },
        Wanted { len: other.len, crc: other.crc, ..*one },
        Wanted { location: numbers::Location::from_bits(one.location.bits() | 7), len: one.len / 9, ..*one },
        Wanted { location: numbers::Location::from_bits(one.location.bits() + 8), ..*one },
        Wanted { location: numbers::Location::from_bits(one.location.bits() | 0xffff_fff8), ..*one },
        Wanted { location: numbers::Location::from_bits(one.location.bits() & !0xffff_fff8), ..*one },
        Wanted { location: numbers::Location::new(0, one.location.offset()), ..*one },
        // A record that is no value: the first of the segment.
        Wanted { location: numbers::Location::from_bits((1 << 63) | 4096 | 7), ..*one },
    ];
    for wanted in wrong {
        assert!(matches!(read(&wanted), Err(ReadError::Damaged { .. })), "{wanted:?}");
        assert!(log.log.values().check(wanted, &mut [0; 512], true).is_err(), "{wanted:?}");
    }
    assert!(read(one).is_ok());
}

/// Returns the path of the only dictionary.
fn dictionary_path(disk: &MemDisk) -> PathBuf {
    let names = disk.list(Path::new(DIR)).expect("lists");
    Path::new(DIR).join(names.iter().find(|name| name.ends_with(".dict")).expect("there is one"))
}

#[test]
fn without_its_dictionary_a_value_fails_with_the_name_of_the_file_and_others_are_read() {
    let disk = MemDisk::new(1);
    let (log, values) = written(&disk);
    drop(log);
    let path = dictionary_path(&disk);
    disk.flip_bit(&path, 1000, 2).expect("is there");
    for what in ["checksum of the dictionary does not match", "does not exist"] {
        let log = open(&disk).expect("a damaged dictionary is no reason to refuse the log");
        for (wanted, data) in &values {
            let read = log.log.values().read(wanted.location, wanted.len, wanted.crc);
            if wanted.location.is_compressed() {
                let error = read.expect_err("its dictionary cannot be used").to_string();
                assert!(error.contains(&path.display().to_string()) && error.contains(what), "{error}");
            } else {
                assert_eq!(&read.expect("it needs none")[..], &data[..]);
            }
        }
        drop(log);
        let _ = disk.remove(&path);
    }
}

#[test]
fn whatever_fails_and_whenever_power_is_lost_an_acknowledged_value_is_read_back() {
    let data: Vec<Vec<u8>> = (0..12).map(|number| pod(number, 1, 3000)).collect();
    let mut cuts = 0;
    for nth in 1.. {
        let disk = MemDisk::new(nth);
        let mut log = open(&disk).expect("opens");
        disk.fail_next(Operation::Change, nth, Fault::PowerCut);
        let samples: Vec<&[u8]> = data.iter().cycle().take(120).map(Vec::as_slice).collect();
        let trained = Compressor::train(&samples).expect("pods have much in common");
        let stored = log.log.values().dictionaries().store(b"/registry/pods/", &trained).ok().flatten();
        for (number, data) in data.iter().enumerate() {
            let value = value_of(number as u64, data, stored.as_deref());
            if log.log.append(Batch { values: vec![value], ..Batch::default() }).is_err() {
                break;
            }
            log.log.turn();
        }
        let acknowledged = log.told(|told| told.values.clone());
        let was_cut = disk.is_down();
        drop(log);
        disk.crash();
        let log = open(&disk).expect("opens");
        for (id, location) in acknowledged {
            let data = &data[id.main as usize];
            let read = log.log.values().read(location, data.len() as u32, crc32c::crc32c(data));
            assert_eq!(&read.unwrap_or_else(|error| panic!("{nth}: {error}"))[..], &data[..]);
        }
        if !was_cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 15, "{cuts}");
}

#[test]
fn a_value_without_a_dictionary_needs_none() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).expect("opens");
    let data = vec![7; COMPRESSED_LEN_MAX as usize];
    let mut compressor = Compressor::new().expect("there is memory");
    let (frame, used) = compressor.compress(None, &data).expect("compresses");
    assert_eq!(used, NO_DICTIONARY);
    let value = Value {
        id: ValueId { main: 1, sub: 0 },
        compressed: Compressed::new(data.len(), frame.len(), used),
        data: Bytes::copy_from_slice(frame),
    };
    log.put(Batch { values: vec![value], ..Batch::default() });
    let (_, location) = log.told(|told| told.values[0]);
    let wanted = Wanted { location, len: data.len() as u32, crc: crc32c::crc32c(&data) };
    assert_reads(&log, wanted, &data);
}

/// The bytes of a compressed value of version 2 of the format, recorded once. They never change.
#[test]
fn a_compressed_value_is_written_as_it_always_was() {
    let disk = MemDisk::new(1);
    let mut log = open(&disk).expect("opens");
    // The frame is fixed, and not made by zstd here, because another version of zstd may compress otherwise: 9
    // bytes of head, and a block of 64 times the same byte.
    let frame: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x40, 0x03, 0x02, 0x00, 0x61];
    let compressed = Compressed::new(64, frame.len(), NO_DICTIONARY).expect("it pays");
    let value = Value {
        id: ValueId { main: 0x0102, sub: 3 },
        data: Bytes::from_static(frame),
        compressed: Some(compressed),
    };
    log.put(Batch { values: vec![value], ..Batch::default() });
    let (_, location) = log.told(|told| told.values[0]);
    let at = location.offset() as usize;
    let record = &disk.contents(&segment_path(0)).expect("is there")[at..at + 64];
    let hex: Vec<String> = record.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex.join(" "), RECORD);
    let data = [b'a'; 64];
    let wanted = Wanted { location, len: 64, crc: crc32c::crc32c(&data) };
    assert_eq!(&log.log.values().read(wanted.location, 64, wanted.crc).expect("is intact")[..], data);
}

const RECORD: &str = "99 18 00 ed 1a 00 00 00 04 01 49 60 00 10 00 00 00 00 00 00 00 00 00 00 02 01 00 00 00 00 00 00 \
                      03 00 00 00 00 00 00 00 40 00 00 00 00 00 00 00 28 b5 2f fd 20 40 03 02 00 61 00 00 00 00 00 00";
