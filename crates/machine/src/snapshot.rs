//! Encodes and decodes the whole state including values: the stream that `Maintenance.Snapshot` sends and
//! that a restore reads.
//!
//! ```text
//! stream  "MAINSNAP" | format (4 bytes, 1) | 0 (4 bytes) | blocks
//! block   length (4 bytes) | CRC-32C of the four bytes before and of the block (4 bytes) | the block
//! blocks  one head, any number with keys, one end: as in checkpoints (see `image`), with these differences:
//!         the head's `from` and `versions` are 0;
//!         an entry contains the length and the bytes of its value, instead of location and checksum;
//!         the end block is padded with zero bytes, so that the length of the stream is a multiple of 512
//! ```
//!
//! All fixed-size numbers are little-endian. The caller appends the SHA-256 of the stream, 32 bytes: `etcdctl
//! snapshot save` requires a file whose size is a multiple of 512 plus 32.

use bytes::{Bytes, BytesMut};
use mvcc::{Location, Value};
use numbers::{Index, LeaseId, Revision, Term};

use crate::alarm::Alarms;
use crate::as_of::AsOf;
use crate::auth::Auth;
use crate::codec::{Input, Malformed, put_u64};
use crate::frame::{BlockStream, FRAME_BYTES, append_block, seal};
use crate::image::{
    BLOCK_BYTES, END, Entry, EntryReader, EntryWriter, Head, Intake, KEYS, Payload, RestoreError, SavedHead,
    Walk,
};
use crate::key_value::{ReadError, Values, read_version};
use crate::lease::Leases;
use crate::machine::{Machine, Rules};
use crate::member::Members;

const MAGIC: [u8; 16] = *b"MAINSNAP\x01\0\0\0\0\0\0\0";
const ALIGN: u64 = 512;
/// Length in bytes of the SHA-256 that the caller appends.
const DIGEST_BYTES: usize = 32;

/// Maximum length of a chunk of a snapshot, in bytes.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Writer of a snapshot. It returns the snapshot chunk by chunk, on any thread.
pub struct SnapshotWriter {
    state: AsOf,
    head: Head,
    stage: Stage,
    walk: Walk,
    entries: u64,
    /// Bytes that are encoded and not returned yet.
    ready: Bytes,
    /// Number of bytes encoded so far, including those in `ready`.
    written: u64,
    total_max: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Keys,
    End,
    Done,
}

impl SnapshotWriter {
    /// Starts a snapshot.
    ///
    /// # Panics
    ///
    /// Panics if the state and the head are not from the same point in time.
    pub fn new(state: impl Into<AsOf>, head: Head) -> SnapshotWriter {
        let state = state.into();
        assert_eq!(
            (state.moment().revision(), state.moment().compact_revision()),
            (head.revision, head.compact_revision),
            "head and state are of one moment"
        );
        // An entry takes at most 58 bytes in addition to its key and its value, and `in_use_bytes` counts 64
        // bytes for it. All blocks of keys except the last one are full, so `blocks` is at least their
        // number. So `total_max` is an upper bound of the length of the stream.
        let blocks = head.in_use_bytes / BLOCK_BYTES as u64 + 2;
        let head_bytes = head.encode(Revision(0), 0).len() as u64;
        let total_max = MAGIC.len() as u64
            + head_bytes
            + head.in_use_bytes
            + (blocks + 2) * (FRAME_BYTES as u64 + 16)
            + 2 * ALIGN;
        SnapshotWriter {
            state,
            head,
            stage: Stage::Head,
            walk: Walk::base(),
            entries: 0,
            ready: Bytes::new(),
            written: 0,
            total_max,
        }
    }

    /// Returns an upper bound of the number of bytes that are still to be returned. The result is exact once
    /// the last block is encoded. Until then, it includes versions that compaction made unreadable and has
    /// not removed yet, although they are not sent.
    pub fn remaining_bytes_max(&self) -> u64 {
        let ready = self.ready.len() as u64;
        match self.stage {
            Stage::Done => ready,
            _ => self.total_max.saturating_sub(self.written) + ready,
        }
    }

    /// Returns the next chunk, of 1 to [`CHUNK_BYTES_MAX`] bytes; `None` after the last.
    ///
    /// # Errors
    ///
    /// Returns an error if a value cannot be read, or was removed after a compaction. The snapshot then
    /// cannot be finished.
    pub fn next_chunk(&mut self, values: &dyn Values) -> Result<Option<Bytes>, ReadError> {
        if self.ready.is_empty() {
            let block = match self.next_block(values)? {
                Some(block) => block,
                None => return Ok(None),
            };
            self.written += block.len() as u64;
            self.ready = Bytes::from(block);
        }
        let len = self.ready.len().min(CHUNK_BYTES_MAX);
        Ok(Some(self.ready.split_to(len)))
    }

    /// Returns the next block with its frame; `None` after the last.
    fn next_block(&mut self, values: &dyn Values) -> Result<Option<Vec<u8>>, ReadError> {
        match self.stage {
            Stage::Head => {
                self.stage = Stage::Keys;
                let mut out = MAGIC.to_vec();
                append_block(&self.head.encode(Revision(0), 0), &mut out);
                Ok(Some(out))
            }
            Stage::Keys => {
                let mut block = Vec::with_capacity(BLOCK_BYTES + (8 << 10));
                block.extend_from_slice(&[0; FRAME_BYTES]);
                block.push(KEYS);
                let mut writer = EntryWriter::default();
                let mut value = BytesMut::new();
                let mut failed = None;
                let entries = &mut self.entries;
                self.walk.go(&self.state.slice()?.snapshot(), |version| {
                    value.clear();
                    let read = match version.value_len() {
                        0 => Ok(()),
                        _ => read_version(version, values, &mut value),
                    };
                    let read = read.and_then(|()| match value.len() == version.value_len() as usize {
                        true => Ok(()),
                        false => Err(ReadError::Failed(format!(
                            "the value of revision {} has {} bytes, not {}",
                            version.main(),
                            value.len(),
                            version.value_len()
                        ))),
                    });
                    if let Err(error) = read {
                        failed = Some(error);
                        return false;
                    }
                    let entry = Entry { payload: Payload::Inline(&value), ..Entry::of(version) };
                    writer.put(version.key(), &entry, &mut block);
                    *entries += 1;
                    block.len() < BLOCK_BYTES
                });
                self.state.intact()?;
                if let Some(error) = failed {
                    return Err(error);
                }
                if self.walk.is_done() {
                    self.stage = Stage::End;
                }
                if block.len() == FRAME_BYTES + 1 {
                    return self.next_block(values);
                }
                seal(&mut block);
                Ok(Some(block))
            }
            Stage::End => {
                self.stage = Stage::Done;
                let mut block = vec![0; FRAME_BYTES];
                block.push(END);
                put_u64(&mut block, self.entries);
                let end = self.written + block.len() as u64;
                let padding = end.next_multiple_of(ALIGN) - end;
                block.resize(block.len() + padding as usize, 0);
                seal(&mut block);
                Ok(Some(block))
            }
            Stage::Done => Ok(None),
        }
    }
}

/// The state in a snapshot except keys and values.
#[derive(Debug)]
pub struct SnapshotHead {
    /// Current revision of the store.
    pub revision: Revision,
    /// Compact revision; -1 for none.
    pub compact_revision: Revision,
    /// Log index of the last applied entry.
    pub applied_index: Index,
    /// Raft term of the last applied entry.
    pub applied_term: Term,
    /// Rolling hash; see [`Machine::state_hash`].
    pub state_hash: Option<u64>,
    /// Leases without their keys. A key is attached to its lease when its versions are loaded.
    pub leases: Leases,
    /// All raised alarms.
    pub alarms: Alarms,
    /// Members of the cluster, and the cluster version.
    pub members: Members,
    /// Users, roles, and whether authentication is enabled.
    pub auth: Auth,
}

/// A version with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotVersion<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Main revision of the change.
    pub main: Revision,
    /// Sub-revision of the change.
    pub sub: u32,
    /// Revision that created the key; 0 for a deletion.
    pub create_revision: Revision,
    /// Number of puts since the creation; 0 for a deletion.
    pub version: i64,
    /// Id of the lease, or 0.
    pub lease: LeaseId,
    /// The value.
    pub value: &'a [u8],
}

impl SnapshotVersion<'static> {
    /// Returns the version that represents a raised revision, as `snapshot restore --bump-revision` writes it
    /// into an etcd database: a pair with an empty key and an empty value. etcd treats the pair as a put of
    /// the empty key, which no request can address, and so does Mainstay: HashKV covers the pair, and
    /// compaction keeps the newest such pair.
    ///
    /// The pair in the database contains no create revision and no number of puts. Both are derived from the
    /// revision, so that every member has the same state, whether it read the pair from a database or from a
    /// snapshot. A later pair has a higher revision, so its number of puts is higher, too, as required.
    pub fn bump(to: Revision) -> SnapshotVersion<'static> {
        SnapshotVersion {
            key: b"",
            main: to,
            sub: 0,
            create_revision: to,
            version: to.0,
            lease: LeaseId::NONE,
            value: b"",
        }
    }
}

/// Reads a snapshot and verifies its checksums. Versions are returned in ascending key order, and from old to
/// new for each key; [`restore`] checks that they are consistent.
pub struct SnapshotReader<I> {
    stream: BlockStream<I>,
    head: SnapshotHead,
    versions: u64,
    /// Position of the current block of keys in the stream: start of its next entry, and its end.
    block: (usize, usize),
    reader: EntryReader,
    entries: u64,
    done: bool,
    digest: Option<[u8; DIGEST_BYTES]>,
}

impl<I, B, E> SnapshotReader<I>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    /// Reads the head. The stream may be cut into chunks at any byte, and a SHA-256 of 32 bytes may follow
    /// it.
    ///
    /// # Errors
    ///
    /// Returns an error if a chunk cannot be read, or the stream is not a snapshot of a known format.
    pub fn open(chunks: I) -> Result<Self, RestoreError<E>> {
        let head = SnapshotHead {
            revision: Revision::FIRST,
            compact_revision: Revision::NEVER_COMPACTED,
            applied_index: Index(0),
            applied_term: Term(0),
            state_hash: None,
            leases: Leases::default(),
            alarms: Alarms::default(),
            members: Members::default(),
            auth: Auth::default(),
        };
        let mut reader = SnapshotReader {
            stream: BlockStream::new(chunks),
            head,
            versions: 0,
            block: (0, 0),
            reader: EntryReader::default(),
            entries: 0,
            done: false,
            digest: None,
        };
        let magic = reader.stream.take(MAGIC.len())?;
        if reader.stream.bytes(magic) != MAGIC {
            return Err(Malformed("this is not a snapshot that this version of the program can read").into());
        }
        let block = reader.stream.take_block()?;
        let saved = SavedHead::decode(reader.stream.bytes(block))?;
        if saved.from != Revision(0) {
            return Err(Malformed("a snapshot that lacks its beginning").into());
        }
        reader.versions = saved.versions;
        reader.head = SnapshotHead {
            revision: saved.revision,
            compact_revision: saved.compact_revision,
            applied_index: saved.applied_index,
            applied_term: saved.applied_term,
            state_hash: saved.state_hash,
            leases: saved.leases,
            alarms: saved.alarms,
            members: saved.members,
            auth: saved.auth,
        };
        Ok(reader)
    }

    /// Returns the state in the snapshot except keys and values.
    pub fn head(&self) -> &SnapshotHead {
        &self.head
    }

    /// Returns the head, so that the caller can change it before the restore, for example the members or the
    /// revision.
    pub fn head_mut(&mut self) -> &mut SnapshotHead {
        &mut self.head
    }

    /// Returns the SHA-256 after the stream, if there is one. It is known only after the last version was
    /// read. The reader does not verify it.
    pub fn digest(&self) -> Option<[u8; 32]> {
        self.digest
    }

    /// Returns the next version. Returns `None` after the last version, once the end of the snapshot was
    /// verified.
    ///
    /// # Errors
    ///
    /// Returns an error if a chunk cannot be read, or if something is missing, changed or left over.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<SnapshotVersion<'_>>, RestoreError<E>> {
        while self.block.0 == self.block.1 {
            if self.done {
                return Ok(None);
            }
            let (start, end) = self.stream.take_block()?;
            match self.stream.bytes((start, end)) {
                [KEYS, _, ..] => {
                    self.reader.restart();
                    self.block = (start + 1, end);
                }
                [END, rest @ ..] => {
                    let mut input = Input(rest);
                    if input.u64()? != self.entries {
                        return Err(Malformed("a snapshot with entries missing").into());
                    }
                    if input.0.len() as u64 >= ALIGN || input.0.iter().any(|&byte| byte != 0) {
                        return Err(Malformed("an end with invalid padding").into());
                    }
                    self.finish()?;
                }
                _ => return Err(Malformed("a block of an unknown kind").into()),
            }
        }
        let (start, end) = self.block;
        let mut input = Input(self.stream.bytes((start, end)));
        let entry = self.reader.next(&mut input, true)?;
        self.block.0 = end - input.0.len();
        self.entries += 1;
        if entry.main > self.head.revision {
            return Err(Malformed("a version outside the revisions of its snapshot").into());
        }
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

    /// Checks the length of the stream, and reads the digest if it exists.
    fn finish(&mut self) -> Result<(), RestoreError<E>> {
        if !self.stream.taken().is_multiple_of(ALIGN) {
            return Err(Malformed("a snapshot of an invalid length").into());
        }
        let rest = self.stream.take_rest(DIGEST_BYTES)?;
        if !rest.is_empty() {
            let digest = rest.try_into().map_err(|_| Malformed("data after the end of the snapshot"))?;
            self.digest = Some(digest);
        }
        self.done = true;
        Ok(())
    }
}

/// Restores a machine from a snapshot. `place` stores a value and returns its location; it is not called for
/// empty values. If the caller has raised the revision of the head, `bump` must be that revision; a [version
/// for it](SnapshotVersion::bump) is then added.
///
/// # Errors
///
/// Returns the errors of the reader and of `place`, or an error if the versions contradict each other.
pub fn restore<I, B, E>(
    rules: Rules,
    mut reader: SnapshotReader<I>,
    mut bump: Option<Revision>,
    mut place: impl FnMut(&[u8]) -> Result<Location, E>,
) -> Result<Machine, RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let head = &mut reader.head;
    let saved = SavedHead {
        is_in_blocks: false,
        from: Revision(0),
        revision: head.revision,
        compact_revision: head.compact_revision,
        applied_index: head.applied_index,
        applied_term: head.applied_term,
        versions: reader.versions,
        state_hash: head.state_hash,
        leases: std::mem::take(&mut head.leases),
        alarms: head.alarms.clone(),
        members: head.members.clone(),
        auth: head.auth.clone(),
    };
    let mut intake = Intake::new(saved, reader.versions);
    while let Some(version) = reader.next()? {
        // The version for the raised revision has the empty key, which is the lowest. So it is inserted after
        // the other versions of the empty key, and before all other keys.
        if !version.key.is_empty()
            && let Some(to) = bump.take()
        {
            intake.push(&loaded(&SnapshotVersion::bump(to), Value::default()))?;
        }
        let mut value = Value::default();
        if !version.value.is_empty() {
            value.len = u32::try_from(version.value.len()).map_err(|_| Malformed("a value over 32 bits"))?;
            value.crc = crc32c::crc32c(version.value);
            value.location = place(version.value).map_err(RestoreError::Read)?;
        }
        intake.push(&loaded(&version, value))?;
    }
    if let Some(to) = bump {
        intake.push(&loaded(&SnapshotVersion::bump(to), Value::default()))?;
    }
    intake.finish(rules)
}

fn loaded<'k>(version: &SnapshotVersion<'k>, value: Value) -> mvcc::LoadedVersion<'k> {
    mvcc::LoadedVersion {
        key: version.key,
        main: version.main,
        sub: version.sub,
        create_revision: version.create_revision,
        version: version.version,
        lease: version.lease,
        value,
    }
}
