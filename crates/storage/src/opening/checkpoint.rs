//! Restores the state of a checkpoint, with one thread or two.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{channel, sync_channel};

use bytes::Bytes;
use log::checkpoint::{CheckpointStore, Manifest, Run};
use machine::image::{BaseRun, BaseTop, Building, Reading, RestoreError, Versions};
use machine::{Machine, Rules};
use mvcc::Cache;

use crate::base::{BaseFiles, read_top};
use crate::checkpointer::{Companions, Level};
use crate::error::{DataDirError, Inconsistency};
use crate::identity::Identity;

/// Number of versions in a batch that is passed between the threads. Such a batch fits into the cache of a
/// processor core.
const VERSIONS_PER_PIECE: usize = 2048;
/// Maximum number of batches that are queued for the building thread.
const PIECES_MAX: usize = 4;

/// Says that the settled versions of a base in blocks stay in its files.
#[derive(Clone, Copy)]
pub(crate) struct InBlocks<'a> {
    /// Memory for blocks of the base.
    pub cache: &'a Arc<Cache>,
    /// Receives the damage of a file that only this needs.
    pub warn: &'a dyn Fn(&DataDirError),
}

/// Restores the state of a checkpoint, with two threads if `threads` is true. With `in_blocks`, the settled versions of a
/// base in blocks stay in its files, unless a file is damaged that only this needs. The whole base is then read into
/// memory. If [`DataDirError::is_damage`] is true for the returned error, the state may be
/// rebuilt from the log instead.
pub(crate) fn restore(
    rules: Rules,
    checkpoints: &CheckpointStore,
    manifest: Option<&Manifest>,
    member_dir: &Path,
    identity: &Identity,
    threads: bool,
    in_blocks: Option<InBlocks<'_>>,
) -> Result<(Machine, Vec<Level>), DataDirError> {
    let Some(manifest) = manifest else { return Ok((Machine::new(rules), Vec::new())) };
    let mut levels =
        Level::all(&manifest.runs).map_err(|run| Inconsistency::UnknownRun { name: run.name.clone() })?;
    let checkpoint_dir = member_dir.join("checkpoint");
    // Runs that an older release of Mainstay has written contain no identity, so they cannot be checked.
    let is_own = |run: &Run, metadata: &[u8]| match metadata.is_empty() || metadata == identity.to_bytes() {
        true => Ok(()),
        false => {
            let path = checkpoint_dir.join(&run.name);
            Err(DataDirError::OtherCheckpoint { path, identity: identity.clone() })
        }
    };
    let refused = |error: RestoreError<log::OpenError>| match error {
        RestoreError::Read(error) => DataDirError::Files(error),
        error => Inconsistency::Checkpoint { dir: checkpoint_dir.clone(), error }.into(),
    };
    let mut runs = Vec::new();
    for level in &levels {
        let mut reader = checkpoints.read(&level.run)?;
        is_own(&level.run, &reader.metadata)?;
        runs.push(std::iter::from_fn(move || reader.next_block().transpose()));
    }
    // What the companions contain is in the base run, too.
    let open = |level: &Level, companions: &Companions| -> Result<(BaseTop, BaseFiles), DataDirError> {
        let (top, metadata) = read_top(checkpoints, companions).map_err(refused)?;
        is_own(&companions.top, &metadata)?;
        let files = BaseFiles::open(checkpoints, level, companions, &top)?;
        is_own(&companions.changes, files.metadata()[1])?;
        Ok((top, files))
    };
    let mut opened = None;
    if let (Some(InBlocks { cache, warn }), Some(level)) = (in_blocks, levels.first_mut())
        && let Some(companions) = level.companions.clone()
    {
        match open(level, &companions) {
            Ok((top, files)) => opened = Some((cache, Arc::new(top), Arc::new(files))),
            Err(error) if error.is_damage() => {
                warn(&error);
                level.companions = None;
            }
            Err(error) => return Err(error),
        }
    }
    let begun = match opened {
        Some((cache, top, files)) => {
            let base = Arc::clone(&files).into_base(&top, cache);
            let read = Box::new(move |place| files.read_keys(place));
            machine::image::begin_in_blocks(runs, BaseRun { top, base, read })
        }
        None => machine::image::begin(runs),
    };
    let (reading, building) = begun.map_err(refused)?;
    let machine =
        if threads { build_in_two(rules, reading, building)? } else { build(rules, reading, building) };
    Ok((machine.map_err(refused)?, levels))
}

/// Builds the machine from the decoded versions, with one thread.
fn build<I>(
    rules: Rules,
    reading: Reading<I, Bytes, log::OpenError>,
    mut building: Building,
) -> Result<Machine, RestoreError<log::OpenError>>
where
    I: Iterator<Item = Result<Bytes, log::OpenError>>,
{
    let mut built = Ok(());
    let read = reading.read(VERSIONS_PER_PIECE, |mut versions| {
        built = building.take(&versions);
        versions.clear();
        built.is_ok().then_some(versions)
    });
    built.and(read).and_then(|()| building.finish(rules))
}

/// Restores from runs with two threads. A second thread reads, checks and decodes the blocks, while this
/// thread builds the machine, so that the memory of the machine is allocated on this thread.
fn build_in_two<I>(
    rules: Rules,
    reading: Reading<I, Bytes, log::OpenError>,
    mut building: Building,
) -> Result<Result<Machine, RestoreError<log::OpenError>>, DataDirError>
where
    I: Iterator<Item = Result<Bytes, log::OpenError>> + Send,
{
    std::thread::scope(|scope| {
        let (full, filled) = sync_channel::<Versions>(PIECES_MAX);
        let (emptied, empty) = channel::<Versions>();
        let reader = scope.spawn(move || {
            reading.read(VERSIONS_PER_PIECE, |versions| {
                full.send(versions).ok()?;
                Some(empty.try_recv().unwrap_or_default())
            })
        });
        let mut built = Ok(());
        for mut versions in &filled {
            built = building.take(&versions);
            if built.is_err() {
                break;
            }
            versions.clear();
            // The error is ignored: a reading thread that has ended needs no more empty batches.
            let _ = emptied.send(versions);
        }
        // Dropping the receiver makes a blocked `send` of the reading thread fail, so that the thread ends.
        // Otherwise `join` could wait without end.
        drop(filled);
        let read = reader.join().map_err(|_| DataDirError::CheckpointThreadPanicked)?;
        // If both threads failed, the error of building is returned, because it concerns earlier versions
        // than the error of reading.
        Ok(built.and(read).and_then(|()| building.finish(rules)))
    })
}

#[cfg(test)]
mod tests {
    use machine::image::{self, RunWriter};
    use mvcc::LoadError;
    use numbers::{LeaseId, Revision};

    use super::*;

    const RULES: Rules = Rules { learners_max: 1 };

    fn blocks(machine: &mut Machine) -> Vec<Bytes> {
        let mut writer = RunWriter::new(machine.store.publish(), machine.head(), Revision(0));
        std::iter::from_fn(|| writer.next_block().expect("a held view has everything"))
            .map(Bytes::from)
            .collect()
    }

    /// Returns blocks, of which those from number `torn` on cannot be read.
    fn torn_at(
        blocks: &[Bytes],
        torn: usize,
    ) -> Vec<impl Iterator<Item = Result<Bytes, log::OpenError>> + Send> {
        let missing = || log::OpenError::Missing { path: "run".into() };
        let each = move |(at, block)| if at == torn { Err(missing()) } else { Ok(block) };
        vec![blocks.iter().cloned().enumerate().map(each)]
    }

    fn restore_in_two<I>(runs: Vec<I>) -> Result<Machine, RestoreError<log::OpenError>>
    where
        I: Iterator<Item = Result<Bytes, log::OpenError>> + Send,
    {
        let (reading, building) = image::begin(runs)?;
        build_in_two(RULES, reading, building).expect("nothing panics")
    }

    /// Uses many more versions than may be passed between the threads at a time, so that one thread always
    /// waits when the other one ends.
    #[test]
    fn two_threads_restore_what_one_does_and_refuse_what_it_refuses() {
        let mut machine = Machine::new(RULES);
        for number in 0..40 * VERSIONS_PER_PIECE {
            let key = format!("/{number:08}");
            machine.store.begin().put(key.as_bytes(), mvcc::Value::default(), LeaseId::NONE);
        }
        let whole = blocks(&mut machine);
        assert!(whole.len() > 5, "{} blocks", whole.len());
        let mut restored = restore_in_two(torn_at(&whole, usize::MAX)).expect("is whole");
        assert!(blocks(&mut restored) == whole);
        let text = |error: &RestoreError<log::OpenError>| format!("{error:?}");
        let both = |blocks: &[Bytes], torn: usize| {
            let one = image::restore(RULES, torn_at(blocks, torn)).expect_err("is damaged");
            let two = restore_in_two(torn_at(blocks, torn));
            assert_eq!(two.as_ref().err().map(text), Some(text(&one)));
            one
        };
        for torn in 0..whole.len() {
            assert!(matches!(both(&whole, torn), RestoreError::Read(_)));
            let mut missing = whole.clone();
            missing.remove(torn);
            both(&missing, usize::MAX);
        }
        for at in 1..whole.len() - 2 {
            let mut swapped = whole.clone();
            swapped.swap(at, at + 1);
            // The versions of earlier blocks contradict each other before the torn block is read.
            for torn in [usize::MAX, whole.len() - 1] {
                assert_eq!(text(&both(&swapped, torn)), text(&RestoreError::Load(LoadError::OutOfOrder)));
            }
        }
    }
}
