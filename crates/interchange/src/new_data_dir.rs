//! A member's directory, made for etcd to start on.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use disk::Disk;
use prost::Message as _;

use crate::backend::{BackendWriter, ConfState, Membership, Meta, Release};
use crate::bolt::Plan;
use crate::error::WriteError;
use crate::sink::FileSink;
use crate::v2_store;
use crate::wal::{HardState, Identity, SegmentStart, SnapshotMark, segment};

/// Who will start on the directory, and from where.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// The member and its cluster.
    pub identity: Identity,
    /// The last entry whose effects are in the state; above 0.
    pub index: u64,
    /// The term of that entry; above 0.
    pub term: u64,
    /// Which etcd will start on it.
    pub release: Release,
}

/// A directory being made for the only member of a cluster.
///
/// The log gets its name last, and etcd takes a directory without a log for an empty one: what a crash leaves behind
/// is never taken for a member.
pub struct NewDataDir<'d> {
    disk: &'d dyn Disk,
    dir: PathBuf,
    member: NewMember,
}

impl<'d> NewDataDir<'d> {
    /// Begins. The directory may be there, but nothing of a member.
    ///
    /// # Errors
    ///
    /// When there is something of a member, the member cannot be, or the disk fails.
    pub fn begin(disk: &'d dyn Disk, dir: &Path, member: NewMember) -> Result<NewDataDir<'d>, WriteError> {
        if member.index == 0 || member.term == 0 || member.identity.member_id == 0 {
            return Err(WriteError::Refused("a member's index, term and id are above 0".to_owned()));
        }
        let root = dir.join("member");
        if disk.exists(&root)? {
            return Err(WriteError::Refused(format!("{} is there already", root.display())));
        }
        disk.create_dir_all(&root.join("snap"))?;
        disk.create_dir_all(&root.join("wal"))?;
        Ok(NewDataDir { disk, dir: root, member })
    }

    /// What the bucket `meta` has to say for this member; compact revisions are the caller's. Both passes have to
    /// write it.
    pub fn meta(&self, compact_revision: Option<i64>) -> Meta {
        Meta {
            consistent_index: self.member.index,
            term: Some(self.member.term),
            conf_state: Some(self.conf_state()),
            storage_version: self.member.release.storage_version().map(str::to_owned),
            scheduled_compact_revision: compact_revision,
            finished_compact_revision: compact_revision,
        }
    }

    /// Begins the database. The second of two passes; [`NewDataDir::finish`] takes it back.
    ///
    /// # Errors
    ///
    /// When the disk fails.
    pub fn database(&self, plan: Plan) -> Result<BackendWriter<FileSink>, WriteError> {
        let file = self.disk.create(&self.dir.join("snap").join("db"))?;
        BackendWriter::new(FileSink::new(file), plan, self.member.release)
    }

    /// Finishes the database and writes the rest. `membership` has the member, and no other one.
    ///
    /// # Errors
    ///
    /// When the members are others, the database is not what was measured, or the disk fails.
    pub fn finish(
        self,
        database: BackendWriter<FileSink>,
        membership: &Membership,
    ) -> Result<(), WriteError> {
        let id = self.member.identity.member_id;
        if !matches!(&membership.members[..], [only] if only.id == id && !only.is_learner) {
            let what = format!("the members have to be {id:x} alone, with a vote");
            return Err(WriteError::Refused(what));
        }
        database.finish()?.finish()?;
        let NewMember { index, term, .. } = self.member;
        let image = v2_store::image(membership, index);
        let snapshot = api::raftpb::Snapshot {
            data: Some(image.into()),
            metadata: Some(api::raftpb::SnapshotMetadata {
                conf_state: Some((&self.conf_state()).into()),
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
            hard_state: HardState { term, vote: id, commit: index },
            snapshot: SnapshotMark { index, term, conf_state: Some(self.conf_state()) },
        };
        let wal = self.dir.join("wal");
        let unfinished = wal.join("0.tmp");
        self.write(&unfinished, &segment(&start))?;
        self.disk.rename(&unfinished, &wal.join(crate::wal::FIRST_NAME))?;
        self.disk.sync_dir(&wal)?;
        Ok(())
    }

    fn conf_state(&self) -> ConfState {
        ConfState { voters: vec![self.member.identity.member_id], learners: Vec::new() }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
        let mut sink = FileSink::new(self.disk.create(path)?);
        sink.write_all(bytes)?;
        Ok(sink.finish()?)
    }
}
