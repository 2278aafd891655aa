//! Defines the paths of etcd's protocol between members, for requests to other members and for the listeners
//! of this member.

/// Path for messages of the pipeline.
pub(crate) const MESSAGES: &str = "/raft";
/// Beginning of the path for streams. The kind of the stream follows, and then `/` and the id of the member
/// that dials.
pub(crate) const STREAMS: &str = "/raft/stream/";
/// Path for snapshots.
pub(crate) const SNAPSHOTS: &str = "/raft/snapshot";
/// Path for probes.
pub(crate) const PROBES: &str = "/raft/probing";
