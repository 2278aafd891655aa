//! `snapshot save`: saves the whole database of a member to a file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::Rpc;
use api::etcdserverpb as pb;
use cli::{Command, Failure, Progress};
use client::Client;
use sha2::{Digest, Sha256};

use super::{MAINTENANCE, Run};
use crate::call::{Call, utf8};
use crate::globals::COMMAND_TIMEOUT;

const SNAPSHOT_EXAMPLE: &str = "  # Save snapshot to a given file\n  etcdctl snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address and save it to file\n  \
etcdctl snapshot save --endpoints=127.0.0.1:3000 /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address with certificates\n  \
etcdctl --endpoints=https://127.0.0.1:2379 --cacert=/etc/etcd/ca.crt --cert=/etc/etcd/etcd.crt \
--key=/etc/etcd/etcd.key snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot with certain user and password\n  \
etcdctl --user=root --password=password123 snapshot save /backup/etcd-snapshot.db\n  \n  \
# Get snapshot from given address with timeout\n  \
etcdctl --endpoints=https://127.0.0.1:2379 --dial-timeout=20s snapshot save /backup/etcd-snapshot.db\n  \n  \
# Save snapshot with desirable time format\n  \
etcdctl snapshot save /mnt/backup/etcd/backup_$(date +%Y%m%d_%H%M%S).db";

pub(super) const SNAPSHOT: Command<Run> = Command {
    name: "snapshot",
    usage: "snapshot <subcommand>",
    about: "Manages etcd node snapshots",
    example: SNAPSHOT_EXAMPLE,
    subcommands: &[Command {
        name: "save",
        usage: "save <filename>",
        about: "Stores an etcd node backend snapshot to a given file",
        example: SNAPSHOT_EXAMPLE,
        run: Some(Run::asking(|call| Box::pin(save(call)))),
        ..Command::EMPTY
    }],
    group: MAINTENANCE,
    ..Command::EMPTY
};

/// Size in bytes of the checksum, which follows the database in the file.
const CHECKSUM_BYTES: usize = 32;

/// The size of a database in bytes is a multiple of this number. The length of a complete file is therefore
/// [`CHECKSUM_BYTES`] more than a multiple.
const SECTOR_BYTES: u64 = 512;

pub(super) async fn save(call: &Call) -> Result<(), Failure> {
    let [path] = call.args() else {
        return Err(Failure::bad_args("snapshot save expects one argument <filename>"));
    };
    let path = utf8(path)?;
    let globals = call.globals().await?;
    // Check the settings before the number of endpoints, so that an error in the TLS files is reported first.
    globals.settings(globals.endpoints.clone())?;
    if globals.endpoints.len() != 1 {
        let endpoints = globals.endpoints.join(" ");
        return Err(interrupted(format!(
            "snapshot must be requested to one selected node, not multiple [{endpoints}]"
        )));
    }
    let connection =
        call.connect().await.map_err(|failure| Failure { code: Failure::INTERRUPTED, ..failure })?;
    let fetched = fetch(&connection, Path::new(&path));
    // The default of `--command-timeout` would be too short for a large snapshot, so use the limit only if
    // the user has set the flag.
    let version = if call.matches.is_given(COMMAND_TIMEOUT) {
        let limit = call.matches.get(COMMAND_TIMEOUT);
        tokio::time::timeout(limit, fetched)
            .await
            .unwrap_or_else(|_| Err(interrupted("could not write snapshot: context deadline exceeded")))
    } else {
        fetched.await
    };
    let version = version?;
    call.line(format!("Snapshot saved at {path}"))?;
    if !version.is_empty() {
        call.line(format!("Server version {version}"))?;
    }
    Ok(())
}

/// Returns the failure for a snapshot that could not be saved.
fn interrupted(text: impl std::fmt::Display) -> Failure {
    Failure::new(Failure::INTERRUPTED, text)
}

/// An unfinished file. Dropping the value removes the file, unless it was renamed to its final name.
struct Part {
    path: PathBuf,
    kept: bool,
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.kept {
            // Ignore an error: either the file does not exist, or it remains with a name that shows that it
            // is unfinished.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Fetches a snapshot. Returns the server's version; it is empty for servers before 3.6, which do not report
/// it.
async fn fetch(connection: &Client, path: &Path) -> Result<String, Failure> {
    let mut part_path = path.as_os_str().to_owned();
    part_path.push(".part");
    let mut part = Part { path: part_path.into(), kept: false };
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part.path);
    let mut file = opened.map_err(|error| {
        let part = part.path.display();
        interrupted(format!("could not open {part} (open {part}: {})", reason(&error)))
    })?;
    let mut stream = connection
        .open_with::<_, pb::SnapshotResponse>(Rpc::MaintenanceSnapshot, &pb::SnapshotRequest {})
        .await
        .map_err(|status| interrupted(status.shown()))?;
    let mut progress = Progress::of_bytes("fetching snapshot", None);
    let mut received = Received::default();
    let mut version = None;
    while let Some(piece) = stream.next().await.map_err(|status| match version {
        // The server has refused the request before it sent any data: report the refusal unchanged, with its
        // code.
        None => interrupted(status),
        Some(_) => interrupted(format!("could not write snapshot: {}", status.shown())),
    })? {
        file.write_all(&piece.blob)
            .map_err(|error| interrupted(format!("could not write snapshot: {}", reason(&error))))?;
        received.take(&piece.blob);
        progress.set_total(received.bytes + piece.remaining_bytes);
        progress.at(received.bytes, "");
        version.get_or_insert(piece.version);
    }
    progress.finish();
    if received.bytes % SECTOR_BYTES != CHECKSUM_BYTES as u64 {
        return Err(interrupted(format!("sha256 checksum not found [bytes: {}]", received.bytes)));
    }
    if !received.is_whole() {
        return Err(interrupted("sha256 checksum mismatch: the data was corrupted in transfer; try again"));
    }
    synced(file, &mut part, path)?;
    Ok(version.unwrap_or_default())
}

/// Syncs the file to disk, and then renames it to its final name.
fn synced(file: File, part: &mut Part, path: &Path) -> Result<(), Failure> {
    file.sync_all().map_err(|error| interrupted(format!("could not fsync snapshot: {}", reason(&error))))?;
    drop(file);
    fs::rename(&part.path, path).map_err(|error| {
        let (from, to) = (part.path.display(), path.display());
        interrupted(format!("could not rename {from} to {to} (rename {from} {to}: {})", reason(&error)))
    })?;
    part.kept = true;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all()).map_err(
        |error| {
            let path = path.display();
            interrupted(format!("could not fsync the directory of {path}: {}", reason(&error)))
        },
    )
}

/// Returns the message of an operating system error as Go prints it.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    chars.next().map(|first| first.to_lowercase().collect::<String>() + chars.as_str()).unwrap_or_default()
}

/// Checks the checksum of a snapshot while it is being received. The last bytes received so far are kept in
/// `tail` and not hashed, because they are possibly the checksum.
#[derive(Default)]
struct Received {
    bytes: u64,
    hash: Sha256,
    tail: Vec<u8>,
}

impl Received {
    fn take(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.tail.extend_from_slice(piece);
        let settled = self.tail.len().saturating_sub(CHECKSUM_BYTES);
        self.hash.update(&self.tail[..settled]);
        self.tail.drain(..settled);
    }

    fn is_whole(&self) -> bool {
        self.hash.clone().finalize()[..] == self.tail[..]
    }
}
