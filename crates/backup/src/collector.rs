//! Reads the committed entries of the log and puts them into parts.

use crate::manifest::Position;
use crate::part::{BLOCK_BYTES, PartWriter};
use crate::queue::Queue;
use crate::source::{Fetched, Source};
use crate::trouble::{Fault, Trouble};

/// Bytes at which a part is closed before its time.
const PART_BYTES: usize = 4 << 20;
/// Distance in milliseconds by which the clock may be behind the newest time of the chain without a warning.
const BEHIND_MS: u64 = 5_000;

/// Reads entries, one step after the other.
pub struct Collector {
    cluster_id: u64,
    /// Index of the last entry that was read; `None` before the shipper has said where to start.
    read: Option<u64>,
    part: PartWriter,
    /// Position after the last entry of the part.
    at: Position,
    /// Time at which the part was begun, on the clock that never jumps, in milliseconds.
    began_ms: u64,
    /// Newest time that an entry was dated with.
    newest_ms: u64,
    /// Age in milliseconds at which a part is closed.
    age_ms_max: u64,
    /// Milliseconds by which the clock was behind the newest time at the last step.
    behind_ms: u64,
}

impl Collector {
    /// Returns a collector that waits for the shipper's word where to start. Parts are closed at this age.
    pub fn new(cluster_id: u64, age_ms_max: u64) -> Collector {
        Collector {
            cluster_id,
            read: None,
            part: PartWriter::new(cluster_id),
            at: Position::default(),
            began_ms: 0,
            newest_ms: 0,
            age_ms_max,
            behind_ms: 0,
        }
    }

    /// Returns by how many milliseconds the clock is behind the newest time of the chain, if that is worth a warning.
    /// Until the clock is there, all entries have the same time.
    pub fn behind_ms(&self) -> Option<u64> {
        (self.behind_ms > BEHIND_MS).then_some(self.behind_ms)
    }

    /// Reads what is new. `wall_ms` is the time since 1970, `now_ms` that of a clock that never jumps. If `closes` is
    /// true, the part is closed whatever its age.
    ///
    /// # Errors
    ///
    /// Returns an error if the log cannot be read, or there is no space for another part. The step can be repeated.
    pub fn step(
        &mut self,
        source: &dyn Source,
        queue: &Queue,
        wall_ms: u64,
        now_ms: u64,
        closes: bool,
    ) -> Result<(), Trouble> {
        if let Some(start) = queue.take_start() {
            self.part = PartWriter::new(self.cluster_id);
            self.read = Some(start.index);
            self.newest_ms = self.newest_ms.max(start.floor_ms);
        }
        let Some(mut read) = self.read else { return Ok(()) };
        let position = source.position();
        self.newest_ms = self.newest_ms.max(queue.floor_ms());
        self.behind_ms = self.newest_ms.saturating_sub(wall_ms);
        let time_ms = wall_ms.max(self.newest_ms);
        while read < position.index {
            if self.part.raw_bytes() >= PART_BYTES as u64 {
                self.close(queue)?;
            }
            let entries = match source.entries(read + 1, position.index, BLOCK_BYTES as u64)? {
                Fetched::Entries(entries) => entries,
                Fetched::Gone => {
                    self.part = PartWriter::new(self.cluster_id);
                    self.read = Some(position.index);
                    let reason = format!(
                        "the log no longer had the entries {} to {}, because they could not be shipped before",
                        read + 1,
                        position.index
                    );
                    queue.gap(reason, position.index);
                    return Ok(());
                }
            };
            let Some(last) = entries.last().map(|last| (last.index.0, last.term.0)) else {
                return Err(Trouble::new(Fault::Passing, "the log has returned no entries"));
            };
            let is_whole = last.0 == position.index;
            if self.part.is_empty() {
                self.began_ms = now_ms;
                self.at = Position { index: read, ..self.at };
            }
            let state_hash = if is_whole { source.state_hash(last.0) } else { None };
            self.part.push(time_ms, is_whole.then_some(position.revision), state_hash, &entries);
            self.at = match is_whole {
                true => Position { time_ms, ..position },
                // The revision is at least that of the sample before.
                false => Position { index: last.0, term: last.1, time_ms, ..self.at },
            };
            read = last.0;
            self.read = Some(read);
            self.newest_ms = time_ms;
        }
        let is_due = now_ms.saturating_sub(self.began_ms) >= self.age_ms_max;
        if !self.part.is_empty() && (closes || is_due) {
            self.close(queue)?;
        }
        Ok(())
    }

    fn close(&mut self, queue: &Queue) -> Result<(), Trouble> {
        let data = self.part.clone().finish();
        let pushed = queue.push(self.part.range().0.0, self.at, self.part.raw_bytes(), &data);
        match pushed {
            Ok(true) => {
                self.part = PartWriter::new(self.cluster_id);
                Ok(())
            }
            Ok(false) => Err(Trouble::new(
                Fault::Full,
                "the entries that wait for the store fill --backup-outbox-bytes; moments are lost for the backup if \
                 the log drops entries before the store answers again",
            )),
            Err(error) => Err(Trouble::new(
                Fault::Full,
                format!("cannot keep entries that wait for the store in the data directory: {error}"),
            )),
        }
    }
}
