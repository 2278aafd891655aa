//! Detects directories in which etcd has never started a store, and stores to which no client has written.

use std::io::ErrorKind;
use std::path::Path;

use api::etcdserverpb::InternalRaftRequest;
use disk::Disk;
use prost::Message as _;

use crate::backend::{Backend, name};
use crate::bolt::Bolt;
use crate::command::Command;
use crate::data_dir::DataDir;
use crate::error::Error;

/// Returns true if a directory of etcd's snapshots (`member/snap`) contains no data: no image, and no
/// database into which an entry or a snapshot was ever written. Such a directory remains if an etcd process
/// ends before it creates its log.
///
/// A file that cannot be read counts as data. The caller must have checked that no log exists; etcd creates
/// the log before any data.
pub fn holds_nothing(disk: &dyn Disk, snap_dir: &Path) -> bool {
    let Ok(names) = disk.list(snap_dir) else { return false };
    names.iter().all(|name| match name.as_str() {
        "db" => is_empty_database(disk, &snap_dir.join(name)).unwrap_or(false),
        // etcd writes `.touch` to test whether the directory is writable, and `tmp*` files while it makes an
        // image.
        other => other == ".touch" || other.starts_with("tmp"),
    })
}

fn is_empty_database(disk: &dyn Disk, path: &Path) -> Result<bool, Error> {
    let failed = |error| Error::io("opening the database", error);
    let file = disk.open_read(path).map_err(failed)?;
    if file.len().map_err(failed)? == 0 {
        return Ok(true);
    }
    let bolt = Bolt::whole(file)?;
    if bolt.bucket(name::KEY)?.is_some() {
        let database = Backend::new(bolt)?;
        return Ok(database.meta()?.consistent_index == 0
            && database.history()?.step()?.is_none()
            && database.leases()?.step()?.is_none());
    }
    // The bucket `key` is missing, so etcd has ended before it had created all buckets. Nothing was ever
    // written if all existing buckets are empty.
    let mut buckets = bolt.root();
    while let Some(item) = buckets.step()? {
        let Some(bucket) = item.bucket else { return Ok(false) };
        if bolt.walk(&bucket).step()?.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

impl DataDir {
    /// Returns true if a client may have written to this store: if the database contains a change, if entries
    /// were removed from the log, or if the log contains anything except membership changes and data about
    /// the members and the cluster version, which members write themselves.
    ///
    /// # Errors
    ///
    /// Returns an error if the log or the database cannot be read.
    pub fn was_written(&self) -> Result<bool, Error> {
        if self.wal.first() > 1 || self.base.history()?.step()?.is_some() {
            return Ok(true);
        }
        for index in self.wal.first()..=self.wal.last() {
            let Some(entry) = self.wal.entry(index)? else { return Ok(true) };
            match Command::of(&entry) {
                Ok(Command::Nothing | Command::ConfChange(_)) => {}
                Ok(Command::Request(data)) if tells_of_members(data.clone()) => {}
                _ => return Ok(true),
            }
        }
        Ok(false)
    }
}

/// Returns true if a request contains only a member's attributes, the cluster version or a downgrade.
fn tells_of_members(data: bytes::Bytes) -> bool {
    let Ok(request) = InternalRaftRequest::decode(data) else { return false };
    let told = InternalRaftRequest {
        header: request.header.clone(),
        id: request.id,
        cluster_version_set: request.cluster_version_set.clone(),
        cluster_member_attr_set: request.cluster_member_attr_set.clone(),
        downgrade_info_set: request.downgrade_info_set.clone(),
        ..InternalRaftRequest::default()
    };
    told == request
}

/// Returns true if etcd or one of its tools has the database in this directory of snapshots open; false if
/// the database does not exist.
///
/// # Errors
///
/// Returns an error if the operating system refuses to test the lock.
pub fn is_in_use(disk: &dyn Disk, snap_dir: &Path) -> std::io::Result<bool> {
    match disk.lock_shared(&snap_dir.join("db")) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(error),
    }
}
