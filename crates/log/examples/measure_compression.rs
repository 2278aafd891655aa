//! Measures what compression of values saves, and what reading a compressed value costs.
//!
//! `cargo run --profile proof -p mainstay-log --example measure_compression`

use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use disk::{Disk, RealDisk};
use mainstay_log::compression::Compressor;
use mainstay_log::{Batch, Compressed, Log, LogEvent, Options, Value, ValueId, Wanted};
use numbers::{ClusterId, Index, MemberId};
use testkit::TempDir;
use testkit::pods::pod;

const VALUES: u64 = 500;
const READS: usize = 40_000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = TempDir::new("measure-compression");
    let (tell, told) = channel();
    let on_event = Box::new(move |event| {
        if let LogEvent::Synced(synced) = event {
            synced.values.into_iter().for_each(|value| tell.send(value).expect("the example waits"));
        }
    });
    let options = Options { by_hand: true, ..Options::new(dir.path(), ClusterId(1), MemberId(1)) };
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let (mut log, _) = Log::open(options, disk, Index(1), &mut |_| {}, on_event)?;
    println!(
        "bytes of a value | stored in the log | of its size | compressing it, us | reading it raw, us | compressed, us"
    );
    for bytes in [1_000, 2_000, 10_000, 20_000, 70_000] {
        // A value of 1 KB is the beginning of a pod; smaller pods do not exist.
        let value = |number: u64| {
            let mut value = pod(number, 1, bytes);
            value.truncate(bytes);
            value
        };
        let samples: Vec<Vec<u8>> = (0..400).map(value).collect();
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        let trained = Compressor::train(&samples).ok_or("no dictionary")?;
        let values = log.values();
        let prefix = format!("/registry/pods-{bytes}/");
        let dictionary = values.dictionaries().store(prefix.as_bytes(), &trained)?.ok_or("no dictionary")?;
        let mut compressor = Compressor::new().ok_or("no memory")?;
        let (mut raw_bytes, mut stored_bytes, mut took_us) = (0, 0, 0.0);
        let (mut raw, mut compressed) = (Vec::new(), Vec::new());
        for number in 0..VALUES {
            let data = value(10_000 + number);
            let id = ValueId { main: number as i64, sub: 0 };
            let begun = Instant::now();
            let (frame, used) = compressor.compress(Some(&dictionary), &data).ok_or("no frame")?;
            let frame = Bytes::copy_from_slice(frame);
            took_us += begun.elapsed().as_secs_f64() * 1e6;
            let description = Compressed::new(data.len(), frame.len(), used).ok_or("does not pay")?;
            raw_bytes += data.len();
            stored_bytes += (48 + frame.len()).next_multiple_of(8);
            let (len, crc) = (data.len() as u32, crc32c::crc32c(&data));
            for value in [
                Value { id, data: frame, compressed: Some(description) },
                Value { id, data: data.into(), compressed: None },
            ] {
                let is_compressed = value.compressed.is_some();
                log.append(Batch { values: vec![value], ..Batch::default() })
                    .map_err(|why| why.to_string())?;
                log.turn();
                let (_, location) = told.recv()?;
                let list = if is_compressed { &mut compressed } else { &mut raw };
                list.push(Wanted { location, len, crc });
            }
        }
        let read_us = |list: &[Wanted]| -> Result<f64, Box<dyn Error>> {
            let mut out = BytesMut::with_capacity(bytes + 4096);
            let mut best = f64::MAX;
            for _ in 0..3 {
                let begun = Instant::now();
                for at in 0..READS / 4 {
                    let wanted = list[at * 7919 % list.len()];
                    out.clear();
                    if !values.read_cached_into(wanted.location, wanted.len, wanted.crc, &mut out)? {
                        values.read_into(wanted.location, wanted.len, wanted.crc, &mut out)?;
                    }
                    black_box(&out);
                }
                best = best.min(begun.elapsed().as_secs_f64() * 1e6 / (READS / 4) as f64);
            }
            Ok(best)
        };
        println!(
            "{:16} | {:17} | {:11.3} | {:18.1} | {:18.2} | {:14.2}",
            raw_bytes / VALUES as usize,
            stored_bytes / VALUES as usize,
            stored_bytes as f64 / raw_bytes as f64,
            took_us / VALUES as f64,
            read_us(&raw)?,
            read_us(&compressed)?,
        );
    }
    Ok(())
}
