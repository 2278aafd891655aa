//! Measures the log on a real disk: `cargo run --release -p mainstay-log --example measure_log [directory]`.
//!
//! Prints entries per second and latency with 500 entries of 1 KiB in flight, the latency of a single entry,
//! and the speed of recovery.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use disk::RealDisk;
use mainstay_log::{Batch, Entry, Log, LogEvent, Options};
use numbers::{ClusterId, Index, MemberId, Term};

const ENTRY_BYTES: usize = 1024;
const IN_FLIGHT: u64 = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = base.join(format!("mainstay-measure-log-{}", std::process::id()));
    let options = Options::new(dir.join("member/log"), ClusterId(1), MemberId(1));
    let data = Bytes::from((0..ENTRY_BYTES).map(|i| (i * 7 % 251) as u8).collect::<Vec<u8>>());
    let outcome = measure(&options, &data);
    std::fs::remove_dir_all(&dir)?;
    outcome
}

fn measure(options: &Options, data: &Bytes) -> Result<(), Box<dyn std::error::Error>> {
    let (tell, told) = mpsc::channel();
    let on_event = Box::new(move |event| {
        // The receiver exists as long as the log, so sending cannot fail.
        let _ = tell.send(event);
    });
    let (mut log, _) = Log::open(options.clone(), Arc::new(RealDisk), Index(1), &mut |_| (), on_event)?;
    let entry = |index| Entry { term: Term(1), index, entry_type: 0, data: data.clone() };
    let synced = |wait: Duration| -> Result<Index, Box<dyn std::error::Error>> {
        loop {
            match told.recv_timeout(wait)? {
                LogEvent::Synced(synced) => return Ok(synced.last_index),
                LogEvent::SpaceChanged(_) => {}
                LogEvent::Failed(fatal) => return Err(fatal.into()),
            }
        }
    };
    let patience = Duration::from_secs(30);

    for round in ["fresh files", "again"] {
        let mut sent = log.entries().last_index();
        let mut done = sent;
        let total = sent + 200_000;
        let mut begun = std::collections::VecDeque::new();
        let mut waits = Vec::new();
        let bytes_before = log.figures().written_bytes() + log.figures().prepared_bytes();
        let start = Instant::now();
        while done < total {
            let room = (IN_FLIGHT - (sent - done)).min(total - sent);
            if room > 0 {
                let now = Instant::now();
                for index in sent.next().through(sent + room) {
                    log.append(Batch { entries: vec![entry(index)], ..Batch::default() })?;
                    begun.push_back(now);
                }
                sent += room;
            }
            let last = synced(patience)?;
            let now = Instant::now();
            waits.extend(begun.drain(..(last - done) as usize).map(|then| now - then));
            done = last;
        }
        let seconds = start.elapsed().as_secs_f64();
        let bytes = log.figures().written_bytes() + log.figures().prepared_bytes() - bytes_before;
        println!(
            "{IN_FLIGHT} in flight, {round}: {:.0} entries/s, p50 {:?}, p99 {:?}, max {:?}; {:.0} bytes per entry, {} waits",
            waits.len() as f64 / seconds,
            quantile(&mut waits, 0.5),
            quantile(&mut waits, 0.99),
            quantile(&mut waits, 1.0),
            bytes as f64 / waits.len() as f64,
            log.figures().waits(),
        );
        // The next round uses recycled files.
        for segment in
            log.segments().iter().filter(|segment| segment.sealed && round == "fresh files").take(2)
        {
            log.release(segment.seq).map_err(|error| format!("{error:?}"))?;
        }
    }

    let mut waits = Vec::new();
    let first = log.entries().last_index() + 1;
    for index in first.through(first + 1999) {
        let begun = Instant::now();
        log.append(Batch { entries: vec![entry(index)], ..Batch::default() })?;
        while synced(patience)? < index {}
        waits.push(begun.elapsed());
    }
    println!(
        "one alone: p50 {:?}, p99 {:?}, max {:?}",
        quantile(&mut waits, 0.5),
        quantile(&mut waits, 0.99),
        quantile(&mut waits, 1.0)
    );
    let figures = log.figures();
    println!(
        "{} syncs, {:?} each; {} writes, {:?} each",
        figures.fsyncs.count(),
        figures.fsyncs.sum() / figures.fsyncs.count().max(1) as u32,
        figures.writes.count(),
        figures.writes.sum() / figures.writes.count().max(1) as u32
    );
    drop(log);

    let begun = Instant::now();
    let mut bytes = 0;
    let (log, recovered) = Log::open(
        options.clone(),
        Arc::new(RealDisk),
        Index(1),
        &mut |item| {
            if let mainstay_log::Replayed::Entry(entry, _) = item {
                bytes += entry.data.len();
            }
        },
        Box::new(|_| ()),
    )?;
    let took = begun.elapsed();
    println!(
        "recovery: {} MB of entries in {took:?}, {:.0} MB/s",
        bytes / 1_000_000,
        recovered.scanned_bytes as f64 / 1e6 / took.as_secs_f64()
    );

    let entries = log.entries();
    let begun = Instant::now();
    let read = entries.read(recovered.last_index - 20_000, recovered.last_index, u64::MAX)?;
    println!("entries read back: {} in {:?}", read.len(), begun.elapsed());
    Ok(())
}

fn quantile(waits: &mut [Duration], q: f64) -> Duration {
    waits.sort_unstable();
    waits.get(((waits.len() - 1) as f64 * q) as usize).copied().unwrap_or_default()
}
