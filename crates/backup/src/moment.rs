//! Restores the state of a moment: opens the base and applies the entries after it.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use disk::{Disk, RealDisk};
use log::{Entry, HardState};
use machine::Machine;
use machine::transfer::TransferReader;
use mvcc::HashWalk;
use numbers::{Index, MemberId, Revision, Term};
use storage::Identity;
use storage::kv_hash::KvHash;
use storage::restoration::{Restoration, RestorationError, RestoredEntry};
use storage::terms::Terms;
use storage::values::LogValues;

use crate::base;
use crate::fetch::Fetch;
use crate::manifest::{HashKv, Part, StateHash};
use crate::part::{Block, PartReader};
use crate::plan::{Moment, Plan, shown};
use crate::trouble::{Fault, Trouble};

/// Id of the member in whose name entries are applied. It is in no configuration, so nothing is done for it.
const NOBODY: u64 = u64::MAX;

/// A restored state.
pub struct Restored {
    /// The machine.
    pub machine: Machine,
    /// The values of its versions.
    pub values: LogValues,
    /// Time in milliseconds since 1970 by which the last entry was applied.
    pub time_ms: u64,
    /// Number of positions at which the state was compared with the hash that the backed up node had.
    pub compared: u64,
}

/// An entry before it is applied.
pub struct Applying<'e> {
    /// The entry.
    pub entry: &'e Entry,
    /// Time in milliseconds since 1970 by which it was applied.
    pub time_ms: u64,
    /// Revision before the entry.
    pub revision: i64,
}

/// Decides about entries before they are applied. Returns false if an entry is to be left out; the state is then not
/// that of the cluster, and is not compared.
pub type Judge<'j> = Box<dyn FnMut(&Applying<'_>) -> bool + 'j>;

struct Rolling<'r> {
    restoration: Restoration,
    machine: Machine,
    terms: Terms,
    moment: Moment,
    time_ms: u64,
    compared: u64,
    judge: Option<Judge<'r>>,
}

/// Restores a moment into a directory, which must not exist yet and keeps the values.
///
/// # Errors
///
/// Returns what is damaged or missing, that a state differs from that of the cluster, or the error of the disk.
pub fn restore<'r>(
    plan: &Plan,
    cluster_id: u64,
    directory: &Path,
    fetch: &mut Fetch<'_>,
    judge: Option<Judge<'r>>,
    progress: &mut dyn FnMut(u64),
) -> Result<Restored, Trouble> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let identity = Identity { member_id: NOBODY, cluster_id };
    let mut restoration = Restoration::begin(&disk, directory, identity).map_err(failed)?;
    let mut done = 0;
    let mut chunks = plan.base.chunks.iter();
    let pieces = std::iter::from_fn(|| {
        let chunk = chunks.next()?;
        let piece = fetch.get(&chunk.object).and_then(|data| base::read(chunk, &data));
        done += chunk.object.bytes;
        progress(done);
        Some(piece.map_err(|trouble| RestorationError::Source(Box::new(trouble))))
    });
    let reader = TransferReader::open(pieces).map_err(|error| match error {
        machine::image::RestoreError::Read(error) => failed(error),
        error => damaged_base(plan, &error.to_string()),
    })?;
    let machine = restoration.take_transfer(reader, None).map_err(failed)?;
    let at = plan.base.at;
    if (machine.applied_index.0, machine.store.current_revision().0) != (at.index, at.revision) {
        return Err(damaged_base(plan, "the state is of another moment than its manifest says"));
    }
    let mut rolling = Rolling {
        restoration,
        machine,
        terms: Terms::default(),
        moment: plan.moment,
        time_ms: at.time_ms,
        compared: 0,
        judge,
    };
    if let Some(known) = &plan.base.state_hash
        && let Some(hash) = rolling.machine.state_hash()
    {
        if StateHash::new(at.index, hash) != *known {
            return Err(damaged_base(plan, "the state is not the one that the cluster had"));
        }
        rolling.compared += 1;
    }
    let hard_state = HardState { term: Term(at.term), vote: MemberId(0), commit: Index(at.index) };
    rolling.terms = rolling
        .restoration
        .follow(&mut rolling.machine, hard_state, None, &mut std::iter::empty())
        .map_err(failed)?;
    for part in &plan.parts {
        let data = fetch.get(&part.object)?;
        let is_there = rolling.take(part, data, cluster_id)?;
        done += part.object.bytes;
        progress(done);
        if is_there {
            break;
        }
    }
    rolling.finish(plan)
}

impl Rolling<'_> {
    /// Applies the entries of a part. Returns true if the moment is reached.
    fn take(&mut self, part: &Part, data: Bytes, cluster_id: u64) -> Result<bool, Trouble> {
        let damaged = |found| Trouble::damaged(&part.object.name, found);
        let mut blocks = PartReader::open(data, cluster_id).map_err(damaged)?;
        while let Some(block) = blocks.next().map_err(damaged)? {
            if self.is_reached() {
                return Ok(true);
            }
            if matches!(self.moment, Moment::TimeMs(time_ms) if block.time_ms > time_ms) {
                return Ok(true);
            }
            self.take_block(part, block)?;
        }
        Ok(self.is_reached())
    }

    fn is_reached(&self) -> bool {
        matches!(self.moment, Moment::Revision(to) if self.machine.store.current_revision().0 >= to)
    }

    fn take_block(&mut self, part: &Part, block: Block) -> Result<(), Trouble> {
        let next = self.machine.applied_index.0 + 1;
        if block.first.0 > next {
            return Err(Trouble::damaged(
                &part.object.name,
                format!("begins with entry {}, and entry {next} is missing", block.first),
            ));
        }
        let entries: Vec<Entry> = block.entries.into_iter().filter(|entry| entry.index.0 >= next).collect();
        // If the moment may be within the block, its entries are applied one by one: also entries that do not change
        // the revision, such as compactions, must not be applied after the moment.
        let is_within = match self.moment {
            Moment::Revision(to) => block.revision.is_some_and(|revision| revision < to),
            _ => true,
        };
        if is_within && self.judge.is_none() {
            self.apply(entries, block.time_ms)?;
        } else {
            for entry in entries {
                if self.is_reached() {
                    return Ok(());
                }
                let judged = Applying {
                    entry: &entry,
                    time_ms: block.time_ms,
                    revision: self.machine.store.current_revision().0,
                };
                let applies = self.judge.as_mut().is_none_or(|judge| judge(&judged));
                let mut entry = entry;
                if !applies {
                    // An entry without data changes nothing.
                    (entry.entry_type, entry.data) = (0, Bytes::new());
                }
                self.apply(vec![entry], block.time_ms)?;
            }
        }
        if let Some(revision) = block.revision
            && self.machine.applied_index == block.last
            && self.machine.store.current_revision().0 != revision
        {
            return Err(differs(
                self.machine.applied_index.0,
                &format!("revision {}", self.machine.store.current_revision()),
                &format!("revision {revision}"),
            ));
        }
        if self.machine.applied_index == block.last {
            self.compare(block.state_hash)?;
        }
        Ok(())
    }

    fn apply(&mut self, entries: Vec<Entry>, time_ms: u64) -> Result<(), Trouble> {
        let Some(last) = entries.last() else { return Ok(()) };
        let hard_state = HardState { term: last.term, vote: MemberId(0), commit: last.index };
        let mut restored = entries.into_iter().map(|mut entry| {
            if entry.entry_type == 0
                && let Some(data) = interchange::in_todays_words(&entry.data)
            {
                entry.data = data;
            }
            Ok(RestoredEntry { applies: true, entry })
        });
        self.restoration
            .follow_on(&mut self.machine, hard_state, &mut restored, &mut self.terms)
            .map_err(failed)?;
        self.time_ms = time_ms;
        Ok(())
    }

    /// Compares the state with the hash that the node had which was backed up.
    fn compare(&mut self, known: Option<u64>) -> Result<(), Trouble> {
        // A state whose entries were chosen is another one on purpose.
        let (Some(known), Some(own), None) = (known, self.machine.state_hash(), &self.judge) else {
            return Ok(());
        };
        if own != known {
            let index = self.machine.applied_index.0;
            return Err(differs(index, &format!("hash {own:016x}"), &format!("hash {known:016x}")));
        }
        self.compared += 1;
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<Restored, Trouble> {
        let Rolling { restoration, machine, terms, time_ms, compared, .. } = self;
        let revision = machine.store.current_revision().0;
        if let Moment::Revision(to) = plan.moment
            && revision != to
        {
            return Err(Trouble::new(
                Fault::Damaged,
                format!(
                    "revision {to} was not reached: the parts of the backup end with revision {revision} at {}",
                    shown(time_ms)
                ),
            ));
        }
        let values = restoration.values();
        drop((restoration, terms));
        Ok(Restored { machine, values, time_ms, compared })
    }
}

/// Computes HashKV of a state at its newest revision.
///
/// # Errors
///
/// Returns that a value cannot be read.
pub fn hash_kv(machine: &mut Machine, values: &LogValues) -> Result<HashKv, Trouble> {
    let refused = |text: String| Trouble::new(Fault::Refused, format!("cannot compute HashKV: {text}"));
    let view = machine.store.publish();
    let mut walk = HashWalk::new(&view.snapshot(), Revision(0))
        .map_err(|error| refused(machine::range::refused(error).shown()))?;
    let (compact_revision, revision) = (walk.compact_revision().0, walk.revision().0);
    let mut hash = KvHash::default();
    let mut failed = None;
    while !walk.step(&view.snapshot(), 4096, |version| {
        if failed.is_none() {
            failed = hash.feed(version, values).err();
        }
    }) {}
    match failed {
        Some(status) => Err(refused(status.shown())),
        None => Ok(HashKv { revision, compact_revision, hash: hash.finish() }),
    }
}

fn differs(index: u64, own: &str, known: &str) -> Trouble {
    Trouble::new(
        Fault::Damaged,
        format!(
            "the restored state after entry {index} has {own}, and the cluster had {known}: nothing was restored; \
             restore a moment of another epoch (`mainstay backup list`) and report this"
        ),
    )
}

fn damaged_base(plan: &Plan, found: &str) -> Trouble {
    Trouble::new(
        Fault::Damaged,
        format!(
            "the base at revision {} cannot be used: {found}; moments of other epochs can still be restored",
            plan.base.at.revision
        ),
    )
}

/// Returns the error of a restoration: that of the backup, if it is one.
fn failed(error: RestorationError) -> Trouble {
    if let RestorationError::Source(source) = &error
        && let Some(trouble) = source.downcast_ref::<Trouble>()
    {
        return trouble.clone();
    }
    let fault = match &error {
        RestorationError::NoSpace { .. } => Fault::Full,
        RestorationError::Io { error, .. } if disk::is_full(error) => Fault::Full,
        _ => Fault::Refused,
    };
    Trouble::new(fault, error)
}
