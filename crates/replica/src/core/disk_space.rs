//! Groups the parts of the core that use and free disk space.

use std::time::Instant;

use log::Log;
use machine::Machine;
use numbers::{Index, MemberId};
use storage::nospace::Cause;

use super::alarms::NospaceAlarm;
use super::checkpoints::Checkpoints;
use super::compression::Compression;
use super::quota_warning::QuotaWarning;
use super::room::Room;
use super::segments::{Moves, Segments};
use super::space::Survey;
use super::tidying::Tidying;

/// The parts of the core that decide how this member's disk is used: they track the batches on their way to
/// the log, order checkpoints (which let segments be deleted), move values, raise the NOSPACE alarm, and log
/// warnings before the quota is reached.
pub(super) struct DiskSpace {
    /// Batches on their way to the log, and the free space on the disk.
    pub room: Room,
    /// This member's NOSPACE alarm.
    pub nospace: NospaceAlarm,
    /// Warnings that the data will soon reach its quota.
    pub quota_warning: QuotaWarning,
    /// Decides when checkpoints are due, and tracks the one in progress.
    pub checkpoints: Checkpoints,
    /// Segments that wait to be deleted.
    pub segments: Segments,
    /// Values that are being moved out of sparsely used segments.
    pub moves: Moves,
    /// Budget for emptying segments that hold only a little garbage.
    pub tidying: Tidying,
    /// Tracks which segments were given to the checkpointer to be compressed.
    pub compression: Compression,
}

impl DiskSpace {
    /// Returns these parts as they are when the member `own` starts. `cause` is the cause of the member's
    /// NOSPACE alarm, read from the note beside the log.
    pub fn new(log: &Log, own: MemberId, cause: Cause, checkpoints: Checkpoints, now: Instant) -> DiskSpace {
        DiskSpace {
            room: Room::new(now, log),
            nospace: NospaceAlarm::new(own.0, cause),
            quota_warning: QuotaWarning::default(),
            checkpoints,
            segments: Segments::default(),
            moves: Moves::default(),
            tidying: Tidying::new(now),
            compression: Compression::new(now),
        }
    }

    /// Returns a survey of the garbage in the log. Entries after `kept_behind` are kept for followers that
    /// lag behind.
    pub fn survey<'a>(&'a self, log: &'a Log, machine: &'a Machine, kept_behind: Index) -> Survey<'a> {
        Survey {
            log,
            machine,
            room: &self.room,
            segments: &self.segments,
            kept_behind,
            dead_bytes_min: self.checkpoints.thresholds().reclaim_dead_bytes,
        }
    }
}
