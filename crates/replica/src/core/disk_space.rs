//! The parts of the core that use and free disk space.

use std::time::Instant;

use log::Log;
use machine::Machine;
use numbers::{Index, MemberId};
use storage::nospace::Cause;

use super::alarms::NospaceAlarm;
use super::checkpoints::Checkpoints;
use super::quota_warning::QuotaWarning;
use super::room::Room;
use super::segments::{Moves, Segments};
use super::space::Survey;

/// The space that this member uses on its disk: batches on their way to the log, checkpoints, by which
/// segments become free, and the alarms of a shortage.
pub(super) struct DiskSpace {
    /// Batches on their way to the log, and the space that the disk has for more.
    pub room: Room,
    /// This member's NOSPACE alarm.
    pub nospace: NospaceAlarm,
    /// Warnings before the data reaches its quota.
    pub quota_warning: QuotaWarning,
    /// Checkpoints, due and in progress.
    pub checkpoints: Checkpoints,
    /// Segments that wait to be deleted.
    pub segments: Segments,
    /// Values that are being moved out of sparsely used segments.
    pub moves: Moves,
}

impl DiskSpace {
    /// Returns the state after a start of the member `own`, whose NOSPACE alarm, if it is raised, has this
    /// cause.
    pub fn new(log: &Log, own: MemberId, cause: Cause, checkpoints: Checkpoints, now: Instant) -> DiskSpace {
        DiskSpace {
            room: Room::new(now, log),
            nospace: NospaceAlarm::new(own.0, cause),
            quota_warning: QuotaWarning::default(),
            checkpoints,
            segments: Segments::default(),
            moves: Moves::default(),
        }
    }

    /// Returns a survey of the garbage in the log. Entries after `kept_behind` are kept for followers that lag
    /// behind.
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
