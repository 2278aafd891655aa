//! Creates the data directory of a member, so that etcd can start on it.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use disk::Disk;
use numbers::Revision;
use prost::Message as _;

use crate::backend::{BackendWriter, ConfState, Membership, Meta, Release};
use crate::bolt::Plan;
use crate::error::WriteError;
use crate::sink::FileSink;
use crate::v2_store;
use crate::wal::{HardState, Identity, SegmentStart, SnapshotMark, segment};

/// Identity and start position of the member that will start on the directory.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// Ids of the member and its cluster.
    pub identity: Identity,
    /// Index of the last raft entry that is applied in the state; above 0.
    pub index: u64,
    /// Raft term of the entry at `index`; above 0.
    pub term: u64,
    /// Release of etcd that will start on the directory.
    pub release: Release,
    /// Voters and learners of the cluster after the member has started.
    pub conf_state: ConfState,
    /// Newest raft term that the member has seen, at least that of its last entry.
    pub newest_term: u64,
    /// Member that this member voted for in `newest_term`; 0 for none.
    pub vote: u64,
    /// Entries after the state, in order. The member may have acknowledged them, so they must not be lost.
    pub entries: Vec<api::raftpb::Entry>,
}

/// A data directory that is being created for a member. The member belongs to a new cluster, all of whose
/// members start with the same state, or it is a member of an existing cluster that continues with etcd.
///
/// The log gets its final name last. etcd treats a directory without a log as empty, so it never starts with
/// the data of a directory that a crash left unfinished.
pub struct NewDataDir<'d> {
    disk: &'d dyn Disk,
    dir: PathBuf,
    wal_dir: PathBuf,
    member: NewMember,
}

impl<'d> NewDataDir<'d> {
    /// Begins to create a directory. The directory may exist, but must contain no files of a member.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory contains files of a member, the member's description is invalid, or
    /// the disk fails.
    pub fn begin(disk: &'d dyn Disk, dir: &Path, member: NewMember) -> Result<NewDataDir<'d>, WriteError> {
        NewDataDir::begin_with(disk, dir, &dir.join("member").join("wal"), member)
    }

    /// Begins a directory as [`NewDataDir::begin`] does, for a member whose log is in a separate directory
    /// (`--wal-dir`).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`NewDataDir::begin`].
    pub fn begin_with(
        disk: &'d dyn Disk,
        dir: &Path,
        wal_dir: &Path,
        member: NewMember,
    ) -> Result<NewDataDir<'d>, WriteError> {
        let id = member.identity.member_id;
        if member.index == 0 || member.term == 0 || id == 0 {
            return Err(WriteError::Refused("a member's index, term and id are above 0".to_owned()));
        }
        if !member.conf_state.voters.contains(&id) && !member.conf_state.learners.contains(&id) {
            return Err(WriteError::Refused(format!("member {id:x} is not among those that vote or learn")));
        }
        let root = dir.join("member");
        if disk.exists(&root)? {
            return Err(WriteError::Refused(format!("{} already exists", root.display())));
        }
        disk.create_dir_all(&root.join("snap"))?;
        disk.create_dir_all(wal_dir)?;
        Ok(NewDataDir { disk, dir: root, wal_dir: wal_dir.to_path_buf(), member })
    }

    /// Returns the contents of the bucket `meta` for this member; the caller supplies the compact revision.
    /// The caller must write these contents to the bucket in both passes.
    pub fn meta(&self, compact_revision: Option<Revision>) -> Meta {
        Meta {
            consistent_index: self.member.index,
            term: Some(self.member.term),
            conf_state: Some(self.member.conf_state.clone()),
            storage_version: self.member.release.storage_version().map(str::to_owned),
            scheduled_compact_revision: compact_revision,
            finished_compact_revision: compact_revision,
        }
    }

    /// Begins to write the database: the second of two passes. The caller passes the writer to
    /// [`NewDataDir::finish`] after the last change.
    ///
    /// # Errors
    ///
    /// Returns an error if the disk fails.
    pub fn database(&self, plan: Plan) -> Result<BackendWriter<FileSink>, WriteError> {
        let file = self.disk.create(&self.dir.join("snap").join("db"))?;
        BackendWriter::new(FileSink::new(file), plan, self.member.release)
    }

    /// Finishes the database and writes the other files. `membership` must contain exactly the voters and
    /// learners of the member's `conf_state`.
    ///
    /// # Errors
    ///
    /// Returns an error if `membership` differs from the voters and learners, the contents of the database
    /// differ from those of the first pass, or the disk fails.
    pub fn finish(
        mut self,
        database: BackendWriter<FileSink>,
        membership: &Membership,
    ) -> Result<(), WriteError> {
        if membership.conf_state() != self.member.conf_state {
            return Err(WriteError::Refused("the members are not those that vote and learn".to_owned()));
        }
        database.finish()?.finish()?;
        let (index, term) = (self.member.index, self.member.term);
        let image = v2_store::members_image(membership, index);
        let snapshot = api::raftpb::Snapshot {
            data: Some(image.into()),
            metadata: Some(api::raftpb::SnapshotMetadata {
                conf_state: Some((&self.member.conf_state).into()),
                index: Some(index),
                term: Some(term),
            }),
        };
        let data = snapshot.encode_to_vec();
        let framed = api::snappb::Snapshot { crc: Some(crc32c::crc32c(&data)), data: Some(data.into()) };
        let snap = self.dir.join("snap");
        self.write(&snap.join(format!("{term:016x}-{index:016x}.snap")), &framed.encode_to_vec())?;
        self.disk.sync_dir(&snap)?;
        let start = SegmentStart {
            identity: self.member.identity,
            hard_state: HardState { term: self.member.newest_term, vote: self.member.vote, commit: index },
            snapshot: SnapshotMark { index, term, conf_state: Some(self.member.conf_state.clone()) },
            entries: std::mem::take(&mut self.member.entries),
        };
        let wal = &self.wal_dir;
        let unfinished = wal.join("0.tmp");
        self.write(&unfinished, &segment(&start))?;
        self.disk.rename(&unfinished, &wal.join(crate::wal::FIRST_NAME))?;
        self.disk.sync_dir(wal)?;
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
        let mut sink = FileSink::new(self.disk.create(path)?);
        sink.write_all(bytes)?;
        Ok(sink.finish()?)
    }
}
