//! Names the files of a checkpoint and tells them apart.

use log::checkpoint::Run;
use numbers::{Index, Revision};

/// Estimated size of a version of a key in a run, in bytes. Used if no run gives a better estimate, and in
/// most estimates also as a lower bound.
pub(crate) const VERSION_BYTES: u64 = 48;
pub(crate) const VERSION_BYTES_MIN: u64 = 8;

/// A run with the range of revisions that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The run contains versions above this revision; 0 for the base.
    pub from: Revision,
    /// The run contains versions up to this revision.
    pub to: Revision,
    /// File of the run.
    pub run: Run,
    /// The other files of a base in blocks.
    pub companions: Option<Companions>,
}

/// The files that a base in blocks has beside its run. They contain nothing that is not in the run, so a start
/// without a memory budget does not read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companions {
    /// The settled versions in the order of revisions.
    pub changes: Run,
    /// The list of the blocks of the run and of the changes.
    pub top: Run,
}

impl Companions {
    const CHANGES: &str = "-changes.run";
    const TOP: &str = "-top.run";

    /// Returns the name of the change file of the run with this name.
    pub(crate) fn changes_name(run: &str) -> String {
        Companions::stem(run) + Companions::CHANGES
    }

    /// Returns the name of the list of blocks of the run with this name.
    pub(crate) fn top_name(run: &str) -> String {
        Companions::stem(run) + Companions::TOP
    }

    fn stem(run: &str) -> String {
        run.strip_suffix(".run").unwrap_or(run).to_owned()
    }
}

impl Level {
    /// Returns a file name that no run of `levels` has. A suffix is added if the usual name is taken: a run
    /// with the same revisions and applied index can exist that has the locations of values before they were
    /// moved.
    pub fn name(from: Revision, to: Revision, applied_index: Index, levels: &[Level]) -> String {
        let mut name = format!("{from:016x}-{to:016x}-{applied_index:016x}.run");
        let mut again = 0;
        while levels.iter().any(|level| level.run.name == name) {
            again += 1;
            name = format!("{from:016x}-{to:016x}-{applied_index:016x}-{again:x}.run");
        }
        name
    }

    /// Returns the average number of bytes per revision in this run. The result is less than the size of a
    /// version if some of the versions were compacted.
    pub(crate) fn version_bytes(&self) -> u64 {
        let revisions = u64::try_from(self.to - self.from).unwrap_or(0).max(1);
        (self.run.file_bytes / revisions).max(VERSION_BYTES_MIN)
    }

    /// Returns the average number of bytes per revision in the last run that has versions.
    pub(crate) fn version_bytes_of(levels: &[Level]) -> u64 {
        let with_versions = levels.iter().rfind(|level| level.from < level.to);
        with_versions.map_or(VERSION_BYTES, Level::version_bytes)
    }

    /// Returns the total size of the files in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.files().map(|run| run.file_bytes).sum()
    }

    /// Returns all files, in the order in which the manifest lists them.
    pub fn files(&self) -> impl Iterator<Item = &Run> {
        let companions = self.companions.iter().flat_map(|companions| [&companions.changes, &companions.top]);
        std::iter::once(&self.run).chain(companions)
    }

    /// Returns the level described by the name of a run; `None` if the name has another format.
    pub fn of(run: Run) -> Option<Level> {
        let mut parts = run.name.strip_suffix(".run")?.split('-');
        let mut number = || i64::from_str_radix(parts.next()?, 16).ok().map(Revision);
        let (from, to) = (number()?, number()?);
        let is_companion = [Companions::CHANGES, Companions::TOP].iter().any(|end| run.name.ends_with(end));
        (!is_companion).then_some(Level { from, to, run, companions: None })
    }

    /// Returns the levels whose files a manifest lists in this order; the file whose name no file can have in its
    /// place, if there is one.
    pub fn all(runs: &[Run]) -> Result<Vec<Level>, &Run> {
        let mut levels = Vec::new();
        let mut runs = runs.iter();
        while let Some(run) = runs.next() {
            let mut level = Level::of(run.clone()).ok_or(run)?;
            let changes = Companions::changes_name(&run.name);
            if levels.is_empty()
                && let [next, ..] = runs.as_slice()
                && next.name == changes
            {
                runs.next();
                let top = runs.next().ok_or(run)?;
                if top.name != Companions::top_name(&run.name) {
                    return Err(top);
                }
                level.companions = Some(Companions { changes: next.clone(), top: top.clone() });
            }
            levels.push(level);
        }
        Ok(levels)
    }
}
