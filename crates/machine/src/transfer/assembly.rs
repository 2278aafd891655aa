//! Making a machine of what was there and what came.

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

/// Versions that are gathered before they are sorted into a run.
const BATCH_VERSIONS: usize = 256 << 10;

/// A version that came, without its value: that goes to the log, and only its place comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedVersion {
    key: Box<[u8]>,
    /// The version, with a value whose location is not known yet.
    entry: Entry<'static>,
}

impl ReceivedVersion {
    /// Notes everything of it but the value.
    ///
    /// # Errors
    ///
    /// When the value has more than 4 GiB.
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

    /// The length of its value; for an empty one no place is needed.
    pub fn value_len(&self) -> u32 {
        self.entry.value().len
    }
}

/// Gathers what a transfer brings, over as many streams as it takes, and makes a machine of it in the end. It holds
/// no values: a version takes some 20 bytes and its key, the last quarter of a million 80 and their keys.
///
/// For each stream: [`Assembly::begin`], then [`Assembly::push`] for each version in the order of its coming, once
/// its value has its place. When the stream breaks off, [`Assembly::pause`] says from where the next one may go on;
/// when it comes to its end, [`Assembly::finish`] makes the machine. It may live on any thread.
///
/// The machine has no versions that the sender's compact revision makes unreadable: what the receiver had of them,
/// and what the sender has not yet physically removed, is left out. Its first checkpoint must be a base run: the runs
/// before it know nothing of the values' new places.
pub struct Assembly {
    rules: Rules,
    base: Option<(AsOf, Head)>,
    /// Everything that is held, up to the last revision that is known to be whole.
    held: Held,
    /// Sorted by key; the blocks of each as in a checkpoint, without a head.
    runs: Vec<Run>,
    /// Not yet sorted.
    batch: Vec<Pending>,
    /// The keys of the batch, one behind the other.
    keys: Vec<u8>,
    /// The head of the present stream, and the versions of it pushed so far.
    stream: Option<Stream>,
}

struct Stream {
    from: Revision,
    compact_revision: Revision,
    /// See [`Held::hashed`].
    hashed: Option<(Index, u64)>,
    pushed: u64,
    /// The last version pushed, by main and sub revision.
    last: ChangeId,
}

struct Run {
    blocks: Vec<Vec<u8>>,
    /// Highest main revision of the stream.
    through: Revision,
    versions: u64,
}

struct Pending {
    key: (usize, usize),
    entry: Entry<'static>,
}

type Blocks = Box<dyn Iterator<Item = Result<Vec<u8>, Overtaken>>>;

impl Assembly {
    /// Begins with what the receiver has: its state and its head, both of one moment. Nothing of it is copied before
    /// the end. Without it only a stream of everything can come.
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

    /// A stream begins. One of everything makes whatever was there before it superfluous.
    ///
    /// # Errors
    ///
    /// When it does not follow on what is held. The assembly stays as it was.
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

    /// Takes the next version of the stream, with the place of its value.
    ///
    /// # Panics
    ///
    /// When no stream has begun, or versions are left out of their order.
    pub fn push(&mut self, version: &ReceivedVersion, location: Location) {
        let stream = self.stream.as_mut().expect("a version belongs to a stream");
        let mut entry = version.entry;
        let at = entry.id();
        assert!(at > stream.last, "versions are pushed in the order of their coming");
        // A revision stays in one piece, so that one that is not whole can be taken back.
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

    /// The stream has broken off: says what is held now. The last revision may have more versions than came, so
    /// those are taken back; of the revisions before it all is there.
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
        // The sender has compared what was there before with its own state, and its hash tells of both.
        self.held.hashed = stream.hashed;
        self.held
    }

    /// Makes the machine, which stands where the sender stood.
    ///
    /// # Errors
    ///
    /// When versions contradict each other: the sender's state, or what the receiver had, is damaged. When something
    /// of what the receiver had was removed meanwhile.
    ///
    /// # Panics
    ///
    /// When the end is not that of the present stream, or versions of it were not pushed.
    pub fn finish(mut self, end: TransferEnd) -> Result<Machine, RestoreError<Overtaken>> {
        let TransferEnd { head, entries } = end;
        let stream = self.stream.take().expect("a stream has begun");
        assert_eq!((stream.from, stream.pushed), (head.from, entries), "all that came was pushed");
        self.sort();
        let mut versions = 0;
        let mut readers: Vec<RunReader<Blocks, Vec<u8>>> = Vec::with_capacity(1 + self.runs.len());
        if let Some((state, base)) = self.base {
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

    /// Makes a run of the batch.
    fn sort(&mut self) {
        let Some(last) = self.batch.last() else { return };
        let through = last.entry.main;
        let keys = std::mem::take(&mut self.keys);
        let key = |pending: &Pending| keys.get(pending.key.0..pending.key.1).unwrap_or_default();
        let mut batch = std::mem::take(&mut self.batch);
        // Versions of one key are already in order, and stay so.
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
