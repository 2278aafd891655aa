//! Ships parts and bases to a store, and extends the chain.
//!
//! [`Shipper::step`] does what is due. It has no threads and no clock of its own, so tests drive it step by step.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use bytes::Bytes;

use crate::base;
use crate::chain::{Appended, Chain, Head};
use crate::manifest::{
    Base, Catalog, CatalogReference, EarlierEpochs, Epoch, EpochList, FORMAT, Manifest, Part, Position,
    StateHash, encode,
};
use crate::object::{Object, sha256};
use crate::part;
use crate::queue::{Queue, Start, Waiting};
use crate::source::Source;
use crate::store::Store;
use crate::trouble::{Fault, Trouble};

/// Maximum number of parts in one manifest.
const PARTS_PER_MANIFEST: usize = 16;
/// Maximum number of epochs in one manifest. Older ones are in a list of their own.
pub const EPOCHS_PER_MANIFEST: usize = 64;
/// Bytes up to which parts are merged into one.
const MERGED_BYTES: u64 = 16 << 20;
/// Minimum number of bytes of parts after which another base is made.
const BASE_BYTES_MIN: u64 = 64 << 20;
/// Shortest interval in milliseconds between two bases that are made because of the bytes of parts.
const BASE_MS_MIN: u64 = 600_000;

/// Times and sizes by which a shipper works.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Milliseconds after which a manifest is written though nothing has changed, so that it is known that nothing has.
    pub idle_ms: u64,
    /// Milliseconds after which a new base is made, if anything has changed.
    pub base_ms: u64,
    /// Number of manifests after which their parts are merged and listed in a catalog.
    pub manifests_per_catalog: u64,
    /// Milliseconds for which the chain of another process must stand still before this one continues it. Must be a
    /// multiple of `idle_ms`: a process that has nothing to ship is silent for that long.
    pub takeover_ms: u64,
    /// Milliseconds between two looks at the chain of another process.
    pub look_ms: u64,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            idle_ms: 10_000,
            base_ms: 24 * 3_600_000,
            manifests_per_catalog: 64,
            takeover_ms: 30_000,
            look_ms: 5_000,
        }
    }
}

/// Counts of the objects that a shipper has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shipped {
    /// Manifests appended.
    pub manifests: u64,
    /// Bytes of objects written, those of manifests included.
    pub bytes: u64,
    /// Bases completed.
    pub bases: u64,
    /// Times that entries were missing.
    pub gaps: u64,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing was due.
    Idle,
    /// The chain was extended.
    Extended,
    /// Another process extends the chain; this one waits.
    StandsBy,
    /// A base is being made.
    MakesBase,
    /// The source is behind the chain; nothing can be shipped before it has caught up.
    Waits(String),
}

enum Role {
    /// The chain was not read yet, or has to be read again.
    Unknown,
    /// Another process extends the chain: number of its newest manifest, and when that was first seen.
    StandsBy { sequence: u64, since_ms: u64, looked_ms: u64 },
    /// This process extends the chain.
    Extends,
}

enum Making {
    None,
    Running(Receiver<Result<Base, Trouble>>),
    Done(Base),
}

/// Ships what waits in a queue.
pub struct Shipper {
    /// The store. The caller replaces it when credentials have changed.
    pub store: Arc<dyn Store>,
    source: Arc<dyn Source>,
    queue: Queue,
    cluster: String,
    id: String,
    stream: String,
    pace: Pace,
    /// True if bases are made on a thread of their own.
    has_threads: bool,
    role: Role,
    head: Option<Head>,
    /// Reason for which a base has to come before anything else: the log is another one, or lacks entries.
    break_reason: Option<String>,
    making: Making,
    /// A base that is being made and is not needed any more.
    ending: Option<Receiver<Result<Base, Trouble>>>,
    /// Lowest index of a base after which no entries are missing.
    base_index_min: u64,
    /// True once the state of the source was compared with the chain.
    is_compared: bool,
    appended_ms: u64,
    based_ms: u64,
    counts: Shipped,
    /// Something that the operator has to know, until it is taken.
    notice: Option<String>,
}

impl Shipper {
    /// Returns a shipper. `id` tells the processes apart that extend a chain, and stays the same when one is
    /// restarted.
    pub fn new(
        store: Arc<dyn Store>,
        source: Arc<dyn Source>,
        queue: Queue,
        id: String,
        pace: Pace,
        has_threads: bool,
    ) -> Shipper {
        Shipper {
            cluster: format!("{:016x}", source.cluster_id()),
            stream: source.stream(),
            store,
            source,
            queue,
            id,
            pace,
            has_threads,
            role: Role::Unknown,
            head: None,
            break_reason: None,
            making: Making::None,
            ending: None,
            base_index_min: 0,
            is_compared: false,
            appended_ms: 0,
            based_ms: 0,
            counts: Shipped::default(),
            notice: None,
        }
    }

    /// Returns something that the operator has to know and was not returned before.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Returns what was shipped.
    pub fn counts(&self) -> Shipped {
        self.counts
    }

    /// Returns the position of the newest manifest, and its number.
    pub fn reached(&self) -> Option<(Position, u64)> {
        self.head.as_ref().map(|head| (head.manifest.at, head.manifest.sequence))
    }

    /// Returns true while another process extends the chain.
    pub fn stands_by(&self) -> bool {
        matches!(self.role, Role::StandsBy { .. })
    }

    fn chain(&self) -> Chain<'_> {
        Chain { store: &*self.store, cluster: &self.cluster }
    }

    /// Does what is due. `wall_ms` is the time since 1970, `now_ms` that of a clock that never jumps, both in
    /// milliseconds.
    ///
    /// # Errors
    ///
    /// Returns an error if the store or the source fails. The step can be repeated, unless the error says that the
    /// place belongs to something else.
    pub fn step(&mut self, wall_ms: u64, now_ms: u64) -> Result<Step, Trouble> {
        match self.role {
            Role::Unknown => self.read_head(now_ms)?,
            Role::StandsBy { .. } => self.look(now_ms)?,
            Role::Extends => {}
        }
        if self.stands_by() {
            return Ok(Step::StandsBy);
        }
        let done = self.extend(wall_ms, now_ms);
        if done.is_err() {
            // A manifest may have been appended though the answer was lost.
            self.role = Role::Unknown;
        }
        done
    }

    /// Reads the chain and decides who extends it.
    fn read_head(&mut self, now_ms: u64) -> Result<(), Trouble> {
        let was_known = self.head.is_some();
        self.take_head()?;
        let Some(head) = &self.head else {
            if was_known {
                return Err(Trouble::new(
                    Fault::Refused,
                    format!(
                        "the backup of cluster {} at {} was removed while it was extended: start again",
                        self.cluster,
                        self.store.url()
                    ),
                ));
            }
            self.role = Role::Extends;
            // The first base may have been made already, and its manifest have failed: the entries after it are collected.
            if self.break_reason.is_none() {
                let index = self.source.position().index;
                self.queue.start(Start { index, floor_ms: 0 });
                (self.break_reason, self.base_index_min) = (Some(String::new()), index);
            }
            return Ok(());
        };
        if head.manifest.shipper == self.id {
            if let (Making::Done(made), Some(base)) = (&self.making, &head.manifest.base)
                && made.at == base.at
            {
                // The epoch was begun, though the answer was lost.
                (self.making, self.break_reason) = (Making::None, None);
            }
            self.take_up(was_known);
        } else {
            let sequence = head.newest();
            self.role = Role::StandsBy { sequence, since_ms: now_ms, looked_ms: now_ms };
            // A base that was begun for an earlier end of the chain, and the reason for it, are of no use after what
            // the other process appends.
            self.abandon_base();
            self.break_reason = None;
            self.begin_collecting();
        }
        Ok(())
    }

    /// Reads the end of the chain. What damaged manifests had is shipped again.
    fn take_head(&mut self) -> Result<(), Trouble> {
        let before = self.head.as_ref().map(|head| head.manifest.at.index);
        self.head = self.chain().head().map_err(unusable)?;
        let reached = self.head.as_ref().map(|head| head.manifest.at.index);
        let is_damaged = self.head.as_ref().is_some_and(|head| !head.damaged.is_empty());
        if is_damaged || reached < before {
            // What was collected or dropped before may begin after the end of the chain.
            self.begin_collecting();
        }
        if let Some(head) = self.head.as_ref().filter(|head| !head.damaged.is_empty()) {
            let found: Vec<&str> = head.damaged.iter().take(2).map(|(_, found)| found.as_str()).collect();
            self.notice = Some(format!(
                "{}. The backup goes on after manifest {}, at revision {}: what came after it is shipped again from the log. If \
                 the log no longer has it, `mainstay backup list` shows a gap",
                found.join("; "),
                head.manifest.sequence,
                head.manifest.at.revision
            ));
        }
        Ok(())
    }

    /// Gives up the base that is being made. Its thread cannot be stopped, so no other one begins before it ends.
    fn abandon_base(&mut self) {
        if let Making::Running(receiver) = std::mem::replace(&mut self.making, Making::None) {
            self.ending = Some(receiver);
        }
    }

    /// Looks whether the other process still extends the chain; if not, continues it.
    fn look(&mut self, now_ms: u64) -> Result<(), Trouble> {
        let Role::StandsBy { sequence, since_ms, looked_ms } = self.role else { return Ok(()) };
        if now_ms < looked_ms + self.pace.look_ms {
            return Ok(());
        }
        let newest = self.chain().newest()?.unwrap_or(0);
        if newest != sequence {
            // Parts that the other process has shipped need not wait here.
            self.take_head()?;
            if let Some(head) = self.head.as_ref().filter(|head| head.manifest.stream == self.stream) {
                self.queue.drop_through(head.manifest.at.index);
            } else {
                self.forget_waiting();
            }
            let at = self.head.as_ref().map(|head| (head.newest(), head.manifest.at.time_ms));
            let (sequence, floor_ms) = at.unwrap_or_default();
            self.queue.raise_floor(floor_ms);
            self.role = Role::StandsBy { sequence, since_ms: now_ms, looked_ms: now_ms };
        } else if now_ms >= since_ms + self.pace.takeover_ms && self.source.is_current() {
            self.take_head()?;
            self.take_up(true);
        } else {
            self.role = Role::StandsBy { sequence, since_ms, looked_ms: now_ms };
        }
        Ok(())
    }

    /// Of a log that the chain does not continue, parts are needed only after a base.
    fn forget_waiting(&mut self) {
        self.queue.clear();
        let floor_ms = self.head.as_ref().map_or(0, |head| head.manifest.at.time_ms);
        self.base_index_min = self.source.position().index;
        self.queue.start(Start { index: self.base_index_min, floor_ms });
    }

    /// Lets the collector begin after what the chain has.
    fn begin_collecting(&mut self) {
        let Some(head) = &self.head else { return };
        if head.manifest.stream != self.stream {
            self.forget_waiting();
            return;
        }
        let (index, floor_ms) = (head.manifest.at.index, head.manifest.at.time_ms);
        // Parts of an earlier process may wait in files. They count if they continue the chain without a gap.
        self.queue.resume(Start { index, floor_ms });
    }

    /// Continues the chain. `collects` says that the collector has already begun.
    fn take_up(&mut self, collects: bool) {
        if !collects {
            self.begin_collecting();
        }
        let Some(head) = &self.head else {
            self.role = Role::Unknown;
            return;
        };
        if head.manifest.stream != self.stream {
            self.break_reason.get_or_insert_with(|| {
                "the entries after it were read from another copy of the cluster, whose log is numbered differently"
                    .to_owned()
            });
        }
        self.role = Role::Extends;
    }

    fn extend(&mut self, wall_ms: u64, now_ms: u64) -> Result<Step, Trouble> {
        self.source.check()?;
        if let Some((reason, index)) = self.queue.take_gap() {
            self.counts.gaps += 1;
            self.break_reason = Some(reason);
            self.base_index_min = index;
        }
        if let Some(wait) = self.compare()? {
            return Ok(Step::Waits(wait));
        }
        self.make_base(now_ms)?;
        if let Some(reason) = self.break_reason.clone() {
            let Making::Done(base) = &self.making else { return Ok(Step::MakesBase) };
            let base = base.clone();
            self.making = Making::None;
            if !self.is_after_chain(&base) {
                return Ok(Step::MakesBase);
            }
            self.queue.drop_through(base.at.index);
            let gap = (!reason.is_empty()).then_some(reason);
            let is_enough = base.at.index >= self.base_index_min;
            self.making = Making::Done(base.clone());
            let step = self.begin_epoch(base, gap, wall_ms, now_ms)?;
            if step == Step::Extended {
                self.making = Making::None;
                // A base that was begun before the last gap is a moment that can be restored, and another one follows.
                if is_enough {
                    self.break_reason = None;
                }
            }
            return Ok(step);
        }
        let Some(head) = &self.head else { return Ok(Step::Idle) };
        if let Making::Done(base) = &self.making
            && head.manifest.at.index >= base.at.index
            // What damaged manifests had comes first: until it is there, a restore of the newest moment is refused.
            && head.damaged.is_empty()
        {
            let base = base.clone();
            if !self.is_in_epoch(&base) {
                self.making = Making::None;
                return Ok(Step::Idle);
            }
            let step = self.begin_epoch(base, None, wall_ms, now_ms)?;
            self.making = Making::None;
            return Ok(step);
        }
        let index = head.manifest.at.index;
        self.queue.drop_through(index);
        let waiting = self.queue.front(PARTS_PER_MANIFEST);
        let is_idle = now_ms < self.appended_ms + self.pace.idle_ms || !self.source.is_current();
        if waiting.is_empty() && is_idle {
            return Ok(Step::Idle);
        }
        self.ship(&waiting, wall_ms, now_ms)
    }

    /// Returns true if a base is not older than what the chain has of the same log.
    fn is_after_chain(&self, base: &Base) -> bool {
        let same = self.head.as_ref().filter(|head| head.manifest.stream == self.stream);
        same.is_none_or(|head| base.at.index >= head.manifest.at.index)
    }

    /// Returns true if a base is not older than the base of the present epoch.
    fn is_in_epoch(&self, base: &Base) -> bool {
        let present = self.head.as_ref().and_then(|head| head.first.base.as_ref());
        present.is_none_or(|present| base.at.index >= present.at.index)
    }

    /// Compares the source with the chain, once the source has reached the chain's end. Returns what is waited for.
    fn compare(&mut self) -> Result<Option<String>, Trouble> {
        let Some(head) = self.head.as_ref().filter(|head| head.manifest.stream == self.stream) else {
            return Ok(None);
        };
        if self.is_compared {
            return Ok(None);
        }
        let (at, own) = (head.manifest.at, self.source.position());
        let foreign = |found: String| {
            Err(Trouble::new(
                Fault::Foreign,
                format!(
                    "{} has a backup of another history of cluster {}: {found}. The cluster was probably restored or \
                     created again with the same name; give its backup another prefix with --to",
                    self.store.url(),
                    self.cluster
                ),
            ))
        };
        if own.index < at.index {
            return Ok(Some(format!(
                "the backup ends with entry {}, and this node has only entry {} yet; if it stays so, the cluster was \
                 restored or created again, and its backup needs another prefix (--to)",
                at.index, own.index
            )));
        }
        // The revision of the chain may be too low, but never too high.
        if own.revision < at.revision {
            return foreign(format!(
                "the backup ends with revision {}, and this node has revision {} though it has more entries",
                at.revision, own.revision
            ));
        }
        let term = self.source.term(at.index);
        if let Some(term) = term.filter(|term| *term != at.term) {
            return foreign(format!("entry {} has term {term} here and {} there", at.index, at.term));
        }
        if let Some(known) = &head.manifest.state_hash
            && let Some(hash) = self.source.state_hash(known.index)
            && StateHash::new(known.index, hash) != *known
        {
            return foreign(format!("the states after entry {} are different", known.index));
        }
        if term.is_none() && self.break_reason.is_none() {
            // The state was received as a whole, so nothing shows that it continues the chain.
            self.forget_waiting();
            self.break_reason = Some(format!(
                "this node no longer has entry {}, with which the backup ends, and begins again with a whole state",
                at.index
            ));
        }
        self.is_compared = true;
        Ok(None)
    }

    /// Starts a base if one is due, and takes it when it is complete.
    fn make_base(&mut self, now_ms: u64) -> Result<(), Trouble> {
        if let Making::Running(receiver) = &self.making {
            match receiver.try_recv() {
                Ok(made) => {
                    self.making = Making::None;
                    self.making = Making::Done(made?);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => self.making = Making::None,
            }
        }
        if let Some(ending) = &self.ending {
            if matches!(ending.try_recv(), Err(TryRecvError::Empty)) {
                return Ok(());
            }
            self.ending = None;
        }
        if !matches!(self.making, Making::None) || (self.break_reason.is_none() && !self.is_base_due(now_ms))
        {
            return Ok(());
        }
        let (sender, receiver) = channel();
        let (store, source, cluster) =
            (Arc::clone(&self.store), Arc::clone(&self.source), self.cluster.clone());
        // No other base is made by this process for this number, or by another process for any.
        let mark = &sha256(format!("{} {}", self.id, self.next_sequence()).as_bytes())[..16];
        let mark = mark.to_owned();
        // A failed send means that the base is not needed any more.
        let make = move || drop(sender.send(base::write(&*store, &cluster, &*source, &mark)));
        if !self.has_threads {
            make();
            self.making = Making::Running(receiver);
            return self.make_base(now_ms);
        }
        std::thread::Builder::new()
            .name("backup-base".to_owned())
            .spawn(make)
            .map_err(|error| Trouble::new(Fault::Passing, format!("cannot start a thread: {error}")))?;
        self.making = Making::Running(receiver);
        Ok(())
    }

    fn is_base_due(&mut self, now_ms: u64) -> bool {
        let Some(head) = &self.head else { return true };
        let base_bytes = head.first.base.as_ref().map_or(0, Base::bytes);
        let parts_bytes: u64 = head.parts.iter().map(|part| part.object.bytes).sum();
        if self.based_ms == 0 {
            // The age of the present base before this process began is not known on this clock.
            self.based_ms = now_ms.max(1);
        }
        let is_old = now_ms >= self.based_ms + self.pace.base_ms && !head.parts.is_empty();
        let is_large = parts_bytes >= base_bytes.max(BASE_BYTES_MIN);
        is_old || (is_large && now_ms >= self.based_ms + BASE_MS_MIN)
    }

    fn next_sequence(&self) -> u64 {
        self.head.as_ref().map_or(1, |head| head.newest() + 1)
    }

    /// Returns a manifest that follows the newest one and changes nothing.
    fn next(&self, wall_ms: u64) -> Manifest {
        let before = self.head.as_ref();
        let at = before.map_or_else(Position::default, |head| head.manifest.at);
        Manifest {
            format: FORMAT,
            cluster: self.cluster.clone(),
            sequence: self.next_sequence(),
            skipped: before
                .map_or_else(Vec::new, |head| head.damaged.iter().map(|(number, _)| *number).collect()),
            previous: before.map_or_else(String::new, |head| head.digest.clone()),
            epoch: before.map_or(1, |head| head.manifest.epoch),
            shipper: self.id.clone(),
            stream: self.stream.clone(),
            at: Position { time_ms: at.time_ms.max(wall_ms), ..at },
            state_hash: before.and_then(|head| head.manifest.state_hash.clone()),
            parts: Vec::new(),
            catalog: before.and_then(|head| head.manifest.catalog.clone()),
            base: None,
            epochs: Vec::new(),
            earlier: None,
            gap: None,
        }
    }

    fn ship(&mut self, waiting: &[Waiting], wall_ms: u64, now_ms: u64) -> Result<Step, Trouble> {
        // Taken before the position is read: what is shipped is complete up to this time only if nothing newer was
        // applied meanwhile.
        let is_current = self.source.is_current();
        let position = self.source.position();
        let mut manifest = self.next(wall_ms);
        if !manifest.skipped.is_empty() && waiting.is_empty() && position.index > manifest.at.index {
            // The collector reads what the damaged manifests had. Without it this manifest would hide that it is missing.
            return Ok(Step::Idle);
        }
        for part in waiting {
            if part.first > manifest.at.index + 1 {
                let reason =
                    format!("entries {} to {} were lost on their way", manifest.at.index + 1, part.first - 1);
                self.queue.gap(reason, position.index);
                self.forget_waiting();
                return Ok(Step::Idle);
            }
            let data = part.read().map_err(|error| {
                Trouble::new(Fault::Passing, format!("cannot read a part in the data directory: {error}"))
            })?;
            let len = data.len() as u64;
            let object = Object::put(&*self.store, &self.cluster, data)?;
            self.counts.bytes += len;
            let state_hash = self.source.state_hash(part.at.index);
            let state_hash = state_hash.map(|hash| StateHash::new(part.at.index, hash));
            let at = Position {
                revision: part.at.revision.max(manifest.at.revision),
                compact_revision: part.at.compact_revision.max(manifest.at.compact_revision),
                ..part.at
            };
            manifest.at = Position { time_ms: at.time_ms.max(manifest.at.time_ms), ..at };
            manifest.state_hash = state_hash.clone().or(manifest.state_hash);
            manifest.parts.push(Part {
                object,
                first: part.first,
                at,
                state_hash,
                raw_bytes: part.raw_bytes,
            });
        }
        // Entries that were applied after the last part may be older than this moment, and so may be those that this
        // node has not received.
        let is_complete = is_current && position.index <= manifest.at.index;
        manifest.at.time_ms = match (!is_complete, manifest.parts.last(), &self.head) {
            (false, ..) => manifest.at.time_ms,
            (true, Some(last), Some(head)) => last.at.time_ms.max(head.manifest.at.time_ms),
            (true, Some(last), None) => last.at.time_ms,
            (true, None, Some(head)) => head.manifest.at.time_ms,
            (true, None, None) => 0,
        };
        let catalog = self.catalog_if_due(&manifest)?;
        let listed = catalog.as_ref().map(|(_, parts)| parts.clone());
        if let Some((reference, _)) = catalog {
            manifest.catalog = Some(reference);
        }
        let step = self.append(manifest, listed, now_ms)?;
        if step == Step::Extended {
            waiting.last().into_iter().for_each(|last| self.queue.drop_through(last.at.index));
        }
        Ok(step)
    }

    /// Makes a catalog if one is due. Returns the reference to it, and the parts in it.
    fn catalog_if_due(
        &mut self,
        manifest: &Manifest,
    ) -> Result<Option<(CatalogReference, Vec<Part>)>, Trouble> {
        let Some(head) = &self.head else { return Ok(None) };
        let through = manifest.catalog.as_ref().map_or(manifest.epoch, |known| known.through);
        if manifest.sequence < through + self.pace.manifests_per_catalog {
            return Ok(None);
        }
        let (listed, loose) = head.parts.split_at(head.in_catalog.min(head.parts.len()));
        let mut parts = listed.to_vec();
        let loose: Vec<Part> = loose.iter().chain(&manifest.parts).cloned().collect();
        parts.extend(self.merged(&loose)?);
        let object = self.put_catalog(manifest.epoch, &parts)?;
        Ok(Some((CatalogReference { object, through: manifest.sequence }, parts)))
    }

    fn put_catalog(&mut self, epoch: u64, parts: &[Part]) -> Result<Object, Trouble> {
        let catalog = Catalog { format: FORMAT, cluster: self.cluster.clone(), epoch, parts: parts.to_vec() };
        let data = encode(&catalog);
        self.counts.bytes += data.len() as u64;
        Object::put(&*self.store, &self.cluster, data.into())
    }

    /// Merges small parts that follow each other.
    fn merged(&mut self, parts: &[Part]) -> Result<Vec<Part>, Trouble> {
        let mut merged: Vec<Part> = Vec::new();
        let mut rest = parts;
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let fits = |part: &&Part| {
                bytes += part.object.bytes;
                bytes <= MERGED_BYTES
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (group, behind) = rest.split_at(count);
            rest = behind;
            let Some(last) = group.last().filter(|_| group.len() > 1) else {
                merged.push(first.clone());
                continue;
            };
            let read: Result<Vec<Bytes>, Trouble> =
                group.iter().map(|part| part.object.get(&*self.store, &self.cluster)).collect();
            let data = read.and_then(|read| {
                part::merge(&read, self.source.cluster_id())
                    .map_err(|found| Trouble::damaged(&first.object.name, found))
            });
            let data = match data {
                Ok(data) => data,
                // A damaged part must not hold up the backup. A restore that needs it says so.
                Err(trouble) if trouble.fault == Fault::Damaged => {
                    merged.extend(group.iter().cloned());
                    continue;
                }
                Err(trouble) => return Err(trouble),
            };
            self.counts.bytes += data.len() as u64;
            merged.push(Part {
                object: Object::put(&*self.store, &self.cluster, data)?,
                first: first.first,
                at: last.at,
                state_hash: last.state_hash.clone(),
                raw_bytes: group.iter().map(|part| part.raw_bytes).sum(),
            });
        }
        Ok(merged)
    }

    /// Appends the manifest that begins an epoch with a base.
    fn begin_epoch(
        &mut self,
        mut base: Base,
        gap: Option<String>,
        wall_ms: u64,
        now_ms: u64,
    ) -> Result<Step, Trouble> {
        self.check_chunks(&base)?;
        let (is_current, position) = (self.source.is_current(), self.source.position());
        let mut manifest = self.next(wall_ms);
        manifest.epoch = manifest.sequence;
        manifest.catalog = None;
        let is_followed = gap.is_none() && self.break_reason.is_none();
        if let Some(head) = self.head.clone() {
            let (listed, loose) = head.parts.split_at(head.in_catalog.min(head.parts.len()));
            let mut parts = listed.to_vec();
            parts.extend(self.merged(loose)?);
            let catalog = self.put_catalog(head.manifest.epoch, &parts)?;
            // A state is never dated before what it contains, whatever the clock says.
            base.at.time_ms = base.at.time_ms.max(head.manifest.at.time_ms);
            let oldest = self.chain().oldest(&head)?;
            let kept = head.first.epochs.iter().filter(|epoch| epoch.sequence >= oldest);
            manifest.epochs = kept.cloned().collect();
            manifest.epochs.push(Epoch {
                sequence: head.manifest.epoch,
                from: head.first.base.as_ref().map_or_else(Position::default, |base| base.at),
                to: head.manifest.at,
                catalog,
            });
            manifest.earlier = head.first.earlier.clone().filter(|earlier| earlier.through >= oldest);
            self.bound_epochs(&mut manifest)?;
            if is_followed {
                manifest.parts =
                    head.parts.into_iter().filter(|part| part.at.index > base.at.index).collect();
            }
        }
        if !is_followed {
            manifest.at = base.at;
            manifest.state_hash = base.state_hash.clone();
        } else if (!is_current || position.index > manifest.at.index)
            && let Some(head) = &self.head
        {
            manifest.at.time_ms = head.manifest.at.time_ms;
        }
        manifest.gap = gap;
        self.counts.bytes += base.bytes();
        manifest.base = Some(base);
        let step = self.append(manifest, None, now_ms)?;
        if step == Step::Extended {
            self.counts.bases += 1;
            self.based_ms = now_ms.max(1);
            self.is_compared = true;
        }
        Ok(step)
    }

    /// Moves the older half of the epochs of a manifest into a list of their own, if there are too many.
    fn bound_epochs(&mut self, manifest: &mut Manifest) -> Result<(), Trouble> {
        if manifest.epochs.len() <= EPOCHS_PER_MANIFEST {
            return Ok(());
        }
        let newer = manifest.epochs.split_off(manifest.epochs.len() / 2);
        let epochs = std::mem::replace(&mut manifest.epochs, newer);
        let through = epochs.last().map_or(0, |epoch| epoch.sequence);
        let earlier = manifest.earlier.take();
        let list = EpochList { format: FORMAT, cluster: self.cluster.clone(), epochs, earlier };
        let data = encode(&list);
        self.counts.bytes += data.len() as u64;
        let object = Object::put(&*self.store, &self.cluster, data.into())?;
        manifest.earlier = Some(EarlierEpochs { object, through });
        Ok(())
    }

    /// Returns an error if a chunk of a base is not there: somebody may have deleted it.
    fn check_chunks(&mut self, base: &Base) -> Result<(), Trouble> {
        for chunk in &base.chunks {
            let name = format!("{}/{}", self.cluster, chunk.object.name);
            if self.store.size(&name)? != Some(chunk.object.bytes) {
                self.making = Making::None;
                return Err(Trouble::new(
                    Fault::Passing,
                    format!("{name} has vanished; the base is made again"),
                ));
            }
        }
        Ok(())
    }

    /// Appends a manifest. `listed` are the parts in its catalog, if it has a new one.
    fn append(
        &mut self,
        mut manifest: Manifest,
        listed: Option<Vec<Part>>,
        now_ms: u64,
    ) -> Result<Step, Trouble> {
        manifest.format = manifest.format_needed();
        let len = manifest.encode().len() as u64;
        match self.chain().append(&manifest)? {
            Appended::Lost => {
                self.role = Role::Unknown;
                self.read_head(now_ms)?;
                Ok(if self.stands_by() { Step::StandsBy } else { Step::Idle })
            }
            Appended::Done(digest) => {
                self.appended_ms = now_ms;
                self.queue.raise_floor(manifest.at.time_ms);
                self.counts.manifests += 1;
                self.counts.bytes += len;
                self.head = Some(match self.head.take() {
                    Some(mut head) if manifest.base.is_none() => {
                        match listed {
                            Some(listed) => {
                                head.in_catalog = listed.len();
                                head.parts = listed;
                            }
                            None => head.parts.extend(manifest.parts.iter().cloned()),
                        }
                        head.damaged.clear();
                        Head { manifest, digest, ..head }
                    }
                    _ => {
                        let parts = manifest.parts.clone();
                        let first = manifest.clone();
                        Head { first, manifest, digest, parts, in_catalog: 0, damaged: Vec::new() }
                    }
                });
                Ok(Step::Extended)
            }
        }
    }
}

/// Returns what to do if the end of a chain is damaged.
fn unusable(trouble: Trouble) -> Trouble {
    match trouble.fault {
        Fault::Damaged => Trouble::new(
            Fault::Damaged,
            format!(
                "{trouble}. The backup cannot be continued after it: give another prefix with --to, which begins with the \
                 whole state, and keep this one for moments before"
            ),
        ),
        _ => trouble,
    }
}
