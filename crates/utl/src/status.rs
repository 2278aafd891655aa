//! `snapshot status`: prints revision, number of keys, size and hash of a snapshot.

use cli::{Command, Failure};
use interchange::Status;

use crate::Session;
use crate::printer::{Cell, Format};
use crate::session::Run;
use crate::snapshot_file::{SnapshotFile, stat};

pub(crate) const STATUS: Command<Run> = Command {
    name: "status",
    usage: "status <filename>",
    about: "Gets backend snapshot status of a given file",
    example: "  etcdutl snapshot status backup.db -w table",
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    if session.matches.args.len() != 1 {
        return Err(Failure::bad_args("snapshot status requires exactly one argument"));
    }
    let path = crate::session::one_arg(session)?;
    stat(&path)?;
    let format = Format::of(session.matches.get(crate::session::WRITE_OUT))?;
    let status = match SnapshotFile::look(&path)? {
        SnapshotFile::Etcd(backend) => {
            Status::of(&backend).map_err(|e| Failure::error(format!("{}: {e}", path.display())))?
        }
        SnapshotFile::Own(..) => return Err(own_format(&path)),
    };
    let cells = [
        Cell {
            field: "Hash",
            json: "hash",
            column: "HASH",
            exact: status.hash.into(),
            shown: format!("{:x}", status.hash),
        },
        Cell {
            field: "Revision",
            json: "revision",
            column: "REVISION",
            exact: status.revision.0.into(),
            shown: status.revision.to_string(),
        },
        Cell {
            field: "Keys",
            json: "totalKey",
            column: "TOTAL KEYS",
            exact: status.total_keys.into(),
            shown: status.total_keys.to_string(),
        },
        Cell {
            field: "Size",
            json: "totalSize",
            column: "TOTAL SIZE",
            exact: status.total_size_bytes.into(),
            shown: cli::go::bytes(status.total_size_bytes),
        },
        Cell {
            field: "Version",
            json: "version",
            column: "VERSION",
            exact: status.version.as_str().into(),
            shown: status.version.clone(),
        },
    ];
    let text = format.print(&cells)?;
    session.print(&text)
}

/// Returns the error for a snapshot in Mainstay's own format, which only `restore` accepts.
pub(crate) fn own_format(path: &std::path::Path) -> Failure {
    Failure::error(format!(
        "{} is a snapshot in a format used by early versions of Mainstay: restore it (etcdutl snapshot \
         restore), with --format etcd to get a database that can be inspected",
        path.display()
    ))
}
