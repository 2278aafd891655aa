//! `drop-etcd`: deletes the files of etcd beside those of a member that was taken over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cli::{Command, Failure, Flag};
use disk::{Disk as _, RealDisk};
use storage::taken_over::{MARK_NAME, TakenOver};

use crate::Session;
use crate::commands::{Run, required};

const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Path to the data directory of a member that was taken over");

pub(crate) const DROP_ETCD: Command<Run> = Command {
    name: "drop-etcd",
    usage: "drop-etcd --data-dir {data dir}",
    about: "Deletes the files that etcd left in the data directory of a member that Mainstay took over",
    long: "Deletes the files that etcd left in the data directory of a member that Mainstay took over where it is. They are out of
date since Mainstay first served from that directory. The member may be running.
",
    example: "  etcdutl drop-etcd --data-dir default.etcd",
    flags: &[DATA_DIR.row()],
    run: Some(Run(run)),
    ..Command::EMPTY
};

fn run(session: &mut Session<'_>) -> Result<(), Failure> {
    required(session, &[DATA_DIR.row()])?;
    let data_dir = PathBuf::from(session.matches.get(DATA_DIR));
    let member_dir = data_dir.join("member");
    let Some(mark) = TakenOver::read(&RealDisk, &member_dir).map_err(Failure::error)? else {
        return Err(Failure::error(format!(
            "{} holds no member that was taken over from etcd, or etcd's files were dropped before",
            data_dir.display()
        )));
    };
    mark.check(&RealDisk, &member_dir).map_err(Failure::error)?;
    // From here on files that are missing are no reason to refuse a start.
    let mark = TakenOver { is_dropping: true, ..mark };
    mark.write(&RealDisk, &member_dir).map_err(Failure::error)?;
    let wal_dir = mark.wal_dir(&member_dir);
    let mut files = 0;
    // The guards sort last: while a file of the log is left, etcd does not start on it.
    for name in list(&wal_dir)? {
        if name.ends_with(".wal") || is_prepared(&name) {
            gone(fs::remove_file(wal_dir.join(&name)), &wal_dir.join(&name))?;
            files += 1;
        }
    }
    let snap = member_dir.join("snap");
    files += list(&snap)?.len();
    gone(fs::remove_dir_all(&snap), &snap)?;
    let own = member_dir.join("wal");
    if list(&own)?.is_empty() && fs::read_dir(&own).is_ok_and(|mut rest| rest.next().is_none()) {
        gone(fs::remove_dir(&own), &own)?;
    }
    let failed = |error: io::Error| {
        Failure::error(format!("cannot make it durable in {}: {error}", member_dir.display()))
    };
    if wal_dir.exists() {
        RealDisk.sync_dir(&wal_dir).map_err(failed)?;
    }
    RealDisk.sync_dir(&member_dir).map_err(failed)?;
    gone(fs::remove_file(member_dir.join(MARK_NAME)), &member_dir.join(MARK_NAME))?;
    RealDisk.sync_dir(&member_dir).map_err(failed)?;
    session.notices.info(
        "dropped the files of etcd",
        &[("data-dir", data_dir.display().to_string().into()), ("files", files.into())],
    );
    Ok(())
}

/// Returns true if etcd has prepared a file of this name for its log: a number and `.tmp`.
fn is_prepared(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Names of the files in a directory, which may be gone; sorted.
fn list(dir: &Path) -> Result<Vec<String>, Failure> {
    match RealDisk.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(|error| Failure::error(format!("cannot list {}: {error}", dir.display()))),
    }
}

/// What is gone already needs no removal.
fn gone(removed: io::Result<()>, path: &Path) -> Result<(), Failure> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Failure::error(format!("cannot remove {}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}
