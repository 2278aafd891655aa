//! Transfers the state from one member to another: all of it, or only the versions after a revision that the
//! receiver has.
//!
//! ```text
//! stream  "MAINXFER" | format (4 bytes, 1 or 2) | 0 (4 bytes) | blocks
//! block   as in `frame`
//! blocks  one head, in format 2 any number with leases, any number with keys, one end: as in checkpoints (see
//!         `image`), with these differences:
//!         the head's `from` is the revision after which the stream starts, its `versions` is an upper bound;
//!         in format 1 the head contains all leases, in format 2 none;
//!         entries are in the order in which they were written, by main and sub-revision, not by key;
//!         an entry contains the length and the bytes of its value, instead of location and checksum
//! end     03 | entries in all key blocks | checksum over the frames of all blocks before (8 bytes)
//! ```
//!
//! All fixed-size numbers are little-endian.
//!
//! Format 2 is sent only to receivers that announce [`FORMAT`], and only if there are more than 4,096 leases: the
//! head of format 1 with ten million leases is one block of more than a hundred megabytes.
//!
//! A stream contains every version above `from` that physically exists, except the puts that the compact
//! revision made unreadable. So it contains all deletions that compaction has not removed yet. A receiver
//! that has the deleted keys needs these deletions. [`Head::can_follow`](crate::image::Head::can_follow)
//! checks that no deletion that the receiver needs is missing. Versions are sent in the order in which they
//! were written, so a receiver whose stream is interrupted has all versions up to some revision. The next
//! stream may start at that revision, at any later time and from any member.
//!
//! * [`TransferWriter`] sends.
//! * [`TransferReader`] reads and verifies; the caller stores the values.
//! * [`Assembly`] builds a machine from the versions that the receiver had and those that it received.
//! * [`Held`] describes the versions that a receiver has.

use bytes::{Bytes, BytesMut};
use numbers::{ChangeId, Index, LeaseId, Revision, Term};

use crate::alarm::Alarms;
use crate::as_of::AsOf;
use crate::auth::Auth;
use crate::codec::{Input, Malformed, put_u64};
use crate::frame::{BlockStream, FRAME_BYTES, append_block, chain, seal};
use crate::image::{
    BLOCK_BYTES, END, Entry, EntryReader, EntryWriter, Head, KEYS, LEASES, Payload, RestoreError, SavedHead,
};
use crate::key_value::{ReadError, Values, read_version};
use crate::lease::Leases;
use crate::member::Members;
use crate::snapshot::{CHUNK_BYTES_MAX, SnapshotVersion};

mod assembly;
mod held;

pub use assembly::{Assembly, ReceivedVersion};
pub use held::Held;

/// Newest format of a stream that this version of the program reads.
pub const FORMAT: u32 = 2;

/// Maximum number of leases in the head of a stream, if its receiver reads format 2.
const LEASES_IN_HEAD_MAX: usize = 4096;

const MAGIC: [u8; 16] = *b"MAINXFER\x01\0\0\0\0\0\0\0";
const MAGIC_LEASES_APART: [u8; 16] = *b"MAINXFER\x02\0\0\0\0\0\0\0";

/// Writer of a transfer. It returns the stream chunk by chunk, and can be used on any thread.
pub struct TransferWriter {
    state: AsOf,
    head: Head,
    /// The leases, if they are in blocks of their own; the head has none then.
    leases: Option<Leases>,
    from: Revision,
    stage: Stage,
    /// Id of the last version that was written.
    behind: ChangeId,
    entries: u64,
    checksum: u64,
    /// Bytes that are encoded and not returned yet.
    ready: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    /// Blocks of leases, of which the next one begins after this lease.
    Leases(Option<LeaseId>),
    Keys,
    End,
    Done,
}

impl TransferWriter {
    /// Begins a transfer of the versions above revision `from`; 0 sends everything. [`Head::transfer_from`]
    /// computes `from`.
    ///
    /// A partial transfer also contains deletions that can no longer be read, so its `state` must be read at
    /// a [moment of everything](mvcc::View::moment_of_everything), or be a view that is held.
    ///
    /// # Panics
    ///
    /// Panics if the state and the head are not from the same point in time, or if `from` is above the head's
    /// revision.
    pub fn new(state: impl Into<AsOf>, head: Head, from: Revision) -> TransferWriter {
        let state = state.into();
        assert_eq!(
            (state.moment().revision(), state.moment().compact_revision()),
            (head.revision, head.compact_revision),
            "head and state are of one moment"
        );
        assert!(
            (Revision(0)..=head.revision).contains(&from),
            "nothing can follow on {from} at {}",
            head.revision
        );
        TransferWriter {
            state,
            head,
            leases: None,
            from,
            stage: Stage::Head,
            behind: ChangeId::end_of(from),
            entries: 0,
            checksum: 0,
            ready: Bytes::new(),
        }
    }

    /// Returns the writer for a receiver that reads formats up to this one. Without this call the stream has
    /// format 1. If there are many leases, and the receiver reads format 2, they are in blocks of their own.
    pub fn with_format_up_to(mut self, format: u32) -> TransferWriter {
        if format >= FORMAT && self.stage == Stage::Head && self.head.leases.len() > LEASES_IN_HEAD_MAX {
            self.leases = Some(std::mem::take(&mut self.head.leases));
        }
        self
    }

    /// Returns the number of versions written so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Returns the next chunk, of 1 to [`CHUNK_BYTES_MAX`] bytes; `None` after the last.
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be read, or was removed after a compaction. The transfer then
    /// cannot be finished.
    pub fn next_chunk(&mut self, values: &dyn Values) -> Result<Option<Bytes>, ReadError> {
        if self.ready.is_empty() {
            self.ready = match self.stage {
                Stage::Head => {
                    let (magic, next) = match self.leases {
                        Some(_) => (&MAGIC_LEASES_APART, Stage::Leases(None)),
                        None => (&MAGIC, Stage::Keys),
                    };
                    self.stage = next;
                    let mut framed = Vec::new();
                    append_block(&self.head.encode(self.from, self.head.versions), &mut framed);
                    self.checksum = chain(self.checksum, &framed);
                    Bytes::from([magic, framed.as_slice()].concat())
                }
                Stage::Leases(behind) => match self.next_leases(behind) {
                    Some(block) => block,
                    None => {
                        (self.stage, self.leases) = (Stage::Keys, None);
                        return self.next_chunk(values);
                    }
                },
                Stage::Keys => match self.next_keys(values)? {
                    Some(block) => block,
                    None => self.end(),
                },
                Stage::End => self.end(),
                Stage::Done => return Ok(None),
            };
        }
        let len = self.ready.len().min(CHUNK_BYTES_MAX);
        Ok(Some(self.ready.split_to(len)))
    }

    /// Returns the next block of leases with its frame, which begins after this lease; `None` if none are left.
    fn next_leases(&mut self, behind: Option<LeaseId>) -> Option<Bytes> {
        let mut block = vec![0; FRAME_BYTES];
        block.push(LEASES);
        let last = self.leases.as_ref()?.encode_some(behind, BLOCK_BYTES, &mut block)?;
        self.stage = Stage::Leases(Some(last));
        seal(&mut block);
        self.checksum = chain(self.checksum, &block);
        Some(Bytes::from(block))
    }

    /// Returns the next block of keys with its frame; `None` if no versions are left.
    fn next_keys(&mut self, values: &dyn Values) -> Result<Option<Bytes>, ReadError> {
        let mut block = Vec::with_capacity(BLOCK_BYTES + (8 << 10));
        block.extend_from_slice(&[0; FRAME_BYTES]);
        block.push(KEYS);
        let mut writer = EntryWriter::default();
        let mut value = BytesMut::new();
        while block.len() < BLOCK_BYTES && self.stage == Stage::Keys {
            self.put_some(values, &mut writer, &mut value, &mut block)?;
        }
        if block.len() == FRAME_BYTES + 1 {
            return Ok(None);
        }
        seal(&mut block);
        self.checksum = chain(self.checksum, &block);
        Ok(Some(Bytes::from(block)))
    }

    /// Adds versions to a block until it is full or [`LOOKS_PER_SLICE`] versions were visited. The number of
    /// visited versions is limited because a compaction may have left millions of versions to skip, and a
    /// view is held during the call.
    fn put_some(
        &mut self,
        values: &dyn Values,
        writer: &mut EntryWriter,
        value: &mut BytesMut,
        block: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        let slice = self.state.slice()?;
        let snapshot = slice.snapshot();
        let mut versions = snapshot.written_after(self.behind);
        for _ in 0..LOOKS_PER_SLICE {
            if block.len() >= BLOCK_BYTES {
                break;
            }
            let Some(looked) = versions.look() else {
                self.stage = Stage::End;
                break;
            };
            let Some(version) = looked.version else {
                self.behind = looked.id;
                continue;
            };
            value.clear();
            if version.value_len() > 0 {
                read_version(version, values, value)?;
            }
            if value.len() != version.value_len() as usize {
                return Err(ReadError::Failed(format!(
                    "the value of revision {} has {} bytes, not {}",
                    version.main(),
                    value.len(),
                    version.value_len()
                )));
            }
            let entry = Entry { payload: Payload::Inline(value), ..Entry::of(version) };
            writer.put(version.key(), &entry, block);
            self.behind = looked.id;
            self.entries += 1;
        }
        self.state.intact()?;
        Ok(())
    }

    fn end(&mut self) -> Bytes {
        self.stage = Stage::Done;
        let mut block = vec![END];
        put_u64(&mut block, self.entries);
        block.extend_from_slice(&self.checksum.to_le_bytes());
        let mut framed = Vec::new();
        append_block(&block, &mut framed);
        Bytes::from(framed)
    }
}

/// Maximum number of versions that are visited before the view is dropped.
const LOOKS_PER_SLICE: usize = 16 << 10;

/// The state in a transfer except keys and values.
#[derive(Debug)]
pub struct TransferHead {
    /// Revision after which the transfer starts; 0 if it contains everything.
    pub from: Revision,
    /// Current revision of the sender.
    pub revision: Revision,
    /// Compact revision of the sender; -1 for none.
    pub compact_revision: Revision,
    /// Log index of the last entry that the sender applied.
    pub applied_index: Index,
    /// Raft term of the entry at [`Self::applied_index`].
    pub applied_term: Term,
    /// Maximum number of versions in the transfer.
    pub versions_max: u64,
    /// Rolling hash; see [`crate::Machine::state_hash`].
    pub state_hash: Option<u64>,
    /// Leases without their keys. A key is attached to its lease when its versions are loaded. While a transfer
    /// is being read, these are the leases that were read so far.
    pub leases: Leases,
    /// All raised alarms.
    pub alarms: Alarms,
    /// Members of the cluster, and the cluster version.
    pub members: Members,
    /// Users, roles, and whether authentication is enabled.
    pub auth: Auth,
}

/// A transfer that was received completely.
#[derive(Debug)]
pub struct TransferEnd {
    /// Head of the transfer.
    pub head: TransferHead,
    /// Number of received versions.
    pub entries: u64,
}

/// Reads a transfer and verifies its checksums. Versions are returned in the order in which they were
/// written.
pub struct TransferReader<I> {
    stream: BlockStream<I>,
    head: TransferHead,
    /// True while blocks of leases may follow: in format 2, before the first block of keys.
    takes_leases: bool,
    /// Position of the current block of keys in the stream: start of its next entry, and its end.
    block: (usize, usize),
    reader: EntryReader,
    /// Id of the last version that was read.
    last: ChangeId,
    entries: u64,
    done: bool,
}

impl<I, B, E> TransferReader<I>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    /// Reads the head. The stream may be cut into chunks at any byte.
    ///
    /// # Errors
    ///
    /// Returns an error if a chunk cannot be read, or the stream is not a transfer of a known format.
    pub fn open(chunks: I) -> Result<Self, RestoreError<E>> {
        let mut stream = BlockStream::new(chunks);
        let magic = stream.take(MAGIC.len())?;
        let takes_leases = match stream.bytes(magic) {
            magic if magic == MAGIC => false,
            magic if magic == MAGIC_LEASES_APART => true,
            _ => {
                return Err(Malformed("this is not a state that this version of the program can read").into());
            }
        };
        let block = stream.take_block()?;
        let saved = SavedHead::decode(stream.bytes(block))?;
        let head = TransferHead {
            from: saved.from,
            revision: saved.revision,
            compact_revision: saved.compact_revision,
            applied_index: saved.applied_index,
            applied_term: saved.applied_term,
            versions_max: saved.versions,
            state_hash: saved.state_hash,
            leases: saved.leases,
            alarms: saved.alarms,
            members: saved.members,
            auth: if planted::is(planted::Bug::SnapshotWithoutAuth) { Auth::default() } else { saved.auth },
        };
        let last = ChangeId::end_of(head.from);
        let reader = EntryReader::default();
        Ok(TransferReader {
            stream,
            head,
            takes_leases,
            block: (0, 0),
            reader,
            last,
            entries: 0,
            done: false,
        })
    }

    /// Returns the state in the transfer except keys and values.
    pub fn head(&self) -> &TransferHead {
        &self.head
    }

    /// Returns the head, so that the caller can change it before the restore, for example the members.
    pub fn head_mut(&mut self) -> &mut TransferHead {
        &mut self.head
    }

    /// Returns the next version. Returns `None` after the last version, once the end of the transfer was
    /// verified.
    ///
    /// # Errors
    ///
    /// Returns an error if a chunk cannot be read, or if something is missing, changed or left over. Versions
    /// that were returned before the error are valid.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<SnapshotVersion<'_>>, RestoreError<E>> {
        while self.block.0 == self.block.1 {
            if self.done {
                return Ok(None);
            }
            let (start, end) = self.stream.take_block()?;
            match self.stream.bytes((start, end)) {
                [LEASES, leases @ ..] if self.takes_leases => {
                    self.head.leases.decode_some(&mut Input(leases))?;
                }
                [KEYS, _, ..] => {
                    self.takes_leases = false;
                    self.reader.restart();
                    self.block = (start + 1, end);
                }
                [END, rest @ ..] => {
                    let mut input = Input(rest);
                    if input.u64()? != self.entries {
                        return Err(Malformed("a transfer with entries missing").into());
                    }
                    if input.0 != self.stream.checksum_before().to_le_bytes() {
                        return Err(Malformed("a transfer with blocks missing or out of order").into());
                    }
                    if !self.stream.take_rest(0)?.is_empty() {
                        return Err(Malformed("data after the end of the transfer").into());
                    }
                    self.done = true;
                }
                _ => return Err(Malformed("a block of an unknown kind").into()),
            }
        }
        let (start, end) = self.block;
        let mut input = Input(self.stream.bytes((start, end)));
        let entry = self.reader.next(&mut input, true)?;
        self.block.0 = end - input.0.len();
        let at = entry.id();
        if at <= self.last || entry.main > self.head.revision {
            return Err(Malformed("a version outside the revisions of its transfer").into());
        }
        self.last = at;
        self.entries += 1;
        let value = match entry.payload {
            Payload::Inline(value) => value,
            Payload::Place(_) => b"",
        };
        Ok(Some(SnapshotVersion {
            key: self.reader.key(),
            main: entry.main,
            sub: entry.sub,
            create_revision: entry.create_revision,
            version: entry.version,
            lease: entry.lease,
            value,
        }))
    }

    /// Returns the input for [`Assembly::finish`]. Must be called only after [`TransferReader::next`] has
    /// returned `None`.
    ///
    /// # Panics
    ///
    /// Panics if the transfer was not read to its end.
    pub fn finish(self) -> TransferEnd {
        assert!(self.done, "a transfer is read to its end");
        TransferEnd { head: self.head, entries: self.entries }
    }
}
