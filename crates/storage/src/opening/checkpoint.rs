//! Restores the state of a checkpoint, with one thread or two.

use std::path::Path;
use std::sync::mpsc::{channel, sync_channel};

use bytes::Bytes;
use log::checkpoint::{CheckpointStore, Manifest};
use machine::image::{RestoreError, Versions};
use machine::{Machine, Rules};

use crate::checkpointer::Level;
use crate::error::{DataDirError, Inconsistency};
use crate::identity::Identity;

/// Number of versions in a batch that is passed between the threads. Such a batch fits into the cache of a
/// processor core.
const VERSIONS_PER_PIECE: usize = 2048;
/// Maximum number of batches that are queued for the building thread.
const PIECES_MAX: usize = 4;

/// Restores the state of a checkpoint, with two threads if `threads` is true. If [`DataDirError::is_damage`]
/// is true for the returned error, the state may be rebuilt from the log instead.
pub(crate) fn restore(
    rules: Rules,
    checkpoints: &CheckpointStore,
    manifest: Option<&Manifest>,
    member_dir: &Path,
    identity: &Identity,
    threads: bool,
) -> Result<(Machine, Vec<Level>), DataDirError> {
    let Some(manifest) = manifest else { return Ok((Machine::new(rules), Vec::new())) };
    let (mut runs, mut levels) = (Vec::new(), Vec::new());
    for run in &manifest.runs {
        let mut reader = checkpoints.read(run)?;
        // Runs that an older release of Mainstay has written contain no identity, so they cannot be checked.
        if !reader.metadata.is_empty() && reader.metadata != identity.to_bytes() {
            let path = member_dir.join("checkpoint").join(&run.name);
            return Err(DataDirError::OtherCheckpoint { path, identity: identity.clone() });
        }
        runs.push(std::iter::from_fn(move || reader.next_block().transpose()));
        let level =
            Level::of(run.clone()).ok_or_else(|| Inconsistency::UnknownRun { name: run.name.clone() })?;
        levels.push(level);
    }
    let restored = if threads { restore_in_two(rules, runs)? } else { machine::image::restore(rules, runs) };
    let machine = restored.map_err(|error| match error {
        RestoreError::Read(error) => DataDirError::Files(error),
        error => Inconsistency::Checkpoint { dir: member_dir.join("checkpoint"), error }.into(),
    })?;
    Ok((machine, levels))
}

/// Restores from runs with two threads. A second thread reads, checks and decodes the blocks, while this
/// thread builds the machine, so that the memory of the machine is allocated on this thread.
fn restore_in_two<I>(
    rules: Rules,
    runs: Vec<I>,
) -> Result<Result<Machine, RestoreError<log::OpenError>>, DataDirError>
where
    I: Iterator<Item = Result<Bytes, log::OpenError>> + Send,
{
    let (reading, mut building) = match machine::image::begin(runs) {
        Ok(halves) => halves,
        Err(error) => return Ok(Err(error)),
    };
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
        let mut restored =
            restore_in_two(RULES, torn_at(&whole, usize::MAX)).expect("nothing panics").expect("is whole");
        assert!(blocks(&mut restored) == whole);
        let text = |error: &RestoreError<log::OpenError>| format!("{error:?}");
        let both = |blocks: &[Bytes], torn: usize| {
            let one = image::restore(RULES, torn_at(blocks, torn)).expect_err("is damaged");
            let two = restore_in_two(RULES, torn_at(blocks, torn)).expect("nothing panics");
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
