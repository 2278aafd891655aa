//! Restores a machine from the runs of a checkpoint when a member starts.

use std::ops::Range;

use mvcc::{LoadError, LoadedVersion, Loader};
use numbers::{LeaseId, Revision};
use planted::Bug;

use crate::codec::{Input, Malformed};
use crate::image::{END, Entry, EntryReader, KEYS, LEASES, SavedHead};
use crate::lease::Leases;
use crate::machine::{Machine, Rules, SegmentUse, loaded_bytes};
use crate::state_hash::StateHash;

/// Reason why a checkpoint cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError<E> {
    /// A block could not be read.
    Read(E),
    /// A block is malformed.
    Malformed(Malformed),
    /// The versions contradict each other.
    Load(LoadError),
}

impl<E> From<Malformed> for RestoreError<E> {
    fn from(error: Malformed) -> Self {
        RestoreError::Malformed(error)
    }
}

impl<E> From<LoadError> for RestoreError<E> {
    fn from(error: LoadError) -> Self {
        RestoreError::Load(error)
    }
}

impl<E: std::fmt::Display> std::fmt::Display for RestoreError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RestoreError::Read(error) => error.fmt(f),
            RestoreError::Malformed(error) => error.fmt(f),
            RestoreError::Load(error) => write!(f, "malformed checkpoint: {error}"),
        }
    }
}

impl<E: std::fmt::Debug + std::fmt::Display> std::error::Error for RestoreError<E> {}

/// Restores a machine from the runs of a checkpoint: the base run first, then its delta runs in the order in
/// which they were written. Each run yields blocks as [`crate::image::RunWriter::next_block`] returned them.
///
/// # Errors
///
/// Returns an error if a block cannot be read, if something is missing, contradictory or left over, or if a
/// run does not continue the previous run.
pub fn restore<I, B, E>(rules: Rules, runs: Vec<I>) -> Result<Machine, RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let (mut reading, Building { mut intake }) = begin(runs)?;
    reading.each(&mut |key, entry| intake.push(&entry.loaded(key)).map(|()| true))?;
    intake.finish(rules)
}

/// Begins a restore in two halves for two threads: one half reads and decodes blocks, the other builds the
/// machine. The caller passes all versions from [`Reading::read`] to [`Building::take`], in the same order,
/// and then calls [`Building::finish`] if reading has succeeded. If both halves fail, the caller should
/// report the error of `Building`: it concerns earlier versions, so [`restore`] would have returned that one.
///
/// # Errors
///
/// Returns an error if the head of a run cannot be read or is invalid. The two halves return the other errors
/// of [`restore`].
pub fn begin<I, B, E>(runs: Vec<I>) -> Result<(Reading<I, B>, Building), RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let mut opened: Vec<RunReader<I, B>> = Vec::with_capacity(runs.len());
    let mut newest: Option<SavedHead> = None;
    let mut versions = 0u64;
    let last = runs.len().saturating_sub(1);
    for (at, mut blocks) in runs.into_iter().enumerate() {
        let block = blocks.next().ok_or(Malformed("a run without a head"))?.map_err(RestoreError::Read)?;
        // Each run has all leases of its time, of which those of the newest one count.
        let is_newest = at == last;
        let (mut head, leases) = SavedHead::decode_of_run(block.as_ref(), is_newest)?;
        drop(block);
        take_leases(&mut blocks, leases, is_newest.then_some(&mut head.leases))?;
        let follows = match &newest {
            None => head.from == Revision(0),
            Some(before) => {
                head.from == before.revision
                    && head.compact_revision >= before.compact_revision
                    && head.applied_index >= before.applied_index
                    && head.applied_term >= before.applied_term
            }
        };
        if !follows {
            return Err(Malformed("runs that do not follow on each other").into());
        }
        versions = versions.saturating_add(head.versions);
        opened.push(RunReader::new(blocks, head.from, head.revision));
        newest = Some(head);
    }
    let head = newest.ok_or(Malformed("a checkpoint without runs"))?;
    let reading = Reading { runs: opened, compacted: head.compact_revision };
    Ok((reading, Building { intake: Intake::new(head, versions) }))
}

/// Reads the blocks that contain this number of leases, and adds the leases to `into` if there is one.
fn take_leases<B: AsRef<[u8]>, E>(
    blocks: &mut impl Iterator<Item = Result<B, E>>,
    mut left: u64,
    mut into: Option<&mut Leases>,
) -> Result<(), RestoreError<E>> {
    while left > 0 {
        let block =
            blocks.next().ok_or(Malformed("a run with leases missing"))?.map_err(RestoreError::Read)?;
        let [LEASES, leases @ ..] = block.as_ref() else {
            return Err(Malformed("a run with leases missing").into());
        };
        let mut input = Input(leases);
        let count = match &mut into {
            Some(into) => into.decode_some(&mut input)?,
            None => input.u64()?,
        };
        if count == 0 || count > left {
            return Err(Malformed("a run with other leases than its head says").into());
        }
        left -= count;
    }
    Ok(())
}

/// A batch of versions is passed on once its keys have this total size in bytes, even if it contains few
/// versions.
const PIECE_KEY_BYTES: usize = 256 << 10;

/// Batch of versions on their way from [`Reading`] to [`Building`].
#[derive(Debug, Default)]
pub struct Versions {
    /// All keys concatenated, each key once.
    keys: Vec<u8>,
    /// Entries, each with the position of its key in `keys`.
    entries: Vec<(Range<usize>, Entry<'static>)>,
}

impl Versions {
    fn push(&mut self, key: &[u8], entry: &Entry<'static>) {
        let before = self.entries.last().map(|(place, _)| place.clone());
        let place = before.filter(|place| self.keys[place.clone()] == *key).unwrap_or_else(|| {
            let from = self.keys.len();
            self.keys.extend_from_slice(key);
            from..self.keys.len()
        });
        self.entries.push((place, *entry));
    }

    /// Returns the size of the key buffer in bytes.
    pub fn key_bytes(&self) -> usize {
        self.keys.capacity()
    }

    /// Removes all versions but keeps the memory. Frees a part of the key buffer if long keys made it large.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.keys.shrink_to(2 * PIECE_KEY_BYTES);
        self.entries.clear();
    }
}

/// The half of a restore that reads and decodes the blocks of all runs.
pub struct Reading<I, B> {
    runs: Vec<RunReader<I, B>>,
    compacted: Revision,
}

impl<I, B, E> Reading<I, B>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    /// Reads all runs to their ends. `exchange` receives batches of `versions_max` versions (fewer if the
    /// keys are long, and in the last batch), and returns an empty batch for reuse. If it returns `None`,
    /// reading stops early.
    ///
    /// # Errors
    ///
    /// Returns an error if a block cannot be read, or if something is missing, contradictory or left over.
    /// The versions before the error were passed to `exchange`.
    pub fn read(
        mut self,
        versions_max: usize,
        mut exchange: impl FnMut(Versions) -> Option<Versions>,
    ) -> Result<(), RestoreError<E>> {
        let mut versions = Some(Versions::default());
        let outcome = self.each(&mut |key, entry| {
            let Some(filling) = &mut versions else { return Ok(false) };
            filling.push(key, entry);
            if filling.entries.len() >= versions_max || filling.keys.len() >= PIECE_KEY_BYTES {
                versions = versions.take().and_then(&mut exchange);
            }
            Ok(versions.is_some())
        });
        versions.and_then(exchange);
        outcome
    }

    /// Calls `visit` with each key and version, until `visit` returns false.
    fn each(
        &mut self,
        visit: &mut impl FnMut(&[u8], &Entry<'static>) -> Result<bool, RestoreError<E>>,
    ) -> Result<(), RestoreError<E>> {
        match self.runs.as_mut_slice() {
            [base] => base.each(visit),
            runs => merge(runs, self.compacted, visit),
        }
    }
}

/// The half of a restore that builds the machine from the decoded versions.
pub struct Building {
    intake: Intake,
}

impl Building {
    /// Adds the next versions.
    ///
    /// # Errors
    ///
    /// Returns an error if the versions contradict each other or earlier ones.
    pub fn take<E>(&mut self, versions: &Versions) -> Result<(), RestoreError<E>> {
        for (place, entry) in &versions.entries {
            self.intake.push(&entry.loaded(&versions.keys[place.clone()]))?;
        }
        Ok(())
    }

    /// Returns the machine, after all versions were added.
    ///
    /// # Errors
    ///
    /// Returns an error if the versions contradict each other.
    pub fn finish<E>(self, rules: Rules) -> Result<Machine, RestoreError<E>> {
        self.intake.finish(rules)
    }
}

/// Sums up the machine's bytes in use and the live values of each segment during a restore. The counters of
/// the current segment are stored separately and written to the map when the segment changes. This saves
/// look-ups, because values of neighboring keys are often in the same segment.
#[derive(Default)]
struct Accounting {
    usage: std::collections::BTreeMap<u32, SegmentUse>,
    in_use_bytes: u64,
    segment: u32,
    open: SegmentUse,
}

impl Accounting {
    #[inline]
    fn add(&mut self, loaded: &LoadedVersion<'_>) {
        self.in_use_bytes += loaded_bytes(loaded.key, loaded.value.len);
        if loaded.value.len > 0 {
            if loaded.value.location.segment() != self.segment {
                self.close();
                self.segment = loaded.value.location.segment();
            }
            self.open.add(loaded.value);
        }
    }

    fn close(&mut self) {
        if self.open.values > 0 {
            let usage = self.usage.entry(self.segment).or_default();
            usage.values += self.open.values;
            usage.bytes += self.open.bytes;
            usage.raw_bytes += self.open.raw_bytes;
            self.open = SegmentUse::default();
        }
    }
}

/// Receives versions in ascending key order, and from old to new for each key.
pub(crate) struct Intake {
    head: SavedHead,
    loader: Loader,
    accounting: Accounting,
    /// Lease of the last version, and the key of that version if it has a lease. The key is attached to its
    /// lease only when the next key arrives, because only then it is known that the version is the newest of
    /// its key.
    lease: LeaseId,
    key: Vec<u8>,
}

impl Intake {
    pub fn new(head: SavedHead, versions: u64) -> Intake {
        Intake {
            loader: Loader::new(versions, head.revision),
            head,
            accounting: Accounting::default(),
            lease: LeaseId::NONE,
            key: Vec::new(),
        }
    }

    #[inline]
    pub fn push<E>(&mut self, loaded: &LoadedVersion<'_>) -> Result<(), RestoreError<E>> {
        if self.lease.is_some() && self.key != loaded.key {
            self.head.leases.reattach(&self.key, self.lease);
        }
        self.lease = loaded.lease;
        if self.lease.is_some() {
            self.key.clear();
            self.key.extend_from_slice(loaded.key);
        }
        self.loader.push(loaded)?;
        self.accounting.add(loaded);
        Ok(())
    }

    pub fn finish<E>(mut self, rules: Rules) -> Result<Machine, RestoreError<E>> {
        if self.lease.is_some() && !planted::is(Bug::LeaseKeyForgotten) {
            self.head.leases.reattach(&self.key, self.lease);
        }
        self.accounting.close();
        let compacted = if planted::is(Bug::CompactRevisionForgotten) {
            Revision::NEVER_COMPACTED
        } else {
            self.head.compact_revision
        };
        let store = self.loader.finish(self.head.revision, compacted)?;
        let mut machine = Machine::with_store(rules, store);
        machine.leases = self.head.leases;
        machine.alarms = self.head.alarms;
        machine.members = self.head.members;
        machine.auth = self.head.auth;
        machine.applied_index = self.head.applied_index;
        machine.applied_term = self.head.applied_term;
        machine.in_use_bytes = self.accounting.in_use_bytes;
        machine.usage = self.accounting.usage;
        // Deletions below the compact revision are possibly missing from the image. So a delta run, which
        // starts above `delta_from_min`, must not reach below the compact revision.
        machine.delta_from_min = (self.head.compact_revision - 1).max(Revision(0));
        machine.hash =
            StateHash::new(self.head.state_hash, machine.applied_index, machine.store.current_revision());
        Ok(machine)
    }
}

/// Merges several runs: visits the versions of each key from all runs, oldest run first, without the versions
/// that the newest compact revision made unreadable. Stops early if `visit` returns false.
pub(crate) fn merge<I, B, E>(
    runs: &mut [RunReader<I, B>],
    compacted: Revision,
    visit: &mut impl FnMut(&[u8], &Entry<'static>) -> Result<bool, RestoreError<E>>,
) -> Result<(), RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    for run in runs.iter_mut() {
        run.advance()?;
    }
    // Indexes of the runs that have entries left, sorted in descending order by current key and then by
    // index. The last run has the lowest key and, among runs with that key, is the oldest, so it is visited
    // next.
    let mut order: Vec<usize> = (0..runs.len()).filter(|&at| runs[at].entry.is_some()).collect();
    order.sort_by(|&a, &b| (runs[b].reader.key(), b).cmp(&(runs[a].reader.key(), a)));
    let mut history: Vec<Entry<'static>> = Vec::new();
    let mut key = Vec::new();
    // True if no other run has the current key of the next run.
    let mut is_alone = false;
    while let Some(&first) = order.last() {
        key.clear();
        key.extend_from_slice(runs[first].reader.key());
        history.clear();
        is_alone = is_alone
            || match order.as_slice() {
                [.., next, _] => runs[*next].reader.key() != key,
                _ => true,
            };
        if is_alone {
            // The common case: only one run has the key.
            runs[first].take_history(&mut history)?;
            // If the following key of the run is below the current keys of all other runs, the run is the
            // next one again, and again alone.
            is_alone = match order.as_slice() {
                _ if runs[first].entry.is_none() => false,
                [.., next, _] => runs[first].reader.key() < runs[*next].reader.key(),
                _ => true,
            };
            if !is_alone {
                order.pop();
                put_in_order(&mut order, runs, first);
            }
        } else {
            while let Some(at) = order.pop_if(|at| runs[*at].reader.key() == key) {
                runs[at].take_history(&mut history)?;
                put_in_order(&mut order, runs, at);
            }
        }
        // The newest version at or below the compact revision stays, unless it is a deletion below that
        // revision. A deletion exactly at the compact revision also stays if a put of the same revision
        // follows it.
        let below = history.iter().take_while(|entry| entry.main <= compacted).count();
        let kept = match history.get(..below) {
            Some([.., entry]) if entry.is_tombstone() && entry.main < compacted => below,
            Some([.., deletion, _]) if deletion.is_tombstone() && deletion.main == compacted => below - 2,
            Some([.., _]) if planted::is(Bug::CompactionDropsCurrent) => below,
            Some([.., _]) => below - 1,
            _ => 0,
        };
        for entry in history.iter().skip(kept) {
            if !visit(&key, entry)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Inserts a run into the sorted list of runs, unless it has no entries left.
fn put_in_order<I, B>(order: &mut Vec<usize>, runs: &[RunReader<I, B>], at: usize) {
    if runs[at].entry.is_some() {
        let next = (runs[at].reader.key(), at);
        let place = order.partition_point(|&other| (runs[other].reader.key(), other) > next);
        order.insert(place, at);
    }
}

/// Reader of the entries of one run.
pub(crate) struct RunReader<I, B> {
    blocks: I,
    /// Revisions of the versions in the run: above `from`, up to and including `through`.
    from: Revision,
    through: Revision,
    reader: EntryReader,
    /// Number of entries read so far.
    entries: u64,
    /// Current block; used by [`RunReader::advance`].
    block: Option<B>,
    /// Offset of the next entry in the current block.
    at: usize,
    /// Current entry.
    entry: Option<Entry<'static>>,
    /// True if the current entry has the same key as the entry before it.
    same_key: bool,
}

impl<I, B, E> RunReader<I, B>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    pub fn new(blocks: I, from: Revision, through: Revision) -> Self {
        let reader = EntryReader::default();
        RunReader {
            blocks,
            from,
            through,
            reader,
            entries: 0,
            block: None,
            at: 0,
            entry: None,
            same_key: false,
        }
    }

    /// Calls `visit` with each key and version in the order of the run, until `visit` returns false. No
    /// version is skipped, because a base run contains no version that its own compact revision made
    /// unreadable.
    fn each(
        &mut self,
        visit: &mut impl FnMut(&[u8], &Entry<'static>) -> Result<bool, RestoreError<E>>,
    ) -> Result<(), RestoreError<E>> {
        while let Some(block) = self.fetch()? {
            let mut input = Input(block.as_ref().get(1..).unwrap_or_default());
            while !input.is_empty() {
                let entry = self.take(&mut input)?;
                if !visit(self.reader.key(), &entry)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the next block of keys; `None` after the end block.
    fn fetch(&mut self) -> Result<Option<B>, RestoreError<E>> {
        let block =
            self.blocks.next().ok_or(Malformed("a run without an end"))?.map_err(RestoreError::Read)?;
        match block.as_ref() {
            [KEYS, _, ..] => {
                self.reader.restart();
                Ok(Some(block))
            }
            [END, count @ ..] => {
                let mut input = Input(count);
                if input.u64()? != self.entries || !input.is_empty() {
                    return Err(Malformed("a run with entries missing").into());
                }
                match self.blocks.next() {
                    None => Ok(None),
                    Some(Ok(_)) => Err(Malformed("a block behind the last").into()),
                    // A read beyond the end block is attempted, because only such a read reports damage at
                    // the end of the file.
                    Some(Err(error)) => Err(RestoreError::Read(error)),
                }
            }
            _ => Err(Malformed("a block of an unknown kind").into()),
        }
    }

    #[inline]
    fn take(&mut self, input: &mut Input<'_>) -> Result<Entry<'static>, Malformed> {
        let entry = self.reader.next(input, false)?;
        if entry.main <= self.from || entry.main > self.through {
            return Err(Malformed("a version outside the revisions of its run"));
        }
        self.entries += 1;
        // Rebuilt with an owned payload, the location of the value, so that the entry does not borrow from
        // the block.
        Ok(Entry { payload: crate::image::Payload::Place(entry.value()), ..entry })
    }

    /// Appends the current entry and all following entries of the same key to `history`.
    fn take_history(&mut self, history: &mut Vec<Entry<'static>>) -> Result<(), RestoreError<E>> {
        while let Some(entry) = self.entry {
            history.push(entry);
            self.advance()?;
            if !self.same_key {
                break;
            }
        }
        Ok(())
    }

    /// Moves to the next entry.
    fn advance(&mut self) -> Result<(), RestoreError<E>> {
        // At the start of a block, the reader of entries forgets the last key. So that key is kept in
        // `before`, to be compared with the first key of the next block.
        let mut before = None;
        loop {
            if let Some(block) = self.block.take() {
                let bytes = block.as_ref();
                if let Some(rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) {
                    let mut input = Input(rest);
                    let entry = self.take(&mut input)?;
                    self.at = bytes.len() - input.0.len();
                    self.entry = Some(entry);
                    self.same_key = match before {
                        Some(before) => self.reader.key() == before,
                        None => self.reader.same_key(),
                    };
                    self.block = Some(block);
                    return Ok(());
                }
            }
            before.get_or_insert_with(|| self.reader.key().to_vec());
            match self.fetch()? {
                Some(block) => (self.block, self.at) = (Some(block), 1),
                None => {
                    (self.entry, self.same_key) = (None, false);
                    return Ok(());
                }
            }
        }
    }
}
