//! The built binary, run as a process and spoken to over its sockets: what it promises when it is killed, when its
//! disk fills up, when its files are damaged, and when what clients send makes no sense. And clusters of such processes.

mod answers;
mod client;
mod cluster;
mod cluster_basics;
mod cluster_crash;
mod cluster_disk;
mod cluster_lag;
mod cluster_leader;
mod cluster_load;
mod cluster_members;
mod cluster_partition;
mod cluster_rebuild;
mod cluster_refusals;
mod corrupt;
mod crash;
mod damage;
mod damage_table;
mod diagnosis;
mod history;
mod input;
mod member;
mod memory;
mod network;
mod raw;
mod refusals;
mod resources;
mod restart;
mod smoke;
mod space;
mod temp_dir;

use std::time::Duration;

/// No test takes longer, or something hangs.
const TEST_TIME_MAX: Duration = Duration::from_secs(170);

/// Runs the body of a test in a runtime of its own.
fn run<T>(body: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        tokio::time::timeout(TEST_TIME_MAX, body).await.expect("the test ends before its deadline")
    })
}

/// Asks again and again until there is an answer, for something that happens by itself.
async fn eventually<T>(what: &str, patience: Duration, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "within {patience:?} it did not happen that {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Chance that is the same every time.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Bytes that follow from a number, and differ from those of any other.
fn filler(number: u32, bytes: usize) -> bytes::Bytes {
    let mut dice = Dice::new(u64::from(number) + 1);
    std::iter::repeat_with(|| dice.below(1 << 48).to_le_bytes())
        .flat_map(|word| word[..6].to_vec())
        .take(bytes)
        .collect()
}
