//! Prints what checkpoints cost: `cargo run --release -p mainstay-machine --example figures [keys]`.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::process::{Command as Child, Stdio};
use std::time::Instant;

use api::etcdserverpb::{InternalRaftRequest, PutRequest};
use bytes::{Bytes, BytesMut};
use mainstay_machine::image::{RunWriter, restore};
use mainstay_machine::{Command, Machine, ReadError, Rules, Values};
use mvcc::{Location, Value};
use prost::Message as _;

/// Puts read nothing.
struct Nothing;

impl Values for Nothing {
    fn read_into(&self, _: Value, _: &mut BytesMut) -> Result<(), ReadError> {
        Err(ReadError::Failed("there are no values here".to_owned()))
    }
}

/// Processor time of the process, in milliseconds, all threads, user and system apart.
fn cpu_ms() -> (u64, u64) {
    // Fields 14 and 15, in ticks of 10 ms; the name before them has no spaces here.
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

const RULES: Rules = Rules { lease_ttl_min: 2, learners_max: 1 };

fn restore_blocks(blocks: &[Vec<u8>]) -> Machine {
    let blocks = blocks.iter().map(|block| Ok::<_, Infallible>(block.as_slice()));
    restore(RULES, vec![blocks]).expect("restores")
}

/// A member that starts has to fault in all its memory first, so that is measured in a process of its own, which gets
/// the blocks through a pipe.
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

fn main() -> std::io::Result<()> {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("restore") {
        return child();
    }
    let keys: u64 = argument.and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let mut machine = Machine::new(RULES);
    let value = Bytes::from(vec![b'v'; 64]);
    measure("applying the puts", || {
        for n in 0..keys {
            // In random order, and random to look at: little is shared.
            let key = format!("{:016x}{:08x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15), n as u32);
            let put = PutRequest { key: key.into(), value: value.clone(), ..PutRequest::default() };
            let request = InternalRaftRequest { put: Some(put), ..InternalRaftRequest::default() };
            let data = Bytes::from(request.encode_to_vec());
            let at = n * 1200;
            let location = Location { segment: 1 + (at >> 26) as u32, offset: (at & ((1 << 26) - 1)) as u32 };
            let command = Command { index: n + 1, term: 1, data: &data, location };
            machine.apply(command, &Nothing, true).expect("a put applies");
        }
    });
    let (view, head) = (machine.store.publish(), machine.head());
    let blocks: Vec<Vec<u8>> = measure("writing a base run", || {
        let mut writer = RunWriter::new(view, head, 0);
        std::iter::from_fn(|| writer.next_block()).collect()
    });
    let bytes: usize = blocks.iter().map(Vec::len).sum();
    println!("{} blocks, {bytes} bytes, {:.1} a key of 24", blocks.len(), bytes as f64 / keys as f64);
    drop(machine);
    for _ in 0..3 {
        let back = measure("restoring it", || restore_blocks(&blocks));
        assert_eq!(back.store.stats().live_keys, keys);
    }
    restore_in_child(&blocks)
}
