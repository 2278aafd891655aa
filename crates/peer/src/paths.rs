//! Paths of etcd's protocol between members, as the sending and the receiving end write them.

/// Messages of the pipeline.
pub(crate) const MESSAGES: &str = "/raft";
/// Streams. The path continues with the kind of the stream, and then with the id of the member that dials.
pub(crate) const STREAMS: &str = "/raft/stream/";
/// Snapshots.
pub(crate) const SNAPSHOTS: &str = "/raft/snapshot";
/// Probes.
pub(crate) const PROBES: &str = "/raft/probing";
