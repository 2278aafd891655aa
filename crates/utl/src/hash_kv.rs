//! `hashkv`.

use interchange::{HashKvError, hash_kv};

use crate::commands::one_arg;
use crate::printer::{Cell, Format};
use crate::snapshot_file::{SnapshotFile, stat};
use crate::status::own_format;
use crate::{Refusal, Session};

pub(crate) fn run(session: &mut Session<'_>) -> Result<(), Refusal> {
    let path = one_arg(session)?;
    let format = Format::of(session.matches.text("write-out"))?;
    stat(&path)?;
    // etcdutl opens the file for writing, and leaves it changed: it no longer restores. Here it is read.
    let backend = match SnapshotFile::look(&path)? {
        SnapshotFile::Etcd(backend) => backend,
        SnapshotFile::Own(..) => return Err(own_format(&path)),
    };
    let found = hash_kv(&backend, session.matches.int("rev")).map_err(|error| match error {
        HashKvError::Compacted(_) => Refusal::failed("mvcc: required revision has been compacted"),
        HashKvError::Future(_) => Refusal::failed("mvcc: required revision is a future revision"),
        HashKvError::Read(error) => Refusal::failed(format!("{}: {error}", path.display())),
    })?;
    let cells = [
        Cell {
            field: "Hash",
            json: "hash",
            column: "HASH",
            exact: found.hash.into(),
            shown: found.hash.to_string(),
        },
        Cell {
            field: "Hash revision",
            json: "hashRevision",
            column: "HASH REVISION",
            exact: found.hash_revision.into(),
            shown: found.hash_revision.to_string(),
        },
        Cell {
            field: "Compact revision",
            json: "compactRevision",
            column: "COMPACT REVISION",
            exact: found.compact_revision.into(),
            shown: found.compact_revision.to_string(),
        },
    ];
    let text = format.print(&cells)?;
    session.print(&text)
}
