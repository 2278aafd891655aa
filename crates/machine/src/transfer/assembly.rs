//! Builds a machine from the versions that the receiver of a transfer already had and those that it has
//! received.

use mvcc::{Location, Value};
use numbers::{ChangeId, Index, Revision};

use crate::as_of::{AsOf, Overtaken};
use crate::codec::{Malformed, put_u64};
use crate::image::{
    BLOCK_BYTES, END, Entry, EntryWriter, Head, Intake, KEYS, Payload, RestoreError, RunReader, RunWriter,
    SavedHead, merge,
};
use crate::machine::{Machine, Rules};
use crate::snapshot::SnapshotVersion;
use crate::transfer::{Held, TransferEnd, TransferHead};

/// Number of received versions that are collected before they are sorted into a run.
const BATCH_VERSIONS: usize = 256 << 10;

/// A received version without its value. The caller writes the value to the log, and passes back only its
/// location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedVersion {
    key: Box<[u8]>,
    /// The version without the location of its value.
    entry: Entry<'static>,
}

impl ReceivedVersion {
    /// Copies all parts of the version except the value.
    ///
    /// # Errors
    ///
    /// Returns an error if the value has more than 4 GiB.
    pub fn of(version: &SnapshotVersion<'_>) -> Result<ReceivedVersion, Malformed> {
        let mut value = Value::default();
        if !version.value.is_empty() {
            value.len = u32::try_from(version.value.len()).map_err(|_| Malformed("a value over 32 bits"))?;
            value.crc = crc32c::crc32c(version.value);
        }
        let entry = Entry {
            main: version.main,
            sub: version.sub,
            create_revision: version.create_revision,
            version: version.version,
            lease: version.lease,
            payload: Payload::Place(value),
        };
        Ok(ReceivedVersion { key: version.key.into(), entry })
    }

    /// Returns the length of the value in bytes; an empty value needs no location.
    pub fn value_len(&self) -> u32 {
        self.entry.value().len
    }
}

/// Collects the versions of a transfer, from as many streams as are needed, and builds a machine from them at
/// the end. It keeps no values in memory. A version takes about 20 bytes plus its key; only the last quarter
/// of a million versions, which are not sorted yet, take 80 bytes each plus their keys.
///
/// For each stream the caller calls [`Assembly::begin`], then [`Assembly::push`] for each version in the
/// received order, after its value is written to the log. If the stream is interrupted, [`Assembly::pause`]
/// returns the point at which the next stream may continue; at the end of a complete stream,
/// [`Assembly::finish`] builds the machine. An assembly may be used on any thread.
///
/// Versions that the sender's compact revision makes unreadable are left out of the machine. They may come
/// from the receiver's own state, or from the sender if it has not physically removed them yet. The first
/// checkpoint of the machine must be a base run: earlier runs do not contain the new locations of the values.
pub struct Assembly {
    rules: Rules,
    base: Option<(AsOf, Head)>,
    /// The versions that the receiver has, up to the last revision that is complete.
    held: Held,
    /// Runs of received versions, sorted by key. The blocks of a run are as in a checkpoint, without a head.
    runs: Vec<Run>,
    /// Received versions that are not sorted yet.
    batch: Vec<Pending>,
    /// Keys of the batch, concatenated.
    keys: Vec<u8>,
    /// Progress of the current stream; `None` between two streams.
    stream: Option<Stream>,
}

struct Stream {
    from: Revision,
    compact_revision: Revision,
    /// Log index of an entry, and the hash after it; see [`Held::hashed`].
    hashed: Option<(Index, u64)>,
    pushed: u64,
    /// Id of the last version that was pushed.
    last: ChangeId,
}

struct Run {
    blocks: Vec<Vec<u8>>,
    /// Highest main revision of the run.
    through: Revision,
    versions: u64,
}

struct Pending {
    key: (usize, usize),
    entry: Entry<'static>,
}

type Blocks = Box<dyn Iterator<Item = Result<Vec<u8>, Overtaken>>>;

impl Assembly {
    /// Creates an assembly whose base is the receiver's own state, with the head at the same point in time.
    /// The base is read only in [`Assembly::finish`]. Without a base only a full transfer is accepted.
    pub fn new(rules: Rules, base: Option<(AsOf, Head)>) -> Assembly {
        let nothing = Held {
            revision: Revision(0),
            compacted_min: Revision::NEVER_COMPACTED,
            compacted_max: Revision::NEVER_COMPACTED,
            hashed: None,
        };
        let held = base.as_ref().map_or(nothing, |(_, head)| head.held());
        Assembly { rules, base, held, runs: Vec::new(), batch: Vec::new(), keys: Vec::new(), stream: None }
    }

    /// Begins a stream. A full transfer discards the base and everything that was received before.
    ///
    /// # Errors
    ///
    /// Returns an error if the stream does not continue where the receiver stopped. The assembly is then
    /// unchanged.
    pub fn begin(&mut self, head: &TransferHead) -> Result<(), Malformed> {
        self.pause();
        if head.from == Revision(0) {
            *self = Assembly::new(self.rules, None);
            self.held.compacted_min = head.compact_revision;
            self.held.compacted_max = head.compact_revision;
        } else if head.from != self.held.revision
            || head.compact_revision < self.held.compacted_max
            || self.base.as_ref().is_some_and(|(_, base)| head.applied_index < base.applied_index)
        {
            return Err(Malformed("a transfer that does not follow on what is there"));
        }
        self.stream = Some(Stream {
            from: head.from,
            compact_revision: head.compact_revision,
            hashed: head.state_hash.map(|hash| (head.applied_index, hash)),
            pushed: 0,
            last: ChangeId::end_of(head.from),
        });
        Ok(())
    }

    /// Adds the next version of the stream, with the location of its value.
    ///
    /// # Panics
    ///
    /// Panics if no stream was begun, or if the versions are not in order.
    pub fn push(&mut self, version: &ReceivedVersion, location: Location) {
        let stream = self.stream.as_mut().expect("a version belongs to a stream");
        let mut entry = version.entry;
        let at = entry.id();
        assert!(at > stream.last, "versions are pushed in the order of their coming");
        // The batch is sorted only between two revisions. So all versions of the last revision stay in the
        // batch, from which `pause` can remove them if the revision is incomplete.
        if self.batch.len() >= BATCH_VERSIONS && entry.main > stream.last.main {
            self.sort();
        }
        let stream = self.stream.as_mut().expect("it was there before");
        stream.last = at;
        stream.pushed += 1;
        let mut value = entry.value();
        value.location = location;
        entry.payload = Payload::Place(if value.len > 0 { value } else { Value::default() });
        let start = self.keys.len();
        self.keys.extend_from_slice(&version.key);
        self.batch.push(Pending { key: (start, self.keys.len()), entry });
    }

    /// Ends an interrupted stream, and returns which versions the receiver has now. The last revision may be
    /// incomplete, so its versions are removed; all earlier revisions are complete.
    pub fn pause(&mut self) -> Held {
        let Some(stream) = self.stream.take() else { return self.held };
        if stream.pushed == 0 {
            return self.held;
        }
        let last = stream.last.main;
        while let Some(pending) = self.batch.pop_if(|pending| pending.entry.main == last) {
            self.keys.truncate(pending.key.0);
        }
        self.held.revision = self.held.revision.max(last - 1);
        self.held.compacted_max = stream.compact_revision;
        // The old hash is replaced, not combined with that of the stream: the sender's hash also covers the
        // versions that the receiver already had. A sender starts a partial transfer only after it has
        // checked that both states are equal up to the revision after which the transfer begins (`from`), see
        // [`Head::transfer_from`].
        self.held.hashed = stream.hashed;
        self.held
    }

    /// Builds the machine, with the state that the sender had at the moment of the transfer.
    ///
    /// # Errors
    ///
    /// Returns an error if versions contradict each other, because the sender's or the receiver's state is
    /// damaged, or if a version of the base was removed after a compaction.
    ///
    /// # Panics
    ///
    /// Panics if `end` is not the end of the current stream, or if some of its versions were not pushed.
    pub fn finish(mut self, end: TransferEnd) -> Result<Machine, RestoreError<Overtaken>> {
        let TransferEnd { head, entries } = end;
        let stream = self.stream.take().expect("a stream has begun");
        assert_eq!((stream.from, stream.pushed), (head.from, entries), "all that came was pushed");
        self.sort();
        let mut versions = 0;
        let mut readers: Vec<RunReader<Blocks, Vec<u8>>> = Vec::with_capacity(1 + self.runs.len());
        if let Some((state, mut base)) = self.base {
            // Values may have been compressed since the head was made. The blocks are read here only.
            base.compressed_values = true;
            versions += base.versions;
            let through = base.revision;
            let mut writer = RunWriter::new(state, base, Revision(0));
            let blocks = std::iter::from_fn(move || writer.next_block().transpose()).skip(1);
            readers.push(RunReader::new(Box::new(blocks), Revision(0), through));
        }
        for run in self.runs {
            versions += run.versions;
            readers.push(RunReader::new(Box::new(run.blocks.into_iter().map(Ok)), Revision(0), run.through));
        }
        let saved = SavedHead {
            is_in_blocks: false,
            from: Revision(0),
            revision: head.revision,
            compact_revision: head.compact_revision,
            applied_index: head.applied_index,
            applied_term: head.applied_term,
            versions,
            state_hash: head.state_hash,
            leases: head.leases,
            alarms: head.alarms,
            members: head.members,
            auth: head.auth,
        };
        let compacted = saved.compact_revision;
        let mut intake = Intake::new(saved, versions);
        merge(&mut readers, compacted, &mut |key, entry| intake.push(&entry.loaded(key)).map(|()| true))?;
        intake.finish(self.rules)
    }

    /// Sorts the batch into a run.
    fn sort(&mut self) {
        let Some(last) = self.batch.last() else { return };
        let through = last.entry.main;
        let keys = std::mem::take(&mut self.keys);
        let key = |pending: &Pending| keys.get(pending.key.0..pending.key.1).unwrap_or_default();
        let mut batch = std::mem::take(&mut self.batch);
        // The sort is stable, so the versions of one key stay in order.
        batch.sort_by(|a, b| key(a).cmp(key(b)));
        let mut run = Run { blocks: Vec::new(), through, versions: batch.len() as u64 };
        let (mut block, mut writer) = (vec![KEYS], EntryWriter::default());
        for pending in &batch {
            if block.len() >= BLOCK_BYTES {
                block.shrink_to_fit();
                run.blocks.push(std::mem::replace(&mut block, vec![KEYS]));
                writer = EntryWriter::default();
            }
            writer.put(key(pending), &pending.entry, &mut block);
        }
        run.blocks.push(block);
        let mut end = vec![END];
        put_u64(&mut end, batch.len() as u64);
        run.blocks.push(end);
        self.runs.push(run);
    }
}
