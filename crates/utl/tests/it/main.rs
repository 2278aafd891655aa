//! Integration tests. The outputs of real etcdutl were recorded once (see `golden.rs`); files made by real
//! etcd are those of the crate `interchange`.

mod beside;
mod bump;
mod damage;
mod golden;
mod import;
mod kit;
mod old_store;
mod places;
mod recover;
#[path = "../../../interchange/tests/it/relog.rs"]
mod relog;
mod restore;
mod round_trip;
mod takeover;
