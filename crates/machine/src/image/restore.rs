//! Restores a machine from the runs of a checkpoint when a member starts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use mvcc::{Base, LoadError, LoadedVersion, Loader, Value};
use numbers::{BlockPlace, LeaseId, Revision};
use planted::Bug;

use crate::codec::{Input, Malformed};
use crate::image::blocks::decode_keys;
use crate::image::top::Totals;
use crate::image::{BaseTop, END, Entry, EntryReader, KEYS, LEASES, SETTLED, SavedHead};
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
    reading.each(&mut intake)?;
    intake.finish(rules)
}

/// The two halves of a restore.
pub type Halves<I, B, E> = (Reading<I, B, E>, Building);

/// The base run of a restore with a memory budget: only those of its blocks are read that cannot stay where they are.
pub struct BaseRun<B, E> {
    /// Blocks of the base.
    pub top: Arc<BaseTop>,
    /// The base from which the restored index reads blocks later.
    pub base: Arc<Base>,
    /// Reads the key block at a place.
    pub read: KeyBlockReader<B, E>,
}

/// Closure that reads the key block at a place.
pub type KeyBlockReader<B, E> = Box<dyn FnMut(BlockPlace) -> Result<B, E> + Send>;

/// Begins a restore in two halves for two threads: one half reads and decodes blocks, the other builds the
/// machine. The caller passes all versions from [`Reading::read`] to [`Building::take`], in the same order,
/// and then calls [`Building::finish`] if reading has succeeded. If both halves fail, the caller should
/// report the error of `Building`: it concerns earlier versions, so [`restore`] would have returned that one.
///
/// # Errors
///
/// Returns an error if the head of a run cannot be read or is invalid. The two halves return the other errors
/// of [`restore`].
pub fn begin<I, B, E>(runs: Vec<I>) -> Result<Halves<I, B, E>, RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let Heads { mut opened, head, versions } = Heads::read(runs)?;
    let reading = Reading { compacted: head.compact_revision, base: None, runs: std::mem::take(&mut opened) };
    Ok((reading, Building { intake: Intake::new(head, versions) }))
}

/// Begins a restore like [`begin`], but the settled versions of the base run stay in its blocks, except those in whose
/// range of keys a delta run has versions. Of the base run in `runs`, only the head and the leases are read.
///
/// # Errors
///
/// Returns the same errors as [`begin`], and an error if the top of the base belongs to another base run.
pub fn begin_in_blocks<I, B, E>(runs: Vec<I>, base: BaseRun<B, E>) -> Result<Halves<I, B, E>, RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let Heads { mut opened, head, versions } = Heads::read(runs)?;
    if opened.is_empty() {
        return Err(Malformed("a checkpoint without runs").into());
    }
    let first = opened.remove(0);
    let position = base.top.position;
    if !first.is_in_blocks
        || first.through != position.revision
        || head.compact_revision <= base.top.settled()
    {
        return Err(Malformed("a base run whose list of blocks is that of another").into());
    }
    let versions = versions.saturating_sub(base.top.settled_versions());
    let intake = Intake::new_in_blocks(head, versions, base.base, &base.top.totals);
    let reading = Reading {
        compacted: intake.head.compact_revision,
        base: Some(BaseBlocks { top: base.top, read: base.read }),
        runs: opened,
    };
    Ok((reading, Building { intake }))
}

/// The heads of all runs.
struct Heads<I, B> {
    /// The runs, of which the heads and the leases were read.
    opened: Vec<RunReader<I, B>>,
    /// Head of the newest run.
    head: SavedHead,
    /// Number of versions in all runs, as their heads say.
    versions: u64,
}

impl<I, B, E> Heads<I, B>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    fn read(runs: Vec<I>) -> Result<Heads<I, B>, RestoreError<E>> {
        let mut opened: Vec<RunReader<I, B>> = Vec::with_capacity(runs.len());
        let mut newest: Option<SavedHead> = None;
        let mut versions = 0u64;
        let last = runs.len().saturating_sub(1);
        for (at, mut blocks) in runs.into_iter().enumerate() {
            let block =
                blocks.next().ok_or(Malformed("a run without a head"))?.map_err(RestoreError::Read)?;
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
                        && !head.is_in_blocks
                }
            };
            if !follows {
                return Err(Malformed("runs that do not follow on each other").into());
            }
            versions = versions.saturating_add(head.versions);
            let reader = RunReader::new(blocks, head.from, head.revision);
            opened.push(RunReader { is_in_blocks: head.is_in_blocks, ..reader });
            newest = Some(head);
        }
        let head = newest.ok_or(Malformed("a checkpoint without runs"))?;
        Ok(Heads { opened, head, versions })
    }
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
    /// Numbers of blocks that stay where they are, each with the number of entries before it.
    blocks: Vec<(usize, u32)>,
    /// Versions of settled blocks that do not stay where they are: the length of the key, and the value.
    unsettled: Vec<(usize, Value)>,
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
        self.blocks.clear();
        self.unsettled.clear();
    }

    fn is_full(&self, versions_max: usize) -> bool {
        self.entries.len().max(self.blocks.len()).max(self.unsettled.len()) >= versions_max
            || self.keys.len() >= PIECE_KEY_BYTES
    }
}

/// Receiver of what a restore reads. Each function returns false if reading should stop early.
trait Sink<E> {
    /// Takes the next version.
    fn version(&mut self, key: &[u8], entry: &Entry<'static>) -> Result<bool, RestoreError<E>>;

    /// Takes a block of settled versions that stays where it is, and that follows all versions taken before.
    fn block(&mut self, number: u32) -> Result<bool, RestoreError<E>>;

    /// Takes note of a version of a settled block that does not stay where it is. The version follows by itself,
    /// unless a later one of its key made it unreadable.
    fn unsettled(&mut self, key: &[u8], entry: &Entry<'static>) -> Result<bool, RestoreError<E>>;
}

/// Passes batches of versions to the building half.
struct Batches<F> {
    /// The batch that is being filled; `None` once the other half wants no more.
    filling: Option<Versions>,
    versions_max: usize,
    exchange: F,
}

impl<F: FnMut(Versions) -> Option<Versions>> Batches<F> {
    #[inline]
    fn fill(&mut self, add: impl FnOnce(&mut Versions)) -> bool {
        let Some(filling) = &mut self.filling else { return false };
        add(filling);
        if filling.is_full(self.versions_max) {
            self.filling = self.filling.take().and_then(&mut self.exchange);
        }
        self.filling.is_some()
    }
}

impl<E, F: FnMut(Versions) -> Option<Versions>> Sink<E> for Batches<F> {
    #[inline]
    fn version(&mut self, key: &[u8], entry: &Entry<'static>) -> Result<bool, RestoreError<E>> {
        Ok(self.fill(|versions| versions.push(key, entry)))
    }

    fn block(&mut self, number: u32) -> Result<bool, RestoreError<E>> {
        Ok(self.fill(|versions| versions.blocks.push((versions.entries.len(), number))))
    }

    fn unsettled(&mut self, key: &[u8], entry: &Entry<'static>) -> Result<bool, RestoreError<E>> {
        Ok(self.fill(|versions| versions.unsettled.push((key.len(), entry.value()))))
    }
}

/// The blocks of a base run that is read block by block.
struct BaseBlocks<B, E> {
    top: Arc<BaseTop>,
    read: KeyBlockReader<B, E>,
}

/// The half of a restore that reads and decodes the blocks of all runs.
pub struct Reading<I, B, E> {
    /// All runs; only the delta runs if `base` is set.
    runs: Vec<RunReader<I, B>>,
    base: Option<BaseBlocks<B, E>>,
    compacted: Revision,
}

impl<I, B, E> Reading<I, B, E>
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
        exchange: impl FnMut(Versions) -> Option<Versions>,
    ) -> Result<(), RestoreError<E>> {
        let mut batches = Batches { filling: Some(Versions::default()), versions_max, exchange };
        let outcome = self.each(&mut batches);
        batches.filling.and_then(batches.exchange);
        outcome
    }

    /// Passes everything that the runs contain to `sink`, until that wants no more.
    fn each(&mut self, sink: &mut impl Sink<E>) -> Result<(), RestoreError<E>> {
        match (&mut self.base, self.runs.as_mut_slice()) {
            (Some(base), runs) => merge_blocks(base, runs, self.compacted, sink),
            (None, [base]) => base.each(&mut |key, entry| sink.version(key, entry)),
            (None, runs) => merge(runs, self.compacted, &mut |key, entry| sink.version(key, entry)),
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
        let mut blocks = versions.blocks.iter().peekable();
        for (at, (place, entry)) in versions.entries.iter().enumerate() {
            while let Some((_, number)) = blocks.next_if(|(before, _)| *before == at) {
                self.intake.push_block(*number)?;
            }
            self.intake.push(&entry.loaded(&versions.keys[place.clone()]))?;
        }
        blocks.try_for_each(|(_, number)| self.intake.push_block(*number))?;
        versions.unsettled.iter().try_for_each(|(key_len, value)| self.intake.unsettle(*key_len, *value))
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
#[derive(Debug, Default)]
pub(crate) struct Accounting {
    usage: BTreeMap<u32, SegmentUse>,
    in_use_bytes: u64,
    segment: u32,
    open: SegmentUse,
}

impl Accounting {
    /// Begins with the versions that these totals count.
    fn with(totals: &Totals) -> Accounting {
        let Totals { usage, in_use_bytes, .. } = totals;
        Accounting { usage: usage.clone(), in_use_bytes: *in_use_bytes, ..Accounting::default() }
    }

    /// Counts a version with a key of this length.
    #[inline]
    pub fn add(&mut self, key_len: usize, value: Value) {
        self.in_use_bytes += loaded_bytes(key_len, value.len);
        if value.len > 0 {
            if value.location.segment() != self.segment {
                self.close();
                self.segment = value.location.segment();
            }
            self.open.add(value);
        }
    }

    /// Takes a version out that the totals have counted. Returns false if they cannot have counted it.
    fn remove(&mut self, key_len: usize, value: Value) -> bool {
        let Some(left) = self.in_use_bytes.checked_sub(loaded_bytes(key_len, value.len)) else {
            return false;
        };
        self.in_use_bytes = left;
        if value.len == 0 {
            return true;
        }
        self.close();
        let Some(usage) = self.usage.get_mut(&value.location.segment()) else { return false };
        let bytes = value.location.stored_bytes(value.len);
        let raw_bytes = if value.location.is_compressed() { 0 } else { bytes };
        if usage.values == 0 || usage.bytes < bytes || usage.raw_bytes < raw_bytes {
            return false;
        }
        usage.remove(value);
        true
    }

    /// Returns the live values of each segment, and the bytes in use.
    pub fn finish(mut self) -> (BTreeMap<u32, SegmentUse>, u64) {
        self.close();
        self.usage.retain(|_, usage| usage.values > 0);
        (self.usage, self.in_use_bytes)
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

impl<E> Sink<E> for Intake {
    #[inline]
    fn version(&mut self, key: &[u8], entry: &Entry<'static>) -> Result<bool, RestoreError<E>> {
        self.push(&entry.loaded(key)).map(|()| true)
    }

    fn block(&mut self, number: u32) -> Result<bool, RestoreError<E>> {
        self.push_block(number).map(|()| true)
    }

    fn unsettled(&mut self, key: &[u8], entry: &Entry<'static>) -> Result<bool, RestoreError<E>> {
        self.unsettle(key.len(), entry.value()).map(|()| true)
    }
}

impl Intake {
    pub fn new(head: SavedHead, versions: u64) -> Intake {
        let loader = Loader::new(versions, head.revision);
        Intake { loader, head, accounting: Accounting::default(), lease: LeaseId::NONE, key: Vec::new() }
    }

    /// Prepares for the versions that are pushed, up to `versions`, beside the blocks of `base`. `totals` are those of
    /// all its settled blocks.
    fn new_in_blocks(head: SavedHead, versions: u64, base: Arc<Base>, totals: &Totals) -> Intake {
        let loader = Loader::with_base(versions, head.revision, base);
        Intake { loader, head, accounting: Accounting::with(totals), lease: LeaseId::NONE, key: Vec::new() }
    }

    /// Adds a block of settled versions that stays where it is.
    fn push_block<E>(&mut self, number: u32) -> Result<(), RestoreError<E>> {
        if self.lease.is_some() {
            self.head.leases.reattach(&self.key, self.lease);
            self.lease = LeaseId::NONE;
        }
        Ok(self.loader.push_block(number)?)
    }

    /// Takes a version of a settled block out of the totals, because the block does not stay where it is.
    fn unsettle<E>(&mut self, key_len: usize, value: Value) -> Result<(), RestoreError<E>> {
        match self.accounting.remove(key_len, value) {
            true => Ok(()),
            false => Err(Malformed("totals that do not count what the blocks contain").into()),
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
        self.accounting.add(loaded.key.len(), loaded.value);
        Ok(())
    }

    pub fn finish<E>(mut self, rules: Rules) -> Result<Machine, RestoreError<E>> {
        if self.lease.is_some() && !planted::is(Bug::LeaseKeyForgotten) {
            self.head.leases.reattach(&self.key, self.lease);
        }
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
        (machine.usage, machine.in_use_bytes) = self.accounting.finish();
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
    let mut merging = Merging::begin(runs)?;
    while merging.next(runs)? {
        if !visit_readable(&merging.key, &merging.history, compacted, visit)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Visits the versions of a key that a compact revision leaves readable. Returns false if `visit` has.
fn visit_readable<E>(
    key: &[u8],
    history: &[Entry<'static>],
    compacted: Revision,
    visit: &mut impl FnMut(&[u8], &Entry<'static>) -> Result<bool, RestoreError<E>>,
) -> Result<bool, RestoreError<E>> {
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
        if !visit(key, entry)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Progress of merging several runs by key.
struct Merging {
    /// Indexes of the runs that have entries left, sorted in descending order by current key and then by
    /// index. The last run has the lowest key and, among runs with that key, is the oldest, so it is visited
    /// next.
    order: Vec<usize>,
    /// True if no other run has the current key of the next run.
    is_alone: bool,
    /// The key that was reached last.
    key: Vec<u8>,
    /// Versions of that key in all runs, oldest run first.
    history: Vec<Entry<'static>>,
}

impl Merging {
    /// Moves all runs to their first entries.
    fn begin<I, B, E>(runs: &mut [RunReader<I, B>]) -> Result<Merging, RestoreError<E>>
    where
        I: Iterator<Item = Result<B, E>>,
        B: AsRef<[u8]>,
    {
        for run in runs.iter_mut() {
            run.advance()?;
        }
        let mut order: Vec<usize> = (0..runs.len()).filter(|&at| runs[at].entry.is_some()).collect();
        order.sort_by(|&a, &b| (runs[b].reader.key(), b).cmp(&(runs[a].reader.key(), a)));
        Ok(Merging { order, is_alone: false, key: Vec::new(), history: Vec::new() })
    }

    /// Moves to the next key. Returns false if no run has entries left.
    fn next<I, B, E>(&mut self, runs: &mut [RunReader<I, B>]) -> Result<bool, RestoreError<E>>
    where
        I: Iterator<Item = Result<B, E>>,
        B: AsRef<[u8]>,
    {
        let Merging { order, is_alone, key, history } = self;
        let Some(&first) = order.last() else { return Ok(false) };
        key.clear();
        key.extend_from_slice(runs[first].reader.key());
        history.clear();
        *is_alone = *is_alone
            || match order.as_slice() {
                [.., next, _] => runs[*next].reader.key() != key,
                _ => true,
            };
        if *is_alone {
            // The common case: only one run has the key.
            runs[first].take_history(history)?;
            // If the following key of the run is below the current keys of all other runs, the run is the
            // next one again, and again alone.
            *is_alone = match order.as_slice() {
                _ if runs[first].entry.is_none() => false,
                [.., next, _] => runs[first].reader.key() < runs[*next].reader.key(),
                _ => true,
            };
            if !*is_alone {
                order.pop();
                put_in_order(order, runs, first);
            }
        } else {
            while let Some(at) = order.pop_if(|at| runs[*at].reader.key() == key) {
                runs[at].take_history(history)?;
                put_in_order(order, runs, at);
            }
        }
        Ok(true)
    }
}

/// Merges the key blocks of a base with delta runs, like [`merge`]. A block of settled versions stays where it is if no
/// delta run has a version in its range of keys, which reaches to the first key of the next block.
fn merge_blocks<I, B, E>(
    base: &mut BaseBlocks<B, E>,
    runs: &mut [RunReader<I, B>],
    compacted: Revision,
    sink: &mut impl Sink<E>,
) -> Result<(), RestoreError<E>>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
{
    let deltas = Merging::begin(runs)?;
    let mut merging = MergingBlocks { runs, deltas, is_at_key: false, compacted, sink, goes_on: true };
    merging.is_at_key = merging.deltas.next(merging.runs)?;
    let (top, settled) = (Arc::clone(&base.top), base.top.settled());
    // Versions of one key in the base; in unsettled blocks they may continue in the next block.
    let (mut key, mut history) = (Vec::new(), Vec::new());
    for number in 0..top.key_blocks() {
        let (Some(block), Some(place)) = (top.key_block(number), top.key_place(number)) else { break };
        if key.as_slice() > block.first_key {
            return Err(Malformed("blocks that are not in order").into());
        }
        if key != block.first_key {
            merging.base_has(&key, &mut history)?;
        }
        let end = top.key_block(number + 1).map(|next| next.first_key);
        if block.is_settled {
            merging.through(Some(block.first_key))?;
            if !merging.is_below(end) {
                merging.goes_on = merging.goes_on && merging.sink.block(number)?;
                continue;
            }
        }
        if !merging.goes_on {
            return Ok(());
        }
        let bytes = (base.read)(place).map_err(RestoreError::Read)?;
        decode_keys(bytes.as_ref(), block, settled, |of, entry| {
            if block.is_settled {
                merging.goes_on = merging.goes_on && merging.sink.unsettled(of, entry)?;
            }
            if key != of {
                merging.base_has(&key, &mut history)?;
                key.clear();
                key.extend_from_slice(of);
            }
            if entry.main > top.position.revision {
                return Err(Malformed("a version outside the revisions of its run").into());
            }
            history.push(*entry);
            Ok::<(), RestoreError<E>>(())
        })?;
    }
    merging.base_has(&key, &mut history)?;
    merging.through(None)
}

/// Progress of [`merge_blocks`] in the delta runs.
struct MergingBlocks<'r, I, B, S> {
    runs: &'r mut [RunReader<I, B>],
    deltas: Merging,
    /// True if the delta runs have versions of the key in `deltas` that were not passed on yet.
    is_at_key: bool,
    compacted: Revision,
    sink: &'r mut S,
    /// False once the sink wants no more.
    goes_on: bool,
}

impl<I, B, E, S> MergingBlocks<'_, I, B, S>
where
    I: Iterator<Item = Result<B, E>>,
    B: AsRef<[u8]>,
    S: Sink<E>,
{
    /// Returns true if the next key of the delta runs is below `end`.
    fn is_below(&self, end: Option<&[u8]>) -> bool {
        self.is_at_key && end.is_none_or(|end| self.deltas.key.as_slice() < end)
    }

    fn visit(&mut self, key: &[u8], history: &[Entry<'static>]) -> Result<(), RestoreError<E>> {
        let sink = &mut *self.sink;
        self.goes_on = self.goes_on
            && visit_readable(key, history, self.compacted, &mut |key, entry| sink.version(key, entry))?;
        Ok(())
    }

    /// Passes on the versions of the keys below `end` that only delta runs have.
    fn through(&mut self, end: Option<&[u8]>) -> Result<(), RestoreError<E>> {
        while self.is_below(end) && self.goes_on {
            let history = std::mem::take(&mut self.deltas.history);
            let key = std::mem::take(&mut self.deltas.key);
            self.visit(&key, &history)?;
            (self.deltas.key, self.deltas.history) = (key, history);
            self.is_at_key = self.deltas.next(self.runs)?;
        }
        Ok(())
    }

    /// Passes on the versions of a key that the base has, and all before it. Empties `history`.
    fn base_has(&mut self, key: &[u8], history: &mut Vec<Entry<'static>>) -> Result<(), RestoreError<E>> {
        if history.is_empty() {
            return Ok(());
        }
        self.through(Some(key))?;
        if self.is_at_key && self.deltas.key == key {
            history.extend_from_slice(&self.deltas.history);
            self.is_at_key = self.deltas.next(self.runs)?;
        }
        self.visit(key, history)?;
        history.clear();
        Ok(())
    }
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
    /// True if the run is a base in blocks.
    is_in_blocks: bool,
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
            is_in_blocks: false,
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
            [kind, _, ..] if *kind == KEYS || *kind == SETTLED && self.is_in_blocks => {
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
