//! Prints the cost of checkpoints, of transfers, and of small puts with their hash: `cargo run --release -p
//! mainstay-machine --example measure_checkpoints [keys]`. With `puts` instead of a number, measures only
//! puts.

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::process::{Command as Child, Stdio};
use std::time::Instant;

use api::etcdserverpb::{InternalRaftRequest, PutRequest};
use bytes::{Bytes, BytesMut};
use mainstay_machine::image::{RunWriter, restore};
use mainstay_machine::transfer::{Assembly, ReceivedVersion, TransferReader, TransferWriter};
use mainstay_machine::{Command, Machine, ReadError, Rules, Values};
use mvcc::{Location, Value};
use numbers::{Index, Revision, Term};
use prost::Message as _;

/// A source that returns the same value for every location.
struct Same;

impl Values for Same {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        out.resize(out.len() + value.len as usize, b'v');
        Ok(())
    }
}

/// Returns the CPU time of all threads of the process in milliseconds: user time and system time.
fn cpu_ms() -> (u64, u64) {
    // Fields 14 and 15 are in ticks of 10 ms. The process name, which precedes them, contains no spaces.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = |at: usize| stat.split(' ').nth(at).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 10;
    (field(13), field(14))
}

fn measure<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (start, cpu) = (Instant::now(), cpu_ms());
    let result = work();
    let (elapsed, now) = (start.elapsed(), cpu_ms());
    println!(
        "{what}: {:.0} ms, CPU {} ms user and {} ms system",
        elapsed.as_secs_f64() * 1e3,
        now.0 - cpu.0,
        now.1 - cpu.1
    );
    result
}

const RULES: Rules = Rules { learners_max: 1 };

fn restore_blocks(blocks: &[Vec<u8>]) -> Machine {
    let blocks = blocks.iter().map(|block| Ok::<_, Infallible>(block.as_slice()));
    restore(RULES, vec![blocks]).expect("restores")
}

/// Measures the restore in a child process, which gets the blocks through a pipe, because a starting member
/// also has to fault in all its memory.
fn restore_in_child(blocks: &[Vec<u8>]) -> std::io::Result<()> {
    let mut child = Child::new(std::env::current_exe()?).arg("restore").stdin(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        for block in blocks {
            pipe.write_all(&(block.len() as u64).to_le_bytes())?;
            pipe.write_all(block)?;
        }
    }
    child.wait()?;
    Ok(())
}

fn child() -> std::io::Result<()> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let (mut blocks, mut rest) = (Vec::new(), bytes.as_slice());
    while let Some((len, behind)) = rest.split_first_chunk::<8>() {
        let (block, behind) = behind.split_at(u64::from_le_bytes(*len) as usize);
        blocks.push(block.to_vec());
        rest = behind;
    }
    measure("restoring it in a fresh process", || std::mem::ManuallyDrop::new(restore_blocks(&blocks)));
    Ok(())
}

/// Measures puts of few keys, so that the index costs little. The requests are built before the measurement.
fn hot_puts() {
    let requests: Vec<Bytes> = (0..1000)
        .map(|n| {
            let put = PutRequest {
                key: format!("/registry/some/key-{n:05}").into(),
                value: Bytes::from_static(&[b'v'; 64]),
                ..PutRequest::default()
            };
            let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
            Bytes::from(request.encode_to_vec())
        })
        .collect();
    for _ in 0..5 {
        let mut machine = Machine::new(RULES);
        let (start, count) = (Instant::now(), 500_000u64);
        for (n, data) in (1..=count).zip(requests.iter().cycle()) {
            let location = Location::new(1, n as u32);
            machine
                .apply(Command { index: Index(n), term: Term(1), data, location }, &Same, true)
                .expect("a put applies");
            if n % 1000 == 0 {
                let revision = machine.store.current_revision();
                machine.store.compact(revision).expect("the revision is there");
                while !machine.compact_step(1000) {}
                drop(machine.store.publish());
            }
        }
        let ns = start.elapsed().as_nanos() as f64 / count as f64;
        println!("{ns:.0} ns a put of a hot key, its share of a compaction included");
    }
}

/// Measures a transfer of the whole state, whose values are stored at once.
fn transfer(machine: &mut Machine) {
    let (view, head) = (machine.store.publish(), machine.head());
    let chunks: Vec<Bytes> = measure("writing a transfer", || {
        let mut writer = TransferWriter::new(view, head, Revision(0));
        std::iter::from_fn(|| writer.next_chunk(&Same).expect("values are there")).collect()
    });
    println!("{} bytes", chunks.iter().map(Bytes::len).sum::<usize>());
    let chunks = chunks.into_iter().map(Ok::<_, Infallible>);
    let mut reader = TransferReader::open(chunks).expect("opens");
    let mut assembly = Assembly::new(RULES, None);
    assembly.begin(reader.head()).expect("a whole one follows on nothing");
    measure("taking it in", || {
        while let Some(version) = reader.next().expect("reads") {
            let received = ReceivedVersion::of(&version).expect("values are short");
            assembly.push(&received, Location::new(1, 32));
        }
    });
    let back = measure("making the machine", || assembly.finish(reader.finish()).expect("it is sound"));
    assert_eq!(back.state_hash(), machine.state_hash());
}

fn main() -> std::io::Result<()> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("restore") {
        return child();
    }
    if argument.as_deref() == Some("puts") {
        hot_puts();
        return Ok(());
    }
    let keys: u64 = argument.and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let mut machine = Machine::new(RULES);
    let value = Bytes::from(vec![b'v'; 64]);
    measure("applying the puts", || {
        for n in 0..keys {
            // The keys are random and in random order, so few bytes are shared.
            let key = format!("{:016x}{:08x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15), n as u32);
            let put = PutRequest { key: key.into(), value: value.clone(), ..PutRequest::default() };
            let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
            let data = Bytes::from(request.encode_to_vec());
            let at = n * 1200;
            let location = Location::new(1 + (at >> 26) as u32, (at & ((1 << 26) - 1)) as u32);
            let command = Command { index: Index(n + 1), term: Term(1), data: &data, location };
            machine.apply(command, &Same, true).expect("a put applies");
        }
    });
    let (view, head) = (machine.store.publish(), machine.head());
    let blocks: Vec<Vec<u8>> = measure("writing a base run", || {
        let mut writer = RunWriter::new(view, head, Revision(0));
        std::iter::from_fn(|| writer.next_block().expect("a held view has everything")).collect()
    });
    let bytes: usize = blocks.iter().map(Vec::len).sum();
    println!("{} blocks, {bytes} bytes, {:.1} a key of 24", blocks.len(), bytes as f64 / keys as f64);
    transfer(&mut machine);
    drop(machine);
    for _ in 0..3 {
        let back = measure("restoring it", || restore_blocks(&blocks));
        assert_eq!(back.store.stats().live_keys, keys);
    }
    restore_in_child(&blocks)
}
