//! Describes, for the operator, a store that etcd has created beside the files of a member of Mainstay.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::shell::in_shell;

/// Files of etcd in a data directory, which may also contain a member of Mainstay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdFiles {
    /// Directory `member/snap`, if it exists.
    pub snap: Option<PathBuf>,
    /// Directories that contain a log of etcd.
    pub logs: Vec<PathBuf>,
}

/// A store that etcd has created beside the files of a member of Mainstay.
#[derive(Debug)]
pub struct EtcdBeside {
    /// The data directory.
    pub data_dir: PathBuf,
    /// etcd's files in the data directory.
    pub files: EtcdFiles,
    /// Content of etcd's store: data of clients, or none.
    pub holds: Holds,
    /// The program whose files were written last; `None` if the modification times are not known.
    pub newer: Option<Newer>,
}

/// Content of a store that etcd has created: data of clients, or none.
#[derive(Debug)]
pub enum Holds {
    /// No client has written to etcd's store.
    Nothing,
    /// Clients have written to etcd's store.
    Something,
    /// etcd's store cannot be read, for this reason.
    Unreadable(String),
}

/// The program whose files were written last, with the time since the other program's last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newer {
    /// etcd's files are newer, by this duration.
    Etcd(Duration),
    /// Mainstay's files are newer, by this duration.
    Mainstay(Duration),
}

impl fmt::Display for EtcdBeside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EtcdBeside { data_dir, files, holds, newer } = self;
        let data = data_dir.display();
        write!(
            f,
            "etcd was started on {data}, which holds a Mainstay member that never ran etcd, and created a \
             new store beside Mainstay's data. "
        )?;
        match newer {
            Some(Newer::Etcd(by)) => {
                write!(f, "etcd's files are newer, written {} after Mainstay's", Span(*by))?;
            }
            Some(Newer::Mainstay(by)) => {
                write!(f, "Mainstay's files are newer, written {} after etcd's", Span(*by))?;
            }
            None => write!(f, "It is unknown which files are newer")?,
        }
        match holds {
            Holds::Nothing => write!(f, ", but etcd's store is empty: no client has written to it")?,
            Holds::Something => {
                write!(
                    f,
                    "; clients have written to etcd's store, and Mainstay's data does not contain those writes"
                )?;
            }
            Holds::Unreadable(why) => write!(f, "; etcd's store cannot be read ({why})")?,
        }
        let aside = data_dir.join("begun-by-etcd");
        let member = in_shell(&aside.join("member"));
        write!(
            f,
            ". Mainstay's data is unchanged. To continue with it, stop etcd and move its files out of the \
             way: `mkdir -p {member}/wal"
        )?;
        if let Some(snap) = &files.snap {
            write!(f, " && mv {} {member}/", in_shell(snap))?;
        }
        for log in &files.logs {
            write!(f, " && mv {}/*.wal {member}/wal/", in_shell(log))?;
        }
        write!(f, "`")?;
        if !matches!(holds, Holds::Nothing) {
            write!(
                f,
                "; the data written to etcd can then be read there (etcd --data-dir {aside}, or `mainstay \
                 utl import --data-dir {aside} --to NEW_DIR`)",
                aside = in_shell(&aside)
            )?;
        }
        Ok(())
    }
}

/// Formats a duration for humans: a whole number of the largest unit of which it contains at least two.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ 0..120 => write!(f, "{seconds} s"),
            seconds @ 120..7_200 => write!(f, "{} min", seconds / 60),
            seconds @ 7_200..172_800 => write!(f, "{} h", seconds / 3_600),
            seconds => write!(f, "{} days", seconds / 86_400),
        }
    }
}
