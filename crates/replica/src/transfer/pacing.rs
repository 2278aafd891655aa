//! Slows down the sending of a state while the syncs of the sender's own log take longer than usual.
//!
//! A sender reads values from the disk to which its log writes, and its receiver may share that disk, or the
//! processors. So the sender compares the syncs of its log during the transfer with those before: while they take more
//! than twice as long, it pauses after each chunk, in steps up to [`PAUSE_MAX`]. Clients of a leader wait for its syncs,
//! so what slows them down is what these clients feel.

use std::time::Duration;

use log::Figures;

/// Longest pause after a chunk, which has 256 KiB at most. With it a transfer still sends more than 100 MB/s if the
/// chunk itself takes a millisecond.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// First pause, which is doubled while syncs stay slow; pauses below it are not made.
const PAUSE_MIN: Duration = Duration::from_micros(125);
/// Number of syncs whose mean is compared.
const SYNCS: u64 = 4;
/// Mean duration of a sync that is not slow on any disk, and the usual one if there were too few syncs before.
const USUAL_MIN: Duration = Duration::from_millis(1);
/// Number of syncs before the transfer from which the usual duration is known.
const USUAL_SYNCS: u64 = 32;

/// Number and total duration of the syncs of a log since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SyncTotals {
    pub count: u64,
    pub sum: Duration,
}

impl SyncTotals {
    pub fn of(figures: &Figures) -> SyncTotals {
        SyncTotals { count: figures.fsyncs.count(), sum: figures.fsyncs.sum() }
    }

    fn mean_since(self, before: SyncTotals) -> Duration {
        let count = u32::try_from(self.count.saturating_sub(before.count)).unwrap_or(u32::MAX).max(1);
        self.sum.saturating_sub(before.sum) / count
    }
}

/// Computes the pauses of one transfer.
#[derive(Debug)]
pub(super) struct Pacing {
    /// Mean duration of a sync before the transfer.
    usual: Duration,
    seen: SyncTotals,
    pause: Duration,
}

impl Pacing {
    /// Returns the pacing of a transfer that begins now.
    pub fn new(now: SyncTotals) -> Pacing {
        let mean = now.mean_since(SyncTotals::default());
        let usual = if now.count >= USUAL_SYNCS { mean.max(USUAL_MIN) } else { USUAL_MIN };
        Pacing { usual, seen: now, pause: Duration::ZERO }
    }

    /// Returns the pause to make after a chunk. A log that makes no syncs changes nothing, because nobody waits for it.
    pub fn after_chunk(&mut self, now: SyncTotals) -> Duration {
        if now.count >= self.seen.count + SYNCS {
            self.pause = match now.mean_since(self.seen) > self.usual * 2 {
                true => (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX),
                false => Some(self.pause / 2).filter(|pause| *pause >= PAUSE_MIN).unwrap_or_default(),
            };
            self.seen = now;
        }
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends this many chunks of 256 KiB, each in 0.75 ms, beside a log whose syncs take 1 ms alone, and longer by
    /// `slowed_by` at the full rate of the transfer. Returns the time of the transfer and the mean of the syncs.
    fn transfer(chunks: u32, slowed_by: u32, is_paced: bool) -> (Duration, Duration) {
        const CHUNK: Duration = Duration::from_micros(750);
        const SYNC: Duration = Duration::from_millis(1);
        let mut syncs = SyncTotals { count: 1000, sum: 1000 * SYNC };
        let begun = syncs;
        let mut pacing = Pacing::new(syncs);
        let (mut now, mut pause, mut next_sync) = (Duration::ZERO, Duration::ZERO, SYNC);
        for _ in 0..chunks {
            let took = CHUNK + pause;
            now += took;
            while next_sync <= now {
                let sync = SYNC
                    + SYNC * slowed_by * u32::try_from(CHUNK.as_micros()).expect("fits")
                        / u32::try_from(took.as_micros()).expect("fits");
                syncs = SyncTotals { count: syncs.count + 1, sum: syncs.sum + sync };
                next_sync += sync;
            }
            pause = if is_paced { pacing.after_chunk(syncs) } else { Duration::ZERO };
        }
        (now, syncs.mean_since(begun))
    }

    #[test]
    fn a_transfer_that_slows_syncs_down_pauses_and_another_does_not() {
        let (alone, slow) = transfer(4000, 6, false);
        let (paced, less_slow) = transfer(4000, 6, true);
        println!(
            "syncs of {slow:?} without pauses, {less_slow:?} with pauses; {alone:?} and {paced:?} in all"
        );
        assert!(less_slow < slow * 6 / 10, "{less_slow:?} is hardly less than {slow:?}");
        assert!(paced < alone * 5 / 2, "the transfer takes {paced:?} instead of {alone:?}");
        // Twice as slow is not slow, and a receiver with a disk of its own slows nothing down.
        for slowed_by in [0, 1] {
            assert_eq!(transfer(4000, slowed_by, true).0, alone);
        }
    }

    #[test]
    fn pauses_grow_while_syncs_are_slow_and_end_when_they_are_not() {
        let mut syncs = SyncTotals { count: 100, sum: Duration::from_millis(200) };
        let mut pacing = Pacing::new(syncs);
        let mut pause_after = |count: u64, ms: u64| {
            syncs = SyncTotals { count: syncs.count + count, sum: syncs.sum + Duration::from_millis(ms) };
            pacing.after_chunk(syncs).as_micros()
        };
        assert_eq!(pause_after(0, 0), 0);
        assert_eq!(pause_after(3, 300), 0, "too few syncs to compare");
        assert_eq!(pause_after(1, 100), 125);
        assert_eq!(pause_after(0, 0), 125, "nothing new is known");
        let slow: Vec<u128> = (0..4).map(|_| pause_after(4, 40)).collect();
        assert_eq!(slow, [250, 500, 1000, 1000]);
        let usual: Vec<u128> = (0..5).map(|_| pause_after(4, 8)).collect();
        assert_eq!(usual, [500, 250, 125, 0, 0]);
    }
}
