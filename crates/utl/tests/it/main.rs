//! Integration tests. What real etcdutl prints was recorded once (`golden.rs` says how); files that real etcd made are
//! those of the crate `interchange`.

mod beside;
mod bump;
mod damage;
mod golden;
mod import;
mod kit;
mod old_store;
mod places;
#[path = "../../../interchange/tests/it/relog.rs"]
mod relog;
mod restore;
mod round_trip;
mod takeover;
