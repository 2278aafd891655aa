//! Records the progress of a rebuild on disk in a [`Journal`], from which [`next_step`] decides how an
//! interrupted rebuild continues.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use api::etcdserverpb::Member;
use disk::Disk;

use super::RebuildError;

/// The journal, one line: `<old id> voter|learner <new id> new|started <peer URLs, sorted, comma-separated>
/// <cluster id>`, with ids in hexadecimal digits.
///
/// A journal written by an older release has only the first two or the first five words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journal {
    /// Id of the member that is replaced; 0 if unknown.
    pub old: u64,
    pub learner: bool,
    /// Id of the new member; 0 until it is added.
    pub new: u64,
    /// True if the new member has possibly run; set before its first start.
    pub started: bool,
    /// Peer URLs with which the rebuild began; `None` in a journal of an older release.
    pub peer_urls: Option<String>,
    /// Cluster id; `None` in a journal of an older release.
    pub cluster: Option<u64>,
}

impl Journal {
    /// Creates the journal of a rebuild that has performed no step yet.
    pub fn begin(cluster: u64, old: u64, learner: bool, peer_urls: &str) -> Journal {
        let (peer_urls, cluster) = (Some(peer_urls.to_owned()), Some(cluster));
        Journal { old, learner, new: 0, started: false, peer_urls, cluster }
    }
}

/// The next step of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start the new member with the data that it has already written to this directory.
    Continue,
    /// Start the new member without data, because it has never run.
    StartEmpty,
    /// Remove the member at this address, if there is one, and add another member in its place.
    Replace,
}

/// Returns the next step. `own` is the member that the cluster lists at this address, and `data` is the id of
/// the member whose data is in the data directory. A member with a name has run, since a member publishes its
/// name when it starts.
pub(super) fn next_step(own: Option<&Member>, data: Option<u64>, journal: Option<&Journal>) -> Next {
    let (Some(own), Some(journal)) = (own, journal) else { return Next::Replace };
    if own.id == journal.old {
        Next::Replace
    } else if data == Some(own.id) {
        Next::Continue
    } else if own.id == journal.new && !journal.started && own.name.is_empty() {
        Next::StartEmpty
    } else {
        Next::Replace
    }
}

/// Reads the journal at this path, if it exists.
pub(super) fn read(path: &Path) -> Result<Option<Journal>, RebuildError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RebuildError::io("read", path, error)),
    };
    let journal = parse(&text);
    journal.map(Some).ok_or_else(|| RebuildError::Journal { path: path.to_path_buf() })
}

fn parse(text: &str) -> Option<Journal> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (old, kind, rest) = match words.as_slice() {
        [old, kind] => (old, kind, None),
        [old, kind, new, state, peer_urls] => (old, kind, Some((new, state, peer_urls, None))),
        [old, kind, new, state, peer_urls, cluster] => {
            (old, kind, Some((new, state, peer_urls, Some(cluster))))
        }
        _ => return None,
    };
    let learner = match *kind {
        "voter" => false,
        "learner" => true,
        _ => return None,
    };
    let old = u64::from_str_radix(old, 16).ok()?;
    let Some((new, state, peer_urls, cluster)) = rest else {
        return Some(Journal { old, learner, new: 0, started: true, peer_urls: None, cluster: None });
    };
    let started = match *state {
        "new" => false,
        "started" => true,
        _ => return None,
    };
    let new = u64::from_str_radix(new, 16).ok()?;
    let cluster = match cluster {
        Some(cluster) => Some(u64::from_str_radix(cluster, 16).ok()?),
        None => None,
    };
    Some(Journal { old, learner, new, started, peer_urls: Some((*peer_urls).to_owned()), cluster })
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.learner { "learner" } else { "voter" };
        write!(f, "{:x} {kind}", self.old)?;
        if let Some(peer_urls) = &self.peer_urls {
            let state = if self.started { "started" } else { "new" };
            write!(f, " {:x} {state} {peer_urls}", self.new)?;
        }
        if let Some(cluster) = self.cluster {
            write!(f, " {cluster:x}")?;
        }
        writeln!(f)
    }
}

/// Replaces the journal atomically and durably.
pub(super) fn write(disk: &dyn Disk, path: &Path, journal: &Journal) -> Result<(), RebuildError> {
    let making = path.with_extension("tmp");
    let failed = |error| RebuildError::io("write", path, error);
    if disk.exists(&making).map_err(failed)? {
        disk.remove(&making).map_err(failed)?;
    }
    let file = disk.create(&making).map_err(failed)?;
    file.write_at(journal.to_string().as_bytes(), 0).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    disk.rename(&making, path).map_err(failed)?;
    disk.sync_dir(path.parent().unwrap_or(path)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn journals_are_read_as_written() {
        let urls = "http://10.0.0.1:2380,http://10.0.0.2:2380";
        let begun = Journal::begin(0x77, 0xabc, true, urls);
        let added = Journal { new: 0xdef, ..begun.clone() };
        let started = Journal { started: true, ..added.clone() };
        assert_eq!(added.to_string(), format!("abc learner def new {urls} 77\n"));
        let of_no_cluster = Journal { cluster: None, ..added.clone() };
        assert_eq!(
            of_no_cluster.to_string(),
            format!("abc learner def new {urls}\n"),
            "as older versions wrote it"
        );
        for journal in [begun, added, started, of_no_cluster] {
            assert_eq!(parse(&journal.to_string()), Some(journal));
        }
        let older = parse("abc voter\n").expect("older versions wrote this");
        assert!(
            older.started && older.new == 0 && older.peer_urls.is_none(),
            "nothing is known of the new member"
        );
        for damaged in [
            "",
            "abc",
            "abc voter def",
            "abc voter def run u",
            "x voter",
            "abc voter def new u u",
            "abc voter def new u 7 7",
        ] {
            assert_eq!(parse(damaged), None, "{damaged:?}");
        }
    }

    #[test]
    fn no_member_starts_empty_that_may_have_run() {
        let begun = Journal::begin(7, 1, false, "u");
        let added = Journal { new: 2, ..begun.clone() };
        let started = Journal { started: true, ..added.clone() };
        let older = Journal { started: true, peer_urls: None, cluster: None, ..begun.clone() };
        let listed = |id: u64| Member { id, ..Member::default() };
        let next_step = |own: Option<u64>, data, journal: Option<&Journal>| {
            next_step(own.map(listed).as_ref(), data, journal)
        };
        assert_eq!(next_step(Some(1), None, None), Next::Replace);
        assert_eq!(next_step(Some(1), Some(1), Some(&begun)), Next::Replace);
        assert_eq!(next_step(None, Some(1), Some(&begun)), Next::Replace);
        // The member was added, and either the program was killed before the journal recorded it, or another
        // process added the member.
        assert_eq!(next_step(Some(2), None, Some(&begun)), Next::Replace);
        assert_eq!(next_step(Some(2), None, Some(&added)), Next::StartEmpty);
        assert_eq!(next_step(Some(2), Some(1), Some(&added)), Next::StartEmpty);
        assert_eq!(next_step(Some(2), Some(2), Some(&started)), Next::Continue);
        assert_eq!(next_step(Some(2), None, Some(&started)), Next::Replace);
        assert_eq!(next_step(Some(3), None, Some(&added)), Next::Replace);
        assert_eq!(next_step(Some(2), None, Some(&older)), Next::Replace);
        assert_eq!(next_step(Some(2), Some(2), Some(&older)), Next::Continue);
        let named = Member { name: "m".to_owned(), ..listed(2) };
        assert_eq!(
            super::next_step(Some(&named), None, Some(&added)),
            Next::Replace,
            "somebody has started it"
        );
    }
}
