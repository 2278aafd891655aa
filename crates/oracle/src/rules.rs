//! Checks the guarantees of etcd that do not follow from the sequence of changes alone, one module each.

pub(crate) mod compaction;
pub(crate) mod expiry;
pub(crate) mod headers;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod members;
pub(crate) mod order;
pub(crate) mod permissions;
pub(crate) mod record;
pub(crate) mod refusals;
pub(crate) mod watches;
