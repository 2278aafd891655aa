//! Tests etcd's formats through the public interface: with files made by real etcd, with damaged files, and
//! with real etcd itself where it is installed.

mod bolt;
mod damage;
mod etcd;
mod golden;
mod hash;
mod kit;
mod members;
mod old_store;
mod relog;
mod server;
mod wal;
