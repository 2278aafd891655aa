//! The node of this process as a source: an observer, or the copy of a shadow.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use consistency::comparison;
use log::{Entries, ReadError};
use machine::transfer::TransferWriter;
use numbers::{Index, Revision};
use replica::core::{ClientRequest, PeerRequest, ReplyBody};
use replica::shared::Shared;
use storage::block_on::block_on;
use storage::values::LogValues;

use crate::manifest::{HashKv, Position};
use crate::source::{Fetched, Source, WrittenState};
use crate::trouble::{Fault, Trouble};

/// Node that feeds a backup.
#[derive(Clone)]
pub struct LiveSource {
    shared: Arc<Shared>,
    entries: Entries,
    cluster_id: u64,
    stream: String,
    /// Tells whether the node receives what the cluster does.
    is_current: Arc<dyn Fn(&Shared) -> bool + Send + Sync>,
}

impl LiveSource {
    /// Returns an observer as a source. All observers of a cluster have the same log.
    pub fn observer(shared: &Arc<Shared>, entries: Entries) -> LiveSource {
        LiveSource {
            shared: Arc::clone(shared),
            entries,
            cluster_id: shared.member.identity.cluster_id,
            stream: "raft".to_owned(),
            is_current: Arc::new(|shared| shared.cluster.is_fed()),
        }
    }

    /// Returns a copy of the cluster with this id as a source. Each copy has a log of its own, which `copy_id` tells
    /// apart from those of other copies.
    pub fn copy(shared: &Arc<Shared>, entries: Entries, cluster_id: u64, copy_id: &str) -> LiveSource {
        LiveSource {
            shared: Arc::clone(shared),
            entries,
            cluster_id,
            stream: format!("copy-{copy_id}"),
            is_current: Arc::new(|shared| shared.diagnostics.metrics.shadow.connected.value() == 1),
        }
    }

    fn refuse_wrong(&self) -> Result<(), Trouble> {
        match self.shared.state.load().is_wrong {
            false => Ok(()),
            true => Err(Trouble::new(
                Fault::Passing,
                "the state of this node differs from that of its feeder, so nothing of it is kept: remove its data \
                 directory and start it again",
            )),
        }
    }
}

/// Returns the time in milliseconds since 1970.
pub fn wall_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

impl Source for LiveSource {
    fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    fn stream(&self) -> String {
        self.stream.clone()
    }

    fn position(&self) -> Position {
        let state = self.shared.state.load();
        let snapshot = state.view.snapshot();
        Position {
            index: state.applied_index.0,
            term: state.applied_term.0,
            revision: snapshot.current_revision().0,
            compact_revision: snapshot.compact_revision().0,
            time_ms: wall_ms(self.shared.member.clock.wall()),
        }
    }

    fn check(&self) -> Result<(), Trouble> {
        self.refuse_wrong()
    }

    fn is_current(&self) -> bool {
        (self.is_current)(&self.shared)
    }

    fn entries(&self, from: u64, to: u64, bytes_max: u64) -> Result<Fetched, Trouble> {
        self.refuse_wrong()?;
        match self.entries.read(Index(from), Index(to.saturating_add(1)), bytes_max) {
            Ok(entries) => Ok(Fetched::Entries(entries)),
            // What is applied is in the log, unless the log has dropped it since.
            Err(ReadError::Unavailable | ReadError::Moved) => Ok(Fetched::Gone),
            Err(error) => {
                Err(Trouble::new(Fault::Passing, format!("cannot read the log of this node: {error}")))
            }
        }
    }

    fn term(&self, index: u64) -> Option<u64> {
        self.entries.term(Index(index)).ok().map(|term| term.0)
    }

    fn state_hash(&self, index: u64) -> Option<u64> {
        let trail = block_on(
            self.shared.core.ask(move |request_id| PeerRequest::StateTrail(request_id, Index(index))),
        );
        match trail.ok()?.body {
            ReplyBody::StateTrail(trail) => trail.hash_at(Index(index)),
            _ => None,
        }
    }

    fn state(&self, write: &mut dyn FnMut(Bytes) -> Result<(), Trouble>) -> Result<WrittenState, Trouble> {
        self.refuse_wrong()?;
        let failed = |error: &dyn std::fmt::Display| {
            Trouble::new(Fault::Passing, format!("cannot read the state of this node: {error}"))
        };
        let reply = block_on(self.shared.core.ask(ClientRequest::Image));
        let ReplyBody::Image(head, state) = reply.map_err(|status| failed(&status.message))?.body else {
            return Err(failed(&"its core does not answer"));
        };
        let at = Position {
            index: head.applied_index.0,
            term: head.applied_term.0,
            revision: head.revision.0,
            compact_revision: head.compact_revision.0,
            time_ms: wall_ms(self.shared.member.clock.wall()),
        };
        let state_hash = head.state_hash;
        let values = LogValues::new(self.shared.data.values.clone());
        let mut writer = TransferWriter::new(*state, (*head).clone(), Revision(0));
        drop(head);
        while let Some(chunk) = writer.next_chunk(&values).map_err(|error| failed(&error))? {
            write(chunk)?;
        }
        // A compaction meanwhile makes the hash another one, or impossible. The state is complete nevertheless.
        let hashed = comparison::hash_of(&self.shared, Revision(at.revision), &AtomicBool::new(false)).ok();
        let hash_kv =
            hashed.filter(|hashed| hashed.compact_revision.0 == at.compact_revision).map(|hashed| HashKv {
                revision: at.revision,
                compact_revision: at.compact_revision,
                hash: hashed.hash,
            });
        Ok(WrittenState { at, state_hash, hash_kv })
    }
}
