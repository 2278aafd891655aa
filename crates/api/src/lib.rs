//! Defines etcd's API for all other crates: messages, RPCs, the error catalogue, ids, URLs and limits.
//!
//! Messages, errors and ids have to be byte for byte the same as in etcd, apart from Mainstay's own
//! additions. The crate does not depend on an async runtime or a transport. Start reading with [`Rpc`] and
//! [`error`].
//!
//! * `proto/*.proto` are written by hand; `cargo xtask proto` generates `src/proto/*.rs` from them.
//! * [`descriptor`] describes the messages, field by field.
//! * [`elements`] counts the elements of a request before it is decoded.
//! * [`error`] contains the code and message of every error that a client may receive.
//! * [`identity`] computes the ids of members and clusters.
//! * [`url`] parses the URLs of members and clients, with etcd's errors.
//! * [`wire`] encodes protobuf without generated messages, where filling such a message would copy data.
//! * [`Rpc`] names every RPC, [`METHODS`] describes them.
//!
//! Invariants: the crate does no IO, reads no clock, starts no thread and draws no random numbers (I1); the
//! generated code is current (`cargo xtask proto --check`). Tests: beside the code.

#![forbid(unsafe_code)]

pub mod descriptor;
pub mod elements;
pub mod error;
pub mod identity;
mod secret;
pub mod url;
pub mod wire;

pub use error::{Code, Status};

macro_rules! package {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        #[allow(missing_docs, clippy::all, reason = "generated; the .proto files carry the comments")]
        pub mod $name {
            include!(concat!("proto/", $file));
        }
    };
}

package!(/** The client API and what goes through raft. */ etcdserverpb, "etcdserverpb.rs");
package!(/** Keys, values, events. */ mvccpb, "mvccpb.rs");
package!(/** Users and roles. */ authpb, "authpb.rs");
package!(/** Members in raft entries. */ membershippb, "membershippb.rs");
package!(/** The raft protocol between members. */ raftpb, "raftpb.rs");
package!(/** The frames of etcd's WAL. */ walpb, "walpb.rs");
package!(/** The frame of etcd's snapshot files. */ snappb, "snappb.rs");
package!(/** Leases, at rest and between members. */ leasepb, "leasepb.rs");
package!(/** Calls that etcd does not have. */ mainstaypb, "mainstaypb.rs");
package!(/** Locks. */ v3lockpb, "v3lockpb.rs");
package!(/** Elections. */ v3electionpb, "v3electionpb.rs");
package!(/** The standard gRPC health service. */ health, "grpc.health.v1.rs");

/// Version of etcd that this server reports to clients. It must be a semantic version, because clients such
/// as kubeadm parse it.
pub const API_VERSION: &str = "3.7.1";

/// Name and version of Rust, shown in version output and metrics in place of etcd's Go version.
pub const RUNTIME_VERSION: &str = concat!("rust", env!("CARGO_PKG_RUST_VERSION"));

/// Lowest cluster version that a member can work with. A new cluster has this version until all its members
/// have reported their versions.
pub const MIN_CLUSTER_VERSION: &str = "3.0.0";

/// Cluster version that corresponds to [`API_VERSION`].
pub const CLUSTER_VERSION: &str = "3.7.0";

/// Limits and defaults that are constants in etcd.
pub mod limits {
    /// Maximum size of the data in bytes if `--quota-backend-bytes` is 0.
    pub const QUOTA_BYTES_DEFAULT: u64 = 2 << 30;
    /// Number of bytes by which the encoding of a request may exceed `--max-request-bytes`.
    pub const GRPC_OVERHEAD_BYTES: usize = 512 * 1024;
    /// Maximum TTL of a lease in seconds.
    pub const LEASE_TTL_MAX: i64 = 9_000_000_000;
    /// Size in bytes of one message of a streamed snapshot.
    pub const SNAPSHOT_BLOB_BYTES: usize = 32 * 1024;
}

/// Kind of an RPC: which side sends a stream of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are gRPC's own")]
pub enum Kind {
    Unary,
    ServerStream,
    ClientStream,
    BidiStream,
}

include!("proto/rpc.rs");

impl Rpc {
    /// Returns the description of the RPC.
    #[inline]
    pub fn method(self) -> &'static Method {
        &METHODS[self as usize]
    }

    /// Returns the path of an HTTP/2 request for the RPC, such as `/etcdserverpb.KV/Range`.
    #[inline]
    pub fn path(self) -> &'static str {
        self.method().path
    }
}

/// The description of one RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method {
    /// The described RPC.
    pub rpc: Rpc,
    /// Package and service, such as `etcdserverpb.KV`.
    pub service: &'static str,
    /// Name of the RPC, such as `Range`.
    pub name: &'static str,
    /// Path of an HTTP/2 request for the RPC, such as `/etcdserverpb.KV/Range`.
    pub path: &'static str,
    /// Kind of the RPC.
    pub kind: Kind,
}

/// Every RPC, in the order of the `.proto` files.
pub static METHODS: &[Method] = include!("proto/methods.rs");

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn every_service_is_in_the_table() {
        let count = |service: &str| METHODS.iter().filter(|m| m.service == service).count();
        let counted: Vec<(&str, usize)> = [
            "etcdserverpb.KV",
            "etcdserverpb.Watch",
            "etcdserverpb.Lease",
            "etcdserverpb.Cluster",
            "etcdserverpb.Maintenance",
            "etcdserverpb.Auth",
            "mainstaypb.Connections",
            "v3lockpb.Lock",
            "v3electionpb.Election",
            "grpc.health.v1.Health",
        ]
        .into_iter()
        .map(|service| (service, count(service)))
        .collect();
        let numbers: Vec<usize> = counted.iter().map(|c| c.1).collect();
        assert_eq!(numbers, [6, 1, 5, 5, 8, 17, 2, 2, 5, 3], "{counted:?}");
        assert_eq!(METHODS.len(), 54);
    }

    #[test]
    fn every_rpc_stands_at_its_number() {
        assert_eq!(METHODS.len(), Rpc::ALL.len());
        for (number, (rpc, method)) in Rpc::ALL.into_iter().zip(METHODS).enumerate() {
            assert_eq!((rpc as usize, method.rpc, rpc.method()), (number, rpc, method));
            assert_eq!(method.path, format!("/{}/{}", method.service, method.name));
        }
    }

    #[test]
    fn a_key_value_has_the_bytes_that_hashkv_hashes() {
        let kv = mvccpb::KeyValue {
            key: "k".into(),
            create_revision: 2,
            mod_revision: 300,
            version: 1,
            value: "v".into(),
            lease: 0,
        };
        assert_eq!(kv.encode_to_vec(), b"\x0a\x01k\x10\x02\x18\xac\x02\x20\x01\x2a\x01v");
    }

    #[test]
    fn texts_of_the_catalogue_are_unique() {
        let mut texts: Vec<&str> = error::CATALOGUE.iter().map(|s| &*s.message).collect();
        let count = texts.len();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), count);
    }
}
