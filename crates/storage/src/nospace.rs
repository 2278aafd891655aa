//! Reads and writes a small file beside the log that records the cause of this member's NOSPACE alarm. After
//! a restart, the member disarms the alarm itself, once there is space again, only if it knows that the disk
//! was the cause.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::Disk;

/// Name of the file in a member's directory.
pub const FILE_NAME: &str = "nospace";

/// Cause of this member's NOSPACE alarm. It is stored here because the alarm, which is replicated state, does
/// not contain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The alarm is not raised, or its cause is not known.
    Nothing,
    /// The disk has no space for more log entries.
    Disk,
    /// The data would have exceeded the space quota.
    Quota,
}

impl Cause {
    /// Returns the number that stands for the cause in a log entry that raises the alarm.
    pub fn in_entry(self) -> u32 {
        self as u32
    }

    /// Returns the cause for which this number stands in a log entry; `None` if the entry contains no cause,
    /// because an older release of Mainstay or a client created it.
    pub fn of_entry(number: u32) -> Option<Cause> {
        [Cause::Disk, Cause::Quota].into_iter().find(|cause| cause.in_entry() == number)
    }

    /// Returns the name of the cause that is shown to operators.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Nothing => "nothing",
            Cause::Disk => "disk",
            Cause::Quota => "quota",
        }
    }
}

const NOTE_MAGIC: [u8; 8] = *b"MNSTNSP\n";
const NOTE_VERSION: u32 = 1;
const NOTE_BYTES: usize = 20;

/// The file `<data-dir>/member/nospace`, which records the cause of the NOSPACE alarm. It is created while
/// the disk has space, and later overwritten in place, so that it can be written when the disk is full. If
/// the file is missing or damaged, the cause is unknown.
///
/// ```text
/// 0  magic    8   "MNSTNSP\n"
/// 8  version  4   1
/// 12 cause    4   0 nothing, 1 the disk, 2 the quota
/// 16 crc32c   4   of bytes 0..16
/// ```
#[derive(Clone)]
pub struct Note {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl Note {
    /// Opens the file in this directory, and creates it if it is missing and the disk has space for it.
    /// Returns the file, and the cause recorded in it; [`Cause::Nothing`] if none is recorded.
    pub fn open(disk: &Arc<dyn Disk>, member_dir: &Path) -> (Note, Cause) {
        let note = Note { disk: Arc::clone(disk), path: member_dir.join(FILE_NAME) };
        let cause = note.read();
        if cause.is_none() {
            // The error is ignored, because its only consequence is that an alarm that was raised for a full
            // disk is not cleared automatically after a restart, but stays until a client disarms it.
            let _ = note.make(member_dir);
        }
        (note, cause.unwrap_or(Cause::Nothing))
    }

    /// Records the cause of the alarm, durably.
    pub fn write(&self, cause: Cause) -> std::io::Result<()> {
        let file = self.disk.open(&self.path)?;
        file.write_at(&encode_note(cause), 0)?;
        file.sync_data()
    }

    fn read(&self) -> Option<Cause> {
        if !self.disk.exists(&self.path).ok()? {
            return None;
        }
        let mut bytes = [0; NOTE_BYTES + 1];
        let read = self.disk.open(&self.path).ok()?.read_at(&mut bytes, 0).ok()?;
        [Cause::Nothing, Cause::Disk, Cause::Quota]
            .into_iter()
            .find(|cause| bytes[..read] == encode_note(*cause))
    }

    fn make(&self, member_dir: &Path) -> std::io::Result<()> {
        if self.disk.exists(&self.path)? {
            self.disk.remove(&self.path)?;
        }
        let file = self.disk.create(&self.path)?;
        file.write_at(&encode_note(Cause::Nothing), 0)?;
        file.sync_all()?;
        self.disk.sync_dir(member_dir)
    }
}

fn encode_note(cause: Cause) -> [u8; NOTE_BYTES] {
    let mut bytes = [0; NOTE_BYTES];
    bytes[..8].copy_from_slice(&NOTE_MAGIC);
    bytes[8..12].copy_from_slice(&NOTE_VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(cause as u32).to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..16]);
    bytes[16..].copy_from_slice(&crc.to_le_bytes());
    bytes
}
