//! Finds the base and the parts from which a moment is restored.

use std::time::{Duration, UNIX_EPOCH};

use stdx::calendar::format_rfc3339;

use crate::chain::{Chain, Head};
use crate::manifest::{Base, Epoch, Part, Position};
use crate::trouble::{Fault, Trouble};

/// The moment that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The newest one in the backup.
    Newest,
    /// The state right after the transaction with this revision.
    Revision(i64),
    /// The state at this time, in milliseconds since 1970.
    TimeMs(u64),
}

/// Base and parts that a restore reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of the manifest that begins the epoch.
    pub epoch: u64,
    /// The base.
    pub base: Base,
    /// The parts after it, in order. Only the last one may reach beyond the moment.
    pub parts: Vec<Part>,
    /// The moment.
    pub moment: Moment,
    /// Position that the backup reaches in this epoch.
    pub until: Position,
}

impl Plan {
    /// Returns the number of bytes of the state and of the entries after it, before compression: a restore writes them to
    /// the disk, and then the part of them that is still the state a second time.
    pub fn raw_bytes(&self) -> u64 {
        let parts = self.parts.iter().map(|part| part.raw_bytes);
        self.base_raw_bytes().saturating_add(parts.fold(0, u64::saturating_add))
    }

    /// Returns the number of bytes of the base before compression.
    pub fn base_raw_bytes(&self) -> u64 {
        self.base.chunks.iter().map(|chunk| chunk.raw_bytes).fold(0, u64::saturating_add)
    }

    /// Returns the number of bytes of all objects of the plan.
    pub fn bytes(&self) -> u64 {
        self.base.bytes() + self.parts.iter().map(|part| part.object.bytes).sum::<u64>()
    }
}

/// Returns a time as text.
pub fn shown(time_ms: u64) -> String {
    format_rfc3339(UNIX_EPOCH + Duration::from_millis(time_ms))
}

/// An epoch with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeEpoch {
    /// Number of the manifest that begins it.
    pub sequence: u64,
    /// Base with which the epoch begins.
    pub base: Base,
    /// Parts of the epoch, in order.
    pub parts: Vec<Part>,
    /// Position after the last part, and the time up to which nothing followed.
    pub to: Position,
    /// Reason why moments right before the base are missing.
    pub gap: Option<String>,
}

impl Chain<'_> {
    /// Returns the newest manifest.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, what is damaged, or that there is no backup of this cluster.
    pub fn head_or_refuse(&self) -> Result<Head, Trouble> {
        self.head()?.ok_or_else(|| {
            Trouble::new(
                Fault::Refused,
                format!("{} has no backup of cluster {}", self.store.url(), self.cluster),
            )
        })
    }

    /// Returns all epochs before the present one, the oldest first. Some may have been pruned.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or what is damaged.
    pub fn closed_epochs(&self, head: &Head) -> Result<Vec<Epoch>, Trouble> {
        let oldest = self.oldest(head)?;
        self.closed_epochs_from(head, oldest)
    }

    /// Returns the epochs before the present one, as far as they are needed for those from `oldest` on.
    fn closed_epochs_from(&self, head: &Head, oldest: u64) -> Result<Vec<Epoch>, Trouble> {
        let mut lists = vec![head.first.epochs.clone()];
        let mut earlier = head.first.earlier.clone();
        // Each list is of smaller numbers than the one before, so this ends.
        while let Some(before) = earlier.filter(|before| before.through >= oldest) {
            if self.store.size(&format!("{}/{}", self.cluster, before.object.name))?.is_none() {
                // A prune that was interrupted has deleted it, and all manifests of its epochs are to go.
                break;
            }
            let list = self.epoch_list(&before)?;
            lists.push(list.epochs);
            earlier = list.earlier;
        }
        Ok(lists.into_iter().rev().flatten().collect())
    }

    /// Returns the numbers and ends of all epochs, the oldest first, the present one last. Some may have been pruned.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or what is damaged.
    pub fn epochs(&self, head: &Head) -> Result<Vec<(u64, Position, Position)>, Trouble> {
        let from = |base: Option<&Base>| base.map_or_else(Position::default, |base| base.at);
        let before =
            self.closed_epochs(head)?.into_iter().map(|epoch| (epoch.sequence, epoch.from, epoch.to));
        Ok(before.chain([(head.manifest.epoch, from(head.first.base.as_ref()), head.manifest.at)]).collect())
    }

    /// Reads one epoch.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or what is damaged or pruned.
    pub fn epoch(&self, head: &Head, sequence: u64) -> Result<WholeEpoch, Trouble> {
        // Only for an old epoch are lists read.
        let is_listed = sequence == head.manifest.epoch
            || head.first.epochs.iter().any(|epoch| epoch.sequence == sequence);
        let earlier = if is_listed { Vec::new() } else { self.closed_epochs_from(head, sequence)? };
        self.epoch_among(head, if earlier.is_empty() { &head.first.epochs } else { &earlier }, sequence)
    }

    /// Reads one epoch like [`Chain::epoch`]. `closed` are epochs before the present one, which were read before
    /// ([`Chain::closed_epochs`]).
    ///
    /// # Errors
    ///
    /// Returns the error of the store, or what is damaged or pruned.
    pub fn epoch_among(&self, head: &Head, closed: &[Epoch], sequence: u64) -> Result<WholeEpoch, Trouble> {
        if sequence == head.manifest.epoch {
            return whole(head.first.clone(), head.parts.clone(), head.manifest.at);
        }
        let Some(known) = closed.iter().find(|epoch| epoch.sequence == sequence) else {
            return Err(Trouble::new(Fault::Refused, format!("there is no epoch {sequence} in the backup")));
        };
        let (first, _) = self.read(sequence)?;
        let parts = match self.catalog(&known.catalog, sequence) {
            Ok(catalog) => catalog.parts,
            Err(trouble) if trouble.fault == Fault::Damaged => {
                self.parts_without_catalog(sequence, trouble)?
            }
            Err(trouble) => return Err(trouble),
        };
        whole(first, parts, known.to)
    }

    /// Returns the parts that the manifests of a closed epoch name, or the error of its catalog if one of them cannot be
    /// read either.
    fn parts_without_catalog(&self, sequence: u64, of_catalog: Trouble) -> Result<Vec<Part>, Trouble> {
        let mut parts = Vec::new();
        for number in sequence.. {
            match self.read(number) {
                Ok((manifest, _)) if manifest.epoch == sequence => parts.extend(manifest.parts),
                Ok(_) => break,
                Err(trouble) if trouble.fault == Fault::Damaged => return Err(of_catalog),
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(parts)
    }

    /// Finds what is needed for a moment.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, what is damaged, or that the moment is not in the backup and which ones are.
    pub fn plan(&self, moment: Moment) -> Result<Plan, Trouble> {
        let head = self.head_or_refuse()?;
        let oldest = self.oldest(&head)?;
        let reached = |at: &Position| match moment {
            Moment::Newest => true,
            Moment::Revision(revision) => at.revision <= revision,
            Moment::TimeMs(time_ms) => at.time_ms <= time_ms,
        };
        // The base of the very revision may be of a later entry, so the epoch before it is looked for, too.
        let begins_before = |epoch: &&Epoch| match moment {
            Moment::Newest => true,
            Moment::Revision(revision) => epoch.from.revision < revision,
            Moment::TimeMs(time_ms) => epoch.from.time_ms < time_ms,
        };
        let listed = head.first.epochs.iter().rfind(begins_before).map(|epoch| epoch.sequence);
        let present = head.first.base.as_ref().map_or_else(Position::default, |base| base.at);
        let needed = match moment {
            Moment::Newest => head.manifest.epoch,
            _ => listed.unwrap_or(oldest),
        };
        let closed = self.closed_epochs_from(&head, needed.max(oldest))?;
        let closed = closed.into_iter().map(|epoch| (epoch.sequence, epoch.from, epoch.to));
        let epochs: Vec<(u64, Position, Position)> =
            closed.chain([(head.manifest.epoch, present, head.manifest.at)]).collect();
        let newest = head.manifest.at;
        let is_beyond = match moment {
            Moment::Newest => false,
            Moment::Revision(revision) => revision > newest.revision,
            Moment::TimeMs(time_ms) => time_ms > newest.time_ms,
        };
        if let Some((_, found)) = head.damaged.first().filter(|_| is_beyond || moment == Moment::Newest) {
            return Err(Trouble::new(
                Fault::Damaged,
                format!(
                    "{found}. Nothing is known of what was shipped after revision {revision} at {}: that moment is restored with \
                     --to-revision {revision}. `mainstay backup run` goes on after it, and ships again what the log still has",
                    shown(newest.time_ms),
                    revision = newest.revision
                ),
            ));
        }
        if is_beyond {
            return Err(Trouble::new(
                Fault::Refused,
                format!(
                    "the backup reaches only to revision {} at {}; without --to-revision and --to-time that is restored",
                    newest.revision,
                    shown(newest.time_ms)
                ),
            ));
        }
        let kept = epochs.iter().filter(|(sequence, ..)| *sequence >= oldest);
        // A base of the very revision may be of a later entry, which has compacted for example.
        let is_exact = |from: &Position| matches!(moment, Moment::Revision(to) if from.revision == to);
        let has_it = |to: &Position| !matches!(moment, Moment::Revision(revision) if revision > to.revision);
        let exact = kept.clone().find(|(_, from, _)| is_exact(from));
        let chosen = kept.clone().rfind(|(_, from, _)| reached(from) && !is_exact(from));
        // Only the base has the revision if the epoch before ends earlier.
        let chosen = chosen.filter(|(_, _, to)| has_it(to) || exact.is_none()).or(exact);
        let Some((sequence, _, to)) = chosen else {
            let (revision, time_ms) =
                kept.clone().next().map_or((0, 0), |(_, from, _)| (from.revision, from.time_ms));
            return Err(Trouble::new(
                Fault::Refused,
                format!("the backup begins only with revision {revision} at {}", shown(time_ms)),
            ));
        };
        let whole = self.epoch(&head, *sequence)?;
        let is_missing = match moment {
            Moment::Newest => false,
            Moment::Revision(revision) => revision > to.revision,
            Moment::TimeMs(time_ms) => time_ms > to.time_ms,
        };
        let next = kept.clone().find(|(other, ..)| other > sequence);
        if is_missing && let Some((later, from, _)) = next {
            let gap = self.epoch(&head, *later)?.gap;
            // Without a gap the epochs follow each other, and nothing happened between this one's end and the base.
            if let (Some(reason), _) | (None, Some(reason)) = (gap, self.lacks(moment, to, from)) {
                return Err(Trouble::new(
                    Fault::Refused,
                    format!(
                        "the backup has no moments between revision {} at {} and revision {} at {}: {reason}",
                        to.revision,
                        shown(to.time_ms),
                        from.revision,
                        shown(from.time_ms)
                    ),
                ));
            }
        }
        let mut parts = Vec::new();
        add_needed(&mut parts, whole.parts, whole.base.at.index, moment);
        Ok(Plan { epoch: *sequence, base: whole.base, parts, moment, until: whole.to })
    }

    /// Finds what is needed to follow the log from one moment to a later one: the base for the first, and all parts
    /// up to the second.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Chain::plan`], and that entries between the two moments are missing.
    pub fn plan_between(&self, from: Moment, to: Moment) -> Result<Plan, Trouble> {
        let (mut plan, last) = (self.plan(from)?, self.plan(to)?);
        if last.epoch < plan.epoch {
            return Err(Trouble::new(Fault::Refused, "the second moment is before the first"));
        }
        let head = self.head_or_refuse()?;
        plan.parts.clear();
        let closed = self.closed_epochs(&head)?;
        for (sequence, ..) in self.epochs(&head)? {
            if !(plan.epoch..=last.epoch).contains(&sequence) {
                continue;
            }
            let whole = self.epoch_among(&head, &closed, sequence)?;
            if let Some(reason) = whole.gap.filter(|_| sequence > plan.epoch) {
                return Err(Trouble::new(
                    Fault::Refused,
                    format!(
                        "the backup lacks what happened right before revision {} at {}: {reason}",
                        whole.base.at.revision,
                        shown(whole.base.at.time_ms)
                    ),
                ));
            }
            add_needed(&mut plan.parts, whole.parts, plan.base.at.index, to);
        }
        (plan.moment, plan.until) = (to, last.until);
        Ok(plan)
    }

    /// Returns a reason if a revision lies between two epochs that follow each other, which no whole chain has.
    fn lacks(&self, moment: Moment, to: &Position, from: &Position) -> Option<String> {
        let Moment::Revision(revision) = moment else { return None };
        (to.revision < revision && revision < from.revision).then(|| "they were never shipped".to_owned())
    }

    /// Returns the number of the oldest epoch that was not pruned.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    pub fn oldest(&self, head: &Head) -> Result<u64, Trouble> {
        let chain = format!("{}/chain", self.cluster);
        // Directories that pruning has emptied may still be there.
        for directory in self.store.list(&chain)?.directories {
            let objects = self.store.list(&format!("{chain}/{directory}"))?.objects;
            let numbers = objects.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok());
            if let Some(first) = numbers.min() {
                return Ok(first);
            }
        }
        Ok(head.manifest.epoch)
    }
}

/// Adds the parts of an epoch that follow those that are there and are needed for a moment. `index` is that of the
/// base.
fn add_needed(parts: &mut Vec<Part>, of_epoch: Vec<Part>, index: u64, moment: Moment) {
    for part in of_epoch {
        let before = parts.last();
        if part.at.index <= before.map_or(index, |before| before.at.index) {
            continue;
        }
        let is_needed = match moment {
            Moment::Newest => true,
            // The revision of a part may be that of an earlier sample, so the next part is read, too, if in doubt.
            Moment::Revision(revision) => before.is_none_or(|before| before.at.revision < revision),
            Moment::TimeMs(time_ms) => before.is_none_or(|before| before.at.time_ms <= time_ms),
        };
        if !is_needed {
            return;
        }
        parts.push(part);
    }
}

fn whole(first: crate::manifest::Manifest, parts: Vec<Part>, to: Position) -> Result<WholeEpoch, Trouble> {
    let sequence = first.sequence;
    let base = first.base.ok_or_else(|| {
        Trouble::damaged(
            &crate::manifest::Manifest::name(sequence),
            "has no base, though an epoch begins there",
        )
    })?;
    Ok(WholeEpoch { sequence, base, parts, to, gap: first.gap })
}
