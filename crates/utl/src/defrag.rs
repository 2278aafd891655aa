//! `defrag`: rewrites etcd's database without its free pages. Mainstay's files have no free pages.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cli::{Command, Failure, Flag};
use disk::{Disk, RealDisk};
use interchange::bolt::Bolt;
use storage::stopped::Stopped;

use crate::Session;
use crate::migrate::{lock, rewrite};
use crate::session::{Run, required};
use crate::snapshot_file::{open_file, stat};

const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Defragments a data directory not in use by etcd.");

pub(crate) const DEFRAG: Command<Run> = Command {
    name: "defrag",
    usage: "defrag",
    about: "Defragments the storage of the etcd",
    example: "  etcdutl defrag --data-dir default.etcd",
    flags: &[DATA_DIR.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    required(session, &[DATA_DIR.row()])?;
    let text = session.matches.get(DATA_DIR);
    let dir = PathBuf::from(text);
    let member_dir = dir.join("member");
    let is_ours = storage::etcd_beside::holds_member(&RealDisk, &member_dir).map_err(Failure::error)?;
    let done = match is_ours {
        true => explain(session, &dir),
        false => defragment(session, &dir),
    };
    done.map_err(|failure| Failure {
        text: Some(format!("Failed to defragment etcd data[{text}] ({failure})")),
        ..failure
    })
}

fn defragment(session: &mut Session<'_>, dir: &Path) -> Result<(), Failure> {
    let path = dir.join("member").join("snap").join("db");
    let before = stat(&path)?.len();
    let _lock = lock(&path, session.matches.get(crate::session::TIMEOUT))?;
    let bolt =
        Bolt::whole(open_file(&path)?).map_err(|e| Failure::error(format!("{}: {e}", path.display())))?;
    let name = path.display().to_string();
    session.notices.info(
        "defragmenting",
        &[
            ("path", name.as_str().into()),
            ("current-db-size-bytes", before.into()),
            ("current-db-size", cli::go::bytes(before).into()),
        ],
    );
    let after = rewrite(&path, &bolt, None)?;
    session.notices.info(
        "finished defragmenting directory",
        &[
            ("path", name.into()),
            ("current-db-size-bytes-diff", (after as i64 - before as i64).into()),
            ("current-db-size-bytes", after.into()),
            ("current-db-size", cli::go::bytes(after).into()),
        ],
    );
    Ok(())
}

/// Explains that a directory of Mainstay needs no defragmentation, and how much space a running member will
/// free without this command.
fn explain(session: &mut Session<'_>, dir: &Path) -> Result<(), Failure> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let stopped = Stopped::open(&disk, dir).map_err(Failure::error)?;
    let (live, used, files) = stopped.log_use();
    session.notices.info(
        "nothing to defragment: a data directory of Mainstay has no free pages. A running member deletes \
         log segments with few live values after moving these values, without interruption",
        &[
            ("live-value-bytes", live.into()),
            ("live-values", cli::go::bytes(live).into()),
            ("log-record-bytes", used.into()),
            ("log-file-bytes", files.into()),
            ("log-files", cli::go::bytes(files).into()),
            ("dead-bytes-max", used.saturating_sub(live).into()),
            ("dead-max", cli::go::bytes(used.saturating_sub(live)).into()),
        ],
    );
    // Scripts wait for etcd's last line.
    session.notices.info(
        "finished defragmenting directory",
        &[
            ("path", dir.join("member").join("log").display().to_string().into()),
            ("current-db-size-bytes-diff", 0i64.into()),
            ("current-db-size-bytes", files.into()),
            ("current-db-size", cli::go::bytes(files).into()),
        ],
    );
    Ok(())
}
