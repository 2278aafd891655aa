//! `hashkv`: prints the HashKV (etcd's hash of all key versions up to a revision) of a database.

use cli::{Command, Failure, Flag};
use interchange::{HashKvError, hash_kv};
use numbers::Revision;

use crate::Session;
use crate::printer::{Cell, Format};
use crate::session::{Run, one_arg};
use crate::snapshot_file::{SnapshotFile, stat};
use crate::status::own_format;

const REV: Flag<i64> = Flag::int("rev", "0", "maximum revision to hash (default: latest revision)");

pub(crate) const HASHKV: Command<Run> = Command {
    name: "hashkv",
    usage: "hashkv <filename>",
    about: "Prints the KV history hash of a given file",
    example: "  etcdutl hashkv backup.db --rev 1000",
    flags: &[REV.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    let path = one_arg(session)?;
    let format = Format::of(session.matches.get(crate::session::WRITE_OUT))?;
    stat(&path)?;
    // Open the file only for reading. etcdutl opens it for writing, which changes it, and the snapshot can no
    // longer be restored.
    let backend = match SnapshotFile::look(&path)? {
        SnapshotFile::Etcd(backend) => backend,
        SnapshotFile::Own(..) => return Err(own_format(&path)),
    };
    let found = hash_kv(&backend, Revision(session.matches.get(REV))).map_err(|error| match error {
        HashKvError::Compacted(_) => Failure::error("mvcc: required revision has been compacted"),
        HashKvError::Future(_) => Failure::error("mvcc: required revision is a future revision"),
        HashKvError::Read(error) => Failure::error(format!("{}: {error}", path.display())),
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
            exact: found.hash_revision.0.into(),
            shown: found.hash_revision.to_string(),
        },
        Cell {
            field: "Compact revision",
            json: "compactRevision",
            column: "COMPACT REVISION",
            exact: found.compact_revision.0.into(),
            shown: found.compact_revision.to_string(),
        },
    ];
    let text = format.print(&cells)?;
    session.print(&text)
}
