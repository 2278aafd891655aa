//! Detects paths in arguments that name the wrong file or directory, and returns errors that name the right
//! path or command. Such a path is, for example, a directory of the other product, the directory `member` in
//! a data directory, or the file that keeps etcd from starting in a directory of Mainstay. Without these
//! checks the user would get an error of the operating system.

use std::fs;
use std::path::{Path, PathBuf};

use cli::Failure;
use disk::RealDisk;
use storage::etcd_beside::{SIGN_TEXT, holds_member};

/// Returns an error if a path is not a data directory: if it is a file, does not exist, or is the directory
/// `member` in a data directory.
///
/// # Errors
///
/// Returns an error that says what the path is, and which path to give instead.
pub fn refuse_other(data_dir: &Path) -> Result<(), Failure> {
    let name = data_dir.display();
    refuse_file(data_dir)?;
    if !data_dir.exists() {
        return Err(Failure::error(format!("{name} does not exist: name the --data-dir of a member")));
    }
    let is_part =
        data_dir.file_name().is_some_and(|name| name == "member") && !data_dir.join("member").exists();
    match data_dir.parent() {
        Some(above) if is_part => {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            Err(Failure::error(format!(
                "{name} is only a part of a data directory: give the whole directory, --data-dir {}",
                above.display()
            )))
        }
        _ => Ok(()),
    }
}

/// Checks that `data_dir` is not a file.
///
/// # Errors
///
/// Returns an error if `data_dir` exists and is not a directory.
pub fn refuse_file(data_dir: &Path) -> Result<(), Failure> {
    match fs::metadata(data_dir) {
        Ok(found) if !found.is_dir() => {
            Err(Failure::error(format!("{} is a file: name the --data-dir of a member", data_dir.display())))
        }
        _ => Ok(()),
    }
}

/// Returns an error if a data directory has no database of etcd. The error says what the directory contains
/// instead.
///
/// # Errors
///
/// Returns an error if there is no such database.
pub fn refuse_without_database(data_dir: &Path) -> Result<(), Failure> {
    let (name, database) = (data_dir.display(), data_dir.join("member").join("snap").join("db"));
    if let Some(what) = holds_mainstays(data_dir) {
        return Err(Failure::error(format!(
            "{what}: there is no data of etcd to import. Start `mainstay` on it as it is, or convert it \
             for etcd with `mainstay utl export --data-dir {name} --to NEW`"
        )));
    }
    match database.exists() {
        true => Ok(()),
        false => Err(Failure::error(format!(
            "{name}: it lacks {}, which every member of etcd has",
            database.display()
        ))),
    }
}

/// Returns the message "… holds a member of Mainstay" if a data directory contains a Mainstay member and no
/// database of etcd; otherwise `None`.
pub fn holds_mainstays(data_dir: &Path) -> Option<String> {
    let member_dir = data_dir.join("member");
    let is_mainstays = holds_member(&RealDisk, &member_dir).unwrap_or(false);
    (is_mainstays && !member_dir.join("snap").join("db").exists())
        .then(|| format!("{} holds a member of Mainstay", data_dir.display()))
}

/// Returns a hint to append to an error about a path, if a file of Mainstay is in place of `member/snap` and
/// the path is this file or leads through it; otherwise `None`.
pub fn in_place_of_snap(path: &Path) -> Option<String> {
    let is_it = |path: &Path| {
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == SIGN_TEXT.len() as u64)
            && fs::read(path).is_ok_and(|bytes| bytes == SIGN_TEXT.as_bytes())
    };
    let snap = path.ancestors().take(2).find(|path| is_it(path))?;
    let data_dir: PathBuf =
        snap.parent().and_then(Path::parent).map_or_else(|| "DIR".into(), Path::to_path_buf);
    let data_dir = if data_dir.as_os_str().is_empty() { Path::new(".") } else { &data_dir };
    Some(format!(
        ": {} is a file that keeps etcd from starting on a directory of Mainstay, which has no etcd \
         database. `etcdctl snapshot save` gets one from the running member; `mainstay utl export \
         --data-dir {} --to NEW` creates NEW/member/snap/db from a stopped one",
        snap.display(),
        data_dir.display()
    ))
}
